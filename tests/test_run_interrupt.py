"""Ctrl+C while an engine works: it asks first, and ends work that does not listen."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import pytest

from localspec.cli.interrupt import interruptible, raising

DEAF = """
import threading
from localspec.cli import interrupt
interrupt.GRACE_S = {grace}
def work():
    print("started", flush=True)
    threading.Event().wait(60)
interrupt.interruptible(work, lambda: print("asked", flush=True), patient={patient})
"""


def never() -> None:
    raise AssertionError("asked to stop")


def test_the_result_and_the_error_of_the_work_come_back() -> None:
    assert interruptible(lambda: 7, never) == 7

    def fail() -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        interruptible(fail, never)


def test_ctrl_c_asks_it_to_stop_and_the_old_handler_comes_back() -> None:
    before = signal.getsignal(signal.SIGINT)
    asked = threading.Event()

    def work() -> bool:
        os.kill(os.getpid(), signal.SIGINT)
        while not asked.is_set():
            pass
        return True

    assert interruptible(work, asked.set)
    assert signal.getsignal(signal.SIGINT) is before


def test_it_works_outside_the_main_thread_too() -> None:
    results: list[int] = []
    thread = threading.Thread(target=lambda: results.append(interruptible(lambda: 7, never)))
    thread.start()
    thread.join(5)
    assert results == [7]


def deaf(
    grace: float, number: signal.Signals = signal.SIGINT, *, patient: bool = False
) -> subprocess.Popen[str]:
    """A process, interrupted once its work has begun, that ignores the request to stop."""
    program = DEAF.format(grace=grace, patient=patient)
    running = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert running.stdout is not None
    assert running.stdout.readline() == "started\n"
    running.send_signal(number)
    return running


def test_work_that_does_not_listen_is_left_behind() -> None:
    with deaf(0.1) as running:
        assert running.wait(10) == 130


def test_what_the_system_asks_for_is_not_waited_for_without_end() -> None:
    """A user can press Ctrl+C again; a service manager or a closed terminal says it once."""
    with deaf(0.1, signal.SIGTERM, patient=True) as running:
        try:
            assert running.wait(10) == 128 + signal.SIGTERM
        finally:
            running.kill()


def test_a_second_ctrl_c_ends_it_at_once() -> None:
    with deaf(60) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "asked\n"  # two signals at once would be one
        assert running.poll() is None
        running.send_signal(signal.SIGINT)
        assert running.wait(10) == 130


def test_where_something_is_to_be_undone_ctrl_c_raises() -> None:
    before = signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, lambda *_: None)
    try:
        mine = signal.getsignal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt), raising():
            signal.raise_signal(signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is mine
    finally:
        signal.signal(signal.SIGINT, before)
