"""A run of the whole suite: untimed tests in several processes, then timed tests alone.

A run that names files or tests, a number of processes or a debugger is left as it is. A whole run
takes a share of the slow tests that have many cases, unless an option says otherwise (`draws.py`).
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

_LEFT = ("numprocesses", "tx", "usepdb", "trace", "collectonly", "setuponly", "setupplan",
         "version", "help", "markers", "showfixtures", "show_fixtures_per_test")  # fmt: skip
"""Options with which a run is left as it is."""


def cores() -> int:
    """How many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def with_timed_tests(folder: Path) -> list[str]:
    """The files with timed tests: the others need not be imported for these."""
    found = sorted(folder.glob("test_*.py"))
    return [str(path) for path in found if "mark.timed" in path.read_text("utf-8")]


def surroundings(root: Path) -> dict[str, str]:
    """The environment of both parts, which keeps compiled modules even if Python is told not to.

    Without them each worker would rewrite the assertions of all files, and each of some hundred
    child processes would compile the package: 40 seconds of a whole run. They are in pytest's
    cache, not next to the sources, where a user who tells Python to write none wants none.
    """
    found = dict(os.environ)
    if found.pop("PYTHONDONTWRITEBYTECODE", None) and "PYTHONPYCACHEPREFIX" not in found:
        found["PYTHONPYCACHEPREFIX"] = str(root / ".pytest_cache" / "bytecode")
    return found


def import_in_turn(config: pytest.Config) -> None:
    """Have each worker import another share of the test files first.

    A worker compiles what no other has compiled yet. In a fresh clone all would compile the same
    file at the same time, and each of them every file.
    """
    worker: dict[str, Any] = getattr(config, "workerinput", {})
    if not worker or config.args_source is pytest.Config.ArgsSource.ARGS:
        return
    files = sorted((config.rootpath / "tests").glob("test_*.py"))
    mine = len(files) * int(worker["workerid"].removeprefix("gw")) // worker["workercount"]
    for path in (*files[mine:], *files[:mine]):
        with suppress(Exception, pytest.skip.Exception):  # pytest imports it again, and tells
            import_module(f"tests.{path.stem}")


def is_whole(config: pytest.Config) -> bool:
    """Whether this run is one of the whole suite, without an option that rules out two parts."""
    named = config.args_source is pytest.Config.ArgsSource.ARGS
    shared = config.pluginmanager.hasplugin("xdist") and not hasattr(config, "workerinput")
    return shared and not named and not any(getattr(config.option, it, None) for it in _LEFT)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Say which slow cases a whole run takes."""
    group = parser.getgroup("localspec")
    group.addoption("--whole", action="store_true", help="run every slow case, and not a share")
    group.addoption("--draw", type=int, metavar="SEED", help="draw the share that SEED stands for")


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> int | None:
    """Run both parts, one after the other; the exit code is that of the first that failed."""
    if not is_whole(config):
        return None
    begun, chosen = time.monotonic(), config.option.markexpr
    also = f"({chosen}) and " if chosen else ""
    parts: dict[str, list[str]] = {
        f"{also}not timed": ["-n", str(cores() + 1), "--dist", "worksteal"],  # some tests wait
        f"{also}timed": ["-p", "no:xdist", *with_timed_tests(config.rootpath / "tests")],
    }
    draw = []
    if not config.option.whole and config.option.draw is None:
        draw = ["--draw", str(random.randrange(10**6))]
        print(f"Slow cases are a share of all, drawn anew: {' '.join(draw)}", flush=True)
    codes = []
    for marks, how in parts.items():
        words = [*config.invocation_params.args, "-m", marks, *draw, *how]
        print(f"\n{marks}:", flush=True)
        command = [sys.executable, "-m", "pytest", *map(str, words)]
        codes.append(subprocess.call(command, env=surroundings(config.rootpath)))
        if codes[-1] > pytest.ExitCode.TESTS_FAILED and codes[-1] != _EMPTY:
            break
        if codes[-1] and config.option.maxfail:
            break
    found = [code for code in codes if code != _EMPTY] or [_EMPTY]
    code = next(filter(None, found), 0)
    minutes, seconds = divmod(round(time.monotonic() - begun), 60)
    said = "passed" if code == 0 else "FAILED"
    print(f"\nBoth parts: {said} in {minutes}:{seconds:02}", flush=True)
    return code


_EMPTY = int(pytest.ExitCode.NO_TESTS_COLLECTED)
