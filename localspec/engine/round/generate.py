"""The round: propose, decode, verify, commit, roll back, observe. The draft may be empty.

One invariant holds everywhere: the last token of the sequence is not yet in the target's cache. A
round decodes it together with the draft, so that one pass of the target gives the logits of every
drafted position, and of one more.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from time import perf_counter

from localspec.drafter_names import LOOKUP
from localspec.engine.cancel import Cancel
from localspec.engine.common_prefix import common_prefix
from localspec.engine.drafters.ahead import Ahead
from localspec.engine.drafters.lookup import NO_GUESS, Guess, Lookup
from localspec.engine.drafters.past_texts import Past
from localspec.engine.drafters.protocol import Drafter, Proposal
from localspec.engine.length.gamma import GammaPolicy
from localspec.engine.length.stopping import BASELINE, Plan, Situation
from localspec.engine.llama import Context
from localspec.engine.record.recorder import RoundRecorder
from localspec.engine.record.round_record import GenerationRecord
from localspec.engine.record.stats import FinishReason, Prefill, Round
from localspec.engine.round.acceptance import Verification, verification
from localspec.engine.round.generate_settings import GenerateSettings
from localspec.engine.round.prompt_steps import PromptSteps
from localspec.engine.round.sampling import Logits
from localspec.engine.round.verify import Draft, Verdict
from localspec.errors import Cancelled, PromptTooLong
from localspec.limits import MAX_BATCH_OUTPUTS

NOT_ASKED = Proposal()


@dataclass(slots=True)
class _Generation:
    """What one generation carries from round to round.

    Attributes:
        tokens: the whole sequence; grows.
        remaining: tokens that may still be emitted.
        drafters: the drafters that may draft, by name; None for all.
        free: whether its text does not depend on the drafts, or need not be reproducible.
        first: whether no round has been made yet.
    """

    tokens: list[int]
    how: Verification
    remaining: int
    drafters: frozenset[str] | None
    free: bool
    first: bool = True

    def asks(self, drafter: str) -> bool:
        """Whether a drafter may draft."""
        return self.drafters is None or drafter in self.drafters


class Engine:
    """A target and its drafters: tokens in, rounds out. One thread at a time.

    Attributes:
        drafters: by name; none if the target cannot take tokens back.
        lookup: copies from the text so far; None if nothing may be copied.
        past: other texts that lookup may copy from, unless the drafts must follow from the seed.
        rows: the largest number of tokens in a pass over a draft.
        steps: chooses the passes over prompts, and expects what the rest of one takes.
    """

    def __init__(
        self,
        target: Context,
        *drafters: Drafter,
        lookup: Lookup | None = None,
        rows: int = MAX_BATCH_OUTPUTS,
    ) -> None:
        self.target = target
        self.rows = min(rows, MAX_BATCH_OUTPUTS, target.n_batch)
        self.drafters: dict[str, Drafter] = {}
        self.join(drafters)
        self.lookup = lookup if target.can_truncate else None
        self.past: Sequence[Past] = ()
        self.steps = PromptSteps(target.n_batch)
        self.recorder = RoundRecorder(target.model, self.drafters)

    def join(self, drafters: Sequence[Drafter]) -> None:
        """Draft with these from the next generation on, in this order."""
        self.drafters.clear()
        if self.target.can_truncate:
            self.drafters.update({each.name: each for each in drafters})

    @property
    def drafts(self) -> bool:
        """Whether anything can be drafted."""
        return bool(self.drafters) or self.lookup is not None

    def prefill(
        self,
        prompt: Sequence[int],
        cancel: Cancel,
        policy: GammaPolicy | None = None,
        *,
        follow_clock: bool = True,
        goes_on: bool = False,
        answered: int = 0,
        drafters: frozenset[str] | None = None,
    ) -> Generator[tuple[int, int], None, Prefill]:
        """Read all but the last token of `prompt` into the target's cache, reusing what is there.

        Args:
            prompt: its ids.
            cancel: stops it.
            policy: of the generation to come; with None all drafters see the prompt.
            follow_clock: whether to make passes that take less than a second. Passes of other
                sizes round differently, so a prompt that must give equal bits is read in passes
                that are as long as possible.
            goes_on: whether the prompt's last message follows a question, as the result of a call.
                The next one may leave out all of that, so the mark of the question's prompt stays.
            answered: how many of the last tokens are the answer so far; marks of prompts stay
                before them.
            drafters: those that may draft in that generation, by name; None for all.

        Yields:
            (tokens read, tokens to read), before the first batch and after every one.

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
        self._show(policy, drafters)
        end = len(prompt) - 1
        cached = self.target.keep_prefix(prompt[:end])
        self.steps.begin()
        marks = self.target.can_truncate and self.target.max_rollback is not None
        if cached < end:
            yield 0, end - cached
        while (at := len(self.target.tokens)) < end:
            cancel.check()
            within = at >= len(prompt) - answered
            self.target.mark(lasting=0 if within else 2 if goes_on else 1)
            step = self.steps.size(at) if follow_clock else self.target.n_batch
            if marks:  # the last one is gone back to
                step = self.steps.shortened(step, end - at)
            part, begun = prompt[at : min(at + step, end)], perf_counter()
            self.target.decode(part, 0)
            self.steps.took(len(part), at, perf_counter() - begun)
            yield len(self.target.tokens) - cached, end - cached
        self.target.wait()  # or the first round would seem to take the prompt's time
        return Prefill(len(prompt), cached, end - cached, perf_counter() - started)

    def read_again(self, record: GenerationRecord, n: int, cancel: Cancel) -> None:
        """Read all but the last of the first `n` tokens of a finished generation.

        Raises:
            Cancelled: `cancel` was set.
        """
        goes_on, answered = record.settings.goes_on, n - record.begun
        reading = self.prefill(
            record.tokens[:n], cancel, follow_clock=False, goes_on=goes_on, answered=answered
        )
        for _ in reading:
            cancel.check()

    def _show(self, policy: GammaPolicy | None, allowed: frozenset[str] | None) -> None:
        """Show the target's decodes to the drafters that the policy may ask.

        One that this generation alone does not ask goes on listening: otherwise it would forget
        all states, and llama.cpp would prepare the target's passes anew.
        """
        names = tuple(self.drafters)
        own = tuple(name for name in names if allowed is None or name in allowed)
        asked = names if policy is None else (*policy.asks(names), *policy.asks(own))
        listeners = (self.drafters[name].capabilities.listener for name in names if name in asked)
        self.target.show([each for each in listeners if each is not None])

    def generate(
        self,
        prompt: Sequence[int],
        settings: GenerateSettings,
        policy: GammaPolicy,
        cancel: Cancel,
    ) -> Generator[Round, None, None]:
        """Continue `prompt`, whose `prefill` has run, until it ends; the last round has `finish`.

        The first round drafts nothing, so that the first token never waits for a draft model to
        read the prompt. The iterator may be closed between any two rounds.

        Yields:
            One `Round` per pass of the target.
        """
        generation = self._begin(prompt, settings, cancel)
        policy.begin(follow_clock=generation.free)
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
                self._observe_overlap(done)
                yield done
                finish = done.finish
        finally:
            for ahead in self._ahead():
                ahead.rest()

    def close(self) -> None:
        """End the threads in which drafters read ahead; the caller closes their contexts."""
        for ahead in self._ahead():
            ahead.close()

    def _begin(
        self, prompt: Sequence[int], settings: GenerateSettings, cancel: Cancel
    ) -> _Generation:
        how = verification(settings)
        free = how.invariant or not settings.repeatable
        for drafter in self.drafters.values():
            drafter.begin(prompt, how.proposer, cancel, anew=not free)
        if self.lookup is not None:
            self.lookup.begin(prompt, *(self.past if free else ()))
        remaining = settings.n_predict if settings.n_predict >= 0 else self.target.n_ctx + 1
        tokens, sampling = list(prompt), replace(settings.sampling, seed=how.noise.seed)
        seeded = replace(settings, sampling=sampling, trace=None)
        self.recorder.begin(GenerationRecord(seeded, tokens, len(tokens)), settings, how, cancel)
        return _Generation(tokens, how, remaining, settings.drafters, free)

    def _round(self, generation: _Generation, policy: GammaPolicy) -> Round:
        """One round. The recorder observes each step, and tells the figures at the end."""
        recorder, tokens, how = self.recorder, generation.tokens, generation.how
        recorder.started()
        guess, plan = self._decide(generation, policy)
        recorder.planned(guess, plan)
        proposal = self._propose(generation, guess, plan)
        recorder.proposed(proposal)
        logits, ahead = self._decode(generation, proposal)
        recorder.decoded(logits, ahead)
        draft, position = proposal.draft, len(tokens)
        rows = how.sampler.rows(logits, tokens, draft.tokens)
        verdict = how.rule(draft, rows, how.noise, position)
        recorder.verified(rows, verdict)
        emitted, finish = self._commit(generation, draft, verdict)
        recorder.committed(emitted, finish)
        # The cache holds the old sequence and the whole draft.
        self.target.truncate(position + min(verdict.accepted, len(emitted) + 1))
        recorder.rolled_back()
        self._observe(proposal, tokens, verdict)
        return recorder.observed()

    def _observe(self, proposal: Proposal, tokens: Sequence[int], verdict: Verdict) -> None:
        """Tell the drafter how many of its own tokens stay, and what the sequence is now."""
        if proposal.drafter in self.drafters:
            self.drafters[proposal.drafter].observe(tokens, min(verdict.accepted, proposal.own))

    def _observe_overlap(self, done: Round) -> None:
        """Let the drafter learn whether drafting during the target's passes pays."""
        ahead = self._ahead_of(done.drafter)
        if ahead is not None:
            ahead.policy.observe(done, right=ahead.right)

    def _ahead_of(self, drafter: str) -> Ahead | None:
        return self.drafters[drafter].capabilities.ahead if drafter in self.drafters else None

    def _ahead(self) -> Iterator[Ahead]:
        """Those that read while the target decodes."""
        drafters = self.drafters.values()
        return (ahead for each in drafters if (ahead := each.capabilities.ahead) is not None)

    def _decode(self, generation: _Generation, proposal: Proposal) -> tuple[Logits, Ahead | None]:
        """Decode the last token and the draft.

        Returns:
            The logits, of shape (1 + drafted, n_vocab), and the drafter that went on meanwhile.
        """
        draft = proposal.draft.tokens
        if draft:
            self.target.mark(len(draft) + 1)
        with self._meanwhile(generation, proposal) as ahead:
            return self.target.decode([generation.tokens[-1], *draft], len(draft) + 1), ahead

    def _meanwhile(
        self, generation: _Generation, proposal: Proposal
    ) -> AbstractContextManager[Ahead | None]:
        """Let a draft model go on during the target's pass, where that pays.

        How far it comes depends on the clock, and so does its next draft. So it waits if the drafts
        must follow from the seed.
        """
        ahead = self._ahead_of(proposal.drafter)
        if ahead is None or not generation.free or not proposal.views:  # none: it could not read
            return nullcontext()
        draft = proposal.draft.tokens
        room = min(generation.remaining, self.target.free) - len(draft) - 2
        return ahead.going_on(generation.tokens, proposal.held, draft, proposal.following, room)

    def _room(self, generation: _Generation) -> int:
        """How many tokens may be drafted: a round emits one token more than it drafts."""
        room = min(generation.remaining, self.target.free, self.rows)
        return max(0, room - 1)

    def _guess(self, generation: _Generation, drafted: Sequence[int] = ()) -> Guess:
        """The tokens that lookup would copy after `drafted`."""
        if self.lookup is None or not generation.asks(LOOKUP):
            return NO_GUESS
        started = perf_counter()
        limit = self._room(generation) - len(drafted)
        found = self.lookup.guess(generation.tokens, drafted, limit)
        return Guess(found.tokens, found.confidences, perf_counter() - started)

    def _decide(self, generation: _Generation, policy: GammaPolicy) -> tuple[Guess, Plan]:
        """Lookup's guess, and the round's plan, which is `BASELINE` if no drafter may be asked."""
        asked = {name: it for name, it in self.drafters.items() if generation.asks(name)}
        copies = self.lookup is not None and generation.asks(LOOKUP)
        able = policy.asks((*asked, LOOKUP) if copies else tuple(asked))
        self._show(policy, generation.drafters)
        first, generation.first = generation.first, False
        if first or not able:
            return NO_GUESS, BASELINE
        guess = self._guess(generation)
        return guess, policy.plan(self._situation(generation, asked, guess))

    def _situation(
        self, generation: _Generation, asked: Mapping[str, Drafter], guess: Guess
    ) -> Situation:
        tokens = generation.tokens
        return Situation(
            room=self._room(generation),
            context=len(tokens),
            remaining=generation.remaining,
            drafters={name: each.state(tokens) for name, each in asked.items()},
            copies=guess.confidences,
        )

    def _propose(self, generation: _Generation, guess: Guess, plan: Plan) -> Proposal:
        """The proposal that the plan wants: of the drafter it names, with what lookup adds."""
        if plan.limit == 0:
            return NOT_ASKED
        if plan.drafter == LOOKUP:
            copied = guess.first(plan.limit)
            return Proposal(LOOKUP, Draft(copied.tokens), tail=copied)
        drafter, tokens = self.drafters[plan.drafter], generation.tokens
        proposal = drafter.propose(tokens, plan, guess.tokens[: plan.reads])
        proposal = replace(proposal, left_out=drafter.state(tokens).left_out)
        if guess.tokens:
            same = common_prefix(proposal.draft.tokens, guess.tokens)
            proposal = replace(proposal, agreed=max(0, min(same, len(proposal.views) - 1)))
        own = proposal.draft.cut(plan.keep())
        if own.tokens and self.target.model.is_end(own.tokens[-1]):
            return replace(proposal, draft=own)
        more = self._guess(generation, own.tokens)
        tail = more.first(plan.copies(more.confidences, len(own.tokens)))
        draft = own.followed_by(tail.tokens)
        return replace(proposal, draft=draft, tail=tail, search_s=more.search_s)

    def _commit(
        self, generation: _Generation, draft: Draft, verdict: Verdict
    ) -> tuple[tuple[int, ...], FinishReason | None]:
        """Append what the verdict emits, up to an end of generation; tell why it is the end."""
        emitted = (*draft.tokens[: verdict.accepted], verdict.token)
        is_end = self.target.model.is_end
        ended = next((i for i, token in enumerate(emitted) if is_end(token)), None)
        tokens = emitted[:ended]
        generation.tokens.extend(tokens)
        generation.remaining -= len(tokens)
        generation.how.sampler.accept(tokens)
        if ended is not None:
            return tokens, FinishReason.STOP
        if generation.remaining <= 0:
            return tokens, FinishReason.LENGTH
        full = len(generation.tokens) > self.target.n_ctx
        return tokens, FinishReason.CONTEXT if full else None


def _nothing(finish: FinishReason) -> Round:
    """A last round that emits nothing."""
    return Round((), 0, 0, 0, 0.0, 0.0, 0.0, finish=finish)
