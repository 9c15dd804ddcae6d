"""A run of the whole suite: on every core what is not timed, then alone what is timed.

A run that names files or tests, a number of processes or a debugger is left as it is.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

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
    """The files that have some: the others need not be imported for them."""
    found = sorted(folder.glob("test_*.py"))
    return [str(path) for path in found if "mark.timed" in path.read_text("utf-8")]


def is_whole(config: pytest.Config) -> bool:
    """Whether this run is one of the whole suite that has nothing said against two parts."""
    named = config.args_source is pytest.Config.ArgsSource.ARGS
    shared = config.pluginmanager.hasplugin("xdist") and not hasattr(config, "workerinput")
    return shared and not named and not any(getattr(config.option, it, None) for it in _LEFT)


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> int | None:
    """Run both parts, one after the other; the exit code is that of the first that failed."""
    if not is_whole(config):
        return None
    begun, chosen = time.monotonic(), config.option.markexpr
    also = f"({chosen}) and " if chosen else ""
    parts: dict[str, list[str]] = {
        f"{also}not timed": ["-n", str(cores()), "--dist", "worksteal"],
        f"{also}timed": ["-p", "no:xdist", *with_timed_tests(config.rootpath / "tests")],
    }
    codes = []
    for marks, how in parts.items():
        words = [*config.invocation_params.args, "-m", marks, *how]
        print(f"\n{marks}:", flush=True)
        codes.append(subprocess.call([sys.executable, "-m", "pytest", *map(str, words)]))
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
