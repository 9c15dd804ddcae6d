"""Free memory, the accelerators that each model may use, and the disk's speed."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Final

DEVICE_RESERVE: Final = 400_000_000  # bytes that a driver takes for itself on an accelerator
SHARE: Final = 0.6
"""The share of main memory that defaults and proposals take at most."""

CHUNK: Final = 4 << 20
MOST_CHUNKS: Final = 64
BUDGET_S: Final = 0.3


@dataclass(frozen=True, slots=True)
class Device:
    """One accelerator.

    Attributes:
        free: in bytes.
        shared: bytes that may be main memory, which it takes last; all of most integrated GPUs.
        target, draft: whether that model may use it.
        label: llama.cpp's name of it.
        worker: HOST:PORT of the machine that lends it; empty for this machine's own.
    """

    free: int
    shared: int = 0
    target: bool = True
    draft: bool = True
    label: str = ""
    worker: str = ""

    def serves(self, *, draft: bool) -> bool:
        """Whether the draft (or the target, if not `draft`) may use it."""
        return self.draft if draft else self.target


@dataclass(frozen=True, slots=True)
class FreeMemory:
    """Memory that models may take, in bytes.

    Attributes:
        ram: main memory, within the machine's and the container's limit.
        total: all of it, free or not, by which defaults are cut; None for no such limit.
        address_space: what a limit on the address space leaves, None without one. Mapped weights
            count towards it, so no weights can stay on disk.
    """

    ram: int
    devices: tuple[Device, ...] = ()
    address_space: int | None = None
    total: int | None = None

    def modest(self, n_bytes: int) -> bool:
        """Whether a default or a proposal may take so much of main memory.

        The rest is for the system and other programs.
        """
        return n_bytes <= SHARE * (self.ram if self.total is None else self.total)

    def on_devices(self, *, draft: bool) -> int:
        """Free bytes on the accelerators of one model."""
        return sum(each.free for each in self.devices if each.serves(draft=draft))

    def room(self, *, draft: bool) -> int:
        """Bytes on these accelerators that its layers may take, without the drivers' reserve."""
        return sum(
            max(0, each.free - DEVICE_RESERVE) for each in self.devices if each.serves(draft=draft)
        )

    def less(
        self, n_bytes: int, *, draft: bool, split: Mapping[str, int] | None = None
    ) -> FreeMemory:
        """What is left after one model has taken `n_bytes` on its devices.

        They are spread by the shares in `split`, or else by what is free on each, as in llama.cpp.
        """
        parts = [
            (split.get(each.label, 0) if split else each.free) if each.serves(draft=draft) else 0
            for each in self.devices
        ]
        whole = sum(parts)
        if not whole:
            return self
        devices = (
            replace(each, free=each.free - n_bytes * part // whole)
            for each, part in zip(self.devices, parts, strict=True)
        )
        return replace(self, devices=tuple(devices))

    @property
    def shared(self) -> int:
        """Free bytes of main memory on accelerators."""
        return sum(min(each.free, each.shared) for each in self.devices if each.shared)

    @property
    def own(self) -> int:
        """Free bytes on the accelerators in use that are not main memory."""
        used = (each for each in self.devices if each.target or each.draft)
        return sum(max(0, each.free - each.shared) for each in used)


def read_speed(
    path: Path, *, budget: float = BUDGET_S, clock: Callable[[], float] = perf_counter
) -> float | None:
    """Measure the bytes per second at which uncached parts of `path` are read.

    Parts from all over the file are dropped from the page cache first. Parts that stay there,
    because other programs use them or they are not written yet, are left out.

    Args:
        path: the file.
        budget: seconds after which no further part is read.
        clock: returns seconds.

    Returns:
        None if it cannot be measured: not on Linux, or the whole file stays in memory.
    """
    if sys.platform != "linux":
        return None
    n_bytes, seconds, buffer = 0, 0.0, bytearray(CHUNK)
    try:
        with path.open("rb", buffering=0) as opened:
            file = opened.fileno()
            parts = _parts(os.fstat(file).st_size)
            for start in parts:
                os.posix_fadvise(file, start, CHUNK, os.POSIX_FADV_DONTNEED)
            for start in parts:
                if seconds <= budget and not _in_memory(file, start):
                    begun = clock()
                    n_bytes += os.preadv(file, [buffer], start)
                    seconds += clock() - begun
    except OSError:
        return None
    return n_bytes / seconds if n_bytes and seconds > 0 else None


def _parts(size: int) -> list[int]:
    """Offsets of parts all over a file of `size` bytes, without its incomplete last one."""
    whole = size // CHUNK
    step = max(1, whole // MOST_CHUNKS)
    return [i * CHUNK for i in range(0, whole, step)][:MOST_CHUNKS]


def _in_memory(file: int, start: int) -> bool:
    """Whether a part is still in the page cache: reading its last byte would not block."""
    if sys.platform != "linux":  # for mypy
        return False
    try:
        return os.preadv(file, [bytearray(1)], start + CHUNK - 1, os.RWF_NOWAIT) > 0
    except BlockingIOError:
        return False
