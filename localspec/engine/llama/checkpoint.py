"""How decoded tokens are rolled back, and copies of states that cannot be shortened.

Attention keeps a row per token, and rows can be removed. A recurrent layer keeps one state that
every token changes. To go back, an earlier state is needed: one that llama.cpp keeps of the last
few tokens (a snapshot), or a copy made here (a checkpoint).
"""

from __future__ import annotations

import ctypes
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from localspec.engine.llama.library import lib

_SEQUENCE = 0


class Rollback(Enum):
    """How decoded tokens are rolled back."""

    REMOVAL = "removal"
    """Any number of tokens, by removing their rows."""
    SNAPSHOTS = "snapshots"
    """Tokens of the last batch, as far as llama.cpp keeps snapshots; others by checkpoint."""
    CHECKPOINT = "checkpoint"
    """By restoring a copy of the state and decoding the tokens that stay once more."""
    NONE = "none"
    """Not at all: speculation would give wrong results."""


class Checkpoint:
    """A copy of the state that cannot be removed token by token; attention rows stay in the cache.

    Attributes:
        n: tokens in the cache when the copy was made; None without a copy.
    """

    def __init__(self, handle: Any) -> None:
        self._handle = handle
        self._bytes: NDArray[np.uint8] = np.empty(0, np.uint8)
        self._size = 0
        self.n: int | None = None

    def take(self, n: int) -> None:
        """Copy the state of the first `n` tokens; if that fails there is no copy."""
        if n in (0, self.n):
            self.n = n
            return
        flags = lib.LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY
        size = int(lib.llama_state_seq_get_size_ext(self._handle, _SEQUENCE, flags))
        if size > len(self._bytes):
            self._bytes = np.empty(size, np.uint8)
        self._size = int(
            lib.llama_state_seq_get_data_ext(self._handle, self._data(), size, _SEQUENCE, flags)
        )
        self.n = n if self._size else None

    def restore(self) -> bool:
        """Restore the copy and remove the rows that came after it; return whether it worked.

        Without a copy, or after a failure, the caller must treat the cache as empty.
        """
        memory = lib.llama_get_memory(self._handle)
        if not self.n:
            lib.llama_memory_clear(memory, True)
            return self.n == 0
        flags = lib.LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY
        read = lib.llama_state_seq_set_data_ext(
            self._handle, self._data(), self._size, _SEQUENCE, flags
        )
        return bool(read) and bool(lib.llama_memory_seq_rm(memory, _SEQUENCE, self.n, -1))

    def forget(self, after: int = -1) -> None:
        """Drop a copy of more than `after` tokens, which is no longer of use."""
        if self.n is not None and self.n > after:
            self.n = None

    def _data(self) -> Any:
        return self._bytes.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
