"""What constrained output asks of the sampler chain, and its states along a draft. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class Constraint(Protocol):
    """What may come next, in one state. States are never changed: `after` makes new ones."""

    def allowed(self, ids: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which of `ids` (k,) may come next: (k,)."""
        ...

    def after(self, token: int) -> Constraint:
        """The state once `token`, which is allowed, has come.

        Raises:
            EngineError: it is not allowed.
        """
        ...


class Course:
    """The states of a constraint along a sequence: each is worked out once.

    The target's rows and the draft's ask for the same states within a round, and the states of
    accepted tokens carry over to the next one.

    Attributes:
        state: after everything that was committed.
    """

    def __init__(self, state: Constraint) -> None:
        self.state = state
        self._drafted: list[int] = []
        self._states = [state]

    def after(self, drafted: Sequence[int]) -> Constraint:
        """The state after the committed tokens and `drafted`."""
        for i, token in enumerate(drafted):
            if i < len(self._drafted) and self._drafted[i] != token:
                del self._drafted[i:], self._states[i + 1 :]
            if i == len(self._drafted):
                self._states.append(self._states[i].after(token))
                self._drafted.append(token)
        return self._states[len(drafted)]

    def commit(self, tokens: Sequence[int]) -> None:
        """Go on from after `tokens`."""
        self.state = self.after(tokens)
        self._drafted, self._states = [], [self.state]
