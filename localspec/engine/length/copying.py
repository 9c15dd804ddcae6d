"""How many copied tokens are worth verifying in a round.

A leaf: it sees confidences and costs, never a clock, a model or a token.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from localspec.engine.length.calibration import Calibration

if TYPE_CHECKING:  # it imports numpy, which lists of pairs do without
    from localspec.engine.length.cost import Curve

# The prior of E and R below, and the factor by which a round's weight decays with each later one.
# Fitted to answers of real models (docs/measurements/lookup.md).
_ENDED, _RISKED, _KEEP = 3.0, 1.5, 0.9

_NOTHING = 1e-300  # a chance whose logarithm is finite
_LOW = 1e-6  # a rate of ends below which the difference of two large numbers would be noise

# Copied tokens that a model may read per position at which its agreement was observed.
_TRUSTED = 4

# A draft's decodes are timed with one row of logits. With a row for every token, a further token
# cost 1.2 to 1.8 times as much for the toy's draft, half of whose weights are the output matrix.
_ROWS = 1.4


class Copy(NamedTuple):
    """A number of copied tokens, and their expected gain in tokens."""

    length: int = 0
    worth: float = 0.0


class Survival:
    """Learns how long copies last in a text.

    The risk that a copy ends at a token is -log c, with lookup's confidence c, times a factor of
    the text. The factor has a gamma distribution. After E ends at a total risk of R, the first k
    tokens of a copy, whose risks add up to r, all stay with the probability

        S_k = (R / (R + r))^E,

    the mean over that distribution. So long copies are expected only in a text whose copies were
    long, which a few tokens do not prove.
    """

    def __init__(self) -> None:
        """Start from the prior of usual texts."""
        self._ended, self._risked = _ENDED, _RISKED

    def learn(self, confidences: Sequence[float], chances: Sequence[float]) -> None:
        """Learn from a round's tested tokens, up to and including the first wrong one."""
        if not chances:
            return
        *stayed, last = map(_risk, confidences[: len(chances)])
        ended = len(chances) - sum(chances)
        # A copy that ends has used up only a part of its last token's risk: on average the mean of
        # an exponential distribution truncated at that risk, which is half of it at a low rate.
        rate = self._ended / self._risked
        until = last / 2
        if rate > _LOW:
            until = 1 / rate - last / math.expm1(min(50.0, rate * last))
        # More than one end may be expected of tokens that stayed by luck, but the share of the last
        # one that stayed is at least 0.
        self._ended = _KEEP * self._ended + ended
        self._risked = (
            _KEEP * self._risked + sum(stayed) + max(0.0, 1 - ended) * last + ended * until
        )

    def chances(self, confidences: Sequence[float]) -> Iterator[float]:
        """S_k for k = 1, 2, ...: that the first k tokens stay."""
        kept, ended, risked = 1.0, -self._ended, self._risked
        for confidence in confidences:
            kept *= confidence
            yield float((1.0 - math.log(max(_NOTHING, kept)) / risked) ** ended)


def _risk(confidence: float) -> float:
    """The risk -log c, with c kept away from 0 and 1."""
    return -math.log(min(0.999, max(0.005, confidence)))


class Copying(NamedTuple):
    """One round's prices of copied tokens, which cost only their verification.

    Attributes:
        survival: how long copies last in this text.
        times: T(n) at index n, up to the longest draft plus one, in any unit of time.
        least: at index n at most the least of T(n) and all after it: T is jagged.
        rate: lambda, tokens per unit of time.
        stake: the most time that copied tokens may cost; below 0 nothing may be copied.
        rereads: as for `StoppingPlan`.
    """

    survival: Survival
    times: Sequence[float]
    least: Sequence[float]
    rate: float
    stake: float = math.inf
    rereads: float = 0.0

    def best(self, confidences: Sequence[float], drafted: int = 0, chain: float = 1.0) -> Copy:
        """The best number of copied tokens to add to a draft.

        A copy that is cut short continues in the next round. So the best length m is that of the
        fastest round, in which (E + sum_{k<=m} S_k) / T(drafted + m + 1) is greatest. S_k is the
        chance that all drafted and k copied tokens are accepted. E = 1 + drafted * chain tokens, at
        least, are expected without copies. What the copy is worth is counted at `rate`.

        Args:
            confidences: lookup's, in the tokens that may be copied.
            drafted: tokens of the draft.
            chain: the chance that all of them are accepted.
        """
        times, least = self.times, self.least
        baseline, gain, spent, stays = times[drafted + 1], 0.0, 0.0, chain
        own = 1.0 + drafted * chain
        best, fastest = Copy(), own / baseline
        dearest = baseline * (1 - self.rereads) + self.stake  # if all copied tokens are wrong
        most = bisect_right(least, dearest, drafted + 1, len(times)) - drafted - 2
        copied = confidences[: max(0, most)]
        for m, survives in enumerate(self.survival.chances(copied), 1):
            n, before, stays = drafted + m + 1, stays, chain * survives
            gain += stays
            spent += (before - stays) * self.rereads * times[n - 1]
            speed = (own + gain) / (times[n] + spent)
            if speed > fastest and times[n] <= dearest:
                fastest = speed
                best = Copy(m, gain - self.rate * (times[n] + spent - baseline))
            # Stop if the rest could not catch up even if it took the least time and were as sure.
            if own + gain + (len(copied) - m) * stays <= fastest * least[n]:
                break
        return best


def reading(
    agreement: Calibration, confidences: Sequence[float], curve: Curve, pending: int
) -> tuple[int, float]:
    """How many copied tokens a model should read before it drafts, and the seconds that saves.

    It maximises c(1) sum_{j<=k} A_j - r (c(L + k) - c(L)). A_j is the chance that the model would
    draft the first j tokens and go on, so that their passes are saved; r is the extra cost of a row
    of logits for each token.

    Args:
        agreement: from lookup's confidence to the chance that the model drafts the same and goes
            on.
        confidences: of the copied tokens.
        curve: c, seconds of the model's decodes.
        pending: L, tokens that the model has to read anyway.
    """
    step, read = curve.seconds(1), curve.seconds(pending)
    chain, passes, best = 1.0, 0.0, (0, 0.0)
    for k, confidence in enumerate(confidences[: _TRUSTED * agreement.seen], 1):
        chain *= agreement.acceptance(confidence)
        passes += chain
        saved = step * passes - _ROWS * (curve.seconds(pending + k) - read)
        if saved > best[1]:
            best = k, saved
    return best
