"""The part that all readers of an answer share: text goes in, finished pieces come out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator

from localspec.chat.dialects.reading.answer_parts import ReadPiece, Underway
from localspec.chat.dialects.reading.trim import Trimmer


class PieceReader(ABC):
    """Reads an answer in pieces; the result does not depend on how it is cut.

    Args:
        exact: keep the surrounding white space of an answer without marks.
    """

    def __init__(self, *, exact: bool) -> None:
        self._text = ""
        self._fresh = True  # this part is only white space so far
        self._trimmer = Trimmer(exact=exact)
        self._out: list[ReadPiece] = []
        self._underway: Underway = ()

    @property
    @abstractmethod
    def thinking(self) -> bool:
        """Whether the position is inside a thought."""

    @property
    def begun(self) -> bool | None:
        """Whether the part at the present position has text; None while that may be a mark."""
        if not self._fresh:
            return True
        return None if self._text else False

    @property
    def underway(self) -> Underway:
        """The incomplete calls in the model's own notation at the present position.

        Unless a grammar enforces that notation, they may still turn out to be text.
        """
        return self._underway

    def feed(self, text: str) -> Iterator[ReadPiece]:
        """Add text; yield the pieces that are known now."""
        self._text += text
        self._underway = ()
        yield from self._read(final=False, cut=False)

    def end(self, *, cut: bool = False) -> Iterator[ReadPiece]:
        """End the answer; yield what was held back.

        Args:
            cut: a limit ended it.
        """
        yield from self._read(final=True, cut=cut)
        yield from self._trimmer.end()

    def _read(self, *, final: bool, cut: bool) -> Iterator[ReadPiece]:
        while self._text and self._step(final=final, cut=cut):
            pass
        pieces, self._out = self._out, []
        for piece in pieces:
            yield from self._trimmer.take(piece)

    @abstractmethod
    def _step(self, *, final: bool, cut: bool) -> bool:
        """Read on in `_text`, which is not empty; return whether there is more to read."""
