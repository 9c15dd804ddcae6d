"""`RoundRecorder` observes an engine's rounds, for their figures, traces and explanations.

The engine calls one method after each step of a round, in the order of this file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from time import perf_counter

from localspec.drafter_names import LOOKUP
from localspec.engine.cancel import Cancel
from localspec.engine.drafters.ahead import Ahead
from localspec.engine.drafters.lookup import Guess
from localspec.engine.drafters.proposer import Proposer
from localspec.engine.drafters.protocol import Drafter, Proposal
from localspec.engine.exact_ids import Vocabulary
from localspec.engine.length.stopping import Plan
from localspec.engine.record.explainer import Explainer, PassRecorder, can_record
from localspec.engine.record.explanation import RoundExplanation
from localspec.engine.record.lookup_scores import score_lookup
from localspec.engine.record.round_record import GenerationRecord, RoundRecord
from localspec.engine.record.stats import FinishReason, Round, TokenLogprob
from localspec.engine.round.acceptance import Verification
from localspec.engine.round.generate_settings import GenerateSettings
from localspec.engine.round.sampling import Dist, Logits, TargetRows, logprobs
from localspec.engine.round.verify import Verdict


class RoundRecorder:
    """Observes the rounds of an engine.

    Attributes:
        generation: the record of the running or else the last generation; None before the first.
        watch: called once with the explanation of the next round that has a draft, then reset.
    """

    def __init__(self, model: Vocabulary, drafters: Mapping[str, Drafter]) -> None:
        """Observe rounds of the target `model` with `drafters`."""
        self.generation: GenerationRecord | None = None
        self.watch: Callable[[RoundExplanation], None] | None = None
        self._passes: PassRecorder | None = None  # of this round, if it is to be explained
        self._model, self._drafters = model, drafters

    def begin(
        self,
        record: GenerationRecord,
        settings: GenerateSettings,
        how: Verification,
        cancel: Cancel,
    ) -> None:
        """Start a generation; `record` has its prompt."""
        self.generation = self._record = record
        self._how, self._cancel = how, cancel
        self._trace, self._top_logprobs = settings.trace, settings.top_logprobs
        if settings.trace is not None:
            settings.trace.begin(record.tokens, how.sampler.params)
        self._ended = perf_counter()

    def started(self) -> None:
        """Start a round."""
        self._started = perf_counter()
        self._position, self._drawn = len(self._record.tokens), self._how.noise.drawn
        self._passes = None

    def planned(self, guess: Guess, plan: Plan) -> None:
        """Record lookup's guess and the policy's plan."""
        self._guess, self._plan = guess, plan
        if self.watch is not None and plan.limit:
            self._passes = PassRecorder(self._how.proposer)
            for drafter in self._begin_with(self._passes):
                if (ahead := drafter.capabilities.ahead) is not None:
                    ahead.pause()

    def proposed(self, proposal: Proposal) -> None:
        """Record the draft."""
        self._proposal, self._proposed = proposal, perf_counter()

    def decoded(self, logits: Logits, ahead: Ahead | None) -> None:
        """Record the target's logits along the draft; `ahead` went on drafting meanwhile."""
        self._logits, self._ahead, self._decoded = logits, ahead, perf_counter()

    def verified(self, rows: TargetRows, verdict: Verdict) -> None:
        """Record the verdict, before the sequence changes."""
        self._rows, self._verdict = rows, verdict
        if self._trace is not None:
            self._trace.round(self._record.tokens, self._proposal.draft, rows, verdict)

    def committed(self, emitted: tuple[int, ...], finish: FinishReason | None) -> None:
        """Record the emitted tokens, while the target's logits are still those of the draft."""
        self._emitted, self._finish = emitted, finish
        self._logprobs: tuple[TokenLogprob, ...] = ()
        if self._top_logprobs is not None:
            self._logprobs = logprobs(self._logits, emitted, self._top_logprobs)
        if self._passes is not None:
            self._passes.logits = self._logits.copy()
        self._committed = perf_counter()

    def rolled_back(self) -> None:
        """Record that the target's cache was rolled back."""
        self._rollback_s = perf_counter() - self._committed

    def observed(self) -> Round:
        """End the round, once the drafter has observed the result; return its figures."""
        proposal, verdict, rows, plan = self._proposal, self._verdict, self._rows, self._plan
        chances = _chances(proposal, rows, verdict)
        scores = score_lookup(self._guess, proposal, rows, verdict, self._how.accepts)
        before, self._ended = self._ended, (ended := perf_counter())
        figures = Round(
            tokens=self._emitted,
            gamma=plan.aim + len(proposal.tail.tokens) * (plan.drafter != LOOKUP),
            drafted=len(proposal.draft.tokens),
            accepted=verdict.accepted,
            draft_s=self._proposed - self._started,
            verify_s=self._decoded - self._proposed,
            total_s=ended - self._started,
            rollback_s=self._rollback_s,
            between_s=self._started - before,
            draft_prefill=proposal.read,
            draft_cached=proposal.cached,
            draft_passes=proposal.decodes,
            drafter=proposal.drafter,
            copied=len(proposal.tail.tokens),
            copying_s=self._guess.search_s + proposal.search_s,
            path=proposal.path,
            block=proposal.block,
            ahead=0 if self._ahead is None else self._ahead.passes,
            kept=proposal.kept,
            copy_confidences=scores.copy_confidences,
            copy_chances=scores.copy_chances,
            path_confidences=scores.path_confidences,
            path_chances=scores.path_chances,
            context=self._position,
            left_out=proposal.left_out,
            confidences=tuple(proposal.confidences),
            chances=chances,
            logprobs=self._logprobs,
            finish=self._finish,
        )
        made = proposal.draft.tokens, proposal.own, verdict, self._drawn, figures
        self._record.rounds.append(RoundRecord(self._position, *made, proposal.begun))
        if self._passes is not None:
            self._explain(self._passes)
        del self._logits, self._rows, self._proposal  # large: rows as wide as the vocabulary
        return figures

    def _explain(self, passes: PassRecorder) -> None:
        """Explain the ended round, if it had a draft, and give the drafters their own proposer."""
        self._begin_with(passes.proposer)
        watch, draft = self.watch, self._proposal.draft
        if watch is not None and draft.tokens:
            self.watch = None
            explainer = Explainer(self._how, self._record, passes, self._model)
            watch(explainer.explain(len(self._record.rounds), draft, self._rows, again=False))

    def _begin_with(self, proposer: Proposer) -> list[Drafter]:
        """Have all drafters that can be recorded use `proposer`; return these."""
        own, target = self._how.proposer, self._model
        able = [each for each in self._drafters.values() if can_record(each, own, target)]
        for drafter in able:
            told, written = self._record.tokens, self._record.written
            drafter.begin(told, proposer, self._cancel, answered=written)
        return able


def _chances(proposal: Proposal, rows: Sequence[Dist], verdict: Verdict) -> tuple[float, ...]:
    """Acceptance probabilities of the drafter's tested tokens; empty unless the policy learns."""
    if not proposal.confidences:  # computing them takes time
        return ()
    # The position after the last accepted one was tested too, later ones were not. Tokens that
    # lookup added after the drafter's own have no views.
    tested = zip(proposal.views[: proposal.own + 1], rows[: verdict.accepted + 1], strict=False)
    return tuple(view.chance(row) for view, row in tested)
