"""How many tokens to draft: a fixed number, or by optimal stopping on a measured cost curve.

A leaf: it sees confidences, acceptance probabilities and the cost table, never a clock, a model or
a token. With an unchanging cost table its decisions are reproducible.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Protocol

from localspec.drafter_names import LOOKUP
from localspec.engine.length.calibration import MOST, Calibration
from localspec.engine.length.copying import Copying, Survival, reading
from localspec.engine.length.cost import FEW, USUAL, WORTH, Costs, Curve
from localspec.engine.length.neighbours import Neighbours
from localspec.engine.length.stopping import (
    BASELINE,
    Plan,
    Situation,
    StoppingPlan,
    best_draft,
    gamma_for,
)
from localspec.engine.record.stats import FinishReason, GammaNote, GammaReason, Round, Speedup

LONGEST = 24
"""The most tokens that a model drafts: even one that is always right gains little by more."""


class GammaPolicy(Protocol):
    """Plans every round, and observes the result."""

    def begin(self, *, follow_clock: bool) -> None:
        """Start a generation; without `follow_clock` no timing may influence its drafts."""

    def asks(self, drafters: Sequence[str]) -> Sequence[str]:
        """Which of these drafters it may ask in the next rounds, by name."""

    def plan(self, situation: Situation) -> Plan:
        """The decisions of the next round."""

    def observe(self, done: Round) -> None:
        """Learn from a finished round."""


class FixedGamma:
    """Always the same draft length; 0 switches speculation off."""

    def __init__(self, gamma: int) -> None:
        self.gamma = gamma

    def begin(self, *, follow_clock: bool) -> None:
        """A fixed length needs no preparation."""

    def asks(self, drafters: Sequence[str]) -> Sequence[str]:
        """The first, unless nothing is drafted."""
        return drafters[:1] if self.gamma > 0 else ()

    def plan(self, situation: Situation) -> Plan:
        """The fixed length, within the room, for the first model or else for lookup."""
        length = max(0, min(self.gamma, situation.room))
        for name in situation.drafters:
            return Plan(length, name, whole=True)
        return Plan(min(length, len(situation.copies)), LOOKUP)

    def observe(self, done: Round) -> None:
        """A fixed length learns nothing."""


# docs/measurements/README.md has the effect of halving and of doubling each number here.

_WRONG = (0.0,), (0.0,)  # the confidence and the chance of a guess that cannot be right

# The memory of lambda and of the shown figures, in rounds. With 80 instead of 40, texts of many
# kinds lose 0.9 %; with 20, texts that change within an answer lose 0.3 %.
_FADE = 1 - 1 / 40

# Drafting counts as under way, in words and for probes, if a quarter of the last 12 or so rounds
# drafted: the last rounds of an answer have no room, and in every text some drafts do not pay.
_LATELY = 1 / 12
_WILLING = 0.25

# While drafting pays, a share of the time goes to baseline rounds, to measure the gain; a larger
# share while the gain is not known well. (0.01 instead of 0.005 told no more in
# benchmarks/gamma_disturbed.py, and cost 0.3 % of the speed.)
_SHARE = 0.005
_SHARE_UNSURE = 0.04

# While the baseline is best and nothing is copied, the draft is probed after a pause of rounds,
# which grows by `_PAUSE` with every probe. A probe has to read all tokens written meanwhile, so
# pauses alone do not bound the cost of probes. An account of baseline rounds does; an accepted
# token fills it up. It pays for the first pass of a probe: all that it holds if the draft could
# double the speed, and a third of that if the draft could gain a third. Where every draft might
# spend all, the slowest tenth of answers of 20 tokens took a tenth longer on processors
# (docs/measurements/lookup.md). The values were chosen in the simulator: a useless draft costs less
# than 2 % of an answer of 256 tokens, and less than 2.5 % of 30 answers of 20 tokens
# (tests/test_simulate.py).
_PAUSE = 3
_CREDIT = 2.0  # at the start of an answer, at most
# An account of tokens bounds what copies may cost. What submitted copies gained fills it. A copied
# token that was right but not submitted, or that a model drafted as well, adds `_SEEN_RIGHT`, up to
# `_STAKE`, and after copies that lost it holds no more than that. The shortest copy that pays may
# cost more (eight tokens of a Q5_K_M on an EPYC, whose passes of 2 to 10 never pay); that cost is
# then the limit. What the account holds above `_STAKE` is lost again once a copied token that was
# not submitted was wrong, and half of it if that is half likely. So a text that stops repeating
# costs little, and a lookup that is always wrong costs nothing. Without the account the slowest of
# 82 recorded answers had 0.82 of the baseline's speed; with eight tokens at most at any time copies
# were too short where long passes are dear. Half of up to `_STAKE` is left to the next generation:
# while it began with nothing, one edit after the other was written 2 % more slowly, and one in
# generations of 20 tokens, as between an agent's calls, 11 % (docs/measurements/lookup.md).
_SEEN_RIGHT, _STAKE = 0.2, 4.0
# Added to the credit in each round, and before an answer for each token of the one before it. With
# 0.01 a useless draft costs 0.5 % more.
_INTEREST = 0.0075

# The cost of reading a long prompt is spread over at most this many tokens to come.
_HORIZON = 128
USUAL_PENDING = 2  # the target's own token, and the last one of a draft that was accepted whole
_TOKENS_A_ROUND = 3  # usual where drafting pays (docs/measurements/gamma.md)


@dataclass(slots=True)
class _Track:
    """Statistics of one drafter; the three sums fade."""

    calibration: Calibration = field(default_factory=Calibration)
    agreement: Calibration = field(default_factory=Calibration)  # with what lookup would copy
    rounds: float = 0.0
    drafted: float = 0.0
    accepted: float = 0.0

    def fade(self) -> None:
        """Let the rounds so far weigh less."""
        self.rounds *= _FADE
        self.drafted *= _FADE
        self.accepted *= _FADE

    def count(self, drafted: int, accepted: int) -> None:
        """Count a round in which the drafter was asked."""
        self.rounds += 1
        self.drafted += drafted
        self.accepted += accepted


@dataclass(slots=True)
class _Rate:
    """Tokens of recent rounds, and their cost in baseline rounds.

    Baseline rounds are the unit because the machine's speed changes, and so does the context.
    """

    tokens: float = 0.0
    spent: float = 0.0

    def add(self, tokens: int, rounds: float) -> None:
        """Count a round."""
        self.tokens = _FADE * self.tokens + tokens
        self.spent = _FADE * self.spent + rounds

    @property
    def gain(self) -> float:
        """Tokens per time of a baseline round; 0 before any."""
        return self.tokens / self.spent if self.spent else 0.0


class AutoGamma:
    """Chooses a drafter and a draft length by the stopping rule; the baseline is a choice too.

    Attributes:
        costs: the costs of decodes; rounds correct them.
        neighbours: compares neighbouring rounds, and corrects the costs.
        learnt: whether rounds have been observed.
    """

    def __init__(self, costs: Costs) -> None:
        self.costs = costs
        self.neighbours = Neighbours(costs)
        self.learnt = False
        self._table = costs  # in force; it never changes in a generation that must be repeatable
        self._generated = 0
        self._reset()
        self.begin(follow_clock=True)

    def _reset(self) -> None:
        self._tracks = {name: _Track() for name in self.costs.drafts}
        self._tracks[LOOKUP] = _Track()
        # The rate of rounds without copied tokens, whose time a copied token saves: the text after
        # a copy is slower.
        self._usual = _Rate()
        self._decided = False  # anything to report
        # Baseline rounds to insert while drafting pays: one soon if the table is not credible.
        self._spare = float(not self._table.believed)
        self._credit = _CREDIT  # baseline rounds that useless drafts may still cost
        self._stake = 0.0  # tokens that copies may cost
        self._saved = _CREDIT  # baseline rounds that models may spend on the rest of a text
        # Shares of the last rounds: with any draft, and those that lookup proposed.
        self._drafting, self._copying = float(bool(self.costs.drafts)), 0.0

    def begin(self, *, follow_clock: bool) -> None:
        """Start a generation; a repeatable one forgets everything but measurements."""
        self._table = self.costs if follow_clock else self.costs.as_measured()
        if not follow_clock:
            self._reset()
        self._credit = min(_CREDIT, self._credit + _INTEREST * self._generated)
        self.neighbours.begin(anew=not follow_clock)
        self._copies = Survival()  # each answer learns how long its copies last
        self._stake = min(_STAKE, max(0.0, self._stake)) / 2
        self._probes = self._wait = 0  # since a token was accepted; rounds until the next
        self._saved = min(_CREDIT, max(0.0, self._saved) + _INTEREST * self._generated)
        self._generated = 0

    def forget(self) -> None:
        """Report nothing of the decisions so far; what was learnt stays."""
        self._decided = False

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Learn only the costs of passes from generations in this block."""
        shared = ("costs", "neighbours", "learnt", "_table")
        before = deepcopy({name: it for name, it in vars(self).items() if name not in shared})
        table = self._table
        try:
            yield
        finally:
            vars(self).update(before, _table=table)

    def too_dear(self, step: float, context: int) -> bool:
        """Whether a draft with steps of this length gains less than a tenth, even at its best."""
        return self.best_gain(MOST, context, step) < WORTH

    def best_gain(
        self, acceptance: float, context: int, step: float, *, first: float = 0.0
    ) -> float:
        """The speed-up of the best draft length that the target allows (see `gamma_for`)."""
        times = self._table.target.at(context).times(self._table.longest(LONGEST) + 1)
        return gamma_for(acceptance, times, step, first=first, rereads=self._table.rereads)[1]

    def asks(self, drafters: Sequence[str]) -> Sequence[str]:
        """All of them: even if the baseline is best, they are probed now and then."""
        return drafters

    def plan(self, situation: Situation) -> Plan:
        """The round's best drafter, or none: the baseline."""
        room = self._table.longest(situation.room)
        waits = self._waits()
        if room < 1 or not (situation.copies or (situation.drafters and not waits)):
            return BASELINE
        prices = self._prices(situation, room)
        copy = prices.best(situation.copies)
        plan, cost = self._best(situation, prices)
        if copy.worth > 0 and (plan is None or copy.worth >= plan.promise() - cost):
            return BASELINE if self._compares() else Plan(copy.length, LOOKUP)
        if plan is None:
            return BASELINE
        if plan.pays(cost):
            return BASELINE if self._compares() else plan
        return plan if not waits and self._probe(plan, situation, prices) else BASELINE

    def observe(self, done: Round) -> None:
        """Learn about the drafter, the costs and the rate."""
        self.follow(done)
        if not done.tokens:
            return
        if done.draft_passes or done.kept:
            own = done.drafted - done.copied  # what copies saved was not the model's doing
            alone, warmup_s = replace(done, drafted=own), self.neighbours.warmup_s
            spent = self._table.baseline_rounds(alone, warmup_s=warmup_s)
            self._saved += 1 + min(own, done.accepted) - spent
        if done.draft_prefill > _HORIZON:  # reading a prompt is not a cost of every round
            done = replace(done, draft_prefill=USUAL_PENDING)
        rounds = self._table.baseline_rounds(done, warmup_s=self.neighbours.warmup_s)
        self._decided = True
        if not done.copied:
            self._usual.add(done.emitted, rounds)
        self._generated += done.emitted
        self._account(done, rounds)
        self._copies.learn(done.copy_confidences, done.copy_chances)
        if done.drafter:
            self._count(done)
        if done.draft_passes or done.kept:
            track = self._tracks[done.drafter]
            # A pass that shows nothing, such as one without a distribution, is a wrong guess.
            shown = done.confidences or not done.draft_passes
            track.calibration.learn(*((done.confidences, done.chances) if shown else _WRONG))
            track.agreement.learn(done.path_confidences, done.path_chances)

    def _count(self, done: Round) -> None:
        """Count a drafted round; drafters that were not asked lose weight."""
        for track in self._tracks.values():
            track.fade()
        for name, drafted, accepted in done.shares:
            if drafted or done.draft_passes:
                self._tracks[name].count(drafted, accepted)

    def _account(self, done: Round, rounds: float) -> None:
        """Update the accounts that bound probes, after a round worth `rounds` baseline rounds."""
        known = self.neighbours
        repeatable = self._table is not self.costs
        unsure = known.stretches < FEW if repeatable else known.unsure
        self._spare = min(1.0, self._spare + (_SHARE_UNSURE if unsure else _SHARE) * rounds)
        curve = self._table.target.at(done.context)
        self._credit += _INTEREST * rounds
        if done.draft_passes or done.kept:
            self._credit -= rounds - curve.seconds(done.drafted + 1) / curve.seconds(1)
            if min(done.accepted, done.drafted - done.copied) > 0:
                self._credit, self._probes, self._wait = max(_CREDIT, self._credit), 0, 0
        self._stake = self._staked(done, curve, rounds)
        self._drafting += _LATELY * ((done.drafted > 0) - self._drafting)
        self._copying += _LATELY * ((done.drafter == LOOKUP) - self._copying)

    def _staked(self, done: Round, curve: Curve, rounds: float) -> float:
        """The tokens that copies may cost after this round, worth `rounds` baseline rounds."""
        most = max(_STAKE, curve.opening / curve.seconds(1) - 1)
        if done.copied:
            gained = self._gained(done, curve, rounds)
            return self._stake + gained if gained >= 0 else min(most, self._stake + gained)
        if self._stake > most:
            return self._stake
        right = sum(done.copy_chances)
        wrong, seen = len(done.copy_chances) - right, min(most, self._stake + _SEEN_RIGHT * right)
        return seen - min(1.0, wrong) * max(0.0, seen - _STAKE)

    def _gained(self, done: Round, curve: Curve, rounds: float) -> float:
        """The tokens that the copies of this round, worth `rounds` baseline rounds, gained."""
        own, tokens = done.drafted - done.copied, 1 + done.accepted
        if own:  # the copies of a longer draft
            more = curve.seconds(done.drafted + 1) - curve.seconds(own + 1)
            tokens, rounds = max(0, done.accepted - own), more / curve.seconds(1)
        return tokens - max(1.0, self._usual.gain) * rounds

    def follow(self, done: Round) -> None:
        """Correct the costs by a round's times, whichever policy planned it."""
        if done.tokens or done.finish is FinishReason.STOP:
            self.learnt = True
            self.neighbours.add(done)

    def speedup(self) -> Speedup | None:
        """The measured speed-up of this answer; None while unknown."""
        return self.neighbours.speedup()

    def note(self) -> GammaNote:
        """The recent decisions and their reason, for people."""
        drafting = self._drafting >= _WILLING
        if not self.costs.drafts and not drafting:
            return GammaNote(GammaReason.TOO_LITTLE_REPEATS)
        if not self._decided:
            return GammaNote(GammaReason.UNDECIDED)
        if not drafting:
            return GammaNote(GammaReason.TOO_DEAR)
        track = max(self._tracks.values(), key=lambda each: each.rounds)
        if track.drafted < 1:
            return GammaNote(GammaReason.UNKNOWN)
        return GammaNote(
            GammaReason.PAYS,
            length=max(1, round(track.drafted / track.rounds)),
            acceptance=track.accepted / track.drafted,
        )

    def _prices(self, situation: Situation, room: int) -> Copying:
        """The round's costs, and the worth of copied tokens."""
        target = self._table.target.at(situation.context)
        rate = max(1.0, self._usual.gain) / target.seconds(1)
        times = self._table.times(room + 1, situation.context, self.neighbours.run.size)
        stake = self._stake / rate
        return Copying(self._copies, times, target.least, rate, stake, self._table.rereads)

    def _curve(self, name: str, situation: Situation) -> Curve:
        """A drafter's costs at the part of the text that it knows."""
        context = situation.context - situation.drafters[name].left_out
        return self._table.drafts[name].at(context)

    def _compares(self) -> bool:
        """Whether to insert a baseline round, to measure what drafting gains."""
        if self._spare < 1.0 or not self.neighbours.wants_baseline:
            return False
        self._spare = 0.0
        return True

    def _best(self, situation: Situation, prices: Copying) -> tuple[StoppingPlan | None, float]:
        """The most promising model's plan, and the cost of its first pass in tokens."""
        choices = [self._choice(name, situation, prices) for name in situation.drafters]
        if len(choices) < 2:  # computing a promise takes time
            return choices[0] if choices else (None, 0.0)
        return max(choices, key=lambda choice: choice[0].promise() - choice[1])

    def _choice(
        self, name: str, situation: Situation, prices: Copying
    ) -> tuple[StoppingPlan, float]:
        """A drafter's plan, and the cost of its first pass in tokens."""
        track, drafter = self._tracks[name], situation.drafters[name]
        pending = drafter.pending
        curve, times = self._curve(name, situation), prices.times[: LONGEST + 2]
        reads, saved = 0, 0.0
        if pending and situation.copies and drafter.reads_paths:
            copies = situation.copies[: LONGEST - 1]
            reads, saved = reading(track.agreement, copies, curve, pending)
        step, read = curve.seconds(1), min(pending, USUAL_PENDING)
        cost = curve.seconds(read) if pending else 0.0
        if drafter.block:  # one pass for all of them
            most = min(drafter.block, len(times) - 2)
            mean, passes = track.calibration.mean, (curve.seconds(read + most), cost)
            length = max(1, best_draft(mean, times, passes, most, rereads=self._table.rereads)[0])
            times, cost, step = times[: length + 2], curve.seconds(read + length), 0.0
        cost += self._shared_catch_up(curve, pending, situation) - saved
        plan = StoppingPlan(
            track.calibration,
            times,
            step,
            prices.rate,
            drafter=name,
            rereads=self._table.rereads,
            copying=prices,
            reads=reads,
            whole=self._reads_whole(name, situation),
        )
        return plan, prices.rate * cost

    def _reads_whole(self, name: str, situation: Situation) -> bool:
        """Whether a drafter reads what it would leave out: drafts have saved what that costs.

        It must also cost no more than the rounds that are expected to follow.
        """
        drafter = situation.drafters[name]
        if drafter.whole <= drafter.pending:
            return False
        curve = self._table.drafts[name].at(situation.context)
        extra = curve.seconds(drafter.whole) - curve.seconds(drafter.pending)
        most = min(self._saved, situation.remaining / _TOKENS_A_ROUND)
        return extra <= most * self._table.target.at(situation.context).seconds(1)

    def _shared_catch_up(self, curve: Curve, pending: int, situation: Situation) -> float:
        """This round's share of the extra seconds for reading `pending` tokens.

        The cost is shared by the rounds that are expected to follow, up to the next copied draft,
        after which the model has to catch up again.
        """
        if pending <= USUAL_PENDING:
            return 0.0
        extra = curve.seconds(pending) - curve.seconds(USUAL_PENDING)
        rounds = min(situation.remaining, _HORIZON) / _TOKENS_A_ROUND
        return extra * max(self._copying, 1 / max(1.0, rounds))

    def _waits(self) -> bool:
        """Whether the pause before the next probe goes on; counts this round."""
        waits = self._wait > 0
        self._wait -= waits
        return waits

    def _probe(self, plan: StoppingPlan, situation: Situation, prices: Copying) -> bool:
        """Whether to probe a draft although the baseline is best."""
        self._wait, drafter = _PAUSE, situation.drafters[plan.drafter]
        curve = self._curve(plan.drafter, situation)
        if drafter.pending > USUAL_PENDING and self._copying > _WILLING:
            return False  # after the next copy it would have to catch up again
        baseline, block = prices.times[1], min(drafter.block, len(prices.times) - 2)
        step = curve.seconds(USUAL_PENDING + block) if block else plan.step
        if not self._tracks[plan.drafter].rounds:  # its measurement may be wrong by any factor
            step = min(step, USUAL * baseline)
        times, back = prices.times[: (block or plan.limit) + 2], self._table.rereads
        gain = best_draft(MOST, times, (step, step), block, rereads=back)[1]
        if gain < WORTH:
            return False
        read = drafter.pending + (plan.limit if block else 0)
        if curve.seconds(read) > self._credit * min(1.0, gain - 1.0) * baseline:
            return False
        self._probes += 1
        self._wait = _PAUSE * self._probes
        return True
