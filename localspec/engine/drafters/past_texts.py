"""Other texts that lookup may copy from when its own text has no match."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

TextIds = NDArray[np.int32]

_GRAM = 6  # tokens of a key: shorter ones are found everywhere in so much text
_LONGEST = 24  # tokens of a match that are counted
_FACTOR, _WORD = 0x9E3779B1, 0xFFFFFFFF
_LEAST_BITS = 12
_GAP = -1  # stands between texts: no token


class Past:
    """Texts, indexed by where six tokens in a row stood last.

    The index takes 12 to 20 bytes a token, and milliseconds to build. If several sixes share a slot
    of its table, only the latest is found.
    """

    def __init__(self, texts: Sequence[TextIds]) -> None:
        """Index texts of ids, the latest last; no match reaches from one text into the next."""
        gap = np.full(1, _GAP, np.int32)
        self._tokens = np.concatenate([gap, *(part for text in texts for part in (text, gap))])
        count = max(0, len(self._tokens) - _GRAM)
        self._mask = (1 << max(_LEAST_BITS, count.bit_length() + 1)) - 1
        self._follows = np.zeros(self._mask + 1, np.int32)  # 0 for none
        slots = np.zeros(count, np.uint32)
        for at in range(_GRAM):
            slots *= np.uint32(_FACTOR)
            slots += self._tokens[at : at + count].view(np.uint32)
        self._follows[(slots ^ slots >> 15) & self._mask] = np.arange(_GRAM, _GRAM + count)

    def find(self, tail: Sequence[int]) -> tuple[int, int]:
        """Where the last tokens stood before: (how many of them match, start of what followed).

        Both are 0 if fewer than six match.
        """
        slot = 0
        for token in tail[-_GRAM:]:
            slot = (slot * _FACTOR + token) & _WORD
        at = int(self._follows[(slot ^ slot >> 15) & self._mask])
        before = self._tokens[max(0, at - _LONGEST) : at].tolist()
        match, longest = 0, min(len(before), len(tail))
        while match < longest and before[-1 - match] == tail[-1 - match]:
            match += 1
        return (match, at) if match >= _GRAM else (0, 0)

    def copy(self, start: int, limit: int) -> list[int]:
        """At most `limit` tokens from `start` on, up to the end of their text."""
        found: list[int] = self._tokens[start : start + limit].tolist()
        return found[: found.index(_GAP)] if _GAP in found else found


NO_PAST = Past(())
"""No other texts."""
