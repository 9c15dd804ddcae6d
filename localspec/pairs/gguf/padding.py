"""Larger GGUF files that compute the same function: all that is added is zero.

So a small trained model costs what a real one does. The residual stream, the heads and the
feed-forward part grow wider, and layers are added that add nothing; kernels multiply zeros as they
do other numbers.

Why the function stays: the padded part of the residual stream is zero everywhere. An RMS norm over
D instead of d dimensions sees a mean square of d/D times the old one, so an epsilon of d/D times
the old one makes its result sqrt(D/d) times too large, which norm weights of sqrt(d/D) times the
old ones take back. The width of a head stays, and with it the scale of attention and the rotation.
D is d, 4 d, 16 d or 64 d: then all of these factors are powers of two. In every type that llama.cpp
has, a block of zero bytes stands for zeros. So not a bit of the result changes where the
arithmetic does not round activations by blocks that are only partly padded, as with Q8_0. Weights
in Q8_0 may be written in F16 as well, which holds each of them to 2^-11.

For models of the `llama` architecture, or of `glm4moe` with a layer of MTP and one expert in that,
with as many key heads as query heads, and tied embeddings; and for EAGLE-3 heads of them.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final

import numpy as np

from localspec.errors import UnsupportedModel
from localspec.pairs.gguf.header import (
    GGML_TYPES,
    MAGIC,
    GgufHeader,
    TensorInfo,
    padded,
    raw_metadata,
    read_header,
)
from localspec.private import whole_file

if TYPE_CHECKING:
    from numpy.typing import NDArray

_CHUNK_BYTES: Final = 1 << 24
_TYPE_IDS: Final = {name: number for number, (name, _, _) in GGML_TYPES.items()}
_UINT32, _FLOAT32 = 4, 6
_F16: Final = "F16"
_MOSTLY_F16: Final = 1  # `general.file_type`
_EPSILON: Final = "attention.layer_norm_rms_epsilon"
_WIDTH, _INNER, _FF = "width", "inner", "feed_forward"
# Of a matrix what each row reads, and what the rows write: the sizes that may grow. A row may read
# several of the size, one behind the other (`fc`, `eh_proj`, a head's queries, keys and values).
_MATRICES: Final = {
    "token_embd": (_WIDTH, ""),
    **dict.fromkeys(("attn_q", "attn_k", "attn_v"), (_WIDTH, _INNER)),
    "attn_output": (_INNER, _WIDTH),
    **dict.fromkeys(("ffn_gate", "ffn_up"), (_WIDTH, _FF)),
    "ffn_down": (_FF, _WIDTH),
    **dict.fromkeys(("fc", "eh_proj"), (_WIDTH, _WIDTH)),
    **dict.fromkeys(
        (f"ffn_{n}_{of}" for n in ("gate", "up") for of in ("shexp", "exps")), (_WIDTH, "")
    ),
    **dict.fromkeys(("ffn_down_shexp", "ffn_down_exps"), ("", _WIDTH)),
    "ffn_gate_inp": (_WIDTH, ""),
}


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of a model that can be padded.

    Attributes:
        vocab, width, layers, heads, feed_forward: numbers of each.
        head: width of one head; it stays.
        epsilon: what the norms add to the mean square.
        nextn: layers behind those that predict more tokens, one at most.
    """

    vocab: int
    width: int
    layers: int
    heads: int
    feed_forward: int
    head: int
    epsilon: float
    nextn: int = 0

    @property
    def parameters(self) -> int:
        """Number of weights in matrices."""
        layer = 4 * self.width * self.heads * self.head + 3 * self.width * self.feed_forward
        return self.vocab * self.width + self.layers * layer

    def grown(self, width: int, layers: int, feed_forward: int) -> Shape:
        """Give larger sizes, the heads filling the width and the epsilon following it."""
        return replace(
            self,
            width=width,
            layers=layers,
            feed_forward=feed_forward,
            heads=width // self.head,
            epsilon=self.epsilon * self.width / width,
        )


def pad(source: Path, out: Path, n_bytes: int, step: int = 32, *, halves: bool = False) -> Shape:
    """Write `source` at about `n_bytes`; give the sizes.

    `out` appears whole or not at all. Widths are multiples of `step`, for types with blocks that
    long. The matrices stay in the type that they have; with `halves` those in Q8_0 become F16.

    Raises:
        UnsupportedModel: this model cannot be padded, or is larger already.
        ModelFileError: `source` is no usable model.
        OSError: `out` cannot be written.
    """
    header = read_header(source)
    small = read_shape(header)
    matrices = next(tensor.type for tensor in header.tensors if len(tensor.shape) > 1)
    _, block, block_bytes = GGML_TYPES[_TYPE_IDS[_F16 if halves else matrices]]
    large = sized(small, n_bytes * block / block_bytes, max(block, step))
    with source.open("rb") as weights, whole_file(out) as file:
        _write(file, header, weights, small, large, halves=halves)
    return large


def read_shape(header: GgufHeader) -> Shape:
    """Read the sizes of a model that can be padded.

    Raises:
        UnsupportedModel: this one cannot be.
    """
    nextn = header.setting("nextn_predict_layers")
    if header.architecture != "llama" and (header.architecture, nextn) != ("glm4moe", 1):
        raise UnsupportedModel(
            "only models of the llama architecture, and of glm4moe with MTP, can be padded"
        )
    if header.setting("expert_count") > 1:
        raise UnsupportedModel("only models with one expert at most can be padded")
    heads = header.setting("attention.head_count")
    if heads < 1 or header.setting("attention.head_count_kv") != heads:
        raise UnsupportedModel("only models with as many key heads as query heads can be padded")
    if any(tensor.name == "output.weight" for tensor in header.tensors):
        raise UnsupportedModel("only models with tied embeddings can be padded")
    width = header.setting("embedding_length")
    return Shape(
        vocab=len(header.tokens or ()),
        width=width,
        layers=header.setting("block_count") - nextn,
        heads=heads,
        feed_forward=header.setting("feed_forward_length"),
        head=width // heads,
        epsilon=_epsilon(header),
        nextn=nextn,
    )


def _epsilon(header: GgufHeader) -> float:
    value = header.metadata[header.arch_key(_EPSILON)]
    return value if isinstance(value, float) else 0.0


def sized(small: Shape, parameters: float, step: int) -> Shape:
    """Choose sizes with about that many parameters, shaped like a usual model.

    Usual is a layer for every 128 of width, and a feed-forward part 8/3 as wide. The width is that
    of the small model times a power of four, a multiple of `step` if possible. The feed-forward
    width takes up what is left over.

    Raises:
        UnsupportedModel: the model is larger than that already.
    """
    best: tuple[float, Shape] | None = None
    least = padded(small.feed_forward, step)
    for width in (small.width * 4**power for power in range(4)):
        if width % step:
            continue
        usual = small.grown(width, 1, max(least, round(8 / 3 * width)))
        blocks = parameters - small.vocab * width
        layers = max(small.layers, round(blocks / (usual.parameters - small.vocab * width)))
        if layers > small.layers and _wide_for(blocks, layers, width, step) < least:
            layers -= 1  # rounded up to more than there is room for
        wide = _wide_for(blocks, layers, width, step)
        oddness = abs(math.log(layers / (width / 128)))
        if wide >= least and (best is None or oddness < best[0]):
            best = (oddness, small.grown(width, layers, wide))
    if best is None:
        raise UnsupportedModel("that size is smaller than the model itself")
    return best[1]


def _wide_for(blocks: float, layers: int, width: int, step: int) -> int:
    """The feed-forward width at which so many layers have `blocks` parameters."""
    return round((blocks / layers - 4 * width * width) / 3 / width / step) * step


def _write(
    out: BinaryIO,
    header: GgufHeader,
    weights: BinaryIO,
    small: Shape,
    large: Shape,
    *,
    halves: bool,
) -> None:
    """Write the larger model; a few megabytes of it are in memory at a time."""
    growth = {
        _WIDTH: (small.width, large.width),
        _INNER: (small.heads * small.head, large.heads * large.head),
        _FF: (small.feed_forward, large.feed_forward),
    }
    numbers = {
        "embedding_length": large.width,
        "block_count": large.layers + large.nextn,
        "feed_forward_length": large.feed_forward,
        "attention.head_count": large.heads,
        "attention.head_count_kv": large.heads,
        "attention.key_length": large.head,
        "attention.value_length": large.head,
        "rope.dimension_count": large.head,
    }
    if large.nextn:
        numbers["leading_dense_block_count"] = large.layers
    padding = _Padding(header, weights, growth, halves=halves)
    padding.write(out, _tensors(header, small, large), numbers)


@dataclass(frozen=True, slots=True)
class _Padding:
    """Makes tensors larger.

    Attributes:
        header, weights: what is padded.
        growth: sizes by name, what they were and what they become.
        halves: whether matrices in Q8_0 become F16.
    """

    header: GgufHeader
    weights: BinaryIO
    growth: Mapping[str, tuple[int, int]]
    halves: bool = False

    @property
    def gain(self) -> float:
        """What a norm's weights are multiplied with."""
        old, new = self.growth[_WIDTH]
        return math.sqrt(old / new)

    def write(
        self,
        out: BinaryIO,
        tensors: Iterable[tuple[TensorInfo, str, bool]],
        numbers: Mapping[str, int],
    ) -> None:
        """Write tensors under these names, or nothing but zeros in their place."""
        todo = [(old, self.grown(old, name), kept) for old, name, kept in tensors]
        contents = (self.pieces(old, new, kept=kept) for old, new, kept in todo)
        own = {self.header.arch_key(name): value for name, value in numbers.items()}
        own |= {"general.file_type": _MOSTLY_F16} if self.halves else {}
        keys = _metadata(
            self.weights, self.header, own, _epsilon(self.header) * self.gain * self.gain
        )
        _write_file(out, self.header.alignment, [new for _, new, _ in todo], keys, contents)

    def grown(self, tensor: TensorInfo, name: str) -> TensorInfo:
        """The tensor at its new size, row length first, and in its new type."""
        kind = tensor.type
        if len(tensor.shape) == 1:
            old, new = self.growth[_WIDTH]
            shape: tuple[int, ...] = (new,) if tensor.shape == (old,) else tensor.shape
        else:
            _, writes = _matrix(tensor)
            part, parts = self.reads(tensor)
            n_out = self.growth[writes][1] if writes in self.growth else tensor.shape[1]
            shape = (part * parts, n_out, *tensor.shape[2:])
            kind = _F16 if self.halves and kind == "Q8_0" else kind
        n_bytes = math.prod(shape[1:]) * _row_bytes(kind, shape[0])
        return replace(tensor, name=name, type=kind, shape=shape, n_bytes=n_bytes)

    def reads(self, matrix: TensorInfo) -> tuple[int, int]:
        """The new length of each part of a row, and of how many parts it is."""
        size, _ = _matrix(matrix)
        if size not in self.growth:
            return matrix.shape[0], 1
        old, new = self.growth[size]
        return new, matrix.shape[0] // old

    def pieces(
        self, old: TensorInfo, new: TensorInfo, *, kept: bool
    ) -> Iterator[NDArray[np.uint8]]:
        """The bytes of a tensor, a few rows at a time; zeros where the old one is not kept.

        Vectors that grow are norms: `gain` times the old ones.
        """
        parts = self.reads(old)[1] if len(old.shape) > 1 else 1
        row_bytes, old_bytes = (_row_bytes(each.type, each.shape[0]) for each in (new, old))
        rows, old_rows = (math.prod(each.shape[1:]) for each in (new, old))
        self.weights.seek(self.header.data_offset + old.offset)
        chunk = max(1, _CHUNK_BYTES // row_bytes)
        for start in range(0, rows, chunk):
            piece = np.zeros((min(chunk, rows - start), parts, row_bytes // parts), np.uint8)
            filled = max(0, min(len(piece), old_rows - start)) if kept else 0
            if filled:
                known = np.frombuffer(self.weights.read(filled * old_bytes), np.uint8)
                known = known if new.type == old.type else _halved(known)
                known = known.reshape(filled, parts, -1)
                piece[:filled, :, : known.shape[2]] = known
            if len(new.shape) == 1 and new.shape != old.shape:
                piece = (piece.view(np.float32) * np.float32(self.gain)).view(np.uint8)
            yield piece


def _write_file(
    out: BinaryIO,
    alignment: int,
    tensors: list[TensorInfo],
    keys: list[bytes],
    contents: Iterable[Iterable[NDArray[np.uint8]]],
) -> None:
    """Write a GGUF file: keys, the table of tensors, and the bytes of each in turn."""
    out.write(MAGIC + struct.pack("<IQQ", 3, len(tensors), len(keys)) + b"".join(keys))
    offset = 0
    for new in tensors:
        dims = struct.pack(f"<I{len(new.shape)}Q", len(new.shape), *new.shape)
        out.write(_text(new.name) + dims + struct.pack("<iQ", _TYPE_IDS[new.type], offset))
        offset += padded(new.n_bytes, alignment)
    for pieces in contents:
        out.write(bytes(-out.tell() % alignment))
        for piece in pieces:
            piece.tofile(out)
    out.write(bytes(-out.tell() % alignment))


def _tensors(
    header: GgufHeader, small: Shape, large: Shape
) -> Iterator[tuple[TensorInfo, str, bool]]:
    """For every tensor of the larger model that which it pads, its name, and whether it does.

    In new layers, which are those of the first with zeros, it doesn't. A layer that predicts more
    tokens comes after them.
    """
    for tensor in header.tensors:
        last = f"blk.{small.layers}."
        name = tensor.name.replace(last, f"blk.{large.layers}.") if small.nextn else tensor.name
        yield tensor, name, True
        if tensor.name.startswith("blk.0."):
            for layer in range(small.layers, large.layers):
                yield tensor, tensor.name.replace("blk.0.", f"blk.{layer}."), False


def _matrix(tensor: TensorInfo) -> tuple[str, str]:
    part = tensor.name.removesuffix(".weight").rsplit(".", 1)[-1]
    if part not in _MATRICES:
        raise UnsupportedModel(f"the tensor {tensor.name} cannot be padded")
    return _MATRICES[part]


def _halved(raw: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Weights in Q8_0 as F16: blocks of a scale in F16 and 32 whole numbers."""
    blocks = raw.reshape(-1, 34)
    scales = blocks[:, :2].copy().view(np.float16).astype(np.float32)
    return (blocks[:, 2:].view(np.int8) * scales).astype(np.float16).view(np.uint8)


def _row_bytes(kind: str, length: int) -> int:
    _, block, block_bytes = GGML_TYPES[_TYPE_IDS[kind]]
    return length // block * block_bytes


def pad_head(source: Path, out: Path, target: Path) -> None:
    """Write an EAGLE-3 head of a model for the same model padded; it drafts what it drafted.

    It is as wide as the target's residual stream, in which its own numbers come first. Of what it
    reads (three layers, or token and state) each part grows by itself. Heads of attention and
    feed-forward part stay.

    Raises:
        UnsupportedModel: it is no EAGLE-3 head, or has its own embeddings, or is another's.
        ModelFileError: a file is no usable model.
        OSError: `out` cannot be written.
    """
    header, width = read_header(source), read_header(target).setting("embedding_length")
    own = header.setting("embedding_length")
    if header.architecture != "eagle3" or header.setting("target_hidden_size") != own:
        raise UnsupportedModel(f"{source.name} is no head for a model as wide as itself")
    if not own or width % own or any(t.name.startswith("token_embd") for t in header.tensors):
        raise UnsupportedModel(f"{source.name} cannot be padded to a width of {width}")
    numbers = dict.fromkeys(("embedding_length", "target_hidden_size"), width)
    head = own // header.setting("attention.head_count")
    numbers |= dict.fromkeys(("attention.key_length", "attention.value_length"), head)
    tensors = [(tensor, tensor.name, True) for tensor in header.tensors]
    with source.open("rb") as weights, whole_file(out) as file:
        _Padding(header, weights, {_WIDTH: (own, width)}).write(file, tensors, numbers)


def _metadata(
    file: BinaryIO, header: GgufHeader, numbers: Mapping[str, int], epsilon: float
) -> list[bytes]:
    """All keys with their values as they stand in a file, these numbers with the new ones."""
    new = {key: _text(key) + struct.pack("<II", _UINT32, value) for key, value in numbers.items()}
    key = header.arch_key(_EPSILON)
    new[key] = _text(key) + struct.pack("<If", _FLOAT32, epsilon)
    kept = raw_metadata(file)
    return [raw for key, raw in kept.items() if key not in new] + list(new.values())


def _text(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()
