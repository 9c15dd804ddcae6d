"""The most memory that a process has used, for programs that tests start."""

from __future__ import annotations

import resource
import sys
from pathlib import Path


def peak_kib() -> int:
    """KiB resident at most, of this process alone.

    On Linux ``ru_maxrss`` begins with what the parent had, which would hide what is looked for.
    """
    status = Path("/proc/self/status")
    if not status.exists():
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak // 1024 if sys.platform == "darwin" else peak
    lines = status.read_text("utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
