"""Starts the engine's process; imports so little that a command may do it first of all."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from contextlib import contextmanager

TYPE_CHECKING = False  # the real one would cost an import before the process is there
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import IO, TypeAlias

    Spawned: TypeAlias = tuple[subprocess.Popen[bytes], IO[bytes]]

ENGINE = ("-m", "localspec.process")
_ahead: list[Spawned] = []


def engine(command: tuple[str, ...] = ENGINE) -> Spawned:
    """A process with pipes as standard input and output, and the file that its log goes to.

    One that was begun ahead, if there is one.

    Args:
        command: what Python is to run.
    """
    if command == ENGINE and _ahead:
        return _ahead.pop()
    log = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the process
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
    """Start the process that a command will need: it begins while that command is imported."""
    _ahead.append(engine())


def give_up() -> None:
    """End what was begun ahead and not used: the command failed, or only printed its help."""
    while _ahead:
        process, log = _ahead.pop()
        process.kill()
        process.communicate()
        log.close()


def _as_here() -> list[str]:
    """Python's option to look for modules where this process does: not in the current folder."""
    return [] if sys.path[0] in ("", os.getcwd()) else ["-P"]  # noqa: PTH109 - pathlib takes long


@contextmanager
def _sigint_held() -> Iterator[None]:
    """Let a process begin that Ctrl+C does not reach: it inherits what is blocked here."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
