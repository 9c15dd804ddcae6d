"""Tells thoughts from what is said in text whose origin is known, piece by piece."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from localspec.chat.dialects.dialect import AnswerReader
from localspec.chat.dialects.reading.answer_parts import Call, ReadPiece, ThoughtPiece
from localspec.chat.events import Origin, Span, joined


class OriginReader:
    """Is fed spans, and tells which of them are thoughts; their origins stay.

    Args:
        reader: tells thoughts from content.
    """

    def __init__(self, reader: AnswerReader) -> None:
        self._reader = reader
        self._waiting: list[Span] = []  # what was fed and not told yet

    @property
    def thinking(self) -> bool:
        """Whether the text stands in a thought now."""
        return self._reader.thinking

    def feed(self, span: Span) -> Iterator[tuple[bool, tuple[Span, ...]]]:
        """What is known with this span: whether it is a thought, and its pieces by origin."""
        self._waiting.append(span)
        yield from self._told(self._reader.feed(span.text))

    def end(self, *, cut: bool = False) -> Iterator[tuple[bool, tuple[Span, ...]]]:
        """What was held back, now that the answer has ended."""
        yield from self._told(self._reader.end(cut=cut))

    def _told(self, pieces: Iterable[ReadPiece]) -> Iterator[tuple[bool, tuple[Span, ...]]]:
        for piece in pieces:
            if not isinstance(piece, Call):
                yield isinstance(piece, ThoughtPiece), self._spans(piece.text)

    def _spans(self, text: str) -> tuple[Span, ...]:
        """`text` by origin: it stands in what is waiting, marks and blanks around it left out."""
        waiting = "".join(span.text for span in self._waiting)
        start = waiting.find(text)
        if start < 0:  # blanks between two parts were made fewer
            return (Span(text, Origin.TARGET),)
        end = start + len(text)
        found, rest, at = [], [], 0
        for span in self._waiting:
            begun, done = max(0, start - at), max(0, end - at)
            found.append(Span(span.text[begun:done], span.origin))
            rest.append(Span(span.text[done:], span.origin))
            at += len(span.text)
        self._waiting = [span for span in rest if span.text]
        return joined(found)
