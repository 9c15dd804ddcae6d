"""What constrained output asks of the sampler chain, and its states along a draft. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from localspec.errors import EngineError


class Constraint(Protocol):
    """What may come next, in one state. States are never changed: `after` makes new ones."""

    def allowed(self, ids: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which of `ids` (k,) may come next: (k,)."""

    def after(self, token: int) -> Constraint:
        """The state once `token`, which is allowed, has come.

        Raises:
            EngineError: it is not allowed.
        """


class Vocabulary(Protocol):
    """From tokens to text and back."""

    def piece(self, token: int, *, special: bool = False) -> bytes:
        """The bytes of a token; control tokens are empty unless `special`."""

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """The ids of `text`."""


class Awaited:
    """Anything may come until a mark has been written; from there on a constraint holds.

    A mark does not count where the token that ends it goes on with something that is not allowed.

    Args:
        mark: the mark, not empty.
        then: holds behind it.
        vocabulary: of the tokens.
        end: the last bytes that were written, too few to hold the mark.
    """

    def __init__(
        self, mark: bytes, then: Constraint, vocabulary: Vocabulary, end: bytes = b""
    ) -> None:
        self._mark, self._then, self._vocabulary, self._end = mark, then, vocabulary, end

    def allowed(self, ids: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Every id: before the mark anything may follow."""
        return ids >= 0

    def after(self, token: int) -> Constraint:
        """The constraint itself, if `token` has ended the mark."""
        text = self._end + self._vocabulary.piece(token, special=True)
        _, mark, rest = text.partition(self._mark)
        if mark:
            found = self._beyond(rest)
            if found is not None:
                return found
        keep = len(self._mark) - 1
        return Awaited(self._mark, self._then, self._vocabulary, text[max(0, len(text) - keep) :])

    def _beyond(self, rest: bytes) -> Constraint | None:
        """The constraint after `rest`, None where it does not allow that; blanks ahead are free."""
        state, text = self._then, rest.lstrip().decode("utf-8", "replace")
        try:
            for token in self._vocabulary.tokenize(text, add_special=False, parse_special=False):
                state = state.after(token)
        except EngineError:
            return None
        return state


class Anything:
    """Every token may come."""

    def allowed(self, ids: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Every id."""
        return ids >= 0

    def after(self, token: int) -> Constraint:  # noqa: ARG002 - none matters
        """The same."""
        return self


@dataclass(frozen=True, slots=True)
class Budgeted:
    """A thought has so many tokens; then those that close it are the only ones that may come.

    One token with all the probability is a distribution like others: drafts go on, and what is
    emitted follows it exactly.

    Attributes:
        then: what holds besides, and once the thought is closed.
        vocabulary: of the tokens.
        begin: the mark that begins a thought; empty where it has begun.
        close: the mark that ends it.
        left: tokens that the thought may still have.
        closing: the tokens that end it, those that remain.
        forced: the thought is being ended.
        end: the last bytes that were written, too few to hold a mark.
    """

    then: Constraint
    vocabulary: Vocabulary
    begin: bytes
    close: bytes
    left: int
    closing: tuple[int, ...]
    forced: bool = False
    end: bytes = b""

    def allowed(self, ids: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which of `ids` (k,) may come next: (k,)."""
        if self.forced or (not self.begin and self.left <= 0):
            return np.equal(ids, self.closing[0])
        return self.then.allowed(ids)

    def after(self, token: int) -> Constraint:
        """The state once `token` has come.

        Raises:
            EngineError: it is not allowed.
        """
        then = self.then.after(token)
        if self.forced or (not self.begin and self.left <= 0):
            if token != self.closing[0]:
                raise EngineError("a token that is not allowed came while a thought was closed")
            rest = self.closing[1:]
            return replace(self, then=then, forced=True, closing=rest) if rest else then
        text = self.end + self.vocabulary.piece(token, special=True)
        if self.begin:
            if self.begin in text:
                return replace(self, then=then, begin=b"", end=b"")
            waits = self.begin.startswith(text.strip())
            return replace(self, then=then, end=text) if waits else then
        if self.close in text:
            return then
        tail = text[max(0, len(text) - len(self.close) + 1) :]
        return replace(self, then=then, left=self.left - 1, end=tail)


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
