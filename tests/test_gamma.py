"""The stopping rule, its calibration, and what the automatic policy decides and says."""

from __future__ import annotations

import math
import random
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from localspec.chat.figures.figures import gamma_words
from localspec.drafter_names import DFLASH, DRAFT, LOOKUP
from localspec.engine.cancel import Cancel
from localspec.engine.drafters.proposer import argmax_proposer
from localspec.engine.length.calibration import Calibration
from localspec.engine.length.cost import Costs, ModelCosts
from localspec.engine.length.gamma import AutoGamma, FixedGamma
from localspec.engine.length.stopping import (
    BASELINE,
    Askable,
    Plan,
    Situation,
    StoppingPlan,
    gamma_for,
)
from localspec.engine.record.stats import GammaReason
from localspec.engine.round.acceptance import Accept, coupling, lenient, overlap
from localspec.engine.round.generate_settings import GenerateSettings
from localspec.engine.round.noise import CounterNoise, StreamNoise
from localspec.engine.round.sampling import Dist, SamplingParams
from localspec.engine.round.verify import Draft, LossyRule
from tests.support.pairwise import usually

from .fakes import RecordingGamma, round_of
from .test_generate import PROMPT, pair

FLAT = {1: 1.0, 17: 1.2}
STEEP = {1: 1.0, 2: 2.0, 17: 17.0}


def auto(
    target=FLAT, step: float = 0.05, drafts: Sequence[str] = (DRAFT,), **how: int
) -> AutoGamma:
    return AutoGamma(
        Costs({0: target}, {name: {0: {1: step, 64: 10 * step}} for name in drafts}), **how
    )


def test_a_draft_whose_passes_show_nothing_is_given_up() -> None:
    """So it is where its logits are no distribution."""
    policy, drafted = auto(), 0
    policy.begin(follow_clock=False)
    for _ in range(300):
        asked = policy.plan(Situation(room=50)).limit > 0
        drafted += asked
        policy.observe(replace(round_of(0, 0, passes=int(asked)), confidences=(), chances=()))
    assert 0 < drafted < 90  # cheap guesses pay even if few are right


# ---------------------------------------------------------------- calibration


def test_the_map_never_falls() -> None:
    calibration = Calibration()
    luck = random.Random(0)
    for _ in range(200):
        calibration.learn([luck.random()], [luck.random()])
        values = [calibration.acceptance(i / 100) for i in range(101)]
        assert values == sorted(values)
        assert all(0 <= value <= 1 for value in values)


def test_it_learns_what_confidence_is_worth() -> None:
    calibration = Calibration()
    luck = random.Random(1)
    for _ in range(600):
        confidence = luck.random()
        calibration.learn([confidence], [0.2 + 0.5 * confidence])
    for confidence in (0.15, 0.55, 0.75, 0.95):
        assert calibration.acceptance(confidence) == pytest.approx(0.2 + 0.5 * confidence, abs=0.06)
    assert calibration.mean == pytest.approx(0.45, abs=0.12)


def test_positions_after_a_rejection_are_not_observations() -> None:
    one, other = Calibration(), Calibration()
    one.learn([0.9, 0.8, 0.7], [0.9])
    other.learn([0.9], [0.9])
    assert one.seen == 1
    assert one.mean == other.mean
    assert one.spread == other.spread


def test_a_bad_draft_loses_its_credit_at_every_confidence() -> None:
    calibration = Calibration()
    before = calibration.acceptance(0.99)
    for _ in range(4):
        calibration.learn([0.6], [0.0])
    assert calibration.acceptance(0.99) < 0.5 * before


@pytest.mark.parametrize("differ", [0.0, 0.25, 0.5])
def test_it_learns_how_far_positions_differ(differ: float) -> None:
    """The spread tells how much a pass can reveal: nothing if the confidence never varies."""
    calibration = Calibration()
    luck = random.Random(2)
    for _ in range(300):
        confidence = 0.5 + 2 * differ * (luck.random() - 0.5)
        calibration.learn([confidence], [confidence])
    assert calibration.spread == pytest.approx(differ / math.sqrt(3), abs=0.04)


def test_a_pass_is_worth_more_where_positions_differ_more() -> None:
    """A pass may find a good position: a draft that is sometimes sure pays, a constant one not."""
    found = []
    for spread in (0.0, 0.2, 0.4):
        calibration = Told(0.4, spread)
        plan = StoppingPlan(calibration, [0.0, 1.0, 1.5, 2.0, 2.5], 0.1, 1.0)
        found.append(plan.promise())
    assert found == sorted(found)
    assert found[0] == 0.0 < found[-1]


# ---------------------------------------------------------------- the rule


class Told(Calibration):
    """A calibration whose acceptance is the confidence, and `mean` at unknown positions."""

    def __init__(self, mean: float, spread: float = 0.0) -> None:
        super().__init__()
        self.mean = mean
        self._variance = spread**2

    def acceptance(self, confidence: float) -> float:
        return confidence

    def next_after(self, acceptance: float) -> float:
        return self.mean


def drafted(
    plan: StoppingPlan, chances: list[float], *, must_verify: bool = True
) -> tuple[int, int]:
    """(tokens added, tokens kept) when the draft shows these confidences."""
    tokens = 0
    for i, chance in enumerate(chances[: plan.limit]):
        if i and not plan.wants_pass():
            break
        if not plan.wants_token(chance, must_verify=must_verify):
            break
        tokens += 1
    return tokens, plan.keep()


def plan_of(times: list[float], *, step=0.05, rate=1.0, mean=0.8) -> StoppingPlan:
    return StoppingPlan(Told(mean), [0.0, *times], step, rate)


def test_convex_costs_stop_where_one_more_does_not_pay() -> None:
    # S_n a > lambda (T(n+2) - T(n+1)) = 0.3: 0.8, 0.64, 0.51, 0.41, 0.33, then 0.26.
    times = [1 + 0.3 * n for n in range(12)]
    plan = plan_of(times, step=0.0)
    assert drafted(plan, [0.8] * 11) == (5, 5)


def test_the_look_ahead_crosses_a_bump() -> None:
    # Three tokens cost more than they gain; four cost little more than two.
    bump = [1.0, 1.3, 2.3, 1.4, 1.5, 2.5, 3.5]
    assert drafted(plan_of(bump, mean=0.9), [0.9] * 6)[0] >= 3
    wall = [1.0, 1.3, 2.3, 3.3, 4.3, 5.3, 6.3]
    assert drafted(plan_of(wall, mean=0.9), [0.9] * 6)[0] == 1


def test_what_was_hoped_for_and_did_not_come_is_cut_where_that_is_allowed() -> None:
    bump = [1.0, 1.3, 2.9, 2.2, 3.5, 4.5, 5.5]
    chances = [0.9, 0.9, 0.05, 0.9]
    tokens, kept = drafted(plan_of(bump, mean=0.9), chances, must_verify=False)
    assert (tokens, kept) == (2, 1)
    # Under the token rule what is drafted is submitted, and so is worth less than its prefix.
    tokens, kept = drafted(plan_of(bump, mean=0.9), chances)
    assert tokens == kept


def test_an_unsure_draft_is_not_submitted() -> None:
    assert drafted(plan_of([1.0, 1.5, 2.0, 2.5]), [0.1, 0.9, 0.9]) == (0, 0)


def test_time_that_is_worth_more_is_spent_on_fewer_tokens() -> None:
    times = [1 + 0.1 * n for n in range(17)]
    lengths = [drafted(plan_of(times, rate=rate), [0.9] * 16)[0] for rate in (1.0, 2.0, 3.0, 4.0)]
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[0] > lengths[-1]


def test_best_lengths_for_steady_acceptance() -> None:
    flat = [0.0] + [1.0] * 20
    assert gamma_for(0.0, flat, 0.1) == (0, 1.0)
    assert gamma_for(0.95, flat, 0.1)[0] > gamma_for(0.6, flat, 0.1)[0] > 0
    assert gamma_for(0.99, [0.0] + [float(n) for n in range(1, 20)], 0.1) == (0, 1.0)
    for acceptance in (0.3, 0.6, 0.9):
        times = [0.0, 1.0, 1.56, 2.31, 1.90, 2.70, 2.9, 3.1, 3.34]
        gamma, gain = gamma_for(acceptance, times, 0.1)
        by_hand = [
            sum(acceptance**k for k in range(n + 1)) / (n * 0.1 + times[n + 1]) for n in range(8)
        ]
        assert gain == pytest.approx(max(by_hand))
        assert gamma == by_hand.index(max(by_hand))


def test_what_a_draft_takes_however_long_it_is_makes_longer_ones_pay() -> None:
    """A cost that does not depend on the length, such as that of the single pass of a block."""
    times = [0.0, *(1 + 0.05 * n for n in range(20))]
    for acceptance in (0.3, 0.6, 0.9):
        for step in (0.0, 0.02, 0.3):
            gamma, gain = gamma_for(acceptance, times, step, first=0.1)
            by_hand = [1.0] + [
                sum(acceptance**k for k in range(n + 1)) / (0.1 + n * step + times[n + 1])
                for n in range(1, 20)
            ]
            assert gain == pytest.approx(max(by_hand))
            assert gamma == by_hand.index(max(by_hand))
    assert gamma_for(0.9, times, 0.1, first=0.3)[0] > gamma_for(0.9, times, 0.1)[0]


# ---------------------------------------------------------------- the policy


def test_a_block_is_asked_for_what_it_is_worth_and_no_longer_than_it_can_be() -> None:
    """One pass guesses the whole block, so a further token costs only its verification."""
    lengths = {}
    for accepted, chance in ((6, 0.95), (1, 0.3)):
        policy = auto(drafts=(DFLASH,), step=0.3)
        policy.begin(follow_clock=False)
        situation = Situation(room=60, drafters={DFLASH: Askable(3, block=7)})
        for _ in range(40):
            plan = policy.plan(situation)
            assert plan.limit <= 7
            if plan.limit:
                kept = min(accepted, plan.limit)
                policy.observe(round_of(plan.limit, kept, chance=chance, passes=1, drafter=DFLASH))
            else:
                policy.observe(round_of(0, 0))
        lengths[chance] = policy.plan(situation).limit
    assert lengths[0.95] == 7
    assert lengths[0.3] < 4


def test_it_drafts_where_that_pays_and_says_so() -> None:
    policy = auto()
    policy.begin(follow_clock=False)
    for _ in range(30):
        plan = policy.plan(Situation(room=60))
        assert plan.limit > 0
        policy.observe(round_of(4, 3))
    assert policy.note().length == 4
    assert gamma_words(policy.note()) == "drafting 4: 75 % accepted"
    told = gamma_words(replace(policy.note(), kind="code"))
    assert told == "drafting 4: code, 75 % accepted"


def test_before_the_first_draft_it_claims_nothing() -> None:
    policy = auto()
    assert gamma_words(policy.note()).startswith("automatic")
    policy.observe(round_of(0, 0))
    assert policy.note().reason is GammaReason.UNKNOWN
    assert gamma_words(policy.note()) == "automatic: nothing is known about this draft yet"
    assert policy.note().length == 0


def test_a_single_round_without_a_draft_does_not_change_what_is_said() -> None:
    policy = auto()
    policy.begin(follow_clock=False)
    for _ in range(30):
        policy.plan(Situation(room=60))
        policy.observe(round_of(4, 3))
    for room in (2, 1, 1, 0):  # an answer's last rounds
        policy.plan(Situation(room=room, remaining=room + 1, drafters={DRAFT: Askable(400)}))
        policy.observe(round_of(0, 0))
    assert gamma_words(policy.note()).startswith("drafting 4")
    assert policy.note().length == 4
    for _ in range(20):
        policy.plan(Situation(room=60, remaining=8, drafters={DRAFT: Askable(4000)}))
        policy.observe(round_of(0, 0))
    assert gamma_words(policy.note()).startswith("not drafting")
    assert policy.note().length == 0


def test_it_does_not_draft_where_that_costs_and_says_so() -> None:
    policy = auto(STEEP)
    policy.begin(follow_clock=False)
    for _ in range(50):
        plan = policy.plan(Situation(room=60))
        assert plan is BASELINE
        policy.observe(round_of(0, 0))
    assert policy.note().length == 0
    assert gamma_words(policy.note()) == "not drafting: this draft costs more than it saves here"


def test_between_probes_nothing_is_worked_out_unless_something_could_be_copied(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    policy, worked_out = auto({1: 1.0, 2: 1.6, 17: 6.0}, step=0.1), list[int]()
    usual = policy._prices
    monkeypatch.setattr(policy, "_prices", lambda *its: worked_out.append(i) or usual(*its))
    probes = []
    for i in range(24):
        asked = policy.plan(Situation(room=60)).limit > 0
        probes += [i] * asked
        policy.observe(round_of(0, 0, chance=0.02, passes=int(asked)))
    assert len(probes) > 2
    assert worked_out[-3:] == probes[-3:]


def test_copies_in_sight_bring_no_more_probes() -> None:
    """Accepted copies do not pay for probes of the model either: they say nothing about it."""

    def asked(right: float = 0.0, **how: Any) -> Counter[str]:
        policy, found = auto({1: 1.0, 2: 1.6, 17: 6.0}, step=0.1), Counter[str]()
        for _ in range(60):
            plan = policy.plan(Situation(room=60, **how))
            found[plan.drafter] += 1
            copied = plan.limit if plan.drafter == LOOKUP else 0
            looks = int(plan.drafter == DRAFT)
            seen = how.get("copies", ())[:1]
            done = round_of(copied, copied, chance=0.02, passes=looks, drafter=plan.drafter)
            tested = {"copy_confidences": seen, "copy_chances": (right,) * len(seen)}
            policy.observe(replace(done, copied=copied, **tested))
        return found

    usual = asked()[DRAFT]
    assert usual > 2
    assert asked(copies=(0.1,))[DRAFT] <= usual
    copying = asked(right=1.0, copies=(0.99,) * 8)
    assert copying[LOOKUP] > 30
    assert copying[DRAFT] <= usual


def test_no_draft_that_has_much_to_read_is_probed_while_copies_go_on() -> None:
    """A draft would have as much to read again after the next copy; one with little is probed."""

    def first(pending: int) -> int:
        policy = auto({1: 1.0, 2: 1.9, 17: 9.0}, step=0.1)
        drafters = {DRAFT: Askable(pending)}
        for _ in range(12):
            policy.observe(replace(round_of(4, 4, drafter=LOOKUP, passes=0), copied=4))
        for i in range(60):
            if policy.plan(Situation(room=60, drafters=drafters)).drafter == DRAFT:
                return i
            policy.observe(round_of(0, 0))
        return 60

    assert first(1) < 3 < first(12) < 40


def test_a_draft_that_can_gain_little_waits_with_a_probe_that_costs_much() -> None:
    """A probe costs at most as many rounds as the account has, times what may be gained."""

    def first(
        target: dict[int, float], *, answers: int = 1, tokens: int = 300, pending: int = 97
    ) -> int | None:
        policy = auto(target, step=0.1)
        drafters = {DRAFT: Askable(pending)}  # 97 cost 0.1 (1 + 9 * 96/63) rounds
        policy._tracks[DRAFT].calibration.learn([0.9] * 200, [0.3] * 200)
        for _ in range(answers):
            policy.begin(follow_clock=True)
            for i in range(tokens):
                if policy.plan(Situation(room=500, drafters=drafters)).limit:
                    return i
                policy.observe(round_of(0, 0))
        return None

    doubles, gains_little = {1: 1.0, 2: 1.6, 25: 9.0}, {1: 1.0, 2: 1.9, 25: 14.0}
    assert first(doubles) == 0
    waited = first(gains_little)
    assert waited is not None
    assert 100 < waited < 300
    assert first(gains_little, answers=20, tokens=40) is None  # short answers never pay for it
    assert first(doubles, pending=190) not in (0, None)  # 2.8 rounds, whatever may be gained


def test_a_block_is_probed_for_what_all_of_it_could_gain() -> None:
    """A block that was seldom right is still worth a probe of what it costs."""
    target = {1: 1.0, 2: 1.9, 3: 2.2, 16: 5.0}  # one token of it gains little
    policy = AutoGamma(Costs({0: target}, {DRAFT: {0: {1: 0.3, 24: 0.4}}}))
    policy._tracks[DRAFT].calibration.learn([0.9] * 200, [0.15] * 200)
    policy._tracks[DRAFT].count(15, 1)
    drafters = {DRAFT: Askable(8, block=15)}
    assert policy.plan(Situation(room=500, drafters=drafters)).limit


def test_an_accepted_token_takes_nothing_from_the_account_of_probes() -> None:
    policy = auto(step=0.1)
    for _ in range(400):
        policy.observe(round_of(0, 0))
    before = policy._credit
    policy.observe(round_of(1, 1))
    assert 2.0 < policy._credit == pytest.approx(before, abs=0.2)


@pytest.mark.parametrize(
    ("warmup", "max_rollback", "accepted"),
    [((0.3,), None, 4), ((), 0, 1)],
    ids=["a new size", "decoded again"],
)
def test_copies_take_nothing_from_the_account_of_probes(
    warmup: Sequence[float], max_rollback: int | None, accepted: int
) -> None:
    """What they cost is on their own account; a draft would not be tried for a thousand tokens."""
    target = ModelCosts({0: FLAT}, warmup=warmup)
    policy = AutoGamma(Costs(target, {DRAFT: {0: {1: 0.1}}}, max_rollback))
    before = policy._credit
    copied = replace(round_of(4, accepted, drafter=LOOKUP, passes=0), copied=4)
    for _ in range(40):
        policy.observe(copied)
        policy.observe(round_of(0, 0, passes=0))
    assert policy._credit >= before


def test_copies_are_worth_what_they_save_of_the_rounds_between_them() -> None:
    """If the copies themselves counted, the next one would have to be better still."""
    policy = auto({1: 1.0, 2: 1.2, 17: 3.0}, step=0.1)
    copied = replace(round_of(16, 16, drafter=LOOKUP, passes=0), copied=16)
    copied = replace(copied, copy_confidences=(0.9,), copy_chances=(1.0,))
    left = replace(round_of(0, 0), copy_confidences=(0.5,), copy_chances=(0.0,))
    for _ in range(200):
        for done in (copied, left, round_of(0, 0)):
            policy.observe(done)
    prices = policy._prices(Situation(room=63, copies=(0.9,) * 16), 63)
    assert prices.rate == pytest.approx(1.0, rel=0.01)


def test_the_baseline_is_interrupted_by_probes_that_become_rarer_and_end() -> None:
    policy = auto({1: 1.0, 2: 1.6, 17: 6.0}, step=0.1)
    policy.begin(follow_clock=False)
    probes = []
    pending = 1
    for i in range(400):
        plan = policy.plan(Situation(room=60, drafters={DRAFT: Askable(pending)}))
        asked = plan.limit > 0
        probes += [i] * asked
        pending = 1 if asked else pending + 1
        policy.observe(round_of(0, 0, chance=0.02, passes=int(asked)))
    pauses = [b - a for a, b in pairwise(probes)][4:]
    assert pauses == sorted(pauses)
    assert 5 < len(probes) < 25


def test_a_text_that_becomes_easy_is_noticed() -> None:
    policy = auto({1: 1.0, 2: 1.3, 17: 4.0}, step=0.05)
    policy.begin(follow_clock=False)
    for _ in range(40):
        asked = policy.plan(Situation(room=60)).limit > 0
        policy.observe(round_of(0, 0, chance=0.05, passes=int(asked)))
    drafts = 0
    for _ in range(60):
        plan = policy.plan(Situation(room=60))
        if plan.limit:
            drafts += 1
            policy.observe(round_of(3, 3, chance=0.95))
        else:
            policy.observe(round_of(0, 0))
    assert drafts > 30


@pytest.mark.parametrize("slower", [0.5, 2.0, 3.0])
def test_a_machine_that_throttles_is_no_reason_to_draft_otherwise(slower: float) -> None:
    """Lambda is the rate of the machine as it is now, not as it was before it slowed down."""
    times = {1: 1.0, 2: 1.25, 4: 1.6, 8: 2.6, 16: 4.5, 25: 6.8}
    policy = auto(times, step=0.1)
    policy.begin(follow_clock=True)

    def rounds(count: int, speed: float) -> list[int]:
        lengths = []
        for _ in range(count):
            plan = policy.plan(Situation(room=60))
            while (
                plan.wants_token(0.9, must_verify=True)
                and plan.aim < plan.limit
                and plan.wants_pass()
            ):
                pass
            n = plan.aim
            draft_s = 0.1 * n * speed
            verify_s = policy.costs.as_measured().target.at(0).seconds(n + 1) * speed
            done = round_of(n, n - 1 if n else 0, chance=0.8)
            policy.observe(replace(done, draft_s=draft_s, total_s=draft_s + verify_s))
            lengths.append(n)
        return [n for n in lengths if n]  # without the baseline rounds, which only compare

    before = rounds(60, 1.0)[-10:]
    assert rounds(20, slower)[-10:] == before
    assert rounds(20, 1.0)[-10:] == before


def test_what_a_short_context_yielded_is_not_asked_of_a_long_one() -> None:
    """Lambda is the rate at this context: a long pasted text makes every round slower."""
    times = {1: 1.0, 2: 1.25, 4: 1.6, 8: 2.6, 16: 4.5, 25: 6.8}
    deep = {n: seconds + 0.5 * (1 + n / 4) for n, seconds in times.items()}

    def lengths(contexts: list[int]) -> list[int]:
        policy = AutoGamma(Costs({0: times, 1024: deep}, {DRAFT: {0: {1: 0.1}}}))
        policy.begin(follow_clock=False)
        found = []
        for context in contexts:
            plan = policy.plan(Situation(room=60, context=context))
            while (
                plan.wants_token(0.9, must_verify=True)
                and plan.aim < plan.limit
                and plan.wants_pass()
            ):
                pass
            accepted = plan.aim and plan.aim - 1
            policy.observe(round_of(plan.aim, accepted, chance=0.8, context=context))
            found.append(plan.aim)
        return found

    always, jumped = lengths([6000] * 70), lengths([100] * 60 + [6000] * 10)
    assert min(always[-10:]) > 1
    assert all(abs(a - b) <= 1 for a, b in zip(jumped[-10:], always[-10:], strict=True))


def test_a_long_prompt_is_not_read_for_a_short_answer() -> None:
    def first(pending: int, remaining: int) -> Plan:
        policy = AutoGamma(Costs({0: FLAT}, {DRAFT: {0: {1: 0.05, 64: 3.0}}}))
        policy.begin(follow_clock=False)
        return policy.plan(
            Situation(room=60, remaining=remaining, drafters={DRAFT: Askable(pending)})
        )

    assert first(pending=2000, remaining=8) is BASELINE
    assert first(pending=2, remaining=8) is not BASELINE
    assert first(pending=100, remaining=4000) is not BASELINE


def test_a_draft_reads_the_whole_text_for_two_rounds_or_for_what_it_has_saved() -> None:
    """What was read is paid for, and an answer leaves two rounds at most to the next."""
    policy = auto(step=0.1)  # 1/70 of a round for each token that it reads

    def reads(whole: int) -> bool:
        drafters = {DRAFT: Askable(36, whole - 36, whole)}
        return policy.plan(Situation(room=60, context=whole, drafters=drafters)).whole

    assert reads(150)
    assert not reads(200)
    assert not policy.plan(Situation(room=60)).whole  # there is no choice
    for _ in range(3):  # each saves some two rounds
        policy.observe(round_of(4, 3))
    assert reads(500)
    assert not reads(1000)
    policy.observe(replace(round_of(4, 3), draft_prefill=500))
    assert not reads(500)
    for _ in range(3):
        policy.observe(round_of(4, 3))
    assert reads(500)
    policy.begin(follow_clock=True)
    assert not reads(500)
    assert reads(150)
    drafters = {DRAFT: Askable(36, 114, 150)}
    assert not policy.plan(Situation(room=4, context=150, remaining=4, drafters=drafters)).whole


def test_the_account_of_copies_counts_what_was_seen_and_not_submitted() -> None:
    """What exceeds four tokens goes with a wrong one, up to what was earned by copies."""
    policy = auto({1: 1.0, 2: 2.2, 8: 9.0, 9: 8.0, 16: 9.0})  # nothing below 9 tokens pays

    def held(stake: float, *chances: float) -> float:
        policy._stake = stake
        policy.observe(replace(round_of(0, 0), copy_confidences=chances, copy_chances=chances))
        return policy._stake

    assert held(3.9, 1.0) == pytest.approx(4.1)
    assert held(7.0, 1.0) == pytest.approx(7.0)  # T(9) - T(1)
    assert held(6.9, 1.0, 1.0, 1.0, 0.0) == pytest.approx(4.0)
    assert held(7.0, 1.0, 1.0, 1.0, 0.0) == pytest.approx(4.0)
    assert held(9.0, 0.0) == 9.0  # copies brought it
    assert held(3.0, 0.0) == 3.0


def test_no_more_is_drafted_than_there_is_room_for() -> None:
    policy = auto()
    for room in (0, 1, 2, 5):
        assert policy.plan(Situation(room=room)).limit <= room
    assert FixedGamma(8).plan(Situation(room=3)).limit == 3
    assert FixedGamma(8).plan(Situation(room=0)).limit == 0


def test_the_better_of_two_drafters_is_chosen() -> None:
    policy = auto(drafts=("bad", "good"))
    policy.begin(follow_clock=False)
    chosen = []
    for _ in range(60):
        plan = policy.plan(Situation(room=60, drafters={"good": Askable(), "bad": Askable()}))
        chosen.append(plan.drafter)
        good = plan.drafter == "good"
        policy.observe(
            round_of(3, 3 if good else 0, chance=0.95 if good else 0.05, drafter=plan.drafter)
        )
    assert set(chosen[-30:]) == {"good"}


def test_what_is_said_is_of_the_drafter_that_drafts_now() -> None:
    policy = auto(drafts=("model",))
    for _ in range(100):
        policy.observe(round_of(8, 2, drafter="model"))
    for _ in range(30):
        policy.observe(round_of(3, 3, passes=0, drafter=LOOKUP, copied=3))
    assert (policy.note().length, policy.note().acceptance) == (3, 1.0)


def test_without_a_draft_there_is_nothing_to_decide() -> None:
    policy = AutoGamma(Costs({0: FLAT}, {}))
    assert policy.plan(Situation(room=9, drafters={})) is BASELINE
    assert "no draft" in gamma_words(policy.note())


# ---------------------------------------------------------------- going back costs


def test_a_rejection_that_is_read_again_is_part_of_what_a_draft_costs() -> None:
    times = [0.0, 1.0, 1.3, 1.4, 1.5, 1.6, 1.7, 1.8, 1.9]
    for acceptance in (0.3, 0.6, 0.9, 0.95):
        gamma, gain = gamma_for(acceptance, times, 0.1, rereads=1.2)
        by_hand = []
        for n in range(8):
            tokens = sum(acceptance**k for k in range(n + 1))
            back = sum(acceptance**k * (1 - acceptance) * 1.2 * times[k + 1] for k in range(n))
            by_hand.append(tokens / (n * 0.1 + times[n + 1] + back))
        assert gain == pytest.approx(max(by_hand))
        assert gamma == by_hand.index(max(by_hand))
    assert gamma_for(0.6, times, 0.1, rereads=1.2)[0] == 0 < gamma_for(0.6, times, 0.1)[0]


def test_the_rule_counts_what_a_rejection_costs() -> None:
    def length(chance: float, rereads: float) -> int:
        times = [0.0, 1.0, 1.25, 1.3, 1.35, 1.4]
        told = Told(chance)
        plan = StoppingPlan(told, times, 0.05, 1.0, rereads=rereads)
        return drafted(plan, [chance] * 5)[0]

    assert length(0.5, rereads=0.0) > 1
    assert length(0.5, rereads=1.0) == 0
    assert length(0.97, rereads=1.0) > 2


def test_snapshots_bound_the_draft() -> None:
    costs = Costs({0: FLAT}, {DRAFT: {0: {1: 0.01}}}, max_rollback=8)
    assert AutoGamma(costs).plan(Situation(room=60)).limit == 8
    assert costs.rereads == 0


def test_snapshots_bound_what_a_draft_is_worth() -> None:
    """Where one token may be drafted, what longer drafts would gain does not count."""
    curve = {0: {1: 1.0, 2: 1.8, 16: 2.1}}
    assert AutoGamma(Costs(curve, {}, max_rollback=1)).too_dear(0.1, 0)
    assert not AutoGamma(Costs(curve, {})).too_dear(0.1, 0)


@pytest.mark.few(6)
@pytest.mark.parametrize("copy_s", [0.0, 0.3, 1.0, 3.0])
@pytest.mark.parametrize("acceptance", usually([0.3, 0.5, 0.7, 0.8, 0.9], 0.3, 0.8))
@pytest.mark.parametrize("follow_clock", [True, False])
def test_with_a_state_to_copy_it_is_never_much_slower_than_the_baseline(
    acceptance: float, copy_s: float, follow_clock: bool
) -> None:
    """The target rolls back from a copy; the clock counts the copies and the decoding again."""

    def verifying(n: int) -> float:
        return 1 + n / 80 + (copy_s if n > 1 else 0.0)

    table = {n: verifying(n) for n in range(1, 18)}
    costs = Costs({0: table}, {DRAFT: {0: {1: 0.05}}}, max_rollback=0)
    policy, luck = AutoGamma(costs), random.Random(5)
    policy.begin(follow_clock=follow_clock)
    tokens = seconds = 0.0
    for _ in range(500):
        plan, passes = policy.plan(Situation(room=60)), 0
        while plan.limit and passes < plan.limit and (not passes or plan.wants_pass()):
            passes += 1
            if not plan.wants_token(acceptance, must_verify=True):
                break
        n = plan.aim
        accepted = next((k for k in range(n) if luck.random() > acceptance), n)
        back = verifying(max(2, accepted + 1)) if accepted < n else 0.0
        times = [luck.gauss(1, 0.02) * each for each in (0.05 * passes, verifying(n + 1), back)]
        done = round_of(n, accepted, chance=acceptance, passes=passes)
        done = replace(done, confidences=(acceptance,) * passes)
        policy.observe(replace(done, draft_s=times[0], total_s=sum(times), rollback_s=times[2]))
        tokens, seconds = tokens + accepted + 1, seconds + sum(times)
    assert tokens / seconds > 0.95 / verifying(1)  # luck alone makes 3 % in a run this short
    assert costs.target.at(0).seconds(1) == pytest.approx(verifying(1), rel=0.1)


# ---------------------------------------------------------------- in the engine


def generate(policy: AutoGamma, accept: Accept, *, seed: int = 3, slow: bool = False):
    engine = pair(noise=0.6)
    if slow:  # the clock says something else every time
        engine.target.on_decode = lambda: time.sleep(random.random() * 2e-3)  # type: ignore[attr-defined]
    sampling = SamplingParams(temperature=0.8, seed=seed)
    cancel = Cancel()
    list(engine.prefill(PROMPT, cancel))
    settings = GenerateSettings(sampling=sampling, accept=accept, n_predict=80, repeatable=True)
    return list(engine.generate(PROMPT, settings, policy, cancel))


@pytest.mark.parametrize("accept", [Accept.TOKEN, Accept.BLOCK])
def test_seeded_runs_repeat_whatever_the_clock_says(accept: Accept) -> None:
    policy = auto({1: 1.0, 2: 1.2, 17: 4.0})
    first = generate(policy, accept)
    again = generate(policy, accept, slow=True)
    assert [r.tokens for r in first] == [r.tokens for r in again]
    assert [r.drafted for r in first] == [r.drafted for r in again]
    assert [r.tokens for r in generate(policy, accept)] == [r.tokens for r in first]
    assert policy.costs.target.learned()  # what it learnt does not influence the lengths
    assert any(r.gamma == 0 for r in first[1:-3])  # one drafted nothing, to compare
    assert sum(r.drafted for r in first) > 0


def test_coupled_text_is_the_same_under_any_policy() -> None:
    def text(policy: AutoGamma | FixedGamma) -> list[int]:
        return [t for r in generate(policy, Accept.COUPLED) for t in r.tokens]  # type: ignore[arg-type]

    baseline = text(FixedGamma(0))
    assert text(auto()) == baseline
    assert text(auto({1: 1.0, 2: 1.6, 3: 1.5, 17: 6.0})) == baseline


def test_rounds_follow_the_clock_where_the_text_does_not_depend_on_it() -> None:
    policy = auto()
    generate(policy, Accept.COUPLED)
    assert policy.learnt
    assert any(policy.costs.target.votes(n) for n in range(2, 26))


def test_a_round_reports_what_was_judged() -> None:
    rounds = generate(auto(), Accept.TOKEN)
    assert rounds[0].draft_passes == 0
    for done in rounds[1:]:
        assert len(done.confidences) == done.draft_passes
        assert done.draft_passes in {done.drafted, done.drafted + 1}
        assert len(done.chances) == min(done.accepted + 1, done.draft_passes)
        assert all(0 <= chance <= 1 + 1e-12 for chance in done.chances)


@pytest.mark.parametrize("noise", [0.1, 0.6, 2.0])
def test_under_lenience_at_temperature_0_a_guess_is_accepted_or_it_is_not(noise: float) -> None:
    engine, cancel = pair(noise=noise), Cancel()
    list(engine.prefill(PROMPT, cancel))
    settings = GenerateSettings(sampling=SamplingParams(temperature=0), lenience=0.3, n_predict=80)
    rounds = list(engine.generate(PROMPT, settings, RecordingGamma(4), cancel))
    assert sum(done.accepted for done in rounds) > 10
    for done in rounds:
        assert done.chances == (1.0,) * done.accepted + (0.0,) * (done.accepted < done.drafted)


# ---------------------------------------------------------------- acceptance probabilities


def test_the_lenient_chance_is_what_the_lossy_rule_accepts() -> None:
    p = Dist(np.array([3, 5, 7, 9]), np.array([0.5, 0.3, 0.15, 0.05]))
    q = Dist(np.array([5, 3, 11]), np.array([0.6, 0.3, 0.1]))
    noise, rule = StreamNoise(1), LossyRule(0.6)
    drafts = (Draft((noise.pick(q, 0),), (q,)) for _ in range(20_000))
    accepted = sum(rule(draft, (p, p), noise, 0).accepted for draft in drafts) / 20_000
    assert lenient(0.6)(p, q) == pytest.approx(accepted, abs=0.015)
    assert lenient(1.0)(p, q) == pytest.approx(overlap(p, q))


def test_the_coupling_formula_is_what_counter_noise_does() -> None:
    p = Dist(np.array([3, 5, 7, 9]), np.array([0.5, 0.3, 0.15, 0.05]))
    q = Dist(np.array([5, 3, 11]), np.array([0.6, 0.3, 0.1]))
    n = 20_000
    noise = CounterNoise(1)
    same = sum(noise.pick(p, i) == noise.pick(q, i) for i in range(n)) / n
    assert coupling(p, q) == pytest.approx(same, abs=0.015)
    assert coupling(p, p) == pytest.approx(1)
    apart = Dist(np.array([1]), np.ones(1))
    assert coupling(p, apart) == 0
    shared = overlap(p, q)
    assert shared == pytest.approx(0.6)
    assert shared / (2 - shared) <= coupling(p, q) <= shared


@pytest.mark.parametrize("n", [3, 12, 64, 65, 300])
def test_the_coupling_formula_compares_all_ids_with_all(n: int) -> None:
    """The formula term by term, for few and for many ids, some of them on one side only."""
    luck = np.random.default_rng(n)
    p, q = (Dist(luck.permutation(n + 2)[:n], luck.dirichlet(np.full(n, 0.5))) for _ in range(2))
    a, b = (dict(zip(d.ids.tolist(), d.probs.tolist(), strict=True)) for d in (p, q))
    either = a.keys() | b.keys()
    expected = sum(
        1 / sum(max(a.get(k, 0) / a[i], b.get(k, 0) / b[i]) for k in either)
        for i in a.keys() & b.keys()
    )
    assert coupling(p, q) == pytest.approx(expected)
    assert overlap(p, q) == pytest.approx(sum(min(a[i], b.get(i, 0)) for i in a))
    assert [p.prob(i) for i in range(n + 2)] == [a.get(i, 0) for i in range(n + 2)]


def test_the_coupling_of_unfiltered_distributions_needs_no_square_of_the_vocabulary() -> None:
    n = 152_000
    luck = np.random.default_rng(0)
    p, q = (Dist(luck.permutation(n), luck.dirichlet(np.ones(n))) for _ in range(2))
    shared = overlap(p, q)
    assert shared / (2 - shared) <= coupling(p, q) <= shared
    assert coupling(p, p) == pytest.approx(1)


def test_the_cheap_confidence_is_close_to_the_softmax() -> None:
    luck = np.random.default_rng(0)
    for sharpness in (1.0, 3.0, 6.0):
        x = luck.normal(0, 1, 152_000).astype(np.float32)
        x[luck.integers(0, len(x), 50)] += sharpness * luck.exponential(4, 50).astype(np.float32)
        weights = np.exp(x.astype(np.float64) - x.max())
        exact = weights.max() / weights.sum()
        cheap = argmax_proposer(x, (), ()).confidence()
        assert exact <= cheap * 1.0001
        assert cheap <= min(1.0, 30 * exact)
    tiny = np.array([0.0, 1.0, 2.0], np.float32)
    assert argmax_proposer(tiny, (), ()).confidence() == pytest.approx(
        1 / (1 + np.exp(-1) + np.exp(-2))
    )


@pytest.mark.parametrize("n", [1, 2, 63, 64, 127, 128, 200, 1000, 4096, 8192 + 77])
def test_the_best_guess_is_the_largest_logit_wherever_it_stands(n: int) -> None:
    luck = np.random.default_rng(n)
    for best in {0, n // 2, n - 1, *luck.integers(0, n, 20).tolist()}:
        x = luck.normal(0, 1, n).astype(np.float32)
        x[best] = 9.0
        seen = argmax_proposer(x, (), ())
        assert seen.pick() == (best, None)
        assert 0.8 < seen.confidence() <= 1


@pytest.mark.timed
def test_a_decision_takes_microseconds() -> None:
    """A generous bound on the controller's own time."""
    policy = auto({1: 1.0, 2: 1.2, 17: 4.0})
    policy.begin(follow_clock=True)
    tokens, started = 0, time.process_time()
    for _ in range(300):
        plan = policy.plan(Situation(room=60))
        n = 0
        while (
            n < 4
            and plan.limit
            and (n == 0 or plan.wants_pass())
            and plan.wants_token(0.9, must_verify=True)
        ):
            n += 1
        policy.observe(round_of(n, n))
        tokens += n + 1
    assert (time.process_time() - started) / tokens < 500e-6


def test_a_draft_is_planned_for_by_what_it_read_not_by_the_whole_text() -> None:
    """Its passes take ten times as long after a thousand tokens as after thirty."""
    draft = {0: {1: 0.02, 16: 0.04}, 1000: {1: 0.2, 16: 0.4}}
    policy = AutoGamma(Costs({0: {1: 1.0, 8: 1.2}}, {DRAFT: draft}))
    steps = []
    for left_out in (0, 970):
        drafters = {DRAFT: Askable(left_out=left_out)}
        plan = policy.plan(Situation(63, context=1000, drafters=drafters))
        assert isinstance(plan, StoppingPlan)
        steps.append(plan.step)
    assert steps == [pytest.approx(0.2, rel=0.05), pytest.approx(0.025, rel=0.2)]
