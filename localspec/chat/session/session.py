"""`Session` is a conversation with a loaded pair: text goes in, turn events come out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any

from localspec import formats
from localspec.chat.advice import SamplingAdvice
from localspec.chat.conversation import Message
from localspec.chat.dialects import Dialect
from localspec.chat.dialects.shapes import AwaitedText
from localspec.chat.events import TurnEnd, TurnEvents
from localspec.chat.figures.figures import Figures
from localspec.chat.prompt.renderer import TemplateRenderer
from localspec.chat.prompt.template import ChatTemplate
from localspec.chat.session.answer import AnswerText
from localspec.chat.session.drafting import Drafting, Joined
from localspec.chat.session.pair import LoadedPair
from localspec.chat.session.turn_guard import TurnGuard
from localspec.chat.session.turn_prompt import TurnPrompt
from localspec.chat.session.turns import Turns
from localspec.chat.session.writer import Writer
from localspec.chat.settings import ChatSettings
from localspec.chat.states.cached_prefixes import StoredPrefix
from localspec.chat.states.past_conversations import PastStore
from localspec.chat.states.state_files import StateFiles, StoreProgress
from localspec.chat.tool_costs import ToolCosts
from localspec.drafter_names import LOOKUP
from localspec.engine.cancel import Cancel
from localspec.engine.drafters.past_texts import Past
from localspec.engine.length.gamma import AutoGamma
from localspec.engine.record.explain_again import explain_again
from localspec.engine.record.explanation import RoundExplanation
from localspec.engine.record.find_parting import find_parting
from localspec.engine.record.parting import Parting
from localspec.engine.record.round_record import GenerationRecord
from localspec.engine.record.stats import MemoryUse
from localspec.engine.record.trace import TraceWriter
from localspec.engine.round.generate import Engine
from localspec.errors import Cancelled, LocalspecError


class Session:
    """Owns the engine, the conversation and the settings, and runs one turn at a time.

    One thread runs the turns, and all else that uses the models or changes the conversation. Any
    thread may `stop` or `watch` a turn, `count` tokens, read `figures` and `memory`, replace the
    `settings`, set `speculation`, and `close` the session.

    Attributes:
        engine: runs the models; exposed for measurements.
        messages: the conversation; change it only between turns.
        folder: for copies of the caches; None for no copies on the disk.
    """

    def __init__(
        self,
        pair: LoadedPair,
        engine: Engine,
        settings: ChatSettings,
        *,
        auto: AutoGamma | None = None,
        closing: Callable[[], None] | None = None,
        resting: Callable[[Cancel], None] | None = None,
        joining: Callable[[Cancel], Joined] | None = None,
        renderer: TemplateRenderer | None = None,
        dialects: Path | None = None,
    ) -> None:
        """Begin an empty conversation.

        Args:
            pair: the loaded models.
            engine: runs the same models.
            settings: the initial ones.
            auto: the policy for gamma ``auto``; None for a fixed length.
            closing: called before the models are freed.
            resting: called by `rest`.
            joining: called by `load_drafts`; None if no draft model is missing.
            renderer: renders the target's template; closed with the session.
            dialects: the folder of learnt dialects; None to learn them again each time.

        Raises:
            Cancelled: the flag of `renderer` was set meanwhile.
        """
        self._closing, self._resting, self._joining = closing, resting, joining
        self.folder: Path | None = None
        self.pair = pair
        self.engine = engine
        self._drafting = Drafting(settings, auto, able=engine.drafts)
        self._writer = Writer(pair, engine, self._drafting, auto.costs if auto else None)
        self.template = ChatTemplate(pair.target.model, renderer, pair.chat_template, dialects)
        self._prompt = TurnPrompt(pair.target, self.template)
        self._turns = Turns(self.template, self._prompt, self._drafting, self._writer)
        self.messages = self._turns.messages
        self._guard = TurnGuard()

    @property
    def pair_name(self) -> str:
        """The pair's name."""
        return self.pair.name

    @property
    def pair_reference(self) -> tuple[str, str | None]:
        """What names the pair on a command line: PAIR, and the draft if one was named."""
        return self.pair.reference

    @property
    def target_name(self) -> str:
        """What the target is called on the screen."""
        return self.pair.target.model.shown_name

    @property
    def target_file(self) -> str:
        """The path of the target's first file."""
        return str(self.pair.target.model.path)

    @property
    def draft_name(self) -> str | None:
        """What draft models and heads are called on the screen, loaded or not; None without any."""
        loaded = (each.model.shown_name for each in self.pair.drafts.values())
        return " + ".join((*loaded, *self.pair.waiting)) or None

    @property
    def draft_state(self) -> str:
        """Why a draft model does not draft, or not yet; empty if all do."""
        return self.pair.draft_state

    @property
    def about(self) -> str:
        """The target's family and size, in words."""
        model = self.pair.target.model
        return f"{model.family}, {formats.many(model.n_params)} parameters"

    @property
    def exact(self) -> str:
        """What is known of ``--exact`` for the target, in words."""
        return self.pair.exact_note

    @property
    def equal_passes(self) -> int:
        """Up to how many tokens all passes give equal bits; 1 unless that was tested."""
        return self.pair.loaded.exact or 1

    @property
    def lookup(self) -> bool:
        """Whether prompt lookup drafts."""
        return self.pair.lookup

    @property
    def drafters(self) -> tuple[str, ...]:
        """The names of all drafters: the own names of models and heads, and prompt lookup."""
        models = tuple(each.model.name for each in self.pair.drafts.values())
        return (*models, LOOKUP) if self.pair.lookup else models

    @property
    def notices(self) -> list[str]:
        """What the user should know about this pair and its settings."""
        problems = self._writer.past.problems if self._writer.past else ()
        settings, thinking = self.settings, self.template.dialect.thinking
        missing = thinking.missing(
            settings.reasoning, settings.reasoning_effort, settings.reasoning_budget
        )
        asked = [missing] if missing else []
        return [*self.pair.notices, *self.template.notices, *asked, *problems]

    @property
    def advice(self) -> SamplingAdvice:
        """The sampling settings advised for the target."""
        return self.pair.advice

    @property
    def dialect(self) -> Dialect:
        """How the target marks thoughts and calls, and how its prompts end.

        Raises:
            Cancelled: the flag of the template's renderer was set meanwhile.
        """
        return self._prompt.dialect(self.settings)

    @property
    def speculation_note(self) -> str:
        """Why nothing can be drafted; empty if something can."""
        return "" if self._drafting.able else self.pair.draft_state or self.pair.draft_note

    @property
    def settings(self) -> ChatSettings:
        """The settings; a turn uses those in force when it begins.

        Change them between turns, or replace them at any time. Replacing them with another gamma
        takes effect at the next round: a gamma of 0 switches speculation off, any other switches it
        on.
        """
        return self._drafting.settings

    @settings.setter
    def settings(self, settings: ChatSettings) -> None:
        self._drafting.settings = settings

    @property
    def trace(self) -> TraceWriter | None:
        """Writes a trace of the following answers; None for no trace."""
        return self._turns.trace

    @trace.setter
    def trace(self, trace: TraceWriter | None) -> None:
        self._turns.trace = trace

    @property
    def speculation(self) -> bool:
        """Whether drafting is on. Setting it takes effect at the next round.

        It stays off if nothing can be drafted. If gamma is 0, switching it on sets gamma to
        ``auto``.
        """
        return self._drafting.on

    @speculation.setter
    def speculation(self, on: bool) -> None:
        self._drafting.on = on

    def turn(self, text: str, cancel: Cancel) -> TurnEvents:
        """Answer `text`; the question and the answer join the conversation.

        Closing the generator early, or setting `cancel`, keeps what was written so far. After an
        error before the first token, the conversation is unchanged.

        If the context is full, the oldest turns are left out as a whole; the system prompt stays.

        Yields:
            `Noticed` and `TurnsLeftOut` if they apply, `PromptProgress` (any number), `RoundText`
            (one per round), one `TurnEnd`.

        Raises:
            LocalspecError: the text is empty; another turn is running; the template refuses the
                conversation; `PromptTooLong` and whatever else the engine raises.
        """
        return self._guard.turn(self._turns.ask(text, cancel), cancel)

    def regenerate(self, cancel: Cancel) -> TurnEvents:
        """Answer the last question again, in place of the old answer.

        The old answer stays if the new one fails or is stopped before its first token. Yields and
        raises as `turn` does; also a LocalspecError if there is no question.
        """
        return self._guard.turn(self._turns.ask_again(cancel), cancel)

    def offer(
        self, tools: Sequence[dict[str, Any]], instead: Sequence[dict[str, Any]]
    ) -> ToolCosts:
        """Let the model call tools from the next turn on.

        Args:
            tools: in the form of OpenAI's requests.
            instead: tools that find these; offered in their place if these would take more than a
                twentieth of the context, and the others take less.

        Raises:
            LocalspecError: the template refuses them; none is offered then.
        """
        return self._prompt.offer(tools, instead, self.settings)

    def go_on(self, results: Sequence[Message], cancel: Cancel) -> TurnEvents:
        """Answer on after the results of the last answer's calls, which join the conversation.

        Results that the context has no room for are cut in the middle, and say so.

        Args:
            results: made by `tool_result`, in the order of the calls.
            cancel: as for `turn`.

        Yields and raises as `turn` does.
        """
        return self._guard.turn(self._turns.go_on(results, cancel), cancel)

    def compact(self, cancel: Cancel) -> TurnEvents:
        """Have the model summarise the conversation; the summary replaces it.

        If the context has no room for all of it and a summary, the oldest turns are left out, as
        few as need be. The user's grammar and stop strings do not hold for it. If this is stopped
        or fails, or the model writes only a thought or a call, nothing changes. Yields and raises
        as `turn` does; also a LocalspecError if there is nothing to summarise, or a limit cuts the
        summary.
        """
        return self._guard.turn(self._turns.compact(cancel), cancel)

    def complete(
        self,
        prompt: Sequence[int],
        settings: ChatSettings,
        answer: AnswerText,
        cancel: Cancel,
        *,
        after: Sequence[AwaitedText] = (),
        opening: str = "",
        top_logprobs: int | None = None,
        drafters: Sequence[str] | None = None,
        texts: Sequence[Past] = (),
        goes_on: bool = False,
    ) -> TurnEvents:
        """Continue a prompt that is not part of the conversation.

        Args:
            prompt: its ids.
            settings: in force until the answer ends; the caller handles the system prompt and the
                stop strings.
            answer: receives the generated tokens.
            cancel: stops the generation.
            after: in order; the grammar applies once all of them have been written.
            opening: the mark of a thought that the prompt ends with; empty for none.
            top_logprobs: how many alternatives to report per token; None for no probabilities.
            drafters: the names of those that may draft; None for all.
            texts: that lookup may copy from, besides the prompt.
            goes_on: whether the prompt's last message follows a question, as the result of a call.

        Yields and raises as `turn` does.
        """
        allowed = None if drafters is None else frozenset(drafters)
        budget, begun = self._prompt.budget(settings, opening), perf_counter()
        how = self._writer.how(settings, after, budget, begun)
        how = replace(how, top_logprobs=top_logprobs, drafters=allowed, goes_on=goes_on)
        turn = self._turns.complete(prompt, settings, how, answer, cancel, texts=texts)
        return self._guard.turn(turn, cancel)

    def stop(self) -> None:
        """End the running turn after its present round. From any thread."""
        self._guard.stop()

    @property
    def last(self) -> TurnEnd | None:
        """How the last answer ended; None before the first, and after one that failed."""
        return self._turns.last

    @property
    def written(self) -> GenerationRecord | None:
        """The record of the rounds of the running or else the last answer."""
        return self.engine.recorder.generation

    def watch(self, told: Callable[[RoundExplanation], None] | None) -> None:
        """Call `told` once, with the explanation of the next round that has a draft.

        None cancels this. From any thread.
        """
        self.engine.recorder.watch = told

    def explain_round(
        self, written: GenerationRecord, number: int, cancel: Cancel
    ) -> RoundExplanation:
        """Decode round `number` of an answer again; 0 means the last round with a draft.

        The caches are left in that round's state: the next answer reads again what they lack.

        Raises:
            LocalspecError: a turn is running; the answer has no such round; or as `explain_again`.
            Cancelled: `cancel` was set.
        """
        with self._guard.exclusive(cancel):
            number = number or written.latest()
            if not 0 < number <= len(written.rounds):
                raise LocalspecError(f"this answer has no round {number}")
            return explain_again(self.engine, written, number, cancel)

    def part(
        self, one: GenerationRecord, other: GenerationRecord, cancel: Cancel
    ) -> Parting | None:
        """Where two answers to one prompt part, as `find_parting` tells it.

        Raises:
            LocalspecError: a turn is running.
            Cancelled: `cancel` was set.
        """
        with self._guard.exclusive(cancel):
            return find_parting(self.engine, one, other, cancel)

    def count(self, text: str) -> int:
        """How many tokens `text` has in a message. From any thread."""
        return self._prompt.tools.count(text)

    def figures(self) -> Figures:
        """The figures of the running or else the last turn. From any thread."""
        return self._writer.figures(generating=self._guard.running)

    def memory(self) -> MemoryUse:
        """The memory use by purpose. From any thread; takes well below a millisecond."""
        return self.pair.memory()

    def peak_memory_bytes(self) -> int:
        """This process's peak resident size plus its present accelerator memory, in bytes."""
        memory = self.pair.memory()
        return memory.peak_process + memory.on_devices

    def keep_in(self, folder: Path, made_by: str) -> None:
        """Store copies of the caches in a folder.

        Args:
            folder: created if it is missing.
            made_by: describes the models and how they run.
        """
        self.folder = folder
        self._writer.stored = StoredPrefix(self.pair.contexts, StateFiles(folder, made_by))

    def enter(self, conversation: str, progress: StoreProgress = lambda _share: None) -> None:
        """Switch to the stored conversation of this id; an empty id means that it is not stored.

        This stores the caches of the previous conversation (`progress` receives the share that is
        stored). Those of this conversation are restored with its first prompt.
        """
        if self._writer.stored is not None:
            known = self._prompt.known_ids
            self._writer.stored.enter(conversation, known, self._following, progress)
        if self._writer.past is not None:
            self._writer.past.enter(conversation)

    def _following(self) -> Sequence[int] | None:
        """The ids with which the next prompt begins; None if the template does not tell."""
        with suppress(LocalspecError, Cancelled):
            return self._prompt.following(self.messages, self.settings)
        return None

    def remember_in(self, folder: Path) -> None:
        """Let prompt lookup copy from stored conversations, and store this one for others.

        Args:
            folder: created if it is missing.
        """
        if self.pair.lookup:
            self._writer.past = PastStore(folder, self.pair.target.model)
            self._writer.past.recall()

    def reset(self) -> None:
        """Begin a new conversation; the caches stay, as its prompt may begin with the same tokens.

        Raises:
            LocalspecError: a turn is running.
        """
        self.open(())
        self._prompt.known_ids.clear()

    def open(self, messages: Sequence[Message]) -> None:
        """Continue from other messages: a stored conversation, or another version of this one.

        Raises:
            LocalspecError: a turn is running.
        """
        with self._guard.exclusive(Cancel()):
            self.messages[:] = messages
            self._prompt.window.left_out = 0
            self._writer.forget()

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Restore the conversation, the settings and the figures after the answers inside."""
        messages, settings, speculation = list(self.messages), self.settings, self.speculation
        left_out = self._prompt.window.left_out
        try:
            with self._writer.aside(), self._drafting.aside():
                yield
        finally:
            self.messages[:] = messages
            self.settings = settings
            if self.speculation != speculation:
                self.speculation = speculation
            self._prompt.window.left_out = left_out

    @property
    def awaits_drafts(self) -> bool:
        """Whether draft models are still to be loaded."""
        return self._joining is not None

    def load_drafts(self, cancel: Cancel) -> None:
        """Load the draft models that the target did not wait for; they draft from the next turn on.

        One that cannot be loaded is left out: `draft_state` says why. While a turn runs, nothing
        happens.

        Raises:
            Cancelled: `cancel` was set. The session is unchanged, and may be asked again.
        """
        with self._guard.if_free() as free:
            if free and self._joining is not None:
                self.pair, drafters, auto, made_by = self._joining(cancel)
                self._joining = None
                self.engine.join(drafters)
                self._drafting.join(auto, able=self.engine.drafts)
                self._writer.join(self.pair, auto.costs if auto else None, made_by, cancel)

    def rest(self, cancel: Cancel) -> None:
        """Use idle time for measurements that loading left out.

        Raises:
            Cancelled: `cancel` was set. The conversation is unchanged.
        """
        with self._guard.if_free() as free:
            if free and self._resting is not None:
                self._resting(cancel)

    def close(self, progress: StoreProgress = lambda _share: None) -> None:
        """Stop a running turn, wait for its end, store its caches and free the models.

        The models are freed even if something fails before.
        `progress` receives the share of the caches that is stored. A second call finds all of this
        done.
        """
        with (
            self._guard.closing(),
            closing(self.pair),
            closing(self.engine),
            closing(self.template),
        ):
            if self._closing is not None:
                self._closing()
            self.enter("", progress)
