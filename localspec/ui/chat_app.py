"""The chat app: makes its parts, places the widgets, and passes on keys and commands."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from textual import on
from textual.actions import ActionParseResult
from textual.app import App, ComposeResult, SystemCommand
from textual.binding import Binding, BindingType
from textual.command import CommandPalette
from textual.constants import DEFAULT_THEME
from textual.containers import Horizontal, Vertical
from textual.dom import DOMNode
from textual.screen import ModalScreen, Screen
from textual.widgets import Input, OptionList

from localspec import formats
from localspec.chat.events import PromptProgress
from localspec.chat.history.conversation_record import ConversationRecord
from localspec.chat.history.store_thread import StoreThread
from localspec.errors import UsageError
from localspec.process.engine_client import EngineClient
from localspec.process.messages import SessionInfo
from localspec.ui.commands import command_table
from localspec.ui.conversation.conversation_library import ConversationLibrary
from localspec.ui.conversation.engine_phase import EnginePhase
from localspec.ui.conversation.idle_watch import IdleWatch
from localspec.ui.conversation.prompt_reading import PromptReading
from localspec.ui.conversation.prompt_sender import PromptSender
from localspec.ui.conversation.prompt_size import PromptSize
from localspec.ui.conversation.stream import AnswerStream, PromptRead
from localspec.ui.conversation.turn_controller import TurnController
from localspec.ui.engine_events import EngineEvents
from localspec.ui.input.clipboard import copy_by_program
from localspec.ui.input.prompt_area import PromptArea
from localspec.ui.input.suggestions import CompletionList
from localspec.ui.late_import import after_import
from localspec.ui.pairs.pair_events import PairMissing, PairWorkChanged
from localspec.ui.pairs.pair_loader import PairLoader
from localspec.ui.panel.dashboard import Dashboard, PanelForm
from localspec.ui.screens.help import HelpScreen, PaletteCommands
from localspec.ui.status_lines import KeyLine, StatusLine, TitleLine
from localspec.ui.tools.chat_tools import ChatTools
from localspec.ui.transcript.growing import legend
from localspec.ui.transcript.transcript import Transcript

if TYPE_CHECKING:
    from localspec.ui.pairs.measuring_jobs import MeasuringJobs
    from localspec.ui.pairs.pair_manager import PairManager
    from localspec.ui.tools.tool_servers import ToolServers

_AGAIN_WITHIN_S = 2.0
_LIST_FROM = 5  # lines of a terminal in which a list has one
_SENTENCE = 20  # characters that a sentence needs at least


@dataclass(frozen=True, slots=True)
class Appearance:
    """Choices that the app begins with.

    Attributes:
        keys: key names with commas, by command; they replace the command's own.
        theme: one of Textual's; None for Textual's default.
        panel: a form of the panel; None for what suits the terminal's size.
        problems: messages about choices that were left out as wrong.
        proposes: whether pairs that suit this machine are proposed.
        idle_s: seconds without a key or an answer after which the models are unloaded; 0 for never.
    """

    keys: Mapping[str, str] = field(default_factory=dict)
    theme: str | None = None
    panel: str | None = None
    problems: tuple[str, ...] = ()
    settings: Path | None = None
    proposes: bool = False
    idle_s: float = 0.0


class ChatApp(App[None], inherit_bindings=False):
    """Chat with a draft and a target.

    Args:
        engine: what answers; it loads while the app is already on screen.
        archive: the file of the stored conversations; None to keep none.
        resume: the id of the stored conversation to begin with.
        typed: fields of its settings that the command line gives in place of the stored ones.
        appearance: what the user has chosen about the screen.
    """

    TITLE = "localspec"
    CSS_PATH = Path(__file__).with_name("styles.tcss")  # also for classes made from this one
    ENABLE_COMMAND_PALETTE = True
    COMMANDS: ClassVar = {PaletteCommands}
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
        Binding("escape", "stop", "Stop", show=False),
        Binding("ctrl+c", "interrupt", "Stop or quit", show=False, priority=True),
    ]

    def __init__(
        self,
        engine: EngineClient,
        *,
        archive: Path | None = None,
        resume: str | None = None,
        typed: Set[str] = frozenset(),
        appearance: Appearance | None = None,
    ) -> None:
        super().__init__()
        self._appearance = appearance or Appearance()
        self.commands = command_table.with_keys(self._appearance.keys)
        self.engine = engine
        self._pressed = ("", float("-inf"))  # what a key does when it comes again, and when it came
        self._pairs: PairManager | None = None
        self._bind_keys()
        self._place_widgets()
        self._connect(archive, resume, typed)

    def _bind_keys(self) -> None:
        # The user's choice comes first: it takes a key away from another command.
        for one in sorted(self.commands, key=lambda one: one.name not in self._appearance.keys):
            for key in filter(None, one.keys.split(",")):
                action = f"command('{one.name}', '{key}')"
                self._bindings.bind(key, action, one.name, show=False, priority=True)

    def _place_widgets(self) -> None:
        self.dashboard = Dashboard(self._appearance.panel)
        self.transcript = Transcript()
        self.status = StatusLine()
        self._sender = PromptSender(self)
        self._completion = CompletionList(self.commands, lambda one: one.words(self))
        self.prompt = PromptArea(self._sender.enter, self._completion, self.transcript.say)
        self.title_line = TitleLine("", markup=False, id="title")

    def _connect(self, archive: Path | None, resume: str | None, typed: Set[str]) -> None:
        """Make the controllers, each with the parts that it works on."""
        store_thread = None
        if archive is not None:
            store_thread = StoreThread(
                archive, lambda error: self.soon(self.pair_loader.trouble, error)
            )
        record = ConversationRecord(store_thread)
        stream = AnswerStream(self.transcript, self.dashboard, self.soon)
        self.turns = TurnController(
            self._phase_changed, self.engine, record, stream, self.transcript, self.prompt,
            self.dashboard, self.status,
        )  # fmt: skip
        self._prompt_size = PromptSize(self.turns)
        self._tools = ChatTools(self.turns, self.soon, self._sender.give_back)
        self._reading = PromptReading(self._show_progress, self.set_timer)
        self._idle_watch = IdleWatch(self._appearance.idle_s, self._unload_idle, self.set_timer)
        self.library = ConversationLibrary(
            store_thread, record, resume, self.turns, self._restored, {resume or "": typed}
        )
        self.pair_loader: PairLoader = PairLoader(self.turns, self.library, self.title_line)
        self._events = EngineEvents(
            self, self._sender, self._prompt_size, self._tools, self._appearance.proposes
        )
        for problem in self._appearance.problems:
            self.pair_loader.trouble(UsageError(problem))

    def compose(self) -> ComposeResult:
        """Title, conversation and panel side by side, then status, input and keys."""
        yield self.title_line
        with Horizontal(id="main"):
            with Vertical(id="talk"):
                yield self.transcript
                yield self.dashboard.compact
                yield self.status
                yield self._completion
                yield self.prompt
            yield self.dashboard.full
        yield KeyLine(self.commands)

    def on_mount(self) -> None:
        """Begin loading; the screen is there already."""
        if self._appearance.theme is not None:
            self.theme = self._appearance.theme
        self.dashboard.start()
        self.prompt.focus()
        self.title_line.show(None)
        self.show_phase()
        self.library.start()
        self.engine.listen(self._events.hear)
        self._idle_watch.start()

    def chosen(self) -> dict[str, str]:
        """The choices about the screen that have changed since the start, by name."""
        now = {"theme": self.theme, "panel": self.dashboard.chosen}
        begun = {
            "theme": self._appearance.theme or DEFAULT_THEME,
            "panel": self._appearance.panel or PanelForm.AUTO,
        }
        return {name: value for name, value in now.items() if value != begun[name]}

    @property
    def pairs(self) -> PairManager:
        """The manager of pairs, made on first use: its imports can wait for the first frame."""
        if self._pairs is None:
            from localspec.ui.pairs.pair_manager import PairManager  # noqa: PLC0415

            hints = command_table.hints(self.commands)
            self._pairs = PairManager(self.turns, self.pair_loader, hints)
        return self._pairs

    @cached_property
    def measuring(self) -> MeasuringJobs:
        """The jobs that measure the pair, made on first use."""
        from localspec.ui.pairs.measuring_jobs import MeasuringJobs  # noqa: PLC0415

        return MeasuringJobs(self.pair_loader, self.transcript, self.status)

    @property
    def tools(self) -> ToolServers:
        """The MCP servers, made on first use."""
        return self._tools.servers

    @property
    def offers_pair(self) -> bool:
        """Whether a pair is offered for fetching."""
        return self._pairs is not None and self._pairs.offered is not None

    def on_unmount(self) -> None:
        """Stop the background work, however the app ends."""
        self.shut_down()

    def shut_down(self) -> None:
        """Store the draft, end the engine, and have a download leave its files in order."""
        self.library.keep_draft()  # first: the engine's end may take long
        self.engine.shut_down()
        if self._pairs is not None:
            self._pairs.shut_down()
        self._tools.shut_down()

    def join(self, timeout: float) -> None:
        """Wait up to `timeout` seconds for the engine's end, then for the servers'."""
        self.engine.join(timeout)
        self._tools.join()

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        """The palette offers what can be done now on this screen."""
        for command in self.commands:
            if isinstance(screen, ModalScreen) and command.name not in command_table.EVERYWHERE:
                continue
            if not (
                command_table.may_run(command.name, "", self.turns.phase) and command.able(self)
            ):
                continue
            yield SystemCommand(
                command.name.capitalize(),
                f"{command.alone} ({command.shown})" if command.shown else command.alone,
                partial(self.action_command, command.name),
            )

    @property
    def session(self) -> SessionInfo | None:
        """The loaded pair; None while none is loaded."""
        return self.engine.info

    # From other threads

    def soon(self, call: Callable[..., None], *arguments: object) -> None:
        """Call a function in the screen's thread; may be called from any thread."""
        try:
            self.call_later(call, *arguments)
        except RuntimeError:
            # The event loop has just been closed: no screen is left to tell.
            self.engine.stop()

    @on(PairMissing)
    def _missing(self, event: PairMissing) -> None:
        """Offer to fetch the pair, once a thread has imported what that needs."""
        after_import(
            "localspec.ui.pairs.pair_manager",
            self.soon,
            lambda: self.pairs.offer(event.asked, event.missing),
        )

    def _restored(self, there: bool) -> None:
        """Say and send what has waited for a conversation that was left or chosen."""
        self.pair_loader.say_unsaid()
        self._sender.begin(there)

    def _unload_idle(self) -> None:
        """Give the memory back, unless something goes on or a screen asks the engine."""
        if self.turns.phase is EnginePhase.READY and self._events.asking_screen() is None:
            self.pair_loader.unload()

    # From the keyboard

    @on(PromptArea.Changed)
    def _typed(self) -> None:
        self._idle_watch.stir()
        self._completion.suggest(self.prompt.begun)
        self._prompt_size.show()
        self._sender.keep()

    def action_page(self, pages: int) -> None:
        """Move the conversation by pages, backwards if negative."""
        self.transcript.page(pages)

    def action_stop(self) -> None:
        """Close the list, else stop loading, answering or editing; pressed twice, empty the input.

        Messages that waited for the answer's end go back into the input.
        """
        if self._completion.display:
            self._completion.leave(self.prompt.text)
        elif self.turns.phase is EnginePhase.LOADING:
            self.engine.stop_loading()
        elif self.turns.busy:
            self.turns.stop()
            self._sender.give_back()
        elif self._sender.waiting:  # the last run's conversation is not open yet
            self._sender.give_back()
        elif self.turns.editing is not None:
            self.turns.leave_edit()
        elif self.prompt.text and self._again("Esc", "empty the input"):
            self.prompt.clear()
            self.status.flash("Ctrl+Z brings it back")

    def action_version(self, node: str, by: int) -> None:
        """Show the earlier (-1) or later (1) version of a message: its arrows were clicked."""
        self.library.step(node, by)

    def action_interrupt(self) -> None:
        """Ctrl+C: copy a selection, else stop the answer; pressed twice, quit."""
        line = self.focused
        selected = self.screen.get_selected_text() or getattr(line, "selected_text", "")
        if selected:
            self.copy(selected, "the selection")
            self.screen.clear_selection()  # the next Ctrl+C stops, or quits
            if isinstance(line, Input):
                line.selection = line.selection.cursor(line.selection.end)
            else:
                self.prompt.move_cursor(self.prompt.cursor_location)
            return
        if self.turns.busy:
            self.turns.stop()
            self._sender.give_back()
        if self._again("Ctrl+C", "quit"):
            self.leave()

    def _again(self, key: str, what: str) -> bool:
        """Whether `key` was pressed a moment ago; otherwise asks the user to press it again."""
        said, now = f"press {key} again to {what}", time.monotonic()
        if said == self._asked_again():
            self._pressed = ("", now)
            return True
        self._pressed = (said, now)
        self.status.flash(said)
        if isinstance(self.screen, ModalScreen):  # which covers the status line
            self.notify(said, timeout=_AGAIN_WITHIN_S)
        return False

    def _asked_again(self) -> str:
        """What the user was asked to press again, as long as it counts; else empty."""
        said, at = self._pressed
        return said if time.monotonic() - at < _AGAIN_WITHIN_S else ""

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Whether an action may run: under a dialogue a few, by keys that it does not use."""
        if action == "command" and isinstance(self.screen, ModalScreen):
            name, *pressed = map(str, parameters)
            bound = self.screen._bindings.key_to_bindings  # noqa: SLF001 - there is no public way
            return name in command_table.EVERYWHERE and bound.keys().isdisjoint(pressed)
        return super().check_action(action, parameters)

    async def run_action(
        self,
        action: str | ActionParseResult,
        default_namespace: DOMNode | None = None,
        namespaces: Mapping[str, DOMNode] | None = None,
    ) -> bool:
        """Run an action, but move by no page in a list that has no line: Textual cannot."""
        listed = isinstance(default_namespace, OptionList | CommandPalette)
        if listed and self.size.height < _LIST_FROM and "page_" in str(action):
            return True
        return await super().run_action(action, default_namespace, namespaces)

    def action_command(self, name: str, _key: str = "") -> None:
        """Run a command from a key or the palette; one that needs an argument is begun."""
        if command_table.find(name).waits:
            self.prompt.begin(f"/{name} ")
        elif command_table.may_run(name, "", self.turns.phase):
            command_table.run(self, name, "")
        else:
            self.turns.refuse()

    # Called by commands and turns

    def show_help(self) -> None:
        """Open the help, or close it."""
        if isinstance(self.screen, HelpScreen):
            self.pop_screen()
        else:
            self.push_screen(HelpScreen(self.commands))

    def leave(self) -> None:
        """Quit; a running answer is stopped, the engine ends by itself."""
        self.engine.shut_down()
        self.exit()

    def _phase_changed(self) -> None:
        self._idle_watch.stir()
        if self.turns.phase is EnginePhase.ASLEEP:
            self._sender.give_back()  # Enter loads the models and sends it
        self.show_phase()
        self._prompt_size.show()  # it may have waited for an idle engine
        if self._pairs is not None:
            self._pairs.phase_changed()

    @on(PairWorkChanged)
    def _pair_work_changed(self) -> None:
        """Show how far the work on a pair is, but in place of no other progress."""
        if self.turns.phase is not EnginePhase.LOADING and not self._reading.running:
            self._show_lasting()

    def show_phase(self) -> None:
        """Show in the status line what is going on, in place of a short answer."""
        self._reading.stop()
        self.status.settle()
        self._show_lasting()
        if said := self._asked_again():
            self.status.flash(said)

    def _show_lasting(self) -> None:
        text, hint = self.turns.shown()
        room = (2 if self.size.height >= 16 else 1) * (self.size.width - 12)
        if self.turns.phase is EnginePhase.READY and not hint and room >= _SENTENCE:
            hint = textwrap.shorten(self.dashboard.unsaid(), room, placeholder=" …")
        hint += self._sender.queue
        if self._pairs is not None and (doing := self._pairs.doing()):
            hint = f"{doing}  {hint}"
        tail = legend(self.session) if self.transcript.by_origin else None
        self.status.lasting(text, hint=hint, tail=tail)

    @on(PromptRead)
    def _prompt_read(self, event: PromptRead) -> None:
        """Show how much of the prompt is read, and how long the rest takes."""
        if self.turns.phase is EnginePhase.ANSWERING:
            if event.progress.done < event.progress.total:
                self._reading.report(event.progress)
            else:
                self._reading.stop()
                self._show_lasting()

    def _show_progress(self, now: PromptProgress) -> None:
        hint = EnginePhase.ANSWERING.hint
        if now.seconds_left is not None:
            hint = f"about {formats.duration(now.seconds_left)} left, {hint}"
        text = f"reading {formats.count(now.total)} tokens"
        self.status.lasting(text, now.done / now.total, hint=hint)

    # The screen's own shape

    def on_resize(self) -> None:
        """Let the panel follow the terminal's size."""
        self.call_after_refresh(lambda: self.dashboard.place(self.size))

    def copy_to_clipboard(self, text: str) -> None:
        """Put a text into the clipboard, through the terminal and by the desktop's program."""
        super().copy_to_clipboard(text)
        copy_by_program(text)

    def copy(self, text: str, what: str) -> None:
        """Put a text into the clipboard, and say so; `what` names it."""
        self.copy_to_clipboard(text)
        self.status.flash(f"copied {what}: {len(text):,} characters")
