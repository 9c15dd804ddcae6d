"""The blanks around the parts of an answer, which are layout and belong to none of them."""

from __future__ import annotations

from collections.abc import Iterator

from localspec.chat.dialects.reading.answer_parts import Call, ContentPiece, ReadPiece, ThoughtPiece


class Trimmer:
    """Drops the blanks at the ends of thoughts and content, and keeps those within.

    An empty piece begins a new part: two thoughts, or what is said before and after a call, are
    a line apart.

    Args:
        exact: an answer that has one part alone is told as it is.
    """

    def __init__(self, *, exact: bool = False) -> None:
        self._exact = exact
        self._parts = {ThoughtPiece: _AnswerPart(), ContentPiece: _AnswerPart()}

    def take(self, piece: ReadPiece) -> Iterator[ReadPiece]:
        """What is told of `piece`."""
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
        """What is left at the end: once, however often it is asked for."""
        part = self._parts[ContentPiece]
        held, part.held = part.held, ""
        if self._exact and held:
            yield ContentPiece(held)


class _AnswerPart:
    def __init__(self) -> None:
        self.begun = self.divided = False
        self.held = ""

    def take(self, text: str, *, exact: bool) -> str:
        """What can be told of the part, with this text."""
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
