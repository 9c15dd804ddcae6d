"""What the caches held of other conversations: kept aside, to go on from there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from localspec import machine
from localspec.engine.llama.checkpoint import Rollback
from localspec.engine.llama.context import common_prefix

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from localspec.engine.llama import Context

_WORTH = 16  # tokens that are sooner read again than copied
_MOST = 32
_SHARE = 0.25  # of the memory that is left


@dataclass(frozen=True, slots=True)
class _Held:
    """What the caches held, target first: their tokens, and the states to go back to."""

    tokens: tuple[tuple[int, ...], ...]
    states: tuple[NDArray[np.uint8], ...]

    @property
    def n_bytes(self) -> int:
        return sum(state.nbytes for state in self.states)


class Prefixes:
    """Brings the caches to the longest known beginning of a prompt, and loses none by that.

    Args:
        contexts: the target's, then those that draft.
        room: bytes that all copies together may take.
    """

    def __init__(self, contexts: Sequence[Context], room: Callable[[], int] | None = None) -> None:
        self._contexts = tuple(contexts)
        self._room = room or (lambda: int(_SHARE * (machine.available() + self.n_bytes)))
        self._kept: list[_Held] = []  # the latest last

    @property
    def n_bytes(self) -> int:
        """What the copies take."""
        return sum(one.n_bytes for one in self._kept)

    def switch(self, prompt: Sequence[int]) -> None:
        """Be ready to read `prompt`, from the longest beginning that any cache has held."""
        target = self._contexts[0]
        here = common_prefix(target.tokens, prompt)
        best = max(self._kept, key=lambda one: self._reach(one, prompt), default=None)
        further = best is not None and self._reach(best, prompt) >= here + _WORTH
        if len(target.tokens) - here >= _WORTH:
            self._keep()
        if best is None or not further:
            return
        for context, tokens, state in zip(self._contexts, best.tokens, best.states, strict=True):
            context.restore(tokens, state)
        if len(best.tokens[0]) - common_prefix(best.tokens[0], prompt) < _WORTH:
            self._kept = [one for one in self._kept if one is not best]  # it will be kept longer

    def _reach(self, one: _Held, prompt: Sequence[int]) -> int:
        """How many tokens of `prompt` would be there; a recurrent state is of use as a whole."""
        common = common_prefix(one.tokens[0], prompt)
        whole = common == len(one.tokens[0])
        return common if whole or self._contexts[0].rollback is Rollback.REMOVAL else 0

    def _keep(self) -> None:
        """Copy what the caches hold, in place of what it goes on from; the oldest make room."""
        tokens = tuple(tuple(context.tokens) for context in self._contexts)
        self._kept = [one for one in self._kept if tokens[0][: len(one.tokens[0])] != one.tokens[0]]
        if any(one.tokens[0][: len(tokens[0])] == tokens[0] for one in self._kept):
            return
        self._kept.append(_Held(tokens, tuple(context.state() for context in self._contexts)))
        room = self._room()
        while self._kept and (len(self._kept) > _MOST or self.n_bytes > room):
            del self._kept[0]
