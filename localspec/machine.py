"""What this process takes of the machine's memory, and what is left. All sizes in bytes."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path
from typing import Any

import psutil

resource: Any
try:
    import resource
except ImportError:  # Windows has neither limits nor peaks by this name
    resource = None

_CGROUP = Path("/sys/fs/cgroup")


@cache
def _process() -> psutil.Process:
    return psutil.Process()


def resident() -> int:
    """Resident size of this process: of mapped weights only the pages that were touched."""
    return int(_process().memory_info().rss)


def peak_resident() -> int:
    """Largest resident size so far."""
    if resource is None:
        return int(getattr(_process().memory_info(), "peak_wset", resident()))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # The kernel counts in batches: its peak may lag behind what is resident now.
    return max(resident(), int(peak if sys.platform == "darwin" else peak * 1024))


def total() -> int:
    """The machine's memory, or the container's where that is less."""
    machine = int(psutil.virtual_memory().total)
    limit = _cgroup_number("memory.max")
    return machine if limit is None else min(machine, limit)


def available() -> int:
    """What may still be allocated without swapping, by the machine's and the container's limit."""
    bounds = [int(psutil.virtual_memory().available)]
    limit, used = _cgroup_number("memory.max"), _cgroup_number("memory.current")
    if limit is not None and used is not None:
        bounds.append(limit - used + _cgroup_cache())
    room = address_space_left()
    if room is not None:
        bounds.append(room)
    return max(0, min(bounds))


def address_space_left() -> int | None:
    """What a limit on the address space (``ulimit -v``) leaves, None where there is no limit."""
    if resource is None:
        return None
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    if soft == resource.RLIM_INFINITY:
        return None
    return max(0, int(soft) - int(_process().memory_info().vms))


@cache
def _cgroup() -> Path | None:
    """This process's cgroup (version 2), if there is one with a memory controller."""
    try:
        lines = Path("/proc/self/cgroup").read_text("utf-8").splitlines()
    except OSError:
        return None
    own = next((line[3:].lstrip("/") for line in lines if line.startswith("0::")), None)
    if own is None:
        return None
    # Inside a container the path may be the host's: then the mounted root is ours.
    candidates = (_CGROUP / own, _CGROUP)
    return next((folder for folder in candidates if (folder / "memory.current").is_file()), None)


def _cgroup_number(name: str) -> int | None:
    folder = _cgroup()
    try:
        return int((folder / name).read_text("ascii")) if folder is not None else None
    except (OSError, ValueError):  # absent, or "max"
        return None


def _cgroup_cache() -> int:
    """File pages that count as used but are given up on demand."""
    folder = _cgroup()
    try:
        lines = (folder / "memory.stat").read_text("ascii").splitlines() if folder else []
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith("inactive_file "))
