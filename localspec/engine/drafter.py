"""Drafters: what proposes tokens for the target to verify.

`ModelDrafter` drafts with a small model. Other kinds (heads, a model with another vocabulary) only
need the `Drafter` protocol. Lookup is asked in every round, and needs none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import NamedTuple, Protocol

from localspec.engine.ahead import Ahead
from localspec.engine.cancel import Cancel
from localspec.engine.length.beside import Beside
from localspec.engine.length.stopping import Plan
from localspec.engine.llama import Context, Listener
from localspec.engine.llama.context import common_prefix
from localspec.engine.lookup import NO_GUESS, Guess
from localspec.engine.proposer import Proposer, View, argmax_proposer
from localspec.engine.sampling import Dist, Logits
from localspec.engine.stats import DRAFT
from localspec.engine.verify import EMPTY, Draft
from localspec.errors import SamplingError
from localspec.limits import MAX_GAMMA

EXCERPT_TOKENS = 32
"""Tokens of a long text's end that a drafter reads at first. With more the toy's draft and its head
hardly do better (docs/measurements/README.md), and where another drafter writes the answer, this is
all that a drafter costs."""

GAP = MAX_GAMMA + 1
"""A drafter reads on over this many missing tokens, about as many as a copied draft has. If more
are missing, it begins anew."""

_FIRST = 4  # tokens of the text's beginning: models put there what attention they have to spare
# Tokens that are read for every one accepted: by a draft of a tenth of the target that takes half
# as long for a token it reads, in batches, as for one it writes, that is half of what was gained.
_EARNED = 8


@dataclass(frozen=True, slots=True)
class Proposal:
    """The draft that a drafter proposes, and what it took.

    Attributes:
        drafter: the name of the drafter; empty if none was asked.
        draft: the tokens to verify.
        views: what the drafter's passes showed, in order, a last one that added no token included.
            They have no confidence any more: the draft's logits have been overwritten.
        confidences: those of the views, if the plan learns; else empty.
        read: tokens that the drafter decoded before it could propose.
        cached: tokens that its cache held already.
        tail: the last tokens of the draft, if lookup added them. They have no views.
        beyond: all tokens that lookup could add to the drafter's own.
        passes: decodes of the drafter, if their number differs from that of the views.
        path: how many of the tokens read, counted from the last, lookup had proposed.
        agreed: lookup tokens that the drafter proposed too, and went on after; where it had read
            them, their passes were already done.
        begun: the first token that a head's cache knows.
        block: tokens guessed in one pass.
        kept: passes made during the target's last pass.
        left_out: tokens of the sequence that the drafter's passes did not know.
    """

    drafter: str = ""
    draft: Draft = EMPTY
    views: Sequence[View] = ()
    confidences: Sequence[float] = ()
    read: int = 0
    cached: int = 0
    tail: Guess = NO_GUESS
    beyond: Guess = NO_GUESS
    passes: int | None = None
    path: int = 0
    agreed: int = 0
    begun: int = 0
    block: int = 0
    kept: int = 0
    left_out: int = 0

    @property
    def decodes(self) -> int:
        """Passes of the drafter that were waited for."""
        return len(self.views) if self.passes is None else self.passes

    @property
    def own(self) -> int:
        """Tokens of the draft that are the drafter's own."""
        return len(self.draft.tokens) - len(self.tail.tokens)

    @property
    def held(self) -> int:
        """Tokens of the text that a draft model's cache holds: those that it left out are not."""
        return self.cached + self.read - self.path

    @property
    def following(self) -> View | None:
        """What a pass over the whole draft showed; None if no pass went so far."""
        looked = not self.tail.tokens and len(self.views) > self.own
        return self.views[self.own] if looked else None


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What some drafters can do. By default a drafter spends one pass of its own on each token.

    Attributes:
        listener: sees the target's decodes while the drafter may be asked, and can copy hidden
            rows there: the target's next decode overwrites them. It never sees what the target's
            cache held before. None if the drafter does not need it.
        reads_paths: whether it can read tokens of a cheaper drafter in one pass (see `propose`).
        block: tokens that it guesses in one pass at most; 0 if each token takes a pass.
        ahead: reads while the target decodes; None if the drafter waits.
        own_vocabulary: whether its tokens are not the target's. Its best guesses are then text,
            which is cut into the target's tokens after its passes.
    """

    listener: Listener | None = None
    reads_paths: bool = False
    block: int = 0
    ahead: Ahead | None = None
    own_vocabulary: bool = False


class DrafterState(NamedTuple):
    """Where a drafter stands before a proposal.

    Attributes:
        pending_tokens: tokens that its first pass has to read; 0 if that pass is already done.
        left_out: tokens of the sequence that its passes will not know, as far as can be told.
    """

    pending_tokens: int
    left_out: int = 0


class Drafter(Protocol):
    """Proposes tokens, and learns what became of them.

    `begin` opens a generation. In each round the engine asks for the `state`; where it then chooses
    this drafter, it calls `propose` and `observe`. `tokens` is always the whole sequence, so that a
    drafter that was not chosen for some rounds catches up by itself.
    """

    @property
    def name(self) -> str:
        """What rounds, costs and figures call it."""

    @property
    def capabilities(self) -> Capabilities:
        """What it can do; the same as long as it lives."""

    def begin(
        self, tokens: Sequence[int], proposer: Proposer, cancel: Cancel, *, anew: bool = False
    ) -> None:
        """Start a generation that continues `tokens`; `anew` forgets all earlier ones."""

    def state(self, tokens: Sequence[int]) -> DrafterState:
        """What a proposal for `tokens` would have to read, and what it would leave out."""

    def propose(self, tokens: Sequence[int], plan: Plan, path: tuple[int, ...] = ()) -> Proposal:
        """Propose tokens that may follow `tokens`, as many as the plan wants.

        Args:
            tokens: the whole sequence.
            plan: decides when to stop.
            path: tokens proposed by a cheaper drafter. They do not change the draft (Cascade
                Speculative Drafting, 2312.11462), but reading them saves the passes of those that
                are drafted too.

        Raises:
            Cancelled: the generation's `cancel` was set.
        """

    def observe(self, tokens: Sequence[int], accepted: int) -> None:
        """Learn that `accepted` of the drafted tokens stay, and that the sequence is `tokens`."""


def write(
    view_of: Callable[[Logits, Sequence[int]], View],
    follow: Callable[[int, int], Logits],
    rows: Logits | Sequence[Logits],
    *,
    path: tuple[int, ...] = (),
    plan: Plan,
    limit: int,
    is_end: Callable[[int], bool],
) -> tuple[Draft, list[View], list[float]]:
    """Write a draft token by token while the plan goes on.

    Args:
        view_of: (logits, drafted tokens) -> the view of the next token.
        follow: (token, its index in the draft, from 1) -> the logits after it.
        rows: logits of the first token and after each token of `path`, shape
            (1 + len(path), n_vocab). The first call of `follow` overwrites them.
        path: tokens that have been read already, in case they are drafted.
        plan: decides when to stop.
        limit: the largest number of tokens.
        is_end: whether a token ends generation, and with it the draft.

    Returns:
        The draft, and views and confidences as in `Proposal`.
    """
    drafted: list[int] = []
    drawn_from: list[Dist] = []
    views: list[View] = []
    confidences: list[float] = []
    must_verify, agreed, logits = 0, 0, rows[0]
    while True:
        try:
            view = view_of(logits, drafted)
        except SamplingError:  # no distribution, or none over ids that the target has
            break
        confidence = view.confidence() if plan.learns else 0.0
        views.append(view)
        if plan.learns:
            confidences.append(confidence)
        # Nothing has been drawn yet: a draft that ends here is lossless under every rule.
        if not plan.wants_token(confidence, must_verify=view.must_verify):
            break
        token, q = view.pick()
        drafted.append(token)
        if q is not None:
            drawn_from.append(q)
        if view.must_verify:
            must_verify = len(drafted)
        if len(drafted) == limit or is_end(token):
            break
        if len(drafted) == agreed + 1 and path[agreed : agreed + 1] == (token,):
            agreed += 1
            logits = rows[agreed]
        elif plan.wants_pass():
            logits = follow(token, len(drafted))
        else:
            break
    return Draft(tuple(drafted), tuple(drawn_from) or None, must_verify), views, confidences


@dataclass(slots=True)
class Excerpt:
    """How much of a long text a draft reads: its end at first, all of it once that is earned.

    Attributes:
        last: tokens of the end that are read at first.
        left_out: tokens after the first few that the draft's cache leaves out.
        earned: tokens that it may read at once.
    """

    last: int = EXCERPT_TOKENS
    left_out: int = 0
    earned: int = 0

    def state(self, length: int, missing: int) -> DrafterState:
        """What is read of a text of `length` tokens of which the cache lacks `missing`."""
        if self._reads_on(missing):
            return DrafterState(missing, self.left_out)
        read = _FIRST + self.last
        return DrafterState(read, length - read)

    def _reads_on(self, missing: int) -> bool:
        return missing <= max(GAP, _FIRST + self.last)

    def begins_anew(self, length: int, missing: int) -> bool:
        """Choose what to read of a text of `length` tokens of which the cache lacks `missing`.

        Returns:
            Whether the cache begins anew after the first few tokens.
        """
        reads_all = self.left_out > 0 and length <= self.earned
        if reads_all:
            self.left_out, missing = 0, length - _FIRST
        if self._reads_on(missing):
            return reads_all
        if missing <= self.earned:
            self.earned -= missing
            return reads_all
        self.left_out = length - _FIRST - self.last
        return True

    def earn(self, accepted: int) -> None:
        """Count drafted tokens that were accepted."""
        self.earned += _EARNED * accepted


class ModelDrafter:
    """Drafts with a small model that has the target's vocabulary.

    The draft's cache is always a prefix of the sequence: `observe` takes back what was rejected,
    `propose` decodes what is missing. After a draft was accepted whole, its last token is missing,
    since nothing had to be proposed after it.

    Where much is missing, above all after a long prompt, the draft reads the first few tokens and
    the last ones: to read all would take longer than a short answer gains. The cache holds them as
    if nothing stood between. The draft reads all once its accepted tokens have saved that time.

    Attributes:
        context: the draft model's context.
        name: what rounds, costs and figures call it.
        excerpt: how much of a long text it reads.
    """

    def __init__(
        self,
        context: Context,
        n_vocab: int,
        name: str = DRAFT,
        *,
        beside: Beside | None = None,
    ) -> None:
        """Draft with `context` for a target of `n_vocab` tokens.

        Ids that the target does not have are left out before a token is picked.

        Args:
            context: of the draft model.
            n_vocab: size of the target's vocabulary.
            name: what rounds, costs and figures call it.
            beside: decides when to go on while the target decodes; None for never.
        """
        self.context = context
        self.name = name
        self._cancel = Cancel()
        self.excerpt = Excerpt()
        self._held = 0  # tokens of the cache that the last proposal went on from
        self._n_vocab = min(n_vocab, context.model.n_vocab)
        self._proposer: Proposer = argmax_proposer
        # Reading tokens that may not be drafted pays only where taking them back costs nothing.
        removes = context.max_rollback is None
        self._ahead = Ahead(context, self._n_vocab, beside) if beside and removes else None
        self.capabilities = Capabilities(reads_paths=removes, ahead=self._ahead)

    def begin(
        self, tokens: Sequence[int], proposer: Proposer, cancel: Cancel, *, anew: bool = False
    ) -> None:
        """Keep what the cache has in common with `tokens`; `anew` keeps nothing."""
        if self._ahead is not None:
            self._ahead.begin(proposer, cancel)
        self.context.watch(cancel)
        self._cancel = cancel
        if anew:
            self.excerpt = Excerpt(self.excerpt.last)
            self.context.clear()
        # The last token is decoded anew if need be: proposing needs its logits.
        if self.context.keep_prefix(self._unread(tokens[:-1], 0)) <= _FIRST:
            self.excerpt.left_out = 0
        self._proposer = proposer

    def state(self, tokens: Sequence[int]) -> DrafterState:
        """What the cache lacks of `tokens`, or would begin anew with."""
        ready = self._found(tokens)  # settles the cache
        state = self.excerpt.state(len(tokens), self._missing(tokens))
        return DrafterState(0, state.left_out) if ready else state

    def _missing(self, tokens: Sequence[int]) -> int:
        return len(tokens) - self.excerpt.left_out - len(self.context.tokens)

    def _found(self, tokens: Sequence[int]) -> Sequence[Logits]:
        """Logits of passes that were made ahead, in order."""
        return () if self._ahead is None else self._ahead.found(tokens)

    def _unread(self, tokens: Sequence[int], read: int) -> Sequence[int]:
        """What is to be read after the first `read` tokens of the cache."""
        left_out = self.excerpt.left_out
        if read >= _FIRST or not left_out:
            return tokens[read + left_out :]
        return [*tokens[read:_FIRST], *tokens[_FIRST + left_out :]]

    def propose(self, tokens: Sequence[int], plan: Plan, path: tuple[int, ...] = ()) -> Proposal:
        """Draft while the plan goes on.

        The draft is shorter after an end of generation, in a full context, where none of the
        draft's ids may follow, and where its logits are not a distribution. It is empty once the
        text holds an id that only the target has.
        """
        ready = self._found(tokens)
        guesses = self._ahead.take(tokens) if self._ahead is not None else ()
        if self.excerpt.begins_anew(len(tokens), 1 if ready else self._missing(tokens)):
            self.context.keep_prefix(tokens[:_FIRST])
            ready = ()
        cached = len(self.context.tokens) - len(guesses) * bool(ready)
        unread = self._unread(tokens, cached)
        self._held = cached + len(unread)
        limit = min(plan.limit, self.context.n_ctx - self._held + 1)
        if limit < 1 or max(unread, default=0) >= self.context.model.n_vocab:
            return Proposal(self.name, cached=cached)
        rows: Logits | Sequence[Logits] = ready
        if ready:  # the guesses take the place of the path
            path = guesses
        else:
            path = self._readable(path, min(limit - 1, self.context.n_batch - len(unread)))
            rows = self._read([*unread, *path], 1 + len(path))[:, : self._n_vocab]
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
            is_end=self.context.model.is_end,
        )
        drafted = Proposal(self.name, *written, cached=cached, passes=passes)
        if ready:
            return replace(drafted, kept=max(0, len(drafted.views) - passes))
        return replace(drafted, read=len(unread) + len(path), path=len(path))

    def _readable(self, path: tuple[int, ...], room: int) -> tuple[int, ...]:
        """The part of a path that the first decode reads."""
        n_vocab = self.context.model.n_vocab
        return tuple(takewhile(lambda token: token < n_vocab, path[: max(0, room)]))

    def _read(self, tokens: Sequence[int], n_logits: int) -> Logits:
        """Decode `tokens`; return the logits after the last ones, which fit into one decode."""
        step = self.context.n_batch
        for i in range(0, len(tokens), step):
            self._cancel.check()
            if i > 0:
                self.context.mark()
            logits = self.context.decode(tokens[i : i + step], n_logits)
        return logits

    def observe(self, tokens: Sequence[int], accepted: int) -> None:
        """Take what was rejected out of the cache.

        The cache never holds the newest token. Lookup may have continued the draft: the cache holds
        its accepted tokens only if they stood in the path. A recurrent draft goes back to where it
        began to draft, and reads the accepted tokens with the newest one.
        """
        self.excerpt.earn(accepted)
        if self._ahead is not None and self._ahead.outcome(tokens):
            return  # the cache is in use
        held, begun = self.context.tokens[self._held :], self._held + self.excerpt.left_out
        self.context.rewind(self._held + common_prefix(held, tokens[begun:-1]))
