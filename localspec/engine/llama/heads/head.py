"""`Head`: the context of a draft head, which reads the states of the target's decodes.

A row of its cache pairs the target's state at token i with token i + 1; its logits predict token i
+ 2. llama.cpp takes the row's position from the state (EAGLE-3) or from the token (MTP).

`pairs/gguf/head_checks.py` checks by the headers that head and target fit together; if they do not,
llama.cpp ends the process. Two traps give wrong rows without an error: EAGLE-3's graph needs logits
for all rows or for none, and MTP contexts order their states by output unless they are requested
unmasked, which a few cannot do.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from localspec import machine
from localspec.drafter_names import ASSISTANT, DFLASH, EAGLE3, MTP
from localspec.engine.cancel import Cancel
from localspec.engine.llama.checkpoint import Rollback
from localspec.engine.llama.context import DECODE_ABORTED, Context
from localspec.engine.llama.context_options import ContextOptions
from localspec.engine.llama.heads.target_states import Rows, TargetStates
from localspec.engine.llama.library import lib
from localspec.engine.llama.model import Model
from localspec.errors import Cancelled, EngineError, UnsupportedModel
from localspec.limits import HEAD_BATCH, HEAD_REACH

_OUTPUTS: Final = 8  # up to this many rows, logits of all are cheaper than a second decode
_ENCODE, _DECODE = 0, 1  # enum llama_process_type
_ABOUT: Final = 24  # bytes of the three numbers before a head's state
_LAST: Final = -1  # means the state after the last layer
# Architectures whose `graph_mtp` has states of the rows with logits alone (src/models).
_WANTED_ROWS: Final = ("deepseek4", "mimo2", "qwen3next", "step35")

# MSVC's names of the functions that GCC and Clang call by these names.
_MSVC: Final = {
    "_Z30llama_set_embeddings_layer_inpP13llama_contextjb": (
        "?llama_set_embeddings_layer_inp@@YAXPEAUllama_context@@I_N@Z"
    ),
    "_Z30llama_get_embeddings_layer_inpP13llama_contextj": (
        "?llama_get_embeddings_layer_inp@@YAPEAMPEAUllama_context@@I@Z"
    ),
    "_Z28llama_model_target_layer_idsPK11llama_model": (
        "?llama_model_target_layer_ids@@YAPEBHPEBUllama_model@@@Z"
    ),
    "_Z30llama_model_target_layer_ids_nPK11llama_model": (
        "?llama_model_target_layer_ids_n@@YAIPEBUllama_model@@@Z"
    ),
    "_Z26llama_set_embeddings_nextnP13llama_contextbb": (
        "?llama_set_embeddings_nextn@@YAXPEAUllama_context@@_N1@Z"
    ),
    "_Z26llama_get_embeddings_nextnP13llama_context": (
        "?llama_get_embeddings_nextn@@YAPEAMPEAUllama_context@@@Z"
    ),
    "_Z28llama_set_nextn_layer_offsetP13llama_contexti": (
        "?llama_set_nextn_layer_offset@@YAXPEAUllama_context@@H@Z"
    ),
}


@dataclass(frozen=True, slots=True)
class _Symbols:
    """Functions of llama.cpp that are missing from its public header."""

    set_layer: Any
    get_layer: Any
    layers: Any
    n_layers: Any
    set_states: Any
    get_states: Any
    choose: Any


@cache
def _symbols() -> _Symbols:
    """Find them by their compiler-mangled names (declared in src/llama-ext.h).

    Raises:
        UnsupportedModel: this build does not export one of them.
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
        _symbol("_Z28llama_set_nextn_layer_offsetP13llama_contexti", None, ctypes.c_int32),
    )


def _symbol(name: str, result: Any, *arguments: Any) -> Any:
    """Find a function of a context or a model, and declare its result and further arguments."""
    its = [getattr(lib._lib, each, None) for each in (name, _MSVC[name])]  # noqa: SLF001 - not bound
    found = next((each for each in its if each is not None), None)
    if found is None:
        raise UnsupportedModel(
            f"this build of llama.cpp cannot draft with heads: it does not export {name}",
            "Draft with a small model, or go without one (`--draft none`).",
        )
    found.restype, found.argtypes = result, (ctypes.c_void_p, *arguments)
    return found


def layer_inputs() -> tuple[Any, Any]:
    """The functions that make a context output the input of a layer, and that read it.

    Raises:
        UnsupportedModel: this build of llama.cpp does not export them.
    """
    return _symbols().set_layer, _symbols().get_layer


class Head(Context):
    """The cache of a head over its target: rows in, logits and states out.

    While it listens, it copies the target's states, a few numbers per token. Rows are made from
    them on demand.

    As a `Context` it decodes rows with zero states, which take the usual time: for measurements
    only.

    Attributes:
        kind: `EAGLE3` or `MTP`; `DFLASH` for a `BlockHead`, `ASSISTANT` for a `SharedHead`.
        target: the context whose decodes it reads.
        width: floats per state.
        layers: MTP layers; each guesses one token further than the one before.
        states: the target's states for the latest tokens, before several layers are fused.
        first: index of the first row in the cache; `tokens` holds the token of each row.
    """

    def __init__(
        self, model: Model, target: Context, options: ContextOptions, cancel: Cancel | None = None
    ) -> None:
        """Make the context; it reads the target once `Context.show` names it as a reader.

        Args:
            model: a head, loaded with its MTP layers if it has such, or the target's own model.
            target: the target's context; close it after this one.
            options: how the context is made; its batch is at most `HEAD_BATCH`.
            cancel: stops the warm-up.

        Raises:
            UnsupportedModel: this build of llama.cpp supports no heads, or the target was loaded
                without its own.
            OutOfMemory: it does not fit.
            Cancelled: `cancel` was set meanwhile.
        """
        inside = model is target.model or model.mtp
        self.kind = MTP if inside else model.metadata["general.architecture"]
        if inside and not model.mtp:  # llama.cpp would end the process
            raise UnsupportedModel(
                f"{model.name} was loaded without the head inside it",
                "Load the pair again.",
            )
        self.target = target
        self.first = 0
        self.layers = int(lib.llama_model_n_layer_nextn(model.handle)) if inside else 1
        self._call = _symbols()
        self._rows: Any = None
        self._seen: dict[int, Rows] = {}  # llama.cpp's buffers, by their addresses
        reads_last = self.kind in (MTP, ASSISTANT)
        taps = None if reads_last else self._call.layers(model.handle)
        self._taps = tuple(taps[: self._call.n_layers(model.handle)]) if taps else (_LAST,)
        # A state that MTP reads may be several times as wide as the model.
        width = lib.llama_model_n_embd_out if inside else lib.llama_model_n_embd
        self._inner = int(width(target.model.handle))
        shown = len(self._taps) * self._inner
        own = int(width(model.handle))
        wanted = inside and model.metadata["general.architecture"] in _WANTED_ROWS
        self._wanted_rows = wanted or self.kind == EAGLE3
        self.width = shown if self.kind in (DFLASH, ASSISTANT) else own
        self.states = TargetStates(min(HEAD_REACH, options.n_ctx), shown)
        n_batch = min(HEAD_BATCH, options.n_batch)
        super().__init__(model, replace(options, n_batch=n_batch, snapshots=0), cancel)

    def _params(self, options: ContextOptions) -> Any:
        params = super()._params(options)
        if self.kind == MTP:
            params.ctx_type = lib.LLAMA_CONTEXT_TYPE_MTP
            params.n_outputs_max = 1
        else:
            params.ctx_other = self.target.handle
            _require_room(params, self.n_batch, self.model.name)
        return params

    def _probe(self) -> Rollback:
        """Warm up."""
        self._rows = lib.llama_batch_ext_init(self._handle)
        self._call.set_states(self._handle, True, self._wanted_rows)
        self.rollback = Rollback.REMOVAL
        self.decode([0, 0], 1)
        removable = self._remove(1)
        self.clear()
        return Rollback.REMOVAL if removable else Rollback.NONE

    def listen(self, *, wanted: bool) -> None:
        """Start or stop the target's output of the states that this head reads.

        While it is stopped the target may decode other tokens, so the head forgets everything.
        """
        if not wanted:
            self.clear()
        tapped = self.target.tapped
        for tap in self._taps:
            tapped[tap] += 1 if wanted else -1
            if tapped[tap] != int(wanted):
                continue  # another head reads it too
            if tap == _LAST:
                self._call.set_states(self.target.handle, wanted, False)
            else:
                self._call.set_layer(self.target.handle, tap, wanted)

    def after_decode(self, tokens: Sequence[int], start: int) -> None:
        """Keep the states of `tokens`, which the target has just decoded from `start` on.

        The row before `start` was made with a guess of `tokens[0]`. If the guess was wrong, the row
        is made again, unless its state is no longer known: then the next draft is accepted less.
        """
        row = start - 1
        other = self.first <= row < self.end and self.tokens[row - self.first] != tokens[0]
        self.keep(row if other and self.states.knows(row) else start)
        self.states.put(start, self.shown(len(tokens)))

    def keep(self, end: int) -> None:
        """Keep the rows before `end`."""
        self.truncate(max(0, end - self.first))

    @property
    def end(self) -> int:
        """The first row that is not in the cache."""
        return self.first + len(self.tokens)

    def shown(self, n: int) -> list[Rows]:
        """The target's states of its last decode, of `n` tokens: one array per tapped layer.

        Raises:
            EngineError: llama.cpp returns nothing.
        """
        handle = self.target.handle
        if self._taps == (_LAST,):
            return [self._buffer(self._call.get_states(handle))[:n]]
        return [self._buffer(self._call.get_layer(handle, tap))[:n] for tap in self._taps]

    def _buffer(self, address: int | None) -> Rows:
        """A view of the target's states at this address, as long as a batch."""
        found = self._seen.get(address or 0)
        if found is None:
            found = self._seen[address or 0] = view(address, self.target.n_batch, self._inner)
        return found

    def fused(self, rows: Rows) -> Rows:
        """Turn the target's states into the states that rows use: `(n, width)`.

        Raises:
            Cancelled: the watched flag was set.
            EngineError: llama.cpp could not compute them.
        """
        if self.kind != EAGLE3:
            return rows
        parts = (rows[at : at + self.n_batch] for at in range(0, len(rows), self.n_batch))
        return np.concatenate([self._fused(part) for part in parts])

    def _fused(self, rows: Rows) -> Rows:
        """Run EAGLE-3's encoder, which fuses the states of several layers into one."""
        lib.llama_batch_ext_clear(self._rows)
        for at, row in enumerate(rows):
            # The encoder ignores positions, but llama.cpp wants them to continue from the end of
            # the cache.
            self._add(lib.llama_batch_ext_add(self._rows, 0), row, self.end + at, output=True)
        self._process(_ENCODE)
        return view(self._call.get_states(self._handle), len(rows), self.width).copy()

    def decode(self, tokens: Sequence[int], n_logits: int) -> Rows:
        """Append rows with zero states; return the logits of the last one, if any are wanted."""
        nothing = np.zeros((len(tokens), self.width), np.float32)
        logits, _ = self.read(tokens, nothing, output=n_logits > 0)
        return logits[None] if n_logits else np.empty((0, self.model.n_vocab), np.float32)

    def read(
        self, tokens: Sequence[int], states: Rows, *, output: bool, layer: int | None = None
    ) -> tuple[Rows, Rows]:
        """Append rows; return the logits of the last one and its state.

        Args:
            tokens: the token after the state of each row, at most `n_batch`.
            states: `(n, width)`.
            output: whether to compute logits and a state; otherwise both results are empty.
            layer: index of the MTP layer that reads the rows; None for all of them, with the output
                of the first.

        Returns:
            Copies: float32 of shape (n_vocab,) and of shape (1, width).

        Raises:
            Cancelled: the watched flag was set; the cache is as before.
            EngineError: llama.cpp could not decode; the cache is as before.
        """
        n, every = len(tokens), self.kind == EAGLE3
        if output and every and n > _OUTPUTS:
            self.read(tokens[:-1], states[:-1], output=False)
            return self.read(tokens[-1:], states[-1:], output=True)
        if not 0 < n <= min(self.free, self.n_batch):
            raise EngineError(f"cannot decode {n} rows of {self.model.name}: {self.free} fit")
        lib.llama_batch_ext_clear(self._rows)
        for at, (token, state) in enumerate(zip(tokens, states, strict=True)):
            index = self._begin(token)
            wanted = output and (every or at == n - 1)
            self._add(index, state, self._position(self.end + at), output=wanted)
        for each in reversed(range(self.layers)) if layer is None else (layer,):
            self._choose(each)
            self._process()
        self.tokens.extend(tokens)
        if not output:
            return np.empty(0, np.float32), np.empty((0, self.width), np.float32)
        logits = view(self._logits_address(self._handle, n - 1), 1, self.model.n_vocab)
        rows = 1 if self._wanted_rows and not every else n
        states = view(self._call.get_states(self._handle), rows, self.width)
        return logits[0].copy(), states[-1:].copy()

    def _choose(self, layer: int) -> None:
        """Let one of several layers read the next rows, at the positions the layer before had.

        Each layer has its own cells there, but llama.cpp counts the rows of all layers together.
        """
        if self.layers > 1:
            lib.llama_memory_seq_rm(self._memory, 0, self._position(self.end), -1)
            self._call.choose(self._handle, layer)

    def _begin(self, token: int) -> int:
        """Begin a row of the batch; return its index."""
        return int(lib.llama_batch_ext_add_token(self._rows, 0, token))

    def _position(self, row: int) -> int:
        return row + (self.kind == MTP)

    def _add(self, index: int, state: Rows, position: int, *, output: bool) -> None:
        """Set the state and position of row `index` of the batch, and whether it has output."""
        data = np.ascontiguousarray(state, np.float32)  # llama.cpp copies it
        row = lib.llama_embd(data.ctypes.data_as(ctypes.POINTER(ctypes.c_float)), 1, data.size)
        if index < 0 or not lib.llama_batch_ext_set_embd_token(self._rows, index, row):
            index = -1
        self._place(index, position, output=output)

    def _place(self, index: int, position: int, *, output: bool) -> None:
        """Set the position of row `index` of the batch, and whether it has output."""
        where = (lib.llama_pos * 4)(position, position, position, 0)
        done = (
            index >= 0
            and lib.llama_batch_ext_set_pos(self._rows, index, where)
            and lib.llama_batch_ext_set_output_logits(self._rows, index, output)
        )
        if not done:
            raise EngineError(f"llama.cpp refuses this row for the head {self.model.name}")

    def _process(self, kind: int = _DECODE) -> None:
        self.threads.make_way()
        code = lib.llama_process(self._handle, kind, self._rows)
        if code == 0:
            return
        lib.llama_memory_seq_rm(self._memory, 0, self._position(self.end), -1)
        if code == DECODE_ABORTED:
            raise Cancelled
        raise EngineError(
            f"llama.cpp failed to decode with the head {self.model.name} (code {code})",
            "Go without it (`--draft none`).",
        )

    def _remove(self, n: int) -> bool:
        at = self._position(self.first + n)
        if n and not lib.llama_memory_seq_rm(self._memory, 0, at, -1):
            return False
        if not n:
            lib.llama_memory_clear(self._memory, True)
        del self.tokens[n:]
        return True

    def start(self, first: int) -> None:
        """Empty the cache; the next row has index `first`, as rows may begin anywhere."""
        super().clear()
        self.first = first

    def clear(self) -> None:
        """Empty the cache and forget the target's states."""
        self.start(0)
        self.states.forget()

    def state_bytes(self) -> int:
        """As `Context.state_bytes`."""
        return super().state_bytes() + self._known_bytes()

    def state(self) -> NDArray[np.uint8]:
        """Copy the cache (as `Context.state`), the target's states and the first row's index."""
        parts = self._known(), super().state()
        return np.concatenate(parts, out=machine.block(sum(map(len, parts))))

    def restore(self, tokens: Sequence[int], state: NDArray[np.uint8]) -> None:
        """As `Context.restore`."""
        first, known, end = map(int, state[:_ABOUT].view(np.int64))
        at = _ABOUT + 4 * (end - known) * self.states.width
        super().restore(tokens, state[at:])
        if len(self.tokens) == len(tokens):
            self.first = first
            self._recall(state[:at])

    def _known(self) -> NDArray[np.uint8]:
        """Copy the target's states and the index of the first row."""
        known = self.states
        about = np.array([self.first, known.first, known.end], np.int64)
        rows = known.get(known.first, known.end - known.first).reshape(-1)
        return np.concatenate([about.view(np.uint8), rows.view(np.uint8)])

    def _known_bytes(self) -> int:
        return _ABOUT + 4 * (self.states.end - self.states.first) * self.states.width

    def _recall(self, known: NDArray[np.uint8]) -> None:
        """Restore the target's states from `known`."""
        _, start, _ = map(int, known[:_ABOUT].view(np.int64))
        self.states.put(start, [known[_ABOUT:].view(np.float32).reshape(-1, self.states.width)])

    def close(self) -> None:
        """Free the context."""
        self.target.show([each for each in self.target.readers if each is not self])
        if self._rows is not None:
            lib.llama_batch_ext_free(self._rows)
            self._rows = None
        super().close()


def _require_room(params: Any, rows: int, name: str) -> None:
    """Refuse a pass over `rows` rows that does not fit: llama.cpp would end the process.

    EAGLE-3's encoder and a block's pass are never split, and output every row.
    """
    for what, room in (("n_ubatch", params.n_ubatch), ("n_outputs_max", params.n_outputs_max)):
        if room < rows:
            raise EngineError(
                f"a pass of the head {name} is over {rows} rows, its context takes {room} ({what})",
                "Go without it (`--draft none`).",
            )


def view(address: int | None, rows: int, width: int) -> Rows:
    """A view of llama.cpp's floats at `address`, which its next decode overwrites."""
    if not address:
        raise EngineError("llama.cpp returned no states")
    first = ctypes.cast(address, ctypes.POINTER(ctypes.c_float))
    return np.ctypeslib.as_array(first, shape=(rows, width))
