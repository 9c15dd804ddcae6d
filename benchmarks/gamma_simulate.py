"""The stopping rule against an oracle, fixed lengths and a threshold, in the simulator.

Prints Markdown: for every curve the least and the mean share of the oracle's speed over acceptances
of 0.3 to 0.95, and the choice between several drafters. Takes about five minutes.

    uv run python -m benchmarks.gamma_simulate
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Mapping
from itertools import product
from typing import Any

from benchmarks import several
from benchmarks.simulator import (
    CURVES,
    Position,
    Text,
    Threshold,
    World,
    best_oracle,
    calibrated,
    recorded,
    replay,
    steady,
)
from localspec.drafter_names import DRAFT, EAGLE3
from localspec.engine.length.cost import Costs, Points
from localspec.engine.length.gamma import AutoGamma, FixedGamma, GammaPolicy

ACCEPTANCES = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
SWITCHING = ((0.35, 0.9), (0.5, 0.85), (0.3, 0.7), (0.6, 0.95))
FIXED = (0, 1, 2, 3, 4, 6, 8, 12)

Oracle = Callable[[Text, World], float]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--step", type=float, default=0.1, help="a draft pass, in shares of T(1)")
    parser.add_argument("--tokens", type=int, default=2000)
    arguments = parser.parse_args()
    pool = recorded()
    n, step = arguments.tokens, arguments.step
    luck = random.Random(7)
    constant = {
        a: [Position(luck.choice(pool).confidence, a) for _ in range(n)] for a in ACCEPTANCES
    }
    varied = {a: steady(pool, a, n, seed=3) for a in ACCEPTANCES}
    switching = {pair: switched(pool, pair, n) for pair in SWITCHING}
    report("The same acceptance everywhere", constant, strict, step)
    report("As recorded; the oracle is told what confidence tells", varied, told, step)
    report("As recorded; the oracle is told every position's own acceptance", varied, strict, step)
    report(
        "Another kind of text every 40 tokens; told what confidence tells", switching, told, step
    )
    report("Another kind of text every 40 tokens; told everything", switching, strict, step)
    choice({DRAFT: step, EAGLE3: 0.6 * step})


def strict(text: Text, world: World) -> float:
    return best_oracle(text, world).speed


def told(text: Text, world: World) -> float:
    return best_oracle(text, world, known=calibrated(text)).speed


def switched(pool: Text, pair: tuple[float, float], tokens: int) -> Text:
    """A text whose acceptance changes every forty tokens."""
    one, other = (steady(pool, a, tokens // 2, seed=i) for i, a in enumerate(pair))
    return [
        place
        for start in range(0, tokens // 2, 40)
        for place in (*one[start : start + 40], *other[start : start + 40])
    ]


def report(title: str, texts: Mapping[Any, Text], oracle: Oracle, step: float) -> None:
    print(f"\n{title}:\n")
    print("| curve | the rule | no draft | best fixed of each text | best threshold of each text |")
    print("|---|---|---|---|---|")
    for name, points in CURVES.items():
        world = World.of(points, step)
        bounds = {key: oracle(text, world) for key, text in texts.items()}

        def shares(policies: Callable[[], list[GammaPolicy]]) -> str:
            best = [
                max(replay(policy, text, world).speed for policy in policies()) / bounds[key]  # noqa: B023
                for key, text in texts.items()
            ]
            return f"{min(best):.3f} (mean {sum(best) / len(best):.3f})"

        cells = [
            shares(lambda: [automatic(points, step)]),  # noqa: B023
            shares(lambda: [FixedGamma(0)]),
            shares(lambda: [FixedGamma(length) for length in FIXED]),
            shares(lambda: [Threshold(bound) for bound in (0.2, 0.4, 0.6, 0.8)]),
        ]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


def choice(steps: Mapping[str, float]) -> None:
    """The choice between lookup, a draft model and a head, over recorded answers."""
    cells = list(product((several.COPYING, several.OTHERS), (0.0, 0.8)))
    names = ("copying, 0", "copying, 0.8", "others, 0", "others, 0.8")
    print("\nLookup, a draft and a head; the oracle is told what confidence tells (x no draft):\n")
    print(f"| curve | {' | '.join(names)} |")
    print("|---|---|---|---|---|")
    for name, points in CURVES.items():
        prices, said = several.Prices.of(points, steps), []
        for kinds, temperature in cells:
            answer = several.recorded(kinds, temperature)
            reached = several.speed(AutoGamma(prices.costs()), answer, prices)
            bound = several.best_oracle(answer, prices)
            said.append(f"{reached / bound:.3f} ({reached * points[1]:.2f})")
        print(f"| {name} | {' | '.join(said)} |", flush=True)


def automatic(points: Points, step: float) -> AutoGamma:
    draft = {n: step * seconds for n, seconds in points.items()}
    return AutoGamma(Costs({0: points}, {DRAFT: {0: draft}}))


if __name__ == "__main__":
    main()
