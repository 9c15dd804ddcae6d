"""How long the rest of a prompt takes to read."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from time import perf_counter
from typing import Final

_LATELY_S: Final = 4.0


class TimeLeft:
    """Estimates by the speed of the last seconds, as a machine may turn busy meanwhile.

    Args:
        clock: a monotonic clock in seconds.
    """

    def __init__(self, clock: Callable[[], float] = perf_counter) -> None:
        self._clock = clock
        self._seen = deque([(clock(), 0)])  # (seconds, tokens read by then)

    def seconds(self, done: int, total: int) -> float:
        """Take note that `done` of `total` tokens are read; return the seconds for the rest."""
        now = self._clock()
        while len(self._seen) > 1 and now - self._seen[1][0] >= _LATELY_S:
            self._seen.popleft()
        begun, before = self._seen[0]
        self._seen.append((now, done))
        return (total - done) * (now - begun) / (done - before) if done > before else 0.0
