"""GGUF files for tests of headers and downloads: exact bytes, small, no weights that matter."""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence
from typing import Any

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64 = range(11)
_CODES = {U8: "B", I8: "b", U16: "H", I16: "h", U32: "I", I32: "i", F32: "f", BOOL: "?", U64: "Q"}


def text(value: str | bytes) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(data)) + data


def value(kind: int, content: Any) -> bytes:
    """A typed value; an array's content is `(element kind, elements)`."""
    if kind == STRING:
        return struct.pack("<I", kind) + text(content)
    if kind == ARRAY:
        element, items = content
        body = b"".join(
            text(item) if element == STRING else struct.pack("<" + _CODES[element], item)
            for item in items
        )
        return struct.pack("<IIQ", ARRAY, element, len(items)) + body
    return struct.pack("<I", kind) + struct.pack("<" + _CODES[kind], content)


def tensor(name: str, shape: Sequence[int], kind: int, offset: int) -> bytes:
    dims = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
    return text(name) + dims + struct.pack("<IQ", kind, offset)


def header(
    metadata: Sequence[tuple[str, int, Any]], tensors: Sequence[bytes] = (), version: int = 3
) -> bytes:
    """The header, padded to where the weights begin."""
    data = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(metadata))
    for key, kind, content in metadata:
        data += text(key) + value(kind, content)
    data += b"".join(tensors)
    return data + bytes(-len(data) % 32) if tensors else data


def words(count: int, first: Sequence[str] = ()) -> list[str]:
    """A vocabulary of `count` tokens that begins with `first`."""
    return [*first, *(f"word{number}" for number in range(len(first), count))]


def experts(architecture: str) -> list[tuple[str, int, Any]]:
    """The keys of two experts, if the architecture has any."""
    names = ("expert_count", "expert_used_count") if architecture.endswith("moe") else ()
    return [(f"{architecture}.{name}", U32, 2) for name in names]


def model(
    tokens: Sequence[str | bytes] | None = None,
    n_bytes: int = 4096,
    seed: int = 0,
    *,
    extra: Sequence[tuple[str, int, Any]] = (),
    architecture: str = "llama",
    tokenizer: str = "gpt2",
    weights: str = "w",
) -> bytes:
    """A whole file: a vocabulary and `n_bytes` (a multiple of 32) of random weights.

    No byte of them is zero, as a pull cuts zeros off the end of what an earlier one left.
    """
    metadata = [
        ("general.architecture", STRING, architecture),
        ("general.name", STRING, f"Test {seed}"),
        (f"{architecture}.block_count", U32, 2),
        (f"{architecture}.embedding_length", U32, 64),
        (f"{architecture}.attention.head_count", U32, 4),
        (f"{architecture}.attention.head_count_kv", U32, 2),
        (f"{architecture}.context_length", U32, 2048),
        ("tokenizer.ggml.model", STRING, tokenizer),
        ("tokenizer.ggml.tokens", ARRAY, (STRING, words(300) if tokens is None else tokens)),
        *(one for one in experts(architecture) if one[0] not in [key for key, *_ in extra]),
        *extra,
    ]
    data = random.Random(seed).randbytes(n_bytes).replace(b"\0", b"\1")
    return header(metadata, [tensor(weights, [n_bytes // 4], 0, 0)]) + data


def split_model(stem: str, parts: int, n_bytes: int = 4096) -> dict[str, bytes]:
    """The parts of a split model by file name."""
    files = {}
    for number in range(parts):
        extra = [("split.no", U16, number), ("split.count", U16, parts)]
        data = model(n_bytes=n_bytes, seed=number, extra=extra)
        files[f"{stem}-{number + 1:05}-of-{parts:05}.gguf"] = data
    return files
