"""How fast a device reads weights: products of a row of numbers and matrices of zeros, timed.

That is most of what a pass over one token does, and takes a fraction of a second without a model.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from statistics import median
from time import perf_counter
from typing import Final

from localspec.engine.llama.hardware import ggml, handles, pool
from localspec.engine.llama.rpc import notice_silence
from localspec.errors import EngineError, OutOfMemory

_WIDTH: Final = 4096  # a multiple of every type's block, and a usual width of a model
_F32: Final = 0
_MOST: Final = 1 << 28  # bytes of matrices: more than most processors keep in their caches
_SHARE: Final = 4  # of what is free there, one part of so many at most
_BUDGET_S: Final = 0.5
_TURNS: Final = 7
_FEW: Final = 2
_USE_THREADS = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int)


def time_reading(label: str, kind: int, *, free: int, threads: int) -> dict[int, float]:
    """Seconds of a pass by the bytes of weights that it reads: next to none, and many.

    A row of numbers goes there, and another one comes back. Of many bytes the median of several
    counts: what is slow because of other programs there, or a limit, is slow in passes as well. Of
    next to none the least, since nothing else may take longer than that.

    Args:
        label: llama.cpp's name of the device; empty for the CPU.
        kind: ggml's number of the weights' type.
        free: bytes that are free there.
        threads: that compute, on the CPU.

    Raises:
        OutOfMemory: there is no room for a single matrix.
        EngineError: the device cannot compute it.
    """
    handle, found = handles()[label], {}
    for rows, most, count in ((1, 0, min), (_WIDTH, min(_MOST, free // _SHARE), median)):
        with _chain(handle, kind, rows, most, 0 if label else threads) as (n_bytes, seconds):
            seconds()  # llama.cpp and the device learn what the later ones know
            found[n_bytes] = count(_repeated(seconds))
    return found


def _repeated(seconds: Callable[[], float]) -> Iterator[float]:
    """Times of the same, a few even where they are long."""
    until = perf_counter() + _BUDGET_S
    for turn in range(_TURNS):
        if turn < _FEW or perf_counter() < until:
            yield seconds()


@contextmanager
def _chain(
    handle: int, kind: int, rows: int, most: int, threads: int
) -> Iterator[tuple[int, Callable[[], float]]]:
    """Matrices on a device, at most so many bytes of them, but one at least.

    Yields:
        Their bytes, and what multiplies them one after the other and returns the seconds.
    """
    library = ggml()
    with ExitStack() as closing:
        size = 600 * library.ggml_tensor_overhead() + library.ggml_graph_overhead()
        context = library.ggml_init(pool(size))
        closing.callback(library.ggml_free, context)
        matrices = [library.ggml_new_tensor_2d(context, kind, _WIDTH, rows)]
        each = library.ggml_nbytes(matrices[0])
        more = range(1, min(256, most // each))
        matrices += [library.ggml_new_tensor_2d(context, kind, _WIDTH, rows) for _ in more]
        row = last = library.ggml_new_tensor_2d(context, _F32, _WIDTH, 1)
        for matrix in matrices:
            last = library.ggml_mul_mat(context, matrix, last)
        graph = library.ggml_new_graph(context)
        library.ggml_build_forward_expand(graph, last)
        backend = library.dev_init(handle, None)
        closing.callback(library.free, backend)
        if threads:
            _use_threads(backend, threads)
        buffer = library.alloc_ctx_tensors(context, backend)
        if not buffer:
            raise OutOfMemory("a device has no room to be timed in", "Close what uses it.")
        closing.callback(library.buffer_free, buffer)
        notice_silence()
        library.buffer_clear(buffer, 0)
        given = (ctypes.c_float * _WIDTH)()
        taken = (ctypes.c_float * rows)()

        def seconds() -> float:
            begun = perf_counter()
            library.tensor_set(row, given, 0, ctypes.sizeof(given))
            if library.graph_compute(backend, graph):
                raise EngineError("a device failed to be timed", "Leave it out with --device.")
            library.tensor_get(last, taken, 0, ctypes.sizeof(taken))
            return perf_counter() - begun

        yield each * len(matrices), seconds


def _use_threads(backend: int, threads: int) -> None:
    """Have the CPU compute with so many."""
    library = ggml()
    name = b"ggml_backend_set_n_threads"
    address = library.reg_get_proc_address(library.reg_by_name(b"CPU"), name)
    if address:
        _USE_THREADS(address)(backend, threads)
