"""Drafting with heads, which read the states that the target computed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from localspec.engine.cancel import Cancel
from localspec.engine.drafters.proposer import Proposer, View, argmax_proposer
from localspec.engine.drafters.protocol import Capabilities, Proposal
from localspec.engine.drafters.steps import EXCERPT_TOKENS, GAP, write
from localspec.engine.length.stopping import Askable, Plan
from localspec.engine.llama import BlockHead, Head, SharedHead
from localspec.engine.llama.heads.target_states import Rows
from localspec.engine.round.sampling import Logits
from localspec.engine.round.verify import Draft


class HeadDrafter:
    """Drafts with a head: EAGLE-3 or MTP.

    Row i of the head pairs the target's state at token i with token i + 1. The head keeps the
    states of the latest tokens, and makes rows of them only when a draft is wanted. If more than
    `GAP` rows are missing, as after a long prompt, it begins anew with the last ones: to make all
    would take longer than a short answer gains. Rows of drafted tokens are taken out at once, and
    made anew from the target's states.

    If MTP has several layers, each drafts one token. The first one drafts like any head; the others
    also read what the layers before them drafted.
    """

    _shift = 1  # a row pairs a state with the token this many places later

    def __init__(self, head: Head, name: str = "") -> None:
        """Draft with `head`, named after its kind by default."""
        self.head = head
        self.name = name or head.kind
        self.capabilities = Capabilities(listener=head)
        self._cancel = Cancel()
        self._proposer: Proposer = argmax_proposer

    def begin(
        self,
        tokens: Sequence[int],  # noqa: ARG002 - the protocol's
        proposer: Proposer,
        cancel: Cancel,
        *,
        anew: bool = False,
        answered: int = 0,  # noqa: ARG002 - the protocol's
    ) -> None:
        """Start a generation; the head has seen states of the text so far when they were computed.

        Which ones the target computed, and so what the head drafts, depends on what its cache held
        before. With `anew` the head forgets them, and reads only what this generation decodes.
        """
        self.head.watch(cancel)
        if anew:
            self.head.clear()
        self._cancel = cancel
        self._proposer = proposer

    def state(self, tokens: Sequence[int]) -> Askable:
        """The rows that are missing and can be made; the tokens before the first row."""
        head, row = self.head, self._next(tokens)
        first = head.first if head.tokens and row == head.end else row
        return Askable(max(1, len(tokens) - self._shift - row), first)

    def _next(self, tokens: Sequence[int]) -> int:
        """The row to make next: the one after the last, or the first of those made anew."""
        head, last = self.head, len(tokens) - 1
        goes_on = head.tokens and head.end >= max(head.states.first, last - GAP)
        return head.end if goes_on else max(head.states.first, last - EXCERPT_TOKENS)

    def propose(
        self,
        tokens: Sequence[int],
        plan: Plan,
        path: tuple[int, ...] = (),  # noqa: ARG002 - every row needs the state of the one before
    ) -> Proposal:
        """Draft while the plan goes on.

        The draft is empty if the target's last state was not seen.
        """
        head, last = self.head, len(tokens) - 2  # the row that pairs the newest token with a state
        limit = min(plan.limit, head.n_ctx - len(tokens))
        if head.layers > 1:
            limit = min(limit, head.layers)
        if limit < 1 or not head.states.knows(last):
            return Proposal(self.name)
        head.keep(last)
        begin = self._next(tokens)
        if begin != head.end:
            head.start(begin)
        cached = begin - head.first
        try:
            logits, state = self._catch_up(tokens)
            chain = [tokens[-1]], [head.states.get(last, 1)]

            def follow(token: int, drafted: int) -> Logits:
                nonlocal state
                self._cancel.check()
                if head.layers == 1:
                    row, state = head.read([token], state, output=True)
                else:
                    row, state = self._further(last, chain, token, state, drafted)
                return row

            written = self._write(tokens, logits, follow, plan, limit)
        finally:
            head.keep(last + 1)
        read = last + 1 - begin
        return Proposal(self.name, *written, read=read, cached=cached, begun=head.first)

    def _write(
        self,
        tokens: Sequence[int],
        logits: Logits,
        follow: Callable[[int, int], Logits],
        plan: Plan,
        limit: int,
    ) -> tuple[Draft, list[View], list[float]]:
        """Write a draft (see `write`) from the first token's logits on, with the target's ids."""
        model = self.head.target.model
        return write(
            lambda row, drafted: self._proposer(row, tokens, drafted),
            lambda token, drafted: follow(token, drafted)[: model.n_vocab],
            logits[None, : model.n_vocab],
            plan=plan,
            limit=limit,
            ends=lambda drafted: model.is_end(drafted[-1]),
        )

    def _further(
        self, last: int, chain: tuple[list[int], list[Rows]], token: int, state: Rows, layer: int
    ) -> tuple[Logits, Rows]:
        """Have the next layer read what was drafted: it has read only the text."""
        tokens, states = chain
        tokens.append(token)
        states.append(state)
        self.head.keep(last)
        return self.head.read(tokens, np.concatenate(states), output=True, layer=layer)

    def _catch_up(self, tokens: Sequence[int]) -> tuple[Logits, Rows]:
        """Make the rows that are missing; return the logits and the state of the last one."""
        head, whole = self.head, len(tokens) - 1
        while True:
            start, n = head.end, min(head.n_batch, whole - head.end)
            states = head.fused(head.states.get(start, n))
            following = tokens[start + 1 : start + 1 + n]
            if start + n == whole:
                return head.read(following, states, output=True)
            head.read(following, states, output=False)
            self._cancel.check()

    def observe(self, tokens: Sequence[int], accepted: int) -> None:
        """Nothing to do: the draft's rows are gone, and the head saw what was verified."""


class BlockDrafter(HeadDrafter):
    """Drafts with a head that guesses several tokens in one pass, such as DFlash.

    Row i of the head is the target's state at token i. The number of tokens that a pass guesses
    changes all of them, so it is decided before the pass; how many are submitted is decided after
    it. A guess depends on the tokens drawn before it in the block through the sampler chain alone,
    unless the head's logits depend on the token before (`BlockHead.guess`).
    """

    head: BlockHead
    _shift = 0

    def state(self, tokens: Sequence[int]) -> Askable:
        """The rows that are missing and can be made, and how many tokens a pass guesses."""
        return super().state(tokens)._replace(block=self.head.longest)

    def propose(
        self,
        tokens: Sequence[int],
        plan: Plan,
        path: tuple[int, ...] = (),  # noqa: ARG002 - all is guessed in one pass
    ) -> Proposal:
        """Guess a block of tokens in one pass; the draft is its start, as long as the plan wants.

        The draft is empty if the target's last state was not seen.
        """
        head, last = self.head, len(tokens) - 2
        limit = min(plan.limit, head.longest, head.n_ctx - len(tokens))
        if limit < 1 or not head.states.knows(last):
            return Proposal(self.name)
        head.keep(last + 1)
        begin = self._next(tokens)
        if begin != head.end:
            head.start(begin)
        cached = begin - head.first
        for start in range(begin, last + 1, head.n_batch):
            n = min(head.n_batch, last + 1 - start)
            head.read(tokens[start : start + n], head.states.get(start, n), output=False)
            self._cancel.check()
        rows_after = head.guess(tokens[-1], limit)
        written = self._write(tokens, rows_after(tokens[-1], 0), rows_after, plan, limit)
        return Proposal(
            self.name,
            *written,
            read=last + 1 - begin + limit,
            cached=cached,
            passes=1,
            begun=head.first,
            block=limit,
        )


class SharedDrafter(HeadDrafter):
    """Drafts with a head that has no cache: Gemma 4's assistant, which reads the target's.

    A pass reads the newest token with the target's state before it, or a drafted token with the
    state of the pass before it. All passes are at the newest token's position, so there is nothing
    to catch up on and nothing to take back.
    """

    head: SharedHead

    def state(self, tokens: Sequence[int]) -> Askable:  # noqa: ARG002 - the target read them
        """Only the newest token is pending."""
        return Askable(1)

    def propose(
        self,
        tokens: Sequence[int],
        plan: Plan,
        path: tuple[int, ...] = (),  # noqa: ARG002 - every pass needs the state of the one before
    ) -> Proposal:
        """Draft while the plan goes on.

        The draft is empty if the target's last state was not seen, or its cache ends elsewhere.
        """
        head, last = self.head, len(tokens) - 2
        limit = min(plan.limit, head.n_ctx - len(tokens))
        if limit < 1 or head.held != last + 1 or not head.states.knows(last):
            return Proposal(self.name)
        logits, state = head.read(tokens[-1:], head.states.get(last, 1), output=True)

        def follow(token: int, drafted: int) -> Logits:  # noqa: ARG001 - all at one place
            nonlocal state
            self._cancel.check()
            row, state = head.read([token], state, output=True)
            return row

        written = self._write(tokens, logits, follow, plan, limit)
        return Proposal(self.name, *written, read=1, cached=last + 1, begun=last)


def head_drafter(head: Head, name: str = "") -> HeadDrafter:
    """The drafter for a head of any kind, named after its kind by default."""
    if isinstance(head, SharedHead):
        return SharedDrafter(head, name)
    return BlockDrafter(head, name) if isinstance(head, BlockHead) else HeadDrafter(head, name)
