"""Turn a checkpoint or an F32 GGUF file of training into the file that ships.

python models/convert.py WORK/final.gguf models/demo/target-Q8_0.gguf --type q8_0
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
    args = parser.parse_args()
    name = args.name or (name_of(args.model) if args.model.suffix == ".gguf" else "localspec demo")
    tokenizer = Tokenizer.from_file(str(args.tokenizer))
    export.save(read(args.model), tokenizer, args.out, kind=args.type, name=name)


if __name__ == "__main__":
    main()
