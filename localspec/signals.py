"""Signals that ask the program to end, from the terminal, the system or other programs."""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TypeAlias

from localspec.errors import Ended

Act: TypeAlias = "Callable[[int, FrameType | None], object]"

ENDING = tuple(
    number
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGBREAK")
    if (number := getattr(signal, name, None)) is not None
)
_PATIENCE_S = 20.0  # for an orderly end; after that the process exits at once
_POLL_MS = 1000


@contextmanager
def acting(act: Act) -> Iterator[None]:
    """Call `act` on every signal that asks for an end.

    This has no effect outside the main thread, which gets the signals, nor on a signal that is
    ignored, as Ctrl+C is for background processes of a shell script.
    """
    before = {}
    if threading.current_thread() is threading.main_thread():
        for number in ENDING:
            usual = signal.getsignal(number)
            if usual is not None and usual != signal.SIG_IGN:
                before[number] = signal.signal(number, act)
    try:
        yield
    finally:
        for number, usual in before.items():
            signal.signal(number, usual)


@contextmanager
def leaving(leave: Callable[[], object]) -> Iterator[None]:
    """Call `leave` once if a signal asks for an end, or if the terminal is gone.

    Args:
        leave: ends the code inside the `with` soon; it runs in a thread of its own.

    Raises:
        Ended: a signal ended the code inside, whatever that code raised.
    """
    came: list[int] = []
    over = threading.Event()

    def act(number: int, _frame: FrameType | None = None) -> None:
        if not came:
            came.append(number)
            threading.Thread(target=leave, name="leave", daemon=True).start()
            threading.Thread(
                target=_insist, args=(number, over), name="insist", daemon=True
            ).start()

    watch = threading.Thread(target=_watch_terminal, args=(act, over), name="hangup", daemon=True)
    with acting(act):
        watch.start()
        try:
            yield
        except Exception:
            if not came:
                raise
        finally:
            over.set()
    if came:
        raise Ended(came[0])


def _insist(number: int, over: threading.Event) -> None:
    """End the process if it does not end by itself."""
    if not over.wait(_PATIENCE_S):
        os._exit(128 + number)


def _watch_terminal(act: Act, over: threading.Event) -> None:
    """Notice that the terminal is gone even if no signal comes (nohup, a shell in between)."""
    if not hasattr(select, "poll") or sys.platform == "darwin":  # macOS cannot poll a terminal
        return
    poll = select.poll()
    poll.register(sys.__stdin__.fileno() if sys.__stdin__ is not None else 0, 0)
    while not over.is_set():
        for _, event in poll.poll(_POLL_MS):
            if event & (select.POLLHUP | select.POLLERR):
                act(signal.SIGHUP, None)
            return
