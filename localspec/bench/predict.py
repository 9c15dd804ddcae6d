"""Predicted speed of each draft length, from measured costs and acceptance. Times in seconds."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from localspec.bench.result import Prediction
from localspec.engine.length.cost import Curve
from localspec.engine.record.stats import Round

LONGEST = 12
_LEAST, _MOST = 2000, 4000  # positions to replay
_BLOCK = 100  # length of a contiguous block of them


@dataclass(frozen=True, slots=True)
class PythonOverhead:
    """Python's seconds in a round: `fixed`, plus `per_token` for every drafted token."""

    fixed: float
    per_token: float

    def of(self, drafted: int) -> float:
        """Seconds of a round that drafts this many tokens."""
        return self.fixed + self.per_token * drafted


@dataclass(frozen=True, slots=True)
class RoundCosts:
    """What a round costs here: decodes of n tokens by each model, and Python's time."""

    target: Curve
    draft: Curve
    python: PythonOverhead


def overhead(rounds: Iterable[Round]) -> PythonOverhead:
    """Fit Python's seconds to the number of drafted tokens, by least squares."""
    points = [(d.drafted, d.total_s - d.draft_s - d.verify_s + d.between_s) for d in rounds]
    if not points:
        return PythonOverhead(0.0, 0.0)
    drafted, seconds = np.array(points, dtype=np.float64).T
    if drafted.min() == drafted.max():
        return PythonOverhead(max(0.0, float(seconds.mean())), 0.0)
    slope, fixed = np.polyfit(drafted, seconds, 1)
    return PythonOverhead(max(0.0, float(fixed)), max(0.0, float(slope)))


def outcomes(rounds: Sequence[Round]) -> list[float]:
    """The chance of acceptance at each position: 1 or 0, as the drafted token was accepted or not.

    A bonus token was not drafted; it gets the mean outcome of the tokens that follow bonus tokens.
    """
    after = [
        later.accepted > 0
        for done, later in pairwise(rounds)
        if 0 < done.drafted == done.accepted and later.drafted
    ]
    bonus = sum(after) / len(after) if after else 1.0
    found: list[float] = []
    for done in rounds:
        found += [1.0] * done.accepted
        if done.drafted:
            found.append(0.0 if done.accepted < done.drafted else bonus)
    return found


def predictions(costs: RoundCosts, rounds: Sequence[Round]) -> list[Prediction]:
    """Predict every draft length from 0 to `LONGEST` by a replay of the outcomes in `rounds`."""
    alone = costs.target.seconds(1)
    baseline = 1 / (alone + costs.python.of(0))
    found = [Prediction(0, 1.0, baseline, 1.0, 1.0)]
    text = _typical(outcomes(rounds) or [0.0])
    for gamma in range(1, LONGEST + 1):
        n, seconds = _replayed(gamma, text, costs)
        speed = len(text) / seconds
        roof = (gamma + 1) * alone / costs.target.seconds(gamma + 1)
        found.append(Prediction(gamma, len(text) / n, speed, speed / baseline, roof))
    return found


def _replayed(gamma: int, text: Sequence[float], costs: RoundCosts) -> tuple[int, float]:
    """Rounds and seconds for `text` with drafts of `gamma` tokens; the first round drafts nothing.

    Outcomes are drawn once per position from a fixed seed: every length meets the same ones.
    """
    luck = random.Random(0)  # noqa: S311 - no secrets
    accepted = [luck.random() < chance for chance in text]
    at = rounds = read = 0  # `read`: tokens in the draft's cache
    seconds = 0.0
    while at < len(text):
        n = min(gamma, len(text) - at - 1) if at else 0
        stay = next((i for i in range(n) if not accepted[at + i]), n)
        if n:
            seconds += costs.draft.seconds(max(1, at - read)) + (n - 1) * costs.draft.seconds(1)
            read = at + min(stay, n - 1)
        seconds += costs.target.seconds(n + 1) + costs.python.of(n)
        at += stay + 1
        rounds += 1
    return rounds, seconds


def _typical(text: list[float]) -> list[float]:
    """Blocks from all over a long `text`, to save time; a short one repeated, to make ends rare."""
    if len(text) <= _MOST:
        return text * -(-_LEAST // len(text))
    starts = np.linspace(0, len(text) - _BLOCK, _MOST // _BLOCK).astype(int)
    return [place for start in starts for place in text[start : start + _BLOCK]]
