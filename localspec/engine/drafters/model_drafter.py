"""`ModelDrafter`: drafting with a small model that has the target's vocabulary."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import takewhile

from localspec.drafter_names import DRAFT
from localspec.engine.cancel import Cancel
from localspec.engine.common_prefix import common_prefix
from localspec.engine.drafters.ahead import Ahead
from localspec.engine.drafters.proposer import Proposer, argmax_proposer
from localspec.engine.drafters.protocol import Capabilities, Proposal
from localspec.engine.drafters.steps import Excerpt, read, write
from localspec.engine.length.ahead_policy import AheadPolicy
from localspec.engine.length.stopping import Askable, Plan
from localspec.engine.llama import Context
from localspec.engine.round.sampling import Logits


class ModelDrafter:
    """Drafts with a small model that has the target's vocabulary.

    The model's cache is a prefix of the sequence, less what is left out: `observe` takes back what
    was rejected, `propose` decodes what is missing. After a draft was accepted whole, its last
    token is missing, since nothing had to be proposed after it.

    Where much is missing, as after a long message, the model leaves out all but the end of it: to
    read all may take longer than a short answer gains. It reads all where the plan wants that.

    Attributes:
        excerpt: how much of a long text it reads.
    """

    def __init__(
        self,
        context: Context,
        n_vocab: int,
        name: str = DRAFT,
        *,
        ahead: AheadPolicy | None = None,
    ) -> None:
        """Draft with `context` for a target of `n_vocab` tokens.

        Ids that the target does not have are left out before a token is picked.

        Args:
            context: of the draft model.
            n_vocab: size of the target's vocabulary.
            name: what rounds, costs and figures call it.
            ahead: decides when to go on while the target decodes; None for never.
        """
        self.context = context
        self.name = name
        self._cancel = Cancel()
        self._prompt = 0  # its tokens, until it is read
        self._held = 0  # tokens of the cache that the last proposal went on from
        self._n_vocab = min(n_vocab, context.model.n_vocab)
        self._proposer: Proposer = argmax_proposer
        removes = context.max_rollback is None
        self.excerpt = Excerpt(room=context.n_ctx, cuts_back=removes)
        self._ahead = Ahead(context, self._n_vocab, ahead) if ahead and removes else None
        self.capabilities = Capabilities(ahead=self._ahead)

    def begin(
        self,
        tokens: Sequence[int],
        proposer: Proposer,
        cancel: Cancel,
        *,
        anew: bool = False,
        answered: int = 0,
    ) -> None:
        """Keep what the cache has in common with `tokens`; `anew` keeps nothing."""
        if self._ahead is not None:
            self._ahead.begin(proposer, cancel)
        self.context.watch(cancel)
        self._cancel = cancel
        if anew:
            self.excerpt.left_out = 0
            self.context.clear()
        # The last token is decoded anew if need be: proposing needs its logits.
        self.context.rewind(self.excerpt.resume(self.context.tokens, tokens[:-1]))
        self._prompt = len(tokens) - answered
        self._proposer = proposer

    def state(self, tokens: Sequence[int]) -> Askable:
        """What the cache lacks of `tokens`, or would read of that."""
        ready = self._found(tokens)  # settles the cache
        state = self.excerpt.state(len(tokens), self._missing(tokens))
        # To read guesses, which may not be drafted, pays only where taking them back costs nothing.
        state = state._replace(reads_paths=self.context.max_rollback is None)
        return state._replace(pending=0) if ready else state

    def _missing(self, tokens: Sequence[int]) -> int:
        return len(tokens) - self.excerpt.left_out - len(self.context.tokens)

    def _found(self, tokens: Sequence[int]) -> Sequence[Logits]:
        """Logits of passes that were made ahead, in order."""
        return () if self._ahead is None else self._ahead.found(tokens)

    def propose(self, tokens: Sequence[int], plan: Plan, path: tuple[int, ...] = ()) -> Proposal:
        """Draft while the plan goes on.

        The draft ends early with a token that ends generation, in a full context, where no id of
        the model may follow, and where its logits are no distribution. It is empty once the text
        holds an id that only the target has.
        """
        ready = self._found(tokens)
        guesses = self._ahead.take(tokens) if self._ahead is not None else ()
        missing = 1 if ready else self._missing(tokens)
        if self.excerpt.cuts(len(tokens), missing, whole=plan.whole):
            self.context.keep_prefix(tokens[: self.excerpt.first])
            ready = ()
        cached = len(self.context.tokens) - (len(guesses) if ready else 0)
        unread = self.excerpt.known(tokens, cached)
        self._held = cached + len(unread)
        limit = min(plan.limit, self.context.n_ctx - self._held + 1)
        if limit < 1 or max(unread, default=0) >= self.context.model.n_vocab:
            return Proposal(self.name, cached=cached)
        rows: Logits | Sequence[Logits] = ready
        if ready:  # the guesses take the place of the path
            path = guesses
        else:
            path = self._readable(path, min(limit - 1, self.context.n_batch - len(unread)))
            unread, after = [*unread, *path], self._after_prompt(tokens)
            rows = read(self.context, self._cancel, unread, 1 + len(path), after=after)
            rows = rows[:, : self._n_vocab]
        passes = int(not ready)

        def follow(token: int, drafted: int) -> Logits:
            nonlocal passes
            passes += 1
            self._cancel.check()
            self.context.rewind(self._held + drafted - 1)  # drops the rest of the path
            if drafted == 1:
                self.context.mark()
            return self.context.decode([token], 1)[0, : self._n_vocab]

        written = write(
            lambda logits, drafted: self._proposer(logits, tokens, drafted),
            follow,
            rows,
            path=path,
            plan=plan,
            limit=limit,
            ends=lambda drafted: self.context.model.is_end(drafted[-1]),
        )
        drafted = Proposal(self.name, *written, cached=cached, passes=passes)
        if ready:
            return replace(drafted, kept=max(0, len(drafted.views) - passes))
        return replace(drafted, read=len(unread), path=len(path))

    def _after_prompt(self, tokens: Sequence[int]) -> int | None:
        """How many of `tokens` follow the prompt, if its end is read now."""
        prompt, self._prompt = self._prompt, 0
        return len(tokens) - prompt if prompt else None

    def _readable(self, path: tuple[int, ...], room: int) -> tuple[int, ...]:
        """The part of a path that the first decode reads."""
        n_vocab = self.context.model.n_vocab
        return tuple(takewhile(lambda token: token < n_vocab, path[: max(0, room)]))

    def observe(self, tokens: Sequence[int], accepted: int) -> None:  # noqa: ARG002 - the text tells
        """Take what was rejected out of the cache.

        The cache never holds the newest token. Of the tokens that lookup added to the draft, it
        holds accepted ones only if they stood in the path. A recurrent model goes back to where it
        began to draft, and reads the accepted tokens with the newest one.
        """
        if self._ahead is not None and self._ahead.outcome(tokens):
            return  # the cache is in use
        held, begun = self.context.tokens[self._held :], self._held + self.excerpt.left_out
        self.context.rewind(self._held + common_prefix(held, tokens[begun:-1]))
