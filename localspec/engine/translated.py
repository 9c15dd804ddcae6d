"""`TranslatedDrafter`: drafting with a small model whose tokens are not the target's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import ClassVar

from localspec.engine.cancel import Cancel
from localspec.engine.drafter import Drafted, Excerpt, write
from localspec.engine.length.stopping import Plan
from localspec.engine.llama import Context
from localspec.engine.llama.context import common_prefix
from localspec.engine.proposer import Proposer, argmax_proposer
from localspec.engine.sampling import Dist, Logits
from localspec.engine.stats import TRANSLATED
from localspec.engine.translation import Spelling, Translation
from localspec.engine.verify import Draft


@dataclass(frozen=True, slots=True)
class TextView:
    """A token of the target's that was cut from a draft's text.

    Attributes:
        token: the id.
        sure: how sure the draft was of the text in it: 0 to 1.
    """

    firm: ClassVar[bool] = False
    token: int
    sure: float

    def confidence(self) -> float:
        """How sure the draft was."""
        return self.sure

    def pick(self) -> tuple[int, None]:
        """The token."""
        return self.token, None

    def chance(self, p: Dist) -> float:
        """The target's probability of that very token."""
        return p.prob(self.token)


class TranslatedDrafter:
    """A small model with another vocabulary that writes ahead of the target.

    It reads the text in tokens of its own. Where the best guess is wanted it writes text with all
    that it has, and the target's tokenizer cuts that (SLEM). Where its distribution counts it
    chooses among the tokens that both have (TLI, 2502.05202). Of a long text it reads the end alone
    at first, as `ModelDrafter` does.

    Attributes:
        context: the draft model's context.
        name: what it is called in rounds, costs and figures.
    """

    reader = None
    reads_paths = False
    block = 0
    ahead = None

    def __init__(self, context: Context, translation: Translation, name: str = TRANSLATED) -> None:
        self.context = context
        self.name = name
        self._translation = translation
        self._spelling = Spelling(translation)
        self._cancel = Cancel()
        self._proposer: Proposer = argmax_proposer
        self._begun = False
        self._excerpt = Excerpt()
        self._held = 0  # tokens that the last proposal went on from
        self._read = 0  # of the target's tokens, so many are in the cache as text, or left out

    def begin(
        self, tokens: Sequence[int], proposer: Proposer, cancel: Cancel, *, anew: bool = False
    ) -> None:
        """Start a generation that continues `tokens`.

        They are spelled when the first draft is asked for, and all of them anew: what is drafted
        does not depend on what was there before.
        """
        self.context.watch(cancel)
        self._cancel = cancel
        self._proposer = proposer
        self._begun = True
        if anew:
            self._excerpt, self._read = Excerpt(), 0
            self.context.clear()
        left_out = self._excerpt.left_out
        same = common_prefix(self._spelling.tokens[: self._read - left_out], tokens[left_out:])
        self._excerpt.left_out = left_out if same else 0
        self._read = self._excerpt.left_out + same

    def lag(self, tokens: Sequence[int]) -> int:
        """What was not read yet, in tokens of the target."""
        return self._excerpt.lag(max(1, len(tokens) - self._read))

    def left_out(self, tokens: Sequence[int]) -> int:
        """What stands before the last tokens of a long text."""
        return self._excerpt.leaves_out(len(tokens), len(tokens) - self._read)

    def propose(
        self,
        tokens: Sequence[int],
        plan: Plan,
        path: tuple[int, ...] = (),  # noqa: ARG002 - of the target's tokens
    ) -> Drafted:
        """Draft while the plan goes on.

        None where the draft has no tokens for the text, or no room for it.
        """
        if self._excerpt.begins_anew(len(tokens), len(tokens) - self._read):
            self._begun = True
        same = self._spell(tokens[self._excerpt.left_out :])
        ids, context = self._spelling.ids, self.context
        limit = min(plan.limit, context.n_ctx - len(ids) + 1)
        if limit < 1 or not ids or not self._spelling.exact:
            return Drafted(self.name)
        context.rewind(same)
        cached = len(context.tokens)
        logits = self._decoded(ids)
        self._read = self._held = len(tokens)
        draft = self._text if self._proposer is argmax_proposer else self._shared
        drafted = draft(logits, tokens, plan, limit)
        return replace(drafted, read=len(ids) - cached, cached=cached)

    def _spell(self, tokens: Sequence[int]) -> int:
        """Follow the text; return how many tokens the cache holds as they should be."""
        same = 0
        if self._begun:
            self._spelling.begin()
            self._spelling.follow(tokens)
            self._begun = False
        else:
            same = min(self._spelling.follow(tokens), max(0, len(self._spelling.ids) - 1))
        # The last one is read in any case: its logits are what a draft begins with.
        return same + common_prefix(self.context.tokens[same:], self._spelling.ids[same:-1])

    def _decoded(self, ids: Sequence[int]) -> Logits:
        """Read what the cache lacks of `ids`; return the logits after the last one."""
        start, step = len(self.context.tokens), self.context.n_batch
        for i in range(start, len(ids), step):
            self._cancel.check()
            if i > start:
                self.context.mark()
            logits = self.context.decode(ids[i : i + step], 1)
        last: Logits = logits[0]
        return last

    def _step(self, ids: Sequence[int], drafted: int) -> Logits:
        """Read the so-many-th drafted token, in the draft's."""
        self._cancel.check()
        if drafted == 1:
            self.context.mark()
        last: Logits = self.context.decode(ids, 1)[0]
        return last

    def _shared(self, logits: Logits, tokens: Sequence[int], plan: Plan, limit: int) -> Drafted:
        """Choose among the tokens that both have."""
        translation = self._translation
        written = write(
            lambda row, drafted: self._proposer(row, tokens, drafted),
            lambda token, n: translation.row(self._step(translation.to_draft(token), n)),
            translation.row(logits)[None],
            plan=plan,
            limit=limit,
            is_end=translation.target.vocabulary.is_end,
        )
        return Drafted(self.name, *written)

    def _text(self, logits: Logits, tokens: Sequence[int], plan: Plan, limit: int) -> Drafted:
        """Write text, and cut it as the target would."""
        target, draft = self._translation.target, self._translation.draft
        written, views, confidences = write(
            lambda row, _: argmax_proposer(row, (), ()),
            lambda token, n: self._step([token], n),
            logits[None],
            plan=plan,
            limit=limit,
            is_end=draft.vocabulary.is_end,
        )
        ends = bool(written.tokens) and draft.vocabulary.is_end(written.tokens[-1])
        cut = self._translation.followed(tokens, draft.text(written.tokens[: -1 if ends else None]))
        if ends and target.vocabulary.end is not None:
            cut.append(target.vocabulary.end)
        if not written.tokens and views:  # a look that was too unsure: what it saw teaches as well
            guess, _ = views[0].pick()
            cut = self._translation.followed(tokens, draft.text([guess]))[:1]
            sure = confidences[: len(cut)]
            looked = [TextView(token, each) for token, each in zip(cut, sure, strict=False)]
            return Drafted(self.name, views=looked, confidences=sure, passes=1)
        sure = _shares(confidences, draft.lengths(written.tokens), target.lengths(cut))
        return Drafted(
            self.name,
            Draft(tuple(cut[:limit])),
            [TextView(token, each) for token, each in zip(cut[:limit], sure, strict=False)],
            sure[:limit] if confidences else (),
            passes=len(views),
        )

    def observe(self, tokens: Sequence[int], accepted: int) -> None:
        """The round is over; what was rejected goes when the text is spelled next."""
        self._excerpt.earn(accepted)
        self._read = min(len(tokens) - 1, self._held + accepted)


def _shares(
    confidences: Sequence[float], theirs: Sequence[int], ours: Sequence[int]
) -> list[float]:
    """How sure the draft was of each token that was cut from its text.

    That is the product of its confidences in the tokens that begin in it.

    Args:
        confidences: of the draft's tokens, or none.
        theirs: the lengths of these, in bytes.
        ours: of what was cut.
    """
    starts = [0, *accumulate(theirs)]
    found, at = [], 0
    for end in accumulate(ours):
        share = 1.0
        while at < min(len(confidences), len(theirs)) and starts[at] < end:
            share *= confidences[at]
            at += 1
        found.append(share)
    return found
