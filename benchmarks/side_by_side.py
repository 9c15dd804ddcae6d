"""Whether it would pay to let the draft go on while the target verifies (2408.11850, 2405.14105).

    python benchmarks/side_by_side.py measure TARGET DRAFT [--threads 1]
    python benchmarks/side_by_side.py engine TARGET DRAFT [--tokens 60] [--prompts 6]
    python benchmarks/side_by_side.py simulate [--tokens 1500]

`measure`: how many times longer decodes of both models take while the other one decodes in a thread
of its own, with so many threads each, and what both take with all cores and in turn: the better of
one and all threads. The machine has to be idle. Takes a minute.
`engine`: tokens per second of the engine, answer by answer, over those of the best way to take
turns: one thread each or all cores, whichever was faster in a third of the answers, which choose
the draft lengths as well. Side by side has one thread each: forced, or as is measured meanwhile.
Takes four minutes.
`simulate`: the simulator, with the cost curves of other machines: what the best fixed draft length
and automatic gamma gain where each model has compute and memory of its own, and what is left of it
where both share some of it. Takes two minutes.
"""

from __future__ import annotations

import argparse
import math
import os
import platform
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, median, stdev

from simulator import CURVES, Sharing, World, recorded, replay, steady

from localspec.bench import prompts
from localspec.bench.prompts import BenchPrompt
from localspec.engine.cancel import Cancel
from localspec.engine.drafter import ModelDrafter
from localspec.engine.generate import Engine, GenerateSettings
from localspec.engine.length.beside import Beside
from localspec.engine.length.cost import Costs, Points
from localspec.engine.length.gamma import AutoGamma, FixedGamma
from localspec.engine.llama import Context, ContextOptions, Model
from localspec.engine.params import Accept, SamplingParams
from localspec.engine.stats import DRAFT, GenerationStats

ACCEPTANCES = (0.5, 0.7, 0.9)
STEPS = (0.1, 0.3, 0.5)
FIXED = (0, 1, 2, 3, 4, 6, 8, 12)
SHARED = (1.0, 1.1, 1.25, 1.5, 2.0)
NAMES = ("target", "draft")
ROWS = 4  # of the target's pass
ROUNDS = 7
LENGTHS = (2, 4, 6)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    commands = parser.add_subparsers(required=True)
    measuring = commands.add_parser("measure")
    measuring.add_argument("target", type=Path)
    measuring.add_argument("draft", type=Path)
    measuring.add_argument("--threads", type=int, default=1)
    measuring.set_defaults(run=measure)
    running = commands.add_parser("engine")
    running.add_argument("target", type=Path)
    running.add_argument("draft", type=Path)
    running.add_argument("--tokens", type=int, default=60)
    running.add_argument("--prompts", type=int, default=6, help="of each kind")
    running.add_argument("--temperatures", type=float, nargs="+", default=(0.0, 0.8))
    running.set_defaults(run=engine)
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
    together = Sharing(*(_over(found, name, arguments.threads, cores) for name in NAMES))
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


@dataclass(frozen=True)
class Way:
    """How to decode: with how many threads each, and when the draft goes on."""

    threads: int
    beside: Beside | None = None


Answers = Mapping[str, list[float]]
"""Tokens per second by way."""


def engine(arguments: argparse.Namespace) -> None:
    """Compare the ways to decode, at temperature 0 and 0.8."""
    cores = os.cpu_count() or 1
    ways = {
        "in turn, 1 thread each": Way(1),
        f"in turn, {cores} threads": Way(cores),
        "beside, forced": Way(1, Beside(forced=True)),
        "beside, automatic": Way(1, Beside()),
    }
    models = [Model.load(path) for path in (arguments.target, arguments.draft)]
    target, draft = (Context(model, ContextOptions(n_ctx=512)) for model in models)
    lanes = {name: Lane(target, draft, way, arguments.tokens) for name, way in ways.items()}
    asked = prompts.shipped(prompts.GENERAL).prompts[: 5 * arguments.prompts]
    print(f"{platform.machine()}, {cores} cores, load {os.getloadavg()[0]:.1f}. Tokens per second"
          " over the best way in turn, by kind of text (geometric mean, 95 %):\n")  # fmt: skip
    for temperature in arguments.temperatures:
        _compare(lanes, asked, temperature)
    for context in (target, draft):
        context.close()
    for model in models:
        model.close()


def _compare(lanes: Mapping[str, Lane], asked: Sequence[BenchPrompt], temperature: float) -> None:
    third = len(asked) // 3
    for lane in lanes.values():
        lane.choose(asked[:third], temperature)
    in_turn = [name for name in lanes if name.startswith("in turn")]
    best = max(in_turn, key=lambda name: lanes[name].chosen[1])
    lengths = ", ".join(f"{name} {lane.chosen[0]}" for name, lane in lanes.items())
    print(f"Temperature {temperature:g}: best {best}; draft lengths: {lengths}.")
    found: dict[str, dict[str, list[float]]] = {}
    for prompt in asked[third:]:
        speeds = {name: lane.speed(prompt, temperature) for name, lane in lanes.items()}
        for name, speed in speeds.items():
            ratios = found.setdefault(prompt.kind, {}).setdefault(name, [])
            ratios.append(math.log(speed / speeds[best]))
    print(f"| kind | {' | '.join(lanes)} |\n|---|{'---|' * len(lanes)}")
    for kind, by_way in found.items():
        print(f"| {kind} | {' | '.join(_interval(by_way[name]) for name in lanes)} |")
    every = {name: [x for by in found.values() for x in by[name]] for name in lanes}
    print(f"| all | {' | '.join(_interval(every[name]) for name in lanes)} |")
    for name, lane in lanes.items():
        print(f"  {name}: beside in {lane.rounds[1]} of {lane.rounds[0]} rounds with a draft,"
              f" {lane.rounds[2]} passes kept")  # fmt: skip
    print(flush=True)


def _interval(logs: Sequence[float]) -> str:
    wide = 2 * stdev(logs) / math.sqrt(len(logs)) if len(logs) > 1 else math.inf
    return f"{math.exp(fmean(logs)):.3f} ± {wide:.3f}"


class Lane:
    """One way to decode, with the draft length that suits it."""

    def __init__(self, target: Context, draft: Context, way: Way, tokens: int) -> None:
        self._contexts, self._way, self._tokens = (target, draft), way, tokens
        drafter = ModelDrafter(draft, target.model.n_vocab, beside=way.beside)
        self._engine = Engine(target, drafter)
        self.chosen = 0, 0.0
        self.rounds = [0, 0, 0]

    def choose(self, asked: Sequence[BenchPrompt], temperature: float) -> None:
        """The draft length that is fastest over these."""
        speeds = {
            gamma: fmean(self.speed(prompt, temperature, gamma) for prompt in asked)
            for gamma in LENGTHS
        }
        best = max(speeds, key=lambda gamma: speeds[gamma])
        self.chosen, self.rounds = (best, speeds[best]), [0, 0, 0]

    def speed(self, prompt: BenchPrompt, temperature: float, gamma: int | None = None) -> float:
        """Tokens per second after the first, the prompt read beforehand."""
        target, _ = self._contexts
        for each in self._contexts:
            each.threads.use(self._way.threads)
            each.clear()
        ids = target.model.tokenize(prompt.text, add_special=True, parse_special=False)
        sampling = SamplingParams(
            temperature=temperature, seed=5,
            logit_bias=dict.fromkeys(target.model.end_tokens, -math.inf),
        )  # fmt: skip
        settings = GenerateSettings(
            sampling=sampling, accept=Accept.COUPLED, n_predict=self._tokens
        )
        for _ in self._engine.prefill(ids, Cancel()):
            pass
        policy = FixedGamma(self.chosen[0] if gamma is None else gamma)
        stats = GenerationStats()
        for done in self._engine.generate(ids, settings, policy, Cancel()):
            stats.add(done)
            drafted = done.drafted > 0
            for i, n in enumerate((drafted, done.ahead > 0, done.kept)):
                self.rounds[i] += n
        return stats.tokens_per_second or 0.0


def simulate(arguments: argparse.Namespace) -> None:
    """Tables of what is gained over taking turns."""
    print("Own compute: speed beside each other over in turn, best fixed length of each (and"
          " automatic), by acceptance:\n")  # fmt: skip
    print("| curve | draft pass / T(1) | " + " | ".join(f"{a:g}" for a in ACCEPTANCES) + " |")
    print("|---|---|" + "---|" * len(ACCEPTANCES))
    for name, points in CURVES.items():
        for step in STEPS:
            cells = [_gain(points, step, a, arguments.tokens, Sharing()) for a in ACCEPTANCES]
            print(f"| {name} | {step:g} | {' | '.join(cells)} |", flush=True)
    curve = "RTX 3090, 8B Q4_0"
    print(f"\n{curve}, a pass of 0.3, acceptance 0.9: each takes so many times longer beside the"
          " other:\n")  # fmt: skip
    print("| target \\ draft | " + " | ".join(f"{d:g}" for d in SHARED) + " |")
    print("|---|" + "---|" * len(SHARED))
    for target in SHARED:
        cells = [_gain(CURVES[curve], 0.3, 0.9, arguments.tokens, Sharing(target, draft))
                 for draft in SHARED]  # fmt: skip
        print(f"| {target:g} | {' | '.join(cells)} |", flush=True)


def _gain(points: Points, step: float, acceptance: float, tokens: int, beside: Sharing) -> str:
    """Of the best fixed lengths and of the automatic one; and the share of rounds beside."""
    alone = World.of(points, step)
    both = replace(alone, beside=beside)
    text = steady(recorded(), acceptance, tokens, seed=3)

    def best(world: World) -> float:
        return max(replay(FixedGamma(length), text, world).speed for length in FIXED)

    in_turn = replay(_automatic(points, step), text, alone)
    done = replay(_automatic(points, step), text, both)
    return f"{best(both) / best(alone):.2f} ({done.speed / in_turn.speed:.2f})"


def _automatic(points: Points, step: float) -> AutoGamma:
    draft = {n: step * seconds for n, seconds in points.items()}
    return AutoGamma(Costs({0: points}, {DRAFT: {0: draft}}))


if __name__ == "__main__":
    main()
