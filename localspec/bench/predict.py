"""What the measured costs and the acceptance promise for each draft length. Times in seconds."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from localspec.bench.result import Prediction
from localspec.engine.length.cost import Curve
from localspec.engine.stats import Round

LONGEST = 12
_LEAST, _MOST, _BLOCK = 2000, 4000, 100  # positions to replay; neighbours that stay together


@dataclass(frozen=True, slots=True)
class Overhead:
    """Python's seconds in a round: `fixed`, and `per_token` for every drafted token."""

    fixed: float
    per_token: float

    def of(self, drafted: int) -> float:
        """A round that drafts so many tokens."""
        return self.fixed + self.per_token * drafted


@dataclass(frozen=True, slots=True)
class RoundCosts:
    """What a round is made of on this machine.

    Attributes:
        target: T(n).
        draft: the draft's decodes of n tokens.
        python: what comes on top.
    """

    target: Curve
    draft: Curve
    python: Overhead


def overhead(rounds: Iterable[Round]) -> Overhead:
    """Fit Python's share of rounds of several draft lengths, by least squares."""
    points = [(d.drafted, d.total_s - d.draft_s - d.verify_s + d.between_s) for d in rounds]
    if not points:
        return Overhead(0.0, 0.0)
    drafted, seconds = np.array(points, dtype=np.float64).T
    if drafted.min() == drafted.max():
        return Overhead(max(0.0, float(seconds.mean())), 0.0)
    slope, fixed = np.polyfit(drafted, seconds, 1)
    return Overhead(max(0.0, float(fixed)), max(0.0, float(slope)))


def outcomes(rounds: Sequence[Round]) -> list[float]:
    """The chance to be accepted of what was drafted, token by token: it was, or it was not.

    The bonus token after full acceptance was not judged: its chance is that of the token after it.
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
    """Every draft length from 0 to `LONGEST`, replayed over what `rounds` saw."""
    alone = costs.target.seconds(1)
    plain = 1 / (alone + costs.python.of(0))
    found = [Prediction(0, 1.0, plain, 1.0, 1.0)]
    text = _typical(outcomes(rounds) or [0.0])
    for gamma in range(1, LONGEST + 1):
        n, seconds = _replayed(gamma, text, costs)
        speed = len(text) / seconds
        roof = (gamma + 1) * alone / costs.target.seconds(gamma + 1)
        found.append(Prediction(gamma, len(text) / n, speed, speed / plain, roof))
    return found


def _replayed(gamma: int, text: Sequence[float], costs: RoundCosts) -> tuple[int, float]:
    """Rounds and seconds for `text` with drafts of `gamma` tokens, the first round a plain one.

    Luck is drawn once per position, so that every length meets the same.
    """
    luck = random.Random(0)  # noqa: S311 - luck, not secrets
    accepted = [luck.random() < chance for chance in text]
    at = rounds = read = 0  # `read` is what the draft's cache holds
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
    """As much of `text` as is replayed in a moment; a short one often enough to have no ends."""
    if len(text) <= _MOST:
        return text * -(-_LEAST // len(text))
    starts = np.linspace(0, len(text) - _BLOCK, _MOST // _BLOCK).astype(int)
    return [place for start in starts for place in text[start : start + _BLOCK]]
