"""How many threads to decode with while other programs keep cores busy."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import psutil

_LOOK: Final = 0.25  # seconds from one look at the cores to the next
# A core is taken by others if they keep it busy half of the time. It is free again if they do so
# for less than a quarter twice in a row: bursts last 0.5 to 3 seconds.
_TAKEN: Final = 0.5
_FREE: Final = 0.25
_CALM: Final = 2


BUSY: Final = 0.5
"""Cores that other programs take, from which on timings tell nothing."""

LOOK_S: Final = 0.3
"""Seconds in which that can be told."""


def busy_seconds() -> float:
    """Seconds that all cores together have worked, for whatever program, by the system's count."""
    times = psutil.cpu_times()
    names = ("user", "nice", "system", "irq", "softirq", "steal")
    return sum(float(getattr(times, name, 0.0)) for name in names)


def busy_cores(seconds: float) -> float:
    """Cores that other programs keep busy, from now on for so long."""
    crew = Crew(1)
    time.sleep(seconds)
    crew.look()
    return crew.others


class Crew:
    """How many of its threads a model should decode with, as long as other programs are busy.

    Threads wait for each other at every operation, so that one whose core does something else
    holds up all of them: with one thread less they hardly lose anything.

    Attributes:
        others: cores that other programs kept busy lately.
        threads: to decode with.
    """

    def __init__(
        self,
        most: int,
        *,
        cores: int | None = None,
        clock: Callable[[], float] = time.perf_counter,
        busy: Callable[[], float] = busy_seconds,
        own: Callable[[], float] = time.process_time,
    ) -> None:
        """Begin with all threads.

        Args:
            most: threads on an idle machine.
            cores: that the system counts, None to ask.
            clock: counts seconds.
            busy: seconds that all cores have worked.
            own: those of them for this process.
        """
        self.most = self.threads = most
        self.others = 0.0
        self._cores = cores or psutil.cpu_count() or most
        self._clock, self._busy, self._own = clock, busy, own
        self._calm = 0
        self._last = clock(), busy(), own()

    def look(self) -> int:
        """How many threads to decode with now; takes microseconds, and mostly less than one."""
        now = self._clock()
        if now - self._last[0] < _LOOK:
            return self.threads
        at, busy, own = self._last
        self._last = now, self._busy(), self._own()
        self.others = max(0.0, self._last[1] - busy - (self._last[2] - own)) / (now - at)
        few, many = (self._beside(part) for part in (1 - _TAKEN, _FREE))
        self._calm = self._calm + 1 if many > self.threads else 0
        if few < self.threads:
            self.threads = few
        elif self._calm >= _CALM:
            self.threads = many
        return self.threads

    def _beside(self, part: float) -> int:
        """The threads that find a core, a part of one counted as a whole one."""
        return max(1, min(self.most, int(self._cores - self.others + part)))
