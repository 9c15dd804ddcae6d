"""What the engine is doing, as far as the screen knows, and what may be done meanwhile."""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class Phase(Enum):
    """What the engine is doing."""

    LOADING = auto()
    READY = auto()
    ANSWERING = auto()
    STOPPING = auto()
    CHANGING = auto()
    UNUSABLE = auto()
    DEAD = auto()


ANY_TIME = frozenset(Phase)
IDLE = frozenset({Phase.READY})
ANSWER = frozenset({Phase.ANSWERING, Phase.STOPPING})
LOADED = IDLE | ANSWER | {Phase.CHANGING}
LOADABLE = IDLE | {Phase.UNUSABLE, Phase.DEAD}
WHOLE = LOADABLE | {Phase.LOADING}  # no message is being written


class Gate:
    """Knows the phase, and whether an earlier question is being edited; in the screen's thread.

    Args:
        say: says something briefly, in the status line.
        changed: called when the phase is another, or what the input is for.
    """

    def __init__(self, say: Callable[[str], None], changed: Callable[[], None]) -> None:
        self.say = say
        self._changed = changed
        self._phase = Phase.LOADING
        self._editing: str | None = None

    @property
    def phase(self) -> Phase:
        """What the engine is doing."""
        return self._phase

    @property
    def editing(self) -> str | None:
        """The node of the question that is being edited, None for a new one."""
        return self._editing

    @property
    def reason(self) -> str:
        """Why something else has to wait; empty where nothing has to."""
        return _REASONS[self._phase]

    def enter(self, phase: Phase) -> None:
        """The engine does something else now."""
        self._phase = phase
        self._changed()

    def edit(self, node: str | None) -> None:
        """Let the next question be another version of `node`, or a new one."""
        if node != self._editing:
            self._editing = node
            self._changed()

    def refuse(self) -> None:
        """Say what has to end first."""
        self.say(self.reason)

    def free(self) -> bool:
        """Whether the engine has nothing to do; says what it does otherwise."""
        if self._phase is not Phase.READY:
            self.refuse()
        return self._phase is Phase.READY

    def close_for_loading(self) -> bool:
        """Begin to load another pair; False, and a word, while the engine does something else."""
        if self._phase not in LOADABLE:
            self.refuse()
            return False
        self.enter(Phase.LOADING)
        return True

    def shown(self) -> tuple[str, str]:
        """What is going on, for the status line, and which key matters."""
        if self._phase is Phase.READY and self._editing is not None:
            return "editing an earlier message", "Enter sends it again, Esc leaves it"
        return _SHOWN[self._phase]


_REASONS = {
    Phase.LOADING: "the models are still being loaded",
    Phase.READY: "",
    Phase.ANSWERING: "an answer is running: Esc stops it",
    Phase.STOPPING: "the answer is being stopped",
    Phase.CHANGING: "one moment",
    Phase.UNUSABLE: "no model is loaded: /pairs chooses one",
    Phase.DEAD: "the models are gone: Enter loads them again",
}

_SHOWN = {
    Phase.LOADING: ("loading …", "Esc cancels"),
    Phase.READY: ("ready", ""),
    Phase.ANSWERING: ("answering …", "Esc stops"),
    Phase.STOPPING: ("stopping …", ""),
    Phase.CHANGING: ("one moment …", ""),
    Phase.UNUSABLE: ("no model is loaded", "/pairs chooses one, Ctrl+Q quits"),
    Phase.DEAD: ("the models are gone", "Enter loads them again"),
}
