"""What the target's passes over a few tokens take, over one over one: model by model.

    uv run python benchmarks/pass_costs.py FILE.gguf [FILE.gguf ...] [--threads 1 2]

Drafting can gain only where a pass over several tokens takes hardly longer than one over one. That
is a matter of llama.cpp's kernels for the weights' type as much as of the machine: enlarge the demo
in several types (`models/enlarge.py demo --target-size 300M --draft-size 30M --type q4_k_m DIR`)
and compare. Behind 64 tokens; sizes take turns, and the least time counts. The machine has to be
idle; takes some seconds a model.
"""

from __future__ import annotations

import argparse
import os
import time
from collections import defaultdict
from pathlib import Path

from localspec.engine.length.profile import fill, scratch
from localspec.engine.llama import Context, ContextOptions, Model

SIZES = (1, 2, 3, 4, 5, 6, 8, 12, 16, 32, 64)
REPEATS = 7
BEHIND = 64


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    parser.add_argument("--threads", nargs="+", type=int, default=[1, os.cpu_count() or 1])
    args = parser.parse_args()
    print(f"| model | threads | T(1), ms | {' | '.join(f'T({n})' for n in SIZES[1:])} |")
    print("|---|---|---|" + "---|" * (len(SIZES) - 1))
    for path in args.files:
        model = Model.load(path)
        context = Context(model, ContextOptions(n_ctx=512))
        fill(context, BEHIND)
        for threads in args.threads:
            context.threads.use(threads)
            least = measured(context)
            cells = [f"{least[n] / least[1]:.2f}" for n in SIZES[1:]]
            print(f"| {path.stem} | {threads} | {1e3 * least[1]:.1f} | {' | '.join(cells)} |")
        context.close()
        model.close()


def measured(context: Context) -> dict[int, float]:
    """Seconds of a pass of each size, the least of several."""
    found: defaultdict[int, list[float]] = defaultdict(list)
    held = len(context.tokens)
    for _ in range(REPEATS):
        for n in SIZES:
            begun = time.perf_counter()
            context.decode(scratch(context, n), n)
            context.wait()
            found[n].append(time.perf_counter() - begun)
            context.truncate(held)
    return {n: min(times) for n, times in found.items()}


if __name__ == "__main__":
    main()
