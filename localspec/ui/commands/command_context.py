"""The app as its commands see it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from localspec.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from textual.screen import Screen

    from localspec.process.engine_client import EngineClient
    from localspec.process.messages import SessionInfo
    from localspec.ui.conversation.conversation_library import ConversationLibrary
    from localspec.ui.conversation.turn_controller import TurnController
    from localspec.ui.input.prompt_area import PromptArea
    from localspec.ui.pairs.measuring_jobs import MeasuringJobs
    from localspec.ui.pairs.pair_loader import PairLoader
    from localspec.ui.pairs.pair_manager import PairManager
    from localspec.ui.panel.dashboard import Dashboard
    from localspec.ui.status_lines import StatusLine
    from localspec.ui.tools.tool_servers import ToolServers
    from localspec.ui.transcript.transcript import Transcript


class CommandContext(Protocol):
    """What commands, entered texts and events of the engine work on; `ChatApp` is one.

    Attributes:
        theme: the colours; another name changes them at once.
    """

    engine: EngineClient
    turns: TurnController
    library: ConversationLibrary
    pair_loader: PairLoader
    dashboard: Dashboard
    transcript: Transcript
    prompt: PromptArea
    status: StatusLine
    theme: str

    @property
    def pairs(self) -> PairManager:
        """The manager of pairs, made on first use."""

    @property
    def measuring(self) -> MeasuringJobs:
        """The jobs that measure the pair, made on first use."""

    @property
    def tools(self) -> ToolServers:
        """The MCP servers, made on first use."""

    @property
    def offers_pair(self) -> bool:
        """Whether a pair is offered for fetching."""

    def soon(self, call: Callable[..., None], *arguments: object) -> None:
        """Call a function in the screen's thread, after all pending keys and messages."""

    def push_screen(
        self, screen: Screen[Any], callback: Callable[[Any], None] | None = None
    ) -> object:
        """Show a screen, and call `callback` with its result."""

    @property
    def screen_stack(self) -> Sequence[Screen[Any]]:
        """The screens that are open, the one on top last."""

    def pop_screen(self) -> object:
        """Close the screen on top."""

    def copy(self, text: str, what: str) -> None:
        """Put a text into the clipboard, and say so; `what` names it."""

    def show_phase(self) -> None:
        """Update the status line."""

    def show_help(self) -> None:
        """Open the help, or close it."""

    def leave(self) -> None:
        """Quit."""


def loaded(app: CommandContext) -> SessionInfo:
    """The loaded pair, for commands that need one. Raises UsageError: there is none."""
    if app.engine.info is None:
        raise UsageError("the models are not loaded yet", "Wait until loading has ended.")
    return app.engine.info
