"""Means of ratios with their intervals. Ratios are averaged as logarithms: geometric means."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

DRAWS = 4000
_LOW, _HIGH = 2.5, 97.5


@dataclass(frozen=True, slots=True)
class Interval:
    """A ratio and its 95 % interval; without one where there is too little to tell.

    Attributes:
        value: the geometric mean.
        low, high: the interval's ends.
    """

    value: float
    low: float | None = None
    high: float | None = None

    @property
    def above_one(self) -> bool:
        """Whether all of the interval lies above 1."""
        return self.low is not None and self.low > 1

    @property
    def below_one(self) -> bool:
        """Whether all of the interval lies below 1."""
        return self.high is not None and self.high < 1

    @property
    def width(self) -> float:
        """The interval's width as a share of the value; infinite where there is none."""
        if self.low is None or self.high is None:
            return math.inf
        return (self.high - self.low) / self.value


def geometric_mean(values: Sequence[float]) -> float | None:
    """Of positive values; None of no values."""
    return math.exp(sum(map(math.log, values)) / len(values)) if values else None


def interval(groups: Mapping[str, Sequence[float]], *, seed: int = 1) -> Interval | None:
    """The mean over kinds of the mean over each kind's prompts, with a bootstrap over prompts.

    Kinds are what they are: prompts are drawn anew within each kind. Where a kind has a single
    prompt nothing can be drawn within it, and prompts are drawn from all kinds together. What is
    drawn is stretched by sqrt(n / (n - 1)): a bootstrap of few values is too narrow by that
    (Efron and Tibshirani, An Introduction to the Bootstrap, chapter 5.3).

    Args:
        groups: kind to the ratios of its prompts, all positive.
        seed: of the draws, so that the same figures give the same interval.

    Returns:
        None where there are no values at all.
    """
    logs = [np.log(np.asarray(values, dtype=np.float64)) for values in groups.values() if values]
    if not logs:
        return None
    mean = float(np.mean([group.mean() for group in logs]))
    if min(len(group) for group in logs) < 2:
        logs = [np.concatenate(logs)]
    if len(logs[0]) < 2:
        return Interval(math.exp(mean))
    random = np.random.default_rng(seed)
    drawn = np.mean([_draw(group, random) for group in logs], axis=0)
    low, high = np.percentile(drawn, (_LOW, _HIGH))
    return Interval(math.exp(mean), math.exp(mean + float(low)), math.exp(mean + float(high)))


def _draw(logs: NDArray[np.float64], random: np.random.Generator) -> NDArray[np.float64]:
    """How far the mean of a drawn sample lies from the mean; `DRAWS` times."""
    n = len(logs)
    off = (logs - logs.mean()) * math.sqrt(n / (n - 1))
    means: NDArray[np.float64] = off[random.integers(0, n, (DRAWS, n))].mean(axis=1)
    return means
