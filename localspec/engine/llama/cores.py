"""How many CPU threads to use: one for each fast core that is there, and not busy otherwise."""

from __future__ import annotations

import ctypes
import os
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from localspec import machine

_DEVICES = Path("/sys/devices")
_CORE = 0  # RelationProcessorCore
_RECORD = struct.Struct("<IIBB")  # SYSTEM_LOGICAL_PROCESSOR_INFORMATION_EX
_LITTLE = 0.75  # of the fastest core's capacity

_LOOK = 0.25  # seconds from one look at the cores to the next: a change is noticed within a second
# A core is taken by others if they keep it busy half of the time. It is free again if they do so
# for less than a quarter twice in a row: bursts last 0.5 to 3 seconds.
_TAKEN, _FREE, _CALM = 0.5, 0.25, 2


def default_threads() -> int:
    """Fast physical cores that this process may use, at least 1.

    A second thread on a core adds nothing to a decode that waits for memory, and costs when
    the operating system parks it. Every thread waits for the slowest, so efficiency cores beside
    performance cores are left out. So are those whose time a container does not give: threads that
    share what there is would be stopped in the middle of a step.
    """
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
    physical = psutil.cpu_count(logical=False) or os.cpu_count() or 1
    fast = _fast(allowed)
    share = machine.processors()
    most = physical if share is None else int(share)
    return max(1, min(fast or physical, physical, most, len(allowed) if allowed else physical))


def busy_seconds() -> float:
    """Seconds that all cores together have worked, for whatever program, by the system's count."""
    times = psutil.cpu_times()
    names = ("user", "nice", "system", "irq", "softirq", "steal")
    return sum(float(getattr(times, name, 0.0)) for name in names)


class Crew:
    """How many of its threads a model should decode with, as long as other programs are busy.

    Threads wait for each other at every operation, so that one whose core does something else
    holds up all of them: with one thread less they hardly lose anything.

    Attributes:
        others: cores that other programs kept busy lately.
        threads: to decode with.
    """

    def __init__(
        self,
        most: int,
        *,
        cores: int | None = None,
        clock: Callable[[], float] = time.perf_counter,
        busy: Callable[[], float] = busy_seconds,
        own: Callable[[], float] = time.process_time,
    ) -> None:
        """Begin with all threads.

        Args:
            most: threads on an idle machine.
            cores: that the system counts, None to ask.
            clock: counts seconds.
            busy: seconds that all cores have worked.
            own: those of them for this process.
        """
        self.most = self.threads = most
        self.others = 0.0
        self._cores = cores or psutil.cpu_count() or most
        self._clock, self._busy, self._own = clock, busy, own
        self._calm = 0
        self._last = clock(), busy(), own()

    def look(self) -> int:
        """How many threads to decode with now; takes microseconds, and mostly less than one."""
        now = self._clock()
        if now - self._last[0] < _LOOK:
            return self.threads
        at, busy, own = self._last
        self._last = now, self._busy(), self._own()
        self.others = max(0.0, self._last[1] - busy - (self._last[2] - own)) / (now - at)
        few, many = (self._beside(part) for part in (1 - _TAKEN, _FREE))
        self._calm = self._calm + 1 if many > self.threads else 0
        if few < self.threads:
            self.threads = few
        elif self._calm >= _CALM:
            self.threads = many
        return self.threads

    def _beside(self, part: float) -> int:
        """The threads that find a core, a part of one counted as a whole one."""
        return max(1, min(self.most, int(self._cores - self.others + part)))


def _fast(allowed: set[int] | None) -> int | None:
    """Performance cores, None where all are alike."""
    if sys.platform == "darwin":
        return _fast_on_macos()
    if sys.platform == "win32":
        return _fastest(_cores_on_windows())
    return _fast_on_linux(_DEVICES, allowed)


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


def _text(path: Path) -> str:
    try:
        return path.read_text("ascii").strip()
    except OSError:
        return ""
