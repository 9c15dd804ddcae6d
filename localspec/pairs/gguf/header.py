"""GGUF headers: metadata, vocabulary and tensor shapes, from a file or from byte ranges.

The layout follows ggml's ``gguf.cpp``; what that refuses is refused here too, with a reason. A
header comes from strangers, so everything in it is bounded: a hostile one costs at most
`MAX_HEADER_BYTES` of reading and a small multiple of that in memory. Strings (a vocabulary has
150,000) stay as raw bytes until they are needed.
"""

from __future__ import annotations

import math
import re
import stat
import struct
import sys
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO, Final, TypeAlias

from localspec.errors import ModelFileError
from localspec.pairs.gguf.cursor import (
    FETCH_AGAIN,
    MAX_STRING_LENGTH,
    HeaderCursor,
    ReadRange,
    StringArray,
)
from localspec.safe_text import one_line

MAGIC: Final = b"GGUF"
MAX_KEYS: Final = 16_384
MAX_STRINGS: Final = 1 << 21  # in one array; the largest known has 514,906 merges
MAX_TENSORS: Final = 32_768
MAX_KEY_LENGTH: Final = 4096
MAX_LAYERS: Final = 512  # LLAMA_MAX_LAYERS; llama.cpp refuses longer arrays of settings
MAX_NAME_LENGTH: Final = 63  # GGML_MAX_NAME - 1
MAX_DIMS: Final = 4  # GGML_MAX_DIMS
LEAST_ALIGNMENT: Final = 32  # the least that llama.cpp takes (TENSOR_ALIGNMENT), and the default
SPLIT_NAME: Final = re.compile(
    r"^(?P<stem>.+)-(?P<no>\d{5})-of-(?P<count>(?!0{5})\d{5})\.gguf$", re.I | re.ASCII
)
"""File names of a split model: NAME-00001-of-00003.gguf and so on."""
_INT64_MAX: Final = 2**63 - 1

# GGUF value types: id -> struct format.
_SCALARS: Final = {**dict(enumerate("BbHhIif?")), 10: "Q", 11: "q", 12: "d"}
_UINT16: Final = 2
_UINT32: Final = 4
_STRING: Final = 8
_ARRAY: Final = 9

# Size of each ggml type (ggml.h, `enum ggml_type`): id -> (name, elements per block, bytes per
# block). Missing ids were removed from the format; llama.cpp refuses them too.
GGML_TYPES: Final[dict[int, tuple[str, int, int]]] = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    9: ("Q8_1", 32, 36),
    10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    15: ("Q8_K", 256, 292),
    16: ("IQ2_XXS", 256, 66),
    17: ("IQ2_XS", 256, 74),
    18: ("IQ3_XXS", 256, 98),
    19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18),
    21: ("IQ3_S", 256, 110),
    22: ("IQ2_S", 256, 82),
    23: ("IQ4_XS", 256, 136),
    24: ("I8", 1, 1),
    25: ("I16", 1, 2),
    26: ("I32", 1, 4),
    27: ("I64", 1, 8),
    28: ("F64", 1, 8),
    29: ("IQ1_M", 256, 56),
    30: ("BF16", 1, 2),
    34: ("TQ1_0", 256, 54),
    35: ("TQ2_0", 256, 66),
    39: ("MXFP4", 32, 17),
    40: ("NVFP4", 64, 36),
    41: ("Q1_0", 128, 18),
    42: ("Q2_0", 64, 18),
}

TOKENS_KEY: Final = "tokenizer.ggml.tokens"


Value: TypeAlias = "int | float | bool | str | StringArray | array[Any]"


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor of the file.

    Attributes:
        shape: elements per dimension, row length first, as in ggml.
        type: ggml's name of the element type, such as ``Q4_K``.
        offset: bytes from the start of the data section.
        n_bytes: size without the padding after it.
    """

    name: str
    shape: tuple[int, ...]
    type: str
    offset: int
    n_bytes: int


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """Everything in a GGUF file before its weights.

    Attributes:
        metadata: key to number, text or array.
        data_offset: where the weights begin, in bytes.
    """

    metadata: Mapping[str, Value]
    tensors: tuple[TensorInfo, ...] = ()
    data_offset: int = 0

    def text(self, key: str, default: str = "") -> str:
        """The text under `key`, or `default` if it is missing or not text."""
        value = self.metadata.get(key)
        return value if isinstance(value, str) else default

    def integer(self, key: str, default: int = 0) -> int:
        """The integer under `key`, or `default` if it is missing or something else."""
        value = self.metadata.get(key)
        return value if isinstance(value, int) else default

    def integers(self, key: str) -> list[int]:
        """The integers under `key`: one for a number, those of an array, empty if missing.

        Some architectures have one value per layer where others have one for all. Of an array that
        is too long for llama.cpp, one more is told than it takes.
        """
        value = self.metadata.get(key)
        if isinstance(value, int):
            return [value]
        if isinstance(value, array):
            return [int(n) for n in value[: MAX_LAYERS + 1] if isinstance(n, int)]
        return []

    def setting(self, name: str, default: int = 0) -> int:
        """The architecture's own integer setting `name`, or `default`."""
        return self.integer(self.arch_key(name), default)

    def settings(self, name: str) -> list[int]:
        """The architecture's own integer settings `name`: one, or one per layer."""
        return self.integers(self.arch_key(name))

    def arch_key(self, name: str) -> str:
        """The full key of the architecture's own setting `name`."""
        return f"{self.architecture}.{name}"

    @property
    def architecture(self) -> str:
        """llama.cpp's name of the architecture, such as ``qwen3``; empty when it is missing."""
        return self.text("general.architecture")

    @property
    def name(self) -> str:
        """The model's own name; empty if it has none."""
        return self.text("general.name")

    @property
    def tokens(self) -> StringArray | None:
        """The vocabulary in the order of its ids; None for a file without one."""
        value = self.metadata.get(TOKENS_KEY)
        return value if isinstance(value, StringArray) else None

    @property
    def tensor_bytes(self) -> int:
        """Bytes of all tensors in this file."""
        return sum(tensor.n_bytes for tensor in self.tensors)

    @property
    def bits(self) -> float:
        """Mean bits per weight; 0 without weights."""
        weights = sum(math.prod(tensor.shape) for tensor in self.tensors)
        return 8 * self.tensor_bytes / weights if weights else 0.0


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """A model on disk: one file, or all parts of a split one.

    Attributes:
        header: the first part's, with the tensors of all parts.
        paths: every part in order; llama.cpp opens the first.
        file_bytes: size of all parts on disk.
    """

    header: GgufHeader
    paths: tuple[Path, ...]
    file_bytes: int


def read_header(path: Path) -> GgufHeader:
    """Read the header of the GGUF file at `path`.

    Raises:
        ModelFileError: missing, a folder, unreadable, not GGUF, of an unsupported version, damaged,
            or shorter than its header promises.
    """
    require_file(path)
    try:
        with path.open("rb") as file:
            total = file.seek(0, 2)
            return parse_header(_file_reader(file), total, str(path))
    except PermissionError:
        raise ModelFileError(f"{path} may not be read", "Check its permissions.") from None
    except OSError as error:
        reason = error.strerror or str(error)
        raise ModelFileError(f"{path} cannot be read: {reason}", "Check the disk.") from None


def require_file(path: Path) -> None:
    """Check that `path` is a regular file: not a folder, and not a pipe or an endless device.

    Raises:
        ModelFileError: it is not.
    """
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        raise ModelFileError(f"{path} does not exist", "Check the path.") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ModelFileError(
            f"{one_line(str(path), 200)} cannot be read: {reason}", "Check the path."
        ) from None
    if stat.S_ISDIR(mode):
        raise ModelFileError(f"{path} is a folder", "Name the .gguf file inside it.")
    if not stat.S_ISREG(mode):
        raise ModelFileError(f"{path} is not a regular file", "Name a .gguf file.")


def read_model(path: Path) -> ModelFiles:
    """Read the model that begins at `path`, with all parts if it is split.

    Raises:
        ModelFileError: as `read_header`, for any part; a part is missing; `path` is a later part.
    """
    header = read_header(path)
    paths = model_parts(path, header.integer("split.count", 1))
    whole = of_all_parts([header, *(read_header(part) for part in paths[1:])])
    return ModelFiles(whole, paths, sum(part.stat().st_size for part in paths))


def of_all_parts(headers: Sequence[GgufHeader]) -> GgufHeader:
    """The first part's header, with the tensors of all parts."""
    tensors = tuple(chain.from_iterable(part.tensors for part in headers))
    return replace(headers[0], tensors=tensors)


def _file_reader(file: BinaryIO) -> ReadRange:
    def read(offset: int, size: int) -> bytes:
        file.seek(offset)
        return file.read(size)

    return read


SeesKey = Callable[[str, Mapping[str, Value]], None]
"""Sees each new key with the metadata so far; raises to stop reading."""


def parse_header(
    read: ReadRange, total: int | None, label: str, accept: SeesKey | None = None
) -> GgufHeader:
    """Parse a header through `read`, fetching no more than needed.

    Args:
        read: returns byte ranges; its errors pass through.
        total: size of the whole file in bytes, None if unknown.
        label: the file's name in messages.
        accept: sees the metadata as it arrives, and may raise to skip the rest.

    Raises:
        ModelFileError: not GGUF, an unsupported version, damaged, or shorter than it promises.
    """
    cursor = HeaderCursor(read, total, label)
    _check_version(cursor)
    n_tensors = cursor.count("tensors", MAX_TENSORS)
    n_keys = cursor.count("metadata keys", MAX_KEYS)
    metadata: dict[str, Value] = {}
    alignment = LEAST_ALIGNMENT
    for _ in range(n_keys):
        key = cursor.text(MAX_KEY_LENGTH)
        kind = cursor.number("I")
        if not key or key in metadata:
            raise cursor.damaged(f"its metadata key {key[:60]!r} is empty or given twice")
        metadata[key] = _read_value(cursor, kind)
        if accept is not None:
            accept(key, metadata)
        if key == "general.alignment":
            alignment = _checked_alignment(cursor, kind, metadata[key])
        elif key == "split.no" and kind != _UINT16:  # llama.cpp ends the process
            raise cursor.damaged("its part number (split.no) is not a 16-bit integer")
    tensors, data_size = _read_tensors(cursor, n_tensors, alignment)
    data_offset = padded(cursor.position, alignment) if tensors else cursor.position
    expected = data_offset + data_size
    if total is not None and total < expected:
        raise ModelFileError(
            f"{label} is cut off: it has {total:,} bytes and its header promises {expected:,}",
            FETCH_AGAIN,
        )
    return GgufHeader(MappingProxyType(metadata), tensors, data_offset)


def raw_metadata(file: BinaryIO) -> dict[str, bytes]:
    """The bytes of each key and its value, as stored in a file.

    Raises:
        ModelFileError: its header is damaged.
    """
    cursor, found = HeaderCursor(_file_reader(file), None, "the model"), {}
    _check_version(cursor)
    _, n_keys = cursor.number("Q"), cursor.number("Q")
    for _ in range(n_keys):
        start = cursor.position
        key = cursor.text(MAX_KEY_LENGTH)
        _read_value(cursor, cursor.number("I"))
        found[key] = bytes(cursor.buffer[start : cursor.position])
    return found


def _check_version(cursor: HeaderCursor) -> None:
    cursor.fill(24 if cursor.total is None else min(24, cursor.total))
    if cursor.buffer[:4] != MAGIC:
        raise cursor.not_gguf()
    cursor.fill(24)
    cursor.skip(4)
    version: int = cursor.number("I")
    if version and version & 0xFFFF == 0:
        raise ModelFileError(
            f"{cursor.label} is a big-endian GGUF file",
            "Get the little-endian file; big-endian ones are for other processors.",
        )
    if version not in (2, 3):
        raise ModelFileError(
            f"{cursor.label} is GGUF version {version}; versions 2 and 3 can be read",
            "Get a newer conversion of the model." if version < 2 else "Update localspec.",
        )


def _read_value(cursor: HeaderCursor, kind: int) -> Value:
    if kind == _STRING:
        return cursor.text()
    if kind == _ARRAY:
        return _read_array(cursor)
    if kind not in _SCALARS:
        raise cursor.damaged(f"it has a metadata value of unknown type {kind}")
    value: Value = cursor.number(_SCALARS[kind])
    return value


def _read_array(cursor: HeaderCursor) -> StringArray | array[Any]:
    kind = cursor.number("I")
    count = cursor.number("Q")
    if kind == _STRING:
        return _read_strings(cursor, count)
    if kind not in _SCALARS:  # including nested arrays, which ggml refuses as well
        raise cursor.damaged(f"it has an array of unknown type {kind}")
    code = _SCALARS[kind]
    numbers = array("B" if code == "?" else code)
    start = cursor.skip(count * numbers.itemsize)
    numbers.frombytes(cursor.buffer[start : cursor.position])
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers


def _read_strings(cursor: HeaderCursor, count: int) -> StringArray:
    if count > MAX_STRINGS:
        raise cursor.damaged(f"it claims to have an array of {count:,} strings")
    starts = array("I")
    length_of = struct.Struct("<Q").unpack_from
    buffer, position = cursor.buffer, cursor.position
    for _ in range(count):  # the hot loop: 150,000 iterations for a usual vocabulary
        position += 8
        if position > len(buffer):
            cursor.fill(position)
        (length,) = length_of(buffer, position - 8)
        if length > MAX_STRING_LENGTH:
            raise cursor.damaged(f"it claims to have a string of {length:,} bytes")
        starts.append(position)
        position += length
    cursor.skip(position - cursor.position)
    return StringArray(buffer, starts)


def _checked_alignment(cursor: HeaderCursor, kind: int, value: Value) -> int:
    if (
        kind != _UINT32
        or not isinstance(value, int)
        or value < LEAST_ALIGNMENT
        or value & (value - 1)
    ):
        raise cursor.damaged(f"its alignment is not a power of two, or is below {LEAST_ALIGNMENT}")
    return value


def _read_tensors(
    cursor: HeaderCursor, count: int, alignment: int
) -> tuple[tuple[TensorInfo, ...], int]:
    """Read the tensor table; return it with the number of bytes of weights that must follow."""
    tensors: list[TensorInfo] = []
    names: set[str] = set()
    expected = end = 0
    for _ in range(count):
        tensor = _read_tensor(cursor)
        if tensor.name in names:
            raise cursor.damaged(f"tensor {tensor.name!r} is given twice")
        if tensor.offset != expected:
            raise cursor.damaged(
                f"tensor {tensor.name!r} starts at {tensor.offset:,}, not at {expected:,}"
            )
        names.add(tensor.name)
        tensors.append(tensor)
        end = tensor.offset + tensor.n_bytes
        expected = padded(end, alignment)
    return tuple(tensors), end


def _read_tensor(cursor: HeaderCursor) -> TensorInfo:
    name = cursor.text(MAX_NAME_LENGTH)
    n_dims = cursor.number("I")
    if n_dims > MAX_DIMS:
        raise cursor.damaged(f"tensor {name!r} has {n_dims:,} dimensions")
    shape = tuple(cursor.number("Q") for _ in range(n_dims)) or (1,)  # as ggml reads it
    kind = cursor.number("i")
    offset = cursor.number("Q")
    if kind not in GGML_TYPES:
        raise cursor.damaged(f"tensor {name!r} has the unknown type {kind}")
    type_name, block, block_bytes = GGML_TYPES[kind]
    elements = math.prod(shape)
    if elements > _INT64_MAX or max(shape) > _INT64_MAX:
        raise cursor.damaged(f"tensor {name!r} has an impossible shape")
    if shape[0] % block:
        raise cursor.damaged(f"tensor {name!r} has rows that {type_name} cannot hold")
    return TensorInfo(name, shape, type_name, offset, elements // block * block_bytes)


def padded(n: int, step: int) -> int:
    """Round `n` up to a multiple of `step`."""
    return -(-n // step) * step


def split_names(name: str) -> list[str]:
    """All parts of the split file `name`; only `name` if it is not split."""
    match = SPLIT_NAME.match(name)
    if match is None:
        return [name]
    count, ending = int(match["count"]), name[-5:]
    return [f"{match['stem']}-{no:05}-of-{count:05}{ending}" for no in range(1, count + 1)]


def model_parts(path: Path, count: int) -> tuple[Path, ...]:
    """All files of the model that begins at `path`, in order.

    Args:
        path: the first file.
        count: how many there are, as its header says (`split.count`).

    Raises:
        ModelFileError: a part is missing; `path` is a later part, or its name does not say which.
    """
    if count <= 1:
        return (path,)
    paths = tuple(path.with_name(name) for name in split_names(path.name))
    if SPLIT_NAME.match(path.name) is None or len(paths) != count:
        raise ModelFileError(
            f"{path} is one of {count} parts, and its name does not say which",
            f"Give the parts their names back: NAME-00001-of-{count:05}.gguf and so on.",
        )
    if path != paths[0]:
        raise ModelFileError(f"{path} is not the first part of its model", f"Name {paths[0]}.")
    missing = [part.name for part in paths if not part.exists()]
    if missing:
        some = ", ".join(missing[:3]) + (", ..." if len(missing) > 3 else "")
        raise ModelFileError(
            f"{path} has {count} parts and {len(missing)} are missing: {some}",
            "Put all parts into the same folder.",
        )
    return paths
