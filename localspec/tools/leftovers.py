"""Ends processes that servers left running."""

from __future__ import annotations

import os
from contextlib import suppress

import psutil

MARK = "LOCALSPEC_TOOLS"
"""The environment variable of a server's processes, which names their chat and run."""

_LOOKS = 5


def end_leftovers(mark: str) -> None:
    """Kill every process of the user whose `MARK` begins with `mark`, but this one.

    A server may start children in sessions of their own, which outlive their parent; they inherit
    its environment. Further passes find what they start meanwhile.
    """
    for _ in range(_LOOKS):
        found = [each for each in psutil.process_iter() if _has(each, mark)]
        if not found:
            return
        for process in found:
            with suppress(psutil.Error, OSError):
                process.kill()


def _has(process: psutil.Process, mark: str) -> bool:
    with suppress(psutil.Error, OSError):
        return process.pid != os.getpid() and process.environ().get(MARK, "").startswith(mark)
    return False
