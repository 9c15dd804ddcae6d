"""The number of decode threads while other programs keep cores busy."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

import psutil

from localspec.engine.llama.library import lib
from localspec.engine.llama.platform.hardware import default_threads

_LOOK: Final = 0.25  # seconds between two looks at the cores
# A core is taken if others keep it busy half of the time. It is free again once they do so for less
# than a quarter of the time, twice in a row: bursts last 0.5 to 3 seconds.
_TAKEN: Final = 0.5
_FREE: Final = 0.25
_CALM: Final = 2


BUSY: Final = 0.5
"""Timings are not trusted once others keep this many of the threads' cores busy."""

LOOK_S: Final = 0.3
"""Seconds that it takes to measure that."""


def busy_seconds() -> float:
    """Seconds that all cores together have worked for any program, as the system counts."""
    times = psutil.cpu_times()
    names = ("user", "nice", "system", "irq", "softirq", "steal")
    return sum(float(getattr(times, name, 0.0)) for name in names)


def busy_cores(seconds: float) -> float:
    """Measure for `seconds` how many cores other programs keep busy."""
    controller = ThreadController(1)
    time.sleep(seconds)
    controller.poll()
    return controller.others


def too_busy(threads: int) -> bool:
    """Whether other programs disturb the timing of `threads` threads; measures for `LOOK_S`.

    Only the cores of `default_threads` count: a program on the same core disturbs a thread.
    """
    return busy_cores(LOOK_S) > BUSY + max(0, default_threads() - threads)


class ThreadController:
    """Chooses the number of decode threads while other programs are busy.

    Threads wait for each other at every operation, so one thread on a busy core delays all of them.
    With one thread less, the others lose hardly any speed.

    Attributes:
        others: cores that other programs kept busy lately.
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
            cores: as the system counts; None to ask.
            clock: returns seconds.
            busy: returns the seconds that all cores have worked.
            own: returns this process's share of these seconds.
        """
        self.most = self.threads = most
        self.others = 0.0
        self._cores = cores or psutil.cpu_count() or most
        self._clock, self._busy, self._own = clock, busy, own
        self._room = most  # cores left for the threads, 0 if none
        self._calm = 0
        self._last = clock(), busy(), own()
        self.watch()

    def watch(self) -> None:
        """Begin to sum up what other programs take, for `taken`."""
        self._others_s = self._watched_s = 0.0

    @property
    def taken(self) -> float:
        """Cores that other programs kept busy since `watch`, on average.

        0 if they left a core to every thread of an idle machine, but for `BUSY` of one.
        """
        taken = self._others_s / self._watched_s if self._watched_s else 0.0
        return taken if taken >= BUSY + max(0, self._cores - self.most) else 0.0

    def begin(self) -> None:
        """Look at the cores after a pause: those that became free meanwhile count at once."""
        if self._see():
            self._room = max(self._room, self._beside(_FREE))
            self.threads = max(1, self._room)
        self.watch()

    def poll(self) -> int:
        """The number of threads to decode with now; takes microseconds, usually less than one."""
        if self._see():
            few, many = (self._beside(part) for part in (1 - _TAKEN, _FREE))
            self._calm = self._calm + 1 if many > self._room else 0
            if few < self._room:
                self._room = few
            elif self._calm >= _CALM:
                self._room = many
            self.threads = max(1, self._room)
        return self.threads

    def _see(self) -> bool:
        """Measure the others' use since the last poll, if that is long enough ago."""
        now = self._clock()
        if now - self._last[0] < _LOOK:
            return False
        at, busy, own = self._last
        self._last = now, self._busy(), self._own()
        others_s = max(0.0, self._last[1] - busy - (self._last[2] - own))
        self.others = others_s / (now - at)
        self._others_s, self._watched_s = self._others_s + others_s, self._watched_s + now - at
        return True

    def _beside(self, part: float) -> int:
        """Threads that fit on the free cores; add `part` of a core before rounding down."""
        return max(0, min(self.most, int(self._cores - self.others + part)))


class Threads:
    """The CPU threads of a llama.cpp context: as in its options, until others are requested."""

    def __init__(self, handle: Any) -> None:
        """Control the llama.cpp context with this handle."""
        self._handle = handle
        self._controller: ThreadController | None = None
        self._asked = 0, 0
        self._now = 0
        self._follows, self._held = False, True

    def use(self, threads: int, batch: int | None = None, *, at_most: bool = False) -> None:
        """Decode single tokens with `threads` threads from now on, and batches with `batch`.

        Args:
            threads: for single tokens.
            batch: for batches; None for the same number.
            at_most: use fewer while other programs keep cores busy, unless held.
        """
        self._asked = threads, batch or threads
        self._controller, self._follows = ThreadController(max(self._asked)), at_most
        self._set(self._controller.most)

    def hold(self, hold: bool) -> None:
        """Begin an answer; `hold` keeps its thread count, which affects the last bits of logits."""
        self._held = hold
        if self._controller is not None:
            self._controller.begin()
            if hold:
                self._set(self._controller.most)

    def watch(self) -> None:
        """Begin to sum up what other programs take, for `taken`; `hold` does, too."""
        if self._controller is not None:
            self._controller.watch()

    def make_way(self) -> None:
        """Before a decode: leave busy cores to other programs, unless held."""
        if self._controller is None:
            return
        threads = self._controller.poll()
        if threads != self._now and self._follows and not self._held:
            self._set(threads)

    @property
    def others(self) -> float:
        """Cores that other programs kept busy at the last decodes."""
        return self._controller.others if self._controller is not None else 0.0

    @property
    def taken(self) -> float:
        """Cores that other programs kept busy since `watch`; 0 if they took none from a thread."""
        return self._controller.taken if self._controller is not None else 0.0

    @property
    def now(self) -> int:
        """Threads for single tokens now."""
        return int(lib.llama_n_threads(self._handle))

    @property
    def widest(self) -> int:
        """The larger of the thread counts for single tokens and batches."""
        return max(self.most, *self._asked)

    @property
    def most(self) -> int:
        """Threads for single tokens on an idle machine."""
        return self.now if self._controller is None else self._asked[0]

    def _set(self, threads: int) -> None:
        self._now = threads
        one, batch = (min(threads, asked) for asked in self._asked)
        lib.llama_set_n_threads(self._handle, one, batch)
