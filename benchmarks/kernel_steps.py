"""What passes of n tokens cost with each type of weights, on this machine.

The target is converted to each type by llama.cpp's quantiser (speed does not depend on what the
weights are), and passes of all sizes are timed in turns, each `--rounds` times; the least time
counts. Printed is a table for `benchmarks/data/measured.toml`, T(n)/T(1) with the processor's name.
It takes two minutes a type with 1.5B, and no other program may run meanwhile:

    uv run python -m benchmarks.kernel_steps TARGET.gguf --folder FOLDER
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final

from benchmarks.partings import TYPES, typed
from localspec.engine.length.profile import measure
from localspec.engine.llama import Context, ContextOptions, Model, machine

SIZES: Final = (*range(1, 13), *range(14, 34), 40, 47, 48, 49, 56, 63, 64)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("target", type=Path)
    parser.add_argument("--folder", type=Path, required=True, help="for the converted models")
    parser.add_argument("--types", nargs="+", choices=TYPES, default=[*TYPES])
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--threads", type=int, default=2)
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    print(f"# {machine()}, {given.threads} threads", flush=True)
    for name in given.types:
        model = typed(given.target, name, given.folder)
        ratios = {n: f"{n} = {ratio:.2f}" for n, ratio in steps(model, given).items() if n > 1}
        print(f'\n[[measured]]\nmodel = "{name.upper()}"')
        print(f"times = {{ {', '.join(ratios.values())} }}", flush=True)


def steps(path: Path, given: argparse.Namespace) -> dict[int, float]:
    """T(n)/T(1) of a model with an empty cache."""
    options = ContextOptions(n_ctx=512, threads=given.threads, flash_attention=True)
    sizes = [*SIZES] * given.rounds
    with Model.load(path) as model, Context(model, options) as context:
        timing = measure(context, sizes, budget=600.0, passes=len(sizes) + 1)
    return {n: seconds / timing.points[1] for n, seconds in timing.points.items()}


if __name__ == "__main__":
    main()
