"""Whether memory has a limit: both ends of the command line ask, the first before all imports."""

from __future__ import annotations

import sys


def limited() -> bool:
    """Whether this process's memory has a limit (``ulimit -v``); Windows has none."""
    try:
        import resource  # noqa: PLC0415 - after Ctrl+C is handled
    except (ImportError, MemoryError, OSError):  # elsewhere only a limit keeps it out
        return sys.platform != "win32"
    return resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY
