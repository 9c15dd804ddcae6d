"""Losslessness through the real loop on scripted models: chi-square, with negative controls."""

from __future__ import annotations

import itertools
import math
from functools import cache

import numpy as np
import pytest

from localspec.engine.cancel import Cancel
from localspec.engine.drafters.model_drafter import ModelDrafter
from localspec.engine.length.gamma import FixedGamma
from localspec.engine.round import verify
from localspec.engine.round.acceptance import Accept
from localspec.engine.round.generate import Engine
from localspec.engine.round.generate_settings import GenerateSettings
from localspec.engine.round.noise import CounterNoise
from localspec.engine.round.sampling import Dist, Sampler, SamplingParams

from .support.stub_context import StubContext, StubModel, near, random_script

VOCAB = 5
PROMPT = [0, 1]
LENGTH = 4  # the first round drafts nothing, the second may draft two
SEEDS = 600
Z = 4.75  # of the normal approximation: a false alarm once in 1e6 comparisons
SAMPLING = {"temperature": 1.1, "top_k": 4, "top_p": 0.97, "repeat_penalty": 1.2}

SCRIPT = cache(random_script(VOCAB, 3, sharpness=1.0))
DRAFT = cache(near(SCRIPT, 1.6, 4))


def truth() -> dict[tuple[int, ...], float]:
    """The distribution of the first `LENGTH` tokens."""
    sampler = Sampler(SamplingParams(**SAMPLING))  # type: ignore[arg-type]
    joint: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(LENGTH):
        rows = {
            prefix: sampler.row(SCRIPT((*PROMPT, *prefix)), (*PROMPT, *prefix)) for prefix in joint
        }
        joint = {
            (*prefix, int(token)): weight * float(prob)
            for prefix, weight in joint.items()
            for token, prob in zip(rows[prefix].ids, rows[prefix].probs, strict=True)
        }
    return joint


def generated(accept: Accept, seed: int) -> tuple[int, ...]:
    target, draft = (StubContext(script, StubModel(VOCAB)) for script in (SCRIPT, DRAFT))
    engine = Engine(target, ModelDrafter(draft, VOCAB))  # type: ignore[arg-type]
    cancel = Cancel()
    list(engine.prefill(PROMPT, cancel))
    sampling = SamplingParams(seed=seed, **SAMPLING)  # type: ignore[arg-type]
    settings = GenerateSettings(sampling=sampling, accept=accept, n_predict=LENGTH)
    rounds = engine.generate(PROMPT, settings, FixedGamma(3), cancel)
    return tuple(token for done in rounds for token in done.tokens)


def excess(accept: Accept) -> float:
    """Chi-square over its limit; cells expected fewer than five times are pooled."""
    expected = truth()
    counts = dict.fromkeys(itertools.product(range(VOCAB), repeat=LENGTH), 0)
    for seed in range(SEEDS):
        counts[generated(accept, seed)] += 1
    if any(cell not in expected for cell, count in counts.items() if count):
        return math.inf  # it cannot happen
    common = [cell for cell, weight in expected.items() if weight * SEEDS >= 5]
    seen = np.array([counts[cell] for cell in common])
    wanted = np.array([expected[cell] * SEEDS for cell in common])
    seen = np.append(seen, SEEDS - seen.sum())
    wanted = np.append(wanted, SEEDS - wanted.sum())
    k = 2 / (9 * len(common))
    limit = len(common) * (1 - k + Z * math.sqrt(k)) ** 3  # Wilson and Hilferty, 1931
    return float(((seen - wanted) ** 2 / wanted).sum() / limit)


@pytest.mark.slow  # by default the enumeration computes it
@pytest.mark.parametrize("accept", [Accept.COUPLED, Accept.TOKEN, Accept.BLOCK])
def test_sequences_have_the_targets_distribution(accept: Accept) -> None:
    assert excess(accept) < 1


@pytest.mark.slow  # by default the enumeration catches it
@pytest.mark.parametrize("accept", [Accept.TOKEN, Accept.BLOCK])
def test_a_biased_rule_is_rejected(accept: Accept, monkeypatch: pytest.MonkeyPatch) -> None:
    def biased(p: Dist, q: Dist, weight: float = 1.0) -> Dist:
        return p

    monkeypatch.setattr(verify, "_residual", biased)
    monkeypatch.setattr("tests.test_lossless_stub.SEEDS", 2 * SEEDS)
    assert excess(accept) > 1


@pytest.mark.slow
def test_stale_penalties_are_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    def stale(self: Sampler, logits: np.ndarray, history: list[int], drafted: object) -> Dist:
        return self.row(logits, history)

    monkeypatch.setattr(Sampler, "along", stale)
    monkeypatch.setitem(SAMPLING, "repeat_penalty", 2.5)
    assert excess(Accept.TOKEN) > 1


@pytest.mark.slow  # by default the enumeration catches it
def test_one_noise_for_all_positions_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    pick = CounterNoise.pick
    monkeypatch.setattr(CounterNoise, "pick", lambda self, dist, _position: pick(self, dist, 1))
    assert excess(Accept.COUPLED) > 1
