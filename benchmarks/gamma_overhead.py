"""The controller's own time per generated token, at a vocabulary of 152,000. Takes half a minute.

Counts what automatic gamma adds to a round: confidences, decisions, acceptance probabilities, and
learning; not the draft's and target's passes, nor the sampler chain that any policy needs.

    uv run python benchmarks/gamma_overhead.py
"""

from __future__ import annotations

import statistics
import time

import numpy as np

from localspec.engine.acceptance import coupling, overlap
from localspec.engine.cost import Costs
from localspec.engine.draft import look_for_argmax
from localspec.engine.gamma import AutoGamma
from localspec.engine.plan import Situation
from localspec.engine.sampling import Dist
from localspec.engine.stats import Round

VOCABULARY = 152_000
ROUNDS = 1500


def main() -> None:
    print("| rule | accepted | tokens a round | microseconds a token |")
    print("|---|---|---|---|")
    for rule in ("match", "token", "coupled"):
        for acceptance in (0.4, 0.7, 0.9):
            tokens, each = measure(rule, acceptance)
            print(f"| {rule} | {acceptance} | {tokens:.1f} | {each:.1f} |")


def measure(rule: str, acceptance: float) -> tuple[float, float]:
    luck = np.random.default_rng(0)
    policy = AutoGamma(Costs({0: {1: 1.0, 2: 1.2, 17: 3.0}}, [{0: {1: 0.05, 64: 0.5}}]))
    policy.begin(follow_clock=True)
    logits = [luck.normal(0, 3, VOCABULARY).astype(np.float32) for _ in range(8)]
    p, q = distribution(luck), distribution(luck)
    rounds, total = [], 0
    for number in range(ROUNDS):
        # Enough other memory is touched in between for the caches to be as cold as after a pass.
        logits[number % 8][:] += 0.0
        started = time.perf_counter()
        plan = policy.plan(Situation(room=60, context=100, cuttable=rule != "token"))
        passes = drafted = 0
        while passes < plan.limit and (passes == 0 or plan.wants_pass()):
            if rule == "match":
                index = (number + passes) % 8
                look_for_argmax(logits[index], (), ()).confidence()
            passes += 1
            if not plan.wants_token(acceptance):
                break
            drafted += 1
        stay = 0
        while stay < drafted and luck.random() < acceptance:
            stay += 1
        judged = min(stay + 1, passes)
        for _ in range(judged):
            p.prob(3) if rule == "match" else (overlap if rule == "token" else coupling)(p, q)
        policy.observe(
            Round(
                tokens=(1,) * (stay + 1),
                gamma=drafted,
                drafted=drafted,
                accepted=stay,
                draft_s=0.05 * passes,
                verify_s=1.0,
                total_s=1.0 + 0.05 * passes + 0.1 * drafted,
                draft_prefill=1,
                draft_passes=passes,
                context=100,
                confidences=(acceptance,) * passes,
                chances=(acceptance,) * judged,
            )
        )
        took = time.perf_counter() - started
        if rule == "match":  # any policy needs the best guesses, from rows as cold as those above
            started = time.perf_counter()
            for each in range(passes):
                logits[(number + each + 4) % 8].argmax()
            took -= time.perf_counter() - started
        rounds.append(took)
        total += stay + 1
    # The median round, so that other programs do not count.
    return total / ROUNDS, 1e6 * statistics.median(rounds) * ROUNDS / total


def distribution(luck: np.random.Generator) -> Dist:
    """Twelve tokens: what top-k 40, top-p 0.95 and min-p 0.05 leave at most but rarely."""
    probs = np.sort(luck.dirichlet(np.full(12, 0.5)))[::-1] + 1e-6
    return Dist(luck.choice(20, 12, replace=False).astype(np.int64), probs / probs.sum())


if __name__ == "__main__":
    main()
