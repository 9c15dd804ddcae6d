"""How many tokens of a prompt a pass reads, and how long the rest of the prompt takes."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from typing import Final

from localspec.engine.length.cost import PAUSE, PAUSE_S, ModelCosts

_STEP_S: Final = 0.8  # below a second, as the machine may turn busy
# Kernels are fastest for multiples of it. In passes of 8, a token of a model with 1.5 billion
# parameters took 1.4 times as long, so that very slow machines read in steps of more than a second.
_UNIT: Final = 16
_LATELY_S: Final = 4.0  # the passes of these seconds tell the present speed
_TRUSTED_S: Final = 2.0  # of passes, before which the time left may be far off
_MEASURED: Final = 32  # tokens of the longest pass that most machines measure
_DEEP: Final = 1024  # tokens of context at which they measure it again

_GROWTH: Final = 0.0002
"""The share by which each token of context lengthens the time of a token, where that was not
measured. Seen on two cores: 0.0003 with 1.5 billion parameters, 0.0007 with 135 million."""


class PromptSteps:
    """Chooses passes over a prompt that take up to eight tenths of a second; pure, without a clock.

    Longer passes take less time for each token, but nothing shows until one has ended.

    Args:
        most: tokens that fit in a pass.
    """

    def __init__(self, most: int) -> None:
        self._most, self._least = most, min(_UNIT, most)
        self._token_s: float | None = None  # seconds of a token in the latest pass
        self._depth = 0  # tokens of context at which that was
        self._growth = _GROWTH
        self._paused = False  # whether the latest pass seems to have been interrupted
        self.begin()

    def expect(self, costs: ModelCosts) -> None:
        """Start from measured costs: passes over a prompt take at most as long for each token."""
        short, deep = (costs.at(context).seconds(_MEASURED) for context in (0, _DEEP))
        self._token_s, self._depth = short / _MEASURED, 0
        if costs.deep:
            self._growth = max(0.0, deep / short - 1) / _DEEP

    def begin(self) -> None:
        """Start a prompt; what the one before it taught stays."""
        self._slope = _Slope(self._growth)
        self._lately: deque[tuple[int, int, float]] = deque()  # depth, tokens and seconds of passes
        self._lately_s = self._read_s = 0.0

    def size(self, context: int) -> int:
        """Tokens of the next pass, after `context` tokens; few as long as nothing is known."""
        if self._token_s is None:
            return self._least
        fitting = _STEP_S / self._grown(self._token_s, context - self._depth)
        return min(self._most, max(1, int(fitting / _UNIT)) * _UNIT)

    def shortened(self, step: int, rest: int) -> int:
        """A pass's tokens: `step`, or fewer where the last pass over the `rest` would be short.

        The next prompt may part from this one a few tokens before its end, where a template opens
        an answer in other words than it tells it later.
        """
        last = rest - step
        return step - (self._least - last) if 0 < last < self._least else step

    def took(self, n: int, context: int, seconds: float) -> None:
        """Learn from a pass over `n` tokens after `context` tokens.

        The rest of a prompt is left out: for each token, short passes take longer. So is a pass in
        which the program was suspended, unless the next one takes as long.
        """
        if n < self._least:
            return
        foretold, before = self.seconds(context, n), self._paused
        self._paused = foretold is not None and seconds > PAUSE_S + PAUSE * foretold
        if self._paused and not before:
            return
        self._read_s += seconds
        self._depth, self._token_s = context + n // 2, max(seconds, 1e-9) / n
        self._slope.add(self._depth, self._token_s)
        self._growth = self._slope.growth
        self._lately.append((self._depth, n, seconds))
        self._lately_s += seconds
        while len(self._lately) > 1 and self._lately_s - self._lately[0][2] >= _LATELY_S:
            self._lately_s -= self._lately.popleft()[2]

    def seconds(self, context: int, rest: int) -> float | None:
        """The seconds that `rest` tokens after `context` tokens take; None while unknown.

        The estimate follows the speed of the last seconds, since a machine may become busy, and
        adds what attention to a longer context takes.
        """
        token_s, depth = self._token_s, self._depth
        if token_s is None:
            return None
        if self._lately:
            tokens = sum(n for _, n, _ in self._lately)
            token_s = self._lately_s / tokens
            depth = sum(each * n for each, n, _ in self._lately) // tokens
        return rest * self._grown(token_s, context + rest // 2 - depth)

    @property
    def trusted(self) -> bool:
        """Whether enough of this prompt was read to tell how long the rest takes."""
        return self._read_s >= _TRUSTED_S

    def _grown(self, token_s: float, deeper: int) -> float:
        """Seconds of a token after `deeper` more tokens of context."""
        return token_s * (1 + self._growth * max(0, deeper))


# Two passes in a row may differ by 25 % by attention and chance. What is beyond that comes from
# other programs that begin or end.
_JUMP: Final = 0.25

# Tokens of context by which passes must differ (the root of the sum of squares) for their times to
# count as much as what was known before. Over 500, chance is a small part of a slope.
_APART: Final = 500.0


@dataclass(slots=True)
class _Slope:
    """By which share a token's time grows with each token of context: ridge regression.

    Attributes:
        known: what is known beforehand.
    """

    known: float
    _passes: list[tuple[int, float]] = field(default_factory=list)  # depth, level (a logarithm)
    _last: float = 0.0

    def add(self, depth: int, token_s: float) -> None:
        """Add a pass."""
        before, self._last = self._last, math.log(token_s)
        level = 0.0
        if self._passes:
            level = self._passes[-1][1] + min(_JUMP, max(-_JUMP, self._last - before))
        self._passes.append((depth, level))

    @property
    def growth(self) -> float:
        """The slope, at least 0."""
        middle = sum(depth for depth, _ in self._passes) / len(self._passes)
        apart = sum((depth - middle) ** 2 for depth, _ in self._passes)
        together = sum((depth - middle) * level for depth, level in self._passes)
        return max(0.0, (together + self.known * _APART**2) / (apart + _APART**2))
