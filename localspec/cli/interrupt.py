"""Ctrl+C while llama.cpp works: the work runs in a thread, the main thread waits for signals.

Python handles a signal only in the main thread and only between two bytecodes. A main thread
inside llama.cpp would notice Ctrl+C after the load or the decode; a waiting one does at once, and
sets the flag that llama.cpp polls.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Generic, TypeVar

from localspec.errors import EXIT_INTERRUPTED

if TYPE_CHECKING:
    from types import FrameType

    from localspec.engine.cancel import Cancel

T = TypeVar("T")

# How long work may take to notice the wish to stop before the process ends without it.
GRACE_S = 3.0


def interruptible(work: Callable[[Cancel], T]) -> T:
    """Run `work` in a thread, with a flag that Ctrl+C sets; return its result or raise its error.

    A second Ctrl+C, or work that does not end within `GRACE_S` of the first, ends the process
    with exit code 130.
    """
    from localspec.engine.cancel import Cancel  # noqa: PLC0415 - late: it needs numpy

    cancel = Cancel()
    job = _Job(work, cancel)
    with _sigint_sets(cancel):
        job.start()
        stopping_since: float | None = None
        while job.is_alive():
            job.join(0.1)  # in steps: on Windows a wait without end is not interrupted
            if cancel.is_set():
                stopping_since = stopping_since or time.monotonic()
                if time.monotonic() - stopping_since > GRACE_S:
                    _leave()
    return job.result()


class _Job(threading.Thread, Generic[T]):
    """A thread that keeps what its work returned or raised."""

    def __init__(self, work: Callable[[Cancel], T], cancel: Cancel) -> None:
        super().__init__(name="engine", daemon=True)
        self._work = work
        self._cancel = cancel
        self._returned: list[T] = []
        self._raised: BaseException | None = None

    def run(self) -> None:
        """Do the work."""
        try:
            self._returned.append(self._work(self._cancel))
        except BaseException as error:
            self._raised = error

    def result(self) -> T:
        """What the work returned; raises what it raised."""
        if self._raised is not None:
            raise self._raised
        return self._returned[0]


@contextmanager
def raising() -> Iterator[None]:
    """Let Ctrl+C raise KeyboardInterrupt, where something is to be kept, undone or said.

    Not for imports: some packages turn a KeyboardInterrupt in the middle of one into another error.
    """
    with _on_sigint(signal.default_int_handler):
        yield


@contextmanager
def _sigint_sets(cancel: Cancel) -> Iterator[None]:
    """Let Ctrl+C set `cancel` the first time, and end the process the second time."""

    def stop(_signal: int, _frame: FrameType | None) -> None:
        if cancel.is_set():
            _leave()
        cancel.set()

    with _on_sigint(stop):
        yield


@contextmanager
def _on_sigint(act: Callable[[int, FrameType | None], object]) -> Iterator[None]:
    """Call `act` on Ctrl+C.

    Without effect outside the main thread, which gets the signals, and where Ctrl+C is ignored, as
    it is for what a shell script runs in the background.
    """
    ignored = signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    if ignored or threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, act)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _leave() -> None:
    """End the process now: a thread inside llama.cpp cannot be unwound."""
    os._exit(EXIT_INTERRUPTED)
