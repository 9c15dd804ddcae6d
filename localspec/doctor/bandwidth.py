"""How fast main memory is read: what bounds decoding on a CPU."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter

import numpy as np

MOST_BYTES = 1 << 28
LEAST_BYTES = 1 << 24


def read_bandwidth(
    threads: int,
    available: int,
    *,
    seconds: float = 0.7,
    clock: Callable[[], float] = perf_counter,
) -> float:
    """Bytes per second at which `threads` threads read an array; the best of several passes.

    Args:
        threads: how many read at once.
        available: bytes of free memory, of which a small part is used.
        seconds: in which a new pass may be begun.
        clock: counts seconds.
    """
    size = max(LEAST_BYTES, min(MOST_BYTES, available // 8))
    data = np.ones(size // 8)
    parts = np.array_split(data, threads)
    best, started = float("inf"), clock()
    with ThreadPoolExecutor(threads) as pool:
        while True:
            begun = clock()
            list(pool.map(np.max, parts))
            best = min(best, clock() - begun)
            if clock() - started > seconds:
                return data.nbytes / best if best > 0 else 0.0
