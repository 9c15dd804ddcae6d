"""The pair that answers: the first one is loaded, another takes its place, or none is left."""

from __future__ import annotations

from typing import TYPE_CHECKING

from localspec.errors import in_words
from localspec.safe_text import one_line
from localspec.ui.conversation.gate import Gate, Phase

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from localspec.process.client import EngineClient
    from localspec.process.messages import LoadFailed, SessionInfo
    from localspec.ui.conversation.transcript import Transcript
    from localspec.ui.conversation.turns import Turns


class InUse:
    """Puts what is loaded on the screen, or says why there is nothing; in the screen's thread.

    Args:
        gate: knows what the engine is doing, and says why not.
        engine: loads.
        turns: shows the conversation, and ends a turn whose engine died.
        transcript: says what went wrong.
        seat: told of the pair that answers from now on, also where it is the one before.
        troubles: what to tell once the first pair is there.

    Attributes:
        load_error: why the last load failed; None where it did not, or was cancelled.
    """

    def __init__(
        self,
        *,
        gate: Gate,
        engine: EngineClient,
        turns: Turns,
        transcript: Transcript,
        seat: Callable[[SessionInfo], None],
        troubles: Iterable[Exception] = (),
    ) -> None:
        self._gate = gate
        self._engine = engine
        self._turns = turns
        self._transcript = transcript
        self._seat = seat
        self._troubles = list(troubles)
        self._first = True
        self._then: Callable[[], None] | None = None
        self.load_error: Exception | None = None

    def loaded(self, info: SessionInfo) -> None:
        """A pair has been loaded: the engine knows it."""
        self.load_error, self._first = None, False
        self._show(info)
        then, self._then = self._then, None
        if then is not None:
            then()

    def failed(self, failed: LoadFailed) -> None:
        """A pair could not be loaded, or the user cancelled it: the one before is back, or none."""
        first, self._first, self._then = self._first, False, None
        error = None if failed.error is None else failed.error.exception()
        if failed.info is not None:
            self._show(failed.info)
        else:
            self._gate.enter(Phase.UNUSABLE)
        if not first:
            for text, remedy in switch_failure(failed):
                self._transcript.say(text, remedy, error=error is not None)
        elif error is None:
            self._transcript.say("loading was cancelled", "/pairs chooses one.")
        else:
            self.load_error = error
            self._tell(error)

    def died(self, error: Exception) -> None:
        """The engine's process has ended by itself: say so, and how it goes on."""
        if self._gate.phase is Phase.LOADING:
            self.load_error = error
        self._then = None
        self._turns.died(error)

    def switch(self, name: str) -> None:
        """Load another pair in place of this one; the conversation stays."""
        info = self._engine.info
        if info is not None and info.pair_name == name:
            self._gate.say(f"{one_line(name, 40)} is in use")
        elif self._gate.close_for_loading():
            self._engine.load(name, self._turns.messages())

    def reload(self, then: Callable[[], None]) -> None:
        """Load the pair again after the engine died; the conversation goes on with `then`."""
        if self._gate.close_for_loading():
            self._then = then
            self._engine.reload(self._turns.messages())

    def trouble(self, error: Exception) -> None:
        """Tell what went wrong elsewhere, now or when loading has ended."""
        if self._engine.info is None:  # the end of loading shows everything anew
            self._troubles.append(error)
        else:
            self._tell(error)

    def _tell(self, error: Exception) -> None:
        self._transcript.say(*in_words(error), error=True)

    def _show(self, info: SessionInfo) -> None:
        self._gate.enter(Phase.READY)
        self._turns.show_conversation()
        for trouble in self._troubles:
            self._tell(trouble)
        self._troubles.clear()
        self._seat(info)


def switch_failure(failed: LoadFailed) -> list[tuple[str, str]]:
    """What became of a switch to another pair that did not come about."""
    cancelled = ("loading was cancelled", "")
    lines = [cancelled if failed.error is None else in_words(failed.error.exception())]
    if failed.info is not None:
        lines.append((f"{failed.info.pair_name} is in use again; the conversation is kept", ""))
    elif failed.second is not None:
        text, remedy = in_words(failed.second.exception())
        lines.append((f"the pair before could not be loaded again either: {text}", remedy))
    else:
        lines.append(("no model is loaded; the conversation is kept", "/pairs chooses one."))
    return lines
