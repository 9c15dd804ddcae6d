"""One round's decisions: how far to draft, taken as the draft grows.

A leaf: a plan sees confidences and costs, never a clock, a model or a token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import inf
from typing import Protocol

from localspec.engine.calibration import Calibration


@dataclass(frozen=True, slots=True)
class Situation:
    """Where a round begins.

    Attributes:
        room: tokens that a draft may have at most.
        context: tokens of the sequence so far.
        remaining: tokens that may still be generated.
        lags: for every drafter, the tokens it has to read in its first pass, at least 1.
        cuttable: whether the rule allows a finished draft to be cut short: match and coupled do.
            Under the token and block rules what was sampled must be submitted (or the output
            would be biased): there a draft may only be stopped before a token is sampled.
    """

    room: int
    context: int = 0
    remaining: int = 1 << 30
    lags: tuple[int, ...] = (1,)
    cuttable: bool = False


class Plan(Protocol):
    """One round's decisions, asked for as the draft grows."""

    @property
    def drafter(self) -> int:
        """Which of the drafters proposes."""
        ...

    @property
    def aim(self) -> int:
        """The draft length asked for, known for sure when the draft is done."""
        ...

    @property
    def limit(self) -> int:
        """Tokens to draft at most; 0 leaves the drafter alone."""
        ...

    @property
    def learns(self) -> bool:
        """Whether the round should report confidences and acceptance probabilities."""
        ...

    def wants_pass(self) -> bool:
        """Whether to spend another draft pass; asked before each but the first."""
        ...

    def wants_token(self, confidence: float) -> bool:
        """Whether to add a token; asked after a pass, before the token is picked.

        Args:
            confidence: the probability of the draft's best guess, if the plan learns.
        """
        ...

    def keep(self) -> int:
        """How many of the tokens added are worth verifying, where the rest may be cut off."""
        ...


@dataclass(frozen=True, slots=True)
class FixedPlan:
    """Draft `limit` tokens, whatever they look like.

    Attributes:
        learns: set to record what a replay of other policies needs (see `simulate`).
    """

    limit: int
    drafter: int = 0
    learns: bool = False

    @property
    def aim(self) -> int:
        """All of them."""
        return self.limit

    def wants_pass(self) -> bool:
        """Always."""
        return True

    def wants_token(self, confidence: float) -> bool:  # noqa: ARG002 - it does not look
        """Always."""
        return True

    def keep(self) -> int:
        """All of them."""
        return self.limit


PLAIN = FixedPlan(0)


class StoppingPlan:
    """Drafts while the best that can still come is worth more than what is there.

    With n tokens drafted, S_k the chance that the first k are all accepted and lambda the tokens
    per second that time is worth, verifying m of them is worth

        V(m) = 1 + sum_{k<=m} S_k - lambda T(m+1),

    and drafting goes on iff max_{m>n} (E[V(m)] - lambda c_d (m-n)) exceeds the best V there is:
    that of the best prefix where a draft may be cut, V(n) where it may not. The maximum looks
    ahead over the whole curve, since T is jagged: after a token that does not pay there may come
    one that does. Positions not looked at yet are expected to do as the last ones did.

    A target that goes back by reading again pays for a rejection: with r the cost of reading over
    that of a decode, V(m) is less by lambda r sum_{k<m} (S_k - S_{k+1}) T(k+1).
    """

    learns = True

    def __init__(
        self,
        calibration: Calibration,
        times: Sequence[float],
        step: float,
        rate: float,
        *,
        cuttable: bool,
        drafter: int = 0,
        rereads: float = 0.0,
    ) -> None:
        """Plan one round.

        Args:
            calibration: from confidence to acceptance, for this drafter.
            times: T(n) at index n, up to the longest draft and one more, in seconds.
            step: seconds of one draft pass.
            rate: lambda, tokens per second.
            cuttable: whether the finished draft may be cut.
            drafter: which drafter this is for.
            rereads: r, 0 where nothing is read again.
        """
        self.drafter = drafter
        self.limit = len(times) - 2
        self._calibration = calibration
        self._verify = verify = [rate * seconds for seconds in times]
        # At n: what it costs that the n-th token is the first to be rejected.
        self._back = [rereads * cost for cost in verify]
        # At m: the least of what comes after verify[m].
        self._least = [*list(accumulate(reversed(verify[1:]), min))[::-1], inf]
        self._step = rate * step
        self._cuttable = cuttable
        self._drafted = 0
        self._chain = 1.0  # S_n
        self._gain = 1.0  # 1 + S_1 + ... + S_n, less the going back
        self._next = calibration.mean  # acceptance expected at the next position
        self._floor = 1.0 - self._verify[1]
        self._kept = 0

    @property
    def aim(self) -> int:
        """Tokens wanted so far."""
        return self._drafted

    def wants_pass(self) -> bool:
        """The look-ahead, the next pass not yet paid and its confidence not yet known."""
        # What the mean confidence would be worth is a bound from below, and mostly decides.
        if self._ahead(self._drafted, self._chain, self._gain, self._next) > (
            self._floor + self._step
        ):
            return True
        return self.promise() > self._step

    def promise(self) -> float:
        """What another pass is expected to be worth, in tokens, before it is paid."""
        n, floor = self._drafted + 1, self._floor
        shift = self._next - self._calibration.mean
        worth = 0.0
        for weight, level in self._calibration.levels:
            accepted = min(0.995, level + shift)
            chain = self._chain * accepted
            gain = self._gain + chain - (self._chain - chain) * self._back[n]
            here = gain - self._verify[n + 1]
            ahead = self._ahead(n, chain, gain, self._calibration.next_after(accepted)) - self._step
            worth += weight * max(floor, here, ahead)
        return worth - floor

    def wants_token(self, confidence: float) -> bool:
        """The look-ahead, with the confidence of the position known and its pass paid."""
        accepted = self._calibration.acceptance(confidence)
        follows = self._calibration.next_after(accepted)
        n, chain = self._drafted + 1, self._chain * accepted
        gain = self._gain + chain - (self._chain - chain) * self._back[n]
        here = gain - self._verify[n + 1]
        if here <= self._floor:
            ahead = self._ahead(n, chain, gain, follows) - self._step
            if ahead <= self._floor:
                return False
        self._drafted, self._chain, self._gain, self._next = n, chain, gain, follows
        if here > self._floor or not self._cuttable:
            self._floor, self._kept = here, n
        return True

    def keep(self) -> int:
        """The best prefix."""
        return self._kept

    def _ahead(self, n: int, chain: float, gain: float, chance: float) -> float:
        """The best V(m) to expect for m > n, the passes after the next one paid."""
        best = -1e9
        verify, step, least, back = self._verify, self._step, self._least, self._back
        fails = 1.0 - chance
        rest = chance / max(1e-3, 1.0 - chance)
        for m in range(n + 2, len(verify)):
            gain -= chain * fails * back[m - 1]
            chain *= chance
            gain += chain
            value = gain - verify[m]
            best = max(best, value)
            gain -= step
            # Not even the cheapest verification and free passes could make up for what is missing.
            if gain + chain * rest - least[m] <= best:
                break
        return best
