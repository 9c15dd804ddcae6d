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
        token_s: seconds that a token is expected to take; None if unknown.
        clock: a monotonic clock in seconds.
    """

    def __init__(
        self, token_s: float | None = None, clock: Callable[[], float] = perf_counter
    ) -> None:
        self._token_s = token_s
        self._clock = clock
        self._seen = deque([(clock(), 0)])  # (seconds, tokens read by then)

    def seconds(self, done: int, total: int) -> float | None:
        """Take note that `done` of `total` tokens are read; return the seconds for the rest.

        Before the first token was read, the result follows from `token_s`.
        """
        if not done:
            return None if self._token_s is None else total * self._token_s
        now = self._clock()
        while len(self._seen) > 1 and now - self._seen[1][0] >= _LATELY_S:
            self._seen.popleft()
        begun, before = self._seen[0]
        self._seen.append((now, done))
        return (total - done) * (now - begun) / (done - before) if done > before else 0.0
