"""The chat app: places the widgets and passes on keys and messages. The work is done elsewhere."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from textual import on
from textual.app import App, SystemCommand
from textual.binding import Binding
from textual.containers import Horizontal, Vertical
from textual.screen import ModalScreen

from localspec.errors import LocalspecError, UsageError
from localspec.ui import commands, numbers
from localspec.ui.conversation import attach
from localspec.ui.conversation.completion import Completion
from localspec.ui.conversation.growing import legend
from localspec.ui.conversation.prompt import LONGEST_PASTE, Prompt
from localspec.ui.conversation.shelf import Shelf, StoreTrouble
from localspec.ui.conversation.transcript import Transcript
from localspec.ui.conversation.turns import REASONS, Phase, Turns
from localspec.ui.engine_thread import EngineThread
from localspec.ui.in_use import InUse
from localspec.ui.lines import KeyLine, StatusLine, TitleLine
from localspec.ui.looks import Looks
from localspec.ui.messages import (
    ChangeDone,
    Loaded,
    LoadFailed,
    Loading,
    SwitchFailed,
    TurnNews,
    TurnOver,
)
from localspec.ui.pair_work import PairNews, Pairs
from localspec.ui.panel.dashboard import Dashboard
from localspec.ui.screens.compare import COMPARE, CompareScreen, Side, answer_twice, question
from localspec.ui.screens.help import HelpScreen
from localspec.ui.wording import in_words

if TYPE_CHECKING:
    from collections.abc import Iterable

    from textual.app import ComposeResult
    from textual.binding import BindingType
    from textual.message import Message
    from textual.screen import Screen

    from localspec.chat.events import PromptProgress
    from localspec.ui.contract import ChatSession, Loader, Opener

_QUIT_WITHIN_S = 2.0


def _bindings() -> list[BindingType]:
    return [
        Binding(
            command.keys,
            f"command('{command.name}')",
            command.footer or command.name,
            show=bool(command.footer),
            priority=True,
            id=command.name,
        )
        for command in commands.COMMANDS
        if command.keys
    ]


class ChatApp(App[None]):
    """Chat with a draft and a target.

    Args:
        load: makes the session; runs in the engine's thread while the app is already on screen.
        opener: finds the loaders of other pairs; without it there is only the first one.
        archive: the file of the stored conversations; None to keep none.
        resume: the id of the stored conversation to begin with.
        looks: what the user has chosen about the screen.
    """

    TITLE = "localspec"
    CSS_PATH = Path(__file__).with_name("styles.tcss")  # also for classes made from this one
    ENABLE_COMMAND_PALETTE = True
    HORIZONTAL_BREAKPOINTS = [  # noqa: RUF012 - Textual declares the type
        (0, "-narrow"),
        (50, "-normal"),
        (160, "-wide"),
    ]
    VERTICAL_BREAKPOINTS = [  # noqa: RUF012
        (0, "-tiny"),
        (8, "-short"),
        (16, "-tall"),
    ]
    BINDINGS: ClassVar[list[BindingType]] = [
        *_bindings(),
        Binding("escape", "stop", "Stop", show=False),
        Binding("ctrl+c", "interrupt", "Stop or quit", show=False, priority=True),
    ]

    def __init__(
        self,
        load: Loader,
        opener: Opener | None = None,
        *,
        archive: Path | None = None,
        resume: str | None = None,
        looks: Looks | None = None,
    ) -> None:
        super().__init__()
        self._looks = looks or Looks()
        self.commands = commands.with_keys(self._looks.keys)
        self.in_use = InUse(self, opener, map(UsageError, self._looks.problems))
        self.pairs = Pairs(self, self.post_from_thread)
        self.shelf = Shelf(self, archive, resume)
        self.engine = EngineThread(load, self.post_from_thread, self.shelf.hear)
        self.turns = Turns(self)
        self.dashboard = Dashboard(self, self._looks.panel)
        self.session: ChatSession | None = None
        self.transcript = Transcript(id="transcript")
        self._completion = Completion(self.commands, id="completion")
        self.prompt = Prompt(self._accepts, self._completion.next, id="prompt")
        self._status = StatusLine(id="status")
        self.title_line = TitleLine(id="title")
        self._question = ""
        self._interrupted_at = float("-inf")

    def compose(self) -> ComposeResult:
        """Title, conversation and panel side by side, then status, input and keys."""
        yield self.title_line
        with Horizontal(id="main"):
            with Vertical(id="talk"):
                yield self.transcript
                yield self.dashboard.compact
                yield self._status
                yield self._completion
                yield self.prompt
            yield self.dashboard.full
        yield KeyLine(self.commands, id="keys")

    def on_mount(self) -> None:
        """Begin loading; the screen is there already."""
        self._set_keys()
        if self._looks.theme is not None:
            self.theme = self._looks.theme
        self.dashboard.start()
        self.prompt.focus()
        self.title_line.show(None)
        self.show_phase()
        self.shelf.start()
        self.engine.start()

    def _set_keys(self) -> None:
        """The keys that the user chose, also for commands that have none by themselves."""
        self.set_keymap(dict(self._looks.keys))
        for command in commands.COMMANDS:
            if not command.keys and (keys := self._looks.keys.get(command.name)):
                action = f"command('{command.name}')"
                self._bindings.bind(keys, action, command.name, show=False, priority=True)

    def on_unmount(self) -> None:
        """However the app ends, the engine is told."""
        self.engine.shut_down()
        self.pairs.shut_down()

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        """The palette offers what keys and slashes offer on this screen, and the themes."""
        for command in self.commands:
            if isinstance(screen, ModalScreen) and command.name not in commands.EVERYWHERE:
                continue
            yield SystemCommand(
                command.name.capitalize(),
                f"{command.meaning} ({command.shown})" if command.shown else command.meaning,
                partial(self.action_command, command.name),
            )
        yield SystemCommand("Theme", "choose the colours", self.action_change_theme)

    # From other threads

    def post_from_thread(self, message: Message) -> None:
        """Take a message from any thread."""
        try:
            self.post_message(message)
        except RuntimeError:
            # The event loop has just been closed: nobody is left to be told.
            self.engine.stop()

    @on(Loading)
    def _loading(self, message: Loading) -> None:
        if self.turns.phase is Phase.LOADING:
            self._status.lasting(message.step, message.share, hint="Esc cancels")

    @on(Loaded)
    def _loaded(self, message: Loaded) -> None:
        self.in_use.loaded(message.session)

    @on(LoadFailed)
    def _load_failed(self, message: LoadFailed) -> None:
        self.in_use.failed(message.error)

    @on(SwitchFailed)
    def _switch_failed(self, message: SwitchFailed) -> None:
        self.in_use.switch_failed(message)

    @on(PairNews)
    def _pair_news(self, message: PairNews) -> None:
        self.pairs.take(message)

    @on(StoreTrouble)
    def _store_trouble(self, message: StoreTrouble) -> None:
        self.in_use.trouble(message.error)

    @on(TurnNews)
    def _turn_news(self) -> None:
        self.turns.news()

    @on(TurnOver)
    def _turn_over(self, message: TurnOver) -> None:
        self.turns.over(message.error)

    @on(ChangeDone)
    def _change_done(self, message: ChangeDone) -> None:
        self.turns.changed()
        if message.error is not None:
            if isinstance(self.screen, CompareScreen):
                self.pop_screen()  # it would wait for ever, and hides what is said
            self.transcript.say(*in_words(message.error), error=True)
        elif self.session is not None and message.label != COMPARE:
            if message.label == "clear":
                self.shelf.record.fresh()
            nodes = self.shelf.nodes()
            self.dashboard.state.begin(nodes[-1][1] if nodes else {})
            self.transcript.open(self.session, nodes)
            if self.turns.notice:
                self.transcript.say(self.turns.notice)
        self.turns.notice = ""
        self.show_phase()
        self.dashboard.refresh_everything()

    # From the keyboard

    def _accepts(self, text: str) -> bool:
        """Whether `text` may be sent now; a turn is reserved for it, the gate closes at once."""
        if (slash := commands.parse(text)) is not None:
            return self._may_run(*slash)
        try:
            question = attach.expand(commands.message_text(text))
        except LocalspecError as error:
            self.transcript.say(*in_words(error), error=True)
            return False
        if self.turns.reserve():
            self._question = question  # a file that is read twice may be another, or gone
            return True
        self.say_briefly(REASONS[self.turns.phase])
        return False

    def _may_run(self, name: str, argument: str) -> bool:
        """Whether the engine lets a command run now; one that does not exist says so when run."""
        try:
            allowed = commands.find(name).can_run(argument, self.turns.phase)
        except UsageError:
            return True
        if not allowed:
            self.say_briefly(REASONS[self.turns.phase])
        return allowed

    @on(Prompt.Sent)
    def _sent(self, message: Prompt.Sent) -> None:
        if (slash := commands.parse(message.text)) is not None:
            self._run_command(*slash)
        else:
            self.turns.ask(self._question)

    @on(Prompt.Changed)
    def _typed(self) -> None:
        text = self.prompt.text
        at_end = self.prompt.cursor_location == self.prompt.document.end
        self._completion.look(text if at_end else "")
        self.shelf.draft(text)

    @on(Prompt.PasteRefused)
    def _paste_refused(self, message: Prompt.PasteRefused) -> None:
        self.transcript.say(
            f"the pasted text is too long: {message.length:,} characters, not more than"
            f" {LONGEST_PASTE:,} are taken",
            "Paste a part of it that fits into the context.",
            error=True,
        )

    @on(Prompt.ScrollWanted)
    def _scroll(self, message: Prompt.ScrollWanted) -> None:
        self.transcript.page(message.pages)

    def action_stop(self) -> None:
        """Stop the answer, or the loading; leave an edited question as it was."""
        if self.turns.phase is Phase.LOADING:
            self.engine.stop_loading()
        self.turns.stop()
        if self.turns.editing is not None:
            self.turns.edit(None)
            self.prompt.show(self.turns.unsent)

    def action_version(self, node: str, way: str) -> None:
        """Show the earlier or the later version of a message (its arrows were clicked)."""
        self.shelf.step(node, -1 if way == "earlier" else 1)

    def action_interrupt(self) -> None:
        """Ctrl+C: copy a selection, else stop the answer; pressed twice, quit."""
        selected = self.screen.get_selected_text() or self.prompt.selected_text
        if selected:
            self.copy_text(selected, "the selection")
            self.screen.clear_selection()
            return
        now = time.monotonic()
        if now - self._interrupted_at < _QUIT_WITHIN_S:
            self.leave()
            return
        self._interrupted_at = now
        self.turns.stop()
        said = "press Ctrl+C again to quit"
        self.say_briefly(said)
        if isinstance(self.screen, ModalScreen):  # which covers the status line
            self.notify(said, timeout=_QUIT_WITHIN_S)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """What stands behind a dialogue does not answer to keys, but for the way out."""
        if action == "command" and isinstance(self.screen, ModalScreen):
            return parameters[0] in commands.EVERYWHERE
        return super().check_action(action, parameters)

    def action_command(self, name: str) -> None:
        """Run a command from a key or the palette."""
        if self._may_run(name, ""):
            self._run_command(name, "")

    def _run_command(self, name: str, argument: str) -> None:
        try:
            commands.find(name).run(self, argument)
        except LocalspecError as error:
            self.transcript.say(*in_words(error), error=True)

    # What commands and turns ask for

    def say_briefly(self, text: str) -> None:
        """A short answer in the status line."""
        self._status.flash(text)

    def show_help(self) -> None:
        """Open the help, or close it."""
        if isinstance(self.screen, HelpScreen):
            self.pop_screen()
        else:
            self.push_screen(HelpScreen(self.commands))

    def compare(self) -> None:
        """Answer the current prompt twice, without and with speculation, side by side."""
        if self.session is None or not self.turns.free():
            return
        typed = attach.expand(commands.message_text(self.prompt.text))
        text, before = question(self.session, typed)
        sides = Side(speculation=False), Side(speculation=True)
        if self.turns.change_long(
            COMPARE,
            lambda session, cancel: answer_twice(session, text, before, sides, cancel),
        ):
            self.push_screen(CompareScreen(text, sides, self.engine.stop))

    def leave(self) -> None:
        """Quit; a running answer is stopped, the thread ends by itself."""
        self.engine.shut_down()
        self.exit()

    def give_back(self, text: str) -> None:
        """Return a text to the input unless something else was typed meanwhile."""
        if text and not self.prompt.text:
            self.prompt.show(text)

    def turn_began(self) -> None:
        """An answer is on its way: figures move from now on."""
        self.dashboard.run(True)
        self.show_phase()
        self.pairs.redraw()

    def turn_ended(self) -> None:
        """The answer is there: settle the figures."""
        self.dashboard.run(False)
        self.show_phase()
        self.dashboard.refresh_everything()
        self.pairs.redraw()

    def show_phase(self) -> None:
        """The status line for what is going on."""
        text, hint = self.turns.shown()
        self._status.settle()
        self._status.lasting(text, hint=hint, tail=legend() if self.transcript.by_origin else None)

    def show_prompt_progress(self, progress: PromptProgress) -> None:
        """The prompt is being read."""
        if self.turns.phase is Phase.ANSWERING:
            text = f"reading {numbers.count(progress.total)} tokens"
            share = progress.done / progress.total if progress.total else 1.0
            self._status.lasting(text, share, hint="Esc stops")
            if progress.done >= progress.total:
                self.show_phase()

    # The screen's own shape

    def on_resize(self) -> None:
        """Let the panel follow the terminal's size."""
        self.call_after_refresh(self.dashboard.place)

    def copy_text(self, text: str, what: str) -> None:
        """Put a text into the clipboard."""
        self.copy_to_clipboard(text)
        self.say_briefly(f"copied {what}: {len(text):,} characters")
