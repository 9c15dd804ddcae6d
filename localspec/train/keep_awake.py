"""Keeps the machine awake during training, if the system has a program for that."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress


@contextmanager
def kept_awake() -> Iterator[bool]:
    """Keep the machine from going to sleep; yield whether the system agreed.

    The helper program ends together with this process, however that ends.
    """
    inhibitor = _inhibitor(_command(os.getpid()))
    try:
        yield inhibitor is not None and inhibitor.poll() is None
    finally:
        if inhibitor is not None:
            inhibitor.terminate()
            inhibitor.wait()


def _inhibitor(command: Sequence[str]) -> subprocess.Popen[bytes] | None:
    """Start the helper program; None if the system has none."""
    if not command or shutil.which(command[0]) is None:
        return None
    quiet = subprocess.DEVNULL
    with suppress(OSError):
        inhibitor = subprocess.Popen(  # noqa: S603 - one of the commands below
            command, stdin=quiet, stdout=quiet, stderr=quiet, start_new_session=True
        )
        with suppress(subprocess.TimeoutExpired):
            inhibitor.wait(0.2)  # if the system refuses, it ends at once
        return inhibitor
    return None


def _command(process: int) -> Sequence[str]:
    """The command that keeps this system awake until a process ends; empty if unknown."""
    why = ("--who=localspec", "--why=training a head", "--what=idle:sleep")
    commands = {
        "darwin": ("caffeinate", "-i", "-w", str(process)),
        "linux": ("systemd-inhibit", *why, "tail", f"--pid={process}", "-f", os.devnull),
    }
    return commands.get(sys.platform, ())
