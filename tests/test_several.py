"""Several drafters in the simulator: bounds for the choice between them."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from statistics import geometric_mean

import pytest

from benchmarks import several
from benchmarks.several import (
    COPYING,
    OTHERS,
    Always,
    Answer,
    Copies,
    Look,
    Oracle,
    Place,
    Prices,
    best_oracle,
    speed,
)
from benchmarks.simulator import CURVES, Text, steady
from benchmarks.simulator import recorded as positions
from localspec.drafter_names import DRAFT, EAGLE3, LOOKUP
from localspec.engine.length import gamma
from localspec.engine.length.gamma import AutoGamma, FixedGamma, GammaPolicy
from localspec.engine.length.stopping import Askable, Plan, Situation
from tests.support.pairwise import usually

STEPS = {DRAFT: 0.1, EAGLE3: 0.06}
MACHINES = usually(CURVES, "CPU, 2 cores, 1.7B Q4_0")
RIGHT, WRONG = Look(0.9, 0.9, right=True), Look(0.4, 0.1, right=False)


def auto(prices: Prices) -> AutoGamma:
    return AutoGamma(prices.costs())


# ---------------------------------------------------------------- the simulator itself


def test_a_round_accepts_what_was_right_and_takes_what_the_curves_say() -> None:
    prices = Prices({1: 1.0, 2: 1.1, 3: 1.2, 4: 1.3}, {DRAFT: {1: 0.2, 2: 0.2}})
    answer = [Place({DRAFT: WRONG if at == 5 else RIGHT}) for at in range(10)]
    # No draft, two drafted and a bonus, one of two and a recovered one, two and a bonus, no draft.
    assert speed(Always(DRAFT, 2), [answer], prices) == pytest.approx(
        10 / (1 + 3 * (1.2 + 0.4) + 1)
    )


def test_copies_go_on_behind_a_model_and_alone() -> None:
    prices = Prices(dict.fromkeys((1, 2, 16), 1.0), {DRAFT: {1: 0.5, 2: 0.5}})
    right = Place({DRAFT: RIGHT})
    copied = Place({DRAFT: RIGHT}, Copies((0.9,) * 8, (0.9,) * 4, right=3))
    # No draft, then one drafted, three of eight copied and a recovered one: five tokens in 1.5.
    answer = [right, right, copied, *[right] * 3]
    assert speed(Always(DRAFT, 1), [answer], prices) == 6 / 2.5
    # No draft twice, since nothing is found at the second place; three of eight copied.
    assert speed(Always(LOOKUP, 8), [answer], prices) == 6 / 3.0


def test_every_place_was_looked_at_by_all_and_lookup_copies_where_something_repeats() -> None:
    found = 0
    for kinds in (COPYING, OTHERS):
        for temperature in (0.0, 0.8):
            answer = [place for each in several.recorded(kinds, temperature) for place in each]
            assert len(answer) > 800
            assert all(place.looks.keys() == {DRAFT, EAGLE3} for place in answer)
            hits = sum(place.copies.right for place in answer)
            assert (hits > 2 * len(answer)) or kinds == OTHERS
            for place in answer:
                copies = place.copies
                assert copies.right <= len(copies.chances) <= copies.right + 1
                assert len(copies.chances) <= len(copies.confidences)
                found += copies.right > 8
    assert found > 50


@pytest.mark.slow
@pytest.mark.parametrize("curve", MACHINES)
def test_where_it_is_told_the_truth_the_oracle_is_no_worse_than_any_fixed_choice(
    curve: str,
) -> None:
    """Each token of these drafters is right, independently, with the claimed probability."""
    prices, luck = Prices.of(CURVES[curve], STEPS), random.Random(5)

    def look() -> Look:
        sure = luck.choice((0.3, 0.6, 0.9))
        return Look(sure, sure, luck.random() < sure)

    answer = []
    for _ in range(2500):
        right = next((i for i in range(8) if luck.random() > 0.8), 8)
        copies = Copies((0.8,) * 8, (0.8,) * min(8, right + 1), right)
        copies = copies if luck.random() < 0.3 else several.NOTHING
        answer.append(Place({name: look() for name in STEPS}, copies))
    bound = speed(Oracle([answer], prices, (*STEPS, LOOKUP), 0.0), [answer], prices)
    asked = [(name, length) for name in STEPS for length in (0, 1, 2, 3, 4, 6)]
    for name, length in (*asked, (LOOKUP, 2), (LOOKUP, 4), (LOOKUP, 8)):
        assert speed(Always(name, length), [answer], prices) < 1.01 * bound, (name, length)


def test_an_oracle_takes_what_is_worth_most() -> None:
    """It takes lookup where that is right, a model where that is right, and else nothing."""
    prices = Prices.of(CURVES["RTX 3090, 8B Q4_0"], STEPS)
    sure = Copies((0.9,) * 8, (1.0,) * 8, right=8)
    places = [
        *[Place({DRAFT: RIGHT, EAGLE3: WRONG})] * 40,
        *[Place({DRAFT: WRONG, EAGLE3: WRONG}, sure)] * 40,
        *[Place({DRAFT: WRONG, EAGLE3: WRONG})] * 40,
    ]
    oracle = Oracle([places], prices, (*STEPS, LOOKUP), 0.0)
    asked = []
    for at in (10, 50, 90):
        oracle._at = at
        drafters = dict.fromkeys(STEPS, Askable())
        asked.append(oracle.plan(Situation(20, drafters=drafters)).drafter)
    assert asked == [DRAFT, LOOKUP, ""]


# ---------------------------------------------------------------- the choice


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("kinds", [COPYING, OTHERS])
@pytest.mark.parametrize("curve", [*CURVES])
def test_the_choice_between_all_drafters_on_recorded_answers(
    curve: str, kinds: tuple[str, ...], temperature: float
) -> None:
    """The speed is at least 0.93 of that of an oracle that knows the calibration in advance."""
    prices = Prices.of(CURVES[curve], STEPS)
    answers = several.recorded(kinds, temperature)
    assert speed(auto(prices), answers, prices) >= 0.93 * best_oracle(answers, prices)


# ---------------------------------------------------------------- a lookup that is always wrong


def always_wrong(text: Text, seed: int) -> Answer:
    """An answer at each place of which lookup is sure of forty wrong tokens."""
    luck, wrong = random.Random(seed), Copies((0.95,) * 40, (0.0,))
    return [
        Place({DRAFT: Look(at.confidence, at.chance, luck.random() < at.chance)}, wrong)
        for at in text
    ]


def silent(answer: Answer) -> Answer:
    """The same places without any match of lookup."""
    return [replace(place, copies=several.NOTHING) for place in answer]


def seconds(policy: GammaPolicy, answers: list[Answer], prices: Prices) -> float:
    return sum(len(answer) / speed(policy, [answer], prices) for answer in answers)


@pytest.mark.parametrize("curve", MACHINES)
def test_a_lookup_that_was_right_in_the_answers_before_may_be_wrong_in_this_one(
    curve: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After copied answers, 64 tokens are written at 0.96 of the baseline's speed."""
    prices = Prices.of(CURVES[curve], {DRAFT: 0.15})
    before = several.recorded(COPYING, 0.0)
    texts = [steady(positions(), acceptance, 64, seed=1) for acceptance in (0.6, 0.8)]

    def least() -> float:
        shares = []
        for text in texts:
            policy, answer = auto(prices), always_wrong(text, 1)
            speed(policy, before, prices, goes_on=True)
            taken = speed(policy, [answer], prices, goes_on=True)
            shares.append(taken * seconds(FixedGamma(0), [answer], prices) / len(answer))
        return min(shares)

    assert least() >= 0.96
    if curve.startswith("M4"):  # few copies pay there: the control loses nothing
        return
    begin = AutoGamma.begin

    def remembers(self: AutoGamma, *, follow_clock: bool) -> None:
        known = getattr(self, "_copies", None), getattr(self, "_stake", None)
        begin(self, follow_clock=follow_clock)
        if known[0]:
            self._copies, self._stake = known

    monkeypatch.setattr(AutoGamma, "begin", remembers)  # the control
    monkeypatch.setattr(gamma, "_STAKE", math.inf)
    assert least() < 0.9


def misled(answer: Answer, luck: random.Random, right: int) -> Answer:
    """The same text with a lookup that is sure everywhere and right for at most `right` tokens."""

    def copies(at: int) -> Copies:
        stays = right - at % (right + 1)
        return Copies((0.95,) * luck.randint(8, 40), (0.95,) * stays + (0.0,), stays)

    return [Place(place.looks, copies(at)) for at, place in enumerate(answer)]


def after_a_copy(
    prices: Prices, right: int, luck: random.Random, policy: Callable[[Prices], GammaPolicy]
) -> float:
    """The speed-up after copied text, where copies go wrong."""
    copied = several.answers(luck.choice(COPYING), 0.0)
    before = [place for each in luck.sample(copied, min(3, len(copied))) for place in each]
    then = luck.choice(several.answers(luck.choice(OTHERS), 0.0))
    misleads = misled(then, luck, right)
    alone, both = (
        len(text) / speed(policy(prices), [text], prices) for text in (before, [*before, *misleads])
    )
    return len(then) * prices.target[1] / (both - alone)


@pytest.mark.parametrize("curve", MACHINES)
def test_a_text_that_stops_repeating_is_found_out_within_a_few_rounds(
    curve: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over the 95 tokens after copied text the mean speed is 0.9 of that without drafting."""
    prices = Prices.of(CURVES[curve], {DRAFT: 0.15})

    def share(right: int, policy: Callable[[Prices], GammaPolicy] = auto) -> float:
        lucks = map(random.Random, range(6))
        return geometric_mean(after_a_copy(prices, right, luck, policy) for luck in lucks)

    found = share(0)
    assert found >= 0.9
    assert share(1) >= 0.9
    assert share(0, lambda _: Believing(1)) < 0.8  # the control
    if curve.startswith("M4"):
        return
    monkeypatch.setattr(gamma, "_STAKE", math.inf)  # what the stake is worth
    assert share(0) < 0.8 * found


class Believing(FixedGamma):
    """The negative control: submits everything that lookup is sure of."""

    def plan(self, situation: Situation) -> Plan:
        return Plan(min(4, len(situation.copies)), LOOKUP)


@pytest.mark.parametrize(
    "steps",
    [{DRAFT: 0.1}, {}, {DRAFT: 0.25}],
)
@pytest.mark.parametrize("curve", MACHINES)
@pytest.mark.slow
def test_a_lookup_that_is_sure_and_always_wrong_costs_next_to_nothing(
    curve: str, steps: Mapping[str, float]
) -> None:
    """256 tokens take 0.98 of the speed without lookup; with a good draft, of the baseline too."""
    prices = Prices.of(CURVES[curve], steps)
    for acceptance, count in ((0.4, 12), (0.6, 6), (0.8, 3), (0.95, 3)):  # more where it is close
        texts = [steady(positions(), acceptance, 256, seed=seed) for seed in range(count)]
        answers = [always_wrong(text, seed) for seed, text in enumerate(texts)]
        without = [silent(answer) for answer in answers]
        taken, alone = (seconds(auto(prices), each, prices) for each in (answers, without))
        baseline = 256 * count * prices.target[1]
        assert alone / taken >= 0.98, acceptance
        assert baseline / taken >= (0.98 if acceptance >= 0.6 else 0.97), acceptance
        assert min(baseline, alone) / seconds(Believing(1), answers, prices) < 0.9


@pytest.mark.parametrize("prompt", [100, 150, 250, 400])
def test_a_useless_draft_costs_short_answers_to_long_prompts_little(prompt: int) -> None:
    """Thirty answers of 20 tokens: whichever part of the prompts it reads."""
    prices = Prices({1: 1.0, 17: 1.2}, {DRAFT: {1: 0.05, 64: 0.5}})
    wrong = Place({DRAFT: Look(0.5, 0.0, right=False)})
    answer, policy = [replace(wrong, prompt=prompt), *[wrong] * 19], auto(prices)
    spent = 0.0
    for _ in range(30):
        policy.begin(follow_clock=True)
        spent += sum(done.total_s for done in several.rounds(policy, answer, prices))
    assert 600 / spent >= 0.975
