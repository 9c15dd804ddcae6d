"""What copied tokens are worth in a round: how many of them, and whether at all.

A leaf: it sees confidences and costs, never a clock, a model or a token.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from localspec.engine.length.calibration import Calibration

if TYPE_CHECKING:  # numpy, which lists have no use for
    from localspec.engine.length.cost import Curve

# The prior of E and R below, and the weight that a round's tokens keep one judged round later.
# Fitted to real models' answers (docs/measurements/lookup.md).
_ENDED, _RISKED, _KEEP = 3.0, 1.5, 0.9

_NOTHING = 1e-300  # a chance whose logarithm is finite

# Tokens that a model reads for every position at which it was seen to agree.
_TRUSTED = 4

# A model's decodes are timed with one row of logits. With a row for every token, what a token adds
# was 1.2 to 1.8 times as much with the toy's draft; its output matrix is half of that model.
_ROWS = 1.4


class Copy(NamedTuple):
    """So many copied tokens, and what they are worth in tokens."""

    length: int = 0
    worth: float = 0.0


class Survival:
    """Learns how long copies last in a text.

    Lookup's confidence c in a copied token gives the risk -log c that the copy ends there, times a
    factor of the text. The factor has a gamma distribution: with E ends seen at a total risk
    of R, the first k tokens of a copy, whose risks add up to r, all stay with the probability

        S_k = (R / (R + r))^E,

    the mean over that distribution. So a copy is long only in a text whose copies were long, and a
    few tokens that stayed do not prove that.
    """

    def __init__(self) -> None:
        """Start from what most texts do."""
        self._ended, self._risked = _ENDED, _RISKED

    def learn(self, confidences: Sequence[float], chances: Sequence[float]) -> None:
        """Take note of a round's judged tokens, up to the first that was another one."""
        if not chances:
            return
        *stayed, last = map(_risk, confidences[: len(chances)])
        ended = len(chances) - sum(chances)
        # A copy ends before all of its last token's risk was run. The part that was run is the mean
        # of an exponential distribution that is cut off at that risk.
        rate = self._ended / self._risked
        until = 1 / rate - last / math.expm1(min(50.0, rate * last))
        self._ended = _KEEP * self._ended + ended
        self._risked = _KEEP * self._risked + sum(stayed) + last + ended * (until - last)

    def chances(self, confidences: Sequence[float]) -> Iterator[float]:
        """S_k for k = 1, 2, ...: that the first k tokens stay."""
        kept, ended, risked = 1.0, -self._ended, self._risked
        for confidence in confidences:
            kept *= confidence
            yield float((1.0 - math.log(max(_NOTHING, kept)) / risked) ** ended)


def _risk(confidence: float) -> float:
    """No token is sure to stay, nor sure to go."""
    return -math.log(min(0.999, max(0.005, confidence)))


class Copying(NamedTuple):
    """One round's prices of copied tokens, which cost nothing but their verification.

    Attributes:
        survival: of copies in this text.
        times: T(n) at index n, up to the longest draft and one more, in any unit.
        rate: lambda, tokens per unit.
        going: the same while there is something to copy, by which its length is chosen: a copy that
            is cut short goes on in the next round, so that what a token is worth is less time.
        stake: what copied tokens may cost at most, in that unit.
        rereads: seconds of going back over those of a decode (see `StoppingPlan`).
    """

    survival: Survival
    times: Sequence[float]
    rate: float
    going: float
    stake: float = math.inf
    rereads: float = 0.0

    def best(self, confidences: Sequence[float], drafted: int = 0, chain: float = 1.0) -> Copy:
        """The best number of copied tokens after `drafted` ones, which all stay by chance `chain`.

        It maximises sum_{k<=m} S_k - going (T(drafted + m + 1) - T(drafted + 1)), S_k the chance
        that all before and k copied ones are accepted.
        """
        times, going = self.times, self.going
        plain, gain, spent = times[drafted + 1], 0.0, 0.0
        best, highest, stays = Copy(), 0.0, chain
        most = bisect_right(times, plain + self.stake, drafted + 1) - drafted - 2
        copied = confidences[:most]
        for m, survives in enumerate(self.survival.chances(copied), 1):
            before, stays = stays, chain * survives
            gain += stays
            spent += (before - stays) * self.rereads * times[drafted + m]
            seconds = spent + times[drafted + m + 1] - plain
            value = gain - going * seconds
            if value > highest:
                highest, best = value, Copy(m, gain - self.rate * seconds)
            # The rest cannot make up for it, even if it stays as surely and costs nothing.
            if value + (len(copied) - m) * stays <= highest:
                break
        return best


def reading(
    agreement: Calibration, confidences: Sequence[float], curve: Curve, lag: int
) -> tuple[int, float]:
    """How many copied tokens a model should read before it drafts, and the seconds that saves.

    It maximises c(1) sum_{j<=k} A_j - r (c(L + k) - c(L)), c the model's decodes, L its lag, A_j
    the chance that it drafts the first j and goes on (then that pass has been made), and r what a
    row of logits for each token adds.

    Args:
        agreement: from lookup's confidence to the chance that the model says the same and goes on.
        confidences: of the copied tokens.
        curve: c.
        lag: L.
    """
    step, read = curve.seconds(1), curve.seconds(lag)
    chain, passes, best = 1.0, 0.0, (0, 0.0)
    for k, confidence in enumerate(confidences[: _TRUSTED * agreement.seen], 1):
        chain *= agreement.acceptance(confidence)
        passes += chain
        saved = step * passes - _ROWS * (curve.seconds(lag + k) - read)
        if saved > best[1]:
            best = k, saved
    return best
