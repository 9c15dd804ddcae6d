"""One round's decisions: how far to draft, taken as the draft grows.

A leaf: a plan sees confidences and costs, never a clock, a model or a token.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from localspec.engine.length.calibration import LEAST, MOST, Calibration
from localspec.engine.length.copying import Copying
from localspec.engine.record.stats import DRAFT


@dataclass(frozen=True, slots=True)
class Situation:
    """Where a round begins.

    Attributes:
        room: tokens that a draft may have at most.
        context: tokens of the sequence so far.
        remaining: tokens that may still be generated.
        pending_tokens: by the name of the drafter the tokens that its first pass reads, at least 1;
            0 where that pass is made already.
        copies: the confidences of the tokens that lookup would copy; empty where it found nothing.
        readers: of the drafters those that can read in one pass what lookup would copy.
        blocks: of those that guess several tokens in one pass, how many at most. Their pass is one
            over the tokens that they have to read and those that they guess.
        left_out: by drafter the tokens of the sequence that its passes know nothing of.
    """

    room: int
    context: int = 0
    remaining: int = 1 << 30
    pending_tokens: Mapping[str, int] = field(default_factory=lambda: {DRAFT: 1})
    copies: Sequence[float] = ()
    readers: Collection[str] = ()
    blocks: Mapping[str, int] = field(default_factory=dict)
    left_out: Mapping[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class Plan:
    """One round's decisions, asked for as the draft grows; these: a fixed length, come what may.

    Attributes:
        limit: tokens to draft at most; 0 leaves the drafter alone.
        drafter: the name of the drafter that proposes; empty if none does.
        learns: whether the round should report confidences and acceptance probabilities: here for
            those who record what a replay of other policies needs.
        reads: tokens that lookup would copy, for the drafter to read with what it missed.
    """

    limit: int
    drafter: str = ""
    learns: bool = False
    reads: int = 0

    @property
    def aim(self) -> int:
        """The draft length asked for, known for sure when the draft is done."""
        return self.limit

    def wants_pass(self) -> bool:
        """Whether to spend another draft pass; asked before each but the first."""
        return True

    def wants_token(self, confidence: float, *, must_verify: bool) -> bool:  # noqa: ARG002 - always
        """Whether to add a token; asked after a pass, before the token is picked.

        Args:
            confidence: the probability of the draft's best guess, if the plan learns.
            must_verify: whether the token, once picked, must be submitted.
        """
        return True

    def keep(self) -> int:
        """How many of the added tokens are worth verifying: at least those that must be."""
        return self.limit

    def copies(self, confidences: Sequence[float]) -> int:  # noqa: ARG002 - none
        """How many copied tokens, with these confidences, to add to those that are kept."""
        return 0


PLAIN = Plan(0)


class StoppingPlan(Plan):
    """Drafts while the best that can still come is worth more than what is there.

    With n tokens drafted, S_k the chance that the first k are all accepted and lambda the tokens
    per second that time is worth, verifying m of them is worth

        V(m) = 1 + sum_{k<=m} S_k - lambda T(m+1),

    and drafting goes on iff max_{m>n} (E[V(m)] - lambda c_d (m-n)) exceeds the best V there is:
    that of the best prefix that holds all tokens that must be verified. The maximum looks ahead
    over the whole curve, since T is jagged: after a token that does not pay there may come
    one that does. Positions not looked at yet are expected to do as the last ones did.

    A target that goes back by reading again pays for a rejection: with r decodes of what stays (one
    or none), V(m) is less by lambda r sum_{k<m} (S_k - S_{k+1}) T(k+1).
    """

    def __init__(
        self,
        calibration: Calibration,
        times: Sequence[float],
        step: float,
        rate: float,
        *,
        drafter: str = DRAFT,
        rereads: float = 0.0,
        copying: Copying | None = None,
        reads: int = 0,
    ) -> None:
        """Plan one round.

        Args:
            calibration: from confidence to acceptance, for this drafter.
            times: T(n) at index n, up to the longest draft and one more, in any unit.
            step: one draft pass, in the same unit.
            rate: lambda, tokens per unit.
            drafter: the name of the drafter that this is for.
            rereads: r, 0 where nothing is read again.
            copying: what tokens copied to the draft's end are worth; None where none may be.
            reads: of what lookup would copy, for the drafter to read at first.
        """
        super().__init__(len(times) - 2, drafter, learns=True, reads=reads)
        self.step = step
        self._calibration = calibration
        self._times = times
        # At n the least of what comes after it.
        self._least = [*accumulate(reversed(times[1:]), min, initial=math.inf)][::-1]
        self._rate = rate
        self._back = rate * rereads  # times T(n): what it costs that token n is rejected first
        self._step = rate * step  # in tokens
        self._drafted = 0
        self._chain = 1.0  # S_n
        self._gain = 1.0  # 1 + S_1 + ... + S_n, less the going back
        self._next = calibration.mean  # acceptance expected at the next position
        self._floor = 1.0 - rate * times[1]
        self._kept = 0
        self._kept_chain = 1.0
        self._copying = copying

    @property
    def aim(self) -> int:
        """Tokens wanted so far."""
        return self._drafted

    def wants_pass(self) -> bool:
        """The look-ahead, the next pass not yet paid and its confidence not yet known."""
        return self.pays(self._step)

    def pays(self, cost: float) -> bool:
        """Whether another pass promises more than it costs, both in tokens."""
        # What the mean confidence would be worth is sooner known, and mostly decides.
        sure = self._ahead(self._drafted, self._chain, self._gain, self._next)
        return sure > self._floor + cost or self.promise() > cost

    def promise(self) -> float:
        """What another pass is expected to be worth, in tokens, before it is paid."""
        floor, worth, spread = self._floor, 0.0, self._calibration.spread
        for offset in (-spread, spread):
            accepted = min(MOST, max(LEAST, self._next + offset))
            chain, gain, here = self._with(accepted)
            follows = self._calibration.next_after(accepted)
            ahead = self._ahead(self._drafted + 1, chain, gain, follows) - self._step
            worth += max(floor, here, ahead) / 2
        return worth - floor

    def wants_token(self, confidence: float, *, must_verify: bool) -> bool:
        """The look-ahead, with the confidence of the position known and its pass paid."""
        accepted = self._calibration.acceptance(confidence)
        follows = self._calibration.next_after(accepted)
        n = self._drafted + 1
        chain, gain, here = self._with(accepted)
        if here <= self._floor:
            ahead = self._ahead(n, chain, gain, follows) - self._step
            if ahead <= self._floor:
                return False
        self._drafted, self._chain, self._gain, self._next = n, chain, gain, follows
        if here > self._floor or must_verify:
            self._floor, self._kept, self._kept_chain = here, n, chain
        return True

    def keep(self) -> int:
        """The best prefix, no shorter than what must be verified."""
        return self._kept

    def copies(self, confidences: Sequence[float]) -> int:
        """As many as are worth more than what verifying them adds to the pass."""
        if self._copying is None:
            return 0
        return self._copying.best(confidences, self._kept, self._kept_chain).length

    def _with(self, accepted: float) -> tuple[float, float, float]:
        """S, the sum of all S, and V if one more token is accepted with this chance."""
        n, before = self._drafted + 1, self._chain
        chain = before * accepted
        gain = self._gain + chain - (before - chain) * self._back * self._times[n]
        return chain, gain, gain - self._rate * self._times[n + 1]

    def _ahead(self, n: int, chain: float, gain: float, chance: float) -> float:
        """The best V(m) to expect for m > n, the passes after the next one paid."""
        best = -1e9
        times, least, rate = self._times, self._least, self._rate
        step, back = self._step, self._back * (1.0 - chance)
        rest = chance / max(1e-3, 1.0 - chance)
        for m in range(n + 2, len(times)):
            if back:
                gain -= chain * back * times[m - 1]
            chain *= chance
            gain += chain
            value = gain - rate * times[m]
            best = max(best, value)
            gain -= step
            # Not even the cheapest verification and free passes could make up for what is missing.
            if gain + chain * rest - rate * least[m] <= best:
                break
        return best


def gamma_for(
    acceptance: float,
    times: Sequence[float],
    step: float,
    *,
    first: float = 0.0,
    rereads: float = 0.0,
) -> tuple[int, float]:
    """The draft length that is best for a steady acceptance, and its speed-up over plain decoding.

    Args:
        acceptance: of every drafted token, given that those before it were accepted.
        times: T(n) at index n, in seconds.
        step: seconds that a drafted token takes.
        first: seconds that a draft takes besides, however long it is.
        rereads: seconds of going back over those of a decode of what is then read again.
    """
    best, gain = 0, 1.0
    chain, tokens, back = 1.0, 1.0, 0.0
    for m in range(1, len(times) - 1):
        back += chain * (1 - acceptance) * rereads * times[m]
        chain *= acceptance
        tokens += chain
        faster = tokens * times[1] / (first + m * step + times[m + 1] + back)
        if faster > gain:
            best, gain = m, faster
    return best, gain
