"""Time to the first token with a draft loaded and without one: the draft must not delay it.

    uv run python benchmarks/first_token.py [--target T.gguf --draft D.gguf] [--tokens 400]

One process, one loaded target, two contexts of it: one beside a draft, one alone. Both answer the
same prompts from an empty cache, in random order. Reported: the ratio of the two times (with over
without), pair by pair, as its median with a 95 % interval from 10,000 resamples. Takes half a
minute with the demo pair.
"""

from __future__ import annotations

import argparse
import os
import platform
import random
import time
from pathlib import Path

import numpy as np

from localspec.engine.cancel import Cancel
from localspec.engine.drafter import ModelDrafter
from localspec.engine.generate import Engine, GenerateSettings
from localspec.engine.length.gamma import FixedGamma
from localspec.engine.llama import Context, ContextOptions, Model
from localspec.engine.sampling import SamplingParams

DEMO = Path(__file__).parents[1] / "tests" / "data" / "toy"
BOUND = 1.02


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--target", type=Path, default=next(DEMO.glob("target-*.gguf"), None))
    parser.add_argument("--draft", type=Path, default=next(DEMO.glob("draft-*.gguf"), None))
    parser.add_argument("--tokens", type=int, default=400, help="length of the prompt")
    parser.add_argument("--pairs", type=int, default=60)
    parser.add_argument("--threads", type=int)
    arguments = parser.parse_args()
    options = ContextOptions(n_ctx=2 * arguments.tokens, threads=arguments.threads)
    with (
        Model.load(arguments.target) as target,
        Model.load(arguments.draft) as draft,
        Context(target, options) as beside,
        Context(target, options) as alone,
        Context(draft, options) as drafting,
    ):
        engines = {
            "with": Engine(beside, ModelDrafter(drafting, target.n_vocab)),
            "without": Engine(alone),
        }
        report(arguments, measure(engines, arguments))


def measure(engines: dict[str, Engine], arguments: argparse.Namespace) -> dict[str, list[float]]:
    """Seconds to the first token, one entry a prompt."""
    rng = random.Random(0)
    found: dict[str, list[float]] = {how: [] for how in engines}
    for number in range(arguments.pairs + 2):
        n_vocab = engines["with"].target.model.n_vocab
        prompt = [rng.randrange(10, n_vocab) for _ in range(arguments.tokens)]
        for how in rng.sample(list(engines), len(engines)):
            seconds = first_token(engines[how], prompt)
            if number > 1:  # the first two warm up
                found[how].append(seconds)
    return found


def first_token(engine: Engine, prompt: list[int]) -> float:
    """Answer `prompt` from an empty cache up to the first token, and a little further."""
    engine.target.clear()
    cancel = Cancel()
    settings = GenerateSettings(sampling=SamplingParams(temperature=0), n_predict=8)
    started = time.perf_counter()
    for _ in engine.prefill(prompt, cancel):
        pass
    rounds = engine.generate(prompt, settings, FixedGamma(3), cancel)
    next(rounds)
    seconds = time.perf_counter() - started
    for _ in rounds:  # the draft reads the prompt now, as it does in use
        pass
    return seconds


def report(arguments: argparse.Namespace, found: dict[str, list[float]]) -> None:
    ratios = np.array(found["with"]) / np.array(found["without"])
    rng = np.random.default_rng(0)
    medians = np.median(rng.choice(ratios, (10_000, len(ratios))), axis=1)
    low, high = np.quantile(medians, [0.025, 0.975])
    print(f"{arguments.target.name} beside {arguments.draft.name}, {arguments.tokens} tokens, "
          f"{len(ratios)} pairs; {platform.machine()}, {os.cpu_count()} cores, "
          f"load {os.getloadavg()[0]:.1f}\n")  # fmt: skip
    print("| time to first token | |")
    print("|---|---|")
    print(f"| without a draft | {1e3 * np.median(found['without']):.1f} ms |")
    print(f"| with a draft loaded | {1e3 * np.median(found['with']):.1f} ms |")
    print(f"| ratio, 95 % interval | {np.median(ratios):.3f} ({low:.3f} to {high:.3f}) |")
    verdict = "met" if low <= BOUND else "not met"
    print(f"\nat most 2 % later: {verdict if high - low <= 0.02 or high <= BOUND else 'undecided'}")


if __name__ == "__main__":
    main()
