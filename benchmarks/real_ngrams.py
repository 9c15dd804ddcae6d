"""Automatic copying against llama-server's n-gram drafters, on recorded answers of real models.

The drafters `ngram-mod` and `ngram-map-k` are replayed as llama.cpp makes their drafts
(common/ngram-mod.cpp, common/ngram-map.cpp and common/speculative.cpp of the version that
llama-cpp-python 0.3.36 has), as they come and with short patterns: the four settings of
`benchmarks/drafters_vs_llama_server.py`. Every answer starts anew, and what its prompt and its
beginning hold can be copied, by localspec's lookup with `--gamma auto` as well as by them. Rounds
cost what `benchmarks/real_curves.py` says; what a server adds to a round is left out, as are
collisions of hashes.

For every curve and kind of text the script prints the tokens per baseline round by lookup, and
their ratio to those of the best of llama-server's five settings. One of these drafts nothing, and
the best is chosen and scored on the same answers. The last column is the ratio to the one setting
that is best for all kinds together. No model is loaded; it takes three minutes:

    uv run python -m benchmarks.real_ngrams [--only EPYC]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import geometric_mean
from typing import NamedTuple, Protocol

from benchmarks.real_curves import DATA, auto, curves, rounds_of
from benchmarks.real_lookup import places
from benchmarks.real_prompts import COPYING, KINDS
from benchmarks.real_record import lines
from benchmarks.several import Answer, Prices
from localspec.engine.length.cost import Curve, Points

Tokens = Sequence[int]
PLAIN = "plain"


class Drafter(Protocol):
    """Drafts for one answer, from the tokens so far."""

    def draft(self, text: Tokens) -> Tokens:
        """The tokens to check after `text`, which ends with a token that was not decoded yet."""

    def accept(self, accepted: int) -> None:
        """Take how many tokens of the last draft, which was not empty, were accepted."""


class NgramMod:
    """Each n-gram has the one token that followed it last, which is looked up again and again.

    The prompt's n-grams are added at the start, those of the answer once more than 32 - n of them
    are new. After five drafts in a row of which less than a quarter was accepted, all are
    forgotten, and the whole text is added anew.
    """

    def __init__(self, prompt: Tokens, n: int = 24, least: int = 48, most: int = 64) -> None:
        self.n, self.least, self.most = n, least, most
        self._next: dict[Tokens, int] = {}
        self._known = self._low = self._drafted = 0
        self._add(prompt)

    def _add(self, text: Tokens) -> None:
        for at in range(self._known, len(text) - self.n):
            self._next[tuple(text[at : at + self.n])] = text[at + self.n]
        self._known = max(self._known, len(text) - self.n)

    def draft(self, text: Tokens) -> Tokens:
        """As `Drafter.draft`; nothing if fewer than `least` tokens are found."""
        decoded = text[:-1]
        if len(decoded) < self.n:
            return ()
        if self._known + 32 < len(decoded):
            self._add(decoded)
        found = [*text[-self.n :]]
        while len(found) < self.n + self.most:
            token = self._next.get(tuple(found[-self.n :]))
            if token is None:
                break
            found.append(token)
        found = found[self.n :]
        self._drafted = len(found) if len(found) >= self.least else 0
        return found[: self._drafted]

    def accept(self, accepted: int) -> None:
        """As `Drafter.accept`."""
        self._low = self._low + 1 if accepted < 0.25 * self._drafted else 0
        if self._low == 5:
            self._next.clear()
            self._known = self._low = 0


@dataclass
class NgramMap:
    """Copies what followed an n-gram before, up to as many tokens as were accepted there last.

    Of the same n-grams in the prompt the last one counts, and it counts before those in the answer;
    those in the prompt's last n + m tokens are not found.
    """

    prompt: Tokens
    n: int = 12
    m: int = 48
    _where: dict[Tokens, int] = field(default_factory=dict)
    _kept: dict[Tokens, int] = field(default_factory=dict)
    _known: int = 0  # the last n-gram that was added
    _key: Tokens = ()

    def draft(self, text: Tokens) -> Tokens:
        """As `Drafter.draft`."""
        decoded, n = text[:-1], self.n
        if len(decoded) < 2 * n + self.m:
            return ()
        self._add(decoded)
        self._key = tuple(text[-n:])
        at = self._where.get(self._key)
        if at is None:
            return ()
        most = self._kept.setdefault(self._key, self.m)
        return decoded[at + n : at + n + most]

    def _add(self, decoded: Tokens) -> None:
        begun, last = len(self.prompt), len(decoded) - self.n - self.m - 1
        of_prompt = range(begun - self.n - self.m - 1, self._known, -1)
        later = range(last, max(begun, self._known), -1)
        for at in (*of_prompt, *later):
            self._where.setdefault(tuple(decoded[at : at + self.n]), at)
        self._known = max(self._known, last)

    def accept(self, accepted: int) -> None:
        """As `Drafter.accept`."""
        self._kept[self._key] = accepted


SETTINGS: Mapping[str, Callable[[Tokens], Drafter]] = {
    "ngram-mod": NgramMod,
    "ngram-mod, short": lambda prompt: NgramMod(prompt, 8, 2, 24),
    "ngram-map-k": NgramMap,
    "ngram-map-k, short": lambda prompt: NgramMap(prompt, 4, 12),
}


class Turn(NamedTuple):
    """A recorded turn, and what lookup copies at each of its places."""

    kind: str
    prompt: Tokens
    answer: Tokens
    places: Answer


def turns() -> Iterator[Turn]:
    """All recorded turns at temperature 0."""
    for path in sorted(DATA.glob("*.t0.jsonl.gz")):
        for line in lines(path):
            for turn in line["turns"]:
                prompt, answer = turn["prompt"], turn["answer"]
                if len(answer) > 1:
                    yield Turn(line["kind"], prompt, answer, places(prompt, answer))


def passes(turn: Turn, make: Callable[[Tokens], Drafter]) -> list[int]:
    """The sizes of the passes in which llama-server writes an answer, in tokens."""
    drafter, text, sizes, at = make(turn.prompt), [*turn.prompt, turn.answer[0]], [1], 1
    while at < len(turn.answer):
        drafted = drafter.draft(text)[: len(turn.answer) - at - 1]
        pairs = enumerate(zip(drafted, turn.answer[at:], strict=False))
        right = next((i for i, (a, b) in pairs if a != b), len(drafted))
        if drafted:
            drafter.accept(right)
        sizes.append(len(drafted) + 1)
        text += turn.answer[at : at + right + 1]
        at += right + 1
    return sizes


Found = Mapping[str, Mapping[str, float]]
"""Tokens per baseline round, by setting and kind."""
Sizes = Mapping[str, Sequence[Sequence[int]]]
"""Of every answer the sizes of its passes, by setting."""


def rates(found: Sequence[Turn], sizes: Sizes, its: Points) -> Found:
    """The rates of lookup, of plain decoding and of llama-server's drafters."""
    prices, curve = Prices.of(its, {}), Curve(its)
    spent = {
        "auto": [rounds_of(auto(prices), turn.places, prices) for turn in found],
        PLAIN: [float(len(turn.answer)) for turn in found],
    }
    for name, of_all in sizes.items():
        spent[name] = [sum(map(curve.seconds, its)) / curve.seconds(1) for its in of_all]
    return {name: _by_kind(found, each) for name, each in spent.items()}


def _by_kind(found: Sequence[Turn], spent: Sequence[float]) -> dict[str, float]:
    tokens, rounds = dict.fromkeys(KINDS, 0.0), dict.fromkeys(KINDS, 0.0)
    for turn, each in zip(found, spent, strict=True):
        tokens[turn.kind] += len(turn.answer)
        rounds[turn.kind] += each
    return {kind: tokens[kind] / rounds[kind] for kind in KINDS if rounds[kind]}


def row(found: Found) -> str:
    """The cells of a curve."""
    own = found["auto"]
    others = {name: its for name, its in found.items() if name != "auto"}
    best = {kind: max(others, key=lambda name: others[name][kind]) for kind in own}
    over = {kind: own[kind] / others[best[kind]][kind] for kind in own}
    alone = max(geometric_mean(its.values()) for its in others.values())
    copying, rest = (
        geometric_mean(over[kind] for kind in own if (kind in COPYING) == copies)
        for copies in (True, False)
    )
    cells = [f"{own[kind]:.2f}, {over[kind]:.2f} ({best[kind]})" for kind in own]
    totals = [f"{copying:.2f}", f"{rest:.2f}", f"{geometric_mean(own.values()) / alone:.2f}"]
    return " | ".join([*cells, *totals])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="curves with this in their name")
    only, found = parser.parse_args().only, list(turns())
    sizes = {name: [passes(turn, make) for turn in found] for name, make in SETTINGS.items()}
    kinds = [kind for kind in KINDS if any(turn.kind == kind for turn in found)]
    print(f"{len(found)} answers\n")
    print(f"| curve | {' | '.join(kinds)} | copied | other | over one setting |")
    print(f"|{'---|' * (len(kinds) + 4)}")
    for name, its in curves():
        if only in name:
            print(f"| {name} | {row(rates(found, sizes, its))} |", flush=True)


if __name__ == "__main__":
    main()
