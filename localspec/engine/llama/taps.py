"""`Taps`: decodes of several texts at once that output the inputs of some target layers.

A head is trained on these. The context of a chat holds one text and outputs few rows of logits;
here every row of every text is needed.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from localspec.engine.llama.heads.head import layer_inputs, view
from localspec.engine.llama.heads.target_states import Rows
from localspec.engine.llama.library import lib
from localspec.engine.llama.log import start_backend
from localspec.engine.llama.model import Model
from localspec.engine.llama.platform.hardware import ggml
from localspec.errors import EngineError, OutOfMemory


@dataclass(frozen=True, slots=True)
class TextRow:
    """One token of a decode.

    Attributes:
        text: index of its text.
        position: index in its text.
        wanted: whether to output its logits.
    """

    token: int
    text: int
    position: int
    wanted: bool = True


class Taps:
    """A cache of several texts that outputs every row.

    Attributes:
        layers: layers whose inputs are output; empty for a context that only writes texts.
        n_batch: rows per decode.
    """

    def __init__(
        self,
        model: Model,
        layers: Sequence[int],
        *,
        texts: int,
        n_ctx: int,
        n_batch: int,
        outputs: int,
        threads: int,
    ) -> None:
        """Allocate the cache.

        Args:
            model: a target; with `layers`, its architecture must output them.
            layers: ids below the number of layers.
            texts: texts held at a time.
            n_ctx: tokens of all texts together.
            n_batch: rows per decode.
            outputs: the most rows of logits per decode.
            threads: CPU threads.

        Raises:
            OutOfMemory: the cache or the compute buffers do not fit.
            EngineError: llama.cpp cannot make the context.
            UnsupportedModel: this build of llama.cpp does not output layers.
        """
        self.model, self.layers = model, tuple(layers)
        self.n_batch = n_batch
        set_layer, self._get_layer = layer_inputs()
        params = lib.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch = n_ctx, n_batch, n_batch
        params.n_seq_max, params.kv_unified = texts, True
        params.n_outputs_max = outputs
        params.n_threads = params.n_threads_batch = threads
        params.no_perf = True
        section = start_backend().section()
        self._handle = lib.llama_init_from_model(model.handle, params)
        if not self._handle:
            reason = section.reason()
            if section.lacked_memory():
                raise OutOfMemory(
                    f"no memory to read {n_batch} tokens of {model.name} at once ({reason})",
                    "Close other programs, or train for a smaller target.",
                )
            raise EngineError(f"llama.cpp could not make a context for {model.name}: {reason}")
        self.bytes = section.allocated("KV", "RS", "compute", "output")
        self._memory = lib.llama_get_memory(self._handle)
        for layer in self.layers:
            set_layer(self._handle, layer, True)
        self._rows = _TextBatch(n_batch)

    def decode(self, rows: Sequence[TextRow]) -> Rows:
        """Append rows to their texts; return the logits of the wanted ones, in order.

        Args:
            rows: at most `n_batch`; those of a text in order, starting at the end of its cache.

        Returns:
            `(wanted, n_vocab)`, a view that the next decode overwrites.

        Raises:
            EngineError: llama.cpp could not decode; the cache is then empty.
        """
        code = lib.llama_decode(self._handle, self._rows.fill(rows))
        if code != 0:
            self.clear()
            raise EngineError(
                f"llama.cpp failed to decode {len(rows)} rows of {self.model.name} (code {code})"
            )
        wanted = sum(row.wanted for row in rows)
        if not wanted:
            return np.empty((0, self.model.n_vocab), np.float32)
        first = ctypes.cast(lib.llama_get_logits(self._handle), ctypes.c_void_p).value
        return view(first, wanted, self.model.n_vocab)

    def states(self, n: int) -> list[Rows]:
        """The inputs of each of `layers` in the last decode, of `n` rows.

        Returns:
            For each layer `(n, width)`, a view that the next decode overwrites.
        """
        width = int(lib.llama_model_n_embd(self.model.handle))
        return [view(self._get_layer(self._handle, each), n, width) for each in self.layers]

    def drop(self, text: int) -> None:
        """Empty the cache of one text."""
        lib.llama_memory_seq_rm(self._memory, text, -1, -1)

    def clear(self) -> None:
        """Empty the cache."""
        lib.llama_memory_clear(self._memory, True)

    def close(self) -> None:
        """Free the cache."""
        if self._handle:
            lib.llama_free(self._handle)
            self._handle = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _TextBatch:
    """llama.cpp's batch struct for rows of several texts, with numpy arrays."""

    def __init__(self, size: int) -> None:
        ids = ctypes.POINTER(ctypes.c_int32)
        self._tokens, self._positions, self._texts = np.zeros((3, size), np.int32)
        self._counts, self._wanted = np.ones(size, np.int32), np.zeros(size, np.int8)
        step, start = self._texts.itemsize, self._texts.ctypes.data
        self._each = (ids * size)(*(ctypes.cast(start + step * i, ids) for i in range(size)))
        self._struct = lib.llama_batch(
            token=self._tokens.ctypes.data_as(ids),
            pos=self._positions.ctypes.data_as(ids),
            n_seq_id=self._counts.ctypes.data_as(ids),
            seq_id=ctypes.cast(self._each, ctypes.POINTER(ids)),
            logits=self._wanted.ctypes.data_as(ctypes.POINTER(ctypes.c_int8)),
        )

    def fill(self, rows: Sequence[TextRow]) -> Any:
        n = self._struct.n_tokens = len(rows)
        self._tokens[:n] = [row.token for row in rows]
        self._texts[:n] = [row.text for row in rows]
        self._positions[:n] = [row.position for row in rows]
        self._wanted[:n] = [row.wanted for row in rows]
        return self._struct


class _Traits(ctypes.Structure):
    """The beginning of ggml's `struct ggml_type_traits` (ggml.h)."""

    _fields_ = (
        ("type_name", ctypes.c_char_p),
        ("blck_size", ctypes.c_int64),
        ("blck_size_interleave", ctypes.c_int64),
        ("type_size", ctypes.c_size_t),
        ("is_quantized", ctypes.c_bool),
        ("to_float", ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)),
    )


def unpacked(data: bytes, kind: int, n: int) -> NDArray[np.float32]:
    """Dequantise `n` weights.

    Args:
        data: their bytes, as in a file.
        kind: ggml's number of their type.
        n: a multiple of the type's block size.

    Raises:
        EngineError: this build of ggml cannot dequantise the type.
    """
    if kind == 0:
        return np.frombuffer(data, np.float32, n).copy()
    traits = _Traits.from_address(ggml().ggml_get_type_traits(kind))
    if not traits.to_float:
        raise EngineError(f"this build of llama.cpp cannot unpack weights of type {kind}")
    out = np.empty(n, np.float32)
    traits.to_float(data, out.ctypes.data, n)
    return out
