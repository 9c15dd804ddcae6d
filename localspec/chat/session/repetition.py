"""Detects an answer that only repeats itself, so that it can be stopped."""

from __future__ import annotations

from typing import Final

import numpy as np

_LONGEST: Final = 1024
_TIMES, _REPEATED = 4, 256


class Repetition:
    """Detects a cycle of at most 1,024 tokens that came four more times, 256 tokens at least.

    Of 981 answers of SmolLM2 at temperature 0 that went in circles within 288 tokens, one in twelve
    did so with a period of more than 64, as far as 288 tokens show it. No text of 3.6 million
    tokens (conversations, code, tables, lists, JSON) is stopped because of such a period. A rule
    that also stops cycles with slight changes, by short sequences that were all there before, would
    stop real C headers and JSON.

    The tokens up to then, and their distribution, are not affected.
    """

    def __init__(self) -> None:
        # Entry p - 1 belongs to period p: the token p places ago, how many tokens in a row equalled
        # the token p places before them, and how many are enough.
        self._before = np.full(_LONGEST, -1, np.int64)
        self._same = np.zeros(_LONGEST, np.int64)
        self._enough = np.maximum(_REPEATED, _TIMES * np.arange(1, _LONGEST + 1))

    def add(self, token: int) -> bool:
        """Take the next token; return whether the answer repeats itself."""
        self._same = np.where(self._before == token, self._same + 1, 0)
        self._before[1:] = self._before[:-1]
        self._before[0] = token
        return bool((self._same >= self._enough).any())
