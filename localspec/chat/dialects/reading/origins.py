"""Separates thoughts from content in text with known origins."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from localspec.chat.dialects.dialect import AnswerReader
from localspec.chat.dialects.reading.answer_parts import Call, ReadPiece, ThoughtPiece
from localspec.chat.events import Origin, Span, joined


class OriginReader:
    """Is fed spans, and tells which of them are thoughts; keeps their origins.

    Args:
        reader: separates thoughts from content.
    """

    def __init__(self, reader: AnswerReader) -> None:
        self._reader = reader
        self._waiting: list[Span] = []  # fed, but not returned yet

    @property
    def thinking(self) -> bool:
        """Whether the position is inside a thought."""
        return self._reader.thinking

    def feed(self, span: Span) -> Iterator[tuple[bool, tuple[Span, ...]]]:
        """Add a span; yield what is known now: whether it is a thought, and its spans by origin."""
        self._waiting.append(span)
        yield from self._told(self._reader.feed(span.text))

    def end(self, *, cut: bool = False) -> Iterator[tuple[bool, tuple[Span, ...]]]:
        """End the answer; yield what was held back."""
        yield from self._told(self._reader.end(cut=cut))

    def _told(self, pieces: Iterable[ReadPiece]) -> Iterator[tuple[bool, tuple[Span, ...]]]:
        for piece in pieces:
            if not isinstance(piece, Call):
                yield isinstance(piece, ThoughtPiece), self._spans(piece.text)

    def _spans(self, text: str) -> tuple[Span, ...]:
        """`text` by origin, found in the waiting spans; marks and white space around it go."""
        waiting = "".join(span.text for span in self._waiting)
        start = waiting.find(text)
        if start < 0:  # white space between two parts was shortened
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
