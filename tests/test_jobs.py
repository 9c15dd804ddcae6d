"""`run`, `bench` and `tune` with their engine's process: what they import, and its death."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from click.testing import CliRunner

from localspec import machine
from localspec.cli import stored_conversations
from localspec.cli.subcommands import cli
from localspec.process import spawning
from tests.support import GOES_ON, toy

RUN = ["run", "toy", "-t", "1", "--gamma", "2", "-p", "Tell me a story.", "-n"]
QUESTIONS = ["--prompts", str(toy.QUESTIONS), "--kinds", "sums"]
BENCH = ["bench", "toy", *QUESTIONS, "-t", "1", "-c", "256", "--gamma", "2", "-n", "8"]
TUNE = ["tune", "toy", "-c", "256", "-t", "1"]

WAITS = (pytest.mark.slow, pytest.mark.timed)
"""For commands that wait 20 seconds where other programs, or tests, keep the machine busy."""

WATCHED = """
import atexit, sys
{also}
def tell():
    heavy = ("llama_cpp", "numpy", "ctypes", "jinja2")
    print([name for name in heavy if name in sys.modules], file=sys.stderr)
atexit.register(tell)
from localspec.cli import main
main()
"""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCALSPEC_CACHE", str(tmp_path / "cache"))


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("words", "also"),
    [
        ([*RUN, "4", "--json"], ""),
        pytest.param(
            [*BENCH, "--repeat", "1", "-o", "report.svg", "-o", "report.md"], "", marks=WAITS
        ),
        pytest.param([*TUNE, "--json"], "", marks=WAITS),
        ([*RUN, "4", "--json"], "import numpy"),
    ],
)
def test_a_commands_own_process_imports_neither_llama_cpp_nor_numpy(
    words: list[str], also: str, tmp_path: Path
) -> None:
    """The commands run as real processes; the last one imports numpy, as a control."""
    done = subprocess.run(
        [sys.executable, "-c", WATCHED.format(also=also), *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert done.stdout
    assert ("numpy" in done.stderr.splitlines()[-1]) == bool(also)
    assert also or done.stderr.splitlines()[-1] == "[]"


@contextmanager
def started(words: list[str], **how: Any) -> Iterator[subprocess.Popen[str]]:
    """A command, that ends with the test."""
    with subprocess.Popen(
        [sys.executable, "-m", "localspec", *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **how,
    ) as running:
        try:
            yield running
        finally:
            running.kill()


def engine_of(running: subprocess.Popen[str]) -> psutil.Process:
    """The process that runs the models, once it has loaded llama.cpp."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        for child in psutil.Process(running.pid).children():
            with suppress(psutil.Error):  # one that ends meanwhile
                if any("libllama" in region.path for region in child.memory_maps()):
                    return child
        time.sleep(0.01)
    raise AssertionError("there is no engine")


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks at mapped libraries")
@pytest.mark.parametrize("how", [signal.SIGSEGV, signal.SIGKILL])
@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([*RUN, "-1", *GOES_ON], ""),
        pytest.param([*BENCH, "--repeat", "900"], "of 6300: line-2", marks=WAITS),
        pytest.param(TUNE, "Measuring", marks=WAITS),
    ],
)
def test_where_the_engine_dies_the_command_says_so(
    words: list[str],
    said: str,
    how: signal.Signals,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LOCALSPEC_DATA", str(tmp_path))
    toy.install(tmp_path)
    printed = ""
    with started(words, pipesize=4096) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        engine = engine_of(running)
        if said:
            while said not in running.stderr.readline():
                assert running.poll() is None
        else:
            printed = running.stdout.read(3)
            assert printed
        os.kill(engine.pid, how)
        _, errors = running.communicate(timeout=30)
    assert running.returncode == 1
    assert "error: the process that runs the models" in errors
    assert how.name in errors
    assert "Traceback" not in errors
    assert not engine.is_running()
    if words[0] == "run":  # what was printed is kept
        (told,) = stored_conversations.ask(lambda store: store.told(1))
        assert (told.question, told.finish) == ("Tell me a story.", None)
        assert told.answer.startswith(printed)


@pytest.mark.slow
@pytest.mark.timed
@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_what_ends_the_whole_group_leaves_a_report_of_what_is_done() -> None:
    with started([*BENCH, "--repeat", "900"], start_new_session=True) as running:
        assert running.stderr is not None
        while "of 6300: line-2" not in running.stderr.readline():
            assert running.poll() is None
        time.sleep(1.0)
        os.killpg(running.pid, signal.SIGTERM)
        out, _ = running.communicate(timeout=30)
    assert running.returncode == 128 + signal.SIGTERM
    assert "this reports what was measured until then" in out


@pytest.mark.slow
def test_a_process_that_was_begun_ahead_is_used_or_ended() -> None:
    def engines() -> set[psutil.Process]:
        found = set()
        for child in psutil.Process().children():
            with suppress(psutil.Error):  # one that ends meanwhile
                found |= {child} if "localspec.process" in child.cmdline() else set()
        return found

    before = engines()

    def children() -> set[psutil.Process]:
        return engines() - before

    spawning.begin_ahead()
    (begun,) = children()
    spawning.give_up()
    assert not begun.is_running()
    spawning.begin_ahead()
    (begun,) = children()
    done = CliRunner().invoke(cli, [*RUN, "1"], catch_exceptions=False)
    assert done.stdout
    assert not begun.is_running()
    assert not children()


@pytest.mark.slow
def test_peak_memory_is_that_of_both_processes() -> None:
    mine = machine.peak_resident()
    done = CliRunner().invoke(cli, [*RUN, "1", "--json"], catch_exceptions=False)
    both: int = json.loads(done.stdout)["peak_memory_bytes"]
    assert both > mine + 20_000_000


def test_a_fault_in_the_engine_is_a_fault_of_the_command(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def broken(*_: object, **__: object) -> Any:
        raise ZeroDivisionError("by zero")

    monkeypatch.setenv("LOCALSPEC_ENGINE", "inline")
    monkeypatch.setattr("localspec.loading.one_answer.answer", broken)
    with pytest.raises(ZeroDivisionError, match="by zero") as raised:
        CliRunner().invoke(cli, [*RUN, "1"], catch_exceptions=False)
    assert "in broken" in raised.value.__notes__[0]
