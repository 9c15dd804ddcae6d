"""What the measured costs and the acceptance promise for each draft length. Times in seconds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from localspec.engine.cost import Curve
from localspec.engine.stats import Round

LONGEST = 12
_ENOUGH = 20  # judged positions, below which a position gets the mean acceptance


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


def acceptances(rounds: Iterable[Round], longest: int = LONGEST) -> list[float]:
    """The chance that drafted token k is accepted if those before it were, for k = 1 ... longest.

    What few rounds got to has the mean of all positions.
    """
    tried, passed = [0] * (longest + 1), [0] * (longest + 1)
    for done in rounds:
        for k in range(1, min(done.drafted, done.accepted + 1, longest) + 1):
            tried[k] += 1
            passed[k] += done.accepted >= k
    mean = sum(passed) / sum(tried) if sum(tried) else 0.0
    return [passed[k] / tried[k] if tried[k] >= _ENOUGH else mean for k in range(1, longest + 1)]


def predictions(costs: Costs, accepted: Sequence[float]) -> list[Prediction]:
    """Every draft length from 0 up, as far as `accepted` goes; 0 alone without a draft."""
    alone = costs.target.seconds(1)
    plain = 1 / (alone + costs.python.of(0))
    found = [Prediction(0, 1.0, plain, 1.0, 1.0)]
    if costs.draft is None:
        return found
    chain, tokens = 1.0, 1.0
    for gamma, chance in enumerate(accepted, 1):
        chain *= chance
        tokens += chain
        # After full acceptance the draft reads two tokens: its own last one, and the bonus.
        first = chain * costs.draft.seconds(2) + (1 - chain) * costs.draft.seconds(1)
        drafting = first + (gamma - 1) * costs.draft.seconds(1)
        seconds = drafting + costs.target.seconds(gamma + 1) + costs.python.of(gamma)
        speed = tokens / seconds
        roof = (gamma + 1) * alone / costs.target.seconds(gamma + 1)
        found.append(Prediction(gamma, tokens, speed, speed / plain, roof))
    return found
