"""Ctrl+C while the engine works: the first asks it to stop, the second ends the process."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TypeVar

from localspec.cli.standard_streams import ProgressLine, aside
from localspec.errors import Cancelled, Ended
from localspec.signals import acting

T = TypeVar("T")

# How long work may take to stop before the process ends without it.
GRACE_S = 3.0


def interruptible(work: Callable[[], T], stop: Callable[[], object], *, patient: bool = False) -> T:
    """Run `work`, which Ctrl+C asks to stop; return its result, or raise its error.

    A second Ctrl+C, or work that does not end within `GRACE_S` of the first, ends the process
    with exit code 130. Other signals that ask for the end count as well.

    Args:
        work: waits for an engine in short steps, so that signals are handled.
        stop: asks it to end; called in a signal handler.
        patient: whether it may take any time to end after Ctrl+C, as its result would be lost.

    Raises:
        Ended: a signal other than Ctrl+C asked for the end, and the work is over.
    """
    over = threading.Event()

    def insist(number: int) -> None:
        if not over.wait(None if patient and number == signal.SIGINT else GRACE_S):
            os._exit(128 + number)

    def ask(number: int) -> None:
        threading.Thread(target=insist, args=(number,), name="insist", daemon=True).start()
        stop()

    with asking(ask):
        try:
            return work()
        finally:
            over.set()


@contextmanager
def asking(stop: Callable[[int], object]) -> Iterator[None]:
    """Let a signal ask the block to end, which may take any time; a second one ends the process.

    Args:
        stop: called in the signal handler, with the number of the first signal.

    Raises:
        Ended: a signal other than Ctrl+C asked for the end, and the block is over.
    """
    came: list[int] = []

    def act(number: int, _frame: FrameType | None) -> None:
        came.append(number)
        if len(came) > 1:
            os._exit(128 + number)
        stop(number)

    with acting(act):
        try:
            yield
        finally:
            if came and came[0] != signal.SIGINT:
                raise Ended(came[0])


@contextmanager
def raising() -> Iterator[None]:
    """Let Ctrl+C raise KeyboardInterrupt in the block, to keep, undo or say something.

    Another signal that asks for the end raises `Ended`, a KeyboardInterrupt too. Do not import in
    the block: some packages turn a KeyboardInterrupt during an import into another error.
    """

    def stop(number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt if number == signal.SIGINT else Ended(number)

    with acting(stop):
        yield


@contextmanager
def stoppable(line: ProgressLine, said: str) -> Iterator[None]:
    """Let Ctrl+C end the block, which then says `said`; its progress is cleared in any case.

    Raises:
        Cancelled: Ctrl+C was pressed.
        Ended: another signal asked for the end.
    """
    try:
        with raising():
            yield
    except KeyboardInterrupt as error:
        line.clear()
        aside(said)
        raise error if isinstance(error, Ended) else Cancelled from None
    finally:
        line.clear()
