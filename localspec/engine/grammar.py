"""What constrained output must offer to the sampler chain."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class Constraint(Protocol):
    """A state of a grammar: what may come next."""

    def allowed(self, ids: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which of `ids` (k,) may come next, (k,)."""
        ...

    def advance(self, token: int) -> None:
        """Take `token` as emitted."""
        ...

    def clone(self) -> Constraint:
        """An independent copy of this state."""
        ...
