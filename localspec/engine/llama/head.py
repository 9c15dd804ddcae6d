"""`Head`: the context of a draft head, which reads what the target's last decode computed.

A row of its cache pairs the target's state at token i with token i + 1, and its logits are those of
token i + 2. llama.cpp counts the row's position from the state (EAGLE-3) or from the token (MTP).

What llama.cpp asserts is checked before the call: a layer that gives no states, more rows than fit
in a batch. Two traps give wrong rows in silence. EAGLE-3's graph wants logits of every row or of
none. An MTP context orders its states by output unless they are asked for unmasked.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Final, Self

import numpy as np
from llama_cpp import llama_cpp as lib
from numpy.typing import NDArray

from localspec.engine.llama.context import (
    Context,
    ContextOptions,
    buffer_sizes,
    context_params,
    creation_failure,
)
from localspec.engine.llama.log import start_backend
from localspec.engine.llama.model import Model
from localspec.errors import EngineError, UnsupportedModel

EAGLE3: Final = "eagle3"
MTP: Final = "mtp"

BATCH: Final = 64
"""Rows that one decode of a head may take. EAGLE-3 keeps logits for all of them: 40 MB at a
vocabulary of 152,000."""

_OUTPUTS: Final = 8  # up to so many rows it is quicker to take logits of all than to decode twice
_ENCODE, _DECODE = 0, 1  # enum llama_process_type

TAPPED: Final = frozenset(
    {
        *("llama", "qwen3", "qwen3moe", "qwen3next", "qwen35", "qwen35moe", "qwen4exp", "gemma4"),
        *("openai-moe", "gpt-oss", "lfm2", "mimo2", "minimax-01", "minimax-m2", "nemotron-h"),
        *("nemotron_h", "deepseek4", "bailingmoe3", "hunyuan-vl", "muse-glimmer", "nanbeige"),
    }
)
"""Architectures whose layers' inputs llama.cpp gives out (`t_layer_inp` in src/models)."""

_Rows = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class _Symbols:
    """Functions of llama.cpp that its header for programs does not have."""

    set_layer: Any
    get_layer: Any
    layers: Any
    n_layers: Any
    set_states: Any
    get_states: Any


@cache
def _symbols() -> _Symbols:
    """Find them by their names under GCC and Clang; those under MSVC are not known here.

    Raises:
        UnsupportedModel: this build exports none of that name.
    """
    pointer, number, flag = ctypes.c_void_p, ctypes.c_uint32, ctypes.c_bool
    ids = ctypes.POINTER(ctypes.c_int32)
    return _Symbols(
        _symbol("_Z30llama_set_embeddings_layer_inpP13llama_contextjb", None, number, flag),
        _symbol("_Z30llama_get_embeddings_layer_inpP13llama_contextj", pointer, number),
        _symbol("_Z28llama_model_target_layer_idsPK11llama_model", ids),
        _symbol("_Z30llama_model_target_layer_ids_nPK11llama_model", number),
        _symbol("_Z26llama_set_embeddings_nextnP13llama_contextbb", None, flag, flag),
        _symbol("_Z26llama_get_embeddings_nextnP13llama_context", pointer),
    )


def _symbol(name: str, result: Any, *arguments: Any) -> Any:
    """Find a function of a context, or of a model, and what it takes besides."""
    found = getattr(lib._lib, name, None)  # noqa: SLF001 - these functions are not bound
    if found is None:
        raise UnsupportedModel(
            f"this build of llama.cpp can draft with no head: it does not export {name}",
            "Draft with a small model, or go without one (`--draft none`).",
        )
    found.restype, found.argtypes = result, (ctypes.c_void_p, *arguments)
    return found


class Head:
    """A head's context beside its target's: rows in, logits and states out.

    Attributes:
        kind: `EAGLE3` or `MTP`.
        model: whose weights it uses: the head's own file's, or the target's.
        target: the context whose decodes it reads.
        width: floats of a state.
        n_ctx: rows that fit.
        first, end: the rows in its cache: from this one on, up to that one.
        cache_bytes, buffer_bytes: what llama.cpp allocated for the cache and for computing.
    """

    def __init__(self, model: Model, target: Context, options: ContextOptions) -> None:
        """Make the context, and let the target keep what it reads from now on.

        Args:
            model: an EAGLE-3 head, or the target's own model, loaded with its heads.
            target: a context of the target.
            options: how the context is made; of its batch at most `BATCH` tokens count.

        Raises:
            UnsupportedModel: head and target do not fit together, or this build has no heads.
            OutOfMemory: it does not fit.
        """
        self.kind = MTP if model is target.model else EAGLE3
        self.model, self.target = model, target
        self.n_ctx = options.n_ctx
        self.first = self.end = 0
        self._call = _symbols()
        self._taps = self._checked_taps() if self.kind == EAGLE3 else ()
        self.width = lib.llama_model_n_embd(model.handle)
        params = context_params(replace(options, n_batch=min(BATCH, options.n_batch), snapshots=0))
        self.n_batch = params.n_batch
        if self.kind == MTP:
            params.ctx_type = lib.LLAMA_CONTEXT_TYPE_MTP
            params.n_outputs_max = 1
        else:
            params.ctx_other = target.handle
        with start_backend().section() as section:
            self._handle = lib.llama_init_from_model(model.handle, params)
        if not self._handle:
            raise creation_failure(model, options, section)
        self.cache_bytes, self.buffer_bytes = buffer_sizes(section)
        self._memory = lib.llama_get_memory(self._handle)
        self._batch = lib.llama_batch_ext_init(self._handle)
        self._call.set_states(self._handle, True, self.kind == EAGLE3)
        self._listen(wanted=True)

    def _checked_taps(self) -> tuple[int, ...]:
        """Give the target's layers whose inputs the head reads."""
        model, target = self.model, self.target.model
        taps = self._call.layers(model.handle)[: self._call.n_layers(model.handle)]
        architecture = target.metadata.get("general.architecture", "?")
        layers = lib.llama_model_n_layer(target.handle)
        if architecture not in TAPPED:
            raise _mismatch(model, f"llama.cpp shows no layer of {architecture} models")
        if not taps or not all(0 <= tap < layers for tap in taps):
            raise _mismatch(model, f"it reads layers {list(taps)}, {target.name} has {layers}")
        inner = lib.llama_model_n_embd_inp(target.handle)
        asked = model.metadata.get("eagle3.target_hidden_size", "0")
        if int(asked) != inner:
            raise _mismatch(model, f"it reads states of {asked} numbers, {target.name} has {inner}")
        if model.n_vocab != target.n_vocab:
            raise _mismatch(
                model, f"it knows {model.n_vocab:,} tokens, {target.name} {target.n_vocab:,}"
            )
        return tuple(taps)

    def _listen(self, *, wanted: bool) -> None:
        """Let the target keep the states that this head reads, or not any more."""
        if self.kind == MTP:
            self._call.set_states(self.target.handle, wanted, False)
        for tap in self._taps:
            self._call.set_layer(self.target.handle, tap, wanted)

    def states(self, n: int) -> _Rows:
        """Copy the target's states of its last decode, which was of `n` tokens: `(n, width)`.

        Raises:
            EngineError: llama.cpp could not compute them.
        """
        if self.kind == MTP:
            lib.llama_synchronize(self.target.handle)
            return _copy(self._call.get_states(self.target.handle), n, self.width)
        lib.llama_synchronize(self.target.handle)
        inner = lib.llama_model_n_embd(self.target.model.handle)
        taps = [
            _copy(self._call.get_layer(self.target.handle, tap), n, inner) for tap in self._taps
        ]
        rows = np.concatenate(taps, axis=1)
        return np.concatenate(
            [self._fused(rows[at : at + self.n_batch]) for at in range(0, n, self.n_batch)]
        )

    def _fused(self, rows: _Rows) -> _Rows:
        """Let EAGLE-3's encoder make one state of three."""
        lib.llama_batch_ext_clear(self._batch)
        for at, row in enumerate(rows):
            # It has no use for positions, but llama.cpp wants them to go on where the cache ends.
            self._add(lib.llama_batch_ext_add(self._batch, 0), row, self.end + at, output=True)
        self._process(_ENCODE)
        return _copy(self._call.get_states(self._handle), len(rows), self.width)

    def decode(self, tokens: Sequence[int], states: _Rows, *, output: bool) -> tuple[_Rows, _Rows]:
        """Append rows; return the logits of the last one and its state.

        Args:
            tokens: of each row the token that follows the state, at most `n_batch`.
            states: `(n, width)`.
            output: whether logits and a state are wanted; without, both come back empty.

        Returns:
            Copies: float32 of shape (n_vocab,) and of shape (1, width).

        Raises:
            EngineError: llama.cpp could not decode; the cache is then empty.
        """
        n, every = len(tokens), self.kind == EAGLE3
        if output and every and n > _OUTPUTS:
            self.decode(tokens[:-1], states[:-1], output=False)
            return self.decode(tokens[-1:], states[-1:], output=True)
        lib.llama_batch_ext_clear(self._batch)
        for at, (token, state) in enumerate(zip(tokens, states, strict=True)):
            index = lib.llama_batch_ext_add_token(self._batch, 0, token)
            wanted = output and (every or at == n - 1)
            self._add(index, state, self.end + at + (self.kind == MTP), output=wanted)
        self._process(_DECODE)
        self.end += n
        if not output:
            return np.empty(0, np.float32), np.empty((0, self.width), np.float32)
        logits = lib.llama_get_logits_ith(self._handle, n - 1)
        found = _copy(ctypes.cast(logits, ctypes.c_void_p).value, 1, self.model.n_vocab)[0]
        rows = _copy(self._call.get_states(self._handle), n, self.width)
        return found, rows[-1:]

    def _add(self, index: int, state: _Rows, position: int, *, output: bool) -> None:
        """Give row `index` of the batch its state, its position and whether its output counts."""
        data = np.ascontiguousarray(state, np.float32)
        address = data.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
        where = (lib.llama_pos * 4)(position, position, position, 0)
        done = (
            index >= 0
            and lib.llama_batch_ext_set_embd_token(
                self._batch, index, lib.llama_embd(address, 1, data.size)
            )
            and lib.llama_batch_ext_set_pos(self._batch, index, where)
            and lib.llama_batch_ext_set_output_logits(self._batch, index, output)
        )
        if not done:
            raise EngineError(f"llama.cpp takes no such row for the head {self.model.name}")

    def _process(self, kind: int) -> None:
        code = lib.llama_process(self._handle, kind, self._batch)
        if code != 0:
            self.clear(0)
            raise EngineError(
                f"llama.cpp failed to decode with the head {self.model.name} (code {code})",
                "Go without it (`--draft none`).",
            )

    def truncate(self, end: int) -> None:
        """Keep the rows before `end`; what has no row there is empty."""
        if end >= self.end:
            return
        at = max(end, self.first)
        if at > self.first and lib.llama_memory_seq_rm(
            self._memory, 0, at + (self.kind == MTP), -1
        ):
            self.end = at
        else:
            self.clear(max(end, 0) if at == self.first else at)

    def clear(self, first: int) -> None:
        """Empty the cache; the next row is `first`, for rows may begin anywhere."""
        lib.llama_memory_clear(self._memory, True)
        self.first = self.end = first

    def use_threads(self, threads: int) -> None:
        """Decode with so many CPU threads from now on."""
        lib.llama_set_n_threads(self._handle, threads, threads)

    def close(self) -> None:
        """Free the context. It must be closed before its target's."""
        if self._handle:
            self._listen(wanted=False)
            lib.llama_batch_ext_free(self._batch)
            lib.llama_free(self._handle)
            self._handle = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _copy(address: int | None, rows: int, width: int) -> _Rows:
    """Copy floats of llama.cpp's buffers, which its next decode overwrites."""
    if not address:
        raise EngineError("llama.cpp gave out no states")
    first = ctypes.cast(address, ctypes.POINTER(ctypes.c_float))
    return np.ctypeslib.as_array(first, shape=(rows, width)).copy()


def _mismatch(head: Model, reason: str) -> UnsupportedModel:
    return UnsupportedModel(
        f"the head {head.name} does not fit this target: {reason}",
        "Choose a head that was made for this model, or go without one (`--draft none`).",
    )
