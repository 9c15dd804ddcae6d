"""What the engine is doing, as far as the screen knows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum


class EnginePhase(Enum):
    """What the engine is doing.

    Attributes:
        shown: the text of the status line.
        hint: which key matters.
        reason: why other work has to wait; empty if it need not.
    """

    LOADING = "loading …", "Esc cancels", "the models are still being loaded"
    READY = "ready", "", ""
    ANSWERING = "answering …", "Esc stops", "an answer is running: Esc stops it"
    STOPPING = "stopping …", "", "the answer is being stopped"
    CHANGING = "one moment …", "", "one moment"
    UNUSABLE = (
        "no model is loaded",
        "/pairs chooses one, Ctrl+Q quits",
        "no model is loaded: /pairs chooses one",
    )
    DEAD = (
        "the models are gone",
        "Enter loads them again",
        "the models are gone: Enter loads them again",
    )

    def __init__(self, shown: str, hint: str, reason: str) -> None:
        self.shown, self.hint, self.reason = shown, hint, reason


ANY_TIME = frozenset(EnginePhase)
IDLE = frozenset({EnginePhase.READY})
ANSWER = frozenset({EnginePhase.ANSWERING, EnginePhase.STOPPING})
LOADED = IDLE | ANSWER | {EnginePhase.CHANGING}
LOADABLE = IDLE | {EnginePhase.UNUSABLE, EnginePhase.DEAD}
WHOLE = LOADABLE | {EnginePhase.LOADING}  # no message is being written


@dataclass(eq=False, repr=False)
class EngineState:
    """The engine's phase, and the question that is being edited; in the screen's thread.

    Attributes:
        say: says something briefly, in the status line.
        changed: called when the phase changes, or the purpose of the input.
        phase: what the engine is doing; `enter` another.
        editing: the node of the question that is being edited, None for a new one.
    """

    say: Callable[[str], None]
    changed: Callable[[], None]
    phase: EnginePhase = EnginePhase.LOADING
    editing: str | None = None

    def enter(self, phase: EnginePhase) -> None:
        """Enter another phase."""
        self.phase = phase
        self.changed()

    def edit(self, node: str | None) -> None:
        """Let the next question be another version of `node`, or a new one."""
        if node != self.editing:
            self.editing = node
            self.changed()

    def refuse(self) -> None:
        """Say what has to end first."""
        self.say(self.phase.reason)

    def free(self) -> bool:
        """Whether the engine is idle; otherwise tells the user what it does."""
        if self.phase is not EnginePhase.READY:
            self.refuse()
        return self.phase is EnginePhase.READY

    def close_for_loading(self) -> bool:
        """Begin to load another pair; False, with a message, while the engine is busy."""
        if self.phase not in LOADABLE:
            self.refuse()
            return False
        self.enter(EnginePhase.LOADING)
        return True

    def shown(self) -> tuple[str, str]:
        """The text of the status line, and the key that matters."""
        if self.phase is EnginePhase.READY and self.editing is not None:
            return "editing an earlier message", "Enter sends it again, Esc leaves it"
        return self.phase.shown, self.phase.hint
