"""A look inside a round: what was guessed, what the target thought of it, and why it came out so.

A round that somebody looks at while it is made is noted as it happens; any other is decoded again
from what a generation keeps of it: which tokens were drafted, and how many numbers had been drawn.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from localspec.engine.acceptance import Verification, verification
from localspec.engine.drafter import EXCERPT_TOKENS
from localspec.engine.explanation import (
    Candidate,
    GuessedToken,
    RoundExplanation,
    TokenProbabilities,
)
from localspec.engine.length.stopping import Plan
from localspec.engine.proposer import Proposer, View, argmax_proposer
from localspec.engine.sampling import Dist, Logits, TargetRows, logprobs
from localspec.engine.stats import LOOKUP, Round
from localspec.engine.verdict_explainer import Case, ExplainedVerdict, TokenText, explain_verdict
from localspec.engine.verify import Draft, Verdict
from localspec.errors import EngineError

if TYPE_CHECKING:
    from localspec.engine.cancel import Cancel
    from localspec.engine.drafter import Drafter, Proposal
    from localspec.engine.generate import Engine, GenerateSettings

_BARS = 5
_BEFORE = 160  # tokens of the text before that are told


@dataclass(frozen=True, slots=True)
class RoundRecord:
    """What is kept of a round.

    Attributes:
        position: tokens before it.
        drafted: the tokens that were proposed.
        own: how many of them, from the first, are the drafter's; lookup added the others.
        verdict: what came of them.
        drawn: numbers that the target had drawn before.
        figures: the round's.
        begun, block: as `Proposal` has them.
    """

    position: int
    drafted: tuple[int, ...]
    own: int
    verdict: Verdict
    drawn: int
    figures: Round
    begun: int = 0
    block: int = 0

    @classmethod
    def of(cls, asked: Proposal, verdict: Verdict, drawn: int, figures: Round) -> RoundRecord:
        """What came of a proposal."""
        kept = asked.draft.tokens, asked.own, verdict, drawn, figures
        return cls(figures.context, *kept, begun=asked.begun, block=asked.block)


@dataclass(slots=True)
class GenerationRecord:
    """A generation as far as it is written.

    Attributes:
        settings: how it runs, with the seed in force.
        tokens: the prompt and all that was emitted; grows.
        begun: tokens of the prompt.
        rounds: what is kept of each.
    """

    settings: GenerateSettings
    tokens: list[int]
    begun: int
    rounds: list[RoundRecord] = field(default_factory=list)

    def drafted(self, numbers: Iterable[int]) -> int:
        """The first of these rounds that has a draft; 0 for none."""
        return next((number for number in numbers if self.rounds[number - 1].drafted), 0)

    def latest(self) -> int:
        """The last round that has a draft, else the last one, by number."""
        return self.drafted(range(len(self.rounds), 0, -1)) or len(self.rounds)

    def plain_s(self) -> float:
        """Seconds of a plain round."""
        # A draft may have been asked that then proposed nothing: that is no part of it.
        plain = [one.figures.undrafted_s for one in self.rounds if not one.drafted]
        return statistics.median(plain[1:] or plain or [0.0])  # the first one warms up


class PassRecorder:
    """Sees what a draft's passes show, for whoever looks inside; proposes as it would without.

    Args:
        proposer: the generation's own.
        drafted: tokens to be proposed first, whatever is drawn now.

    Attributes:
        proposer: the same.
        logits: a copy of the target's rows, once they are there.
    """

    def __init__(self, proposer: Proposer, drafted: Sequence[int] = ()) -> None:
        self.proposer = proposer
        self._drafted = drafted
        self._passes: list[Logits] = []
        self.logits: Logits | None = None

    def __call__(self, logits: Logits, tokens: Sequence[int], drafted: Sequence[int]) -> View:
        """Keep the logits, and see what may follow, as every `Proposer`."""
        self._passes.append(logits.copy())  # the next pass writes over it
        view = self.proposer(logits, tokens, drafted)
        wanted = self._drafted[len(drafted) : len(drafted) + 1]
        return _Forced(view, wanted[0]) if wanted else view

    def of_draft(
        self, i: int, token: int, draft: Draft, word: TokenText
    ) -> TokenProbabilities | None:
        """What the draft thought of its token `i`."""
        if i >= len(self._passes):
            return None
        if draft.q is not None:
            return _side(draft.q[i], token, word)
        return before_choice(self._passes[i], token, word)


@dataclass(frozen=True, slots=True)
class _Forced:
    """A view of which a token is picked that was picked before."""

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
        """The token of then, with the q of now."""
        return self.token, getattr(self.view, "q", None)

    def chance(self, p: Dist) -> float:
        """The view's chance that the target, drawing from `p`, accepts."""
        return self.view.chance(p)


def can_record(drafter: Drafter, proposer: Proposer) -> bool:
    """Whether a drafter's passes are over the target's tokens, not over text that is cut later."""
    return not (drafter.capabilities.own_vocabulary and proposer is argmax_proposer)


def before_choice(logits: Logits, token: int, word: TokenText) -> TokenProbabilities:
    """The softmax of logits (n_vocab,): what a model thinks before its best token is taken."""
    (found,) = logprobs(logits[None], [token], _BARS)
    bars = tuple(Candidate(word(one), _exp(share)) for one, share in found.best)
    return TokenProbabilities(_exp(found.logprob), bars)


def _exp(logprob: float) -> float:
    return math.exp(logprob)


def _side(dist: Dist, token: int, word: TokenText) -> TokenProbabilities:
    order = (-dist.probs).argsort(kind="stable")[:_BARS]
    bars = (Candidate(word(int(dist.ids[i])), float(dist.probs[i])) for i in order)
    return TokenProbabilities(dist.prob(token), tuple(bars))


class Pieces(Protocol):
    """What turns tokens into text."""

    def piece(self, token: int, *, special: bool = False) -> bytes:
        """The bytes of a token; control tokens have some if they are asked for."""
        ...


@dataclass(frozen=True, slots=True)
class Explainer:
    """A look inside a round that is being made, or decoded again.

    Attributes:
        how: how its generation draws.
        written: the generation.
        sight: what was seen of the draft's passes, and the target's rows.
        model: the target.
    """

    how: Verification
    written: GenerationRecord
    sight: PassRecorder
    model: Pieces

    def inside(self, number: int, draft: Draft, p: TargetRows, *, again: bool) -> RoundExplanation:
        """All that happened inside round `number`, whose draft and rows of the target these are."""
        written, made, how = self.written, self.written.rounds[number - 1], self.how
        case = Case(how.name, how.lenience, how.coupled, how.greedy, draft, p, made.position)
        found = explain_verdict(case, how.noise.after(made.drawn), self._word)
        begin, end = max(0, made.position - _BEFORE), made.position
        before = map(self.model.piece, written.tokens[begin:end])
        count = len(written.rounds)
        return RoundExplanation(
            number=number,
            rounds=count,
            earlier=written.drafted(range(number - 1, 0, -1)),
            later=written.drafted(range(number + 1, count + 1)),
            before=b"".join(before).decode("utf-8", "replace"),
            rule="coupled" if how.coupled else how.name,
            greedy=how.greedy,
            guesses=self._guesses(made, draft, p, found),
            accepted=made.verdict.accepted,
            token=self._word(made.verdict.token),
            last=self._last(made.verdict, found),
            made=made.figures,
            plain_s=written.plain_s(),
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
                draft=self.sight.of_draft(i, token, draft, self._word) if i < made.own else None,
                target=self._target(i, token, seen[i]) if i in seen else None,
                test=tests.get(i),
            )
            for i, token in enumerate(draft.tokens)
        )

    def _target(self, i: int, token: int, row: Dist) -> TokenProbabilities:
        """What the target thought of a token at position `i`, where its row is `row`."""
        if self.how.greedy and self.sight.logits is not None:
            return before_choice(self.sight.logits[i], token, self._word)
        return _side(row, token, self._word)

    def _last(self, verdict: Verdict, found: ExplainedVerdict) -> TokenProbabilities | None:
        if found.last is None and not self.how.greedy:
            return None
        return self._target(verdict.accepted, verdict.token, found.last or Dist.point(0))

    def _word(self, token: int) -> str:
        return self.model.piece(token, special=True).decode("utf-8", "replace")


def explain_again(
    engine: Engine, written: GenerationRecord, number: int, cancel: Cancel
) -> RoundExplanation:
    """Decode a round again and look inside; the caches are left at that place.

    Args:
        engine: the one that wrote it, between two generations.
        written: the generation.
        number: the round, from 1.
        cancel: stops it.

    Raises:
        Cancelled: `cancel` was set.
        EngineError: the drafter does not propose there any more.
    """
    settings, made = written.settings, written.rounds[number - 1]
    tokens = written.tokens[: made.position]
    how = verification(
        settings.accept,
        settings.sampling,
        constraint=settings.constraint,
        lenience=settings.lenience,
    )
    how.sampler.accept(tokens[written.begun :])
    look = Explainer(how, written, PassRecorder(how.proposer, made.drafted), engine.target.model)
    draft = _drafted_again(engine, made, tokens, look.sight, cancel)
    for _ in engine.prefill(tokens, cancel):
        cancel.check()
    engine.target.mark(len(made.drafted) + 1)
    logits = engine.target.decode([tokens[-1], *made.drafted], len(made.drafted) + 1)
    look.sight.logits = logits
    rows = how.sampler.rows(logits, tokens, made.drafted)
    found = look.inside(number, draft, rows, again=True)
    engine.target.truncate(made.position - 1)
    return found


def _drafted_again(
    engine: Engine, made: RoundRecord, tokens: Sequence[int], sight: PassRecorder, cancel: Cancel
) -> Draft:
    """The draft of then, with the rows that it was drawn from."""
    own, copied = made.drafted[: made.own], made.drafted[made.own :]
    drafter = engine.drafters.get(made.figures.drafter)
    if drafter is None or not own or not can_record(drafter, sight.proposer):
        return Draft(own).followed_by(copied)
    if drafter.capabilities.listener is not None:
        _show(engine, drafter, tokens, made.begun, cancel)
    drafter.begin(tokens, sight, cancel)
    asked = drafter.propose(tokens, Plan(max(made.own, made.block), drafter.name)).draft
    drafter.observe(tokens, 0)
    draft = Draft(asked.tokens[: made.own], asked.q and asked.q[: made.own])
    rows = draft.q or ()
    drawn = all(q.prob(token) > 0 for q, token in zip(rows, own, strict=False))
    if draft.tokens != own or not drawn:
        raise EngineError(
            f"the {drafter.name} does not draft here any more",
            "Answer again (F5) and look while the answer is written.",
        )
    return draft.followed_by(copied)


def _show(
    engine: Engine, drafter: Drafter, tokens: Sequence[int], begun: int, cancel: Cancel
) -> None:
    """Show a drafter what it had read by then, part by part: it begins with the last part alone.

    Where it has something to draft after each part it reads that.
    """
    engine.target.clear()
    drafter.begin(tokens, argmax_proposer, cancel)
    last = len(tokens) - 1
    for end in (*range(begun + EXCERPT_TOKENS, last, EXCERPT_TOKENS), last):
        for _ in engine.prefill(tokens[:end], cancel):
            cancel.check()
        engine.target.decode(tokens[end - 1 : end], 0)
        if end < last:
            drafter.propose(tokens[: end + 1], Plan(1, drafter.name))
            drafter.observe(tokens[: end + 1], 0)
