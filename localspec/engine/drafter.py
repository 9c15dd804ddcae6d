"""Drafters: what proposes tokens for the target to check.

A drafter proposes and observes. `ModelDrafter` is the small model beside the large one. Another
kind (a head, one with another vocabulary) needs only the `Drafter` protocol. Lookup
is asked in every round and needs none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Protocol

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

LOOK = 32
"""Tokens of a long text's end that a drafter begins with: with more the toy's draft and its head
hardly do better (docs/measurements/README.md), and where another one writes the answer this first
look is what a drafter costs."""

GAP = MAX_GAMMA + 1
"""Tokens that may be missing, about as many as a copy leaves behind: it reads on. Where more are it
begins anew."""

_FIRST = 4  # tokens of the text's beginning: models put there what attention they have to spare
# Tokens that are read for every one accepted: by a draft of a tenth of the target that takes half
# as long for a token it reads, in batches, as for one it writes, that is half of what was gained.
_EARNED = 8


@dataclass(frozen=True, slots=True)
class Drafted:
    """What a drafter that was asked came up with, and what that took.

    Attributes:
        drafter: its name; empty where nobody was asked.
        draft: the proposal.
        views: what its passes showed, in order, also one that led to no token. Their confidence is
            gone: the draft's logits have been overwritten.
        confidences: of these views, if the plan learns; else empty.
        read: tokens that it had to decode before it could propose.
        cached: tokens that its cache held already.
        tail: of the draft's tokens the last ones, if lookup added them: nobody's views.
        beyond: all that lookup would add to a model's tokens.
        passes: decodes of its own, where these are not as many as the views.
        path: of the tokens read, the last ones that lookup proposed.
        agreed: of what lookup would copy the first tokens that this drafted as well and went on
            from: so many passes are none where they were read before.
        begun: the first token that its cache knows of, where that is a head's.
        block: tokens that it guessed at once.
        kept: passes that were made beside the target's pass before.
        left_out: tokens of the sequence that its passes knew nothing of.
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
        """What a pass of the drafter's showed behind the whole draft; None without such a one."""
        looked = not self.tail.tokens and len(self.views) > self.own
        return self.views[self.own] if looked else None


class Drafter(Protocol):
    """Proposes tokens; learns what became of them.

    `begin` opens a generation, then `propose` and `observe` alternate, in the rounds for which the
    drafter was chosen; in the others it is asked for its lag alone. A drafter that was not asked
    for some rounds catches up by itself: `tokens` is always the whole sequence.
    """

    @property
    def name(self) -> str:
        """What it is called in rounds, costs and figures."""
        ...

    @property
    def reader(self) -> Listener | None:
        """Is shown the target's decodes while this may be asked to draft; None where it is blind.

        This is where hidden rows can be had: they are gone with the target's next decode. What
        stood in the target's cache before was never shown.
        """
        ...

    @property
    def reads_paths(self) -> bool:
        """Whether it can read what a cheaper drafter proposes in one pass (see `propose`)."""
        ...

    @property
    def block(self) -> int:
        """Tokens that it guesses in one pass at most, all at once; 0 where each takes a pass."""
        ...

    @property
    def ahead(self) -> Ahead | None:
        """What it reads while the target decodes; None where it waits."""
        ...

    def begin(
        self, tokens: Sequence[int], proposer: Proposer, cancel: Cancel, *, anew: bool = False
    ) -> None:
        """Start a generation that continues `tokens`; `anew` as if there had been none before."""
        ...

    def lag(self, tokens: Sequence[int]) -> int:
        """How many of `tokens` the first pass of a proposal would have to read; 0: it is made."""
        ...

    def left_out(self, tokens: Sequence[int]) -> int:
        """How many of `tokens` its passes leave out, as far as can be told; asked behind `lag`."""
        ...

    def propose(self, tokens: Sequence[int], plan: Plan, path: tuple[int, ...] = ()) -> Drafted:
        """Tokens that may follow `tokens`, as many as the plan wants.

        Args:
            tokens: all there is.
            plan: says when to stop.
            path: tokens that somebody cheaper proposes. What is drafted is what it would be without
                them (Cascade Speculative Drafting, 2312.11462): as long as that is the same token,
                there is no pass to wait for, and the first other one is drafted like any.

        Raises:
            Cancelled: the generation's `cancel` was set.
        """
        ...

    def observe(self, tokens: Sequence[int], accepted: int) -> None:
        """The round is over: `accepted` of the tokens it drafted stay; `tokens` is all there is."""
        ...


def write(
    look: Callable[[Logits, Sequence[int]], View],
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
        look: sees what the logits offer after what was drafted.
        follow: reads a token, the so-many-th that was drafted; returns the logits after it.
        rows: logits of the first token and of those behind each of `path`, shape
            (1 + len(path), n_vocab); gone with the first `follow`.
        path: tokens that were read already, in case that they are drafted.
        plan: says when to stop.
        limit: tokens at most.
        is_end: whether a token ends generation, and the draft.

    Returns:
        The draft, and views and confidences as `Drafted` has them.
    """
    drafted: list[int] = []
    drawn_from: list[Dist] = []
    views: list[View] = []
    confidences: list[float] = []
    firm, agreed, logits = 0, 0, rows[0]
    while True:
        try:
            view = look(logits, drafted)
        except SamplingError:  # no distribution; or none but the target has an id for it
            break
        confidence = view.confidence() if plan.learns else 0.0
        views.append(view)
        if plan.learns:
            confidences.append(confidence)
        # Nothing has been drawn yet: a draft that ends here is lossless under every rule.
        if not plan.wants_token(confidence, firm=view.firm):
            break
        token, q = view.pick()
        drafted.append(token)
        if q is not None:
            drawn_from.append(q)
        if view.firm:
            firm = len(drafted)
        if len(drafted) == limit or is_end(token):
            break
        if len(drafted) == agreed + 1 and path[agreed : agreed + 1] == (token,):
            agreed += 1
            logits = rows[agreed]
        elif plan.wants_pass():
            logits = follow(token, len(drafted))
        else:
            break
    return Draft(tuple(drafted), tuple(drawn_from) or None, firm), views, confidences


@dataclass(slots=True)
class Excerpt:
    """How much of a long text a draft reads: its end at first, all once that is earned.

    Attributes:
        last: tokens of the end that are read at first.
        left_out: tokens behind the first ones that the draft's cache knows nothing of.
        earned: tokens that it may read at once.
    """

    last: int = LOOK
    left_out: int = 0
    earned: int = 0

    def lag(self, missing: int) -> int:
        """What is read of so many tokens that the cache lacks."""
        return missing if self._reads_on(missing) else _FIRST + self.last

    def leaves_out(self, length: int, missing: int) -> int:
        """What is not read of a text of `length` tokens of which the cache lacks `missing`."""
        return self.left_out if self._reads_on(missing) else length - self.lag(missing)

    def _reads_on(self, missing: int) -> bool:
        return missing <= max(GAP, _FIRST + self.last)

    def begins_anew(self, length: int, missing: int) -> bool:
        """Choose what is read of a text of `length` tokens of which the cache lacks `missing`.

        Returns:
            whether the cache begins anew, behind the first few tokens.
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
        """So many drafted tokens were accepted."""
        self.earned += _EARNED * accepted


class ModelDrafter:
    """A small model that writes ahead of the target.

    The draft's cache is always a prefix of what the conversation holds: `observe` takes back what
    was rejected, `propose` decodes what is missing. After a draft accepted whole, its last token
    is missing, since nothing was to be proposed after it.

    Where much is missing, a long prompt above all, the draft begins on the first few tokens and the
    last ones alone: to read it all would take longer than a short answer gains. The cache holds
    them one behind the other, as if nothing stood between. All is read as soon as what was accepted
    has gained that time; a draft that is often right sees whole conversations.

    Attributes:
        context: the draft model's context.
        name: what it is called in rounds, costs and figures.
        excerpt: how much of a long text it reads.
        ahead: what it reads while the target decodes; None where it waits.
    """

    reader = None
    block = 0

    def __init__(
        self,
        context: Context,
        n_vocab: int,
        name: str = DRAFT,
        *,
        beside: Beside | None = None,
    ) -> None:
        """Draft with `context` for a target of `n_vocab` tokens.

        Ids that the target does not have are left out before anything is picked.

        Args:
            context: the draft model's.
            n_vocab: tokens that the target has.
            name: what it is called.
            beside: when to go on while the target decodes; None for never.
        """
        self.context = context
        self.name = name
        self._cancel = Cancel()
        self.excerpt = Excerpt()
        self._held = 0  # tokens of the cache that the last proposal went on from
        self._n_vocab = min(n_vocab, context.model.n_vocab)
        self._proposer: Proposer = argmax_proposer
        # What was read along another way has to go without reading again.
        goes_on = beside is not None and self.reads_paths
        self.ahead = Ahead(context, self._n_vocab, beside) if beside and goes_on else None

    @property
    def reads_paths(self) -> bool:
        """Unless taking back what it did not draft would mean to read again."""
        return self.context.takes_back is None

    def begin(
        self, tokens: Sequence[int], proposer: Proposer, cancel: Cancel, *, anew: bool = False
    ) -> None:
        """Keep of the cache what `tokens` begins with, or nothing: what was earned goes as well."""
        if self.ahead is not None:
            self.ahead.begin(proposer, cancel)
        self.context.watch(cancel)
        self._cancel = cancel
        if anew:
            self.excerpt = Excerpt(self.excerpt.last)
            self.context.clear()
        # The last token is decoded anew if need be: proposing needs its logits.
        if self.context.keep_prefix(self._unread(tokens[:-1], 0)) <= _FIRST:
            self.excerpt.left_out = 0
        self._proposer = proposer

    def lag(self, tokens: Sequence[int]) -> int:
        """What the cache lacks of `tokens`, or what it would begin anew with."""
        return 0 if self._found(tokens) else self.excerpt.lag(self._missing(tokens))

    def left_out(self, tokens: Sequence[int]) -> int:
        """What stands between the first tokens and the last ones of a long text."""
        return self.excerpt.leaves_out(len(tokens), self._missing(tokens))

    def _missing(self, tokens: Sequence[int]) -> int:
        return len(tokens) - self.excerpt.left_out - len(self.context.tokens)

    def _found(self, tokens: Sequence[int]) -> Sequence[Logits]:
        """Logits of passes that were made ahead, the first one's first."""
        return () if self.ahead is None else self.ahead.found(tokens)

    def _unread(self, tokens: Sequence[int], read: int) -> Sequence[int]:
        """What follows `read` tokens in the cache."""
        left_out = self.excerpt.left_out
        if read >= _FIRST or not left_out:
            return tokens[read + left_out :]
        return [*tokens[read:_FIRST], *tokens[_FIRST + left_out :]]

    def propose(self, tokens: Sequence[int], plan: Plan, path: tuple[int, ...] = ()) -> Drafted:
        """Draft while the plan goes on.

        Fewer after an end of generation, in a full context, where no id that the draft has may
        follow and where its logits are no distribution; none once the text holds an id that only
        the target has.
        """
        ready = self._found(tokens)
        guesses = self.ahead.take(tokens) if self.ahead is not None else ()
        if self.excerpt.begins_anew(len(tokens), 1 if ready else self._missing(tokens)):
            self.context.keep_prefix(tokens[:_FIRST])
            ready = ()
        cached = len(self.context.tokens) - len(guesses) * bool(ready)
        unread = self._unread(tokens, cached)
        self._held = cached + len(unread)
        limit = min(plan.limit, self.context.n_ctx - self._held + 1)
        if limit < 1 or max(unread, default=0) >= self.context.model.n_vocab:
            return Drafted(self.name, cached=cached)
        rows: Logits | Sequence[Logits] = ready
        if ready:  # what was guessed takes the place of the path
            path = guesses
        else:
            path = self._readable(path, min(limit - 1, self.context.n_batch - len(unread)))
            rows = self._read([*unread, *path], 1 + len(path))[:, : self._n_vocab]
        passes = int(not ready)

        def follow(token: int, drafted: int) -> Logits:
            nonlocal passes
            passes += 1
            self._cancel.check()
            self.context.rewind(self._held + drafted - 1)  # without what was not drafted of a path
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
        drafted = Drafted(self.name, *written, cached=cached, passes=passes)
        if ready:
            return replace(drafted, kept=max(0, len(drafted.views) - passes))
        return replace(drafted, read=len(unread) + len(path), path=len(path))

    def _readable(self, path: tuple[int, ...], room: int) -> tuple[int, ...]:
        """What of a path goes into the first decode: what is drafted behind it takes its own."""
        n_vocab = self.context.model.n_vocab
        return tuple(takewhile(lambda token: token < n_vocab, path[: max(0, room)]))

    def _read(self, tokens: Sequence[int], n_logits: int) -> Logits:
        """Decode `tokens`; return the logits after the last ones, of one decode at most."""
        step = self.context.n_batch
        for i in range(0, len(tokens), step):
            self._cancel.check()
            if i > 0:
                self.context.mark()
            logits = self.context.decode(tokens[i : i + step], n_logits)
        return logits

    def observe(self, tokens: Sequence[int], accepted: int) -> None:
        """Take what was rejected out of the cache: it may hold all but the newest token.

        Others may have continued the draft: what of theirs was accepted it read only if that stood
        in its path. A recurrent draft goes back to where it began to draft, and reads what was
        accepted with the newest token.
        """
        self.excerpt.earn(accepted)
        if self.ahead is not None and self.ahead.outcome(tokens):
            return  # the cache is in use
        held, begun = self.context.tokens[self._held :], self._held + self.excerpt.left_out
        self.context.rewind(self._held + common_prefix(held, tokens[begun:-1]))
