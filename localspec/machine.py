"""What this process takes of the machine's memory, and what is left. All sizes in bytes."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import psutil

# ruff: noqa: PLC0415 - psutil takes long to import, and a screen can be drawn without it

resource: Any
try:
    import resource
except ImportError:  # Windows has neither limits nor peaks by this name
    resource = None

_CGROUP = Path("/sys/fs/cgroup")
_FILES = (
    ("memory.max", "memory.current", ""),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_"),
)
_UNREADABLE = (OSError, RuntimeError, AttributeError, ValueError, KeyError)
_UNLIMITED = 1 << 60  # version 1 writes a number where it means none
_USUAL_STACK = 8 << 20
_ARENA = 64 << 20  # what glibc reserves for the first allocation in a thread


@cache
def _process() -> psutil.Process:
    import psutil

    return psutil.Process()


def resident() -> int:
    """Resident size of this process: of mapped weights only the pages that were touched."""
    return int(_process().memory_info().rss)


def resident_of(process: int) -> int:
    """Resident size of another process; 0 where it has ended."""
    import psutil

    try:
        return int(psutil.Process(process).memory_info().rss)
    except psutil.Error:
        return 0


def peak_resident() -> int:
    """Largest resident size so far."""
    if resource is None:
        return int(getattr(_process().memory_info(), "peak_wset", resident()))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # The kernel counts in batches: its peak may lag behind what is resident now.
    return max(resident(), int(peak if sys.platform == "darwin" else peak * 1024))


def total() -> int:
    """The machine's memory, or the container's where that is less."""
    return min([_memory()[0], *(group.limit for group in _groups())])


def available() -> int:
    """What may still be allocated without swapping, by the machine's and the container's limit."""
    bounds = [_memory()[1]]
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


def lockable() -> int | None:
    """Bytes that may be kept out of swap (``ulimit -l``), None where there is no limit."""
    if resource is None or not hasattr(resource, "RLIMIT_MEMLOCK") or os.geteuid() == 0:
        return None
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return None if soft == resource.RLIM_INFINITY else int(soft)


def _stack() -> int:
    """Address space of a new thread's stack."""
    soft, _ = resource.getrlimit(resource.RLIMIT_STACK)
    return _USUAL_STACK if soft == resource.RLIM_INFINITY else int(soft)


def swapped_out() -> int:
    """Bytes in swap, 0 where there is none or the system does not say."""
    import psutil

    try:
        with _unsaid():
            return int(psutil.swap_memory().used)
    except _UNREADABLE:
        return 0


def _memory() -> tuple[int, int]:
    """The machine's memory, all and what is available, also where /proc is hidden."""
    import psutil

    try:
        with _unsaid():
            found = psutil.virtual_memory()
        return int(found.total), int(found.available)
    except _UNREADABLE:
        page = os.sysconf("SC_PAGE_SIZE")
        return page * os.sysconf("SC_PHYS_PAGES"), page * os.sysconf("SC_AVPHYS_PAGES")


@contextmanager
def _unsaid() -> Iterator[None]:
    """Without psutil's warnings of what it could not read: nobody can do anything about them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        yield


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
        for limit_name, used_name, whole in _FILES:
            limit, used = _number(folder / limit_name), _number(folder / used_name)
            if limit is not None and used is not None and limit < _UNLIMITED:
                found.append(_Group(limit, used, _file_cache(folder, whole)))
    return found


def processors() -> float | None:
    """How many processors' time a container leaves to this process, None where it is not limited.

    A container often shows all processors of its machine, and stops who uses more than its share.
    """
    shares = []
    for folder in _under(_own_groups(), "cpu", _CGROUP):
        allowed, period = _quota(folder)
        if allowed and period and allowed > 0:
            shares.append(allowed / period)
    return min(shares, default=None)


def _quota(folder: Path) -> tuple[int | None, int | None]:
    """Microseconds of processor time in so many, by version 2 or 1."""
    try:
        allowed, period = (folder / "cpu.max").read_text("ascii").split()
        return int(allowed), int(period)
    except (OSError, ValueError):  # absent, or "max"
        return _number(folder / "cpu.cfs_quota_us"), _number(folder / "cpu.cfs_period_us")


@cache
def _folders() -> tuple[Path, ...]:
    """The folders of this process's control groups that limit memory, up to the root."""
    limits = [limit for limit, _, _ in _FILES]
    found = _under(_own_groups(), "memory", _CGROUP)
    return tuple(folder for folder in found if any((folder / name).is_file() for name in limits))


@cache
def _own_groups() -> tuple[str, ...]:
    """The control groups of this process, as the system lists them."""
    try:
        return tuple(Path("/proc/self/cgroup").read_text("utf-8").splitlines())
    except OSError:
        return ()


def _under(groups: Iterable[str], controller: str, mounted: Path) -> tuple[Path, ...]:
    """The folders of these control groups, of version 2 or of a controller of version 1."""
    found: list[Path] = []
    for line in groups:
        number, _, rest = line.partition(":")
        controllers, _, own = rest.partition(":")
        if number == "0":
            root = mounted
        elif controller in controllers.split(","):
            root = mounted / controller
        else:
            continue
        # Inside a container the path may be the host's: then the mounted root is ours.
        group = root / own.lstrip("/")
        found += [group, *(above for above in group.parents if above.is_relative_to(root))]
    return tuple(dict.fromkeys(found))


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text("ascii"))
    except (OSError, ValueError):  # absent, or "max"
        return None


def _file_cache(folder: Path, whole: str) -> int:
    """File pages that count as used but are given up on demand, mapped weights among them.

    `whole` is what the names begin with that count the groups below as well.
    """
    names = (f"{whole}inactive_file", f"{whole}active_file")
    try:
        lines = (folder / "memory.stat").read_text("ascii").splitlines()
    except OSError:
        return 0
    pairs = (line.split() for line in lines)
    return sum(int(pair[1]) for pair in pairs if len(pair) == 2 and pair[0] in names)
