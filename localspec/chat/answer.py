"""One answer while it is written: tokens come in by the round, text goes out."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from localspec.chat.detokenise import Detokeniser, joined
from localspec.chat.events import Origin, RoundText, Span
from localspec.chat.kind import TextKind
from localspec.chat.stops import StopFilter
from localspec.engine.stats import FinishReason, Round


class AnswerText:
    """Turns rounds into released text, and ends the answer at a stop string.

    Args:
        piece: the bytes of a token.
        stops: the stop strings.

    Attributes:
        tokens: the ids generated, up to and including the one that completed a stop string.
        kind: whether code or prose is being written.
    """

    def __init__(self, piece: Callable[[int], bytes], stops: Iterable[str]) -> None:
        self._piece = piece
        self._text = Detokeniser()
        self._stops = StopFilter(stops)
        self.tokens: list[int] = []
        self.kind = TextKind()
        self._released: list[Span] = []

    @property
    def text(self) -> str:
        """The text released so far."""
        return "".join(span.text for span in self._released)

    @property
    def spans(self) -> tuple[Span, ...]:
        """The text released so far by origin."""
        return joined(tuple(self._released))

    def add(self, done: Round) -> RoundText:
        """Add what a round emitted; the round in the result ends where a stop string did.

        Only the tokens are cut: the round's counts stay those of the verification.
        """
        released: list[Span] = []
        for i, token in enumerate(done.tokens):
            origin = Origin.DRAFT if i < done.from_draft else Origin.TARGET
            released += self._stops.feed(self._text.feed(self._piece(token), origin))
            if self._stops.hit is not None:
                done = replace(done, tokens=done.tokens[: i + 1], finish=FinishReason.STOP)
                break
        self.tokens += done.tokens
        if done.finish is not None:
            released += self._stops.feed(self._text.flush())
            released += self._stops.flush()
        spans = joined(tuple(released))
        self._released += spans
        for span in spans:
            self.kind.feed(span.text)
        return RoundText(spans, done)
