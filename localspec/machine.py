"""What this process takes of the machine's memory, and what is left. All sizes in bytes."""

from __future__ import annotations

import sys
from dataclasses import dataclass
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
_FILES = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)
_UNLIMITED = 1 << 60  # version 1 writes a number where it means none
_USUAL_STACK = 8 << 20
_ARENA = 64 << 20  # what glibc reserves for the first allocation in a thread


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
    return min([machine, *(group.limit for group in _groups())])


def available() -> int:
    """What may still be allocated without swapping, by the machine's and the container's limit."""
    bounds = [int(psutil.virtual_memory().available)]
    bounds += [group.limit - group.used + group.cache for group in _groups()]
    room = address_space_left()
    if room is not None:
        bounds.append(room)
    return max(0, min(bounds))


def address_space_left(threads: int = 0) -> int | None:
    """What a limit on the address space (``ulimit -v``) leaves, None where there is no limit.

    Args:
        threads: that are still to be started. Each takes its stack, which nobody else can have.
    """
    if resource is None:
        return None
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    if soft == resource.RLIM_INFINITY:
        return None
    taken = int(_process().memory_info().vms)
    if threads > 0:
        taken += threads * _stack() + _ARENA
    return max(0, int(soft) - taken)


def _stack() -> int:
    """Address space of a new thread's stack."""
    soft, _ = resource.getrlimit(resource.RLIMIT_STACK)
    return _USUAL_STACK if soft == resource.RLIM_INFINITY else int(soft)


@dataclass(frozen=True, slots=True)
class _Group:
    """A control group with a limit: bytes allowed, used, and of these given up on demand."""

    limit: int
    used: int
    cache: int


def _groups() -> list[_Group]:
    """The control groups that bound this process: its own and those above it."""
    found = []
    for folder in _folders():
        for limit_name, used_name, cache_name in _FILES:
            limit, used = _number(folder / limit_name), _number(folder / used_name)
            if limit is not None and used is not None and limit < _UNLIMITED:
                found.append(_Group(limit, used, _file_cache(folder, cache_name)))
    return found


@cache
def _folders() -> tuple[Path, ...]:
    """The folders of this process's control groups, of version 2 or 1, up to the root."""
    try:
        lines = Path("/proc/self/cgroup").read_text("utf-8").splitlines()
    except OSError:
        return ()
    found: list[Path] = []
    for line in lines:
        number, _, rest = line.partition(":")
        controllers, _, own = rest.partition(":")
        if number == "0":
            root = _CGROUP
        elif "memory" in controllers.split(","):
            root = _CGROUP / "memory"
        else:
            continue
        # Inside a container the path may be the host's: then the mounted root is ours.
        group = root / own.lstrip("/")
        found += [group, *(above for above in group.parents if above.is_relative_to(root))]
    limits = [limit for limit, _, _ in _FILES]
    bounded = (folder for folder in found if any((folder / name).is_file() for name in limits))
    return tuple(dict.fromkeys(bounded))


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text("ascii"))
    except (OSError, ValueError):  # absent, or "max"
        return None


def _file_cache(folder: Path, name: str) -> int:
    """File pages that count as used but are given up on demand."""
    try:
        lines = (folder / "memory.stat").read_text("ascii").splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith(f"{name} "))
