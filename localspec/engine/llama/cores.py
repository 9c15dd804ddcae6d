"""How many CPU threads to use: one for each fast core that this process may use."""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

import psutil

from localspec import machine

_DEVICES = Path("/sys/devices")
_LITTLE = 0.75  # of the fastest core's capacity


def default_threads() -> int:
    """Fast physical cores that this process may use, at least 1.

    A second thread on a core adds nothing to a decode that waits for memory, and costs when
    the operating system parks it. Every thread waits for the slowest, so efficiency cores beside
    performance cores are left out. So are those whose time a container does not give: threads that
    share what there is would be stopped in the middle of a step.
    """
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
    physical = psutil.cpu_count(logical=False) or os.cpu_count() or 1
    fast = _fast_on_macos() if sys.platform == "darwin" else _fast_on_linux(_DEVICES, allowed)
    share = machine.processors()
    most = physical if share is None else int(share)
    return max(1, min(fast or physical, physical, most, len(allowed) if allowed else physical))


def _fast_on_linux(devices: Path, allowed: set[int] | None) -> int | None:
    """Performance cores by Intel's list or by Arm's capacities; None where all are alike."""
    fast = _listed(devices / "cpu_core" / "cpus") or _capable(devices / "system" / "cpu")
    if allowed is not None:
        fast &= allowed
    if not fast:
        return None
    topology = "system/cpu/cpu{}/topology/thread_siblings_list"
    cores = {_text(devices / topology.format(cpu)) or str(cpu) for cpu in fast}
    return len(cores)


def _capable(folder: Path) -> set[int]:
    capacities = {
        int(path.parent.name.removeprefix("cpu")): int(text)
        for path in folder.glob("cpu[0-9]*/cpu_capacity")
        if (text := _text(path)).isdecimal()
    }
    most = max(capacities.values(), default=0)
    fast = {cpu for cpu, capacity in capacities.items() if capacity >= _LITTLE * most}
    return fast if len(fast) < len(capacities) else set()


def _listed(path: Path) -> set[int]:
    """A list such as ``0-7,16`` as numbers; empty where there is none."""
    found: set[int] = set()
    for part in _text(path).split(","):
        first, _, last = part.partition("-")
        if first.isdecimal():
            found |= set(range(int(first), int(last or first) + 1))
    return found


def _fast_on_macos() -> int | None:
    count, size = ctypes.c_int(), ctypes.c_size_t(ctypes.sizeof(ctypes.c_int))
    runtime = ctypes.CDLL(None)
    name = b"hw.perflevel0.physicalcpu"
    failed = runtime.sysctlbyname(name, ctypes.byref(count), ctypes.byref(size), None, 0)
    return None if failed else count.value


def _text(path: Path) -> str:
    try:
        return path.read_text("ascii").strip()
    except OSError:
        return ""
