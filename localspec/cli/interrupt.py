"""Ctrl+C while llama.cpp works: the work runs in a thread, the main thread waits for signals.

Other signals that ask for the end (SIGTERM, SIGHUP, SIGQUIT) mean the same, with another exit code.

Python handles a signal only in the main thread and only between two bytecodes. A main thread
inside llama.cpp would notice Ctrl+C after the load or the decode; a waiting one does at once, and
sets the flag that llama.cpp polls.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Generic, TypeVar

from localspec.errors import EXIT_INTERRUPTED, Ended
from localspec.signals import acting

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

    Raises:
        Ended: another signal than Ctrl+C asked for the end, and the work is over.
    """
    from localspec.engine.cancel import Cancel  # noqa: PLC0415 - late: it needs numpy

    cancel = Cancel()
    job = _Job(work, cancel)
    came: list[int] = []
    with _signals_set(cancel, came):
        job.start()
        stopping_since: float | None = None
        while job.is_alive():
            job.join(0.1)  # in steps: on Windows a wait without end is not interrupted
            if cancel.is_set():
                stopping_since = stopping_since or time.monotonic()
                if time.monotonic() - stopping_since > GRACE_S:
                    _leave(came[-1:])
    if came and came[0] != signal.SIGINT:
        raise Ended(came[0])
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

    Another signal that asks for the end raises `Ended`, which is one as well. Not for imports: some
    packages turn a KeyboardInterrupt in the middle of one into another error.
    """

    def stop(number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt if number == signal.SIGINT else Ended(number)

    with acting(stop):
        yield


@contextmanager
def _signals_set(cancel: Cancel, came: list[int]) -> Iterator[None]:
    """Let Ctrl+C set `cancel` the first time, and end the process the second time.

    Args:
        cancel: the flag.
        came: gets the numbers of the signals.
    """

    def stop(number: int, _frame: FrameType | None) -> None:
        came.append(number)
        if cancel.is_set():
            _leave(came)
        cancel.set()

    with acting(stop):
        yield


def _leave(came: Sequence[int] = ()) -> None:
    """End the process now: a thread inside llama.cpp cannot be unwound."""
    os._exit(128 + came[-1] if came else EXIT_INTERRUPTED)
