"""Write larger GGUF files that compute the same function as the demo pair.

    python models/enlarge.py demo --target-size 1.5G --draft-size 150M --heads --type q8_0 OUT_DIR

With `--heads` an EAGLE-3 head for the larger target, and that target once more with MTP in it. So a
benchmark has the real acceptance of a trained pair at the cost of a laptop-sized one. The work is
done by `localspec.pairs.gguf.padding`, which adds nothing but zeros and keeps the type of the
weights; here the small model gets the type that is asked for first.
"""

from __future__ import annotations

import argparse
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
from localspec.pairs.gguf.padding import pad, pad_head, read_shape, sized

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
    writer = gguf.GGUFWriter(out, reader.fields["general.architecture"].contents())
    for key, field in reader.fields.items():
        if key.startswith("GGUF.") or key in {"general.architecture", "general.file_type"}:
            continue
        inner = field.types[-1] if len(field.types) > 1 else None
        writer.add_key_value(key, field.contents(), field.types[0], inner)
    writer.add_file_type(gguf.LlamaFileType[f"MOSTLY_{kind.name}" if kind else "ALL_F32"])
    for tensor in reader.tensors:
        values = np.asarray(gguf.dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
        stored = kind if values.ndim > 1 else Kind.F32
        writer.add_tensor(tensor.name, gguf.quantize(values, stored), raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


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


def enlarge_head(source: Path, out: Path, target: Path, kind: str) -> None:
    """Write an EAGLE-3 head for the enlarged `target` in the type `kind`."""
    if kind not in PLAIN:
        raise EnlargeError(f"heads can be had in {', '.join(PLAIN)}")
    try:
        with tempfile.TemporaryDirectory(dir=out.parent) as folder:
            retype(source, typed := Path(folder) / "typed.gguf", PLAIN[kind])
            pad_head(typed, out, target)
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
    parser.add_argument("--heads", action="store_true", help="eagle3*.gguf and mtp*.gguf as well")
    parser.add_argument("--type", default="f16", help="f16, q8_0, q4_0, q4_k_m ... (default f16)")
    args = parser.parse_args()
    kind = args.type.lower()
    if args.heads and args.target_size is None:
        parser.error("--heads needs --target-size")
    args.out.mkdir(parents=True, exist_ok=True)
    sizes = {"target": args.target_size, "draft": args.draft_size}
    sizes |= {"mtp": args.target_size} if args.heads else {}
    files = {role: args.out / f"{role}-{kind.upper()}.gguf" for role in (*sizes, "eagle3")}
    try:
        for role, size in sizes.items():
            if size is None:
                continue
            shape = enlarge(find(args.pair, role), files[role], size, kind)
            print(
                f"{files[role]}: {files[role].stat().st_size / 1e6:.0f} MB, {shape.layers} layers, "
                f"{shape.width} wide, {shape.heads} heads, {shape.feed_forward} feed-forward"
            )
        if args.heads:
            head = files["eagle3"]
            enlarge_head(find(args.pair, "eagle3"), head, files["target"], kind)
            print(f"{head}: {head.stat().st_size / 1e6:.0f} MB")
    except EnlargeError as error:
        sys.exit(f"enlarge: {error}")


if __name__ == "__main__":
    main()
