"""Trims the white space around the parts of an answer, which is only layout."""

from __future__ import annotations

from collections.abc import Iterator

from localspec.chat.dialects.reading.answer_parts import Call, ContentPiece, ReadPiece, ThoughtPiece


class Trimmer:
    """Drops white space at the ends of thoughts and content, and keeps it inside.

    An empty piece begins a new part: two thoughts, or the text before and after a call, are
    separated by a line break.

    Args:
        exact: an answer of a single part keeps its white space.
    """

    def __init__(self, *, exact: bool = False) -> None:
        self._exact = exact
        self._parts = {ThoughtPiece: _AnswerPart(), ContentPiece: _AnswerPart()}

    def take(self, piece: ReadPiece) -> Iterator[ReadPiece]:
        """Add a piece; yield what can be shown."""
        if isinstance(piece, Call):
            self._exact = False
            yield piece
            return
        part = self._parts[type(piece)]
        self._exact = self._exact and isinstance(piece, ContentPiece) and bool(piece.text)
        if not piece.text:
            part.divided = bool(part.begun)
        elif text := part.take(piece.text, exact=self._exact):
            yield type(piece)(text)

    def end(self) -> Iterator[ReadPiece]:
        """Yield the rest; a second call yields nothing."""
        part = self._parts[ContentPiece]
        held, part.held = part.held, ""
        if self._exact and held:
            yield ContentPiece(held)


class _AnswerPart:
    def __init__(self) -> None:
        self.begun = self.divided = False
        self.held = ""

    def take(self, text: str, *, exact: bool) -> str:
        """Add text to the part; return what can be shown."""
        text = self.held + text
        body = text.strip()
        if not body:
            self.held = text
            return ""
        lead = text[: len(text) - len(text.lstrip())] if self.begun or exact else ""
        if self.divided:
            lead = "\n\n" if lead.count("\n") > 1 else lead or "\n"
        self.held = text[len(text.rstrip()) :]
        self.begun, self.divided = True, False
        return lead + body
