"""Explains rounds of answers: the next one of a running answer, or any of a finished one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from localspec.engine.cancel import Cancel
from localspec.errors import LocalspecError
from localspec.process.messages import RoundExplained, SendEvent

if TYPE_CHECKING:
    from localspec.chat.session.session import Session
    from localspec.engine.record.explanation import RoundExplanation
    from localspec.engine.record.round_record import GenerationRecord

_ANSWERS = 32  # whose records are kept: some hundred bytes a round


class InspectedRounds:
    """Keeps the records of a session's latest answers, and sends their rounds, explained.

    Answers and questions are known by the numbers of their requests. `watch` may run in any thread,
    all else runs in the engine's.
    """

    def __init__(self) -> None:
        self._records: dict[int, GenerationRecord] = {}  # by answer, oldest first
        self._running = 0  # the answer that is being written
        self._explained: set[int] = set()  # questions that the running answer has settled

    @contextmanager
    def answering(self, answer: int) -> Iterator[None]:
        """The block writes the answer: `watch` explains its rounds as they are made."""
        self._running = answer
        try:
            yield
        finally:
            self._running = 0

    def keep(self, answer: int, session: Session | None) -> None:
        """Keep the record of the answer that the session has written."""
        record = session.written if session is not None else None
        if record is not None:
            self._records[answer] = record
            for old in list(self._records)[:-_ANSWERS]:
                del self._records[old]

    def clear(self) -> None:
        """Forget all records: their session ends."""
        self._records.clear()

    def watch(
        self,
        question: int,
        answer: int,
        session: Session | None,
        tell: SendEvent,
    ) -> None:
        """Send the next round of `answer` that has a draft, if the answer is being written."""

        def told(explanation: RoundExplanation) -> None:
            self._explained.add(question)
            tell(RoundExplained(explanation))

        if session is not None and answer == self._running:
            session.watch(told)

    def settled(self, question: int) -> bool:
        """Whether `watch` has answered the question; true only once."""
        settled = question in self._explained
        self._explained.discard(question)
        return settled

    def explain(
        self, answer: int, number: int, session: Session, tell: SendEvent, cancel: Cancel
    ) -> None:
        """Send round `number` of a finished answer; 0 means its last round with a draft.

        Raises:
            LocalspecError: the answer's record is not kept any more, or as `Session.explain_round`.
            Cancelled: `cancel` was set.
        """
        session.watch(None)  # no further round was made
        record = self._records.get(answer)
        if record is None:
            raise LocalspecError(
                "how this answer was drafted is not known any more",
                "F5 answers the last question again: look then.",
            )
        tell(RoundExplained(session.explain_round(record, number, cancel)))
