"""Write larger GGUF files that compute the same function as the demo pair.

    python models/enlarge.py demo --target-size 1.5G --draft-size 150M --type f16 OUT_DIR

So a benchmark has the real acceptance of a trained pair at the cost of a laptop-sized one. The work
is done by `localspec.pairs.gguf.padding`, which adds nothing but zeros and keeps the type of the
weights; here the small model gets the type that is asked for first.
"""

from __future__ import annotations

import argparse
import math
import re
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Kind

from localspec.errors import LocalspecError
from localspec.pairs.gguf.header import read_header
from localspec.pairs.gguf.padding import pad, read_shape, sized

if TYPE_CHECKING:
    from localspec.pairs.gguf.padding import Shape

DEMO = Path(__file__).parent / "demo"

PLAIN = {"f32": Kind.F32, "f16": Kind.F16, "bf16": Kind.BF16, "q8_0": Kind.Q8_0}
PLAIN |= {"q4_0": Kind.Q4_0, "q4_1": Kind.Q4_1, "q5_0": Kind.Q5_0, "q5_1": Kind.Q5_1}
"""Types that the `gguf` package writes. Others of llama.cpp's go through its quantiser."""


class EnlargeError(Exception):
    """The file cannot be enlarged as asked."""


def parse_size(text: str) -> int:
    """Read a number of bytes: 150M, 1.5G (powers of 1,000)."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kMG]?)", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"not a size: {text} (try 150M or 1.5G)")
    return round(float(match[1]) * 1000 ** " kMG".index(match[2] or " "))


def bits(kind: str) -> float:
    """Return the bits that a weight takes, roughly for types that llama.cpp mixes."""
    if kind in PLAIN:
        block, size = gguf.GGML_QUANT_SIZES[PLAIN[kind]]
        return 8 * size / block
    match = re.search(r"[a-z](\d)", kind)
    if match is None:
        raise EnlargeError(f"unknown type: {kind}")
    return int(match[1]) + 0.75


def retype(source: Path, out: Path, kind: Kind) -> None:
    """Write `source` with its matrices in another type."""
    reader = gguf.GGUFReader(source)
    writer = _copied(reader, out, {"general.file_type": None})
    writer.add_file_type(gguf.LlamaFileType[f"MOSTLY_{kind.name}" if kind else "ALL_F32"])
    for tensor in reader.tensors:
        values = np.asarray(gguf.dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
        stored = kind if values.ndim > 1 else Kind.F32
        writer.add_tensor(tensor.name, gguf.quantize(values, stored), raw_dtype=stored)
    _save(writer)


def _copied(reader: gguf.GGUFReader, out: Path, other: dict[str, object]) -> gguf.GGUFWriter:
    """A file with the keys of another; those in `other` have its values, None leaves them out."""
    writer = gguf.GGUFWriter(out, reader.fields["general.architecture"].contents())
    for key, field in reader.fields.items():
        value = other.get(key, field.contents())
        if not key.startswith("GGUF.") and key != "general.architecture" and value is not None:
            inner = field.types[-1] if len(field.types) > 1 else None
            writer.add_key_value(key, value, field.types[0], inner)
    return writer


def _save(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def pad_head(source: Path, out: Path, target: Path) -> None:
    """Write an EAGLE-3 head of a model for the same model padded; it drafts what it drafted.

    It is as wide as the target's residual stream, in which its own numbers come first. Of what it
    reads (three layers, or token and state) each part grows by itself. Heads of attention and
    feed-forward part stay.

    Raises:
        EnlargeError: it is no EAGLE-3 head, or has its own embeddings, or is another's.
    """
    header, width = read_header(source), read_header(target).setting("embedding_length")
    own, reader = header.setting("embedding_length"), gguf.GGUFReader(source)
    if header.architecture != "eagle3" or header.setting("target_hidden_size") != own:
        raise EnlargeError(f"{source.name} is no head for a model as wide as itself")
    if not own or width % own or any(t.name.startswith("token_embd") for t in reader.tensors):
        raise EnlargeError(f"{source.name} cannot be padded to a width of {width}")
    numbers: dict[str, object] = dict.fromkeys(("embedding_length", "target_hidden_size"), width)
    numbers |= dict.fromkeys(("attention.key_length", "attention.value_length"))  # added below
    epsilon = "attention.layer_norm_rms_epsilon"
    numbers[epsilon] = reader.fields[header.arch_key(epsilon)].contents() * own / width
    writer = _copied(reader, out, {header.arch_key(name): one for name, one in numbers.items()})
    head = own // header.setting("attention.head_count")
    writer.add_key_length(head)
    writer.add_value_length(head)
    parts = {"fc": len(header.settings("target_layers")), "attn_q": 2, "attn_k": 2, "attn_v": 2}
    for tensor in reader.tensors:
        _add_grown(writer, tensor, parts, own, width)
    _save(writer)


def _add_grown(
    writer: gguf.GGUFWriter, tensor: gguf.ReaderTensor, parts: dict[str, int], own: int, width: int
) -> None:
    """Add a head's tensor, `width` wide where it was as wide as the head."""
    name = tensor.name.removesuffix(".weight").rsplit(".", 1)[-1]
    if tensor.data.ndim == 1:
        norm = np.zeros(width, np.float32)
        norm[:own] = tensor.data * np.float32(math.sqrt(own / width))
        writer.add_tensor(tensor.name, norm)
        return
    n_in, n_out = (int(n) for n in tensor.shape)
    reads = name not in {"attn_output", "ffn_down"}
    old = tensor.data.view(np.uint8).reshape(n_out, parts.get(name, 1), -1)
    block, size = gguf.GGML_QUANT_SIZES[tensor.tensor_type]
    row = (width if reads else n_in) // block * size
    rows = width if name in {"fc", "attn_output", "ffn_down"} else n_out
    new = np.zeros((rows, old.shape[1], row), np.uint8)
    new[:n_out, :, : old.shape[2]] = old
    writer.add_tensor(tensor.name, new.reshape(rows, -1), raw_dtype=tensor.tensor_type)


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
    try:
        small = read_shape(read_header(source))
        plain = PLAIN.get(kind)
        wanted = sized(small, 8 * size / bits(kind), 32 if plain is not None else 256)
        with tempfile.TemporaryDirectory(dir=out.parent) as folder:
            typed, padded = Path(folder) / "typed.gguf", Path(folder) / "padded.gguf"
            retype(source, typed, Kind.F16 if plain is None else plain)
            if plain is not None:
                return pad(typed, out, size)
            pad(typed, padded, 2 * wanted.parameters, 256)
            requantise(padded, out, kind)
            return wanted
    except LocalspecError as error:
        raise EnlargeError(error.message) from None


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
