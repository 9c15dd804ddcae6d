"""What passes of n tokens cost with each type of weights, on this machine.

The target is converted to each type by llama.cpp's quantiser (speed does not depend on what the
weights are), and passes of all sizes are timed in turns, each `--rounds` times, those of one token
more often; the least time counts. Printed are tables for `benchmarks/data/stepped.toml`: T(n)/T(1),
with the processor's name.

It takes two minutes a type with 1.5B, and no other program may run meanwhile. With --one-row only
the last token's logits are asked for, as in a prompt: the difference is what the vocabulary's rows
cost a verify pass:

    uv run python -m benchmarks.kernel_steps TARGET.gguf --folder FOLDER
"""

from __future__ import annotations

import argparse
import math
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
    parser.add_argument("--one-row", action="store_true")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    for name in given.types:
        model = typed(given.target, name, given.folder)
        ratios = {n: f"{n} = {ratio:.2f}" for n, ratio in steps(model, given).items() if n > 1}
        print(f'[[stepped]]\nmachine = "{machine()}"')
        print(f'model = "{given.target.stem}, {name.upper()}"\nhow = "verify pass"')
        print('source = "benchmarks/kernel_steps.py"')
        print(f"times = {{ {', '.join(ratios.values())} }}\n", flush=True)


def steps(path: Path, given: argparse.Namespace) -> dict[int, float]:
    """T(n)/T(1) of a model with an empty cache."""
    options = ContextOptions(n_ctx=512, threads=given.threads, flash_attention=True)
    turn = [size for at, n in enumerate(SIZES) for size in ((n,) if at % 6 else (1, n))]
    sizes = turn * given.rounds
    with Model.load(path) as model, Context(model, options) as context:
        most, one = len(sizes) + 1, given.one_row
        timing = measure(context, sizes, budget=math.inf, passes=most, one_row=one)
    print(f"# {timing.spread:.0%} between the times of a size", flush=True)
    return {n: seconds / timing.points[1] for n, seconds in timing.points.items()}


if __name__ == "__main__":
    main()
