"""How fast a file comes from its disk: what bounds a model that is larger than the memory."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Final

CHUNK: Final = 4 << 20
MOST_CHUNKS: Final = 64
BUDGET_S: Final = 0.3


def read_speed(
    path: Path, *, budget: float = BUDGET_S, clock: Callable[[], float] = perf_counter
) -> float | None:
    """Bytes per second at which parts of `path` are read that are not in memory.

    Parts all over the file are dropped from the page cache first. Those that stay there (other
    programs use them, or they are still to be written) are left out.

    Args:
        path: the file.
        budget: seconds in which another part may be begun.
        clock: counts seconds.

    Returns:
        None where that can't be measured: not on Linux, or all of the file stays in memory.
    """
    if sys.platform != "linux":
        return None
    try:
        with path.open("rb", buffering=0) as file:
            return _read(file.fileno(), budget, clock)
    except OSError:
        return None


def _read(file: int, budget: float, clock: Callable[[], float]) -> float | None:
    if sys.platform != "linux":  # for mypy
        return None
    parts = _parts(os.fstat(file).st_size)
    for start in parts:
        os.posix_fadvise(file, start, CHUNK, os.POSIX_FADV_DONTNEED)
    buffer = bytearray(CHUNK)
    n_bytes, seconds = 0, 0.0
    for start in parts:
        if _in_memory(file, start):
            continue
        begun = clock()
        n_bytes += os.preadv(file, [buffer], start)
        seconds += clock() - begun
        if seconds > budget:
            break
    return n_bytes / seconds if n_bytes and seconds > 0 else None


def _parts(size: int) -> list[int]:
    """Where parts of a file of `size` bytes begin, far from each other; its end is left out."""
    whole = size // CHUNK
    step = max(1, whole // MOST_CHUNKS)
    return [i * CHUNK for i in range(0, whole, step)][:MOST_CHUNKS]


def _in_memory(file: int, start: int) -> bool:
    """Whether a part is still in the page cache, by its last byte: reading it would not wait."""
    if sys.platform != "linux":  # for mypy
        return False
    try:
        return os.preadv(file, [bytearray(1)], start + CHUNK - 1, os.RWF_NOWAIT) > 0
    except BlockingIOError:
        return False
