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
from dataclasses import dataclass
from statistics import fmean, median

from localspec.engine.length.cost import Costs, ModelCosts
from localspec.engine.stats import Round, Speedup

_STRETCH = 6  # rounds; of four in the simulator's bursts those beside a plain one were too few
_MIDDLE = 3  # where a plain round has its neighbours on both sides
_KEPT = 15  # stretches
_FEW = 3  # stretches, before which nothing is claimed

_USUAL = 0.06  # scatter of stretches (of the logarithm) on a quiet machine, and never less
_NORMAL = 1.25  # standard deviation of a normal distribution over its mean deviation
_MEDIAN = 1.25  # standard error of a median over that of a mean
_WIDE = 2.2  # standard errors to both sides: 95 % with as few as there are
_DOUBT = 0.04  # standard error at which plain decoding is known: high over low is 1.2 then

# A round of so many seconds and times the usual was no decode: the program was stopped.
_HALT_S, _HALT = 0.25, 10.0

_STEP_LAG = 2  # reading one token or two is a step like the others


@dataclass(frozen=True, slots=True)
class _Vote:
    """Of a stretch on one size of one model: how far off, and the seconds expected of it."""

    model: ModelCosts
    size: int
    off: float
    seconds: float


class Neighbours:
    """Follows the rounds, corrects the costs by them, and says what drafting brings.

    Attributes:
        stretches: since the answer began, those with a draft and without, whatever they took.
    """

    def __init__(self, costs: Costs) -> None:
        self._costs = costs
        self._observed: deque[Sequence[_Vote]] = deque(maxlen=_KEPT)
        self._error: tuple[float, float] | None = None
        self.begin()

    def begin(self) -> None:
        """An answer starts: what was before is no neighbour."""
        self._rounds: list[Round] = []
        self.stretches = 0
        # What its rounds after the first, which never drafts, were made of.
        self._decodes: Counter[tuple[ModelCosts, int]] = Counter()
        self._tokens, self._context = 0, -1

    @property
    def wants_plain(self) -> bool:
        """Whether a plain round now would have neighbours that draft, and no other plain one."""
        drafted = sum(done.drafted > 0 for done in self._rounds)
        return len(self._rounds) == drafted == _MIDDLE

    @property
    def unsure(self) -> bool:
        """Whether what is drafted lately is not known well beside plain decoding."""
        found = self._off()
        return found is None or found[1] > _DOUBT

    def add(self, done: Round) -> None:
        """Take note of a round, whoever planned it."""
        if self._context >= 0:
            self._tokens += done.emitted
            for model, n, count in self._costs.decodes(done):
                self._decodes[model, n] += count
        self._context = done.context
        if done.undrafted_s <= 0:  # nobody timed it
            return
        self._rounds.append(done)
        if len(self._rounds) < _STRETCH:
            return
        rounds, self._rounds = self._rounds, []
        plain = [each for each in rounds if not each.drafted]
        self.stretches += 0 < len(plain) < _STRETCH
        drafting = [each for each in rounds if each.draft_passes or each.drafted]
        times = [each.total_s for each in rounds]
        halted = max(times) > _HALT_S + _HALT * median(times)
        if plain and drafting and not halted:
            self._observe(plain, drafting)

    def speedup(self) -> Speedup | None:
        """Of this answer over plain decoding, None while that is not known.

        Its tokens are counted; what its rounds took in plain rounds follows from the costs, and is
        set right by how far off these were beside plain rounds, lately.
        """
        target, off = self._costs.target, self._off()
        if off is None or not any(model is target and n > 1 for model, n in self._decodes):
            return None
        spent = sum(
            count * model.at(self._context).seconds(n)
            for (model, n), count in self._decodes.items()
        )
        middle, error = off
        plain_s = self._tokens * target.at(self._context).seconds(1)
        found, wide = plain_s / spent / math.exp(middle), math.exp(_WIDE * error)
        return Speedup(found, found / wide, found * wide)

    def _observe(self, plain: Sequence[Round], drafting: Sequence[Round]) -> None:
        """Let a stretch vote, once on each size.

        By the sums of its rounds, not by their medians: short passes beside other programs often
        take their usual time, and now and then ten times that, which is a part of what they cost.
        """
        target = self._costs.target
        level = math.log(sum(map(self._seconds, plain)) / sum(map(self._expected, plain)))
        took: defaultdict[tuple[ModelCosts, int], float] = defaultdict(float)
        expected: defaultdict[tuple[ModelCosts, int], float] = defaultdict(float)
        for done in drafting:
            if done.drafted:
                took[target, done.drafted + 1] += self._seconds(done)
                expected[target, done.drafted + 1] += self._expected(done)
            model = self._costs.drafts.get(done.drafter)
            if model is not None and done.draft_s > 0 and 0 < done.draft_prefill <= _STEP_LAG:
                took[model, 1] += done.draft_s
                expected[model, 1] += done.draft_passes * model.expected(1, done.context)
        votes = [
            _Vote(
                model,
                n,
                math.log(took[model, n] / expected[model, n]) - level,
                expected[model, n] * math.exp(model.correction(n)),
            )
            for model, n in took
        ]
        for model in {vote.model for vote in votes}:
            model.vote({vote.size: vote.off for vote in votes if vote.model is model})
        self._error = None
        if any(vote.model is target for vote in votes):
            self._observed.append(votes)

    def _seconds(self, done: Round) -> float:
        """What a round took but for drafting and, where the target reads again, going back."""
        seconds = done.undrafted_s + done.between_s
        return max(1e-9, seconds - (done.rollback_s if self._costs.rereads else 0.0))

    def _expected(self, done: Round) -> float:
        return self._costs.target.expected(done.drafted + 1, done.context)

    def _off(self) -> tuple[float, float] | None:
        """(median, its standard error) of what the costs are off beside plain rounds, lately."""
        if len(self._observed) < _FEW:
            return None
        if self._error is None:
            offs = [
                math.log(
                    sum(v.seconds * math.exp(v.off - v.model.correction(v.size)) for v in votes)
                    / sum(v.seconds for v in votes)
                )
                for votes in self._observed
            ]
            middle = median(offs)
            scatter = max(_USUAL, _NORMAL * fmean(abs(off - middle) for off in offs))
            self._error = middle, _MEDIAN * scatter / math.sqrt(len(offs))
        return self._error
