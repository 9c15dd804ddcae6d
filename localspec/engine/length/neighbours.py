"""What rounds with and without a draft beside each other tell: costs, and the speed-up.

A machine's speed changes from moment to moment, so a round's time says something only beside that
of its neighbours. Rounds are cut into short stretches, one after the other; a stretch in which some
rounds drafted and others did not is an observation. Medians over the last ones are what holds: a
disturbed round, or a plain one, has one vote among many. Pure: no clock of its own.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

from localspec.engine.length.cost import Costs, ModelCosts
from localspec.engine.stats import Round, Speedup

_STRETCH = 6  # rounds; of four in the simulator's bursts those beside a plain one were too few
_MIDDLE = 3  # where a plain round has its neighbours on both sides
_KEPT = 15  # stretches
_FEW = 3  # stretches, before which nothing is claimed; votes, before which a size is not known

# One stretch is off by this (of the logarithm) on a quiet machine, as if so many had been seen.
_USUAL = 0.06
_AS_IF = 4
_MEDIAN = 1.25  # standard error of a median over that of a mean
_WIDE = 2.2  # standard errors to both sides: 95 % with as few as there are
_DOUBT = 0.04  # standard error at which plain decoding is known: high over low is 1.2 then

_STEP_LAG = 2  # reading one token or two is a step like the others
_TABLE = 32  # tokens from which on reading is learnt at powers of two alone


@dataclass(frozen=True, slots=True)
class _Vote:
    """Of a stretch on one size of one model: how far off, and its share of the drafting rounds."""

    model: ModelCosts
    size: int
    off: float
    share: float


@dataclass(slots=True)
class _Tally:
    """What the rounds of an answer cost, to be weighed by what is known later.

    Attributes:
        sizes: rounds by tokens that the target decoded.
        steps: draft passes by drafter.
        more: other costs, in plain rounds.
    """

    tokens: int = 0
    context: int = 0
    sizes: Counter[int] = field(default_factory=Counter)
    steps: Counter[str] = field(default_factory=Counter)
    more: float = 0.0


class Neighbours:
    """Follows the rounds, corrects the costs by them, and says what drafting brings.

    Attributes:
        stretches: observations since the answer began.
    """

    def __init__(self, costs: Costs) -> None:
        self._costs = costs
        self._observed: deque[Sequence[_Vote]] = deque(maxlen=_KEPT)
        self._error: tuple[float, float] | None = None
        self.begin()

    def begin(self) -> None:
        """An answer starts: what was before is no neighbour."""
        self._rounds: list[Round] = []
        self._tally: _Tally | None = None
        self.stretches = 0

    @property
    def wants_plain(self) -> bool:
        """Whether a plain round now would have neighbours that draft, and no other plain one."""
        drafted = sum(done.drafted > 0 for done in self._rounds)
        return len(self._rounds) == drafted == _MIDDLE

    @property
    def compares(self) -> bool:
        """Whether a plain round is just behind, so that a draft now is timed beside it."""
        return len(self._rounds) > _MIDDLE and any(not done.drafted for done in self._rounds)

    @property
    def unsure(self) -> bool:
        """Whether what is drafted lately is not known well beside plain decoding."""
        found = self._off()
        return found is None or found[1] > _DOUBT

    def add(self, done: Round) -> None:
        """Take note of a round, whoever planned it."""
        self._count(done)
        if done.undrafted_s <= 0:  # nobody timed it
            return
        self._rounds.append(done)
        if len(self._rounds) < _STRETCH:
            return
        rounds, self._rounds = self._rounds, []
        plain = [each for each in rounds if not each.drafted]
        drafting = [each for each in rounds if each.draft_passes or each.drafted]
        if plain and drafting:
            self._observe(plain, drafting)

    def speedup(self) -> Speedup | None:
        """Of this answer over plain decoding, None while that is not known.

        Its tokens are counted; what its rounds took in plain rounds follows from the costs, and is
        set right by how far off these were beside plain rounds, lately.
        """
        tally, off = self._tally, self._off()
        if tally is None or off is None or not any(n > 1 for n in tally.sizes):
            return None
        target = self._costs.target.at(tally.context)
        spent = sum(count * target.seconds(n) for n, count in tally.sizes.items())
        for name, count in tally.steps.items():
            spent += count * self._costs.drafts[name].at(tally.context).seconds(1)
        middle, error = off
        found = tally.tokens / (spent / target.seconds(1) + tally.more) / math.exp(middle)
        wide = math.exp(_WIDE * error)
        return Speedup(found, found / wide, found * wide)

    def _count(self, done: Round) -> None:
        """Add a round to the answer's; the first, which never drafts, is not counted."""
        if self._tally is None:
            self._tally = _Tally()
            return
        tally, costs = self._tally, self._costs
        tally.tokens += done.emitted
        tally.context = done.context
        tally.sizes[done.drafted + 1] += 1
        one = costs.target.at(done.context).seconds(1)
        tally.more += costs.going_back(done.context, done.drafted, done.accepted) / one
        if done.draft_passes:
            usual = done.draft_prefill <= _STEP_LAG
            tally.steps[done.drafter] += done.draft_passes - (not usual)
            if not usual:
                reading = costs.drafting(done.drafter, done.context, done.draft_prefill, 1)
                tally.more += reading / one

    def _observe(self, plain: Sequence[Round], drafting: Sequence[Round]) -> None:
        """Let a stretch vote, once on each size."""
        target = self._costs.target
        level = median(self._off_target(done, self._seconds(done)) for done in plain)
        offs: defaultdict[tuple[ModelCosts, int], list[float]] = defaultdict(list)
        times: defaultdict[tuple[ModelCosts, int], float] = defaultdict(float)
        for done in drafting:
            if done.drafted:
                key = (target, done.drafted + 1)
                offs[key].append(self._off_target(done, self._seconds(done)))
                times[key] += target.at(done.context).seconds(done.drafted + 1)
            if done.accepted < done.drafted:
                rollback_s = done.rollback_s / math.exp(level)
                self._costs.observe_going_back(done.context, done.accepted, rollback_s)
            model = self._costs.drafts.get(done.drafter)
            if model is None or done.draft_s <= 0 or not done.draft_passes:
                continue
            size, off, seconds = self._off_draft(done, model, level)
            offs[model, size].append(off)
            times[model, size] += seconds
        whole = sum(times.values())
        votes = [
            _Vote(*key, median(each) - level, times[key] / whole) for key, each in offs.items()
        ]
        for model in {vote.model for vote in votes}:
            model.vote({vote.size: vote.off for vote in votes if vote.model is model})
        self._error = None
        if any(vote.model is target for vote in votes):
            self._observed.append(votes)
            self.stretches += 1

    def _seconds(self, done: Round) -> float:
        """What a round took but for drafting and, where it reads again, going back."""
        seconds = done.undrafted_s + done.between_s
        return max(1e-9, seconds - done.rollback_s if self._costs.rereads else seconds)

    def _off_target(self, done: Round, seconds: float) -> float:
        """By how much a round's time is off what was measured, the machine's speed included."""
        return math.log(seconds / self._costs.target.expected(done.drafted + 1, done.context))

    def _off_draft(self, done: Round, model: ModelCosts, level: float) -> tuple[int, float, float]:
        """(size, by how much its decodes were off, seconds they should take) of a round's draft."""
        lag, passes = done.draft_prefill, done.draft_passes
        step = model.at(done.context).seconds(1)
        if lag <= _STEP_LAG:
            off = done.draft_s / passes / model.expected(1, done.context)
            return 1, math.log(off), passes * step
        expected = model.expected(lag, done.context)
        took = done.draft_s - (passes - 1) * step * math.exp(level)
        size = lag if lag < _TABLE else 1 << round(math.log2(lag))
        return size, math.log(max(took / expected, 0.1)), model.at(done.context).seconds(lag)

    def _off(self) -> tuple[float, float] | None:
        """(median, its standard error) of what the costs are off beside plain rounds, lately."""
        if len(self._observed) < _FEW:
            return None
        if self._error is None:
            offs = [
                sum(v.share * (v.off - v.model.correction(v.size)) for v in votes)
                for votes in self._observed
            ]
            middle = median(offs)
            # Squares beyond three times the usual scatter say no more than that it is large.
            spread = 1.48 * median(abs(off - middle) for off in offs)
            most = 3 * max(spread, _USUAL)
            squares = sum(min(abs(off - middle), most) ** 2 for off in offs)
            variance = (_AS_IF * _USUAL**2 + squares) / (_AS_IF + len(offs) - 1)
            self._error = middle, _MEDIAN * math.sqrt(variance / len(offs))
        return self._error
