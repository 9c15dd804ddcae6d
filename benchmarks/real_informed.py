"""Automatic copying against policies that are told how likely each copy goes on.

Lookup alone, on recorded answers of the kinds of text that copy: those of real models at
temperature 0 (`benchmarks/real_record.py`), and a toy's at 0 and 0.8 (`benchmarks/several.py`).
Every answer starts anew. For each cost curve of `benchmarks/real_curves.py` the script prints, by
kind, tokens per baseline round, and in brackets their share of those of four policies. Each of
these makes the choice with the least expected time to the answer's end (`several.Oracle`). It knows
beforehand what lookup would copy at every place, and

- *others*: the chance of every copied token, as the answers to other questions tell it (`Chances`);
- *own*: the same chance, as answers to this very question tell it too;
- *place*: the recorded chance at the very place, which is 0 or 1 at temperature 0;
- *ends*: where every copy ends.

No model is loaded; it takes some ten minutes, `--only EPYC` one:

    uv run python -m benchmarks.real_informed
"""

from __future__ import annotations

import argparse
import math
from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace

from benchmarks import several
from benchmarks.real_curves import DATA, curves
from benchmarks.real_lookup import EndsKnown, places
from benchmarks.real_record import lines
from benchmarks.several import Answer, Oracle, Prices, speed
from localspec.drafter_names import LOOKUP
from localspec.engine.length.cost import Points
from localspec.engine.length.gamma import AutoGamma, GammaPolicy

COPYING = ("edit", "fix", "quote", "convert", "repeat")  # the toy's kinds too
_WEIGHT = 5  # of the coarser chance, in tokens of the finer one


@dataclass(frozen=True, slots=True)
class Spoken:
    """An answer, its kind of text, and the same `question` as all answers to the same one."""

    kind: str
    question: Hashable
    text: Answer


Told = Sequence[Sequence[float]]
"""The chances of the copied tokens at every place of an answer."""


def real() -> Iterator[Spoken]:
    """The answers of all real models; under one number both may have been asked the same."""
    for path in sorted(DATA.glob("*.t0.jsonl.gz")):
        for at, line in enumerate(lines(path)):
            for turn in line["turns"]:
                if len(turn["answer"]) > 1:
                    yield Spoken(line["kind"], at, places(turn["prompt"], turn["answer"]))


def toy(temperature: float) -> Iterator[Spoken]:
    """The toy's answers, without what was found before the first token."""
    for kind in (*several.COPYING, *several.OTHERS):
        for at, text in enumerate(several.answers(kind, temperature)):
            yield Spoken(kind, (kind, at), [replace(text[0], copies=several.NOTHING), *text[1:]])


class Chances:
    """The chance that a copied token is right if those before it are, as recordings tell it.

    It is the share of such tokens that were right: of those with about the same confidence; of
    those among them that stand as far into their copy; of these after a copy that held for as long;
    and of these in answers to the same question. Each share counts the one before it as `_WEIGHT`
    tokens. The places along a copy of n tokens, all of which see the same end, count as the root
    of n places: with the full number, copies of other texts seem to last too long.
    """

    def __init__(self) -> None:
        """Start with no recordings."""
        self._right = defaultdict[Hashable, float](float)
        self._tested = defaultdict[Hashable, float](float)

    def count(self, spoken: Spoken, weight: int = 1) -> None:
        """Add an answer, or take it away with a weight of -1."""
        for place, keys in zip(spoken.text, _keys(spoken), strict=True):
            each = weight / math.sqrt(1 + place.copies.right)
            for its, chance in zip(keys, place.copies.chances, strict=False):
                for key in its:
                    self._right[key] += each * chance
                    self._tested[key] += each

    def of(self, spoken: Spoken) -> Told:
        """What an answer's policy is told."""
        return [[*map(self._chance, keys)] for keys in _keys(spoken)]

    def _chance(self, keys: Sequence[Hashable]) -> float:
        chance = 0.5
        for key in keys:
            right = self._right[key] + _WEIGHT * chance
            chance = right / (self._tested[key] + _WEIGHT)
        return chance


def _keys(spoken: Spoken) -> Iterator[list[Sequence[Hashable]]]:
    """What tells the chance of each token that is copied at each place, from coarse to fine."""
    for copied in standing(spoken.text):
        yield [
            (sure, (sure, into), (sure, into, held), (sure, into, spoken.question))
            for sure, into, held in copied
        ]


def standing(text: Answer) -> Iterator[list[tuple[int, int, int]]]:
    """How each token that is copied at each place stands, in coarse steps.

    How sure lookup is of it, how far into the copy it is, and how long the copy before held.
    """
    now = last = 0  # how many places in a row began a copy well, and before the last that did not
    for place in text:
        held = last.bit_length()
        sure = [int(-2 * math.log2(max(1e-3, 1 - each))) for each in place.copies.confidences]
        yield [(each, at.bit_length(), held) for at, each in enumerate(sure)]
        if place.copies.right:
            now += 1
        elif now:
            now, last = 0, now


def informed(spoken: Sequence[Spoken]) -> Iterator[tuple[Spoken, Told, Told]]:
    """The answers that copy; what those to all other questions tell; and what all tell."""
    chances, asked = Chances(), defaultdict[Hashable, list[Spoken]](list)
    for each in spoken:
        chances.count(each)
        asked[each.question].append(each)
    for its in asked.values():
        copying = [each for each in its if each.kind in COPYING]
        whole = [chances.of(each) for each in copying]
        for each in its:
            chances.count(each, -1)
        yield from zip(copying, map(chances.of, copying), whole, strict=True)
        for each in its:
            chances.count(each)


def by_place(spoken: Spoken, told: Told) -> Told:
    """The recorded chances, and `told` of the tokens that were not tested."""
    return [
        [*place.copies.chances, *its[len(place.copies.chances) :]]
        for place, its in zip(spoken.text, told, strict=True)
    ]


def rates(spoken: Spoken, others: Told, own: Told, prices: Prices) -> list[float]:
    """Tokens per baseline round: automatic, others, own, place, ends."""
    texts = [spoken.text]
    told = (others, own, by_place(spoken, own))
    oracles = (Oracle(texts, prices, (LOOKUP,), 0.0, copies=its) for its in told)
    policies: list[GammaPolicy] = [AutoGamma(prices.costs()), *oracles]
    found = [speed(policy, texts, prices) * prices.target[1] for policy in policies]
    return [*found, EndsKnown(spoken.text, prices).rate]


def shares(known: Sequence[tuple[Spoken, Told, Told]], points: Points) -> dict[str, list[float]]:
    """By kind, and of all: the automatic rate, and its share of each policy's."""
    prices, spent = Prices.of(points, {}), defaultdict[str, list[list[float]]](list)
    for each, others, own in known:
        rounds = [len(each.text) / rate for rate in rates(each, others, own, prices)]
        for kind in (each.kind, "all"):
            spent[kind].append([len(each.text), *rounds])
    sums = {kind: [*map(sum, zip(*its, strict=True))] for kind, its in spent.items()}
    return {
        kind: [tokens / own, *(bound / own for bound in bounds)]
        for kind, (tokens, own, *bounds) in sums.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="curves with this in their name")
    only = parser.parse_args().only
    recordings = {
        "Real models, temperature 0": real(),
        "The toy, temperature 0": toy(0.0),
        "The toy, temperature 0.8": toy(0.8),
    }
    for title, spoken in recordings.items():
        known = list(informed(list(spoken)))
        kinds = [kind for kind in COPYING if any(each.kind == kind for each, _, _ in known)]
        print(f"\n{title}: automatic (share of others, own, place, ends)\n")
        print(f"| curve | {' | '.join(kinds)} | all |\n|{'---|' * (len(kinds) + 2)}")
        for name, points in curves():
            if only in name:
                found = shares(known, points)
                cells = (row(*found[kind]) for kind in (*kinds, "all"))
                print(f"| {name} | {' | '.join(cells)} |", flush=True)


def row(rate: float, *its: float) -> str:
    return f"{rate:.2f} ({', '.join(f'{share:.2f}' for share in its)})"


if __name__ == "__main__":
    main()
