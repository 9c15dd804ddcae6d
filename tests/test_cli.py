"""The command line's frame: exit codes, faults, pipes."""

from __future__ import annotations

import os
import subprocess
import sys

import click
import pytest

from localspec import errors
from localspec.cli import subcommands


def leave(monkeypatch: pytest.MonkeyPatch, raised: BaseException | None) -> int:
    """Run `main` with a command that raises; return the exit code."""

    def invoke(**_: object) -> None:
        if raised is not None:
            raise raised

    monkeypatch.setattr(subcommands.cli, "main", invoke)
    with pytest.raises(SystemExit) as left:
        subcommands.main()
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


# The shell asks by the name of the command.
COMPLETED = "import localspec.cli, sys; sys.argv[0] = 'localspec'; localspec.cli.main()"


@pytest.mark.parametrize(("typed", "completed"), [("run --te", "--temp"), ("ru", "run")])
def test_the_shell_completes_commands_and_their_options(typed: str, completed: str) -> None:
    shell = {
        "_LOCALSPEC_COMPLETE": "bash_complete",
        "COMP_WORDS": f"localspec {typed}",
        "COMP_CWORD": str(len(typed.split())),
    }
    done = subprocess.run(
        [sys.executable, "-c", COMPLETED],
        env=os.environ | shell,
        capture_output=True,
        text=True,
        check=False,
    )
    assert f"plain,{completed}" in done.stdout.splitlines()
    assert done.stderr == ""


# Watches the imports of the main thread, the only one that Ctrl+C interrupts.
WATCHED = """
import signal, sys, threading
signal.signal(signal.SIGINT, signal.default_int_handler)
interrupting, *sys.argv[1:] = sys.argv[1:]

class Watch:
    def find_spec(self, name, path=None, target=None):
        if threading.current_thread() is threading.main_thread():
            if name == interrupting:
                signal.raise_signal(signal.SIGINT)
            elif not name.startswith("localspec.cli") and raises():
                print(name, "imported where Ctrl+C raises", file=sys.stderr)

def raises():
    return signal.getsignal(signal.SIGINT) is signal.default_int_handler

import localspec.cli
sys.meta_path.insert(0, Watch())
localspec.cli.main()
"""


def watched(interrupting: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `localspec`, with a Ctrl+C when it begins to import the module `interrupting`."""
    return subprocess.run(
        [sys.executable, "-c", WATCHED, interrupting, *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("interrupting", "command"),
    [
        ("localspec.cli.subcommands", "run -p hi"),
        ("click", "--help"),
        ("localspec.cli.answers.run", "run -p hi"),
        ("localspec.cli.answers.answer_output", "run -p hi"),
        ("localspec.process.engine_client", "tune toy"),
        ("msgspec", "tune toy"),
        ("localspec.pairs.hub.pair_pull", "pull starter"),
    ],
)
def test_ctrl_c_during_an_import_leaves_quietly(interrupting: str, command: str) -> None:
    done = watched(interrupting, *command.split())
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments", [("run", "none.gguf", "-p", "hi"), ("show", "none.gguf"), ("tune", "none.gguf")]
)
def test_nothing_is_imported_where_ctrl_c_raises(arguments: tuple[str, ...]) -> None:
    done = watched("", *arguments)
    assert done.returncode == 1
    assert "imported where Ctrl+C raises" not in done.stderr


@pytest.mark.skipif(os.name == "nt", reason="the shell has no background jobs")
def test_a_background_job_goes_on_ignoring_ctrl_c() -> None:
    program = "import signal, sys\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n"
    program += "from localspec.cli import main\nfrom localspec.cli import interrupt\n"
    program += "import atexit\natexit.register(lambda: signal.raise_signal(signal.SIGINT))\n"
    program += "interrupt.interruptible(lambda: signal.raise_signal(signal.SIGINT), int)\n"
    program += "sys.argv[1:] = ['--version']\nmain()\n"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


def test_every_error_has_its_exit_code() -> None:
    assert errors.exit_code(errors.UsageError("x")) == 2
    assert errors.exit_code(errors.HubOffline("x")) == 1
    assert errors.exit_code(errors.Cancelled()) == 130
