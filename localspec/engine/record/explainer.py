"""Explains a round: the draft, what draft and target thought of it, and why the rule decided so.

A `PassRecorder` keeps the draft's passes while the round is made, or made again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from localspec.drafter_names import LOOKUP
from localspec.engine.drafters.proposer import Proposer, View, banned_ends
from localspec.engine.drafters.protocol import Drafter
from localspec.engine.exact_ids import Vocabulary
from localspec.engine.record.explanation import (
    Candidate,
    GuessedToken,
    RoundExplanation,
    TokenProbabilities,
)
from localspec.engine.record.round_record import GenerationRecord, RoundRecord
from localspec.engine.record.verdict_explainer import (
    Case,
    ExplainedVerdict,
    TokenText,
    explain_verdict,
)
from localspec.engine.round.acceptance import Verification
from localspec.engine.round.sampling import Dist, Logits, TargetRows, logprobs
from localspec.engine.round.verify import Draft, Verdict

_BEST = 5  # candidates of a position
_BEFORE = 160  # tokens of the text before the round


class PassRecorder:
    """A `Proposer` that keeps the logits of the draft's passes; it changes no proposal.

    Args:
        proposer: the generation's own.
        drafted: tokens that are proposed first, whatever is drawn.

    Attributes:
        logits: the target's rows along the draft, once they are known.
    """

    def __init__(self, proposer: Proposer, drafted: Sequence[int] = ()) -> None:
        self.proposer = proposer
        self._drafted = drafted
        self._passes: list[Logits] = []
        self.logits: Logits | None = None

    def __call__(self, logits: Logits, tokens: Sequence[int], drafted: Sequence[int]) -> View:
        """Keep the logits; otherwise as every `Proposer`."""
        self._passes.append(logits.copy())  # the next pass writes over it
        view = self.proposer(logits, tokens, drafted)
        wanted = self._drafted[len(drafted) : len(drafted) + 1]
        return _Forced(view, wanted[0]) if wanted else view

    def of_draft(
        self, i: int, token: int, draft: Draft, word: TokenText
    ) -> TokenProbabilities | None:
        """The draft's probabilities at its token `i`; None if they are not known."""
        if i >= len(self._passes):
            return None
        if draft.q is not None:
            return _after_chain(draft.q[i], token, word)
        return before_choice(self._passes[i], token, word)


@dataclass(frozen=True, slots=True)
class _Forced:
    """A view that picks a given token, which was picked there before."""

    view: View
    token: int

    @property
    def must_verify(self) -> bool:
        """Whether the view's token must be submitted."""
        return self.view.must_verify

    def confidence(self) -> float:
        """How sure the view is."""
        return self.view.confidence()

    def pick(self) -> tuple[int, Dist | None]:
        """The given token, with the view's q."""
        return self.token, getattr(self.view, "q", None)

    def chance(self, p: Dist) -> float:
        """The view's chance that the target, drawing from `p`, accepts."""
        return self.view.chance(p)


def can_record(drafter: Drafter, proposer: Proposer, target: Vocabulary) -> bool:
    """Whether the drafter's passes propose the target's tokens, and not text that is cut later."""
    writes_text = banned_ends(proposer, target.end_tokens) is not None
    return not (drafter.capabilities.own_vocabulary and writes_text)


def before_choice(logits: Logits, token: int, word: TokenText) -> TokenProbabilities:
    """The softmax of logits (n_vocab,), of which a greedy sampler takes the largest."""
    (found,) = logprobs(logits[None], [token], _BEST)
    best = tuple(Candidate(word(one), math.exp(share)) for one, share in found.best)
    return TokenProbabilities(math.exp(found.logprob), best)


def _after_chain(dist: Dist, token: int, word: TokenText) -> TokenProbabilities:
    order = (-dist.probs).argsort(kind="stable")[:_BEST]
    best = (Candidate(word(int(dist.ids[i])), float(dist.probs[i])) for i in order)
    return TokenProbabilities(dist.prob(token), tuple(best))


@dataclass(frozen=True, slots=True)
class Explainer:
    """Explains rounds of one generation.

    Attributes:
        passes: of the draft in the round, and the target's rows.
        model: the target.
    """

    how: Verification
    record: GenerationRecord
    passes: PassRecorder
    model: Vocabulary

    def explain(self, number: int, draft: Draft, p: TargetRows, *, again: bool) -> RoundExplanation:
        """Explain round `number`, with its draft and the target's rows `p` along it."""
        record, made, how = self.record, self.record.rounds[number - 1], self.how
        case = Case(how, draft, p, made.position)
        found = explain_verdict(case, how.noise.after(made.drawn), self._word)
        begin, end = max(0, made.position - _BEFORE), made.position
        before = map(self.model.piece, record.tokens[begin:end])
        count = len(record.rounds)
        return RoundExplanation(
            number=number,
            rounds=count,
            earlier=record.drafted(range(number - 1, 0, -1)),
            later=record.drafted(range(number + 1, count + 1)),
            before=b"".join(before).decode("utf-8", "replace"),
            rule="coupled" if how.coupled else how.name,
            greedy=how.greedy,
            guesses=self._guesses(made, draft, p, found),
            accepted=made.verdict.accepted,
            token=self._word(made.verdict.token),
            last=self._last(made.verdict, found),
            made=made.figures,
            baseline_s=record.baseline_s(),
            again=again,
            same=found.verdict == made.verdict,
        )

    def _guesses(
        self, made: RoundRecord, draft: Draft, p: TargetRows, found: ExplainedVerdict
    ) -> tuple[GuessedToken, ...]:
        seen, tests = p.seen(), dict(enumerate(found.tests))
        return tuple(
            GuessedToken(
                text=self._word(token),
                drafter=made.figures.drafter if i < made.own else LOOKUP,
                draft=self.passes.of_draft(i, token, draft, self._word) if i < made.own else None,
                target=self._target(i, token, seen[i]) if i in seen else None,
                test=tests.get(i),
            )
            for i, token in enumerate(draft.tokens)
        )

    def _target(self, i: int, token: int, row: Dist) -> TokenProbabilities:
        """The target's probabilities at position `i` of the draft, where its row is `row`."""
        if self.how.greedy and self.passes.logits is not None:
            return before_choice(self.passes.logits[i], token, self._word)
        return _after_chain(row, token, self._word)

    def _last(self, verdict: Verdict, found: ExplainedVerdict) -> TokenProbabilities | None:
        if found.last is None and not self.how.greedy:
            return None
        return self._target(verdict.accepted, verdict.token, found.last or Dist.point(0))

    def _word(self, token: int) -> str:
        return self.model.piece(token, special=True).decode("utf-8", "replace")
