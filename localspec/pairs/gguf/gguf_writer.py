"""Writes GGUF files: metadata, a table of tensors, and their bytes."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from localspec.pairs.gguf.header import (
    GGML_TYPES,
    LEAST_ALIGNMENT,
    MAGIC,
    padded,
    raw_metadata,
    read_header,
)
from localspec.private import whole_file

BLOCK: Final = 32
"""Weights per block of Q8_0."""

MetaValue: TypeAlias = "bytes | str | bool | int | float | Sequence[int] | Sequence[float]"
"""A value; bytes are a key and its value as another file stores them (`header.raw_metadata`)."""

_TYPE_IDS: Final = {name: number for number, (name, _, _) in GGML_TYPES.items()}
_UINT32, _INT32, _FLOAT32, _BOOL, _STRING, _ARRAY = 4, 5, 6, 7, 8, 9


@dataclass(frozen=True, slots=True)
class PackedTensor:
    """One tensor as it is stored.

    Attributes:
        type: ggml's name of the element type.
        shape: elements per dimension, row length first, as in ggml.
    """

    name: str
    type: str
    shape: tuple[int, ...]
    data: bytes


def packed(name: str, array: NDArray[np.generic]) -> PackedTensor:
    """Pack a tensor: a matrix as Q8_0 (F16 if its rows do not fit blocks), a vector as F32.

    Integers keep their type (I64).
    """
    shape = array.shape[::-1]
    if array.dtype == np.int64:
        return PackedTensor(name, "I64", shape, array.tobytes())
    floats = np.ascontiguousarray(array, np.float32)
    if floats.ndim == 1:
        return PackedTensor(name, "F32", shape, floats.tobytes())
    if shape[0] % BLOCK:
        return PackedTensor(name, "F16", shape, floats.astype(np.float16).tobytes())
    return PackedTensor(name, "Q8_0", shape, _q8_0(floats))


def _q8_0(floats: NDArray[np.float32]) -> bytes:
    """Q8_0 blocks: an F16 scale and 32 integers, rounded as in ggml (quantize_row_q8_0)."""
    blocks = floats.reshape(-1, BLOCK)
    scale = np.abs(blocks).max(axis=1, keepdims=True) / np.float32(127)
    inverse = np.divide(1, scale, out=np.zeros_like(scale), where=scale > 0)
    scaled = blocks * inverse
    numbers = (np.sign(scaled) * np.floor(np.abs(scaled) + np.float32(0.5))).astype(np.int8)
    return np.concatenate(
        [scale.astype(np.float16).view(np.uint8), numbers.view(np.uint8)], axis=1
    ).tobytes()


def write(path: Path, metadata: Mapping[str, MetaValue], tensors: Sequence[PackedTensor]) -> None:
    """Write a file; it appears whole or not at all.

    Raises:
        OSError: it cannot be written.
    """
    keys = [_entry(key, value) for key, value in metadata.items()]
    with whole_file(path) as out:
        out.write(MAGIC + struct.pack("<IQQ", 3, len(tensors), len(keys)) + b"".join(keys))
        offset = 0
        for each in tensors:
            dims = struct.pack(f"<I{len(each.shape)}Q", len(each.shape), *each.shape)
            out.write(_text(each.name) + dims)
            out.write(struct.pack("<iQ", _TYPE_IDS[each.type], offset))
            offset += padded(len(each.data), LEAST_ALIGNMENT)
        for each in tensors:
            out.write(bytes(-out.tell() % LEAST_ALIGNMENT))
            out.write(each.data)
        out.write(bytes(-out.tell() % LEAST_ALIGNMENT))


def _entry(key: str, value: MetaValue) -> bytes:
    if isinstance(value, bytes):
        return value
    return _text(key) + _value(value)


def _value(value: MetaValue) -> bytes:
    match value:
        case bool():
            return struct.pack("<I?", _BOOL, value)
        case int():
            return struct.pack("<II", _UINT32, value)
        case float():
            return struct.pack("<If", _FLOAT32, value)
        case str():
            return struct.pack("<I", _STRING) + _text(value)
    whole = all(isinstance(each, int) for each in value)
    kind, code = (_INT32, "i") if whole else (_FLOAT32, "f")
    return struct.pack(f"<IIQ{len(value)}{code}", _ARRAY, kind, len(value), *value)


def _text(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def rewritten(source: Path, out: Path, more: Mapping[str, MetaValue]) -> None:
    """Rewrite a file with other metadata: the keys in `more` are set, the rest stays.

    Raises:
        ModelFileError: `source` is not a complete GGUF file.
        OSError: a file cannot be read or written.
    """
    header = read_header(source)
    with source.open("rb") as file:
        metadata: dict[str, MetaValue] = {**raw_metadata(file), **more}
        tensors = []
        for each in header.tensors:
            file.seek(header.data_offset + each.offset)
            tensors.append(PackedTensor(each.name, each.type, each.shape, file.read(each.n_bytes)))
    write(out, metadata, tensors)
