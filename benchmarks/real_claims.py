"""Whether claimed speed-ups hold on recorded answers, where baseline rounds and copies alternate.

Conversations of recorded answers (`benchmarks/real_record.py`) are replayed with the real lookup
and the real policy on a clock. An answer counts if it has 80 tokens or more and drafted in eight
rounds: nothing is claimed for shorter ones. The truth is the undisturbed time of its rounds after
the first. For each situation the script prints the claims over the truth, how often their intervals
hold it, and how wide these are. No model is loaded; it takes some minutes:

    uv run python -m benchmarks.real_claims
"""

from __future__ import annotations

import argparse
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import fmean, median

from benchmarks.real_lookup import CURVES, answers
from benchmarks.several import Answer, Clock, Prices, rounds
from benchmarks.simulator import Bursts, Calm, Halving, Weather
from localspec.engine.length.cost import Costs, Curve, Points
from localspec.engine.length.gamma import AutoGamma
from localspec.engine.length.profile import TARGET_SIZES
from localspec.engine.record.stats import GenerationStats

DATA = Path(__file__).parent / "data"
LEAST = 80  # tokens of an answer
TURNS = 12  # answers of a conversation
SIZES = sorted({*TARGET_SIZES})


def right(points: Points, _luck: random.Random) -> Points:
    """The table that was measured."""
    return points


def off(points: Points, luck: random.Random) -> Points:
    """A table in which every size but the first is wrong by its own factor."""
    curve = Curve(points)
    return {n: curve.seconds(n) * (luck.uniform(0.7, 1.4) if n > 1 else 1.0) for n in SIZES}


Wrong = Callable[[Points, random.Random], Points]
SITUATIONS: Mapping[str, tuple[Callable[[random.Random], Weather], Wrong]] = {
    "calm": (Calm, right),
    "calm, every point off by 0.7 to 1.4": (Calm, off),
    "noise in bursts": (Bursts, right),
    "speed halves every 20 s": (Halving, right),
    "timings scatter by 15 %": (partial(Calm, spread=0.15), right),
    "timings scatter by 25 %": (partial(Calm, spread=0.25), right),
}


def recorded() -> list[Answer]:
    """All recorded answers."""
    return [text for path in sorted(DATA.glob("*.t0.jsonl.gz")) for _, text in answers(path)]


@dataclass
class Claims:
    """The claims of one situation.

    Attributes:
        offs: logarithms of claim over truth.
        held: how many intervals hold the truth.
        widths: high over low.
        silent: answers without a claim that were long enough for one.
    """

    offs: list[float] = field(default_factory=list)
    held: int = 0
    widths: list[float] = field(default_factory=list)
    silent: int = 0

    @property
    def mean(self) -> float:
        """The geometric mean of claims over the truth."""
        return math.exp(fmean(self.offs))

    @property
    def coverage(self) -> float:
        """The share of intervals that hold it."""
        return self.held / len(self.offs)

    @property
    def width(self) -> float:
        """The median half-width of the intervals, relative to the claim."""
        return math.sqrt(median(self.widths)) - 1

    def line(self) -> str:
        """The cells of a table."""
        low, high = (sorted(self.offs)[int(q * (len(self.offs) - 1))] for q in (0.05, 0.95))
        scatter = f"{self.mean:.3f} ({math.exp(low):.2f} to {math.exp(high):.2f})"
        return (
            f"{len(self.offs)} | {self.silent} | {scatter} | {self.coverage:.2f} | {self.width:.2f}"
        )


def converse(found: Claims, texts: Sequence[Answer], points: Points, how: str, seed: int) -> None:
    """Add the claims of one conversation."""
    weather, wrong = SITUATIONS[how]
    luck = random.Random(seed)
    policy = AutoGamma(Costs({0: wrong(points, luck)}, {}))
    clock, prices = Clock(weather(luck).factor), Prices.of(points, {})
    for text in texts:
        policy.begin(follow_clock=True)
        stats, spent, emitted = GenerationStats(), 0.0, 0
        for done in rounds(policy, text, prices, clock):
            spent += done.total_s * bool(stats.rounds)
            emitted += done.emitted * bool(stats.rounds)
            stats.add(done)
        if len(text) < LEAST or not stats.comparable:
            continue
        said, truth = policy.speedup(), emitted * points[1] / spent
        if said is None:
            found.silent += 1
            continue
        found.offs.append(math.log(said.estimate / truth))
        found.held += said.low <= truth <= said.high
        found.widths.append(said.high / said.low)


def conversations(texts: Sequence[Answer], seed: int) -> Iterator[Sequence[Answer]]:
    """The answers in another order, a few in each conversation."""
    mixed = random.Random(seed).sample(texts, len(texts))
    return (mixed[start : start + TURNS] for start in range(0, len(mixed), TURNS))


def claims(texts: Sequence[Answer], points: Points, how: str, seeds: int) -> Claims:
    """The claims of all answers on one curve in one situation, in `seeds` orders."""
    found = Claims()
    for seed in range(seeds):
        for at, some in enumerate(conversations(texts, seed)):
            converse(found, some, points, how, 1000 * seed + at)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3, help="how often all answers are written")
    seeds = parser.parse_args().seeds
    texts = recorded()
    print("| situation | curve | claims | silent | claim / truth (90 %) | held | ± median |")
    print("|---|---|---|---|---|---|---|")
    for how in SITUATIONS:
        for curve, points in CURVES.items():
            print(f"| {how} | {curve} | {claims(texts, points, how, seeds).line()} |", flush=True)


if __name__ == "__main__":
    main()
