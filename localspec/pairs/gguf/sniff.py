"""What a file that is no GGUF seems to be, judged by its first bytes."""

from __future__ import annotations

import struct

_MAGIC = (
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


def what_is(head: bytes) -> str:
    """Name the kind of file that starts with `head` (up to 512 bytes are looked at)."""
    if not head:
        return "an empty file"
    if not head.strip(b"\0"):
        return "a file of zero bytes: a download that was never filled"
    for magic, name in _MAGIC:
        if head.startswith(magic):
            return name
    return _by_content(head)


def _by_content(head: bytes) -> str:
    text = head[:512].lstrip().lower()
    kind = "an unknown kind of file"
    if text.startswith((b"<!doctype html", b"<html", b"<?xml", b"<head")):
        kind = "a web page, perhaps a saved error message"
    elif len(head) >= 9 and head[8:9] == b"{" and struct.unpack_from("<Q", head)[0] < 1 << 32:
        kind = "a safetensors file"
    elif text.startswith((b"{", b"[")):
        kind = "JSON text, perhaps a saved error message"
    elif all(byte in b"\t\n\r" or 32 <= byte < 127 for byte in head[:512]):
        kind = "plain text"
    return kind
