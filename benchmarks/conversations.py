"""Lookup in conversations, in the simulator: texts that repeat, and texts that stop repeating.

Recorded answers of eight kinds (the toy pair and its head), whole (31 to 95 tokens) or cut to
64, make conversations of ten, written by automatic gamma with a draft at 0.15 T(1). Into these are
put answers of 64 tokens in which lookup is as sure as ever, at three places in ten, and its first
token always wrong. Then texts of 120 to 220 tokens that are copied for the most part go on for 95
more in which lookup is sure at every place and wrong from the first token on, or from the second or
third.
Prints Markdown: tokens in the time of a plain round, by cost curve. Half a minute of one core.

    uv run python -m benchmarks.conversations
"""

from __future__ import annotations

import json
import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import geometric_mean

from benchmarks.several import (
    COPYING,
    NOTHING,
    OTHERS,
    RECORDED,
    Answer,
    Copies,
    Place,
    Prices,
    places_of,
    speed,
)
from benchmarks.simulator import CURVES
from localspec.engine.length.cost import Points
from localspec.engine.length.gamma import AutoGamma
from localspec.engine.record.stats import DRAFT

STEP, SURE = 0.15, 0.95
WRONG = "always wrong"
TWO_CORES: Points = {1: 1.0, 2: 1.65, 3: 1.9, 4: 2.1, 8: 2.9, 16: 5.0, 32: 8.0, 64: 13.0}
"""An AMD EPYC's of family 25, model 17, in BF16, as rounds were seen to take on it."""

Recorded = Mapping[tuple[str, float], Sequence[Answer]]


def main() -> None:
    curves = {"EPYC, BF16": TWO_CORES} | {
        name: points for name, points in CURVES.items() if not name.startswith("M4")
    }
    texts = answers()
    kinds = (*COPYING, *OTHERS, WRONG)
    print(f"| curve | {' | '.join(kinds)} |\n|{'---|' * (len(kinds) + 1)}")
    for name, points in curves.items():
        found = by_kind(Prices.of(points, {DRAFT: STEP}), texts)
        print(f"| {name} | {' | '.join(f'{found[kind]:.2f}' for kind in kinds)} |", flush=True)
    print("\n| curve, then wrong behind | 0 | 1 | 2 |\n|---|---|---|---|")
    for name, points in curves.items():
        prices = Prices.of(points, {DRAFT: STEP})
        cells = [afterwards(prices, texts, right) for right in range(3)]
        means = (f"{geometric_mean(each):.2f} ({min(each):.2f})" for each in cells)
        print(f"| {name} | {' | '.join(means)} |", flush=True)


def answers() -> Recorded:
    """What was recorded, by kind and temperature."""
    found = defaultdict(list)
    for text in json.loads(RECORDED.read_text("utf-8"))["texts"]:
        found[text["kind"], text["temperature"]].append(places_of(text))
    return found


def misled(answer: Answer, luck: random.Random, *, share: float = 0.3, right: int = 0) -> Answer:
    """The same text, in which lookup is sure of much at a share of the places.

    What it would copy is right for at most so many tokens, until the next place where it is not.
    """

    def copies(at: int) -> Copies:
        if luck.random() >= share:
            return NOTHING
        stays = right - at % (right + 1)
        return Copies((SURE,) * luck.randint(8, 40), (SURE,) * stays + (0.0,), stays)

    return [Place(place.looks, copies(at)) for at, place in enumerate(answer)]


def conversation(texts: Recorded, luck: random.Random) -> Sequence[tuple[str, Answer]]:
    """Ten answers of any kind at one temperature, some followed by one that misleads."""
    temperature, found = luck.choice((0.0, 0.8)), []
    for _ in range(10):
        kind = luck.choice(COPYING + OTHERS)
        answer = luck.choice(texts[kind, temperature])
        found.append((kind, answer[: luck.choice((64, None, None))]))
        if luck.random() < 0.25:
            answer = luck.choice(texts[luck.choice(OTHERS), temperature])
            found.append((WRONG, misled(answer[:64], luck)))
    return found


def by_kind(
    prices: Prices, texts: Recorded, seeds: Sequence[int] = range(72)
) -> Mapping[str, float]:
    """The speed over plain decoding's in each kind of answer."""
    tokens: defaultdict[str, int] = defaultdict(int)
    rounds: defaultdict[str, float] = defaultdict(float)
    for seed in seeds:
        policy = AutoGamma(prices.costs())
        for kind, answer in conversation(texts, random.Random(seed)):
            tokens[kind] += len(answer)
            rounds[kind] += len(answer) / speed(policy, [answer], prices, goes_on=True)
    return {kind: tokens[kind] / (rounds[kind] / prices.target[1]) for kind in tokens}


def afterwards(
    prices: Prices, texts: Recorded, right: int, seeds: Sequence[int] = range(12)
) -> Sequence[float]:
    """The speed over plain decoding's behind a text that was copied, where copies go wrong."""
    found = []
    for seed in seeds:
        luck = random.Random(seed)
        copied = texts[luck.choice(COPYING), 0.0]
        before = [place for each in luck.sample(copied, min(3, len(copied))) for place in each]
        then = luck.choice(texts[luck.choice(OTHERS), 0.0])
        misleads = misled(then, luck, share=1.0, right=right)
        alone, both = (
            len(text) / speed(AutoGamma(prices.costs()), [text], prices)
            for text in (before, [*before, *misleads])
        )
        found.append(len(then) * prices.target[1] / (both - alone))
    return found


if __name__ == "__main__":
    main()
