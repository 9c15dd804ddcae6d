"""Speed-ups by prompt lookup, chosen automatically, on recorded answers of real models.

Replays every recorded turn (`benchmarks/real_record.py`; above temperature 0 under the coupled
rule) with the real `Lookup` and the real policy over cost curves of real kernels, and prints tokens
per baseline round by kind: the policy, fixed lengths, and a policy that knows where every copy
ends. Those that are told how likely each copy goes on are in `benchmarks/real_informed.py`. No
model is loaded; some seconds:

    uv run python -m benchmarks.real_lookup benchmarks/data/NAME.jsonl.gz [MORE.jsonl.gz]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean

from benchmarks.real_prompts import COPYING, KINDS
from benchmarks.real_record import lines
from benchmarks.several import Always, Answer, Copies, Place, Prices, speed
from localspec.drafter_names import LOOKUP
from localspec.engine.drafters.lookup import Lookup
from localspec.engine.drafters.past_texts import Past
from localspec.engine.length.cost import Curve, Points
from localspec.engine.length.gamma import AutoGamma
from localspec.limits import MAX_GAMMA

CURVES: Mapping[str, Points] = {
    "EPYC, 1.5B Q4_K_M": {1: 1, 2: 1.8, 4: 3.0, 8: 7.0, 16: 8.1, 64: 24.0},
    "EPYC with AVX-512, 1.5B Q4_K_M": (
        {1: 1, 2: 1.57, 4: 2.93, 8: 6.02, 12: 8.02, 15: 9.86, 16: 7.45}
        | {24: 11.84, 32: 12.95, 48: 17.29, 63: 25.78, 64: 20.95}
    ),
    "EPYC, 135M Q8_0": {1: 1, 2: 1.8, 4: 2.15, 8: 2.83, 16: 4.6, 64: 13.0},
    "RTX 3090, 8B Q4_0": {1: 1.0, 2: 1.12, 3: 1.19, 4: 1.32, 5: 1.51, 8: 2.17},
    "M2 Ultra, 7B Q8_0": {1: 1, 2: 1.18, 4: 1.43, 8: 2.45, 16: 3.90, 32: 4.09},
}
"""T(n)/T(1): those of an AMD EPYC measured on two of its cores, the others published
(docs/measurements/simulator.md)."""


def answers(path: Path) -> Iterator[tuple[str, Answer]]:
    """The kind and the places of every turn: lookup's copies, and how much of them was right."""
    for line in lines(path):
        for turn in line["turns"]:
            yield line["kind"], places(turn["prompt"], turn["answer"])


def places(prompt: Sequence[int], answer: Sequence[int], *others: Past) -> Answer:
    """The places of one turn without its first token, before which nothing is drafted.

    Lookup copies from the turn, and from `others`.
    """
    lookup = Lookup(4096, lambda _: False)
    lookup.begin(prompt, *others)
    own = [*prompt, *answer]
    found = [Place({})]
    for at in range(len(prompt) + 1, len(own)):
        guess = lookup.guess(own[:at], limit=MAX_GAMMA)
        came = own[at : at + len(guess.tokens)]
        pairs = enumerate(zip(guess.tokens, came, strict=False))
        right = next((i for i, (a, b) in pairs if a != b), len(came))
        chances = (1.0,) * right + (0.0,) * (right < len(came))
        found.append(Place({}, Copies(tuple(guess.confidences), chances, right)))
    return found


class EndsKnown:
    """Drafts exactly what will be accepted, where that pays.

    It is an upper bound, unless a larger pass is cheaper than a smaller one.
    """

    def __init__(self, text: Answer, prices: Prices) -> None:
        times = Curve(prices.target).times(MAX_GAMMA + 1)
        self.rounds = 0.0
        rest = [0.0] * (len(text) + MAX_GAMMA + 2)
        for at in reversed(range(len(text))):
            most = min(text[at].copies.right, len(text) - at - 1)
            rest[at] = min(times[m + 1] + rest[at + m + 1] for m in range(most + 1))
        self.rate = len(text) / rest[0] * times[1]


def table(found: Sequence[tuple[str, Answer]], points: Points) -> None:
    prices = Prices.of(points, {})

    def always(length: int) -> Callable[[Answer], float]:
        return lambda text: speed(Always(LOOKUP, length), [text], prices)

    rows: Mapping[str, Callable[[Answer], float]] = {
        "auto": lambda text: speed(AutoGamma(prices.costs()), [text], prices),
        **{f"always {n}": always(n) for n in (1, 3, 7, 15, 63)},
        "ends known": lambda text: EndsKnown(text, prices).rate,
    }
    print(f"| | {' | '.join(KINDS)} | least answer |\n|{'---|' * (len(KINDS) + 2)}")
    for name, rate in rows.items():
        by_kind: dict[str, list[tuple[int, float]]] = {kind: [] for kind in KINDS}
        for kind, text in found:
            if len(text) > 1:
                by_kind[kind].append((len(text), rate(text)))
        cells = []
        for each in by_kind.values():
            tokens, rounds = sum(n for n, _ in each), sum(n / r for n, r in each)
            cells.append(f"{tokens / rounds:.2f}" if each else "")
        least = min((r for each in by_kind.values() for n, r in each if n >= 80), default=0)
        print(f"| {name} | {' | '.join(cells)} | {least:.2f} |", flush=True)


def copied_share(found: Sequence[tuple[str, Answer]]) -> None:
    """The share of copied tokens that were right, by the number of right ones before them."""
    for kinds in (COPYING, tuple(set(KINDS) - set(COPYING))):
        tested: dict[int, list[float]] = {}
        for kind, text in found:
            at = 0
            while kind in kinds and at < len(text):
                copies = text[at].copies
                for i, chance in enumerate(copies.chances):
                    tested.setdefault(min(i.bit_length(), 6), []).append(chance)
                at += copies.right + 1
        shares = {k: f"{fmean(v):.3f} of {len(v)}" for k, v in sorted(tested.items())}
        print(kinds, shares)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("recorded", type=Path, nargs="+")
    found = [each for path in parser.parse_args().recorded for each in answers(path)]
    copied_share(found)
    for name, points in CURVES.items():
        print(f"\n{name}\n")
        table(found, points)


if __name__ == "__main__":
    main()
