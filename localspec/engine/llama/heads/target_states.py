"""`TargetStates`: the latest states that the target showed to a head, a ring of rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.float32]


class TargetStates:
    """The target's states for the latest tokens of a text, as far as they were shown.

    Attributes:
        width: floats per state.
        first, end: states are known for the tokens `first` to `end` (exclusive).
    """

    def __init__(self, reach: int, width: int) -> None:
        """Keep at most `reach` states of `width` floats each; none are known yet."""
        self.width = width
        self.first = self.end = 0
        self._rows = np.empty((reach, width), np.float32)  # token i is at i modulo `reach`

    def forget(self) -> None:
        """Forget all states."""
        self.first = self.end = 0

    def put(self, start: int, parts: Sequence[Rows]) -> None:
        """Store the states of the tokens from `start` on; older states from there on are dropped.

        Args:
            start: index of the first token.
            parts: the states side by side, each part `(n, width / len(parts))`.
        """
        reach, n = len(self._rows), len(parts[0])
        if not self.first <= start <= self.end:
            self.first = start
        self.end = start + n
        self.first = max(self.first, self.end - reach)
        # The rows fill a slice before the place where the ring begins anew, and perhaps one after
        # it. An array of indices would take 35 microseconds more after every decode.
        begun = self.end - min(n, reach)
        anew = min(self.end, begun - begun % reach + reach)
        for at, part in enumerate(parts):
            width = part.shape[1]
            own = self._rows[:, at * width : (at + 1) * width]
            own[begun % reach : begun % reach + anew - begun] = part[begun - start : anew - start]
            if anew < self.end:
                own[: self.end - anew] = part[anew - start :]

    def knows(self, token: int) -> bool:
        """Whether the state of `token`, an index into the text, is known."""
        return self.first <= token < self.end

    def get(self, start: int, n: int) -> Rows:
        """Copy the states of `n` tokens: `(n, width)`."""
        return self._rows[np.arange(start, start + n) % len(self._rows)]
