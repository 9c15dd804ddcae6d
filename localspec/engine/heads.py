"""Drafting with a head, which reads the states that the target computed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from localspec.engine.cancel import Cancel
from localspec.engine.drafter import GAP, LOOK, Drafted, write
from localspec.engine.length.stopping import Plan
from localspec.engine.llama import BlockHead, Head, Listener, SharedHead
from localspec.engine.llama.head import Rows
from localspec.engine.proposer import Proposer, View, argmax_proposer
from localspec.engine.sampling import Logits
from localspec.engine.verify import Draft


class HeadDrafter:
    """A head beside the target: EAGLE-3 or MTP.

    Row i of the head pairs the target's state at token i with token i + 1. The head keeps the
    states of the latest tokens; rows are made of them only when a draft is wanted. Where more than
    `GAP` are missing, as behind a long prompt, the head begins anew with the last ones: to
    read all would take longer than a short answer gains. What this drafts itself is taken out again
    at once: those rows are made anew of the target's states.

    Of several layers of MTP each drafts one token: the first as any head does, every other one
    reads for it what was drafted by those before.

    Attributes:
        head: its context.
        name: what it is called in rounds, costs and figures.
        look: rows that it begins with.
    """

    reads_paths = False
    ahead = None
    look = LOOK

    def __init__(self, head: Head, name: str = "") -> None:
        """Draft with `head`, called by its kind where no name is given."""
        self.head = head
        self.name = name or head.kind
        self._cancel = Cancel()
        self._proposer: Proposer = argmax_proposer

    @property
    def reader(self) -> Listener:
        """The head itself."""
        return self.head

    def begin(
        self,
        tokens: Sequence[int],  # noqa: ARG002 - the protocol's
        proposer: Proposer,
        cancel: Cancel,
        *,
        anew: bool = False,
    ) -> None:
        """Start a generation; what the target computed of the text so far is known already.

        How much of it was shown depends on what was decoded before, and so do the drafts: `anew`
        only what this generation decodes is read.
        """
        self.head.watch(cancel)
        if anew:
            self.head.clear()
        self._cancel = cancel
        self._proposer = proposer

    @property
    def block(self) -> int:
        """None: one token after the other."""
        return 0

    def lag(self, tokens: Sequence[int]) -> int:
        """Rows that are missing, as far as they can be made."""
        return max(1, len(tokens) - 1 - self._next(tokens))

    def left_out(self, tokens: Sequence[int]) -> int:
        """What stands before the first row."""
        head, row = self.head, self._next(tokens)
        return head.first if head.tokens and row == head.end else row

    def _next(self, tokens: Sequence[int]) -> int:
        """The row to be made next: one that goes on, or the first of those that are made anew."""
        head = self.head
        last = len(tokens) - 1
        goes_on = head.tokens and head.end >= max(head.states.first, last - max(GAP, self.look))
        return head.end if goes_on else max(head.states.first, last - self.look)

    def propose(
        self,
        tokens: Sequence[int],
        plan: Plan,
        path: tuple[int, ...] = (),  # noqa: ARG002 - every row needs the state of the one before
    ) -> Drafted:
        """Draft while the plan goes on.

        Nothing where the target's last state was not seen, as after a drafter was added late.
        """
        head, last = self.head, len(tokens) - 2  # the row that pairs the newest token with a state
        limit = min(plan.limit, head.n_ctx - len(tokens))
        if head.layers > 1:
            limit = min(limit, head.layers)
        if limit < 1 or not head.states.knows(last):
            return Drafted(self.name)
        head.keep(last)
        cached = self._next(tokens)
        if cached != head.end:
            head.start(cached)
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
        read = last + 1 - cached
        return Drafted(self.name, *written, read=read, cached=cached, begun=head.first)

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
            is_end=model.is_end,
        )

    def _further(
        self, last: int, chain: tuple[list[int], list[Rows]], token: int, state: Rows, layer: int
    ) -> tuple[Logits, Rows]:
        """Let the next layer read what was drafted: it knows nothing of it, but all before."""
        tokens, states = chain
        tokens.append(token)
        states.append(state)
        self.head.keep(last)
        return self.head.read(tokens, np.concatenate(states), output=True, layer=layer)

    def _catch_up(self, tokens: Sequence[int]) -> tuple[Logits, Rows]:
        """Make the rows that are missing; return the last one's logits and its state."""
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
        """Nothing is left of a draft, and what was verified was shown."""


class BlockDrafter(HeadDrafter):
    """A head that guesses several tokens in one pass, such as DFlash.

    Row i of the head is the target's state at token i. How many tokens a pass guesses is decided
    before it, for that changes them all; how many of them are submitted, after it. Each is drawn
    from a distribution that does not depend on those drawn before it but through the sampler chain
    and where the head says so.
    """

    head: BlockHead

    @property
    def block(self) -> int:
        """How many tokens a pass guesses at most."""
        return self.head.longest

    def lag(self, tokens: Sequence[int]) -> int:
        """Rows that are missing, as far as they can be made, and that of the newest token."""
        return max(1, len(tokens) - self._next(tokens))

    def propose(
        self,
        tokens: Sequence[int],
        plan: Plan,
        path: tuple[int, ...] = (),  # noqa: ARG002 - all is guessed in one pass
    ) -> Drafted:
        """Guess as many tokens as the plan allows; draft of them while it goes on.

        Nothing where the target's last state was not seen, as after a drafter was added late.
        """
        head, last = self.head, len(tokens) - 2
        limit = min(plan.limit, head.longest, head.n_ctx - len(tokens))
        if limit < 1 or not head.states.knows(last):
            return Drafted(self.name)
        head.keep(last + 1)
        cached = self._next(tokens)
        if cached != head.end:
            head.start(cached)
        for start in range(cached, last + 1, head.n_batch):
            n = min(head.n_batch, last + 1 - start)
            head.read(tokens[start : start + n], head.states.get(start, n), output=False)
            self._cancel.check()
        behind = head.guess(tokens[-1], limit)
        n_vocab = head.target.model.n_vocab
        written = write(
            lambda row, drafted: self._proposer(row, tokens, drafted),
            lambda token, drafted: behind(token, drafted)[:n_vocab],
            behind(tokens[-1], 0)[None, :n_vocab],
            plan=plan,
            limit=limit,
            is_end=head.target.model.is_end,
        )
        return Drafted(
            self.name,
            *written,
            read=last + 1 - cached + limit,
            cached=cached,
            passes=1,
            begun=head.first,
            block=limit,
        )


class SharedDrafter(HeadDrafter):
    """A head without a cache: Gemma 4's assistant, which reads what the target holds.

    Each pass reads the newest token with the target's state before it, or a drafted one with the
    state of the pass before; all are made for the newest token's place. So there is nothing to
    catch up on, and nothing to take back.
    """

    head: SharedHead

    def lag(self, tokens: Sequence[int]) -> int:  # noqa: ARG002 - the target has read them
        """None but the newest token."""
        return 1

    def left_out(self, tokens: Sequence[int]) -> int:  # noqa: ARG002 - it reads the target's cache
        """Nothing."""
        return 0

    def propose(
        self,
        tokens: Sequence[int],
        plan: Plan,
        path: tuple[int, ...] = (),  # noqa: ARG002 - every pass needs the state of the one before
    ) -> Drafted:
        """Draft while the plan goes on.

        Nothing where the target's last state was not seen, as after a drafter was added late, or
        where its cache does not end there.
        """
        head, last = self.head, len(tokens) - 2
        limit = min(plan.limit, head.n_ctx - len(tokens))
        if limit < 1 or head.behind != last + 1 or not head.states.knows(last):
            return Drafted(self.name)
        logits, state = head.read(tokens[-1:], head.states.get(last, 1), output=True)

        def follow(token: int, drafted: int) -> Logits:  # noqa: ARG001 - all at one place
            nonlocal state
            self._cancel.check()
            row, state = head.read([token], state, output=True)
            return row

        written = self._write(tokens, logits, follow, plan, limit)
        return Drafted(self.name, *written, read=1, cached=last + 1, begun=last)


def head_drafter(head: Head, name: str = "") -> HeadDrafter:
    """What drafts with a head of any kind, called by that where no name is given."""
    if isinstance(head, SharedHead):
        return SharedDrafter(head, name)
    return BlockDrafter(head, name) if isinstance(head, BlockHead) else HeadDrafter(head, name)
