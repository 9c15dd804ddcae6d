"""What rounds with and without a draft beside each other tell: costs, and the speed-up.

A machine's speed changes from moment to moment, so a round's time says something only beside that
of its neighbours. Rounds are cut into short stretches, one after the other; a stretch in which some
rounds drafted and others did not is an observation. Medians over the last ones are what holds: a
disturbed round, or a plain one, has one vote among many. Pure: no clock of its own.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from statistics import fmean, median
from typing import NamedTuple

from localspec.engine.length.cost import FEW, VOTES, Costs, ModelCosts, Row
from localspec.engine.record.stats import FinishReason, Round, Speedup

# Half and twice of each number here: docs/measurements/README.md.

_STRETCH = 6  # rounds; of four in the simulator's bursts those beside a plain one were too few
_USUAL = 0.06  # scatter of stretches (of the logarithm) on a quiet machine, and never less
# sqrt(pi / 2), of a normal distribution twice: its standard deviation over its mean deviation, and
# a median's standard error over a mean's.
_NORMAL = 1.25
_WIDE = 2.2  # standard errors to both sides: 95 % with as few as there are
_COMPARED = 0.5  # share of an answer's time in sizes that plain rounds stood beside: else no claim
_DOUBT = 0.04  # standard error at which plain decoding is known: high over low is 1.2 then

# A round that took this many seconds, and this many times the usual, was interrupted, not slow. A
# busy neighbour makes single rounds up to ten times as long.
_HALT_S, _HALT = 0.25, 10.0


_Decode = tuple[ModelCosts, int]
"""Whose decode, and of how many tokens."""


class _Timed(NamedTuple):
    """A round, the seconds of the target's part in it, and what the measurement says of these."""

    done: Round
    seconds: float
    expected: float


class Neighbours:
    """Follows the rounds, corrects the costs by them, and says what drafting brings.

    Attributes:
        stretches: so far, those with a draft and without, whatever they took.
        row: the target's last decodes of one size; none where an answer starts.
        longer: seconds that the last round took for beginning one; of the first round of an answer,
            which never drafts, they are the prompt's.
    """

    def __init__(self, costs: Costs) -> None:
        self._costs = costs
        # Of every stretch: seconds that its drafts and their passes took, of the machine as it was
        # measured, and by whose and how long ones those that the measurement says.
        self._seen: deque[tuple[float, Mapping[_Decode, float]]] = deque(maxlen=VOTES)
        # How far the costs are off by now: the median over the stretches, its standard error, and
        # the variance between stretches that no calm machine has.
        self._off, self._error, self._unrest = 0.0, math.inf, 0.0
        self.stretches = 0
        self.begin()

    def begin(self, *, anew: bool = False) -> None:
        """Start an answer: earlier rounds are not its neighbours.

        Args:
            anew: count stretches from here on, so that the answer can be repeated.
        """
        self._rounds: list[_Timed] = []
        self.row, self.longer = Row(), 0.0
        self.stretches *= not anew
        # Of its rounds after the first, which never drafts: seconds of their decodes and of as many
        # plain rounds as they brought tokens, by the measurement and each at its own context.
        self._decodes: defaultdict[_Decode, float] = defaultdict(float)
        self._plain, self._longer = 0.0, 0.0
        self._count, self._here = -1, 0  # those, and stretches of theirs that were seen

    @property
    def wants_plain(self) -> bool:
        """Whether a plain round now would have neighbours that draft, and no other plain one."""
        drafted = sum(each.done.drafted > 0 for each in self._rounds)
        return len(self._rounds) == drafted == _STRETCH // 2

    @property
    def unsure(self) -> bool:
        """Whether what is drafted lately is not known well beside plain decoding."""
        return self._error > _DOUBT

    def add(self, done: Round) -> None:
        """Take note of a round, whoever planned it."""
        self.row = self.row.then(done.drafted + 1)
        longer = self.row.longer(self._costs.target.onset)
        if self._costs.rereads and done.accepted < done.drafted:
            self.row = Row()  # it has read again what was accepted
        self._count += 1
        if self._count:
            self.longer = longer
            self._longer += longer + self._planning(done)
            # For the token that ends the text plain decoding makes a pass as well.
            tokens = done.emitted + (done.finish is FinishReason.STOP)
            self._plain += tokens * self._costs.target.expected(1, done.context)
            for model, n, behind, count in self._costs.decodes(done):
                self._decodes[model, n] += count * model.expected(n, behind)
        if done.undrafted_s <= 0:  # nobody timed it
            return
        # What it took but for drafting and, where the target reads again, going back.
        seconds = done.undrafted_s + done.between_s - self._costs.rereads * done.rollback_s
        expected = self._costs.target.expected(done.drafted + 1, done.context) + longer
        self._rounds.append(_Timed(done, max(1e-9, seconds), expected))
        if len(self._rounds) < _STRETCH:
            return
        rounds, self._rounds = self._rounds, []
        plain = [each for each in rounds if not each.done.drafted]
        self.stretches += 0 < len(plain) < _STRETCH
        drafting = [each for each in rounds if each.done.draft_passes or each.done.drafted]
        times = [each.done.total_s + each.done.between_s for each in rounds]
        halted = max(times) > _HALT_S + _HALT * median(times)
        if plain and drafting and not halted:
            self._observe(plain, drafting)

    def _planning(self, done: Round) -> float:
        """Seconds that looking for copies and planning took where no model drafted then.

        By the round's own pass, which the machine of that moment made: never more than that.
        """
        if done.draft_passes or done.kept or done.undrafted_s <= 0:
            return 0.0
        share = min(1.0, done.draft_s / done.undrafted_s)
        return share * self._costs.target.expected(done.drafted + 1, done.context)

    def speedup(self) -> Speedup | None:
        """Of this answer over plain decoding, None while that is not known.

        Its tokens are counted; what its rounds took in plain rounds follows from the costs. That of
        drafts and their passes is set right by how far off these were beside plain rounds, lately.
        Where that differs from stretch to stretch, it may differ in those of this answer that no
        plain round stood in.
        """
        target = self._costs.target
        if self._error == math.inf or not any(m is target and n > 1 for m, n in self._decodes):
            return None
        spent, compared = self._longer, 0.0
        for (model, n), expected in self._decodes.items():
            plain = model is target and n == 1
            seconds = expected * (1.0 if plain else math.exp(self._off + model.correction(n)))
            spent += seconds
            compared += seconds if n == 1 or model.votes(n) else 0.0
        if compared < _COMPARED * spent:
            return None
        its = max(1.0, self._count / _STRETCH)
        unseen = max(0.0, its - self._here) / its**2
        doubt = math.sqrt(self._error**2 + self._unrest * unseen)
        found, wide = self._plain / spent, math.exp(_WIDE * doubt)
        return Speedup(found, found / wide, found * wide)

    def _observe(self, plain: Sequence[_Timed], drafting: Sequence[_Timed]) -> None:
        """Let a stretch vote, once on each size.

        By the sums of its rounds, not by their medians: short passes beside other programs often
        take their usual time, and now and then ten times that, which is a part of what they cost.
        """
        target = self._costs.target
        level = math.log(sum(p.seconds for p in plain) / sum(p.expected for p in plain))
        took, expected = self._sums(drafting)
        # A pass beside another takes what it takes for that: it votes on neither's.
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
            self._judge()

    def _sums(self, rounds: Sequence[_Timed]) -> tuple[dict[_Decode, float], dict[_Decode, float]]:
        """Seconds that decodes took in these rounds, and what the measurement says of them."""
        target, drafts = self._costs.target, self._costs.drafts
        took: defaultdict[_Decode, float] = defaultdict(float)
        expected: defaultdict[_Decode, float] = defaultdict(float)
        for done, seconds, by_measurement in rounds:
            if done.drafted:
                took[target, done.drafted + 1] += seconds
                expected[target, done.drafted + 1] += by_measurement
            if done.kept and not done.draft_passes:  # it waited for a pass that was going on
                took[target, done.drafted + 1] += done.draft_s
            if done.drafter in drafts and done.draft_passes and done.draft_s > 0:
                model = drafts[done.drafter]
                took[model, 1] += done.draft_s
                expected[model, 1] += sum(
                    count * model.expected(n, behind)
                    for one, n, behind, count in self._costs.decodes(done)
                    if one is model
                )
        return took, expected

    def _judge(self) -> None:
        """How far the costs, as they are corrected by now, are off in the stretches lately."""
        sizes = set[_Decode]().union(*(expected for _, expected in self._seen))
        factors = {(model, n): math.exp(model.correction(n)) for model, n in sizes}
        offs = [
            math.log(took / sum(factors[size] * seconds for size, seconds in expected.items()))
            for took, expected in self._seen
        ]
        self._off = median(offs)
        scatter = _NORMAL * fmean(abs(off - self._off) for off in offs)
        self._error = _NORMAL * max(_USUAL, scatter) / math.sqrt(len(offs))
        self._unrest = max(0.0, scatter**2 - _USUAL**2)
