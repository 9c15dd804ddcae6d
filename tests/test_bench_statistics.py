"""Means with their intervals, and what the costs promise."""

from __future__ import annotations

import math
import random
from statistics import geometric_mean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.simulator import Position, World, replay
from localspec.bench.predict import (
    LONGEST,
    PythonOverhead,
    RoundCosts,
    outcomes,
    overhead,
    predictions,
)
from localspec.bench.result import MeanInterval
from localspec.bench.summarise import interval
from localspec.engine.length.cost import Curve
from localspec.engine.length.gamma import FixedGamma
from localspec.engine.record.stats import Round
from tests.support.bench_reports import CHEAP, done

RATIOS = st.lists(st.floats(0.1, 10), min_size=2, max_size=8)


@given(st.dictionaries(st.sampled_from("abcd"), RATIOS, min_size=1))
def test_the_value_lies_in_its_interval_and_is_the_mean_of_the_kinds_means(
    groups: dict[str, list[float]],
) -> None:
    found = interval(groups)
    assert found is not None
    assert found.low is not None
    assert found.high is not None
    assert found.low <= found.value * (1 + 1e-9)
    assert found.value <= found.high * (1 + 1e-9)
    means = [geometric_mean(values) for values in groups.values()]
    assert found.value == pytest.approx(geometric_mean(means))


@given(RATIOS)
def test_turning_the_ratios_over_turns_the_value_over(ratios: list[float]) -> None:
    there, back = interval({"a": ratios}), interval({"a": [1 / r for r in ratios]})
    assert there is not None
    assert back is not None
    assert there.value * back.value == pytest.approx(1)


@pytest.mark.parametrize("spreads", [(0.2,), (0.2, 0.2, 0.2), (0.4, 0.05, 0.05)])
def test_the_interval_holds_the_truth_about_as_often_as_it_says(spreads: tuple[float, ...]) -> None:
    """Kinds of six prompts each; the means of these kinds are 0.4 apart."""
    luck, held = random.Random(3), 0
    for _ in range(400):
        groups = {
            str(mean): [math.exp(luck.gauss(0.4 * mean, spread)) for _ in range(6)]
            for mean, spread in enumerate(spreads)
        }
        found = interval(groups)
        assert found is not None
        assert found.low is not None
        assert found.high is not None
        held += found.low <= math.exp(0.2 * (len(spreads) - 1)) <= found.high
    assert 0.93 <= held / 400 <= 0.975


def test_kinds_that_differ_do_not_widen_the_interval_over_all() -> None:
    found = interval({"a": [1.0, 1.01, 0.99], "b": [2.0, 2.02, 1.98]})
    assert found is not None
    assert found.low is not None
    assert found.high is not None
    assert (found.high - found.low) / found.value < 0.03


def test_a_single_question_has_no_interval_and_nothing_has_no_value() -> None:
    assert interval({"a": [1.5]}) == MeanInterval(pytest.approx(1.5))
    assert interval({"a": [], "b": []}) is None
    together = interval({"a": [1.0], "b": [2.0]})
    assert together is not None
    assert together.low is not None


def test_a_kind_with_a_single_question_counts_as_much_as_one_with_many() -> None:
    """Resampled alike, it bears half of the mean over both, and of the interval's width most."""
    found = interval({"a": [1.0], "b": [0.9, 1.1] * 4 + [1.0]})
    assert found is not None
    assert found.low is not None
    assert found.high is not None
    assert found.high / found.low > 1.15


def test_what_was_judged_is_told_token_by_token() -> None:
    rounds = [done(1, 2), done(3, 2), done(2, 2), done(3, 2), done(1, 2), done(1, 0)]
    # The bonus tokens were not tested; of those after them one in two was right.
    assert outcomes(rounds) == [0, 1, 1, 0.5, 1, 0, 1, 1, 0.5, 0]
    assert outcomes([]) == []


def test_pythons_share_is_a_line_over_the_draft_length() -> None:
    rounds = [done(1, n, verify_s=0.01 * (n + 1)) for n in (0, 2, 4)]
    found = overhead(rounds)
    assert found.of(0) == pytest.approx(1e-3)
    assert found.of(4) == pytest.approx(5e-3)
    assert overhead(rounds[:1]) == PythonOverhead(pytest.approx(1e-3), 0.0)
    assert overhead([]) == PythonOverhead(0.0, 0.0)


def test_predictions_add_up() -> None:
    costs = RoundCosts(Curve(CHEAP), Curve({1: 1e-3, 2: 1e-3}), PythonOverhead(0.0, 0.0))
    found = predictions(costs, [done(3, 3)] * 60)[:3]  # right, right, wrong, ...
    assert [p.gamma for p in found] == [0, 1, 2]
    assert found[0].tokens_per_second == pytest.approx(100)
    assert found[1].tokens_per_round == pytest.approx(1.5, rel=0.01)
    assert found[2].tokens_per_round == pytest.approx(3, rel=0.01)
    seconds = 2e-3 + Curve(CHEAP).seconds(3)
    assert found[2].tokens_per_second == pytest.approx(3 / seconds, rel=0.01)
    assert found[2].roofline == pytest.approx(3 * 10e-3 / Curve(CHEAP).seconds(3))
    assert all(p.speedup <= p.roofline for p in found)


@pytest.mark.few(1)
@pytest.mark.parametrize("measured_at", [3, 8])
def test_a_draft_length_that_was_not_run_is_predicted(measured_at: int) -> None:
    """On a text with easy stretches and hard ones, which a mean acceptance does not describe."""
    luck = random.Random(1)
    chances = [0.95 if i // 40 % 2 else 0.4 for i in range(4000)]
    text = [Position(1.0, float(luck.random() < chance)) for chance in chances]
    costs = RoundCosts(Curve(CHEAP), Curve({1: 1e-3, 2: 1e-3}), PythonOverhead(1e-3, 1e-4))
    world = World(costs.target, Curve({1: 1e-3, 2: 1e-3}))
    policy = _Recording(measured_at)
    replay(policy, text, world)
    for expected in predictions(costs, policy.seen)[1:]:
        true = replay(FixedGamma(expected.gamma), text, world)
        assert expected.tokens_per_round == pytest.approx(true.tokens / true.rounds, rel=0.06)
        seconds = true.seconds + 1e-3 * true.rounds + 1e-4 * true.drafted
        assert expected.tokens_per_second == pytest.approx(true.tokens / seconds, rel=0.04)


class _Recording(FixedGamma):
    """Keeps its rounds."""

    def __init__(self, gamma: int) -> None:
        super().__init__(gamma)
        self.seen: list[Round] = []

    def observe(self, done: Round) -> None:
        self.seen.append(done)


def test_long_recordings_are_thinned_out_evenly() -> None:
    costs = RoundCosts(Curve(CHEAP), Curve({1: 1e-3}), PythonOverhead(0.0, 0.0))
    rounds = [done(1, 2)] * 20_000 + [done(3, 2)] * 6_667
    found = predictions(costs, rounds)[2]  # half of the positions in either part
    assert found.tokens_per_round == pytest.approx(1.5, rel=0.03)


def test_a_draft_that_is_never_right_adds_no_token() -> None:
    hopeless = predictions(RoundCosts(Curve(CHEAP), Curve({1: 1e-3}), PythonOverhead(0.0, 0.0)), [])
    assert len(hopeless) == LONGEST + 1
    assert all(p.tokens_per_round == pytest.approx(1) for p in hopeless)
