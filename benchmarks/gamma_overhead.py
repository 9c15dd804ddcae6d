"""The controller's own time per generated token, at a vocabulary of 152,000. Takes a minute.

Counts what automatic gamma adds to a round: confidences, decisions, acceptance probabilities, and
learning; not the draft's and target's passes, the sampler chain, the best guesses and the record
of the round, which any policy needs. Two figures: with some memory touched between rounds, and
cold: wherever a pass would run, more memory is touched than a core's own caches hold, so that all
that follows finds them empty. Confidences differ from position to position and timings scatter by
3 %, as real ones do. The mean over all rounds, since some work is done only now and then; every
round is repeated and the least time counts, since what another program does meanwhile only adds.

    uv run python benchmarks/gamma_overhead.py
"""

from __future__ import annotations

import random
from time import perf_counter

import numpy as np

from localspec.engine.acceptance import coupling, overlap
from localspec.engine.drafter import argmax_proposer
from localspec.engine.length.cost import Costs
from localspec.engine.length.gamma import AutoGamma
from localspec.engine.length.stopping import Situation
from localspec.engine.sampling import Dist
from localspec.engine.stats import DRAFT, Round

VOCABULARY = 152_000
ROUNDS = 500
REPEATS = 4
CONTEXT = 100
ROWS = 8
"""Of logits, 600 KB each: together more than the first and second cache of a core."""

AGREEMENT = {
    "match": lambda p, q: p.prob(int(q.ids[0])),
    "token": overlap,
    "coupled": coupling,
}


def main() -> None:
    print("| rule | accepted | tokens a round | microseconds a token | cold |")
    print("|---|---|---|---|---|")
    for rule in AGREEMENT:
        for acceptance in (0.4, 0.7, 0.9):
            tokens, usual = measure(rule, acceptance, cold=False)
            _, cold = measure(rule, acceptance, cold=True)
            print(
                f"| {rule} | {acceptance} | {tokens:.1f} | {usual:.0f} | {cold:.0f} |", flush=True
            )


def measure(rule: str, acceptance: float, *, cold: bool) -> tuple[float, float]:
    """Tokens a round, and microseconds a token."""
    repeats = []
    for _ in range(REPEATS):
        rounds = Rounds(rule, acceptance, cold=cold)
        repeats.append([rounds.one() for _ in range(ROUNDS)])
    seconds = tokens = 0.0
    for same in zip(*repeats, strict=True):
        spent, guessing, emitted = zip(*same, strict=True)
        seconds += min(spent) - min(guessing)
        tokens += emitted[0]
    return tokens / ROUNDS, 1e6 * seconds / tokens


class Rounds:
    """Rounds of a made-up pair: no model runs."""

    def __init__(self, rule: str, acceptance: float, *, cold: bool) -> None:
        self.cold, self.at = cold, 0
        luck = np.random.default_rng(0)
        self.rule, self.acceptance, self.luck = rule, acceptance, random.Random(0)
        self.rows = [luck.normal(0, 3, VOCABULARY).astype(np.float32) for _ in range(ROWS)]
        self.p, self.q = distribution(luck), distribution(luck)
        self.policy = AutoGamma(
            Costs({0: {1: 1.0, 2: 1.2, 17: 3.0}}, {DRAFT: {0: {1: 0.05, 64: 0.5}}})
        )
        self.policy.begin(follow_clock=True)

    def one(self) -> tuple[float, float, int]:
        """A round: the controller's seconds, those of mere guesses in them, the tokens emitted."""
        self.rows[-1][:] += 0.0
        agreement, firm = AGREEMENT[self.rule], self.rule == "token"
        chances: list[float] = []
        started = perf_counter()
        plan = self.policy.plan(Situation(room=60, context=CONTEXT))
        spent, guessing = perf_counter() - started, 0.0
        wanted = plan.limit > 0
        while wanted:
            probing, guess = self.draft()
            spent, guessing = spent + probing, guessing + guess
            chances.append(self.luck.betavariate(4 * self.acceptance, 4 * (1 - self.acceptance)))
            started = perf_counter()
            wanted = plan.wants_token(chances[-1], firm=firm)
            wanted = wanted and len(chances) < plan.limit and plan.wants_pass()
            spent += perf_counter() - started
        drafted = plan.aim if firm else plan.keep()
        stay = 0
        while stay < drafted and self.luck.random() < chances[stay]:
            stay += 1
        judged = min(stay + 1, len(chances))
        self.cool()
        started = perf_counter()
        for _ in range(judged):
            agreement(self.p, self.q)
        spent += perf_counter() - started
        done = self.round(drafted, stay, chances, judged)
        started = perf_counter()
        self.policy.observe(done)
        self.policy.speedup()
        spent += perf_counter() - started
        return spent, guessing, stay + 1

    def draft(self) -> tuple[float, float]:
        """A draft pass; under match the seconds of a probe, and of a best guess alone."""
        self.cool()
        if self.rule != "match":
            return 0.0, 0.0
        self.at = (self.at + 1) % ROWS
        started = perf_counter()
        self.rows[self.at - ROWS // 2].argmax()
        guess = perf_counter() - started
        self.cool()
        started = perf_counter()
        argmax_proposer(self.rows[self.at], (), ()).confidence()
        return perf_counter() - started, guess

    def cool(self) -> None:
        """Empty the core's caches where a pass would."""
        if self.cold:
            for row in self.rows:
                np.add(row, 0.0, out=row)

    def round(self, drafted: int, accepted: int, chances: list[float], judged: int) -> Round:
        """What the engine would report, on a machine that is not quite steady."""
        draft_s = 0.05 * len(chances) * self.luck.gauss(1, 0.03)
        verify_s = (1.0 + 0.12 * drafted) * self.luck.gauss(1, 0.03)
        return Round(
            tokens=(1,) * (accepted + 1),
            gamma=drafted,
            drafted=drafted,
            accepted=accepted,
            draft_s=draft_s,
            verify_s=verify_s,
            total_s=draft_s + verify_s,
            draft_prefill=min(1, len(chances)),
            draft_passes=len(chances),
            drafter=DRAFT if chances else "",
            context=CONTEXT,
            confidences=tuple(chances),
            chances=tuple(chances[:judged]),
        )


def distribution(luck: np.random.Generator) -> Dist:
    """Twelve tokens: what top-k 40, top-p 0.95 and min-p 0.05 leave at most but rarely."""
    probs = np.sort(luck.dirichlet(np.full(12, 0.5)))[::-1] + 1e-6
    return Dist(luck.choice(20, 12, replace=False).astype(np.int64), probs / probs.sum())


if __name__ == "__main__":
    main()
