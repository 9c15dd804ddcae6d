"""Write larger GGUF files that compute the same function as the demo pair.

    python models/enlarge.py demo --target-size 1.5G --draft-size 150M --type f16 OUT_DIR

So a benchmark has the real acceptance of a trained pair at the cost of a laptop-sized one. All that
is added is zero: a wider residual stream, more attention heads and feed-forward columns of which
nothing comes back, and layers that add nothing. Kernels multiply zeros as they do other numbers.

Why the function stays: the padded part of the residual stream is zero everywhere. An RMS norm over
D instead of d dimensions sees a mean square of d/D times the old one, so an epsilon of d/D times
the old one makes its result sqrt(D/d) times too large, which norm weights of sqrt(d/D) times the
old ones take back. The width of a head stays, and with it the scale of attention and the rotation.
D is d, 4 d or 16 d: then all of these factors are powers of two, and where the type stays as well
(Q8_0 from Q8_0) not a bit of the result changes.

Only models of the `llama` architecture with as many key heads as query heads, and tied embeddings.
"""

from __future__ import annotations

import argparse
import math
import re
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Kind

if TYPE_CHECKING:
    from collections.abc import Iterator

DEMO = Path(__file__).parent / "demo"

PLAIN = {"f32": Kind.F32, "f16": Kind.F16, "bf16": Kind.BF16, "q8_0": Kind.Q8_0}
PLAIN |= {"q4_0": Kind.Q4_0, "q4_1": Kind.Q4_1, "q5_0": Kind.Q5_0, "q5_1": Kind.Q5_1}
"""Types that the `gguf` package writes. Others of llama.cpp's go through its quantiser."""

CHUNK_BYTES = 1 << 24
SHAPE_KEYS = ("embedding_length", "block_count", "feed_forward_length")
SHAPE_KEYS += ("attention.head_count", "attention.head_count_kv", "rope.dimension_count")
SHAPE_KEYS += ("attention.layer_norm_rms_epsilon",)


class EnlargeError(Exception):
    """The file cannot be enlarged as asked."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes that grow."""

    vocab: int
    width: int
    layers: int
    heads: int
    feed_forward: int
    head: int
    """Width of one head; it stays."""
    epsilon: float

    @property
    def parameters(self) -> int:
        """Number of weights in matrices."""
        layer = 4 * self.width * self.heads * self.head + 3 * self.width * self.feed_forward
        return self.vocab * self.width + self.layers * layer

    def grown(self, width: int, layers: int, feed_forward: int) -> Shape:
        """Return larger sizes, the heads filling the width and the epsilon following it."""
        return replace(
            self,
            width=width,
            layers=layers,
            feed_forward=feed_forward,
            heads=width // self.head,
            epsilon=self.epsilon * self.width / width,
        )


def parse_size(text: str) -> int:
    """Read a number of bytes: 150M, 1.5G (powers of 1,000)."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kMG]?)", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"not a size: {text} (try 150M or 1.5G)")
    return round(float(match[1]) * 1000 ** " kMG".index(match[2] or " "))


def read_shape(reader: gguf.GGUFReader) -> Shape:
    """Read the sizes of a model that can be enlarged."""

    def value(key: str) -> float:
        return reader.fields[key].contents()

    if value("general.architecture") != "llama":
        raise EnlargeError("only the llama architecture can be enlarged")
    heads = int(value("llama.attention.head_count"))
    if int(value("llama.attention.head_count_kv")) != heads:
        raise EnlargeError("only models with as many key heads as query heads can be enlarged")
    if any(tensor.name == "output.weight" for tensor in reader.tensors):
        raise EnlargeError("only models with tied embeddings can be enlarged")
    width = int(value("llama.embedding_length"))
    return Shape(
        vocab=len(value("tokenizer.ggml.tokens")),
        width=width,
        layers=int(value("llama.block_count")),
        heads=heads,
        feed_forward=int(value("llama.feed_forward_length")),
        head=width // heads,
        epsilon=value("llama.attention.layer_norm_rms_epsilon"),
    )


def bits(kind: str) -> float:
    """Return the bits that a weight takes, roughly for types that llama.cpp mixes."""
    if kind in PLAIN:
        block, size = gguf.GGML_QUANT_SIZES[PLAIN[kind]]
        return 8 * size / block
    match = re.search(r"[a-z](\d)", kind)
    if match is None:
        raise EnlargeError(f"unknown type: {kind}")
    return int(match[1]) + 0.75


def sized(small: Shape, parameters: float, step: int) -> Shape:
    """Choose sizes with about that many parameters, shaped like a usual model.

    Usual is a layer for every 128 of width, and a feed-forward part 8/3 as wide. The width is that
    of the small model times a power of four, a multiple of `step` if possible. The feed-forward
    width takes up what is left over.
    """
    best: tuple[float, Shape] | None = None
    for width in (small.width * 4**power for power in range(4)):
        if width % step:
            continue
        least = -(-small.feed_forward // step) * step
        usual = small.grown(width, 1, max(least, round(8 / 3 * width)))
        layer = usual.parameters - small.vocab * width
        blocks = parameters - small.vocab * width
        layers = max(small.layers, round(blocks / layer))
        if layers > small.layers and wide_for(blocks, layers, width, step) < least:
            layers -= 1  # rounded up to more than there is room for
        wide = wide_for(blocks, layers, width, step)
        if wide < least:
            continue
        oddness = abs(math.log(layers / (width / 128)))
        if best is None or oddness < best[0]:
            best = (oddness, small.grown(width, layers, wide))
    if best is None:
        raise EnlargeError("that size is smaller than the model itself")
    return best[1]


def wide_for(blocks: float, layers: int, width: int, step: int) -> int:
    """Return the feed-forward width at which so many layers have `blocks` parameters."""
    return round((blocks / layers - 4 * width * width) / 3 / width / step) * step


def padded_shape(name: str, small: Shape, large: Shape) -> tuple[int, ...]:
    """Return the NumPy shape of a tensor in the larger model."""
    inner = large.heads * large.head
    part = name.removesuffix(".weight").rsplit(".", 1)[-1]
    known: dict[str, tuple[int, ...]] = {
        "token_embd": (small.vocab, large.width),
        "output_norm": (large.width,),
        "attn_norm": (large.width,),
        "ffn_norm": (large.width,),
        "attn_q": (inner, large.width),
        "attn_k": (inner, large.width),
        "attn_v": (inner, large.width),
        "attn_output": (large.width, inner),
        "ffn_gate": (large.feed_forward, large.width),
        "ffn_up": (large.feed_forward, large.width),
        "ffn_down": (large.width, large.feed_forward),
    }
    if part not in known:
        raise EnlargeError(f"unknown tensor: {name}")
    return known[part]


def plan(reader: gguf.GGUFReader, small: Shape, large: Shape) -> Iterator[tuple[str, object]]:
    """Yield every tensor of the larger model by name, with the old one, or None for a new layer."""
    old = {tensor.name: tensor for tensor in reader.tensors}
    yield from ((name, tensor) for name, tensor in old.items())
    parts = [name.removeprefix("blk.0.") for name in old if name.startswith("blk.0.")]
    for layer in range(small.layers, large.layers):
        yield from ((f"blk.{layer}.{part}", None) for part in parts)


def row_bytes(columns: int, kind: Kind) -> int:
    """Return the bytes of one row."""
    block, size = gguf.GGML_QUANT_SIZES[kind]
    return columns // block * size


def pieces(tensor: object, shape: tuple[int, ...], kind: Kind, gain: float) -> Iterator[np.ndarray]:
    """Yield the bytes of a tensor padded to `shape`, a few rows at a time.

    Vectors are norms: they are multiplied by `gain`.
    """
    values = np.zeros((0,) * len(shape), dtype=np.float32)
    if tensor is not None:
        values = np.asarray(gguf.dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
    if len(shape) == 1:
        row = np.zeros(shape, dtype=np.float32)
        row[: len(values)] = values * np.float32(gain)
        yield row.view(np.uint8)
        return
    rows, columns = shape
    chunk = max(1, CHUNK_BYTES // (4 * columns))
    for start in range(0, len(values), chunk):
        part = values[start : start + chunk]
        wide = np.pad(part, ((0, 0), (0, columns - values.shape[1])))
        yield gguf.quantize(wide, kind).view(np.uint8)
    nothing = gguf.quantize(np.zeros((1, columns), dtype=np.float32), kind).view(np.uint8)
    for start in range(len(values), rows, chunk):
        yield np.repeat(nothing, min(chunk, rows - start), axis=0)


def copy_metadata(reader: gguf.GGUFReader, writer: gguf.GGUFWriter) -> None:
    """Copy every field but the sizes and what the writer sets itself."""
    skipped = {"general.architecture", "general.file_type"} | {f"llama.{key}" for key in SHAPE_KEYS}
    for key, field in reader.fields.items():
        if key.startswith("GGUF.") or key in skipped:
            continue
        inner = field.types[-1] if len(field.types) > 1 else None
        writer.add_key_value(key, field.contents(), field.types[0], inner)


def write_sizes(writer: gguf.GGUFWriter, large: Shape) -> None:
    """Write the new sizes."""
    writer.add_embedding_length(large.width)
    writer.add_block_count(large.layers)
    writer.add_feed_forward_length(large.feed_forward)
    writer.add_head_count(large.heads)
    writer.add_head_count_kv(large.heads)
    writer.add_key_length(large.head)
    writer.add_value_length(large.head)
    writer.add_rope_dimension_count(large.head)
    writer.add_layer_norm_rms_eps(large.epsilon)


def write(source: Path, out: Path, large: Shape, kind: Kind) -> None:
    """Write `source` enlarged; holds a few megabytes of it in memory at a time."""
    reader = gguf.GGUFReader(source)
    small = read_shape(reader)
    gain = math.sqrt(small.width / large.width)
    writer = gguf.GGUFWriter(out, "llama")
    copy_metadata(reader, writer)
    write_sizes(writer, large)
    writer.add_file_type(gguf.LlamaFileType[f"MOSTLY_{kind.name}" if kind else "ALL_F32"])
    todo = []
    for name, tensor in plan(reader, small, large):
        shape = padded_shape(name, small, large)
        stored = kind if len(shape) == 2 else Kind.F32
        size = math.prod(shape[:-1]) * row_bytes(shape[-1], stored)
        writer.add_tensor_info(name, shape, np.dtype(np.float32), size, raw_dtype=stored)
        todo.append((tensor, shape, stored))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    with out.open("ab") as file:
        for tensor, shape, stored in todo:
            file.write(bytes(-file.tell() % gguf.GGUF_DEFAULT_ALIGNMENT))
            for piece in pieces(tensor, shape, stored, gain):
                piece.tofile(file)
        file.write(bytes(-file.tell() % gguf.GGUF_DEFAULT_ALIGNMENT))


def requantise(source: Path, out: Path, kind: str) -> None:
    """Let llama.cpp write one of its mixed types, from F16."""
    import llama_cpp  # noqa: PLC0415 - only these types need it

    code = getattr(llama_cpp, f"LLAMA_FTYPE_MOSTLY_{kind.upper()}", None)
    if code is None:
        raise EnlargeError(f"llama.cpp has no type {kind}")
    options = llama_cpp.llama_model_quantize_default_params()
    options.ftype = code
    if llama_cpp.llama_model_quantize(str(source).encode(), str(out).encode(), options):
        raise EnlargeError(f"llama.cpp could not write {kind}")


def enlarge(source: Path, out: Path, size: int, kind: str) -> Shape:
    """Write `source` at about `size` bytes in the type `kind`; return the sizes chosen."""
    small = read_shape(gguf.GGUFReader(source))
    plain = PLAIN.get(kind)
    step = 32 if plain is not None else 256
    large = sized(small, 8 * size / bits(kind), step)
    if plain is not None:
        write(source, out, large, plain)
        return large
    with tempfile.TemporaryDirectory(dir=out.parent) as folder:
        first = Path(folder) / "f16.gguf"
        write(source, first, large, Kind.F16)
        requantise(first, out, kind)
    return large


def find(pair: str, role: str) -> Path:
    """Find the target or the draft of `demo`, or of a folder."""
    folder = DEMO if pair == "demo" else Path(pair)
    files = sorted(folder.glob(f"{role}*.gguf"))
    if len(files) != 1:
        raise EnlargeError(f"{folder} must hold one {role}*.gguf, it holds {len(files)}")
    return files[0]


def main() -> None:
    """Enlarge both models of a pair."""
    parser = argparse.ArgumentParser(
        description="Write a larger pair that computes the same function."
    )
    parser.add_argument("pair", help="demo, or a folder with target*.gguf and draft*.gguf")
    parser.add_argument("out", type=Path, metavar="OUT_DIR")
    parser.add_argument("--target-size", type=parse_size, metavar="SIZE", help="such as 1.5G")
    parser.add_argument("--draft-size", type=parse_size, metavar="SIZE", help="such as 150M")
    parser.add_argument("--type", default="f16", help="f16, q8_0, q4_0, q4_k_m ... (default f16)")
    args = parser.parse_args()
    kind = args.type.lower()
    args.out.mkdir(parents=True, exist_ok=True)
    try:
        for role, size in (("target", args.target_size), ("draft", args.draft_size)):
            if size is None:
                continue
            out = args.out / f"{role}-{kind.upper()}.gguf"
            shape = enlarge(find(args.pair, role), out, size, kind)
            print(
                f"{out}: {out.stat().st_size / 1e6:.0f} MB, {shape.layers} layers, "
                f"{shape.width} wide, {shape.heads} heads, {shape.feed_forward} feed-forward"
            )
    except EnlargeError as error:
        sys.exit(f"enlarge: {error}")


if __name__ == "__main__":
    main()
