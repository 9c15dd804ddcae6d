"""`exact_ids`: a text as the tokens that stand for exactly it."""

from __future__ import annotations

from typing import Protocol


class Vocabulary(Protocol):
    """Turns tokens into text, and text into tokens."""

    @property
    def end_tokens(self) -> frozenset[int]:
        """All that ends generation."""

    def piece(self, token: int, *, special: bool = False) -> bytes:
        """The bytes of a token; control tokens are empty unless `special`."""

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """The ids of `text`."""


def exact_ids(text: str, vocabulary: Vocabulary) -> list[int] | None:
    """The ids of `text`, without what a tokenizer puts in front of it.

    None if the vocabulary cannot say exactly this.
    """
    wanted = text.encode()
    for given in (text, text.removeprefix(" "), f"\n{text}"):
        ids = vocabulary.tokenize(given, add_special=False, parse_special=False)
        excess = sum(len(vocabulary.piece(token)) for token in ids) - len(wanted)
        while excess > 0:
            excess -= len(vocabulary.piece(ids.pop(0)))
        if b"".join(map(vocabulary.piece, ids)) == wanted:
            return ids
    return None
