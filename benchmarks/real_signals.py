"""Do the kind of place, and the words that a question names, tell where copies end?

Lookup alone, on recorded answers of real models at temperature 0 (`benchmarks/real_record.py`). A
logistic regression learns from the answers to other questions how likely a copied token is right if
those before it are. It always sees how sure lookup was, how far into the copy the token stands, and
for how long the copy before held. It is shown, in addition,

- *place*: what the token is and what stands before it: a line's end, indentation, a digit, the
  beginning of a word or the rest of one, punctuation;
- *named*: whether it belongs to a word that the question names outside of its blocks of code, or
  follows such a word: what a question names is what an edit changes.

Of the answers in which text is copied the script prints the mean loss in nats a token, and for the
curves of `benchmarks/real_lookup.py` the tokens per baseline round of policies that are told these
chances and make the choice with the least expected time (`several.Oracle`), next to those of the
automatic choice, which learns within an answer how long its copies last. Of the models only the
vocabularies are used; a quarter of an hour:

    uv run python -m benchmarks.real_signals QWEN2.5.gguf SMOLLM2.gguf
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import cache
from itertools import accumulate, pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.real_curves import DATA
from benchmarks.real_informed import COPYING, Spoken, Told, standing
from benchmarks.real_lookup import CURVES, places
from benchmarks.real_record import lines
from benchmarks.several import Oracle, Prices, speed
from localspec.drafter_names import LOOKUP
from localspec.engine.drafters.lookup import Lookup
from localspec.engine.length.gamma import AutoGamma, GammaPolicy
from localspec.engine.llama import Model
from localspec.limits import MAX_GAMMA

Floats = NDArray[np.float64]
SIGNALS = {"none": (), "place": ("place",), "named": ("named",), "both": ("place", "named")}
_FOLDS = 8
_KINDS = 6
_BLOCK, _WORD = re.compile(r"```.*?(?:```|$)", re.DOTALL), re.compile(r"\w+")


class Turn(NamedTuple):
    """A recorded turn."""

    spoken: Spoken
    prompt: Sequence[int]
    answer: Sequence[int]


class Sign(NamedTuple):
    """What may tell whether a copied token is right; the first three are known without a text.

    Attributes:
        sure, into, held: see `real_informed.standing`.
        kind, before: of the token, and of the one before it.
        inside, follows: whether it is part of a named word, and whether it follows one.
    """

    sure: int
    into: int
    held: int
    kind: int
    before: int
    inside: bool
    follows: bool


def turns(name: str) -> Iterator[Turn]:
    """All turns that one model answered."""
    for path in sorted(DATA.glob(f"{name}*.t0.jsonl.gz")):
        for at, line in enumerate(lines(path)):
            for turn in line["turns"]:
                prompt, answer = turn["prompt"], turn["answer"]
                if len(answer) > 1:
                    yield Turn(Spoken(line["kind"], at, places(prompt, answer)), prompt, answer)


def _kind(text: str) -> int:
    word = text.lstrip(" ")
    if "\n" in text or not word.strip():
        return int("\n" not in text)
    if word[0].isdigit():
        return 2
    if word[0].isalpha() or word[0] == "_":
        return 3 if text[0] == " " else 4
    return 5


def named_by(
    tokens: Sequence[str], before: str, named: frozenset[str]
) -> Iterator[tuple[bool, bool]]:
    """Of each token after `before`: whether it is part of a named word, and whether it follows one.

    Args:
        tokens: their texts.
        before: the text in front of them.
        named: the words that the question names, in lower case.
    """
    found = _WORD.finditer(before + "".join(tokens))
    spans = [(word.start(), word.end()) for word in found if word[0].lower() in named]
    ends = list(accumulate(map(len, tokens), initial=len(before)))
    for start, end in pairwise(ends):
        inside = any(first < end and last > start for first, last in spans)
        yield inside, any(last == start for _, last in spans)


def signs(turn: Turn, text: Callable[[int], str]) -> Iterator[Sequence[Sign]]:
    """The signs of every token that is copied, place by place."""
    own = [*turn.prompt, *turn.answer]
    question = _BLOCK.sub(" ", "".join(map(text, turn.prompt)))
    named = frozenset(word.lower() for word in _WORD.findall(question) if len(word) > 1)
    lookup = Lookup(4096, lambda _: False)
    lookup.begin(turn.prompt)
    yield ()
    for at, stand in enumerate(list(standing(turn.spoken.text))[1:], len(turn.prompt) + 1):
        copied = [text(token) for token in lookup.guess(own[:at], limit=MAX_GAMMA).tokens]
        tail = [text(token) for token in own[at - 8 : at]]
        kinds = pairwise(map(_kind, (tail[-1], *copied)))
        told = named_by(copied, "".join(tail), named)
        yield [
            Sign(*known, kind, before, *naming)
            for known, (before, kind), naming in zip(stand, kinds, told, strict=True)
        ]


def features(signs: NDArray[np.int64], tried: Collection[str]) -> Floats:
    """The columns of the regression, one row for each token."""

    def hot(column: int, most: int) -> Floats:
        return np.eye(most)[np.minimum(signs[:, column], most - 1)]

    sure, known = signs[:, :1] / 10, [hot(0, 21), hot(1, 7), hot(2, 8)]
    columns = [np.ones_like(sure), *known, *(sure * each for each in known[1:])]
    if "place" in tried:
        kinds = hot(3, _KINDS), hot(4, _KINDS)
        both = np.eye(_KINDS**2)[signs[:, 3] * _KINDS + signs[:, 4]]
        columns += [*kinds, *(sure * each for each in kinds), both]
        columns += [kinds[0] * (signs[:, 2:3] == held) for held in range(8)]
    if "named" in tried:
        named = signs[:, 5:7].astype(float)
        columns += [named, sure * named, *(named[:, :1] * each for each in known[1:])]
    return np.hstack(columns)


def fitted(x: Floats, right: Floats, weights: Floats) -> Floats:
    """The coefficients of a logistic regression, by Newton's method with a slight ridge."""
    found = np.zeros(x.shape[1])
    for _ in range(12):
        chances = _logistic(x @ found)
        slope = x.T @ (weights * (right - chances)) - found
        bend = (x * (weights * chances * (1 - chances))[:, None]).T @ x + np.eye(len(found))
        step = np.linalg.solve(bend, slope)
        found += step
        if np.abs(step).max() < 1e-4:
            break
    return found


def _logistic(x: Floats) -> Floats:
    chances: Floats = 1 / (1 + np.exp(-np.clip(x, -9, 9)))
    return chances


class Tokens(NamedTuple):
    """All copied tokens of the answers, one row for each.

    Attributes:
        signs: shape (tokens, 7).
        right: whether each was right; below 0 if it was not tested.
        weights: the places along a copy of n tokens see the same end, and count as the root of n.
        folds: the part in which the answers to its question are.
        copying: whether it belongs to an answer of a kind that copies.
    """

    signs: NDArray[np.int64]
    right: Floats
    weights: Floats
    folds: NDArray[np.int64]
    copying: NDArray[np.bool_]


def chances(tokens: Tokens, tried: Collection[str]) -> tuple[Floats, float]:
    """The chance of every token as answers to other questions tell it, and the mean loss."""
    x, found = features(tokens.signs, tried), np.zeros(len(tokens.right))
    tested = tokens.right >= 0
    for fold in range(_FOLDS):
        here = tokens.folds == fold
        known = tested & ~here
        found[here] = _logistic(
            x[here] @ fitted(x[known], tokens.right[known], tokens.weights[known])
        )
    scored = tested & tokens.copying
    right, chance = tokens.right[scored], found[scored]
    losses = -np.log(np.where(right > 0, chance, 1 - chance))
    return found, float(np.average(losses, weights=tokens.weights[scored]))


def gathered(model: Path, name: str) -> Iterator[tuple[Turn, Sequence[Sequence[Sign]]]]:
    """The turns that one model answered, with their signs."""
    with Model.load(model) as loaded:
        text = cache(lambda token: loaded.piece(token).decode("utf-8", "replace"))
        for turn in turns(name):
            yield turn, list(signs(turn, text))


def tokens_of(found: Sequence[tuple[Turn, Sequence[Sequence[Sign]]]]) -> Tokens:
    """All copied tokens, in the order of turns and places."""
    rows = list[Sign]()
    right, weights = list[float](), list[float]()
    folds, copying = list[int](), list[bool]()
    for turn, its in found:
        for place, copied in zip(turn.spoken.text, its, strict=True):
            tested = place.copies.chances
            rows += copied
            right += [*tested, *[-1.0] * (len(copied) - len(tested))]
            weights += [1 / np.sqrt(1 + place.copies.right)] * len(copied)
            folds += [hash(turn.spoken.question) % _FOLDS] * len(copied)
            copying += [turn.spoken.kind in COPYING] * len(copied)
    signs = np.array(rows, np.int64)
    return Tokens(signs, *map(np.array, (right, weights, folds, copying)))


def rate(found: Sequence[Turn], policies: Sequence[GammaPolicy], prices: Prices) -> float:
    """Tokens per baseline round of all turns together, each with its policy."""
    spent = written = 0.0
    for turn, policy in zip(found, policies, strict=True):
        if turn.spoken.kind not in COPYING:
            continue
        text = turn.spoken.text
        written += len(text)
        spent += len(text) / (speed(policy, [text], prices) * prices.target[1])
    return written / spent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("qwen", type=Path)
    parser.add_argument("smollm2", type=Path)
    given = parser.parse_args()
    found = [*gathered(given.qwen, "qwen"), *gathered(given.smollm2, "smollm2")]
    tokens, answered = tokens_of(found), [turn for turn, _ in found]
    told: dict[str, list[Told]] = {}
    for name, tried in SIGNALS.items():
        each, loss = chances(tokens, tried)
        print(f"{name}: {loss:.4f} nats a token", flush=True)
        parts = iter(np.split(each, np.cumsum([len(copied) for _, its in found for copied in its])))
        told[name] = [[next(parts).tolist() for _ in its] for _, its in found]
    print(f"\n| curve | automatic | {' | '.join(told)} |\n|{'---|' * (len(told) + 2)}")
    for curve, points in CURVES.items():
        prices = Prices.of(points, {})
        rates = [rate(answered, [AutoGamma(prices.costs()) for _ in answered], prices)]
        for its in told.values():
            texts = zip(([turn.spoken.text] for turn in answered), its, strict=True)
            oracles = [Oracle(text, prices, (LOOKUP,), 0.0, copies=each) for text, each in texts]
            rates.append(rate(answered, oracles, prices))
        print(f"| {curve} | {' | '.join(f'{each:.3f}' for each in rates)} |", flush=True)


if __name__ == "__main__":
    main()
