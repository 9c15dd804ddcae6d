"""Going back: what an architecture lets one take out of the cache again, and copies of its state.

Attention keeps a row per token, and rows can be removed. A recurrent layer keeps one state that
every token changes: going back takes a copy of an earlier state, llama.cpp's own of the last few
tokens (snapshots) or ours (a checkpoint).
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
    """How decoded tokens are taken back."""

    REMOVAL = "removal"
    """Any number of them, by removing their rows."""
    SNAPSHOTS = "snapshots"
    """Those of the last batch, as far as llama.cpp keeps snapshots; else by checkpoint."""
    CHECKPOINT = "checkpoint"
    """By going back to a copy of the state and reading again what stays."""
    NONE = "none"
    """Not at all: speculation would be wrong here."""


class Checkpoint:
    """A copy of what can't be removed token by token; rows of attention stay in the cache.

    Attributes:
        n: the tokens that were in the cache, None while there is no copy.
    """

    def __init__(self, handle: Any) -> None:
        self._handle = handle
        self._bytes: NDArray[np.uint8] = np.empty(0, np.uint8)
        self._size = 0
        self.n: int | None = None

    def take(self, n: int) -> None:
        """Copy the state, in which `n` tokens are; where that fails there is no copy."""
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
        """Put the copy back, and remove the rows that came after it; say whether it worked.

        Without a copy, or if it fails, the cache has to be taken for empty.
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
        """A copy of more than `after` tokens is of no use any more."""
        if self.n is not None and self.n > after:
            self.n = None

    def _data(self) -> Any:
        return self._bytes.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
