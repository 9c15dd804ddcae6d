"""What the measured costs and the acceptance promise for each draft length. Times in seconds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from localspec.engine.length.cost import Curve
from localspec.engine.length.gamma import FixedGamma
from localspec.engine.simulate import Position, World, replay
from localspec.engine.stats import Round

LONGEST = 12
_ACCEPTED, _REJECTED = Position(1.0, 1.0), Position(1.0, 0.0)
_LEAST, _MOST, _BLOCK = 2000, 4000, 100  # positions to replay; neighbours that stay together


@dataclass(frozen=True, slots=True)
class Overhead:
    """Python's seconds in a round: `fixed`, and `per_token` for every drafted token."""

    fixed: float
    per_token: float

    def of(self, drafted: int) -> float:
        """A round that drafts so many tokens."""
        return max(0.0, self.fixed + self.per_token * drafted)


@dataclass(frozen=True, slots=True)
class Costs:
    """What a round is made of on this machine.

    Attributes:
        target: T(n).
        draft: the draft's decodes of n tokens; None without a draft.
        python: what comes on top.
    """

    target: Curve
    draft: Curve | None
    python: Overhead


@dataclass(frozen=True, slots=True)
class Prediction:
    """One draft length.

    Attributes:
        gamma: the draft length.
        tokens_per_round: expected.
        tokens_per_second: expected.
        speedup: over the prediction for plain decoding.
        roofline: the same with a free draft that is always right, and Python for nothing.
    """

    gamma: int
    tokens_per_round: float
    tokens_per_second: float
    speedup: float
    roofline: float


def overhead(rounds: Iterable[Round]) -> Overhead:
    """Fit Python's share of rounds of several draft lengths, by least squares."""
    points = [(d.drafted, d.total_s - d.draft_s - d.verify_s + d.between_s) for d in rounds]
    if not points:
        return Overhead(0.0, 0.0)
    drafted, seconds = np.array(points, dtype=np.float64).T
    if drafted.min() == drafted.max():
        return Overhead(float(seconds.mean()), 0.0)
    slope, fixed = np.polyfit(drafted, seconds, 1)
    return Overhead(max(0.0, float(fixed)), max(0.0, float(slope)))


def outcomes(rounds: Sequence[Round]) -> list[Position]:
    """What was drafted, token by token: accepted, or rejected.

    The bonus token after full acceptance was not judged: its chance is that of the token after it.
    """
    after = [
        later.accepted > 0
        for done, later in pairwise(rounds)
        if 0 < done.drafted == done.accepted and later.drafted
    ]
    bonus = Position(1.0, sum(after) / len(after) if after else 1.0)
    found: list[Position] = []
    for done in rounds:
        found += [_ACCEPTED] * done.accepted
        if done.drafted:
            found.append(_REJECTED if done.accepted < done.drafted else bonus)
    return found


def predictions(costs: Costs, rounds: Sequence[Round], longest: int = LONGEST) -> list[Prediction]:
    """Every draft length from 0 up, replayed over what `rounds` saw; 0 alone without a draft."""
    alone = costs.target.seconds(1)
    plain = 1 / (alone + costs.python.of(0))
    found = [Prediction(0, 1.0, plain, 1.0, 1.0)]
    if costs.draft is None:
        return found
    text = _typical(outcomes(rounds) or [_REJECTED])
    world = World(costs.target, costs.draft)
    for gamma in range(1, longest + 1):
        done = replay(FixedGamma(gamma), text, world)
        python = costs.python.fixed * done.rounds + costs.python.per_token * done.drafted
        speed = done.tokens / (done.seconds + python)
        roof = (gamma + 1) * alone / costs.target.seconds(gamma + 1)
        found.append(Prediction(gamma, done.tokens / done.rounds, speed, speed / plain, roof))
    return found


def _typical(text: list[Position]) -> list[Position]:
    """As much of `text` as is replayed in a moment; a short one often enough to have no ends."""
    if len(text) <= _MOST:
        return text * -(-_LEAST // len(text))
    starts = np.linspace(0, len(text) - _BLOCK, _MOST // _BLOCK).astype(int)
    return [place for start in starts for place in text[start : start + _BLOCK]]
