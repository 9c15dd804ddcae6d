"""The round: propose, decode, verify, roll back, observe. Plain decoding is an empty draft.

The invariant everywhere: the last token of the sequence is not in the target's cache yet. Each
round decodes it together with the draft, so one target pass gives the logits of every drafted
position and one more.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import NamedTuple

from localspec.engine.acceptance import Verification, verification
from localspec.engine.ahead import Ahead
from localspec.engine.cancel import Cancel
from localspec.engine.drafter import Drafter, Proposal
from localspec.engine.explainer import (
    Explainer,
    GenerationRecord,
    PassRecorder,
    RoundRecord,
    can_record,
)
from localspec.engine.explanation import RoundExplanation
from localspec.engine.grammar import Constraint
from localspec.engine.length.gamma import GammaPolicy
from localspec.engine.length.stopping import PLAIN, Plan, Situation
from localspec.engine.llama import Context
from localspec.engine.llama.context import common_prefix
from localspec.engine.lookup import LONGEST, NO_GUESS, Guess, Lookup
from localspec.engine.lookup_scores import score_lookup
from localspec.engine.params import Accept, SamplingParams
from localspec.engine.past import NO_PAST
from localspec.engine.proposer import Proposer
from localspec.engine.sampling import Dist, TargetRows, logprobs
from localspec.engine.stats import LOOKUP, FinishReason, Prefill, Round, TokenLogprob
from localspec.engine.trace import TraceWriter
from localspec.engine.verify import Draft, Verdict
from localspec.errors import Cancelled, PromptTooLong
from localspec.limits import MAX_BATCH_OUTPUTS

UNLIMITED = -1
NOT_ASKED = Proposal()


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateSettings:
    """How one generation runs.

    Attributes:
        sampling: the target's sampler chain.
        accept: the acceptance rule.
        n_predict: tokens to generate at most; -1 for as many as the context holds.
        constraint: what the output must conform to, in its state before the first token.
        lenience: makes the rule lossy; None for lossless.
        trace: writes a trace of every round.
        repeatable: somebody gave the seed: where the draft length has a part in what the seed
            gives (token, block), it must not follow the clock.
        top_logprobs: how many alternatives of each token a round tells; None for no probabilities.
        drafters: who may draft, by name; None for all.
    """

    sampling: SamplingParams = field(default_factory=SamplingParams)
    accept: Accept = Accept.TOKEN
    n_predict: int = UNLIMITED
    constraint: Constraint | None = None
    lenience: float | None = None
    trace: TraceWriter | None = None
    repeatable: bool = False
    top_logprobs: int | None = None
    drafters: frozenset[str] | None = None


@dataclass(slots=True)
class _Generation:
    """What one generation carries from round to round.

    `free`: its text does not depend on what is drafted, or need not be the same again.
    """

    tokens: list[int]
    verification: Verification
    record: GenerationRecord
    cancel: Cancel
    remaining: int
    trace: TraceWriter | None
    top_logprobs: int | None = None
    drafters: frozenset[str] | None = None
    free: bool = True
    first: bool = True
    copying_s: float = 0.0
    ended: float = field(default_factory=perf_counter)

    def asks(self, drafter: str) -> bool:
        """Whether a drafter may draft."""
        return self.drafters is None or drafter in self.drafters


class Engine:
    """A target and what drafts for it: tokens in, rounds out. One thread at a time.

    Attributes:
        target: the context that decides every token.
        drafters: what may be asked to propose, by name; none where nothing can be taken back.
        lookup: copies from the text so far; None where it may not.
        past: other texts that it may copy from, unless the seed is to give the draft.
        rows: tokens of a pass at most.
        record: of the running or else the last generation; None before the first.
        watch: told once, and then forgotten, what happens inside the next round with a draft.
    """

    def __init__(
        self,
        target: Context,
        *drafters: Drafter,
        lookup: Lookup | None = None,
        rows: int = MAX_BATCH_OUTPUTS,
    ) -> None:
        able = target.can_truncate
        self.target = target
        self.rows = min(rows, MAX_BATCH_OUTPUTS, target.n_batch)
        self.drafters = {each.name: each for each in drafters} if able else {}
        self.lookup = lookup if able else None
        self.past = NO_PAST
        self.record: GenerationRecord | None = None
        self.watch: Callable[[RoundExplanation], None] | None = None

    @property
    def drafts(self) -> bool:
        """Whether anything can be drafted."""
        return bool(self.drafters) or self.lookup is not None

    def prefill(
        self, prompt: Sequence[int], cancel: Cancel, policy: GammaPolicy | None = None
    ) -> Generator[tuple[int, int], None, Prefill]:
        """Read all but the last token of `prompt` into the target's cache, reusing what is there.

        Args:
            prompt: its ids.
            cancel: stops it.
            policy: of the generation to come; None if any drafter may be asked in it.

        Yields:
            (tokens read, tokens to read), after every batch.

        Returns:
            The `Prefill` figures (as the generator's return value).

        Raises:
            PromptTooLong: the prompt does not fit in the context.
            Cancelled: `cancel` was set; what was read stays in the cache.
        """
        started = perf_counter()
        if len(prompt) > self.target.n_ctx:
            raise PromptTooLong(
                f"the prompt has {len(prompt)} tokens, the context holds {self.target.n_ctx}",
                "Shorten the prompt or raise --ctx-size.",
            )
        self.target.watch(cancel)
        self._show(policy, tuple(self.drafters))
        end = len(prompt) - 1
        cached = self.target.keep_prefix(prompt[:end])
        for start in range(cached, end, self.target.n_batch):
            cancel.check()
            self.target.mark()
            self.target.decode(prompt[start : min(start + self.target.n_batch, end)], 0)
            yield len(self.target.tokens) - cached, end - cached
        self.target.wait()  # else the first round would seem to take the prompt's time
        return Prefill(len(prompt), cached, end - cached, perf_counter() - started)

    def _show(self, policy: GammaPolicy | None, names: Sequence[str]) -> None:
        """Let those of these drafters see the target's decodes that may be asked to draft."""
        asked = names if policy is None else policy.asks(names)
        listeners = (self.drafters[name].capabilities.listener for name in asked)
        self.target.show([each for each in listeners if each is not None])

    def generate(
        self,
        prompt: Sequence[int],
        settings: GenerateSettings,
        policy: GammaPolicy,
        cancel: Cancel,
    ) -> Generator[Round, None, None]:
        """Continue `prompt`, whose `prefill` has run, until it ends; the last round has `finish`.

        The first round drafts nothing, so that the first token never waits for the draft to read
        the prompt. The iterator may be closed between any two rounds.

        Yields:
            One `Round` for every target pass.
        """
        generation = self._begin(prompt, settings, cancel)
        policy.begin(follow_clock=generation.verification.invariant or not settings.repeatable)
        if generation.remaining == 0:
            yield _nothing(FinishReason.LENGTH)
            return
        finish = None
        try:
            while finish is None:
                try:
                    cancel.check()
                    done = self._round(generation, policy)
                except Cancelled:
                    done = _nothing(FinishReason.CANCELLED)
                policy.observe(done)
                yield done
                finish = done.finish
        finally:
            for ahead in self._ahead():
                ahead.rest()

    def close(self) -> None:
        """End the threads in which drafters read ahead; their contexts are the caller's."""
        for ahead in self._ahead():
            ahead.close()

    def _begin(
        self, prompt: Sequence[int], settings: GenerateSettings, cancel: Cancel
    ) -> _Generation:
        how = verification(
            settings.accept,
            settings.sampling,
            constraint=settings.constraint,
            lenience=settings.lenience,
            trace=settings.trace,
        )
        if settings.trace is not None:
            settings.trace.begin(prompt, how.sampler.params)
        free = how.invariant or not settings.repeatable
        for drafter in self.drafters.values():
            drafter.begin(prompt, how.proposer, cancel, anew=not free)
        if self.lookup is not None:
            self.lookup.begin(prompt, self.past if free else NO_PAST)
        remaining = settings.n_predict if settings.n_predict >= 0 else self.target.n_ctx + 1
        sampling = replace(settings.sampling, seed=how.noise.seed)
        seeded = replace(settings, sampling=sampling, trace=None)
        tokens = list(prompt)
        self.record = record = GenerationRecord(seeded, tokens, len(tokens))
        trace, top = settings.trace, settings.top_logprobs
        return _Generation(
            tokens, how, record, cancel, remaining, trace, top, settings.drafters, free
        )

    def _round(self, generation: _Generation, policy: GammaPolicy) -> Round:
        tokens, held = generation.tokens, len(generation.tokens)
        started = perf_counter()
        generation.copying_s, drawn = 0.0, generation.verification.noise.drawn
        guess, plan = self._decided(generation, policy)
        sight = self._looked_at(generation) if self.watch is not None and plan.limit else None
        asked = self._propose(generation, plan, guess)
        drafted = perf_counter()
        done = self._verify(generation, asked, sight)
        chances = self._observe(asked, tokens, done.p, done.verdict)
        scores = score_lookup(guess, asked, done.p, done.verdict, generation.verification.copied)
        before, generation.ended = generation.ended, (ended := perf_counter())
        figures = Round(
            tokens=done.emitted,
            gamma=plan.aim + len(asked.tail.tokens) * (plan.drafter != LOOKUP),
            drafted=len(asked.draft.tokens),
            accepted=done.verdict.accepted,
            draft_s=drafted - started,
            verify_s=done.verify_s,
            total_s=ended - started,
            rollback_s=done.rollback_s,
            between_s=started - before,
            draft_prefill=asked.read,
            draft_cached=asked.cached,
            draft_passes=asked.decodes,
            drafter=asked.drafter,
            copied=len(asked.tail.tokens),
            copying_s=generation.copying_s,
            path=asked.path,
            ahead=done.ahead,
            kept=asked.kept,
            **scores._asdict(),
            context=held,
            left_out=asked.left_out,
            confidences=tuple(asked.confidences),
            chances=chances,
            logprobs=done.logprobs,
            finish=done.finish,
        )
        generation.record.rounds.append(RoundRecord.of(asked, done.verdict, drawn, figures))
        self._learn(figures)
        if sight is not None:
            self._tell(generation, sight, asked.draft, done.p)
        return figures

    def _learn(self, done: Round) -> None:
        """Let who drafted learn whether it pays to go on during the target's passes."""
        drafter = self.drafters.get(done.drafter)
        ahead = None if drafter is None else drafter.capabilities.ahead
        if ahead is not None:
            ahead.beside.observe(done, right=ahead.right)

    def _looked_at(self, generation: _Generation) -> PassRecorder:
        """See what the drafters' passes show in this round."""
        sight = PassRecorder(generation.verification.proposer)
        self._begin_with(sight, generation)
        return sight

    def _begin_with(self, proposer: Proposer, generation: _Generation) -> None:
        """Let all drafters that can be seen go on with `proposer`."""
        for drafter in self.drafters.values():
            if can_record(drafter, generation.verification.proposer):
                drafter.begin(generation.tokens, proposer, generation.cancel)

    def _tell(
        self, generation: _Generation, sight: PassRecorder, draft: Draft, p: TargetRows
    ) -> None:
        """Tell who watches what happened inside the round that is over, if it had a draft."""
        how, written = generation.verification, generation.record
        self._begin_with(how.proposer, generation)
        watch = self.watch
        if watch is not None and draft.tokens:
            self.watch = None
            look = Explainer(how, written, sight, self.target.model)
            watch(look.inside(len(written.rounds), draft, p, again=False))

    def _ahead(self) -> Iterator[Ahead]:
        """What the drafters read while the target decodes."""
        found = (each.capabilities.ahead for each in self.drafters.values())
        return (ahead for ahead in found if ahead is not None)

    def _meanwhile(
        self, generation: _Generation, asked: Proposal, sight: PassRecorder | None
    ) -> AbstractContextManager[Ahead | None]:
        """Let a draft model go on during the target's pass, where that pays.

        How far it comes is a matter of time, and so is what it drafts next: not where the draft
        has a part in what a seed gives. Nor where somebody looks at the passes.
        """
        drafter = self.drafters.get(asked.drafter)
        ahead = None if drafter is None or sight is not None else drafter.capabilities.ahead
        if ahead is None or not generation.free or not asked.views:  # it could not read the text
            return nullcontext()
        draft = asked.draft.tokens
        room = min(generation.remaining, self.target.free) - len(draft) - 2
        return ahead.going_on(generation.tokens, asked.held, draft, asked.following, room)

    def _verify(
        self, generation: _Generation, asked: Proposal, sight: PassRecorder | None = None
    ) -> _Verified:
        """One decode of the target over the draft, what the rule makes of it, and going back."""
        tokens, how, held = generation.tokens, generation.verification, len(generation.tokens)
        draft = asked.draft
        started = perf_counter()
        if draft.tokens:
            self.target.mark(len(draft.tokens) + 1)
        with self._meanwhile(generation, asked, sight) as ahead:
            logits = self.target.decode([tokens[-1], *draft.tokens], len(draft.tokens) + 1)
        decoded = perf_counter()
        p = how.sampler.rows(logits, tokens, draft.tokens)
        verdict = how.rule(draft, p, how.noise, held)
        if generation.trace is not None:
            generation.trace.round(tokens, draft, p, verdict)
        emitted, finish = self._commit(generation, draft, verdict)
        n_best = generation.top_logprobs  # before the rows are gone
        scored = () if n_best is None else logprobs(logits, emitted, n_best)
        if sight is not None:
            sight.logits = logits.copy()
        committed = perf_counter()
        # The cache holds what was there and the whole draft now.
        self.target.truncate(held + min(verdict.accepted, len(emitted) + 1))
        rollback_s = perf_counter() - committed
        passes = 0 if ahead is None else ahead.passes
        spent = decoded - started, rollback_s
        return _Verified(p, verdict, emitted, finish, scored, *spent, passes)

    def _room(self, generation: _Generation) -> int:
        """Tokens that may be drafted: by the pass, the context and `n_predict`.

        A round emits one token more than it drafts.
        """
        room = min(generation.remaining, self.target.free, self.rows)
        return max(0, room - 1)

    def _guess(self, generation: _Generation, drafted: Sequence[int] = ()) -> Guess:
        """What lookup would copy behind `drafted`."""
        if self.lookup is None or not generation.asks(LOOKUP):
            return NO_GUESS
        started = perf_counter()
        limit = min(self._room(generation), LONGEST) - len(drafted)
        guess = self.lookup.guess(generation.tokens, drafted, limit)
        generation.copying_s += perf_counter() - started
        return guess

    def _decided(self, generation: _Generation, policy: GammaPolicy) -> tuple[Guess, Plan]:
        """What lookup would copy, and the round's plan; nothing where nobody may draft."""
        asked = {name: it for name, it in self.drafters.items() if generation.asks(name)}
        self._show(policy, tuple(asked))
        first, generation.first = generation.first, False
        copies = self.lookup is not None and generation.asks(LOOKUP)
        if first or not policy.asks((*asked, LOOKUP) if copies else tuple(asked)):
            return NO_GUESS, PLAIN
        guess = self._guess(generation) if copies else NO_GUESS
        return guess, self._plan(generation, policy, asked, guess)

    def _plan(
        self,
        generation: _Generation,
        policy: GammaPolicy,
        asked: Mapping[str, Drafter],
        guess: Guess,
    ) -> Plan:
        tokens = generation.tokens
        states = {name: each.state(tokens) for name, each in asked.items()}
        able = {name: each.capabilities for name, each in asked.items()}
        return policy.plan(
            Situation(
                room=self._room(generation),
                context=len(tokens),
                remaining=generation.remaining,
                pending_tokens={name: each.pending_tokens for name, each in states.items()},
                left_out={name: each.left_out for name, each in states.items()},
                copies=guess.confidences,
                readers=[name for name, each in able.items() if each.reads_paths],
                blocks={name: each.block for name, each in able.items() if each.block},
            )
        )

    def _propose(self, generation: _Generation, plan: Plan, guess: Guess) -> Proposal:
        """The draft that the plan wants: of the drafter it names, and what lookup adds to that."""
        if plan.limit == 0:
            return NOT_ASKED
        if plan.drafter == LOOKUP:
            copied = guess.first(plan.limit)
            return Proposal(LOOKUP, Draft(copied.tokens), tail=copied)
        path = guess.tokens[: plan.reads]
        drafter, tokens = self.drafters[plan.drafter], generation.tokens
        asked = drafter.propose(tokens, plan, path)
        asked = replace(asked, left_out=drafter.state(tokens).left_out)
        if guess.tokens:
            same = common_prefix(asked.draft.tokens, guess.tokens)
            asked = replace(asked, agreed=max(0, min(same, len(asked.views) - 1)))
        own = asked.draft.cut(plan.keep())
        if own.tokens and self.target.model.is_end(own.tokens[-1]):
            return replace(asked, draft=own)
        beyond = self._guess(generation, own.tokens)
        tail = beyond.first(plan.copies(beyond.confidences))
        return replace(asked, draft=own.followed_by(tail.tokens), tail=tail, beyond=beyond)

    def _commit(
        self, generation: _Generation, draft: Draft, verdict: Verdict
    ) -> tuple[tuple[int, ...], FinishReason | None]:
        """Append what the verdict emits, up to an end of generation; say whether that is all."""
        emitted = (*draft.tokens[: verdict.accepted], verdict.token)
        is_end = self.target.model.is_end
        ended = next((i for i, token in enumerate(emitted) if is_end(token)), None)
        tokens = emitted[:ended]
        generation.tokens.extend(tokens)
        generation.remaining -= len(tokens)
        generation.verification.sampler.accept(tokens)
        if ended is not None:
            return tokens, FinishReason.STOP
        if generation.remaining <= 0:
            return tokens, FinishReason.LENGTH
        full = len(generation.tokens) > self.target.n_ctx
        return tokens, FinishReason.CONTEXT if full else None

    def _observe(
        self, asked: Proposal, tokens: Sequence[int], p: Sequence[Dist], verdict: Verdict
    ) -> tuple[float, ...]:
        """Tell the drafter what became of its draft; return the chances of what was judged."""
        drafter = self.drafters.get(asked.drafter)
        if drafter is None:
            return ()
        drafter.observe(tokens, min(verdict.accepted, asked.own))
        if not asked.confidences:  # nobody wants to learn: an overlap of two rows takes its time
            return ()
        # The position after the last one accepted was judged too; what follows it was not, and
        # what follows the drafter's own tokens was not looked at by it.
        judged = zip(asked.views[: asked.own + 1], p[: verdict.accepted + 1], strict=False)
        return tuple(view.chance(row) for view, row in judged)


def _nothing(finish: FinishReason) -> Round:
    """A last round that emits nothing."""
    return Round((), 0, 0, 0, 0.0, 0.0, 0.0, finish=finish)


class _Verified(NamedTuple):
    """What came of a draft: see `Round`; `p` are the target's rows along it."""

    p: TargetRows
    verdict: Verdict
    emitted: tuple[int, ...]
    finish: FinishReason | None
    logprobs: tuple[TokenLogprob, ...]
    verify_s: float
    rollback_s: float
    ahead: int
