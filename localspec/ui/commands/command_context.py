"""What commands of the chat work on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from localspec.errors import UsageError

if TYPE_CHECKING:
    from localspec.process.engine_client import EngineClient
    from localspec.process.messages import SessionInfo
    from localspec.ui.conversation.conversation_library import ConversationLibrary
    from localspec.ui.conversation.turn_controller import TurnController
    from localspec.ui.input.prompt_area import PromptArea
    from localspec.ui.pairs.measuring_jobs import MeasuringJobs
    from localspec.ui.pairs.pair_loader import PairLoader
    from localspec.ui.pairs.pair_manager import PairManager
    from localspec.ui.panel.dashboard import Dashboard
    from localspec.ui.transcript.transcript import Transcript


@dataclass(frozen=True, slots=True)
class CommandContext:
    """What commands work on; the app makes each of them once.

    Attributes:
        say: says something briefly.
        copy: puts a text into the clipboard; its second argument says what it is.
        offered: whether a pair is offered to be fetched.
        open: shows a screen, and calls what follows with its result.
        set_theme: changes the colours.
        show_phase: says anew what is going on.
        show_help: opens the help, or closes it.
        leave: quits.
    """

    engine: EngineClient
    turns: TurnController
    library: ConversationLibrary
    pair_loader: PairLoader
    pairs: Callable[[], PairManager]
    measuring: Callable[[], MeasuringJobs]
    dashboard: Dashboard
    transcript: Transcript
    prompt: PromptArea
    say: Callable[[str], None]
    copy: Callable[[str, str], None]
    offered: Callable[[], bool]
    open: Callable[..., object]
    set_theme: Callable[[str], None]
    show_phase: Callable[[], None]
    show_help: Callable[[], None]
    leave: Callable[[], None]

    def session(self) -> SessionInfo:
        """What is loaded, which commands about it wait for."""
        if self.engine.info is None:
            raise UsageError("the models are not loaded yet", "Wait until loading has ended.")
        return self.engine.info
