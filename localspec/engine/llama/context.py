"""`Context`: one sequence's cache over a model, and the decodes that fill it."""

from __future__ import annotations

import ctypes
import os
from collections import Counter
from collections.abc import Sequence
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from localspec import machine
from localspec.engine.cancel import Cancel
from localspec.engine.common_prefix import common_prefix
from localspec.engine.llama.checkpoint import Checkpoint, Rollback
from localspec.engine.llama.context_options import ContextOptions
from localspec.engine.llama.library import lib
from localspec.engine.llama.log import LogSection, start_backend
from localspec.engine.llama.model import Model
from localspec.engine.llama.thread_controller import Threads
from localspec.errors import Cancelled, EngineError, OutOfMemory, UnsupportedModel
from localspec.limits import MAX_BATCH_OUTPUTS

DECODE_ABORTED = 2
_NO_SLOT = 1


class Listener(Protocol):
    """Reads what a context computes in addition to the logits that the caller asks for."""

    def listen(self, *, wanted: bool) -> None:
        """Start (`wanted`) or stop receiving every decode."""

    def after_decode(self, tokens: Sequence[int], start: int) -> None:
        """Take note that `tokens` were decoded at the positions from `start` on.

        Removed tokens are not announced. This call invalidates everything known from `start` on;
        until then, ignore what is known of positions past the end of the cache.
        """


class Context:
    """A cache of one sequence, always a prefix of what was decoded.

    Attributes:
        n_ctx, n_batch: tokens that fit in the cache, and in one decode.
        tokens: the ids in the cache, in order. Read it, never write it.
        rollback: how tokens are rolled back, as tried at the start.
        cache_bytes, buffer_bytes: what llama.cpp allocated for the cache and for computing.
        readers: receive every decode while llama.cpp's buffers hold its results: prompts batch by
            batch, rounds, and tokens that are decoded again after a rollback.
        tapped: for each layer, how many readers use its states.
        holds: whether it has its own KV cache.
    """

    holds = True

    def __init__(self, model: Model, options: ContextOptions, cancel: Cancel | None = None) -> None:
        """Allocate the cache and decode two tokens, to warm up and to learn how to roll back.

        Raises:
            OutOfMemory: the cache or the compute buffers do not fit.
            UnsupportedModel: the architecture keeps no sequence.
            Cancelled: `cancel` was set meanwhile.
        """
        self.model = model
        self.options = options
        self.n_ctx = options.n_ctx
        self.n_batch = min(options.n_batch, options.n_ctx)
        self.tokens: list[int] = []
        self.readers: tuple[Listener, ...] = ()
        self.tapped: Counter[int] = Counter()
        self._decoded: set[tuple[int, int]] = set()
        self._watched: Cancel | None = None
        section = start_backend().section()
        self._handle = lib.llama_init_from_model(model.handle, self._params(options))
        if not self._handle:
            raise _creation_failure(model, options, section)
        model.apply_adapters(self._handle)
        self.threads = Threads(self._handle)
        self._memory = lib.llama_get_memory(self._handle)
        self._window = int(lib.llama_model_n_swa(model.handle))  # tokens; 0 if every layer sees all
        self.cache_bytes = section.allocated("KV", "RS")
        self.buffer_bytes = section.allocated("compute", "output")
        self._batch = _Batch(self.n_batch)
        # A ctypes pointer for every row would cost far more.
        address_of = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int32)
        self._logits_address = address_of(_address(lib.llama_get_logits_ith))
        self._views: dict[tuple[int, int], NDArray[np.float32]] = {}
        # By number; those of prompts last.
        self._checkpoints = tuple(Checkpoint(self._handle) for _ in range(3))
        self._snapshots = 0
        self._batch_start = 0  # snapshots of the last batch reach back to here
        try:
            if not self._memory:
                raise UnsupportedModel(
                    f"{model.path.name} keeps no sequence in memory: it writes no text",
                    "Choose a chat model.",
                )
            self.watch(cancel)
            self.rollback = Rollback.NONE
            self.rollback = self._probe()
        except BaseException:
            self.close()
            raise

    def _params(self, options: ContextOptions) -> Any:
        """llama.cpp's struct for `options`."""
        return options.params()

    def watch(self, cancel: Cancel | None) -> None:
        """Let `cancel` interrupt a running decode from now on; only the CPU stops midway.

        The callback is C's ``strlen`` on the flag: zero means continue. A Python callback would run
        at every graph node and take the interpreter's lock each time.
        """
        if cancel is self._watched:
            return
        self._watched = cancel  # keeps the flag's memory alive
        callback = lib.ggml_abort_callback()
        if cancel is not None:
            runtime = ctypes.CDLL("msvcrt" if os.name == "nt" else None)
            callback = lib.ggml_abort_callback(_address(runtime.strlen))
        data = ctypes.c_void_p(cancel.address if cancel is not None else 0)
        lib.llama_set_abort_callback(self._handle, callback, data)

    def decode(self, tokens: Sequence[int], n_logits: int) -> NDArray[np.float32]:
        """Append `tokens` to the cache; return the logits of the last `n_logits` of them.

        Args:
            tokens: ids, at most `n_batch` of them and at most `free`.
            n_logits: 0 to `MAX_BATCH_OUTPUTS`.

        Returns:
            float32, shape (n_logits, n_vocab), read-only. A view of llama.cpp's own buffer:
            it is overwritten by the next decode, so copy what must live longer.

        Raises:
            Cancelled: the watched flag was set; the cache is as before, or as at the last `mark`
                where it can't be, or empty where nothing was marked.
            EngineError: llama.cpp could not decode; the same holds.
        """
        n = len(tokens)
        if n == 0 or n > self.free or n_logits > min(n, MAX_BATCH_OUTPUTS):
            raise EngineError(
                f"cannot decode {n} tokens with {n_logits} rows of logits: {self.free} fit"
            )
        self.threads.make_way()
        batch = self._batch.fill(tokens, len(self.tokens), n_logits)
        code = lib.llama_decode(self._handle, batch)
        if code != 0:
            self._recover(code)
        self._decoded.add((n, n_logits))
        self._batch_start = len(self.tokens)
        self.tokens.extend(tokens)
        for reader in self.readers:
            reader.after_decode(tokens, self._batch_start)
        return self._logits(n, n_logits)

    def familiar(self, n: int, n_logits: int) -> bool:
        """Whether a decode of `n` tokens has run before, so that its time is typical.

        The first decode of a new shape is slower: llama.cpp asks each worker over the network for
        the size of every result, one at a time, and a graphics card loads its kernels.
        """
        return not self.model.offloaded or (n, n_logits) in self._decoded

    @property
    def settles(self) -> bool:
        """Whether repeating the same batch size makes decodes faster; not so on the CPU."""
        return self.model.offloaded

    def show(self, readers: Sequence[Listener]) -> None:
        """Send all decodes from now on to `readers` and to no others."""
        before, self.readers = self.readers, tuple(readers)
        if before == self.readers:
            return
        for each in before:
            if each not in self.readers:
                each.listen(wanted=False)
        for each in self.readers:
            if each not in before:
                each.listen(wanted=True)

    def wait(self) -> None:
        """Wait until the device has finished all decodes, also those without logits.

        Reading logits waits by itself; without them `decode` only queues the work.
        """
        lib.llama_synchronize(self._handle)

    def _recover(self, code: int) -> None:
        """Remove what a failed decode left in the cache, and raise the error for `code`."""
        kept = len(self.tokens)
        # A decode that stopped midway has changed the recurrent state without taking a snapshot.
        removable = self.rollback is Rollback.REMOVAL
        if not (removable and lib.llama_memory_seq_rm(self._memory, 0, kept, -1)):
            self._go_back()
        if code == DECODE_ABORTED:
            raise Cancelled
        if code == _NO_SLOT:
            raise EngineError(
                "the context is full", "Start a new conversation or raise --ctx-size."
            )
        raise EngineError(
            f"llama.cpp failed to decode (code {code})", "Lower --ctx-size or --n-gpu-layers."
        )

    def _logits(self, n: int, n_logits: int) -> NDArray[np.float32]:
        n_vocab = self.model.n_vocab
        if n_logits == 0:
            return np.empty((0, n_vocab), dtype=np.float32)
        address = self._logits_address(self._handle, n - n_logits)
        if address is None:
            raise EngineError("llama.cpp returned no logits")
        # Building an array over a pointer costs more than the small decodes it serves, and the
        # buffer moves only when it grows: keep the views by address.
        view = self._views.get((address, n_logits))
        if view is None:
            first = ctypes.cast(address, ctypes.POINTER(ctypes.c_float))
            view = np.ctypeslib.as_array(first, shape=(n_logits, n_vocab))
            view.flags.writeable = False
            self._views[address, n_logits] = view
        return view

    @property
    def handle(self) -> Any:
        """llama.cpp's context pointer."""
        return self._handle

    @property
    def held(self) -> int:
        """Tokens of context before the next decode."""
        return len(self.tokens)

    @property
    def free(self) -> int:
        """Tokens that still fit."""
        return self.n_ctx - self.held

    @property
    def token_bytes(self) -> float:
        """Bytes of one token in the cache; every later decode reads them."""
        return self.cache_bytes / self.n_ctx

    @property
    def can_truncate(self) -> bool:
        """Whether decoded tokens can be rolled back; otherwise drafting is not possible."""
        return self.rollback is not Rollback.NONE

    @property
    def max_rollback(self) -> int | None:
        """How many tokens of the last batch can be rolled back at once; None for all of them.

        To remove more, the tokens that stay are decoded again from the last `mark` on.
        """
        if self.rollback is Rollback.REMOVAL:
            return None
        return self._snapshots if self.rollback is Rollback.SNAPSHOTS else 0

    def mark(self, ahead: int = 0, *, lasting: int = 0, anew: bool = False) -> None:
        """Make sure that the cache can be rolled back to its present length.

        Plain attention needs nothing. A recurrent state is copied, unless the next decode has
        `ahead` tokens and llama.cpp keeps enough snapshots for it. Three copies are kept. The
        `lasting` ones are those to which the next prompt may go back after any number of rounds:
        the latest of a question's prompt (1), and the latest of a prompt that goes on after calls
        (2). The third is the latest of the others (0). An existing copy of this state is kept
        unless `anew` asks for another.
        """
        if self.rollback in (Rollback.REMOVAL, Rollback.NONE) or 0 < ahead <= self._snapshots + 1:
            return
        checkpoint = self._checkpoints[lasting]
        if anew:
            checkpoint.forget()
        checkpoint.take(len(self.tokens))

    def truncate(self, n: int) -> None:
        """Keep the first `n` tokens of the cache.

        A recurrent state goes back to the last `mark` and decodes the tokens after it again. A
        restored cache is decoded again in full if it lacks rows that sliding-window layers need.

        Raises:
            EngineError: llama.cpp cannot remove the rest; the cache is then empty.
        """
        if n >= len(self.tokens) or self._remove(n):
            return
        kept = self.tokens[:n]
        lacks = self._lacks(n)
        if self.rewind(n) == 0 and n > 0 and self._latest.n is None and not lacks:
            raise EngineError(
                f"{self.model.name} cannot take back decoded tokens",
                "Switch speculation off for this model with --draft none.",
            )
        watched = self._watched
        self.watch(None)  # already decoded once: not a moment to stop
        try:
            for start in range(len(self.tokens), n, self.n_batch):
                self.decode(kept[start : start + self.n_batch], 0)
            self.wait()  # the next decode must not pay for this
        finally:
            self.watch(watched)

    def rewind(self, n: int) -> int:
        """Keep the first `n` tokens, or fewer if that saves decoding; return how many.

        If the cache cannot go back to `n`, it goes back to the last `mark` before it, or is
        emptied.
        """
        if n < len(self.tokens) and not self._remove(n):
            self._forget(after=n)
            self._go_back()
        return len(self.tokens)

    def keep_prefix(self, tokens: Sequence[int]) -> int:
        """Keep the common prefix of the cache and `tokens`; return its length.

        If a part cannot be removed, less is kept: slower, never wrong.
        """
        return self.rewind(common_prefix(self.tokens, tokens))

    def clear(self) -> None:
        """Empty the cache."""
        lib.llama_memory_clear(self._memory, True)
        self.tokens.clear()
        self._forget()
        self._batch_start = 0

    def state_bytes(self) -> int:
        """Bytes that `state` takes at most."""
        return int(lib.llama_state_seq_get_size(self._handle, 0))

    def state(self) -> NDArray[np.uint8]:
        """Copy the contents of the cache for `restore`; empty if llama.cpp cannot copy them.

        Raises:
            MemoryError: there is no room for the copy.
        """
        size = Context.state_bytes(self)  # without what a head adds
        copy = machine.block(size)
        data = copy.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
        return copy[: int(lib.llama_state_seq_get_data(self._handle, data, size, 0))]

    def restore(self, tokens: Sequence[int], state: NDArray[np.uint8]) -> None:
        """Load `state`, copied when the cache held `tokens`; on failure the cache is empty.

        Sliding-window layers only restore the last tokens: see `reaches`.
        """
        self.clear()
        data = state.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
        if lib.llama_state_seq_set_data(self._handle, data, len(state), 0):
            self.tokens.extend(tokens)
            self._batch_start = len(self.tokens)
        else:
            self.clear()

    def reaches(self, n: int, of: int) -> bool:
        """Whether a restored cache of `of` tokens can be cut to its first `n`."""
        if self.rollback is not Rollback.REMOVAL:
            return n == of
        return not self._window or of <= self._window or n + 1 >= of

    def repeat(self, cells: int) -> bool:
        """Fill at least `cells` cells of the cache with copies of its contents.

        The time of a decode depends on the number of cells, not on their contents, and copying
        takes a fraction of the time of decoding. `tokens` stays the same. Only for measurements.

        Args:
            cells: at most `n_ctx`.

        Returns:
            Whether llama.cpp made the copies; if not, the cache is empty. It needs
            `ContextOptions.copies`.
        """
        state, held = self.state(), len(self.tokens)
        data = state.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
        for _ in range(held, cells, max(1, held)):
            if not self.options.copies or not lib.llama_state_seq_set_data(
                self._handle, data, len(state), 1
            ):
                self.clear()
                return False
            lib.llama_memory_seq_cp(self._memory, 1, 0, -1, -1)
            lib.llama_memory_seq_rm(self._memory, 1, -1, -1)
        return True

    def _remove(self, n: int) -> bool:
        """Remove all but the first `n` tokens if llama.cpp can do that correctly."""
        # llama.cpp does not check that the batch was long enough for the snapshot, and refuses a
        # second removal before the next decode.
        taken = len(self.tokens) - n <= self._snapshots and n > self._batch_start
        if self.rollback is not Rollback.REMOVAL and not taken:
            return False
        if self._lacks(n):
            return False
        if not lib.llama_memory_seq_rm(self._memory, 0, n, -1):
            return False
        del self.tokens[n:]
        self._batch_start = n
        self._forget(after=n)
        return True

    def _lacks(self, n: int) -> bool:
        """Whether rows that sliding-window layers need from `n` on were not restored."""
        first = lib.llama_memory_seq_pos_min(self._memory, 0) if n and self._window else 0
        return bool(first > max(0, n + 1 - self._window))

    @property
    def _latest(self) -> Checkpoint:
        """The last mark."""
        return max(self._checkpoints, key=lambda one: -1 if one.n is None else one.n)

    def _forget(self, after: int = -1) -> None:
        """Drop marks of more than `after` tokens, which are no longer of use."""
        for checkpoint in self._checkpoints:
            checkpoint.forget(after)

    def _go_back(self) -> None:
        """Go back to the last mark, or empty the cache."""
        if self._latest.restore():
            del self.tokens[self._latest.n :]
            self._batch_start = len(self.tokens)
        else:
            self.clear()

    def _probe(self) -> Rollback:
        """Warm up, and try which way of removing tokens works.

        Removal is tried as in llama.cpp: decode two tokens, remove one. A checkpoint works if a
        token gives the same logits before and after the rollback, up to rounding, which may differ
        from pass to pass on a device.
        """
        token = self.model.bos if self.model.bos is not None else 0
        self.decode([token, token], 1)
        removable = bool(lib.llama_memory_seq_rm(self._memory, 0, 1, -1))
        self.clear()
        self._snapshots = lib.llama_n_rs_seq(self._handle)
        if removable and self._snapshots == 0:
            return Rollback.REMOVAL
        self.rollback = Rollback.CHECKPOINT
        self.decode([token, token], 1)
        self.mark()
        before = self.decode([token], 1).copy()
        same = self.rewind(2) == 2 and np.allclose(self.decode([token], 1), before, atol=1e-3)
        self.clear()
        if not same:
            return Rollback.NONE
        return Rollback.SNAPSHOTS if removable else Rollback.CHECKPOINT

    def close(self) -> None:
        """Free the cache."""
        if self._handle:
            lib.llama_free(self._handle)
            self._handle = None
            self._views.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Batch:
    """llama.cpp's batch struct for one sequence, with numpy arrays."""

    def __init__(self, size: int) -> None:
        self._tokens, self._positions = np.zeros((2, size), np.int32)
        self._range, self._wanted = np.arange(size, dtype=np.int32), np.zeros(size, np.int8)
        ids = ctypes.POINTER(ctypes.c_int32)
        self._struct = lib.llama_batch(  # without sequence ids, all tokens belong to sequence 0
            token=self._tokens.ctypes.data_as(ids),
            pos=self._positions.ctypes.data_as(ids),
            logits=self._wanted.ctypes.data_as(ctypes.POINTER(ctypes.c_int8)),
        )

    def fill(self, tokens: Sequence[int], position: int, n_logits: int) -> Any:
        """Fill the batch with `tokens` from `position` on, with logits for the last `n_logits`."""
        n = self._struct.n_tokens = len(tokens)
        if n == 1:  # the baseline's case: a slice costs far more than an element
            self._tokens[0], self._positions[0], self._wanted[0] = tokens[0], position, n_logits
            return self._struct
        self._tokens[:n] = tokens
        np.add(self._range[:n], position, out=self._positions[:n])
        self._wanted[: n - n_logits] = 0
        self._wanted[n - n_logits : n] = 1
        return self._struct


def _creation_failure(model: Model, options: ContextOptions, section: LogSection) -> Exception:
    reason = section.reason()
    if section.lacked_memory():
        return OutOfMemory(
            f"no memory for a context of {options.n_ctx} tokens of {model.name} ({reason})",
            "Lower --ctx-size, close other programs, or choose a smaller pair.",
        )
    return EngineError(f"llama.cpp could not make a context for {model.name}: {reason}")


def _address(function: Any) -> int:
    """The address of a C function."""
    return ctypes.cast(function, ctypes.c_void_p).value or 0
