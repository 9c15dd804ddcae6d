"""The parts of the app that commands work on."""

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
    """The parts that commands work on; the app makes each of them once.

    Attributes:
        say: shows a short message.
        copy: puts a text into the clipboard; its second argument names it.
        offered: whether a pair is offered for fetching.
        open: shows a screen, and calls a function with its result.
        set_theme: changes the colours.
        show_phase: updates the status line.
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
        """The loaded pair, for commands that need one."""
        if self.engine.info is None:
            raise UsageError("the models are not loaded yet", "Wait until loading has ended.")
        return self.engine.info
