"""How many threads to decode with while other programs keep cores busy."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

import psutil

from localspec.engine.llama.library import lib
from localspec.engine.llama.platform.hardware import default_threads

_LOOK: Final = 0.25  # seconds from one look at the cores to the next
# A core is taken by others if they keep it busy half of the time. It is free again if they do so
# for less than a quarter twice in a row: bursts last 0.5 to 3 seconds.
_TAKEN: Final = 0.5
_FREE: Final = 0.25
_CALM: Final = 2


BUSY: Final = 0.5
"""Cores that other programs take of those that threads need, from which on timings tell nothing."""

LOOK_S: Final = 0.3
"""Seconds in which that can be told."""


def busy_seconds() -> float:
    """Seconds that all cores together have worked, for whatever program, by the system's count."""
    times = psutil.cpu_times()
    names = ("user", "nice", "system", "irq", "softirq", "steal")
    return sum(float(getattr(times, name, 0.0)) for name in names)


def busy_cores(seconds: float) -> float:
    """Cores that other programs keep busy, from now on for so long."""
    controller = ThreadController(1)
    time.sleep(seconds)
    controller.look()
    return controller.others


def bearable(threads: int) -> float:
    """Cores that other programs may keep busy at most while so many threads are timed.

    Of those that `default_threads` counts: what shares a core with a thread disturbs it.
    """
    return BUSY + max(0, default_threads() - threads)


class ThreadController:
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
        self._room = most  # cores for them, none among it
        self._calm = 0
        self._last = clock(), busy(), own()

    @property
    def crowded(self) -> bool:
        """Whether other programs leave fewer cores than threads on an idle machine."""
        return self._room < self.most

    def begin(self) -> None:
        """A pause is over: what ended in it counts at once, what ran in it may have ended too."""
        if self._see():
            self._room = max(self._room, self._beside(_FREE))
            self.threads = max(1, self._room)

    def look(self) -> int:
        """How many threads to decode with now; takes microseconds, and mostly less than one."""
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
        """Look what others took since the last look, if that is long enough ago."""
        now = self._clock()
        if now - self._last[0] < _LOOK:
            return False
        at, busy, own = self._last
        self._last = now, self._busy(), self._own()
        self.others = max(0.0, self._last[1] - busy - (self._last[2] - own)) / (now - at)
        return True

    def _beside(self, part: float) -> int:
        """The threads that find a core, a part of one counted as a whole one."""
        return max(0, min(self.most, int(self._cores - self.others + part)))


class Threads:
    """The CPU threads of one llama.cpp context: as its options say, until others are asked for."""

    def __init__(self, handle: Any) -> None:
        """Of the llama.cpp context with this handle."""
        self._handle = handle
        self._controller: ThreadController | None = None
        self._asked = 0, 0
        self._now = 0
        self._follows, self._held = False, True

    def use(self, threads: int, batch: int | None = None, *, at_most: bool = False) -> None:
        """Decode with so many from now on, batches with `batch` of them.

        Args:
            threads: how many.
            batch: None for as many.
            at_most: use fewer while other programs keep cores busy, unless they are held.
        """
        self._asked = threads, batch or threads
        self._controller, self._follows = ThreadController(max(self._asked)), at_most
        self._set(self._controller.most)

    def hold(self, hold: bool) -> None:
        """An answer begins; whether it keeps their number, which changes logits' last bits."""
        self._held = hold
        if self._controller is not None:
            self._controller.begin()
            if hold:
                self._set(self._controller.most)

    def make_way(self) -> None:
        """Before a decode: leave other programs the cores that they keep busy, unless held."""
        if self._controller is None:
            return
        threads = self._controller.look()
        if threads != self._now and self._follows and not self._held:
            self._set(threads)

    @property
    def others(self) -> float:
        """Cores that other programs kept busy at the last decodes."""
        return self._controller.others if self._controller is not None else 0.0

    @property
    def crowded(self) -> bool:
        """Whether other programs leave it fewer cores than its threads on an idle machine."""
        return self._controller is not None and self._controller.crowded

    @property
    def now(self) -> int:
        """In use for a token at a time."""
        return int(lib.llama_n_threads(self._handle))

    @property
    def widest(self) -> int:
        """For a token or a batch, whichever has more."""
        return max(self.most, *self._asked)

    @property
    def most(self) -> int:
        """For a token at a time while no other program runs."""
        return self.now if self._controller is None else self._asked[0]

    def _set(self, threads: int) -> None:
        self._now = threads
        one, batch = (min(threads, asked) for asked in self._asked)
        lib.llama_set_n_threads(self._handle, one, batch)
