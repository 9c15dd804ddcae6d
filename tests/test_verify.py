"""The rules one by one; test_lossless_enumeration.py shows that they are lossless."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.engine.round import verify
from localspec.engine.round.acceptance import verification
from localspec.engine.round.generate_settings import GenerateSettings
from localspec.engine.round.noise import CounterNoise, StreamNoise
from localspec.engine.round.sampling import Dist, SamplingParams
from localspec.engine.round.verify import (
    Draft,
    LossyRule,
    Rule,
    Verdict,
    block_rule,
    lossy_greedy_rule,
    match_rule,
    rule_named,
    token_rule,
)
from localspec.errors import EngineError

RULES: list[Rule] = [match_rule, token_rule, block_rule, LossyRule(0.5)]


def dist(*probs: float) -> Dist:
    p = np.array(probs)
    return Dist(np.flatnonzero(p), p[p > 0] / p.sum())


class Scripted:
    """Answers `chance` from a list and picks the most probable token; notes what it was asked."""

    def __init__(self, *answers: bool) -> None:
        self._answers = iter(answers)
        self.asked: list[float] = []
        self.picked: list[tuple[Dist, int]] = []

    def chance(self, probability: float) -> bool:
        self.asked.append(probability)
        return next(self._answers)

    def pick(self, dist: Dist, position: int) -> int:
        self.picked.append((dist, position))
        return int(dist.ids[dist.probs.argmax()])


@pytest.mark.parametrize("rule", RULES)
def test_an_empty_draft_is_the_baseline(rule: Rule) -> None:
    noise = Scripted()
    assert rule(Draft((), ()), [dist(0.2, 0.8)], noise, 9) == Verdict(0, 1)
    assert noise.picked[0][1] == 9


@pytest.mark.parametrize("rule", [token_rule, block_rule])
def test_a_draft_without_probabilities_is_matched(rule: Rule) -> None:
    p = [dist(0.2, 0.8), dist(0.9, 0.1), dist(1, 0)]
    assert rule(Draft((1, 1)), p, Scripted(), 0) == Verdict(1, 0)
    assert rule(Draft((1, 0)), p, Scripted(), 0) == Verdict(2, 0)


def test_match_rule_stops_at_the_first_difference() -> None:
    noise = Scripted()
    p = [dist(0.2, 0.8), dist(0.9, 0.1), dist(0, 1), dist(1, 0)]
    assert match_rule(Draft((1, 0, 0)), p, noise, 5) == Verdict(2, 1)
    assert [position for _, position in noise.picked] == [5, 6, 7]


def test_token_rule_weighs_p_against_q() -> None:
    q = (dist(0.5, 0.5), dist(0.8, 0.2))
    p = [dist(0.25, 0.75), dist(0.4, 0.6), dist(0, 1)]
    noise = Scripted(True, False)
    assert token_rule(Draft((0, 0), q), p, noise, 3) == Verdict(1, 1)
    assert noise.asked == pytest.approx([0.5, 0.5])
    recovered, position = noise.picked[0]
    assert recovered.ids.tolist() == [1]
    assert position == 4


def test_block_rule_asks_from_the_longest_prefix_on() -> None:
    q = (dist(0.5, 0.5), dist(0.5, 0.5))
    p = [dist(0.4, 0.6), dist(0.3, 0.7), dist(0, 1)]
    noise = Scripted(False, True)
    assert block_rule(Draft((0, 0), q), p, noise, 0).accepted == 1
    # P = 0.8, 0.48; S_1 = max(0, 0.8 * 0.7 - 0.5) = 0.06; h_1 = 0.06 / 0.26
    assert noise.asked == pytest.approx([0.48, 0.06 / 0.26])


class _NotAsked(list[Dist]):
    def __getitem__(self, index):  # type: ignore[no-untyped-def,override]
        assert index < 1, "a row after an impossible token"
        return super().__getitem__(index)


@pytest.mark.parametrize("rule", [*RULES, lossy_greedy_rule])
def test_rows_behind_an_impossible_token_are_not_asked_for(rule: Rule) -> None:
    q = (dist(0.5, 0.5), dist(0.5, 0.5))
    p = _NotAsked([dist(0, 1), dist(1, 0), dist(1, 0)])
    assert rule(Draft((0, 0), q), p, StreamNoise(1), 0) == Verdict(0, 1)


@pytest.mark.parametrize("rule", [token_rule, block_rule, LossyRule(0.9)])
def test_a_token_that_q_cannot_give_is_an_error(rule: Rule) -> None:
    with pytest.raises(EngineError, match="its own distribution"):
        rule(Draft((1,), (dist(1, 0),)), [dist(0.5, 0.5)] * 2, StreamNoise(1), 0)


def test_rows_of_q_must_be_as_many_as_tokens() -> None:
    with pytest.raises(EngineError, match="rows of q"):
        Draft((1, 2), (dist(1, 1),))


def test_a_residual_that_rounds_to_nothing_gives_p() -> None:
    p = dist(0.3, 0.7)
    assert verify._residual(p, p) is p


@pytest.mark.parametrize("rule", [token_rule, block_rule])
def test_equal_distributions_are_always_accepted(rule: Rule) -> None:
    rng = np.random.default_rng(0)
    for seed in range(300):
        rows = [dist(*rng.dirichlet(np.ones(5))) for _ in range(4)]
        noise = StreamNoise(seed)
        tokens = tuple(noise.pick(row, 0) for row in rows[:3])
        assert rule(Draft(tokens, tuple(rows[:3])), rows, noise, 0).accepted == 3


def test_the_coupled_rule_says_what_the_baseline_says() -> None:
    rng = np.random.default_rng(1)
    for seed in range(200):
        p = [dist(*rng.dirichlet(np.ones(6))) for _ in range(5)]
        q = tuple(dist(*rng.dirichlet(np.ones(6))) for _ in range(4))
        noise = CounterNoise(seed)
        drafted = tuple(noise.pick(row, 10 + i) for i, row in enumerate(q))
        verdict = match_rule(Draft(drafted, q), p, CounterNoise(seed), 10)
        emitted = (*drafted[: verdict.accepted], verdict.token)
        assert emitted == tuple(
            CounterNoise(seed).pick(row, 10 + i) for i, row in enumerate(p[: len(emitted)])
        )


def expected_accepted(rule: str, draft: Draft, p: list[Dist]) -> float:
    """The expected number of accepted tokens, from the chances that the rule computes."""
    assert draft.q is not None
    if rule == "token":
        chain = [
            min(1.0, p[i].prob(token) / draft.q[i].prob(token))
            for i, token in enumerate(draft.tokens)
        ]
        return float(np.cumprod(chain).sum())
    weights = verify._block_weights(draft.tokens, draft.q, p)
    left, total = 1.0, 0.0
    for i in range(len(weights) - 1, 0, -1):
        h = verify._block_chance(i, weights[i], draft.q, p)
        total += left * h * i
        left *= 1 - h
    return total


@given(st.integers(0, 10_000), st.integers(1, 3), st.floats(0.2, 3.0))
def test_the_block_rule_accepts_no_fewer_than_the_token_rule(
    seed: int, gamma: int, sharpness: float
) -> None:
    """In expectation over all drafts of a random model of three tokens (2403.10444, theorem 2)."""
    rng = np.random.default_rng(seed)
    p, q = (
        {
            prefix: dist(*rng.dirichlet(np.full(3, sharpness)))
            for n in range(gamma + 1)
            for prefix in itertools.product(range(3), repeat=n)
        }
        for _ in range(2)
    )
    mean = {"token": 0.0, "block": 0.0}
    for tokens in itertools.product(range(3), repeat=gamma):
        prefixes = [tokens[:i] for i in range(gamma + 1)]
        rows = tuple(q[prefix] for prefix in prefixes[:-1])
        weight = float(np.prod([row.prob(x) for row, x in zip(rows, tokens, strict=True)]))
        if weight == 0:
            continue
        draft, target = Draft(tokens, rows), [p[prefix] for prefix in prefixes]
        for rule in mean:
            mean[rule] += weight * expected_accepted(rule, draft, target)
    assert mean["block"] >= mean["token"] - 1e-12


# ---------------------------------------------------------------- lossy


def test_lenience_accepts_more() -> None:
    rng = np.random.default_rng(3)
    accepted = {}
    for lenience in (1.0, 0.6, 0.2):
        total = 0
        for seed in range(300):
            p, q = (tuple(dist(*rng.dirichlet(np.ones(4))) for _ in range(4)) for _ in range(2))
            noise = StreamNoise(seed)
            tokens = tuple(noise.pick(row, 0) for row in q[:3])
            total += LossyRule(lenience)(Draft(tokens, q[:3]), p, noise, 0).accepted
        accepted[lenience] = total
    assert accepted[0.2] > accepted[0.6] > accepted[1.0]


def test_lenience_at_temperature_0_takes_what_is_near_the_best() -> None:
    near = [dist(0.6, 0.4), dist(0.7, 0, 0.3), dist(0.5, 0.5)]
    assert lossy_greedy_rule(Draft((1, 2)), near, StreamNoise(0), 0) == Verdict(2, 0)
    assert lossy_greedy_rule(Draft((1, 1)), near, StreamNoise(0), 0) == Verdict(1, 0)


def test_lenience_1_at_temperature_0_is_greedy_without_a_draft() -> None:
    """If two tokens tie for the best, only the one that the baseline takes is accepted."""
    how = verification(GenerateSettings(sampling=SamplingParams(temperature=0), lenience=1.0))
    p = [how.sampler.row(np.array([1, 1, 0], np.float32), [])] * 2
    assert how.rule(Draft((1,)), p, how.noise, 0) == Verdict(0, 0)


def test_rules_by_name() -> None:
    assert rule_named("block") is block_rule
    assert rule_named("lossy", 0.4) == LossyRule(0.4)
