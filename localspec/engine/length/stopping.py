"""One round's decisions on how far to draft, made as the draft grows.

A leaf: a plan sees confidences and costs, never a clock, a model or a token.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple

from localspec.drafter_names import DRAFT
from localspec.engine.length.calibration import LEAST, MOST, Calibration
from localspec.engine.length.copying import Copying


class Askable(NamedTuple):
    """A drafter that a round may ask, and what a proposal of it would take.

    Attributes:
        pending: tokens that its first pass has to read; 0 if that pass is already done.
        left_out: tokens of the sequence that its passes will not know, as far as can be told.
        whole: tokens that its first pass has to read to know all of it; 0 if it cannot choose.
        reads_paths: whether it can read lookup's tokens in one pass (see `Drafter.propose`).
        block: the most tokens that it guesses in one pass; 0 if each token takes one. Such a pass
            covers the tokens that the drafter has to read and those that it guesses.
    """

    pending: int = 1
    left_out: int = 0
    whole: int = 0
    reads_paths: bool = False
    block: int = 0


@dataclass(frozen=True, slots=True)
class Situation:
    """The state in which a round begins.

    Attributes:
        room: the most tokens that a draft may have.
        context: tokens of the sequence so far.
        remaining: tokens that may still be generated.
        drafters: those that may be asked, by name.
        copies: the confidences of the tokens that lookup would copy; empty if it found none.
    """

    room: int
    context: int = 0
    remaining: int = 1 << 30
    drafters: Mapping[str, Askable] = field(default_factory=lambda: {DRAFT: Askable()})
    copies: Sequence[float] = ()


@dataclass(slots=True)
class Plan:
    """One round's decisions, asked for as the draft grows; this class drafts a fixed length.

    Attributes:
        limit: the most tokens to draft; 0 does not ask the drafter.
        drafter: the name of the drafter that proposes; empty if none does.
        learns: whether the round should report confidences and acceptance probabilities.
        reads: lookup's tokens that the drafter should read together with its pending tokens.
        whole: whether the drafter should read all that it lacks of a long text, not just its end.
    """

    limit: int
    drafter: str = ""
    learns: bool = False
    reads: int = 0
    whole: bool = False

    @property
    def aim(self) -> int:
        """The wanted draft length, final when the draft is done."""
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
        """How many of the added tokens to verify, at least those that must be."""
        return self.limit

    def recount(self, confidences: Sequence[float]) -> None:
        """Count the draft anew, as tokens with these confidences: its text was cut into them."""

    def copies(self, confidences: Sequence[float], drafted: int) -> int:  # noqa: ARG002 - none
        """How many copied tokens with these confidences to add after `drafted` tokens."""
        return 0


BASELINE = Plan(0)


class StoppingPlan(Plan):
    """Drafts as long as a longer draft is expected to be worth more than the present one.

    Let n be the number of drafted tokens, S_k the chance that the first k are all accepted, lambda
    the worth of a second in tokens, and c_d the seconds of a draft pass. Verifying m tokens is
    worth

        V(m) = 1 + sum_{k<=m} S_k - lambda T(m+1).

    Drafting goes on iff max_{m>n} (E[V(m)] - lambda c_d (m-n)) exceeds V of the best prefix that
    includes all tokens that must be verified. T is jagged: a token that does not pay may be
    followed by one that does, so the maximum is taken over the whole curve. Later positions are
    expected to be like the last ones.

    If a rejection makes the target decode the accepted tokens again (r = 1, else 0), V(m) is less
    by lambda r sum_{k<m} (S_k - S_{k+1}) T(k+1).
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
        whole: bool = False,
    ) -> None:
        """Plan one round.

        Args:
            calibration: from confidence to acceptance, for this drafter.
            times: T(n) at index n, up to the longest draft plus one, in any unit of time.
            step: one draft pass, in the same unit.
            rate: lambda, tokens per unit of time.
            drafter: the name of the drafter.
            rereads: r, how often a rejection makes the target decode the accepted tokens again.
            copying: the prices of tokens copied after the draft; None if there may be none.
            reads: how many of lookup's tokens the drafter reads first.
            whole: whether the drafter reads all that it lacks of a long text.
        """
        super().__init__(len(times) - 2, drafter, learns=True, reads=reads, whole=whole)
        self.step = step
        self._calibration = calibration
        self._times = times
        # At index n, the least of the times after it.
        self._least = [*accumulate(reversed(times[1:]), min, initial=math.inf)][::-1]
        self._rate = rate
        self._back = rate * rereads  # times T(n): the cost if token n is the first rejected one
        self._step = rate * step  # in tokens
        self._next = calibration.mean  # acceptance expected at the next position
        self._copying = copying
        self._begin()

    def _begin(self) -> None:
        self._drafted = self._kept = 0
        self._chain = self._kept_chain = 1.0  # S_n, and of the tokens that are kept
        self._gain = 1.0  # 1 + S_1 + ... + S_n, less the expected rollback
        self._floor = 1.0 - self._rate * self._times[1]

    @property
    def aim(self) -> int:
        """Tokens wanted so far."""
        return self._drafted

    def wants_pass(self) -> bool:
        """Whether another pass is worth its cost, before its confidence is known."""
        return self.pays(self._step)

    def pays(self, cost: float) -> bool:
        """Whether another pass promises more than it costs, both in tokens."""
        # The worth at the mean confidence is quick to compute and mostly decides.
        sure = self._ahead(self._drafted, self._chain, self._gain, self._next)
        return sure > self._floor + cost or self.promise() > cost

    def promise(self) -> float:
        """The expected worth of another pass in tokens, before its cost."""
        floor, worth, spread = self._floor, 0.0, self._calibration.spread
        for offset in (-spread, spread):
            accepted = min(MOST, max(LEAST, self._next + offset))
            chain, gain, here = self._with(accepted)
            follows = self._calibration.next_after(accepted)
            ahead = self._ahead(self._drafted + 1, chain, gain, follows) - self._step
            worth += max(floor, here, ahead) / 2
        return worth - floor

    def wants_token(self, confidence: float, *, must_verify: bool) -> bool:
        """Whether the token is worth verifying, now that the pass has shown its confidence."""
        accepted = self._calibration.acceptance(confidence)
        follows = self._calibration.next_after(accepted)
        chain, gain, here = self._with(accepted)
        if here <= self._floor:
            ahead = self._ahead(self._drafted + 1, chain, gain, follows) - self._step
            if ahead <= self._floor:
                return False
        self._next = follows
        self._add(chain, gain, here, must_verify=must_verify)
        return True

    def keep(self) -> int:
        """The best prefix, no shorter than what must be verified."""
        return self._kept

    def recount(self, confidences: Sequence[float]) -> None:
        """Find the best prefix of these tokens."""
        self._begin()
        for confidence in confidences:
            self._add(*self._with(self._calibration.acceptance(confidence)))

    def copies(self, confidences: Sequence[float], drafted: int) -> int:
        """As many as are worth more than the time they add to the verify pass."""
        if self._copying is None:
            return 0
        copy = self._copying.best(confidences, drafted, self._kept_chain)
        return copy.length if copy.worth > 0 else 0

    def _add(self, chain: float, gain: float, here: float, *, must_verify: bool = False) -> None:
        """Add a token, after which S, `_gain` and V are these."""
        self._drafted, self._chain, self._gain = self._drafted + 1, chain, gain
        if here > self._floor or must_verify:
            self._floor, self._kept, self._kept_chain = here, self._drafted, chain

    def _with(self, accepted: float) -> tuple[float, float, float]:
        """S, `_gain` and V after one more token with this chance of acceptance."""
        n, before = self._drafted + 1, self._chain
        chain = before * accepted
        gain = self._gain + chain - (before - chain) * self._back * self._times[n]
        return chain, gain, gain - self._rate * self._times[n + 1]

    def _ahead(self, n: int, chain: float, gain: float, chance: float) -> float:
        """The best expected V(m) for m > n, less the cost of the passes after the next one."""
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
            # Even free passes and the cheapest verification could not catch up any more.
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
    """The best draft length at a constant acceptance, and its speed-up over the baseline.

    Args:
        acceptance: of every drafted token, given that those before it were accepted.
        times: T(n) at index n, in seconds.
        step: seconds per drafted token.
        first: seconds that every draft takes in addition, whatever its length.
        rereads: how often a rejection makes the target decode the accepted tokens again.
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


def best_draft(
    acceptance: float,
    times: Sequence[float],
    step: tuple[float, float],
    block: int,
    *,
    rereads: float = 0.0,
) -> tuple[int, float]:
    """The result of `gamma_for` for a drafter whose steps guess up to `block` tokens, or one.

    Args:
        acceptance: as for `gamma_for`.
        times: as there.
        step: seconds of a step, and of one over a block without its guesses; the longer a draft of
            a block is, the nearer its one step comes to the first.
        block: 0 for one token.
        rereads: as there.
    """
    whole, read = step
    if block:
        each = (whole - read) / block
        return gamma_for(acceptance, times[: block + 2], each, first=read, rereads=rereads)
    return gamma_for(acceptance, times, whole, rereads=rereads)
