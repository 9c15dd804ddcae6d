"""The chance that a drafted token is accepted, given the drafter's confidence in it.

A leaf: plain numbers in, plain numbers out, no clock.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

# All values were chosen in benchmarks/gamma_simulate.py, by the mean speed.
_BASE, _SLOPE = 0.1, 0.85  # the prior: a usual draft is about as good as its confidence
_DOUBT = 0.5  # the prior's weight, in observations
_KEEP = 0.98  # an observation counts half after 34 more, since texts differ
LEAST, MOST = 0.005, 0.99
"""The limits of an expected acceptance."""

_RATE = 0.06  # of the mean, which forgets faster, as it tells code from prose
_START = 0.7  # the mean at the start
_SPREAD = 0.2  # the root mean square deviation from it at the start
_PERSISTENCE = 0.4  # how much of a position's deviation from the mean the next one shares


class Calibration:
    """A straight line from a drafter's confidence to the chance of acceptance.

    It is fitted by least squares, with less weight for older observations. Observations are the
    acceptance *probabilities* that a rule knows after a verify pass (the target's probability of
    the drafted token, or the overlap of both distributions): they say more than the outcome.
    Positions after the first rejection were not tested, so callers of `learn` leave them out.

    Attributes:
        mean: acceptance of the recently tested positions, whatever the confidence.
        seen: positions tested so far.
    """

    def __init__(self) -> None:
        """Start from the prior."""
        self.mean, self._variance = _START, _SPREAD**2
        self.seen = 0
        self._base, self._slope = _BASE, _SLOPE
        self._sums = 0.0, 0.0, 0.0  # observations, their confidences, the squares of these

    @property
    def spread(self) -> float:
        """Root mean square deviation of the expected acceptance from `mean`, lately."""
        return math.sqrt(self._variance)

    def acceptance(self, confidence: float) -> float:
        """The chance that a token proposed with this confidence is accepted."""
        return min(MOST, max(LEAST, self._base + self._slope * confidence))

    def next_after(self, acceptance: float) -> float:
        """The expected acceptance at the position after one with this acceptance."""
        return self.mean + _PERSISTENCE * (acceptance - self.mean)

    def learn(self, confidences: Sequence[float], chances: Sequence[float]) -> None:
        """Learn from tested positions.

        Args:
            confidences: the drafter's confidence at every position, in order.
            chances: acceptance probabilities of the tested positions, up to the first rejection.
        """
        for confidence, chance in zip(confidences, chances, strict=False):
            off = self.acceptance(confidence) - self.mean
            self._variance += (1 - _KEEP) * (off * off - self._variance)
            self._fit(confidence, chance)
            # The first observations count more, so that a wrong start is soon forgotten.
            self.seen += 1
            self.mean += max(_RATE, 1 / (self.seen + 2)) * (chance - self.mean)

    def _fit(self, confidence: float, chance: float) -> None:
        """One step of recursive least squares, with the present line as the prior."""
        count, first, second = (_KEEP * each for each in self._sums)
        self._sums = count, first, second = count + 1, first + confidence, second + confidence**2
        off = chance - self._base - self._slope * confidence
        step = off / ((count + _DOUBT) * (second + _DOUBT) - first * first)
        self._base += step * (second + _DOUBT - first * confidence)
        self._slope = max(0.0, self._slope + step * ((count + _DOUBT) * confidence - first))
