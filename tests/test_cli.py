"""The command line's frame: exit codes, faults, pipes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import click
import pytest

from localspec import errors
from localspec.cli import app


def leave(monkeypatch: pytest.MonkeyPatch, raised: BaseException | None) -> int:
    """Run `main` with a command that raises; return the exit code."""

    def invoke(**_: object) -> None:
        if raised is not None:
            raise raised

    monkeypatch.setattr(app.cli, "main", invoke)
    with pytest.raises(SystemExit) as left:
        app.main()
    assert isinstance(left.value.code, int)
    return left.value.code


@pytest.mark.parametrize(
    ("raised", "code"),
    [
        (None, 0),
        (errors.ModelFileError("no such model", "Look again."), 1),
        (errors.UsageError("no such option"), 2),
        (errors.Cancelled(), 130),
        (KeyboardInterrupt(), 130),
        (click.exceptions.Abort(), 130),
        (click.UsageError("what?"), 2),
        (RuntimeError("boom"), 1),
    ],
)
def test_exit_codes(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    raised: BaseException | None,
    code: int,
) -> None:
    assert leave(monkeypatch, raised) == code
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "Traceback" not in shown.err


def test_a_fault_says_how_to_report_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    leave(monkeypatch, RuntimeError("boom"))
    assert "RuntimeError: boom" in capsys.readouterr().err
    monkeypatch.setenv("LOCALSPEC_TRACEBACK", "1")
    leave(monkeypatch, RuntimeError("boom"))
    assert "Traceback" in capsys.readouterr().err


def test_a_reader_that_goes_away_is_no_failure() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "wb") as gone:  # noqa: PTH123 - a descriptor, not a path
        done = subprocess.run(
            [sys.executable, "-m", "localspec", "list"],
            stdout=gone,
            stderr=subprocess.PIPE,
            check=False,
        )
    assert done.stderr == b""
    assert done.returncode == 0


@pytest.mark.skipif(os.name == "nt", reason="signals are sent otherwise there")
@pytest.mark.parametrize("delay", [0.08, 0.12, 0.2])
def test_ctrl_c_during_start_up_leaves_quietly(delay: float) -> None:
    program = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    program += "print('up', flush=True)\n"
    program += (
        "from localspec.cli import main\nimport sys\nsys.argv[1:] = ['run', '-p', 'hi']\nmain()"
    )
    started = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert started.stdout is not None
    assert started.stderr is not None
    started.stdout.readline()
    time.sleep(delay)
    started.send_signal(signal.SIGINT)
    _, err = started.communicate(timeout=60)
    assert started.returncode == 130
    assert err.strip() == b""


def test_every_error_has_its_exit_code() -> None:
    assert errors.exit_code(errors.UsageError("x")) == 2
    assert errors.exit_code(errors.HubOffline("x")) == 1
    assert errors.exit_code(errors.Cancelled()) == 130
