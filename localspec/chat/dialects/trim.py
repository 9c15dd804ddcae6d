"""The blanks around the parts of an answer, which are layout and belong to none of them."""

from __future__ import annotations

from collections.abc import Iterator

from localspec.chat.dialects.reading import Call, ReadPiece, Says, Thinks


class Trimmer:
    """Drops the blanks at the ends of thoughts and content, and keeps those within.

    An empty piece begins a new part: two thoughts, or what is said before and after a call, are
    a line apart.
    """

    def __init__(self) -> None:
        self._parts = {Thinks: _AnswerPart(), Says: _AnswerPart()}

    def take(self, piece: ReadPiece) -> Iterator[ReadPiece]:
        """What is told of `piece`."""
        if isinstance(piece, Call):
            yield piece
            return
        part = self._parts[type(piece)]
        if not piece.text:
            part.divided = bool(part.begun)
            return
        if text := part.take(piece.text):
            yield type(piece)(text)


class _AnswerPart:
    def __init__(self) -> None:
        self.begun = self.divided = False
        self._held = ""

    def take(self, text: str) -> str:
        text = self._held + text
        body = text.strip()
        if not body:
            self._held = text
            return ""
        lead = text[: len(text) - len(text.lstrip())] if self.begun else ""
        if self.divided:
            lead = "\n\n" if lead.count("\n") > 1 else lead or "\n"
        self._held = text[len(text.rstrip()) :]
        self.begun, self.divided = True, False
        return lead + body
