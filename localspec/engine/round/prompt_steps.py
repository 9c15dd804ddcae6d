"""How many tokens of a prompt a pass reads, so that its progress is seen every second."""

from __future__ import annotations

from typing import Final

_STEP_S: Final = 0.5  # half a second, so that a machine that turns busy still ends a pass in one
_FIRST: Final = 64
_FEWEST: Final = 8


class PromptSteps:
    """Chooses the passes over a prompt: the largest power of two that takes half a second at most.

    Longer passes take less time for each token, but nothing shows until one has ended.

    Args:
        most: tokens that fit in a pass.

    Attributes:
        size: tokens of the next pass.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self.size = min(_FIRST, most)

    def took(self, n: int, seconds: float) -> None:
        """Learn from a pass over `n` tokens of a prompt.

        The rest of a prompt is left out: for each token, short passes take longer.
        """
        if n >= min(self.size, _FIRST):
            self.expect(n, seconds)

    def expect(self, n: int, seconds: float) -> None:
        """Choose the size for passes that take `seconds` for every `n` tokens."""
        fitting = n * _STEP_S / max(seconds, 1e-9)
        size = _FEWEST
        while 2 * size <= min(fitting, self._most):
            size *= 2
        self.size = size if 2 * size <= self._most else self._most
