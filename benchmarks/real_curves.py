"""Automatic drafting on recorded answers, over every published cost curve that reaches n = 8.

Lookup is replayed over the curves of `models/curves.toml`, those of `benchmarks/data/stepped.toml`
and those measured on two cores (`benchmarks/real_lookup.py`); then, where a draft model was
recorded (`benchmarks/real_draft.py`), with the draft, at a step of a tenth of T(1), or of `--step`.
Every answer starts anew. For each curve the script prints, with lookup and with both: tokens per
baseline round in the worst kind of text; the least share, over the kinds, of the speed of the best
fixed drafter and length, chosen and scored on the same answers; and tokens per baseline round over
all. The policy follows an undisturbed clock. No model is loaded; it takes some minutes:

    uv run python -m benchmarks.real_curves

The draft reads of each prompt what the policy wants, or with --reads its end or all of it always.

With --held-out it replays lookup on the answers in `benchmarks/data/held_out` instead, on which
nothing in the package was chosen.

With --short it prints what the slowest tenth of the answers makes if they end after 20 tokens and
one policy writes them, one after the other.

With --kept one policy writes sequences of answers, and is held against policies that begin each of
these answers anew: ten answers of one kind, the edits also in pieces of 20 tokens, as between an
agent's calls; 48 of all kinds; and 24 of which every other one copies.
"""

from __future__ import annotations

import argparse
import random
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import geometric_mean, quantiles

from benchmarks.real_draft import looks, with_looks
from benchmarks.real_lookup import CURVES, answers
from benchmarks.real_prompts import KINDS
from benchmarks.real_record import lines
from benchmarks.several import Always, Answer, Clock, Prices, rounds
from localspec.drafter_names import DRAFT, LOOKUP
from localspec.engine.length.cost import Points
from localspec.engine.length.gamma import AutoGamma, GammaPolicy
from localspec.loading.measurements import published

DATA = Path(__file__).parent / "data"
HELD_OUT = DATA / "held_out"
"""Answers of other models and temperatures, on which nothing in the package was chosen."""
CELLS = "worst kind | of the best fixed | all"
TARGET = "qwen2.5-coder-1.5b-q4_k_m"
STEP = 0.1  # of T(1)
LENGTHS = {LOOKUP: (1, 3, 7, 15, 63), DRAFT: (1, 2, 3, 4, 6, 8, 12)}

Kinds = Mapping[str, Sequence[Answer]]
Make = Callable[[Prices], GammaPolicy]


def curves() -> Iterator[tuple[str, Points]]:
    """All curves that reach n = 8, by the hardware they were measured on."""
    yield from CURVES.items()
    for its in published.curves():
        if max(its.points) >= 8:
            yield f"{its.machine}, {its.model}", its.points
    for each in tomllib.loads((DATA / "stepped.toml").read_text("utf-8"))["stepped"]:
        times = {int(n): ratio for n, ratio in each["times"].items()}
        yield f"{each['machine']}, {each['model']}", {1: 1.0} | times


def by_kind(paths: Sequence[Path]) -> dict[str, list[Answer]]:
    """Recorded answers of more than one token."""
    found: dict[str, list[Answer]] = {kind: [] for kind in KINDS}
    for path in paths:
        for kind, text in answers(path):
            if len(text) > 1:
                found[kind].append(text)
    return found


def with_draft(draft: str = "0.5b", temperature: str = "0") -> dict[str, list[Answer]]:
    """The answers along which this draft was recorded, knowing all of the prompt or its end."""
    found: dict[str, list[Answer]] = {kind: [] for kind in KINDS}
    recorded = DATA / f"{TARGET}.t{temperature}.jsonl.gz"
    said = recorded.name.replace(".jsonl", f".draft-{draft}.jsonl")
    both = [looks(DATA / name) for name in (said, said.replace(".jsonl", ".end.jsonl"))]
    turns = [turn for line in lines(recorded) for turn in line["turns"]]
    for turn, (kind, text), *its in zip(turns, answers(recorded), *both, strict=True):
        if len(text) > 1:
            found[kind].append(with_looks(text, len(turn["prompt"]), *its))
    return found


def rates(texts: Kinds, prices: Prices, make: Make) -> dict[str, float]:
    """Tokens per baseline round by kind."""
    return {
        kind: sum(map(len, its)) / sum(rounds_of(make(prices), text, prices) for text in its)
        for kind, its in texts.items()
        if its
    }


def rounds_of(policy: GammaPolicy, text: Answer, prices: Prices) -> float:
    """The time of an answer in baseline rounds."""
    policy.begin(follow_clock=True)
    clock = Clock(lambda _: 1.0)
    spent = sum(done.total_s for done in rounds(policy, text, prices, clock))
    return spent / prices.target[1]


def sequences(texts: Kinds) -> Iterator[tuple[str, Sequence[Answer]]]:
    """Answers in the order in which a conversation might ask for them."""
    luck = random.Random(1)
    drawn = {kind: luck.sample(its, len(its)) for kind, its in texts.items()}
    yield from ((f"10 of {kind}", drawn[kind][:10]) for kind in ("edit", "quote", "code", "chat"))
    yield "10 of edit, in pieces", [piece for text in drawn["edit"][:10] for piece in pieces(text)]
    every = [text for its in drawn.values() for text in its]
    yield "48 of all kinds", luck.sample(every, 48)
    copied, others = (
        luck.sample([text for kind in kinds for text in drawn[kind]], 12)
        for kinds in (("edit", "fix", "quote"), ("code", "chat", "explain"))
    )
    yield (
        "12 copied, 12 others",
        [text for both in zip(copied, others, strict=True) for text in both],
    )


def pieces(text: Answer) -> Iterator[Answer]:
    """An answer in generations of 20 tokens."""
    return (text[at : at + 20] for at in range(0, len(text), 20))


def slowest_tenth(texts: Kinds, prices: Prices) -> float:
    """Of answers cut to 20 tokens, which one policy writes: tokens per baseline round."""
    cut = [next(pieces(text)) for its in texts.values() for text in its]
    random.Random(1).shuffle(cut)
    policy = auto(prices)
    return quantiles([len(text) / rounds_of(policy, text, prices) for text in cut], n=10)[0]


def gain_of_keeping(its: Sequence[Answer], prices: Prices) -> float:
    """The speed of one policy for all answers over that of one for each."""
    kept = auto(prices)
    anew = sum(rounds_of(auto(prices), text, prices) for text in its)
    return anew / sum(rounds_of(kept, text, prices) for text in its)


def keeping(way: str, texts: Kinds, steps: Mapping[str, float], only: str) -> None:
    """Print, by sequence, the mean and the least gain over all curves with this in their name."""
    priced = [(name, Prices.of(points, steps)) for name, points in curves() if only in name]
    for label, its in sequences(texts):
        gains = [(gain_of_keeping(its, prices), name) for name, prices in priced]
        mean, (least, where) = geometric_mean(gain for gain, _ in gains), min(gains)
        print(f"| {way} | {label} | {mean:.3f} | {least:.3f} ({where}) |", flush=True)


def auto(prices: Prices) -> GammaPolicy:
    return AutoGamma(prices.costs())


class _EndAlone(AutoGamma):
    def _reads_whole(self, *_: object) -> bool:
        return False


class _Whole(AutoGamma):
    def _reads_whole(self, *_: object) -> bool:
        return True


READS: Mapping[str, Make] = {
    "auto": auto,
    "end": lambda prices: _EndAlone(prices.costs()),
    "whole": lambda prices: _Whole(prices.costs()),
}


def fixed(names: Sequence[str]) -> Iterator[Make]:
    """Policies of every drafter at every length."""
    for name in names:
        for length in LENGTHS[name]:
            yield partial(_always, name, length)


def _always(name: str, length: int, _: Prices) -> GammaPolicy:
    return Always(name, length)


def shares(
    texts: Kinds, prices: Prices, make: Make = auto
) -> tuple[dict[str, float], dict[str, float]]:
    """By kind: tokens per baseline round, and their share of the best fixed choice's."""
    own = rates(texts, prices, make)
    others = [rates(texts, prices, make) for make in fixed((LOOKUP, *prices.drafts))]
    best = {kind: max(1.0, *(each[kind] for each in others)) for kind in own}  # 1: no drafting
    return own, {kind: own[kind] / best[kind] for kind in own}


def row(texts: Kinds, prices: Prices, make: Make = auto) -> str:
    own, share = shares(texts, prices, make)
    worst, least = min(own, key=lambda kind: own[kind]), min(share, key=lambda kind: share[kind])
    tokens = {kind: sum(map(len, texts[kind])) for kind in own}
    whole = sum(tokens.values()) / sum(tokens[kind] / own[kind] for kind in own)
    return f"{own[worst]:.3f} ({worst}) | {share[least]:.3f} ({least}) | {whole:.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="curves with this in their name")
    parser.add_argument("--draft", choices=("0.5b", "smollm2"), default="0.5b")
    parser.add_argument("--step", type=float, default=STEP, help="of the draft, in T(1)")
    parser.add_argument("--temperature", choices=("0", "0.8"), default="0", help="of the answers")
    parser.add_argument("--reads", choices=[*READS], default="auto", help="of each prompt")
    parser.add_argument("--short", action="store_true", help="answers of 20 tokens")
    parser.add_argument("--held-out", action="store_true", help="lookup on answers held out")
    parser.add_argument("--kept", action="store_true", help="from answer to answer")
    given = parser.parse_args()
    files = f"*.t{given.temperature}.jsonl.gz"
    if given.held_out:
        held = by_kind(sorted(HELD_OUT.glob(files)))
        print(f"| curve | {CELLS} |\n|---|---|---|---|")
        for name, its in curves():
            if given.only in name:
                print(f"| {name} | {row(held, Prices.of(its, {}))} |", flush=True)
        return
    drafted = with_draft(given.draft, given.temperature)
    both = by_kind(sorted(DATA.glob(files)))
    if given.kept:
        print("| drafters | answers | kept over anew | least |\n|---|---|---|---|")
        keeping("lookup", both, {}, given.only)
        keeping("with the draft", drafted, {DRAFT: given.step}, given.only)
        return
    if given.short:
        print("| curve | slowest tenth of 20 tokens |\n|---|---|")
        for name, its in curves():
            if given.only in name:
                tenth = slowest_tenth(drafted, Prices.of(its, {DRAFT: given.step}))
                print(f"| {name} | {tenth:.3f} |", flush=True)
        return
    print(f"| curve | lookup: {CELLS} | with the draft: {CELLS} |")
    print("|---|---|---|---|---|---|---|")
    for name, its in curves():
        if given.only in name:
            alone, aided = Prices.of(its, {}), Prices.of(its, {DRAFT: given.step})
            found = row(both, alone), row(drafted, aided, READS[given.reads])
            print(f"| {name} | {' | '.join(found)} |", flush=True)


if __name__ == "__main__":
    main()
