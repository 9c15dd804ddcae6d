"""Detects an answer that only repeats itself, so that it can be stopped."""

from __future__ import annotations

from typing import Final

import numpy as np

_LONGEST: Final = 64
_REPEATED: Final = 256


class Repetition:
    """Detects a cycle of at most 64 tokens that has repeated for another 256 tokens.

    The tokens up to then, and their distribution, are not affected.
    """

    def __init__(self) -> None:
        # Entry p - 1 belongs to period p: the token p places ago, and how many tokens in a row
        # equalled the token p places before them.
        self._before = np.full(_LONGEST, -1, np.int64)
        self._same = np.zeros(_LONGEST, np.int64)

    def add(self, token: int) -> bool:
        """Take the next token; return whether the answer repeats itself."""
        self._same = np.where(self._before == token, self._same + 1, 0)
        self._before[1:] = self._before[:-1]
        self._before[0] = token
        return bool(self._same.max() >= _REPEATED)
