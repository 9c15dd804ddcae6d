"""Signals that ask for the end, and a terminal that goes away, in a real pseudo-terminal."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

if sys.platform == "win32":
    pytest.skip("needs a pseudo-terminal", allow_module_level=True)

from localspec.errors import Ended, exit_code
from localspec.signals import leaving
from tests.support import GOES_ON
from tests.support.terminal import Terminal

SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGINT)
CHAT = ("chat", "toy", "--temp", "0", "--threads", "1", "--gamma", "0", *GOES_ON)
DEAF = (
    "-c",
    "import signal, sys; signal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
    "from localspec.cli import main; main()",
)


@pytest.fixture
def chat(toy_target: Path, toy_draft: Path, tmp_path: Path) -> Iterator[Terminal]:
    terminal = Terminal([*CHAT], tmp_path)
    yield terminal
    terminal.child.close(force=True)


def answer_begins(terminal: Terminal) -> None:
    terminal.sees("ready")
    terminal.child.send("Tell me a long story.\r")
    terminal.until(terminal.kept, "the answer's first words in the file")


@pytest.mark.parametrize(
    "number", [SIGNALS[0], *(pytest.param(it, marks=pytest.mark.slow) for it in SIGNALS[1:])]
)
def test_a_signal_ends_the_chat_cleanly(number: int, chat: Terminal) -> None:
    answer_begins(chat)
    before = chat.kept()
    children = psutil.Process(chat.child.pid).children(recursive=True)
    assert children
    chat.child.kill(number)
    assert chat.ends() == 128 + number
    chat.until(chat.restored, "the terminal as it was")
    assert b"Traceback" not in chat.raw
    assert chat.kept() >= before
    assert psutil.wait_procs(children, timeout=10)[1] == []


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_before_anything_is_loaded_ends_it_as_well(number: int, chat: Terminal) -> None:
    chat.until(lambda: b"\x1b[?1049h" in chat.raw, "the screen")
    chat.child.kill(number)
    assert chat.ends() == 128 + number
    chat.until(chat.restored, "the terminal as it was")


@pytest.mark.slow
def test_the_chat_ends_with_its_terminal_also_where_nobody_is_told(
    toy_target: Path, toy_draft: Path, tmp_path: Path
) -> None:
    terminal = Terminal([*CHAT], tmp_path, program=DEAF)
    answer_begins(terminal)
    before = terminal.kept()
    program = psutil.Process(terminal.child.pid)
    os.close(terminal.child.child_fd)
    terminal.child.child_fd = -1
    terminal.child.closed = True
    end = time.monotonic() + 30
    while program.is_running() and program.status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < end
        time.sleep(0.05)
    assert os.waitstatus_to_exitcode(os.waitpid(program.pid, 0)[1]) == 128 + signal.SIGHUP
    assert terminal.kept() >= before


@pytest.mark.slow
@pytest.mark.parametrize(
    "number", [SIGNALS[0], *(pytest.param(it, marks=pytest.mark.slow) for it in SIGNALS[1:])]
)
def test_a_signal_ends_an_answer_on_standard_output(number: int, toy_target: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "localspec", "run", "-p", "Tell me a story.", *CHAT[1:]],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        pipesize=4096,  # it cannot write all of its answer before it is read
    ) as program:
        assert program.stdout is not None
        assert program.stdout.read(10)
        program.send_signal(number)
        _, errors = program.communicate(timeout=30)
        assert program.returncode == 128 + number
        assert b"Traceback" not in errors


def gone(left: list[bool]) -> None:
    """What a program sees when its terminal goes away."""
    with leaving(lambda: left.append(True)):
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGHUP)  # a second one changes nothing
        while not left:
            time.sleep(0.01)
        raise OSError("the terminal is gone")


def faulty() -> None:
    with leaving(lambda: None):
        raise OSError("a fault")


def test_whatever_is_raised_on_the_way_out_the_signal_is_the_reason() -> None:
    left: list[bool] = []
    with pytest.raises(Ended) as caught:
        gone(left)
    assert left == [True]
    assert exit_code(caught.value) == 143
    with pytest.raises(OSError, match="a fault"):
        faulty()
