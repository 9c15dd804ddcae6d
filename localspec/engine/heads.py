"""`HeadDrafter`: drafting with a head, which reads the states that the target computed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from localspec.engine.cancel import Cancel
from localspec.engine.drafter import Drafted, write
from localspec.engine.length.stopping import Plan
from localspec.engine.llama import Head
from localspec.engine.proposer import Proposer, argmax_proposer
from localspec.engine.sampling import Logits


class HeadDrafter:
    """A head beside the target: EAGLE-3 or MTP.

    Row i of the head pairs the target's state at token i with token i + 1. What the target decodes
    is shown as it comes; the states wait until there is a batch of them, or until they are needed.
    A state waits on until the token after it can't change any more, so that a row is never wrong.
    What this drafts itself is taken out again at once: a row is made anew of the target's state.

    Attributes:
        head: its context.
        name: what it is called in rounds, costs and figures.
    """

    def __init__(self, head: Head, name: str = "") -> None:
        """Draft with `head`, called by its kind where no name is given."""
        self.head = head
        self.name = name or head.kind
        self._cancel = Cancel()
        self._proposer: Proposer = argmax_proposer

    @property
    def _end(self) -> int:
        """Up to which token the target's states are known."""
        return self.head.end + len(self.head.waiting)

    def after_decode(self, tokens: Sequence[int], start: int) -> None:
        """Keep the states of `tokens`, which the target has just decoded from `start` on."""
        self._forget(start)
        if self._end != start:  # what came before was never shown
            self.head.start(start)
            self.head.waiting = self.head.waiting[:0]
        self.head.waiting = np.concatenate((self.head.waiting, self.head.states(len(tokens))))
        known = self.head.target.tokens
        while len(self.head.waiting) > self.head.n_batch:
            self._read(known, self.head.n_batch, output=False)

    def _forget(self, n: int) -> None:
        """Take out what was known of tokens from `n` on.

        The row before them was made with the first of them, and its state is gone: it stays. A
        token that has changed there costs acceptance once, and nothing else.
        """
        self._keep(n)
        self.head.waiting = self.head.waiting[: max(0, n - self.head.end)]

    def _keep(self, end: int) -> None:
        """Keep the head's rows before `end`."""
        self.head.truncate(max(0, end - self.head.first))

    def _read(
        self, tokens: Sequence[int], n: int, *, output: bool
    ) -> tuple[Logits, NDArray[np.float32]]:
        """Make rows of the first `n` states that wait; `tokens` is the sequence."""
        following = tokens[self.head.end + 1 : self.head.end + 1 + n]
        states, self.head.waiting = self.head.waiting[:n], self.head.waiting[n:]
        return self.head.read(following, states, output=output)

    def begin(self, tokens: Sequence[int], proposer: Proposer, cancel: Cancel) -> None:  # noqa: ARG002 - the protocol's
        """Start a generation; what the target was shown is known already."""
        self.head.watch(None)  # it takes a moment only, and what the target shows comes once
        self._cancel = cancel
        self._proposer = proposer

    def lag(self, tokens: Sequence[int]) -> int:
        """Rows that are missing."""
        return max(1, len(tokens) - 1 - self.head.end)

    def propose(self, tokens: Sequence[int], plan: Plan) -> Drafted:
        """Draft while the plan goes on.

        Nothing where the target's last state was not seen, as after a drafter was added late.
        """
        last = len(tokens) - 2  # the row that pairs the newest token with the state before it
        self._forget(last + 1)
        limit = min(plan.limit, self.head.n_ctx - len(tokens))
        cached = self.head.end
        if limit < 1 or self._end != last + 1 or not len(self.head.waiting):
            return Drafted(self.name, cached=cached)
        seed = self.head.waiting[-1:]
        n_vocab = self.head.target.model.n_vocab
        try:
            logits, state = self._catch_up(tokens)

            def follow(token: int, drafted: int) -> Logits:  # noqa: ARG001 - nothing is marked
                nonlocal state
                self._cancel.check()
                row, state = self.head.read([token], state, output=True)
                return row[:n_vocab]

            written = write(
                lambda row, drafted: self._proposer(row, tokens, drafted),
                follow,
                logits[:n_vocab],
                plan=plan,
                limit=limit,
                is_end=self.head.target.model.is_end,
            )
        finally:
            self._keep(last)
            if self.head.end == last:
                self.head.waiting = seed
        return Drafted(self.name, *written, read=last + 1 - cached, cached=cached)

    def _catch_up(self, tokens: Sequence[int]) -> tuple[Logits, NDArray[np.float32]]:
        """Make rows of all states; return the last one's logits and its state."""
        while len(self.head.waiting) > self.head.n_batch:
            self._cancel.check()
            self._read(tokens, self.head.n_batch, output=False)
        return self._read(tokens, len(self.head.waiting), output=True)

    def observe(self, tokens: Sequence[int], accepted: int) -> None:
        """Nothing is left of a draft, and what was verified was shown."""
