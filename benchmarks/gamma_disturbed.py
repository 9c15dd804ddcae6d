"""Automatic gamma on a disturbed machine and with a wrong cost table, in the simulator.

Every conversation has eight answers of 150 tokens, and a T(1) lasts 30 ms. For every situation a
table in Markdown has:

- the speed in the first 300 tokens and after them, as shares of the oracle's: mean and least;
  seconds are undisturbed ones, so that luck with the weather does not count;
- the ratio of claimed to true speed-ups of the answers after the second: geometric mean and the
  middle 90 %;
- how many of the intervals hold the truth, and how wide 90 % of them are at most (high over low);
- in how many answers nothing is claimed.

It takes a minute.

    uv run python -m benchmarks.gamma_disturbed [--only NAME]
"""

from __future__ import annotations

import argparse
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from benchmarks.simulator import (
    CURVES,
    Bursts,
    Calm,
    Halving,
    Text,
    World,
    best_oracle,
    calibrated,
    recorded,
    replay,
    steady,
)
from localspec.drafter_names import DRAFT
from localspec.engine.length.cost import Costs, Points
from localspec.engine.length.gamma import AutoGamma

ANSWERS, TOKENS, FIRST = 8, 150, 2
ACCEPTANCES = (0.5, 0.7, 0.9)
STEP = 0.1

Tables = tuple[dict[int, float], dict[int, float]]
Wrong = Callable[[Tables, random.Random], Tables]


def right(tables: Tables, luck: random.Random) -> Tables:  # noqa: ARG001 - a `Wrong`
    return tables


def one_point(factor: float) -> Wrong:
    def wrong(tables: Tables, luck: random.Random) -> Tables:
        target = dict(tables[0])
        target[luck.choice(sorted(target)[:6])] *= factor
        return target, tables[1]

    return wrong


def all_but_one(factor: float) -> Wrong:
    def wrong(tables: Tables, luck: random.Random) -> Tables:
        kept = luck.choice(sorted(tables[0])[:6])
        return {n: s * (1 if n == kept else factor) for n, s in tables[0].items()}, tables[1]

    return wrong


def all_points(tables: Tables, luck: random.Random) -> Tables:
    target, draft = (
        {n: s * 5 ** luck.uniform(-1, 1) for n, s in table.items()} for table in tables
    )
    return target, draft


SITUATIONS: dict[str, tuple[type[Calm], Wrong]] = {
    "calm": (Calm, right),
    "noise in bursts": (Bursts, right),
    "speed halves every 20 s": (Halving, right),
    "one stored point 5 times too dear": (Calm, one_point(5)),
    "one stored point 5 times too cheap": (Calm, one_point(0.2)),
    "all but one point 5 times too dear": (Calm, all_but_one(5)),
    "all but one point 5 times too cheap": (Calm, all_but_one(0.2)),
    "all points wrong by 0.2 to 5": (Calm, all_points),
    "all points wrong, noise in bursts": (Bursts, all_points),
}


@dataclass
class Seen:
    """The figures of all conversations of one situation."""

    early: list[float] = field(default_factory=list)
    late: list[float] = field(default_factory=list)
    claims: list[float] = field(default_factory=list)  # logarithms of claim over truth
    widths: list[float] = field(default_factory=list)
    held: int = 0
    silent: int = 0


def conversation(
    seen: Seen, points: Points, texts: list[Text], bounds: list[float], how: Any
) -> None:
    weather_of, wrong, seed = how
    luck = random.Random(seed)
    tables = wrong((dict(points), {n: STEP * s for n, s in points.items()}), luck)
    policy = AutoGamma(Costs({0: tables[0]}, {DRAFT: {0: tables[1]}}))
    world = World.of(points, STEP, seed=seed, weather=weather_of(luck))
    work, ideal = [], []
    for at, (text, bound) in enumerate(zip(texts, bounds, strict=True)):
        done = replay(policy, text, replace(world, seed=seed + at))
        work.append(done.seconds)
        ideal.append(done.tokens / bound)
        truth = sum(p.emitted for p in done.paces[1:]) / sum(p.work for p in done.paces[1:])
        claim = policy.speedup()
        if at >= FIRST and done.drafted > done.tokens / 10:
            seen.silent += claim is None
            if claim is not None:
                seen.claims.append(math.log(claim.estimate / truth))
                seen.widths.append(claim.high / claim.low)
                seen.held += claim.low <= truth <= claim.high
    seen.early.append(sum(ideal[:FIRST]) / sum(work[:FIRST]))
    seen.late.append(sum(ideal[FIRST:]) / sum(work[FIRST:]))


def line(seen: Seen) -> str:
    def cell(shares: list[float]) -> str:
        return f"{sum(shares) / len(shares):.3f} ({min(shares):.2f})"

    claims, widths = sorted(seen.claims), sorted(seen.widths)
    n = len(claims)
    low, high = (math.exp(claims[int(q * (n - 1))]) for q in (0.05, 0.95))
    middle = math.exp(sum(claims) / n)
    width = widths[int(0.9 * (n - 1))]
    told = f"{middle:.2f} ({low:.2f} to {high:.2f})"
    held = f"{seen.held / n:.0%}".replace("%", " %")
    return f"{cell(seen.early)} | {cell(seen.late)} | {told} | {held} | {width:.2f} | {seen.silent}"


def results(seeds: int, only: str) -> Iterator[tuple[str, str]]:
    pool = recorded()
    curves = {name: points for name, points in CURVES.items() if not name.startswith("M4")}
    prepared = []
    for points in curves.values():
        for acceptance in ACCEPTANCES:
            whole = steady(pool, acceptance, ANSWERS * TOKENS, seed=3)
            texts = [whole[i * TOKENS : (i + 1) * TOKENS] for i in range(ANSWERS)]
            known = calibrated(whole)
            world = World.of(points, STEP)
            bounds = [
                best_oracle(
                    text, replace(world, seed=i), known=known[i * TOKENS : (i + 1) * TOKENS]
                ).speed
                for i, text in enumerate(texts)
            ]
            prepared.append((points, texts, bounds))
    for name, (weather_of, wrong) in SITUATIONS.items():
        if only not in name:
            continue
        seen = Seen()
        for points, texts, bounds in prepared:
            for seed in range(seeds):
                conversation(seen, points, texts, bounds, (weather_of, wrong, 100 * seed))
        yield name, line(seen)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=4, help="conversations of each text and curve")
    parser.add_argument("--only", default="", help="situations with this in their name")
    arguments = parser.parse_args()
    print("| situation | first 300 | later | claim / truth | held | width | silent |")
    print("|---|---|---|---|---|---|---|")
    for name, cells in results(arguments.seeds, arguments.only):
        print(f"| {name} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
