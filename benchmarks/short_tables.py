"""What a cost table that ends early costs: recorded answers, replayed with the real policy.

The first load times passes for two seconds, so a slow model's table has few sizes. For each curve
measured here or published, and each such table cut from it, the script prints tokens per baseline
round with lookup, where text is copied and elsewhere: with a policy that keeps what its rounds have
taught from answer to answer, and with one that begins each answer anew. No model is loaded; it
takes half a minute:

    uv run python -m benchmarks.short_tables
"""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.real_curves import DATA, by_kind, rounds_of
from benchmarks.real_lookup import CURVES
from benchmarks.real_prompts import COPYING
from benchmarks.several import Answer, Prices
from localspec.engine.length.cost import Costs, Curve, Points
from localspec.engine.length.gamma import AutoGamma
from localspec.engine.length.profile import TARGET_SIZES

TABLES = {
    "all sizes": tuple(sorted({*TARGET_SIZES})),
    "up to 32": (1, 2, 3, 4, 5, 6, 8, 16, 32),
    "1, 2, 4, 16": (1, 2, 4, 16),
    "1, 2, 4": (1, 2, 4),
}


def policy(points: Points, sizes: Sequence[int]) -> AutoGamma:
    """One that knows these sizes of the curve."""
    curve = Curve(points)
    return AutoGamma(Costs({0: {n: curve.seconds(n) for n in sizes}}, {}))


def speed(texts: Sequence[Answer], points: Points, sizes: Sequence[int], *, anew: bool) -> float:
    """Tokens per baseline round."""
    prices, kept = Prices.of(points, {}), policy(points, sizes)
    made = (policy(points, sizes) if anew else kept for _ in texts)
    spent = sum(rounds_of(its, text, prices) for its, text in zip(made, texts, strict=True))
    return sum(map(len, texts)) / spent


def main() -> None:
    kinds = by_kind(sorted(DATA.glob("*.t0.jsonl.gz")))
    copied = [text for kind, its in kinds.items() if kind in COPYING for text in its]
    others = [text for kind, its in kinds.items() if kind not in COPYING for text in its]
    print("| curve | table | copied | each answer anew | elsewhere | each answer anew |")
    print("|---|---|---|---|---|---|")
    for curve, points in CURVES.items():
        for name, sizes in TABLES.items():
            found = [
                f"{speed(texts, points, sizes, anew=anew):.2f}"
                for texts in (copied, others)
                for anew in (False, True)
            ]
            print(f"| {curve} | {name} | {' | '.join(found)} |", flush=True)


if __name__ == "__main__":
    main()
