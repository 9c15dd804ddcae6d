"""How many tokens of a prompt a pass reads, so that its progress is seen every second."""

from __future__ import annotations

from typing import Final

_STEP_S: Final = 0.8  # below a second, as the machine may turn busy
_FIRST: Final = 64
_UNIT: Final = 16  # kernels are fastest for multiples of it


class PromptSteps:
    """Chooses the passes over a prompt, each as long as fits into eight tenths of a second.

    Longer passes take less time for each token, but nothing shows until one has ended.

    Args:
        most: tokens that fit in a pass.

    Attributes:
        size: tokens of the next pass.
        token_s: seconds that a token takes; None while that is unknown.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self.size = min(_FIRST, most)
        self.token_s: float | None = None

    def took(self, n: int, seconds: float) -> None:
        """Learn from a pass over `n` tokens of a prompt.

        The rest of a prompt is left out: for each token, short passes take longer.
        """
        if n >= min(self.size, _FIRST):
            self.expect(n, seconds)

    def expect(self, n: int, seconds: float) -> None:
        """Choose the size for passes that take `seconds` for every `n` tokens."""
        self.token_s = seconds / n
        fitting = n * _STEP_S / max(seconds, 1e-9)
        self.size = min(self._most, max(1, int(fitting / _UNIT)) * _UNIT)
