"""Tells an answer that only repeats itself, so that it can be stopped."""

from __future__ import annotations

from typing import Final

import numpy as np

_LONGEST: Final = 64
_REPEATED: Final = 256


class Repetition:
    """Watches an answer for a cycle of at most 64 tokens that goes on for 256 tokens more.

    Nothing before that is changed: text and distribution stay what they are.
    """

    def __init__(self) -> None:
        # Entry p - 1 belongs to the period p: the token p places ago, and how many tokens in a row
        # were the same as the one p places before them.
        self._before = np.full(_LONGEST, -1, np.int64)
        self._same = np.zeros(_LONGEST, np.int64)

    def add(self, token: int) -> bool:
        """Take the next token; return whether the answer repeats itself."""
        self._same = np.where(self._before == token, self._same + 1, 0)
        self._before[1:] = self._before[:-1]
        self._before[0] = token
        return bool(self._same.max() >= _REPEATED)
