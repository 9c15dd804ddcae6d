"""A bounded reader over the bytes of a GGUF header, and the strings that stay in them."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any, Final

from localspec import formats
from localspec.errors import ModelFileError

# Gemma 4's header, the largest known, has 16 MB.
MAX_HEADER_BYTES: Final = 32 * 1024 * 1024
MAX_STRING_LENGTH: Final = 8 * 1024 * 1024
FETCH_AGAIN: Final = "Fetch the file again; `localspec pull` continues and checks it."
_FIRST_READ: Final = 256 * 1024
_LARGEST_READ: Final = 4 * 1024 * 1024

ReadRange = Callable[[int, int], bytes]
"""`read(offset, size)`: up to `size` bytes from `offset`, fewer only at the end of the file."""


class HeaderCursor:
    """Reads forward through a header in growing steps, never past the bounds."""

    def __init__(self, read: ReadRange, total: int | None, label: str) -> None:
        self.buffer = bytearray()
        self.position = 0
        self.total = total
        self._read = read
        self.label = label
        self._step = _FIRST_READ

    def damaged(self, reason: str) -> ModelFileError:
        """Make the error for a damaged header."""
        return ModelFileError(f"{self.label} is damaged: {reason}", FETCH_AGAIN)

    def not_gguf(self) -> ModelFileError:
        """Make the error for a file that is not GGUF, named by its first bytes."""
        kind = _what_is(bytes(self.buffer[:512]))
        return ModelFileError(
            f"{self.label} is not a GGUF file: it seems to be {kind}", "Name a .gguf file."
        )

    def fill(self, end: int) -> None:
        """Fetch bytes until the buffer reaches `end`."""
        if end > MAX_HEADER_BYTES:
            limit = formats.size(MAX_HEADER_BYTES)
            raise self.damaged(f"its header claims to be larger than {limit}")
        if self.total is not None and end > self.total:
            raise self._cut_off(self.total, end)
        while len(self.buffer) < end:
            have = len(self.buffer)
            wanted = min(max(end - have, self._step), MAX_HEADER_BYTES - have)
            if self.total is not None:
                wanted = min(wanted, self.total - have)
            got = self._read(have, wanted)
            if not got:
                raise self._cut_off(have, end)
            self.buffer += got[:wanted]
            self._step = min(2 * self._step, _LARGEST_READ)

    def _cut_off(self, actual: int, promised: int) -> ModelFileError:
        return ModelFileError(
            f"{self.label} is cut off: it has {actual:,} bytes and its header alone takes"
            f" at least {promised:,}",
            FETCH_AGAIN,
        )

    def skip(self, size: int) -> int:
        """Pass over `size` bytes; return their start."""
        start = self.position
        if start + size > len(self.buffer):
            self.fill(start + size)
        self.position = start + size
        return start

    def number(self, code: str) -> Any:
        """Read a number or Boolean of struct format `code`."""
        start = self.skip(struct.calcsize("<" + code))
        return struct.unpack_from("<" + code, self.buffer, start)[0]

    def count(self, what: str, limit: int) -> int:
        """Read a count of `what`, at most `limit`."""
        n: int = self.number("Q")
        if n > limit:
            raise self.damaged(f"it claims to have {n:,} {what}; at most {limit:,} are allowed")
        return n

    def text(self, limit: int = MAX_STRING_LENGTH) -> str:
        """Read a string of at most `limit` bytes; invalid UTF-8 is replaced."""
        length = self.count("bytes in one string", limit)
        start = self.skip(length)
        return self.buffer[start : start + length].decode("utf-8", "replace")


class StringArray:
    """The strings of a GGUF array as raw bytes, read on demand; UTF-8 is usual, not guaranteed."""

    __slots__ = ("_buffer", "_starts")

    def __init__(self, buffer: bytearray, starts: array[int]) -> None:
        self._buffer = buffer
        self._starts = starts

    def __len__(self) -> int:
        return len(self._starts)

    def __getitem__(self, index: int) -> bytes:
        start = self._starts[index]
        (length,) = struct.unpack_from("<Q", self._buffer, start - 8)
        return bytes(self._buffer[start : start + length])

    def __iter__(self) -> Iterator[bytes]:
        starts, data = self._starts, bytes(self._raw(0, len(self)))
        base = starts[0] if starts else 0
        ends = chain((start - 8 for start in starts[1:]), (base - 8 + len(data),))
        return (
            data[start - base + 8 : end - base + 8]
            for start, end in zip(starts, ends, strict=False)
        )

    def same(self, other: StringArray, first: int, last: int) -> bool:
        """Whether both arrays hold the same bytes for the indices `first` to `last` (exclusive)."""
        return self._raw(first, last) == other._raw(first, last)

    def _raw(self, first: int, last: int) -> memoryview:
        """The strings with their length prefixes, as stored in the file."""
        if first >= last:
            return memoryview(b"")
        (length,) = struct.unpack_from("<Q", self._buffer, self._starts[last - 1] - 8)
        end = self._starts[last - 1] + length
        return memoryview(self._buffer)[self._starts[first] - 8 : end]


# Other kinds of files, by their first bytes.
_MAGIC: Final = (
    (b"version https://git-lfs", "a Git LFS pointer: the real file was never fetched"),
    (b"PK\x03\x04", "a zip archive or a PyTorch checkpoint"),
    (b"\x80\x02", "a Python pickle or an old PyTorch checkpoint"),
    (b"\x1f\x8b", "a gzip archive"),
    (b"\x28\xb5\x2f\xfd", "a zstandard archive"),
    (b"tjgg", "a GGML file from before GGUF"),
    (b"lmgg", "a GGML file from before GGUF"),
    (b"fmgg", "a GGML file from before GGUF"),
    (b"\x89HDF", "an HDF5 file"),
)
_PAGES: Final = (b"<!doctype html", b"<html", b"<?xml", b"<head")


def _what_is(head: bytes) -> str:
    """Name the kind of file that starts with `head`."""
    text = head.lstrip().lower()
    kinds = (
        (not head, "an empty file"),
        (not head.strip(b"\0"), "a file of zero bytes: a download that was never filled"),
        *((head.startswith(magic), name) for magic, name in _MAGIC),
        (text.startswith(_PAGES), "a web page, perhaps a saved error message"),
        (head[8:9] == b"{" and head[4:8] == bytes(4), "a safetensors file"),
        (text.startswith((b"{", b"[")), "JSON text, perhaps a saved error message"),
        (all(byte in b"\t\n\r" or 32 <= byte < 127 for byte in head), "plain text"),
    )
    return next((kind for found, kind in kinds if found), "an unknown kind of file")
