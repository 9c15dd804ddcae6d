"""What copied tokens are worth in a round: how many of them, and whether at all.

A leaf: it sees confidences and costs, never a clock, a model or a token.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from localspec.engine.length.calibration import Calibration

if TYPE_CHECKING:  # numpy, which lists have no use for
    from localspec.engine.length.cost import Curve

# Nobody knows yet whether what repeats here goes on to do so, and it is found out for nothing: a
# copy has at most so many tokens for every position that was judged; of other answers LENT count.
_TRUSTED = 4

COPIES_KEEP = 0.75
"""What a copy that was judged still counts a round later.

A text stops repeating at once: where copies of forty tokens went wrong from then on, 95 tokens
were written at a quarter of plain decoding's speed with 0.98 a token. From 0.6 to 0.8 nothing is
lost elsewhere (docs/measurements/README.md).
"""

LENT = 2
"""Positions for which all that was judged in other texts counts, where a copy's length is limited.

The first copy of an answer that goes wrong costs a round or two by that, and not eight.
"""

# A model's decodes are timed with one row of logits. With a row for every token, what a token adds
# was 1.2 to 1.8 times as much with the toy's draft; its output matrix is half of that model.
_ROWS = 1.4


class Copy(NamedTuple):
    """So many copied tokens, and what they are worth in tokens."""

    length: int = 0
    worth: float = 0.0


class Copying(NamedTuple):
    """One round's prices of copied tokens, which cost nothing but their verification.

    Attributes:
        begins: from lookup's confidence to acceptance, of a copy's first token: what repeats in one
            text goes on, in another it does not.
        goes_on: the same of its other tokens, each given those before it.
        times: T(n) at index n, up to the longest draft and one more, in any unit.
        rate: lambda, tokens per unit.
        going: the same while there is something to copy, by which its length is chosen: a copy that
            is cut short goes on in the next round, so that what a token is worth is less time.
        rereads: seconds of going back over those of a decode (see `StoppingPlan`).
    """

    begins: Calibration
    goes_on: Calibration
    times: Sequence[float]
    rate: float
    going: float
    rereads: float = 0.0

    def best(self, confidences: Sequence[float], drafted: int = 0, chain: float = 1.0) -> Copy:
        """The best number of copied tokens behind `drafted` ones, which all stay by chance `chain`.

        It maximises sum_{k<=m} S_k - going (T(drafted + m + 1) - T(drafted + 1)), S_k the chance
        that all before and k copied ones are accepted.
        """
        times, acceptance = self.times, self.begins.acceptance
        plain, gain, spent = times[drafted + 1], 0.0, 0.0
        best, highest = Copy(), 0.0
        judged = sum(each.seen for each in {self.begins, self.goes_on})
        most = min(len(times) - 2 - drafted, _TRUSTED * judged)
        for m, confidence in enumerate(confidences[:most], 1):
            before, chain = chain, chain * acceptance(confidence)
            acceptance = self.goes_on.acceptance
            gain += chain
            spent += (before - chain) * self.rereads * times[drafted + m]
            seconds = spent + times[drafted + m + 1] - plain
            if gain - self.going * seconds > highest:
                highest = gain - self.going * seconds
                best = Copy(m, gain - self.rate * seconds)
        return best


def reading(
    agreement: Calibration, confidences: Sequence[float], curve: Curve, pending: int
) -> tuple[int, float]:
    """How many copied tokens a model should read before it drafts, and the seconds that saves.

    It maximises c(1) sum_{j<=k} A_j - r (c(L + k) - c(L)), with c the model's decodes, L its
    pending tokens, A_j the chance that it drafts the first j and goes on (then that pass has been
    made), and r what a row of logits for each token adds.

    Args:
        agreement: from lookup's confidence to the chance that the model says the same and goes on.
        confidences: of the copied tokens.
        curve: c.
        pending: L, tokens that the model has to read first.
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
