"""What the engine is doing, as far as the screen knows."""

from __future__ import annotations

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
    CALLING = "a tool is called …", "Esc stops", "a tool is called: Esc stops it"
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
    ASLEEP = (
        "asleep, the memory is given back",
        "Enter loads the models again",
        "the models are not loaded: Enter loads them again",
    )

    def __init__(self, shown: str, hint: str, reason: str) -> None:
        self.shown, self.hint, self.reason = shown, hint, reason


ANY_TIME = frozenset(EnginePhase)
IDLE = frozenset({EnginePhase.READY})
ANSWER = frozenset({EnginePhase.ANSWERING, EnginePhase.CALLING, EnginePhase.STOPPING})
PASSING = ANSWER | {EnginePhase.LOADING, EnginePhase.CHANGING}  # a message waits for their end
LOADED = IDLE | ANSWER  # a change may bring other settings, which would replace newer ones
GONE = frozenset({EnginePhase.DEAD, EnginePhase.ASLEEP})  # Enter loads the models again
LOADABLE = IDLE | GONE | {EnginePhase.UNUSABLE}
WHOLE = LOADABLE | {EnginePhase.LOADING}  # no message is being written
