"""Turn a checkpoint or an F32 GGUF file of training into the file that ships.

python models/convert.py WORK/final.gguf models/demo/target-Q8_0.gguf --type q8_0

With `--blend OLD.gguf --share 0.2` the weights are the mean of both, a fifth of it the other's.
Where one model was trained on from the other, that wins back what it forgot and keeps most of what
it learned (arXiv 2109.01903).
"""

from __future__ import annotations

import argparse
from pathlib import Path

import export
import gguf
import torch
from model import Llama, Shape
from tokenizers import Tokenizer
from train import HERE


def read(path: Path) -> Llama:
    """Read the model of a GGUF file, or of a checkpoint of `train.py`."""
    if path.suffix == ".gguf":
        return export.load(path)[0]
    state = torch.load(path, map_location="cpu", weights_only=False)
    model = Llama(Shape(**state["shape"]))
    model.load_state_dict(state["model"])
    return model


def blend(model: Llama, other: Llama, share: float) -> None:
    """Move every weight of a model by a share of the way to another one's."""
    with torch.no_grad():
        for mine, its in zip(model.parameters(), other.parameters(), strict=True):
            mine.lerp_(its, share)


def name_of(path: Path) -> str:
    """Return the name in a GGUF file."""
    return gguf.GGUFReader(path).fields["general.name"].contents()


def main() -> None:
    """Read and write."""
    parser = argparse.ArgumentParser(description="Convert a trained model to a GGUF type.")
    parser.add_argument("model", type=Path, help="GGUF file or last.pt")
    parser.add_argument("out", type=Path)
    parser.add_argument("--type", choices=sorted(export.KINDS), default="q8_0")
    parser.add_argument("--name", help="general.name (default: that of the GGUF file)")
    parser.add_argument("--tokenizer", type=Path, default=HERE / "tokenizer.json")
    parser.add_argument("--blend", type=Path, help="a model of the same shape to mix in")
    parser.add_argument("--share", type=float, default=0.2, help="how much of it (default 0.2)")
    args = parser.parse_args()
    name = args.name or (name_of(args.model) if args.model.suffix == ".gguf" else "localspec demo")
    tokenizer = Tokenizer.from_file(str(args.tokenizer))
    model = read(args.model)
    if args.blend:
        blend(model, read(args.blend), args.share)
    export.save(model, tokenizer, args.out, kind=args.type, name=name)


if __name__ == "__main__":
    main()
