"""Starts the engine's process; imports so little that a command can do it first."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import contextmanager, suppress

from localspec.engine.scratch import nameless_file

TYPE_CHECKING = False  # the real one would cost an import before the process is there
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import IO, TypeAlias

    Spawned: TypeAlias = tuple[subprocess.Popen[bytes], IO[bytes]]

ENGINE = ("-m", "localspec.process")
_ahead: list[Spawned] = []


def engine(command: tuple[str, ...] = ENGINE) -> Spawned:
    """Start a process with pipes as standard input and output, and a file for its log.

    A process that `begin_ahead` started is taken if there is one. `command` are Python's arguments.
    """
    if command == ENGINE and _ahead:
        return _ahead.pop()
    log = nameless_file()  # as long as the process
    with _sigint_held():
        process = subprocess.Popen(  # noqa: S603 - this very Python
            [sys.executable, *_as_here(), *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),
        )
    return process, log


def begin_ahead() -> None:
    """Start the process that a command will need, while that command is still being imported.

    If that fails, nothing is reported here: the command fails in the same way later, and tells it.
    """
    with suppress(OSError):
        _ahead.append(engine())


def give_up() -> None:
    """End a process that was started ahead but not used, as the command failed or printed help."""
    while _ahead:
        process, log = _ahead.pop()
        process.kill()
        process.communicate()
        log.close()


def _as_here() -> list[str]:
    """Python's option that keeps the current folder out of the search for modules, as here."""
    try:
        here = os.getcwd()  # noqa: PTH109 - pathlib takes long
    except OSError:  # the folder is gone
        return ["-P"]
    return [] if sys.path[0] in ("", here) else ["-P"]


@contextmanager
def _sigint_held() -> Iterator[None]:
    """Block Ctrl+C while a process starts: it inherits the blocked signal, and never gets it."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
