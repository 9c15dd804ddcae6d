"""The machine: memory of this process and of the host, processors, power. Sizes in bytes."""

from __future__ import annotations

import mmap
import os
import platform
import sys
import warnings
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# ruff: noqa: PLC0415 - psutil and numpy take long to import, and a screen can be drawn without them

resource: Any
try:
    import resource
except ImportError:  # Windows has neither limits nor peaks by this name
    resource = None

_CGROUP = Path("/sys/fs/cgroup")
_OWN_GROUPS = Path("/proc/self/cgroup")
_STATUS = Path("/proc/self/status")
_SUPPLIES = Path("/sys/class/power_supply")
_BOARD = Path("/sys/firmware/devicetree/base/model")
_FILES = (
    ("memory.max", "memory.current", ""),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_"),
)
_UNREADABLE = (OSError, RuntimeError, AttributeError, ValueError, KeyError)
_UNLIMITED = 1 << 60  # version 1 of control groups writes a number where there is no limit
_USUAL_STACK = 8 << 20
_ARENA = 64 << 20  # what glibc reserves for the first allocation in a thread
_PRIVATE = {"flags": mmap.MAP_PRIVATE} if sys.platform != "win32" else {}


def text_of(path: Path) -> str:
    """The text of a system file, empty if there is none."""
    try:
        return path.read_text("utf-8", "replace").strip()
    except OSError:
        return ""


def _field(path: Path, name: str) -> str:
    """The first value of `name` in one of Linux's files, empty if it has none."""
    lines = text_of(path).splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(name)), "")


def cpuinfo(field: str) -> str:
    """A field of the first processor in Linux's /proc/cpuinfo, empty if it has none."""
    return _field(Path("/proc/cpuinfo"), field)


def processor_name() -> str:
    """The processor's name, of Arm's the machine's or numbers, or at least its architecture."""
    return cpuinfo("model name") or _arm_name() or platform.processor() or platform.machine()


def _arm_name() -> str:
    """What Linux calls an Arm machine, or else its processor's maker and kind by their numbers."""
    numbers = f"{cpuinfo('CPU implementer')} {cpuinfo('CPU part')}".strip()
    return text_of(_BOARD).strip("\0") or (f"Arm {numbers}" if numbers else "")


def _ask_psutil(name: str, **how: Any) -> Any:
    """Call the function `name` of psutil; None if the system does not tell.

    Its warnings of what it could not read are dropped: the user can do nothing about them.
    """
    import psutil

    with warnings.catch_warnings(), suppress(*_UNREADABLE):
        warnings.simplefilter("ignore", RuntimeWarning)
        return getattr(psutil, name)(**how)
    return None


def resident(process: int | None = None) -> int:
    """Resident size of this or another process, 0 if it has ended.

    Of mapped weights, only the pages that were touched count.
    """
    found = _memory_of(process)
    return 0 if found is None else int(found.rss)


def worked(process: int) -> float:
    """Seconds for which another process has computed so far, 0 if it has ended."""
    import psutil

    with suppress(psutil.Error):
        its = psutil.Process(process).cpu_times()
        return float(its.user + its.system)
    return 0.0


def _memory_of(process: int | None = None) -> Any:
    """Psutil's memory figures of this or another process, None if it has ended."""
    import psutil

    with suppress(psutil.Error):
        return psutil.Process(process).memory_info()
    return None


def peak_resident() -> int:
    """Largest resident size of this process so far."""
    if resource is None:
        return int(getattr(_memory_of(), "peak_wset", resident()))
    # Linux's ``ru_maxrss`` starts at the size that the parent had when it made this process.
    own = _field(_STATUS, "VmHWM").removesuffix("kB")
    peak = int(own or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    # The kernel counts in batches: its peak may lag behind what is resident now.
    return max(resident(), peak if sys.platform == "darwin" else peak * 1024)


def physical() -> int:
    """The machine's memory, whatever a container may take of it."""
    return _memory()[0]


def total() -> int:
    """The machine's memory, or the container's limit if that is less."""
    return min([physical(), *(limit for limit, _ in _groups())])


def available() -> int:
    """What can be allocated without swapping, within the container's and the ulimit's limit."""
    bounds = [_memory()[1], *(left for _, left in _groups())]
    room = address_space_left()
    if room is not None:
        bounds.append(room)
    return max(0, min(bounds))


def block(size: int) -> NDArray[np.uint8]:
    """Zeros of shape `(size,)`, whose memory the system gets back as soon as they are dropped.

    Of memory from the allocator that holds for large blocks alone: once glibc has seen one of up to
    32 MB freed, it keeps smaller ones for itself.

    Raises:
        MemoryError: there is no room.
    """
    import numpy as np

    try:
        mapped = mmap.mmap(-1, max(1, size), **_PRIVATE)
    except OSError as error:
        raise MemoryError from error
    return np.frombuffer(mapped, np.uint8, size)


def address_space_left(threads: int = 0) -> int | None:
    """What a limit on the address space (``ulimit -v``) leaves, None without a limit.

    `threads` will still be started; each reserves its stack.
    """
    limit = _limit("RLIMIT_AS")
    if limit is None:
        return None
    taken = int(_memory_of().vms)
    if threads > 0:
        taken += threads * (_limit("RLIMIT_STACK") or _USUAL_STACK) + _ARENA
    return max(0, limit - taken)


def lockable() -> int | None:
    """Bytes that may be kept out of swap (``ulimit -l``), None without a limit."""
    limit = _limit("RLIMIT_MEMLOCK")
    return None if limit is None or os.geteuid() == 0 else limit


def _limit(name: str) -> int | None:
    """A limit of this process, None if it has none."""
    which = getattr(resource, name, None)
    soft = None if which is None else resource.getrlimit(which)[0]
    return None if soft is None or soft == resource.RLIM_INFINITY else int(soft)


def swapped_out() -> int:
    """Bytes in swap, 0 without swap or if the system does not tell."""
    found = _ask_psutil("swap_memory")
    return 0 if found is None else int(found.used)


def on_battery() -> bool | None:
    """Whether the machine runs on its battery, None if it has none."""
    if sys.platform != "linux":
        plugged = getattr(_ask_psutil("sensors_battery"), "power_plugged", None)
        return None if plugged is None else not plugged
    return _discharging(_SUPPLIES)


def _discharging(supplies: Path) -> bool | None:
    """Whether the machine runs on a battery among its power supplies, None if it has none.

    Batteries of mice and gamepads are listed, too: their scope is the device. (psutil takes one of
    them for the machine's.)
    """
    found = [each for each in supplies.glob("*") if text_of(each / "scope") != "Device"]

    def all_of(kind: str, field: str) -> list[str]:
        return [text_of(each / field) for each in found if text_of(each / "type") == kind]

    states, mains = all_of("Battery", "status"), all_of("Mains", "online")
    told = [state for state in states if state not in ("", "Unknown")]
    if states and "1" in mains:
        return False
    if told:  # a USB charger is not listed as mains
        return "Discharging" in told
    return True if states and mains else None


def clock() -> tuple[float | None, float | None]:
    """Current and highest MHz of the fastest core, None if the system does not tell.

    Other cores may be slow because they are idle, or because they are built to save power.
    """
    cores = [
        (core.max, core.current) for core in _ask_psutil("cpu_freq", percpu=True) or () if core.max
    ]
    return max(cores)[::-1] if cores else (None, None)


def _memory() -> tuple[int, int]:
    """The machine's memory, total and available, even if /proc is hidden."""
    found = _ask_psutil("virtual_memory")
    if found is not None:
        return int(found.total), int(found.available)
    page = os.sysconf("SC_PAGE_SIZE")
    return page * os.sysconf("SC_PHYS_PAGES"), page * os.sysconf("SC_AVPHYS_PAGES")


def processors() -> float | None:
    """How many processors' time a container gives this process, None without a limit.

    A container often shows all processors of its machine, but stops a process that uses more than
    its share.
    """
    shares = []
    for folder in _under(text_of(_OWN_GROUPS).splitlines(), "cpu", _CGROUP):
        first = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
        quota = text_of(folder / "cpu.max").split() or [text_of(folder / name) for name in first]
        # Microseconds of time per period in microseconds; "max" or -1 means no limit.
        numbers = [int(text) for text in quota if text.isdecimal()]
        if len(numbers) == 2 and all(numbers):
            shares.append(numbers[0] / numbers[1])
    return min(shares, default=None)


def _groups() -> list[tuple[int, int]]:
    """The limit of each control group that bounds this process, and what is left of it."""
    found = []
    for folder in _folders():
        for limit_name, used_name, whole in _FILES:
            limit, used = text_of(folder / limit_name), text_of(folder / used_name)
            if limit.isdecimal() and used.isdecimal() and int(limit) < _UNLIMITED:
                found.append((int(limit), int(limit) - int(used) + _file_cache(folder, whole)))
    return found


@cache
def _folders() -> tuple[Path, ...]:
    """The folders of this process's control groups that limit memory, up to the root."""
    found = _under(text_of(_OWN_GROUPS).splitlines(), "memory", _CGROUP)
    return tuple(each for each in found if any((each / name).is_file() for name, *_ in _FILES))


def _under(groups: Iterable[str], controller: str, mounted: Path) -> tuple[Path, ...]:
    """The folders of these control groups, for version 2 or for a controller of version 1."""
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


def _file_cache(folder: Path, whole: str) -> int:
    """File pages that count as used but are freed on demand, such as mapped weights.

    `whole` is the prefix of the fields that include the groups below.
    """
    names = (f"{whole}inactive_file", f"{whole}active_file")
    pairs = map(str.split, text_of(folder / "memory.stat").splitlines())
    return sum(int(pair[1]) for pair in pairs if len(pair) == 2 and pair[0] in names)
