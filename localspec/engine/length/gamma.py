"""How many tokens to draft: fixed, or by optimal stopping on a measured cost curve.

A leaf: it sees confidences, acceptance probabilities and the cost table, never a clock, a model or
a token. With a cost table that stands still its decisions repeat exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

from localspec.engine.length.calibration import Calibration
from localspec.engine.length.copying import Copy, Copying, reading
from localspec.engine.length.cost import Costs, Curve
from localspec.engine.length.neighbours import Neighbours
from localspec.engine.length.stopping import (
    PLAIN,
    FixedPlan,
    Plan,
    Situation,
    StoppingPlan,
    block_length,
    gamma_for,
)
from localspec.engine.stats import LOOKUP, GammaNote, GammaReason, Round, Speedup

LONGEST = 24
"""Tokens that a model drafts at most: one that is always right gains little more. Copies go on."""


class GammaPolicy(Protocol):
    """Plans every round, and sees what came of it."""

    def begin(self, *, follow_clock: bool) -> None:
        """A generation starts. Without `follow_clock` it must be repeatable: no timings."""
        ...

    def asks(self, drafters: Sequence[str]) -> Sequence[str]:
        """Which of these, by name, it may ask in the next rounds."""
        ...

    def plan(self, situation: Situation) -> Plan:
        """The decisions of the next round."""
        ...

    def observe(self, done: Round) -> None:
        """Learn from a finished round."""
        ...


class FixedGamma:
    """Always the same draft length.

    `gamma` may be set from another thread between rounds: 0 switches speculation off.
    """

    def __init__(self, gamma: int, *, learns: bool = False) -> None:
        self.gamma = gamma
        self._learns = learns

    def begin(self, *, follow_clock: bool) -> None:
        """A fixed length needs no preparation."""

    def asks(self, drafters: Sequence[str]) -> Sequence[str]:
        """The first, unless nothing is drafted."""
        return drafters[: self.gamma > 0]

    def plan(self, situation: Situation) -> Plan:
        """The fixed draft length, as far as there is room: of the first model, else of lookup."""
        length = max(0, min(self.gamma, situation.room))
        for name in situation.lags:
            return FixedPlan(length, name, learns=self._learns)
        return FixedPlan(min(length, len(situation.copies)), LOOKUP, learns=self._learns)

    def observe(self, done: Round) -> None:
        """A fixed length learns nothing."""


# Lambda, and what is shown to people, forget a round after about this many more.
_FADE = 1 - 1 / 40

# Drafting counts as what is done, in words, if it was in a quarter of about the last 12 rounds: the
# last ones of an answer have no room for drafts, and every text has places where none pays.
_LATELY = 1 / 12
_WILLING = 0.25

# While drafting pays, plain rounds are put between those that draft, so that what drafting brings
# is measured: this share of the time, and more as long as it is not known well. (0.01 told no more
# in benchmarks/gamma_disturbed.py, and took 0.3 % of the speed.)
_SHARE = 0.005
_SHARE_UNSURE = 0.04
_STRETCHES = 3  # make an answer that must be repeatable sure, since nothing there may be timed

# While plain decoding is best the draft is probed now and then, after pauses of this many rounds
# and then longer and longer ones. Since a probe has to read all that was written meanwhile, pauses
# alone do not bound what probes cost. An account does: so many plain rounds, less where even a
# draft that is nearly always right would gain less than 100 %. Drafting fills it up again, every
# token adds a little, and the next answer some more for each: to begin every answer with a full
# account would cost short ones up to a tenth of their time.
_PAUSE = 4
_LONGER = 1.3
_CREDIT = 2.0
_INTEREST = 0.005
_RETURN = 0.01
_NEARLY_ALWAYS = 0.98
_HOPED = 0.2  # of T(1): a draft's step, as long as it was never asked; dearer ones seldom pay

# Reading a long prompt pays for many rounds: this many tokens are expected to follow at least, and
# as many again as were generated so far.
_HORIZON = 128
_USUAL_LAG = 2
_TOKENS_A_ROUND = 3
# To read so many at once takes a draft of a fifth as long as a plain round. All that it costs after
# that is charged to the account, until it was right once (docs/measurements/prompt.md).
_LONG_READ = 32


@dataclass(slots=True)
class _Track:
    """What one drafter has shown so far; the three sums fade."""

    calibration: Calibration = field(default_factory=Calibration)
    agreement: Calibration = field(default_factory=Calibration)  # with what lookup would copy
    rounds: float = 0.0
    drafted: float = 0.0
    accepted: float = 0.0
    lately: float = 0.0  # share of the last rounds in which it was asked
    owes: bool = False  # it read a long text, and nothing was accepted since

    @property
    def emitted(self) -> float:
        """Tokens per round in which it was asked."""
        return 1 + self.accepted / self.rounds if self.rounds else 1.0

    @property
    def length(self) -> int:
        """Tokens per draft lately."""
        return max(1, round(self.drafted / self.rounds)) if self.rounds else 1

    def count(self, drafted: int, accepted: int) -> None:
        """Take note of a round in which the drafter was asked."""
        self.rounds = _FADE * self.rounds + 1
        self.drafted = _FADE * self.drafted + drafted
        self.accepted = _FADE * self.accepted + accepted


@dataclass(slots=True)
class _Probes:
    """When to ask a drafter although plain decoding is best: after pauses, within an account."""

    pause: float = _PAUSE  # plain rounds after the next probe
    wait: int = 0  # plain rounds until then
    credit: float = _CREDIT  # plain rounds that probes may still cost

    def rest(self, credit: float = _CREDIT) -> None:
        """Probe again soon, with so many plain rounds to spend on it."""
        self.pause, self.wait, self.credit = _PAUSE, 0, credit

    def due(self) -> bool:
        """Whether the pause is over, a round later."""
        self.wait -= 1
        return self.wait < 0

    def spend(self, cost: float) -> None:
        """A probe is made."""
        self.credit -= cost
        self.wait, self.pause = int(self.pause), _LONGER * self.pause


@dataclass(slots=True)
class _Rate:
    """Tokens of recent rounds, and what they took in plain rounds of that moment.

    What a throttled machine can do, or a longer context lets it do, is not what it did.
    """

    tokens: float = 0.0
    spent: float = 0.0

    def add(self, tokens: int, rounds: float) -> None:
        """Count a round."""
        self.tokens = _FADE * self.tokens + tokens
        self.spent = _FADE * self.spent + rounds

    @property
    def gain(self) -> float:
        """Tokens for the time of a plain round; 0 before any."""
        return self.tokens / self.spent if self.spent else 0.0


class _Prices(NamedTuple):
    """What decodes cost in a round: T(n), lambda, and what copies cost."""

    times: Sequence[float]
    rate: float
    copying: Copying


class AutoGamma:
    """Chooses by the stopping rule, drafter by drafter; plain decoding is one of the choices.

    Attributes:
        costs: what is known of costs; the rounds correct it.
        neighbours: the rounds beside each other, by which they do.
        learnt: whether more is known than it was given.
    """

    def __init__(self, costs: Costs) -> None:
        self.costs = costs
        self.neighbours = Neighbours(costs)
        self.learnt = False
        self._table = costs  # in force: in a generation that must be repeatable it stands still
        self._follow_clock = True
        self._reset()

    def _reset(self) -> None:
        self._tracks = {name: _Track() for name in (*self.costs.drafts, LOOKUP)}
        # Where a model was not sure enough to go on, what lookup says is right less often.
        self._tail = Calibration()
        self._probes = _Probes()
        # Of rounds without copied tokens, of those with some, of all: a copy ends, and what follows
        # it is not as fast. What a token saves there is what it takes otherwise.
        self._usual, self._going, self._all = _Rate(), _Rate(), _Rate()
        # For plain rounds between those that draft: one soon where a table is wrong.
        self._saved = float(not self._table.believed)
        self._generated = 0
        self._probing = False  # whether the round is one that plain decoding would have won
        self._willing: float | None = None  # share of the last rounds where drafts promised to pay

    def begin(self, *, follow_clock: bool) -> None:
        """Start a generation; one that must be repeatable starts from nothing but measurements."""
        self._follow_clock = follow_clock
        self._table = self.costs if follow_clock else self.costs.as_measured()
        if not follow_clock:
            self._reset()
        self._probes.rest(min(_CREDIT, self._probes.credit + _RETURN * self._generated))
        self.neighbours.begin()
        self._generated = 0

    def forget(self) -> None:
        """Tell nothing of what was decided so far; what was learnt stays."""
        self._all, self._willing = _Rate(), None

    def asks(self, drafters: Sequence[str]) -> Sequence[str]:
        """All: where plain decoding is best they are still tried now and then."""
        return drafters

    def plan(self, situation: Situation) -> Plan:
        """The round's best drafter, or none: plain decoding."""
        self._probing = False
        room = self._table.longest(situation.room)
        if room < 1:
            return PLAIN
        prices = self._prices(situation, room)
        copy, (plan, cost) = self._copy(situation, prices.copying), self._best(situation, prices)
        if copy.length and (plan is None or copy.worth >= plan.promise() - cost):
            return self._decided(FixedPlan(copy.length, LOOKUP))
        if plan is not None and plan.pays(cost):
            if not self._tracks[plan.drafter].owes:
                self._probes.rest()
            return self._decided(plan)
        self._note_willing(0.0)
        if self._hopes:
            prices = self._hoping(situation, prices)
        if plan is None or not self._probe(plan, situation, prices.times):
            return PLAIN
        self._probing = self._hopes
        return self._choice(plan.drafter, situation, prices)[0] if self._hopes else plan

    def _decided(self, plan: Plan) -> Plan:
        """A plan that promises to pay; now and then a plain round in its place, to compare."""
        self._note_willing(1.0)
        return PLAIN if self._compares() else plan

    def _note_willing(self, pays: float) -> None:
        before = pays if self._willing is None else self._willing
        self._willing = before + _LATELY * (pays - before)

    def observe(self, done: Round) -> None:
        """Learn what the round tells about the drafter, the costs and the rate."""
        if not done.tokens:
            return
        self.follow(done)
        if done.draft_prefill > _HORIZON:  # a prompt is not read again every round
            done = replace(done, draft_prefill=_USUAL_LAG)
        rounds = self._table.plain_rounds(done)
        (self._going if done.copied else self._usual).add(done.emitted, rounds)
        self._all.add(done.emitted, rounds)
        share = _SHARE_UNSURE if self._unsure else _SHARE
        self._saved = min(1.0, self._saved + share * rounds)
        self._probes.credit = min(_CREDIT, self._probes.credit + _INTEREST * done.emitted)
        self._generated += done.emitted
        self._tracks[LOOKUP].calibration.learn(done.copy_confidences, done.copy_chances)
        self._tail.learn(done.tail_confidences, done.tail_chances)
        for name, track in self._tracks.items():
            track.lately += _LATELY * ((name == done.drafter) - track.lately)
        for name, drafted, accepted in done.shares if done.drafter else ():
            if drafted or done.draft_passes:
                self._tracks[name].count(drafted, accepted)
        if done.draft_passes:
            track = self._tracks[done.drafter]
            track.calibration.learn(done.confidences, done.chances)
            track.agreement.learn(done.path_confidences, done.path_chances)
            track.owes = not done.accepted and (track.owes or done.draft_prefill > _LONG_READ)
            # What verifying a probe cost over what it brought.
            if done.drafted if self._probing else track.owes:
                self._probes.credit -= max(0.0, rounds - done.emitted)

    def follow(self, done: Round) -> None:
        """Let the round's own timing correct what is known of costs, whoever planned it."""
        if done.tokens:
            self.learnt = True
            self.neighbours.add(done)

    def speedup(self) -> Speedup | None:
        """Of this answer, as measured."""
        return self.neighbours.speedup()

    @property
    def length(self) -> int:
        """Tokens drafted per round lately; 0 while plain decoding is best."""
        note = self.note()
        return note.length or int(note.reason is GammaReason.UNKNOWN)

    def note(self) -> GammaNote:
        """What was decided lately, and why: for people, whom a single round would mislead."""
        drafting = self._willing is not None and self._willing >= _WILLING
        if not self.costs.drafts and not drafting:
            return GammaNote(GammaReason.NOTHING_REPEATS)
        if not self._all.tokens or self._willing is None:
            return GammaNote(GammaReason.UNDECIDED)
        track = max(self._tracks.values(), key=lambda each: each.rounds)
        if not drafting:
            return GammaNote(GammaReason.TOO_DEAR)
        if track.drafted < 1:
            return GammaNote(GammaReason.UNKNOWN)
        return GammaNote(
            GammaReason.PAYS,
            length=track.length,
            acceptance=track.accepted / track.drafted,
            speedup=self._all.gain,
        )

    @property
    def _unsure(self) -> bool:
        """Whether more time may go into finding out; not by the clock where that must not be."""
        if self._follow_clock:
            return self.neighbours.unsure
        return self.neighbours.stretches < _STRETCHES

    @property
    def _hopes(self) -> bool:
        """Whether tokens may be verified in hope, to see what that takes.

        A table that stands still learns nothing from it, and it is dear where the target has to
        read again what was accepted.
        """
        return self._follow_clock and not self._table.rereads

    def _prices(self, situation: Situation, room: int) -> _Prices:
        """What this round's decodes cost, as known or as hoped for, and what that is worth."""
        target = self._table.target.at(situation.context)
        rate = max(1.0, self._usual.gain) / target.seconds(1)
        going = max(rate, self._going.gain / target.seconds(1))
        times, calibration = target.times(room + 1), self._tracks[LOOKUP].calibration
        copying = Copying(calibration, times, rate, going, self._table.rereads)
        return _Prices(times[: LONGEST + 2], rate, copying)

    def _hoping(self, situation: Situation, prices: _Prices) -> _Prices:
        """The same if decodes take no more than they do at best."""
        most = len(prices.times) - 1
        return prices._replace(times=self._table.target.hoped(most, situation.context))

    def _compares(self) -> bool:
        """Whether to decode plainly for once although drafting pays, to see what that takes."""
        if self._saved < 1.0 or not self.neighbours.wants_plain:
            return False
        self._saved = 0.0
        return True

    def _best(self, situation: Situation, prices: _Prices) -> tuple[StoppingPlan | None, float]:
        """The plan of the model that promises most, and what its first pass costs, in tokens."""
        choices = [self._choice(name, situation, prices) for name in situation.lags]
        if len(choices) < 2:  # a promise takes a while to work out
            return choices[0] if choices else (None, 0.0)
        return max(choices, key=lambda choice: choice[0].promise() - choice[1])

    def _choice(
        self, name: str, situation: Situation, prices: _Prices
    ) -> tuple[StoppingPlan, float]:
        """A drafter's plan, and what its first pass costs, in tokens."""
        lag, curve = situation.lags[name], self._table.drafts[name].at(situation.context)
        calibration, times, step = self._tracks[name].calibration, prices.times, curve.seconds(1)
        reads, saved = 0, 0.0
        if situation.copies and name in situation.readers:
            copies = situation.copies[: LONGEST - 1]
            reads, saved = reading(self._tracks[name].agreement, copies, curve, lag)
        read = first = min(lag, _USUAL_LAG)
        if name in situation.blocks:
            most = min(situation.blocks[name], len(times) - 2)
            length = block_length(
                calibration.mean, times[: most + 2], lambda n: curve.seconds(read + n), prices.rate
            )
            times, step, first = times[: length + 2], 0.0, first + length
        cost = curve.seconds(first) + self._shared_catch_up(curve, lag, situation)
        cost += self._owed(situation, self._tracks[name].emitted, but=name) - saved
        plan = StoppingPlan(
            calibration,
            times,
            step,
            prices.rate,
            drafter=name,
            rereads=self._table.rereads,
            copying=replace(prices.copying, calibration=self._tail),
            reads=reads,
        )
        return plan, prices.rate * cost

    def _copy(self, situation: Situation, copying: Copying) -> Copy:
        """The best copy, if it is worth more than plain decoding."""
        copy = copying.best(situation.copies)
        owed = copying.rate * self._owed(situation, 1 + copy.accepted) if copy.length else 0.0
        return Copy(copy.length, copy.worth - owed, copy.accepted) if copy.worth > owed else Copy()

    def _owed(self, situation: Situation, tokens: float, but: str = "") -> float:
        """What it costs the models asked lately to read, later, so many tokens instead of one."""
        total = 0.0
        for name, lag in situation.lags.items():
            if name != but and self._tracks[name].lately > 0:
                curve = self._table.drafts[name].at(situation.context)
                more = curve.seconds(round(lag + tokens)) - curve.seconds(lag + 1)
                total += self._tracks[name].lately * max(0.0, more)
        return total

    def _shared_catch_up(self, curve: Curve, lag: int, situation: Situation) -> float:
        """This round's share of what reading `lag` tokens costs more than the usual.

        It pays for all rounds to come, as far as can be seen, or until the next copy: behind that
        the model lags again.
        """
        if lag <= _USUAL_LAG:
            return 0.0
        extra = curve.seconds(lag) - curve.seconds(_USUAL_LAG)
        tokens = min(situation.remaining, max(_HORIZON, self._generated))
        copying = self._tracks[LOOKUP].lately
        return extra * max(copying, 1 / max(1.0, tokens / _TOKENS_A_ROUND))

    def _probe(self, plan: StoppingPlan, situation: Situation, times: Sequence[float]) -> bool:
        """Whether to let a draft show its confidence although plain decoding is best."""
        name, probes = plan.drafter, self._probes
        curve, lag = self._table.drafts[name].at(situation.context), situation.lags[name]
        step, cost = curve.seconds(1) / times[1], curve.seconds(lag) / times[1]
        if name in situation.blocks:
            cost = curve.seconds(lag + plan.limit) / times[1]
            step = cost / plan.limit
        if not self._tracks[name].rounds:  # never asked: its measurement may be wrong by any factor
            cost, step = cost * min(1.0, _HOPED / step), min(step, _HOPED)
        if not probes.due() or cost > probes.credit:
            return False
        _, gain = gamma_for(_NEARLY_ALWAYS, times, step * times[1], rereads=self._table.rereads)
        if cost + _CREDIT * max(0.0, 2.0 - gain) > probes.credit:
            return False
        probes.spend(cost)
        return True
