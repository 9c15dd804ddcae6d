"""Compares rounds with a draft to neighbouring rounds without: costs, and the speed-up.

A machine's speed changes from moment to moment, so a round's time is only comparable to the times
of its neighbours. Rounds are cut into short consecutive stretches. A stretch in which some rounds
drafted and others did not is an observation; medians over the latest observations count, so one
disturbed round is one vote among many. Pure: no clock of its own.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from statistics import fmean, median
from typing import NamedTuple

from localspec.engine.length.cost import FEW, VOTES, Costs, ModelCosts, SameSizeRun
from localspec.engine.record.stats import FinishReason, Round, Speedup

# Half and twice of each number here: docs/measurements/README.md.

_STRETCH = 6  # rounds; with four, too few stretches of the simulator's bursts had both kinds
_USUAL = 0.06  # scatter of stretches (of the logarithm) on a quiet machine; the least assumed
_NORMAL = 1.25  # sqrt(pi / 2): in a normal distribution the standard deviation over the mean one
_MIDDLE = 1.02  # sqrt(pi / 3): there the standard error of `_middle` over that of the mean
_WIDE = 2.2  # standard errors to both sides: 95 % at this small number of stretches
_COMPARED = 0.5  # least share of an answer's time in sizes that were compared with baseline rounds
_DOUBT = 0.04  # standard error at which the gain is known: high over low is 1.2 then

# A round that took this many seconds, and this many times the usual, was interrupted, not slow. A
# busy neighbour makes single rounds up to ten times as long.
_HALT_S, _HALT = 0.25, 10.0


_Decode = tuple[ModelCosts, int]
"""The model that decoded, and the number of tokens."""


class _Timed(NamedTuple):
    """A round, and the seconds of its target pass: as they were, and as measured beforehand."""

    done: Round
    seconds: float
    expected: float


class Neighbours:
    """Corrects the costs by the rounds, and computes the speed-up of drafting.

    Attributes:
        stretches: how many stretches had rounds with and without a draft, whatever their times.
        run: the target's latest decodes, as far as they had one size; empty at the start of an
            answer.
        warmup_s: extra seconds of the last round because its size was new. The first round of an
            answer, which never drafts, counts none: there they belong to the prompt.
    """

    def __init__(self, costs: Costs) -> None:
        self._costs = costs
        # For every stretch: the seconds of its drafts and their verify passes, converted to the
        # machine's speed at the measurement, and the measured seconds of the same decodes.
        self._seen: deque[tuple[float, Mapping[_Decode, float]]] = deque(maxlen=VOTES)
        # The present error of the costs (a logarithm): the middle over the stretches, its standard
        # error, and the variance between stretches beyond that of a quiet machine.
        self._off, self._error, self._unrest = 0.0, math.inf, 0.0
        self.stretches = 0
        self.begin()

    def begin(self, *, anew: bool = False) -> None:
        """Start an answer: earlier rounds are not its neighbours.

        Args:
            anew: restart the count of stretches, so that the answer can be repeated.
        """
        self._rounds: list[_Timed] = []
        self.run, self.warmup_s = SameSizeRun(), 0.0
        self.stretches = 0 if anew else self.stretches
        # Sums over the answer's rounds except the first, which never drafts: measured seconds of
        # their decodes, of the baseline rounds that would have emitted the same tokens, of warmups
        # and planning, and of drafting with a long text to read.
        self._decodes: defaultdict[_Decode, float] = defaultdict(float)
        self._baseline, self._extra, self._read = 0.0, 0.0, 0.0
        self._count, self._here = -1, 0  # these rounds, and their stretches that count

    @property
    def wants_baseline(self) -> bool:
        """Whether a baseline round is due: the first half of the present stretch has drafted."""
        drafted = sum(each.done.drafted > 0 for each in self._rounds)
        return len(self._rounds) == drafted == _STRETCH // 2

    @property
    def unsure(self) -> bool:
        """Whether the gain over the baseline is not known well."""
        return self._error > _DOUBT

    def add(self, done: Round) -> None:
        """Add a round, whichever policy planned it."""
        target, size = self._costs.target, done.drafted + 1
        usual = target.expected(size, done.context)
        self.run = self.run.then(size)
        warmup_s = self.run.extra_s(target.warmup)
        if self._costs.rereads and done.accepted < done.drafted:
            self.run = SameSizeRun()  # it has decoded the accepted tokens again
        self._count += 1
        if self._count:
            self.warmup_s = warmup_s
            self._extra += warmup_s + _planning_share(done) * usual
            # The baseline also spends a pass on the token that ends the text.
            tokens = done.emitted + (done.finish is FinishReason.STOP)
            self._baseline += tokens * (usual if size == 1 else target.expected(1, done.context))
            for model, n, context, count in self._costs.decodes(done):
                self._decodes[model, n] += count * model.expected(n, context)
        if done.undrafted_s <= 0:  # it was not timed
            return
        # The time of drafting does not count, nor that of a rollback which decodes tokens again.
        seconds = done.undrafted_s + done.between_s - self._costs.rereads * done.rollback_s
        self._rounds.append(_Timed(done, max(1e-9, seconds), usual + warmup_s))
        if len(self._rounds) < _STRETCH:
            return
        rounds, self._rounds = self._rounds, []
        baseline = [each for each in rounds if not each.done.drafted]
        self.stretches += 0 < len(baseline) < _STRETCH
        drafting = [each for each in rounds if each.done.draft_passes or each.done.drafted]
        if baseline and drafting:
            times = [
                each.seconds if each.done.reads_text else each.done.total_s + each.done.between_s
                for each in rounds
            ]
            if max(times) <= _HALT_S + _HALT * median(times):  # nothing was halted
                self._observe(baseline, drafting)

    def cut(self, done: Round, kept: int) -> None:
        """Leave out of the claim what an added round wrote after its first `kept` tokens.

        The text ends there: the baseline would have written neither these tokens nor an end.
        """
        tokens = done.emitted - kept + (done.finish is FinishReason.STOP)
        self._baseline -= tokens * self._costs.target.expected(1, done.context)

    def speedup(self) -> Speedup | None:
        """The speed-up of this answer over the baseline; None while it is not known.

        The costs say how many baseline rounds its rounds were worth. The costs of drafts and their
        passes are corrected by their error in the latest stretches. If that error varies from
        stretch to stretch, the stretches of this answer without a baseline round add to the doubt.
        Baseline rounds are the unit, so only the share of the time that went to drafts is in doubt.
        A size that few stretches have compared is off from the others as these are from each other.
        """
        target = self._costs.target
        if self._error == math.inf or not any(m is target and n > 1 for m, n in self._decodes):
            return None
        spent, compared, drafting, unseen = self._extra + self._read, self._read, self._read, 0.0
        for (model, n), expected in self._decodes.items():
            baseline = model is target and n == 1
            seconds = expected * (1.0 if baseline else math.exp(self._off + model.correction(n)))
            spent += seconds
            drafting += 0.0 if baseline else seconds
            if n == 1 or model.votes(n) >= FEW:
                compared += seconds
            else:
                unseen += model.scatter * seconds**2
        if compared < _COMPARED * spent:
            return None
        its = max(1.0, self._count / _STRETCH)
        alone = max(0.0, its - self._here) / its**2
        error = (self._error**2 + self._unrest * alone) * drafting**2
        doubt = math.sqrt(error + unseen) / spent
        # However quiet the machine is, a few stretches tell no more than this, nor do its own.
        doubt = max(doubt, _USUAL * math.hypot(_MIDDLE / math.sqrt(len(self._seen)), its**-0.5))
        found, wide = self._baseline / spent, math.exp(_WIDE * doubt)
        return Speedup(found, found / wide, found * wide)

    def _observe(self, baseline: Sequence[_Timed], drafting: Sequence[_Timed]) -> None:
        """Let a stretch vote once on each size.

        Sums count here, not medians: while other programs run, short passes mostly take their usual
        time and now and then ten times as long, which is part of their cost.
        """
        target = self._costs.target
        level = math.log(sum(p.seconds for p in baseline) / sum(p.expected for p in baseline))
        for each in drafting:
            if each.done.reads_text:
                self._count_reading(each.done, each.done.draft_s / math.exp(level))
        took, expected = self._sums(drafting)
        # Passes of draft and target that overlap slow each other down, so they do not vote.
        alone = self._sums([each for each in drafting if not (each.done.ahead or each.done.kept)])
        offs = {
            size: math.log(seconds / alone[1][size]) - level for size, seconds in alone[0].items()
        }
        for model in {model for model, _ in offs}:
            model.vote({n: off for (one, n), off in offs.items() if one is model})
        if any(model is target for model, _ in took):
            self._here += 1
            self._seen.append((sum(took.values()) / math.exp(level), expected))
        if len(self._seen) >= FEW:
            self._update_error()

    def _count_reading(self, done: Round, seconds: float) -> None:
        """Let a round that read a long text count with its own seconds of drafting.

        How long that takes was not measured. If it was interrupted, what was expected stays.
        """
        drafting = {
            (model, n): count * model.expected(n, context)
            for model, n, context, count in self._costs.decodes(done)
            if model is not self._costs.target
        }
        if seconds < _HALT_S + _HALT * sum(drafting.values()):
            self._read += seconds
            for size, expected in drafting.items():
                self._decodes[size] -= expected

    def _sums(self, rounds: Sequence[_Timed]) -> tuple[dict[_Decode, float], dict[_Decode, float]]:
        """Seconds of the decodes in these rounds: as they were, and as measured beforehand."""
        target, drafts = self._costs.target, self._costs.drafts
        took: defaultdict[_Decode, float] = defaultdict(float)
        expected: defaultdict[_Decode, float] = defaultdict(float)
        for done, seconds, by_measurement in rounds:
            if done.drafted:
                took[target, done.drafted + 1] += seconds
                expected[target, done.drafted + 1] += by_measurement
            if done.kept and not done.draft_passes:  # it waited for a draft pass to end
                took[target, done.drafted + 1] += done.draft_s
            if done.reads_text:  # the table is not that long: its steps would be blamed for it
                continue
            if done.drafter in drafts and done.draft_passes and done.draft_s > 0:
                model = drafts[done.drafter]
                took[model, 1] += done.draft_s
                expected[model, 1] += sum(
                    count * model.expected(n, context)
                    for one, n, context, count in self._costs.decodes(done)
                    if one is model
                )
        return took, expected

    def _update_error(self) -> None:
        """Compute the error of the corrected costs in the latest stretches."""
        sizes = set[_Decode]().union(*(expected for _, expected in self._seen))
        factors = {(model, n): math.exp(model.correction(n)) for model, n in sizes}
        offs = [
            math.log(took / sum(factors[size] * seconds for size, seconds in expected.items()))
            for took, expected in self._seen
        ]
        self._off = _middle(offs)
        scatter = _NORMAL * fmean(abs(off - self._off) for off in offs)
        self._error = _MIDDLE * max(_USUAL, scatter) / math.sqrt(len(offs))
        self._unrest = max(0.0, scatter**2 - _USUAL**2)


def _planning_share(done: Round) -> float:
    """What lookup and planning took of a round's other time, at most as much again.

    A share, as the machine's speed now is not that of the measurement; 0 in a round with a draft
    model's passes, whose time they are part of.
    """
    if done.draft_passes or done.kept or done.undrafted_s <= 0:
        return 0.0
    return min(1.0, done.draft_s / done.undrafted_s)


def _middle(values: Sequence[float]) -> float:
    """The median of the means of all pairs, each value paired with itself too (Hodges, Lehmann).

    A disturbed value moves it as little as the median, whose error is a quarter larger.
    """
    return median((one + other) / 2 for at, one in enumerate(values) for other in values[at:])
