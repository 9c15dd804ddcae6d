"""`CrossVocabularyDrafter`: drafting with a small model whose tokens are not the target's."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from localspec.drafter_names import CROSS_VOCABULARY
from localspec.engine.cancel import Cancel
from localspec.engine.common_prefix import common_prefix
from localspec.engine.drafters.cross_vocabulary import Spelling, VocabularyMap
from localspec.engine.drafters.proposer import (
    ArgmaxView,
    GuessView,
    Proposer,
    argmax_proposer,
    banned_ends,
)
from localspec.engine.drafters.protocol import Capabilities, Proposal
from localspec.engine.drafters.steps import Excerpt, read, write
from localspec.engine.length.stopping import Askable, Plan
from localspec.engine.llama import Context
from localspec.engine.round.sampling import Logits
from localspec.engine.round.verify import Draft


@dataclass(frozen=True, slots=True)
class TextView(GuessView):
    """One of the target's tokens, cut from text that the draft model wrote.

    Attributes:
        sure: how sure the model was of the token's text: 0 to 1.
    """

    sure: float

    def confidence(self) -> float:
        """How sure the model was."""
        return self.sure


class CrossVocabularyDrafter:
    """Drafts with a small model that has another vocabulary.

    It reads the text in its own tokens. Where the rule asks for the best guess, it writes text with
    its whole vocabulary, and the target's tokenizer cuts that text (SLEM). Where its distribution
    counts, or tokens other than ends are forbidden, it chooses among the tokens that both
    vocabularies have (TLI, 2502.05202). Of a long text it reads the end or all, as the plan wants.
    """

    capabilities = Capabilities(own_vocabulary=True)

    def __init__(
        self, context: Context, vocabularies: VocabularyMap, name: str = CROSS_VOCABULARY
    ) -> None:
        self.context = context
        self.name = name
        self._vocabularies = vocabularies
        self._spelling = Spelling(vocabularies)
        self._cancel = Cancel()
        self._proposer: Proposer = argmax_proposer
        self._banned: frozenset[int] | None = frozenset()
        self._begun = False
        self._prompt = 0  # the target's tokens of it, until its end is read
        self._excerpt = Excerpt(room=context.n_ctx, cuts_back=context.max_rollback is None)
        self._held = 0  # tokens that the last proposal went on from
        self._read = 0  # of the target's tokens, how many are in the cache as text, or left out

    def begin(
        self,
        tokens: Sequence[int],
        proposer: Proposer,
        cancel: Cancel,
        *,
        anew: bool = False,
        answered: int = 0,
    ) -> None:
        """Start a generation that continues `tokens`.

        All of them are spelled anew for the first draft, so that it does not depend on earlier
        generations.
        """
        self.context.watch(cancel)
        self._cancel = cancel
        self._proposer = proposer
        self._banned = banned_ends(proposer, self._vocabularies.target.vocabulary.end_tokens)
        self._begun = True
        self._prompt = len(tokens) - answered
        if anew:
            self._excerpt.left_out = self._read = 0
            self.context.clear()
        self._excerpt.room = self.context.n_ctx
        held = self._spelling.tokens[: max(0, self._read - self._excerpt.left_out)]
        same = self._excerpt.resume(held, tokens)
        self._read = self._held = self._excerpt.left_out + same

    def state(self, tokens: Sequence[int]) -> Askable:
        """What was not read yet, and what is left out, in the target's tokens."""
        return self._excerpt.state(len(tokens), max(1, len(tokens) - self._read))

    def propose(
        self,
        tokens: Sequence[int],
        plan: Plan,
        path: tuple[int, ...] = (),  # noqa: ARG002 - of the target's tokens
    ) -> Proposal:
        """Draft while the plan goes on.

        The draft is empty if the model has no tokens for the text, or no room for it.
        """
        missing = len(tokens) - self._read
        if self._excerpt.cuts(len(tokens), missing, whole=plan.whole):
            self._begun = True
        same = self._spell(self._excerpt.known(tokens))
        ids, context = self._spelling.ids, self.context
        limit = min(plan.limit, context.n_ctx - len(ids) + 1)
        if limit < 1:  # another spelling of the text may be longer than the text
            self._excerpt.room = len(tokens) - self._excerpt.left_out - 1
        if limit < 1 or not ids or not self._spelling.exact:
            return Proposal(self.name)
        context.rewind(same)
        cached = len(context.tokens)
        after = self._after_prompt(tokens)
        logits = read(context, self._cancel, ids[cached:], 1, after=after)[0]
        self._read = self._held = len(tokens)
        draft = self._shared if self._banned is None else self._text
        drafted = draft(logits, tokens, plan, limit)
        return replace(drafted, read=len(ids) - cached, cached=cached)

    def _after_prompt(self, tokens: Sequence[int]) -> int | None:
        """How many of the model's ids spell what follows the prompt, if its end is read now."""
        prompt, self._prompt = self._prompt, 0
        if not prompt:
            return None
        answer = Spelling(self._vocabularies)
        answer.follow(tokens[prompt:])
        return len(answer.ids)

    def _spell(self, tokens: Sequence[int]) -> int:
        """Follow the text; return how many tokens of the cache are right."""
        same = 0
        if self._begun:
            self._spelling.begin()
            self._spelling.follow(tokens)
            self._begun = False
        else:
            same = min(self._spelling.follow(tokens), max(0, len(self._spelling.ids) - 1))
        # The last token is always read: a draft begins with its logits.
        return same + common_prefix(self.context.tokens[same:], self._spelling.ids[same:-1])

    def _step(self, ids: Sequence[int], drafted: int) -> Logits:
        """Read a drafted token, given as the model's `ids`; `drafted` is its index, from 1."""
        if drafted == 1:
            self.context.mark()
        last: Logits = read(self.context, self._cancel, ids, 1)[0]
        return last

    def _shared(self, logits: Logits, tokens: Sequence[int], plan: Plan, limit: int) -> Proposal:
        """Choose among the tokens that both vocabularies have."""
        both = self._vocabularies
        draft, views, confidences = write(
            lambda row, drafted: self._proposer(row, tokens, drafted),
            lambda token, n: both.row(self._step(both.to_draft(token), n)),
            both.row(logits)[None],
            plan=plan,
            limit=limit,
            ends=lambda drafted: both.target.vocabulary.is_end(drafted[-1]),
        )
        return Proposal(self.name, draft, views, confidences)

    def _text(self, logits: Logits, tokens: Sequence[int], plan: Plan, limit: int) -> Proposal:
        """Write text, and cut it as the target would.

        While it grows the plan counts the model's tokens, then those that were cut: the target's
        pass takes what these cost. A text of as many as the plan's limit ends the draft.
        """
        target, draft = self._vocabularies.target, self._vocabularies.draft
        endless = target.vocabulary.end in (self._banned or ())

        def guess(row: Logits, _: Sequence[int]) -> ArgmaxView:
            seen = argmax_proposer(row, (), ())
            if not endless or not draft.vocabulary.is_end(seen.token):
                return seen
            row = row.copy()
            row[[*draft.vocabulary.end_tokens]] = -math.inf
            return argmax_proposer(row, (), ())

        def full(written: Sequence[int]) -> bool:
            if draft.vocabulary.is_end(written[-1]):
                return True
            # To cut a text takes longer than to add up what its tokens are one by one.
            likely = sum(map(self._vocabularies.alone, written)) >= plan.limit
            return likely and len(self._cut(tokens, written)) >= plan.limit

        written, views, confidences = write(
            guess,
            lambda token, n: self._step([token], n),
            logits[None],
            plan=plan,
            limit=limit,
            ends=full,
        )
        text = written.tokens
        if not text and views:  # the policy also learns from a guess that was too unsure
            text = (views[0].pick()[0],)
        cut = self._cut(tokens, text)[: plan.limit]
        sure = _shares(confidences, draft.lengths(text), target.lengths(cut))
        if written.tokens:
            plan.recount(sure)
        return Proposal(
            self.name,
            Draft(tuple(cut) if written.tokens else ()),
            [TextView(token, each) for token, each in zip(cut, sure, strict=True)],
            sure if confidences else (),
            passes=len(views),
        )

    def _cut(self, tokens: Sequence[int], written: Sequence[int]) -> list[int]:
        """The target's tokens for what the model wrote after `tokens`."""
        both = self._vocabularies
        ends = bool(written) and both.draft.vocabulary.is_end(written[-1])
        cut = both.followed(tokens, both.draft.text(written[: -1 if ends else None]))
        if ends and both.target.vocabulary.end is not None:
            cut.append(both.target.vocabulary.end)
        return cut

    def observe(self, tokens: Sequence[int], accepted: int) -> None:
        """Note what was accepted; rejected tokens go when the text is spelled next."""
        self._read = min(len(tokens) - 1, self._held + accepted)


def _shares(
    confidences: Sequence[float], theirs: Sequence[int], ours: Sequence[int]
) -> list[float]:
    """How sure the draft model was of each of the target's tokens that were cut from its text.

    Where several of the model's tokens begin within one of these, their confidences are multiplied.

    Args:
        confidences: in the model's tokens, or none.
        theirs: lengths of the model's tokens, in bytes.
        ours: lengths of the tokens that were cut, in bytes.
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
