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
from localspec.process.messages import (
    ChangeDone,
    Died,
    Loaded,
    LoadFailed,
    Loading,
    Status,
    Turn,
    TurnOver,
)
from localspec.ui import commands, numbers
from localspec.ui.conversation import attach
from localspec.ui.conversation.completion import Completion
from localspec.ui.conversation.growing import legend
from localspec.ui.conversation.prompt import LONGEST_PASTE, Prompt
from localspec.ui.conversation.shelf import Shelf, StoreTrouble
from localspec.ui.conversation.transcript import Transcript
from localspec.ui.conversation.turns import REASONS, Phase, Turns
from localspec.ui.in_use import InUse
from localspec.ui.lines import KeyLine, StatusLine, TitleLine
from localspec.ui.looks import Looks
from localspec.ui.messages import FromEngine, TurnNews
from localspec.ui.pair_work import PairNews, Pairs
from localspec.ui.panel.dashboard import Dashboard
from localspec.ui.screens.compare import CompareScreen, question
from localspec.ui.screens.help import HelpScreen
from localspec.ui.wording import in_words

if TYPE_CHECKING:
    from collections.abc import Iterable

    from textual.app import ComposeResult
    from textual.binding import BindingType
    from textual.message import Message
    from textual.screen import Screen

    from localspec.chat.events import PromptProgress
    from localspec.process.client import Engine
    from localspec.process.messages import Event, Fault, Letter, SessionInfo

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


def _raised(fault: Fault | None) -> Exception | None:
    return None if fault is None else fault.exception()


class ChatApp(App[None]):
    """Chat with a draft and a target.

    Args:
        engine: what answers; it loads while the app is already on screen.
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
        engine: Engine,
        *,
        archive: Path | None = None,
        resume: str | None = None,
        looks: Looks | None = None,
    ) -> None:
        super().__init__()
        self._looks = looks or Looks()
        self.commands = commands.with_keys(self._looks.keys)
        self.engine = engine
        self.in_use = InUse(self, map(UsageError, self._looks.problems))
        self.pairs = Pairs(self, self.post_from_thread)
        self.shelf = Shelf(self, archive, resume)
        self.turns = Turns(self, lambda: self.post_from_thread(TurnNews()))
        self.dashboard = Dashboard(self, self._looks.panel)
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
        self.engine.listen(self._hear)

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

    @property
    def session(self) -> SessionInfo | None:
        """What is loaded, None while nothing is."""
        return self.engine.info

    # From other threads

    def _hear(self, letter: Letter[Event]) -> None:
        """Take what the engine says, in the thread that hears it."""
        if isinstance(letter.body, Turn) and letter.body.speculation is None:
            self.shelf.hear(letter.body.event)
            self.turns.inbox.put(letter.body.event)
        else:
            self.post_from_thread(FromEngine(letter))

    def post_from_thread(self, message: Message) -> None:
        """Take a message from any thread."""
        try:
            self.post_message(message)
        except RuntimeError:
            # The event loop has just been closed: nobody is left to be told.
            self.engine.stop()

    @on(FromEngine)
    def _from_engine(self, message: FromEngine) -> None:
        self.engine.settle(message.letter)
        match message.letter.body:
            case Loading(step, share) if self.turns.phase is Phase.LOADING:
                self._status.lasting(step, share, hint="Esc cancels")
            case Loaded():
                self.in_use.loaded()
            case LoadFailed() as failed:
                self.in_use.failed(failed)
            case Turn(event, speculation) if isinstance(self.screen, CompareScreen):
                self.screen.hear(event, speculation=bool(speculation))
            case TurnOver(error, said):
                self.turns.over(_raised(error), said)
            case ChangeDone(error):
                self._change_done(_raised(error))
            case Status() as status:
                self.dashboard.hear(status)
            case Died(error):
                self._died(error.exception())

    @on(PairNews)
    def _pair_news(self, message: PairNews) -> None:
        self.pairs.take(message)

    @on(StoreTrouble)
    def _store_trouble(self, message: StoreTrouble) -> None:
        self.in_use.trouble(message.error)

    @on(TurnNews)
    def _turn_news(self) -> None:
        self.turns.news()

    def _change_done(self, error: Exception | None) -> None:
        self.turns.changed(done=error is None)
        if error is not None:
            self._leave_comparison()
            self.transcript.say(*in_words(error), error=True)
        self.turns.notice = ""
        self.show_phase()
        self.dashboard.refresh()

    def _died(self, error: Exception) -> None:
        """The engine is gone; the conversation is not."""
        self._leave_comparison()
        self.in_use.died(error)
        self.pairs.redraw()

    def _leave_comparison(self) -> None:
        """It would wait for ever, and hides what is said."""
        if isinstance(self.screen, CompareScreen):
            self.pop_screen()

    def show_conversation(self) -> None:
        """Show the path in force, as the record has it."""
        if self.engine.latest is None:
            return
        shown = self.shelf.shown()
        self.dashboard.state.begin(shown[-1][2] if shown else {})
        self.transcript.open(self.engine.latest, shown)
        if self.turns.notice:
            self.transcript.say(self.turns.notice)
            self.turns.notice = ""
        self.dashboard.refresh()

    def cleared(self) -> None:
        """The engine has forgotten the conversation: begin another."""
        self.shelf.record.fresh()
        self.show_conversation()

    # From the keyboard

    def _accepts(self, text: str) -> bool:
        """Whether `text` may be sent now; a turn is reserved for it, the gate closes at once."""
        if (slash := commands.parse(text)) is not None:
            return self._may_run(*slash)
        if self.turns.phase is Phase.DEAD:
            self.in_use.reload(self.prompt.submit)
            return False
        if not text:
            return False
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
        if self.session.speculation_note:
            raise UsageError(f"there is nothing to compare: {self.session.speculation_note}")
        typed = attach.expand(commands.message_text(self.prompt.text))
        text, before = question(self.shelf.record.messages(), typed)
        self.turns.compare(text, before)
        self.push_screen(CompareScreen(text, self.engine.stop))

    def leave(self) -> None:
        """Quit; a running answer is stopped, the engine ends by itself."""
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
        self.dashboard.refresh()
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
