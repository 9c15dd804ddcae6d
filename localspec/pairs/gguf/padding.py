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
arithmetic does not round activations by blocks that are only partly padded, as with Q8_0.

For models of the `llama` architecture with as many key heads as query heads, and tied embeddings.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
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


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of a model that can be padded.

    Attributes:
        vocab, width, layers, heads, feed_forward: numbers of each.
        head: width of one head; it stays.
        epsilon: what the norms add to the mean square.
    """

    vocab: int
    width: int
    layers: int
    heads: int
    feed_forward: int
    head: int
    epsilon: float

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


def pad(source: Path, out: Path, n_bytes: int, step: int = 32) -> Shape:
    """Write `source` at about `n_bytes`, its matrices in the type that they have; give the sizes.

    `out` appears whole or not at all. Widths are multiples of `step`, for types with blocks that
    long.

    Raises:
        UnsupportedModel: this model cannot be padded, or is larger already.
        ModelFileError: `source` is no usable model.
        OSError: `out` cannot be written.
    """
    header = read_header(source)
    small = read_shape(header)
    matrices = next(tensor.type for tensor in header.tensors if len(tensor.shape) > 1)
    _, block, block_bytes = GGML_TYPES[_TYPE_IDS[matrices]]
    large = sized(small, n_bytes * block / block_bytes, max(block, step))
    with source.open("rb") as weights, whole_file(out) as file:
        _write(file, header, weights, small, large)
    return large


def read_shape(header: GgufHeader) -> Shape:
    """Read the sizes of a model that can be padded.

    Raises:
        UnsupportedModel: this one cannot be.
    """
    if header.architecture != "llama":
        raise UnsupportedModel("only models of the llama architecture can be padded")
    heads = header.integer("llama.attention.head_count")
    if header.integer("llama.attention.head_count_kv") != heads:
        raise UnsupportedModel("only models with as many key heads as query heads can be padded")
    if any(tensor.name == "output.weight" for tensor in header.tensors):
        raise UnsupportedModel("only models with tied embeddings can be padded")
    width = header.integer("llama.embedding_length")
    epsilon = header.metadata["llama.attention.layer_norm_rms_epsilon"]
    return Shape(
        vocab=len(header.tokens or ()),
        width=width,
        layers=header.integer("llama.block_count"),
        heads=heads,
        feed_forward=header.integer("llama.feed_forward_length"),
        head=width // heads,
        epsilon=epsilon if isinstance(epsilon, float) else 0.0,
    )


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
    out: BinaryIO, header: GgufHeader, weights: BinaryIO, small: Shape, large: Shape
) -> None:
    """Write the larger model; a few megabytes of it are in memory at a time."""
    todo, keys = list(_tensors(header, small, large)), _metadata(weights, large)
    gain = math.sqrt(small.width / large.width)
    out.write(MAGIC + struct.pack("<IQQ", 3, len(todo), len(keys)) + b"".join(keys))
    offset = 0
    for _, new in todo:
        dims = struct.pack(f"<I{len(new.shape)}Q", len(new.shape), *new.shape)
        out.write(_text(new.name) + dims + struct.pack("<iQ", _TYPE_IDS[new.type], offset))
        offset += padded(new.n_bytes, header.alignment)
    for old, new in todo:
        out.write(bytes(-out.tell() % header.alignment))
        for piece in _pieces(header, weights, old, new, gain):
            piece.tofile(out)
    out.write(bytes(-out.tell() % header.alignment))


def _tensors(
    header: GgufHeader, small: Shape, large: Shape
) -> Iterator[tuple[TensorInfo | None, TensorInfo]]:
    """Every tensor of the larger model with the one that it pads, None in a new layer."""
    first = {}
    for tensor in header.tensors:
        yield tensor, _grown(tensor, large)
        if tensor.name.startswith("blk.0."):
            first[tensor.name.removeprefix("blk.0.")] = tensor
    for layer in range(small.layers, large.layers):
        for part, tensor in first.items():
            yield None, _grown(replace(tensor, name=f"blk.{layer}.{part}"), large)


def _grown(tensor: TensorInfo, large: Shape) -> TensorInfo:
    """The tensor at its size in the larger model, row length first."""
    inner = large.heads * large.head
    part = tensor.name.removesuffix(".weight").rsplit(".", 1)[-1]
    known: dict[str, tuple[int, ...]] = {
        "token_embd": (large.width, large.vocab),
        "output_norm": (large.width,),
        "attn_norm": (large.width,),
        "ffn_norm": (large.width,),
        "attn_q": (large.width, inner),
        "attn_k": (large.width, inner),
        "attn_v": (large.width, inner),
        "attn_output": (inner, large.width),
        "ffn_gate": (large.width, large.feed_forward),
        "ffn_up": (large.width, large.feed_forward),
        "ffn_down": (large.feed_forward, large.width),
    }
    if part not in known:
        raise UnsupportedModel(f"the tensor {tensor.name} cannot be padded")
    shape = known[part]
    n_bytes = math.prod(shape[1:]) * _row_bytes(tensor.type, shape[0])
    return replace(tensor, shape=shape, n_bytes=n_bytes)


def _row_bytes(kind: str, length: int) -> int:
    _, block, block_bytes = GGML_TYPES[_TYPE_IDS[kind]]
    return length // block * block_bytes


def _pieces(
    header: GgufHeader, weights: BinaryIO, old: TensorInfo | None, new: TensorInfo, gain: float
) -> Iterator[NDArray[np.uint8]]:
    """The bytes of a tensor, a few rows at a time. Vectors are norms: `gain` times the old ones."""
    row_bytes = _row_bytes(new.type, new.shape[0])
    rows, old_rows, old_bytes = math.prod(new.shape[1:]), 0, 0
    if old is not None:
        weights.seek(header.data_offset + old.offset)
        old_rows, old_bytes = math.prod(old.shape[1:]), _row_bytes(old.type, old.shape[0])
    chunk = max(1, _CHUNK_BYTES // row_bytes)
    for start in range(0, rows, chunk):
        piece = np.zeros((min(chunk, rows - start), row_bytes), np.uint8)
        filled = max(0, min(len(piece), old_rows - start))
        if filled:
            known = np.frombuffer(weights.read(filled * old_bytes), np.uint8)
            piece[:filled, :old_bytes] = known.reshape(filled, old_bytes)
        if len(new.shape) == 1:
            piece = (piece.view(np.float32) * np.float32(gain)).view(np.uint8)
        yield piece


def _metadata(file: BinaryIO, large: Shape) -> list[bytes]:
    """All keys with their values as they stand in a file, those of sizes with the new ones."""
    numbers = {
        "embedding_length": large.width,
        "block_count": large.layers,
        "feed_forward_length": large.feed_forward,
        "attention.head_count": large.heads,
        "attention.head_count_kv": large.heads,
        "attention.key_length": large.head,
        "attention.value_length": large.head,
        "rope.dimension_count": large.head,
    }
    new = {
        f"llama.{key}": _text(f"llama.{key}") + struct.pack("<II", _UINT32, value)
        for key, value in numbers.items()
    }
    epsilon = "llama.attention.layer_norm_rms_epsilon"
    new[epsilon] = _text(epsilon) + struct.pack("<If", _FLOAT32, large.epsilon)
    kept = raw_metadata(file)
    return [raw for key, raw in kept.items() if key not in new] + list(new.values())


def _text(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()
