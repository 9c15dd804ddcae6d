"""Whether it would pay to let the draft go on while the target verifies (2408.11850, 2405.14105).

    python benchmarks/side_by_side.py measure TARGET DRAFT [--threads 1]
    python benchmarks/side_by_side.py simulate [--tokens 1500]

`measure`: how many times longer decodes of both models take while the other one decodes in a thread
of its own, with so many threads each, and what both take with all cores and in turn: the better of
one and all threads. The machine has to be idle. Takes a minute.
`simulate`: the simulator, with the cost curves of other machines: what the best fixed draft length
and automatic gamma gain where each model has compute and memory of its own, and what is left of it
where both share some of it. Takes two minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median

from simulator import CURVES, Beside, Position, Text, World, replay, steady

from localspec.engine.length.cost import Costs, Points
from localspec.engine.length.gamma import AutoGamma, FixedGamma
from localspec.engine.llama import Context, ContextOptions, Model
from localspec.engine.stats import DRAFT

RECORDED = Path(__file__).parent.parent / "tests" / "data" / "gamma_rounds.json"
ACCEPTANCES = (0.5, 0.7, 0.9)
STEPS = (0.1, 0.3, 0.5)
FIXED = (0, 1, 2, 3, 4, 6, 8, 12)
SHARED = (1.0, 1.1, 1.25, 1.5, 2.0)
NAMES = ("target", "draft")
ROWS = 4  # of the target's pass
ROUNDS = 7


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    commands = parser.add_subparsers(required=True)
    measuring = commands.add_parser("measure")
    measuring.add_argument("target", type=Path)
    measuring.add_argument("draft", type=Path)
    measuring.add_argument("--threads", type=int, default=1)
    measuring.set_defaults(run=measure)
    simulating = commands.add_parser("simulate")
    simulating.add_argument("--tokens", type=int, default=1500)
    simulating.set_defaults(run=simulate)
    arguments = parser.parse_args()
    arguments.run(arguments)


def measure(arguments: argparse.Namespace) -> None:
    """Time both models alone and beside each other, in turn."""
    cores = os.cpu_count() or 1
    models = [Model.load(path) for path in (arguments.target, arguments.draft)]
    contexts = [Context(model, ContextOptions(n_ctx=256)) for model in models]
    target, draft = (Decodes(each, rows) for each, rows in zip(contexts, (ROWS, 1), strict=True))
    ways: dict[str, list[float]] = {}
    for _ in range(ROUNDS):
        for threads in sorted({arguments.threads, cores}):
            for context in contexts:
                context.threads.use(threads)
            for name, one, other in (("target", target, draft), ("draft", draft, target)):
                ways.setdefault(f"{name} alone, {threads}", []).append(one.seconds())
                if threads == arguments.threads:
                    with other.going_on():
                        ways.setdefault(f"{name} beside", []).append(one.seconds())
    found = {way: median(times) for way, times in ways.items()}
    print(f"{platform.machine()}, {cores} cores, load {os.getloadavg()[0]:.1f}. Milliseconds of a"
          f" decode ({ROWS} tokens of the target, 1 of the draft):")  # fmt: skip
    for way, seconds in found.items():
        print(f"  {way}: {1000 * seconds:.2f}")
    together = Beside(*(_over(found, name, arguments.threads, cores) for name in NAMES))
    slower = [
        found[f"{name} beside"] / found[f"{name} alone, {arguments.threads}"] for name in NAMES
    ]
    print(f"With {arguments.threads} threads each, beside each other over alone: target"
          f" {slower[0]:.2f}, draft {slower[1]:.2f}.")  # fmt: skip
    print(f"Over the better of {arguments.threads} and {cores} threads in turn: target"
          f" {together.target:.2f}, draft {together.draft:.2f}.")  # fmt: skip
    one = min(found[f"target alone, {each}"] for each in {arguments.threads, cores})
    step = min(found[f"draft alone, {each}"] for each in {arguments.threads, cores}) / one
    print(f"What the simulator makes of that, with a pass over n tokens as dear as this one:"
          f" {_gain({1: 1.0}, step, 0.9, 1500, together)}")  # fmt: skip
    for each in (*contexts, *models):
        each.close()


def _over(found: dict[str, float], name: str, threads: int, cores: int) -> float:
    """Beside the other, over the better way to decode in turn."""
    return found[f"{name} beside"] / min(found[f"{name} alone, {n}"] for n in {threads, cores})


class Decodes:
    """Decodes of so many tokens, again and again."""

    def __init__(self, context: Context, rows: int) -> None:
        self._context, self._rows = context, rows
        context.decode(list(range(10, 74)), 0)

    def seconds(self) -> float:
        """The median of what one takes, over about a second."""
        times: list[float] = []
        until = time.perf_counter() + 1
        while time.perf_counter() < until:
            begun = time.perf_counter()
            self._once()
            times.append(time.perf_counter() - begun)
        return median(times)

    @contextmanager
    def going_on(self) -> Iterator[None]:
        """Do it in a thread meanwhile."""
        ended = threading.Event()

        def run() -> None:
            while not ended.is_set():
                self._once()

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def _once(self) -> None:
        held = len(self._context.tokens)
        self._context.decode(list(range(10, 10 + self._rows)), self._rows)
        self._context.truncate(held)


def simulate(arguments: argparse.Namespace) -> None:
    """Tables of what is gained over taking turns."""
    print("Own compute: speed beside each other over in turn, best fixed length of each (and"
          " automatic), by acceptance:\n")  # fmt: skip
    print("| curve | draft pass / T(1) | " + " | ".join(f"{a:g}" for a in ACCEPTANCES) + " |")
    print("|---|---|" + "---|" * len(ACCEPTANCES))
    for name, points in CURVES.items():
        for step in STEPS:
            cells = [_gain(points, step, a, arguments.tokens, Beside()) for a in ACCEPTANCES]
            print(f"| {name} | {step:g} | {' | '.join(cells)} |", flush=True)
    curve = "RTX 3090, 8B Q4_0"
    print(f"\n{curve}, a pass of 0.3, acceptance 0.9: each takes so many times longer beside the"
          " other:\n")  # fmt: skip
    print("| target \\ draft | " + " | ".join(f"{d:g}" for d in SHARED) + " |")
    print("|---|" + "---|" * len(SHARED))
    for target in SHARED:
        cells = [_gain(CURVES[curve], 0.3, 0.9, arguments.tokens, Beside(target, draft))
                 for draft in SHARED]  # fmt: skip
        print(f"| {target:g} | {' | '.join(cells)} |", flush=True)


def _gain(points: Points, step: float, acceptance: float, tokens: int, beside: Beside) -> str:
    """Of the best fixed lengths and of the automatic one; and the share of rounds beside."""
    alone = World.of(points, step)
    both = replace(alone, beside=beside)
    text = steady(_pool(), acceptance, tokens, seed=3)

    def best(world: World) -> float:
        return max(replay(FixedGamma(length), text, world).speed for length in FIXED)

    in_turn = replay(_automatic(points, step), text, alone)
    done = replay(_automatic(points, step), text, both)
    return f"{best(both) / best(alone):.2f} ({done.speed / in_turn.speed:.2f})"


def _automatic(points: Points, step: float) -> AutoGamma:
    draft = {n: step * seconds for n, seconds in points.items()}
    return AutoGamma(Costs({0: points}, {DRAFT: {0: draft}}))


def _pool() -> Text:
    return [
        Position(confidence, chance)
        for text in json.loads(RECORDED.read_text("utf-8"))["texts"]
        if text["temperature"] > 0
        for confidence, chance in zip(text["confidences"], text["chances"], strict=True)
    ]


if __name__ == "__main__":
    main()
