"""Constraints on the output: what may come next, and the states along a draft. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from localspec.engine.common_prefix import common_prefix
from localspec.engine.exact_ids import Vocabulary, exact_ids
from localspec.errors import EngineError


class Constraint(Protocol):
    """One state of a constraint. It never changes: `after` makes a new one."""

    def allowed(self, ids: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which of `ids` (k,) may come next: (k,)."""

    def after(self, token: int) -> Constraint:
        """The state after `token`.

        Raises:
            EngineError: `token` is not allowed.
        """


class Awaited:
    """Allows everything until a mark has been written; from then on a constraint holds.

    A mark does not count if the token that ends it goes on with text that the constraint forbids.

    Args:
        mark: the mark, not empty.
        then: the constraint that holds after the mark.
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
        """The state after `token`: that of the constraint, if `token` ends the mark."""
        text = self._end + self._vocabulary.piece(token, special=True)
        _, mark, rest = text.partition(self._mark)
        if mark:
            found = self._beyond(rest)
            if found is not None:
                return found
        keep = len(self._mark) - 1
        return Awaited(self._mark, self._then, self._vocabulary, text[max(0, len(text) - keep) :])

    def _beyond(self, rest: bytes) -> Constraint | None:
        """The constraint after `rest`, or without its leading blanks; None if it forbids both."""
        for part in (rest, rest.lstrip()):
            ids, state = exact_ids(part.decode("utf-8", "replace"), self._vocabulary), self._then
            if ids is None:
                continue
            try:
                for token in ids:
                    state = state.after(token)
            except EngineError:
                continue
            return state
        return None


@dataclass(frozen=True, slots=True)
class AfterThought:
    """A constraint for a text that may begin with a thought.

    Attributes:
        then: holds unless a thought begins.
        thinking: holds from its beginning on.
        begin: the mark that begins it, at the beginning of the text or after blanks.
        vocabulary: of the tokens.
        end: what was written so far, which may become that mark.
    """

    then: Constraint
    thinking: Constraint
    begin: bytes
    vocabulary: Vocabulary
    end: bytes = b""

    def allowed(self, ids: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which of `ids` (k,) may come next: (k,)."""
        return self.then.allowed(ids)

    def after(self, token: int) -> Constraint:
        """The state after `token`.

        Raises:
            EngineError: `token` is not allowed.
        """
        text = (self.end + self.vocabulary.piece(token, special=True)).lstrip()
        if text.startswith(self.begin):
            return self.thinking
        then = self.then.after(token)
        return replace(self, then=then, end=text) if self.begin.startswith(text) else then


class Anything:
    """Allows every token."""

    def allowed(self, ids: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Every id."""
        return ids >= 0

    def after(self, token: int) -> Constraint:  # noqa: ARG002 - none matters
        """The same state."""
        return self


@dataclass(frozen=True, slots=True)
class Budgeted:
    """Limits the tokens of a thought; after them only the tokens that close it are allowed.

    One token with all the probability is a distribution like any other, so drafts go on and stay
    lossless. The other constraint takes precedence: where it forbids the next of the tokens that
    close the thought, none is forced.

    Attributes:
        then: another constraint, which also holds during the thought and after it.
        begin: the mark that begins a thought; empty if the thought has begun.
        close: the mark that ends it.
        left: tokens that the thought may still have.
        closing: the tokens that end it and have not come yet.
        forced: whether the thought is being ended.
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

    @property
    def _closes(self) -> bool:
        due = self.forced or (not self.begin and self.left <= 0)
        return due and bool(self.then.allowed(np.array(self.closing[:1]))[0])

    def allowed(self, ids: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which of `ids` (k,) may come next: (k,)."""
        if self._closes:
            return np.equal(ids, self.closing[0])
        return self.then.allowed(ids)

    def after(self, token: int) -> Constraint:
        """The state after `token`.

        Raises:
            EngineError: `token` is not allowed.
        """
        then = self.then.after(token)
        if self._closes:
            if token != self.closing[0]:
                raise EngineError("a token that is not allowed came while a thought was closed")
            rest = self.closing[1:]
            return replace(self, then=then, forced=True, closing=rest) if rest else then
        if self.forced:  # a grammar that begins behind the mark may forbid the blanks after it
            return then
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
    """The states of a constraint along a sequence; each is computed once.

    Within a round the target's rows and the draft's ask for the same states.

    Attributes:
        state: the state after all committed tokens.
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
        """Commit `tokens`: later states follow them.

        Of many tokens at once only the last state is kept: each may be as large as the text.
        """
        same = common_prefix(self._drafted, tokens)
        self.state = self._states[same]
        for token in tokens[same:]:
            self.state = self.state.after(token)
        self._drafted, self._states = [], [self.state]
