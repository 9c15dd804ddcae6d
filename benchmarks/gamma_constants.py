"""What the numbers in automatic gamma are worth: each is halved and doubled, in the simulator.

Prints Markdown: for every number what half and twice of it change in the speed (percent) over texts
of changing kinds, a draft of no use, texts that change every 40 tokens, a wrong table in bursts,
and a draft that is of use late; and of the claims made, how many intervals hold the truth, and high
over low. Two minutes of one core.

    uv run python -m benchmarks.gamma_constants
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import exp, log
from statistics import fmean, median
from types import ModuleType

from benchmarks.simulator import (
    CURVES,
    Bursts,
    Calm,
    Position,
    Text,
    World,
    recorded,
    replay,
    steady,
)
from localspec.engine.length import calibration, cost, gamma, neighbours
from localspec.engine.length.cost import Costs, Points
from localspec.engine.length.gamma import AutoGamma
from localspec.engine.stats import DRAFT

STEP = 0.12
TABLES = {name: points for name, points in CURVES.items() if not name.startswith("M4")}
NUMBERS: tuple[tuple[ModuleType, tuple[str, ...]], ...] = (
    (
        gamma,
        ("_FADE", "_SHARE", "_SHARE_UNSURE", "_PAUSE", "_CREDIT", "_INTEREST", "_WORTH"),
    ),
    (cost, ("_JAG", "USUAL", "VOTES", "FEW")),
    (neighbours, ("_STRETCH", "_USUAL", "_COMPARED", "_DOUBT")),
    (calibration, ("_DOUBT", "_KEEP", "_RATE", "_PERSISTENCE")),
)  # fmt: skip


@dataclass(frozen=True)
class Found:
    """Speeds by scenario, and what became of claims."""

    speeds: dict[str, float]
    held: float
    width: float


def found(texts: dict[str, list[Text]]) -> Found:
    """Run all scenarios with the numbers as they are now."""
    speeds, claims = {}, list[tuple[bool, float]]()
    for name, answers in texts.items():
        total, wrong = 0.0, name == "wrong, bursts"
        for at, points in enumerate(12 * list(TABLES.values()) if wrong else TABLES.values()):
            weather = (Bursts if wrong else Calm)(random.Random(at))
            policy = controller(points, wrong=wrong, seed=at)
            for seed, text in enumerate(answers):
                done = replay(policy, text, World.of(points, STEP, seed=seed, weather=weather))
                total += done.speed * points[1]
                claim = policy.speedup()
                if claim is not None and name != "no use":
                    paces = done.paces[1:]
                    truth = sum(p.emitted for p in paces) / sum(p.work for p in paces) * points[1]
                    claims.append((claim.low <= truth <= claim.high, claim.high / claim.low))
        speeds[name] = total
    held, widths = ([claim[i] for claim in claims] or [float("nan")] for i in (0, 1))
    return Found(speeds, fmean(held), median(widths))


def controller(points: Points, *, wrong: bool, seed: int) -> AutoGamma:
    """With the table as it is, or with every point off by up to five times."""
    luck = random.Random(seed)

    def off() -> float:
        return exp(luck.uniform(-1, 1) * log(5)) if wrong else 1.0

    target = {n: seconds * off() for n, seconds in points.items()}
    draft = {n: STEP * seconds * off() for n, seconds in points.items()}
    return AutoGamma(Costs({0: target}, {DRAFT: {0: draft}}))


def scenarios(draw: int = 0) -> dict[str, list[Text]]:
    """Answers by scenario; another `draw` has other texts of the same kinds."""
    pool, luck, first = recorded(), random.Random(4 + 1000 * draw), 50 * draw
    kinds = (0.3, 0.45, 0.6, 0.75, 0.9)

    def hopeless(tokens: int) -> Text:
        return [
            Position(luck.choice(pool).confidence, 0.2 * luck.random() ** 4) for _ in range(tokens)
        ]

    useless = [hopeless(64) for _ in range(12)]
    switching: list[Text] = []
    for seed, pair in enumerate(((0.35, 0.9), (0.5, 0.85), (0.6, 0.95)), first):
        one, other = (steady(pool, a, 240, seed=seed + i) for i, a in enumerate(pair))
        switching.append(
            [p for at in range(0, 240, 40) for p in (*one[at:][:40], *other[at:][:40])]
        )
    return {
        "kinds": [steady(pool, luck.choice(kinds), 128, seed=first + i) for i in range(16)],
        "no use": useless,
        "changing": switching,
        "wrong, bursts": [steady(pool, 0.7, 150, seed=first + i) for i in range(2)],
        "late": [[*hopeless(80), *steady(pool, 0.8, 150, seed=first + i)] for i in range(2)],
    }


@contextmanager
def changed(module: ModuleType, name: str, factor: float) -> Iterator[None]:
    """One number times `factor`; of one that keeps a share, what it forgets."""
    before = getattr(module, name)
    after = 1 - (1 - before) * factor if name in ("_FADE", "_KEEP") else before * factor
    after = max(1, round(after)) if isinstance(before, int) else after
    users = (module,) if name.startswith("_") else (gamma, cost, neighbours)
    its = [each for each in users if hasattr(each, name)]
    for each in its:
        setattr(each, name, after)
    try:
        yield
    finally:
        for each in its:
            setattr(each, name, before)


def main() -> None:
    texts = scenarios()
    usual = found(texts)
    names = list(usual.speeds)
    print(f"| number | times | {' | '.join(names)} | held | width |")
    print("|---" * (len(names) + 4) + "|")
    print(f"| all | 1 | {'| ' * len(names)}{usual.held:.0%} | {usual.width:.2f} |")
    for module, numbers in NUMBERS:
        for name in numbers:
            for factor in (0.5, 2.0):
                with changed(module, name, factor):
                    now = found(texts)
                cells = [f"{100 * (now.speeds[n] / usual.speeds[n] - 1):+.1f}" for n in names]
                label = f"{module.__name__.rsplit('.', 1)[-1]}.{name}"
                tail = f"{now.held:.0%} | {now.width:.2f}"
                print(f"| `{label}` | {factor} | {' | '.join(cells)} | {tail} |", flush=True)


if __name__ == "__main__":
    main()
