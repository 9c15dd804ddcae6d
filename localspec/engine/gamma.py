"""How many tokens to draft in the next round."""

from __future__ import annotations

from typing import Protocol

from localspec.engine.stats import Round


class GammaPolicy(Protocol):
    """Chooses gamma before every round, and sees what came of it."""

    def choose(self) -> int:
        """The draft length of the next round; 0 is plain decoding."""
        ...

    def observe(self, done: Round) -> None:
        """Learn from a finished round."""
        ...


class FixedGamma:
    """Always the same draft length.

    `gamma` may be set from another thread between rounds: 0 switches speculation off.
    """

    def __init__(self, gamma: int) -> None:
        self.gamma = gamma

    def choose(self) -> int:
        """The fixed draft length."""
        return self.gamma

    def observe(self, done: Round) -> None:
        """A fixed length learns nothing."""
