"""What lookup and the automatic draft length take of a round without a draft.

Replays recorded answers of real models in which little is copied (`benchmarks/real_record.py`),
token by token: lookup looks for a copy, the policy plans, and learns from a round without a draft,
whatever it planned. In a real round the target's pass comes between, which fills the processor's
caches with weights. So the same is done with warm caches and after 128 MB were read. Prints the
median microseconds a token. No model is loaded; it takes a minute:

    uv run python -m benchmarks.controller_cost
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from statistics import median
from time import perf_counter

import numpy as np

from benchmarks.real_lookup import CURVES
from benchmarks.real_ngrams import Turn, turns
from benchmarks.real_prompts import COPYING
from localspec.engine.drafters.lookup import Lookup
from localspec.engine.length.cost import Costs
from localspec.engine.length.gamma import AutoGamma
from localspec.engine.length.stopping import Situation
from localspec.engine.record.stats import Round
from localspec.limits import MAX_GAMMA

CURVE = "EPYC with AVX-512, 1.5B Q4_K_M"
STEPS = ("lookup", "plan", "learn")
WEIGHTS = np.ones(16 << 20)


def taken(turn: Turn, *, cold: bool) -> Iterator[Sequence[float]]:
    """Seconds of the three steps at every token of an answer."""
    lookup, policy = Lookup(4096, lambda _: False), AutoGamma(Costs({0: CURVES[CURVE]}, {}))
    lookup.begin(turn.prompt)
    policy.begin(follow_clock=True)
    tokens = [*turn.prompt, turn.answer[0]]
    for left, token in zip(range(len(turn.answer) - 1, 0, -1), turn.answer[1:], strict=True):
        if cold:
            WEIGHTS.sum()
        begun = perf_counter()
        guess = lookup.guess(tokens)
        found = perf_counter()
        policy.plan(Situation(MAX_GAMMA, len(tokens), left, {}, guess.confidences))
        planned = perf_counter()
        chances = tuple(float(copied == token) for copied in guess.tokens[:1])
        sure = tuple(guess.confidences[:1])
        done = Round(
            (token,), 0, 0, 0, draft_s=planned - begun, verify_s=0.02, total_s=0.021,
            context=len(tokens), copy_confidences=sure, copy_chances=chances,
        )  # fmt: skip
        ready = perf_counter()
        policy.observe(done)
        yield found - begun, planned - found, perf_counter() - ready
        tokens.append(token)


def main() -> None:
    others = (turn for turn in turns() if turn.kind not in COPYING and len(turn.answer) > 100)
    answers = list(islice(others, 0, None, 4))
    print(f"| caches | {' | '.join(STEPS)} | together |\n|{'---|' * (len(STEPS) + 2)}")
    for name, cold in (("warm", False), ("cold", True)):
        steps = [each for turn in answers for each in taken(turn, cold=cold)]
        medians = [1e6 * median(each) for each in (*zip(*steps, strict=True), map(sum, steps))]
        print(f"| {name} | {' | '.join(f'{each:.0f}' for each in medians)} |", flush=True)


if __name__ == "__main__":
    main()
