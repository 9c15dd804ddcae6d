"""How many CPU threads to use: one for each fast core that this process may use."""

from __future__ import annotations

import ctypes
import os
import struct
import sys
from pathlib import Path

import psutil

from localspec.machine import processors, text_of

_CORE = 0  # RelationProcessorCore
_RECORD = struct.Struct("<IIBB")  # SYSTEM_LOGICAL_PROCESSOR_INFORMATION_EX
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
    bounds = [physical, _fast(allowed), processors(), len(allowed) if allowed else None]
    return max(1, int(min(bound for bound in bounds if bound is not None)))


def _fast(allowed: set[int] | None) -> int | None:
    """Performance cores, None where all are alike."""
    if sys.platform == "darwin":
        return _fast_on_macos()
    if sys.platform == "win32":
        return _fastest(_cores_on_windows())
    return _fast_on_linux(Path("/sys/devices"), allowed)


def _fast_on_linux(devices: Path, allowed: set[int] | None) -> int | None:
    """Performance cores by Intel's list or by Arm's capacities; None where all are alike."""
    fast = _listed(devices / "cpu_core" / "cpus") or _capable(devices / "system" / "cpu")
    if allowed is not None:
        fast &= allowed
    if not fast:
        return None
    topology = "system/cpu/cpu{}/topology/thread_siblings_list"
    cores = {text_of(devices / topology.format(cpu)) or str(cpu) for cpu in fast}
    return len(cores)


def _capable(folder: Path) -> set[int]:
    capacities = {
        int(path.parent.name.removeprefix("cpu")): int(text)
        for path in folder.glob("cpu[0-9]*/cpu_capacity")
        if (text := text_of(path)).isdecimal()
    }
    most = max(capacities.values(), default=0)
    fast = {cpu for cpu, capacity in capacities.items() if capacity >= _LITTLE * most}
    return fast if len(fast) < len(capacities) else set()


def _listed(path: Path) -> set[int]:
    """A list such as ``0-7,16`` as numbers; empty where there is none."""
    found: set[int] = set()
    for part in text_of(path).split(","):
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


def _cores_on_windows() -> bytes:
    """What GetLogicalProcessorInformationEx says of the cores, empty where it fails."""
    records = b""
    if sys.platform == "win32":
        ask = ctypes.WinDLL("kernel32").GetLogicalProcessorInformationEx
        size = ctypes.c_ulong()
        ask(_CORE, None, ctypes.byref(size))
        buffer = ctypes.create_string_buffer(size.value)
        if ask(_CORE, buffer, ctypes.byref(size)):
            records = buffer.raw[: size.value]
    return records


def _fastest(records: bytes) -> int | None:
    """How many cores are of the highest class, None where all are.

    Each record begins with its kind and its size; a core's flags and its class follow.
    """
    classes = []
    while len(records) >= _RECORD.size:
        kind, size, _, efficiency = _RECORD.unpack_from(records)
        if size < _RECORD.size:
            break
        classes += [efficiency] if kind == _CORE else []
        records = records[size:]
    fast = classes.count(max(classes, default=0))
    return fast if fast < len(classes) else None
