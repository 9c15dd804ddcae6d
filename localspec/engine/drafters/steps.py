"""Steps that drafters share: how much of a text to read, reading it, and writing a draft."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from localspec.engine.cancel import Cancel
from localspec.engine.common_prefix import common_prefix
from localspec.engine.drafters.proposer import View
from localspec.engine.length.stopping import Askable, Plan
from localspec.engine.llama import Context
from localspec.engine.round.sampling import Dist, Logits
from localspec.engine.round.verify import Draft
from localspec.errors import EngineError, SamplingError
from localspec.limits import MAX_GAMMA

EXCERPT_TOKENS = 32
"""Tokens at the end of a long text that a drafter reads where it does not read all. To a real draft
all are worth much more (docs/measurements/lookup.md), but may cost more than an answer gains."""

GAP = MAX_GAMMA + 1
"""A drafter catches up on this many missing tokens, about the length of a copied draft. Of more it
reads the end."""

# Tokens at the beginning of the text, which are always read: models rest spare attention there.
FIRST_TOKENS = 4


# Tokens at the end of a prompt that the next one may lack, as templates may open an answer in other
# words than they tell it later.
_ENDING = 16


@dataclass(slots=True)
class Excerpt:
    """How much of a long text a draft reads: its end, or all of it where the plan wants that.

    Where the draft's cache lacks much of a text, it leaves out all but the end of what it lacks,
    as if nothing stood there.

    Attributes:
        last: tokens at the end that are read where the plan wants no more.
        first: tokens at the beginning of the text, up to those that are left out.
        left_out: tokens that are left out.
        room: tokens of the longest text that the cache can hold.
        cuts_back: whether the cache can be cut to its first tokens; if not, it begins anew.
    """

    last: int = EXCERPT_TOKENS
    first: int = FIRST_TOKENS
    left_out: int = 0
    room: int = 1 << 30
    cuts_back: bool = True

    def known(self, tokens: Sequence[int], start: int = 0) -> Sequence[int]:
        """A text without what is left out, from the token number `start` of that on."""
        if start >= self.first or not self.left_out:
            return tokens[start + self.left_out :]
        return [*tokens[start : self.first], *tokens[self.first + self.left_out :]]

    def resume(self, held: Sequence[int], tokens: Sequence[int]) -> int:
        """Go on with a text; return how many tokens of what the cache holds are right."""
        whole = common_prefix(held, tokens)
        if self.left_out and (same := common_prefix(held, self.known(tokens))) > whole:
            return same
        self.left_out = 0
        return whole

    def state(self, length: int, missing: int) -> Askable:
        """The state for a text of `length` tokens, of which the cache lacks `missing`."""
        kept = self._kept(length, missing)
        lacks = length - kept if self.left_out else missing
        whole = lacks if self._holds(length) else 0
        if self._reads_on(length, missing):
            return Askable(missing, self.left_out, whole)
        first = self._first(kept)
        stays = min(first, kept) if self.cuts_back or first >= kept else 0
        return Askable(first - stays + self.last, length - first - self.last, whole)

    def cuts(self, length: int, missing: int, *, whole: bool) -> bool:
        """Choose what to read of a text.

        Args:
            length: tokens of the text.
            missing: those of them that the cache lacks.
            whole: whether nothing is to be left out, if there is room.

        Returns:
            Whether the cache is to be cut to its first `first` tokens, or emptied.
        """
        if whole and self._holds(length):
            cut, self.left_out = self.left_out > 0, 0
            return cut
        if self._reads_on(length, missing):
            return False
        self.first = self._first(self._kept(length, missing))
        self.left_out = length - self.first - self.last
        return True

    def _holds(self, length: int) -> bool:
        """Whether the cache can hold all of a text, and of what follows as much as `GAP`."""
        return length + GAP <= self.room

    def _reads_on(self, length: int, missing: int) -> bool:
        near = missing <= max(GAP, FIRST_TOKENS + self.last)
        return near and length - self.left_out <= self.room

    def _kept(self, length: int, missing: int) -> int:
        """Tokens at the beginning of the text that the cache can be cut to."""
        if not self.left_out:
            return length - missing
        return self.first if self.cuts_back else 0

    def _first(self, kept: int) -> int:
        """Tokens to know before those that are to be left out."""
        return max(FIRST_TOKENS, kept if self._holds(kept + self.last) else 0)


def read(
    context: Context,
    cancel: Cancel,
    tokens: Sequence[int],
    n_logits: int,
    *,
    after: int | None = None,
) -> Logits:
    """Decode `tokens`, several at a time; return the logits after the last `n_logits` of them.

    These must fit into one decode. Of a prompt, a state is marked to which another answer and the
    next prompt can go back.

    Args:
        context: of the draft.
        cancel: stops it.
        tokens: what the cache lacks of the text.
        n_logits: for how many of them logits are returned.
        after: how many of them follow the prompt, whose end is among them; None if it is not.

    Raises:
        Cancelled: `cancel` was set; what was read stays in the cache.
    """
    end = len(tokens)
    prompt = 0 if after is None or context.max_rollback is None else end - after
    ending = max(0, prompt - _ENDING)
    starts = [*range(0, ending, context.n_batch), *range(ending, end, context.n_batch)]
    for start, stop in pairwise([*starts, end]):
        cancel.check()
        lasting = prompt > 0 and start == ending
        if start > 0 or prompt > 0:  # even the first: without a mark, a stop empties the cache
            context.mark(lasting=int(lasting))
        logits = context.decode(tokens[start:stop], n_logits if stop == end else 0)
    return logits


def write(
    view_of: Callable[[Logits, Sequence[int]], View],
    follow: Callable[[int, int], Logits],
    rows: Logits | Sequence[Logits],
    *,
    path: tuple[int, ...] = (),
    plan: Plan,
    limit: int,
    ends: Callable[[Sequence[int]], bool],
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
        ends: whether a draft ends with its last token.

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
        except (SamplingError, EngineError):  # none, or none over ids that the target has
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
        if len(drafted) == limit or ends(drafted):
            break
        if len(drafted) == agreed + 1 and path[agreed : agreed + 1] == (token,):
            agreed += 1
            logits = rows[agreed]
        elif plan.wants_pass():
            logits = follow(token, len(drafted))
        else:
            break
    return Draft(tuple(drafted), tuple(drawn_from) or None, must_verify), views, confidences
