"""How likely a drafted token is accepted, given how sure the draft was of it.

A leaf: plain numbers in, plain numbers out, no clock.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

# All of these were chosen in benchmarks/gamma_simulate.py, by the speed on average.
_BASE, _SLOPE = 0.1, 0.85  # what a draft of ordinary quality does: about as good as it says
_DOUBT = 0.5  # of an observation, which either of these is worth to begin with
_KEEP = 0.98  # one counts half after 34 more: texts differ in how well a draft judges itself
LEAST, MOST = 0.005, 0.99
"""No position is expected to be less sure or surer than that."""

_RATE = 0.06  # of the mean, by which code is told from prose: it forgets faster
_START = 0.7  # what it begins with
_SPREAD = 0.2  # how far positions are off it, to begin with
_PERSISTENCE = 0.4  # of what sets one position apart from the mean, at the next


class Calibration:
    """A straight line from a draft's confidence to the chance of being accepted.

    By least squares, older observations counting less. It learns from the acceptance
    *probabilities* that the rules can tell after a verify pass (the target's probability of the
    drafted token, or the overlap of both distributions), which say more than whether the token was
    in fact accepted. Positions after the first rejection were never judged: whoever calls `learn`
    leaves them out.

    Attributes:
        mean: acceptance of the positions judged lately, whatever the confidence.
        seen: positions judged so far.
    """

    def __init__(self) -> None:
        """Start from the prior."""
        self.mean, self._variance = _START, _SPREAD**2
        self.seen = 0
        self._base, self._slope = _BASE, _SLOPE
        self._sums = 0.0, 0.0, 0.0  # observations, their confidences, the squares of these

    @property
    def spread(self) -> float:
        """How far off `mean` positions looked at lately were expected to be: a root mean square."""
        return math.sqrt(self._variance)

    def acceptance(self, confidence: float) -> float:
        """The chance that a token proposed with this confidence is accepted."""
        return min(MOST, max(LEAST, self._base + self._slope * confidence))

    def next_after(self, acceptance: float) -> float:
        """The chance to expect at the position that follows one with this chance."""
        return self.mean + _PERSISTENCE * (acceptance - self.mean)

    def learn(self, confidences: Sequence[float], chances: Sequence[float]) -> None:
        """Take note of judged positions.

        Args:
            confidences: of every position that the draft looked at, in order.
            chances: acceptance probabilities of the positions that were judged: as many, or
                fewer where a rejection came first.
        """
        if not chances:
            return
        for confidence, chance in zip(confidences, chances, strict=False):
            off = self.acceptance(confidence) - self.mean
            self._variance += (1 - _KEEP) * (off * off - self._variance)
            self._fit(confidence, chance)
            # The first few count more, so that a start which is wrong does not linger.
            self.seen += 1
            self.mean += max(_RATE, 1 / (self.seen + 2)) * (chance - self.mean)

    def _fit(self, confidence: float, chance: float) -> None:
        """Least squares, one observation after the other: the line as it was is the prior."""
        count, first, second = (_KEEP * each for each in self._sums)
        self._sums = count, first, second = count + 1, first + confidence, second + confidence**2
        off = chance - self._base - self._slope * confidence
        step = off / ((count + _DOUBT) * (second + _DOUBT) - first * first)
        self._base += step * (second + _DOUBT - first * confidence)
        self._slope = max(0.0, self._slope + step * ((count + _DOUBT) * confidence - first))
