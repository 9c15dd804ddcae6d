"""`Writer` turns the ids of a prompt into turn events and figures."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from time import perf_counter

from localspec.chat.dialects.shapes import AwaitedText
from localspec.chat.events import PromptProgress, TurnEvent
from localspec.chat.figures.figures import Figures, Meter
from localspec.chat.figures.slowness import SlownessCheck
from localspec.chat.session.answer import AnswerText, TextKind
from localspec.chat.session.drafting import Drafting
from localspec.chat.session.pair import LoadedPair
from localspec.chat.settings import ChatSettings
from localspec.chat.states.cached_prefixes import StoredPrefix
from localspec.chat.states.past_conversations import PastStore
from localspec.engine.cancel import Cancel
from localspec.engine.drafters.past_texts import Past
from localspec.engine.grammars.constraint import (
    AfterThought,
    Anything,
    Awaited,
    Budgeted,
    Constraint,
)
from localspec.engine.grammars.grammar_reader import GrammarReader
from localspec.engine.length.cost import Costs
from localspec.engine.record.stats import FinishReason, GenerationStats, Prefill, Round
from localspec.engine.round.generate import Engine
from localspec.engine.round.generate_settings import GenerateSettings

_WORTH_TELLING_S = 0.5  # of a prompt that is read in one pass
_OF_THE_ANSWER = ("slow", "busy", "check", "answer_note")  # figures that its end settles


class Writer:
    """Reads a prompt and writes the continuation, independently of any conversation.

    Args:
        pair: the loaded models.
        engine: runs these models.
        drafting: the drafting policy.
        costs: measured costs of passes; None if not measured.

    Attributes:
        stored: restores the caches to a stored conversation; None if nothing is stored.
        past: the texts of other conversations for prompt lookup; None if lookup must not use them.
        counted: the meter and the text kind of the running or else the last answer.
    """

    def __init__(
        self, pair: LoadedPair, engine: Engine, drafting: Drafting, costs: Costs | None
    ) -> None:
        self.stored: StoredPrefix | None = None
        self.past: PastStore | None = None
        self._others: Sequence[Past] = ()  # what `past` recalled last
        self._prepared_s = 0.0  # what the preparation of the next generation took
        self.pair = pair
        self._engine = engine
        self._drafting = drafting
        self._slow = SlownessCheck(pair.target, costs)
        self._grammars = GrammarReader(pair.target.model)
        if costs is not None:
            engine.steps.expect(costs.target)
        self.counted: tuple[Meter, TextKind]
        self._before: tuple[Meter, TextKind]
        self.forget()

    def join(self, pair: LoadedPair, costs: Costs | None, made_by: str, cancel: Cancel) -> None:
        """Take a pair whose draft models were loaded just now; between answers.

        Args:
            pair: with these models.
            costs: measured costs of passes; None if not measured.
            made_by: as in `Joined`.
            cancel: interrupts the reading of their stored caches.
        """
        before = self.pair.drafts.values()
        later = [each for each in pair.drafts.values() if each not in before]
        self.pair, self._slow = pair, SlownessCheck(pair.target, costs)
        if self.stored is not None:
            self.stored.join(later, made_by, cancel)

    def begin(self, answer: AnswerText, lenience: float | None) -> GenerationStats:
        """Start to count a new answer under a rule of this lenience; returns its sums."""
        meter = Meter(self.pair.target.n_ctx, lenience=lenience)
        if self.counted[0].stats.generated_tokens:
            self._before = self.counted
        self.counted = meter, answer.kind
        self._engine.recorder.generation = None  # it may end before its first round
        return meter.stats

    def forget(self) -> None:
        """Reset all figures, because another conversation is open."""
        self.counted = self._before = Meter(self.pair.target.n_ctx), TextKind()
        self._drafting.forget()

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Count what is written inside separately, and do not store it for other conversations."""
        counted, before, past = self.counted, self._before, self.past
        self.past = None
        try:
            yield
        finally:
            self.counted, self._before, self.past = counted, before, past

    def how(
        self,
        settings: ChatSettings,
        after: Sequence[AwaitedText],
        thought: tuple[str, str, tuple[int, ...]] | None,
        begun: float,
    ) -> GenerateSettings:
        """Settings of one generation, whose figures count the time that its preparation took.

        Args:
            settings: of the answer.
            after: in order; the grammar applies once all of them have been written.
            thought: for thoughts with a budget: the opening mark (empty if the thought is already
                open), the closing mark, and the tokens that close it.
            begun: when its preparation began, by `perf_counter`.
        """
        constraint = self._constraint(settings.grammar, after)
        self._prepared_s = perf_counter() - begun
        if thought is not None:
            begin, close, closing = thought
            constraint = Budgeted(
                constraint or Anything(),
                self.pair.target.model,
                begin.encode(),
                close.encode(),
                settings.reasoning_budget,
                closing,
            )
        return GenerateSettings(
            sampling=settings.sampling,
            accept=settings.rule,
            n_predict=settings.n_predict,
            constraint=constraint,
            lenience=settings.lenience,
            repeatable=settings.repeatable,
        )

    def write(
        self,
        prompt: list[int],
        how: GenerateSettings,
        answer: AnswerText,
        cancel: Cancel,
        texts: Sequence[Past] = (),
    ) -> Generator[TurnEvent, None, FinishReason]:
        """Generate into `answer`, after `begin`.

        Args:
            prompt: its ids.
            how: the settings of this generation.
            answer: receives the generated tokens.
            cancel: stops the generation.
            texts: that lookup may copy from, besides the prompt and other conversations.

        Yields:
            `PromptProgress` (any number), then `RoundText` (one per round).

        Raises:
            LocalspecError: `PromptTooLong` and whatever else the engine raises.
            Cancelled: `cancel` was set.
        """
        meter, _ = self.counted
        meter.stats.prepared_s, self._prepared_s = self._prepared_s, 0.0
        self.pair.hold_threads(how.repeatable)
        loaded = self.pair.loaded
        exact = loaded.exact is not None and not loaded.exact_by_plan
        free = not (how.repeatable or how.trace is not None or exact)
        reading = self._read(prompt, how, cancel, texts, follow_clock=free)
        meter.prefilled((yield from reading))
        self.pair.target.threads.watch()  # rounds are compared with rounds, not with the prompt
        rounds = self._engine.generate(prompt, how, self._drafting, cancel)
        try:
            done: Round
            for done in rounds:
                event = answer.add(done)
                if event.round is not done:  # the policy has observed all that it wrote
                    self._drafting.cut(done, event.round.emitted)
                meter.add(event.round, self._drafting.speedup, off=not self._drafting.on)
                yield event
                if event.round.finish is not None:
                    return event.round.finish
        finally:
            rounds.close()
            now = self.figures(generating=True)
            meter.ended = {name: getattr(now, name) for name in _OF_THE_ANSWER}
            self._remember()
        raise AssertionError("the engine ended without a reason")

    def _recalled(self) -> Sequence[Past]:
        """The texts of other conversations; inside `aside`, those of the answer before."""
        if self.past is not None:
            self._others = (self.past.recall(),)
        return self._others

    def _remember(self) -> None:
        """Store the text so far for other conversations."""
        written = self._engine.recorder.generation
        if self.past is not None and written is not None:
            self.past.keep(written.tokens)

    def figures(self, *, generating: bool) -> Figures:
        """The figures of the running or else the last answer. From any thread.

        An answer that was stopped before its first token does not count as the last.
        """
        meter, kind = self.counted
        if not (generating or meter.stats.generated_tokens):
            meter, kind = self._before
        figures = meter.figures(
            generating=generating,
            speculation=self._drafting.on,
            note=self._drafting.note(kind.name),
        )
        found = self._slow.found(figures) if generating else meter.ended
        spare, flash_attn = self.pair.spare(), self.pair.loaded.flash_attn
        return replace(figures, **found, spare=spare, flash_attn=flash_attn)

    def _read(
        self,
        prompt: Sequence[int],
        how: GenerateSettings,
        cancel: Cancel,
        texts: Sequence[Past],
        *,
        follow_clock: bool,
    ) -> Generator[TurnEvent, None, Prefill]:
        started = perf_counter()
        if self.stored is not None:
            self.stored.restore(prompt[:-1], cancel)
        self._engine.past = (*texts, *self._recalled())
        restored_s, passes = perf_counter() - started, self._engine.steps
        reading = self._engine.prefill(
            prompt,
            cancel,
            self._drafting,
            follow_clock=follow_clock,
            goes_on=how.goes_on,
            drafters=how.drafters,
        )
        with closing(reading) as steps:
            while True:
                try:
                    done, total = next(steps)
                except StopIteration as end:
                    prefill: Prefill = end.value
                    return replace(prefill, seconds=prefill.seconds + restored_s)
                cached = len(prompt) - 1 - total
                left = passes.seconds(cached + done, total - done)
                if done or left is None or left >= _WORTH_TELLING_S:
                    yield PromptProgress(done, total, left if passes.trusted else None)

    def _constraint(self, grammar: str, after: Sequence[AwaitedText]) -> Constraint | None:
        """The grammar's initial state; the first grammar takes longer, as every token is read."""
        if not grammar:
            return None
        found, model = self._grammars.begin(grammar), self.pair.target.model
        for one in reversed(after):
            begin, mark = one if isinstance(one, tuple) else ("", one)
            awaited = Awaited(mark.encode(), found, model)
            found = AfterThought(found, awaited, begin.encode(), model) if begin else awaited
        return found
