"""A session without models: answers are written down beforehand, rounds come when the test says."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from localspec.chat.advice import SamplingAdvice
from localspec.chat.conversation import Message, Role
from localspec.chat.dialects import Dialect
from localspec.chat.events import (
    Origin,
    PromptProgress,
    RoundText,
    Span,
    TurnEnd,
    TurnEvent,
    TurnsLeftOut,
)
from localspec.chat.figures.figures import Figures
from localspec.chat.settings import ChatSettings
from localspec.chat.tool_costs import ToolCosts
from localspec.engine.cancel import Cancel
from localspec.engine.record.explanation import RoundExplanation
from localspec.engine.record.parting import Parting
from localspec.engine.record.stats import (
    DeviceMemory,
    FinishReason,
    GammaNote,
    GammaReason,
    GenerationStats,
    MemoryUse,
    Prefill,
    Round,
)
from localspec.errors import EngineError, LocalspecError

MIB = 1 << 20
GAMMA = 3
PAYS = GammaNote(GammaReason.PAYS, GAMMA, 0.75, "scripted")
# Accepted drafted tokens, round by round, over and over.
PATTERN = (3, 2, 0, 3, 1, 3)


class Gate:
    """Lets rounds through: all of them, or as many as the test allows."""

    def __init__(self, *, is_open: bool = True) -> None:
        self._condition = threading.Condition()
        self._open = is_open
        self._allowed = 0

    def open(self) -> None:
        with self._condition:
            self._open = True
            self._condition.notify_all()

    def close(self) -> None:
        with self._condition:
            self._open = False
            self._allowed = 0

    def allow(self, rounds: int) -> None:
        with self._condition:
            self._allowed += rounds
            self._condition.notify_all()

    def pass_through(self, cancel: Cancel) -> bool:
        """Wait for permission; False once cancelled."""
        with self._condition:
            while not self._open and not self._allowed:
                if cancel.is_set():
                    return False
                self._condition.wait(0.01)
            if not self._open:
                self._allowed -= 1
        return not cancel.is_set()


@dataclass
class ScriptedSession:
    """Answers in order, the last one again and again; an exception among them is raised."""

    answers: Sequence[str | Exception] = ("The sky is blue.",)
    gate: Gate = field(default_factory=Gate)
    round_s: float = 0.0
    prompt_steps: int = 2
    fail_after_rounds: int | None = None
    ends_when_stopped: bool = False  # after the last round
    stopped_by: str = ""
    pair_name: str = "scripted"
    pair_reference: tuple[str, str | None] = ("scripted", None)
    target_name: str = "target-27M-Q8_0"
    draft_name: str | None = "draft-1M-Q8_0"
    lookup: bool = False
    speculation: bool = True
    speculation_note: str = ""
    draft_state: str = ""
    awaits_drafts: bool = False
    about: str = "Scripted, 27 million parameters"
    exact: str = ""
    equal_passes: int = 1
    notices: list[str] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    settings: ChatSettings = field(default_factory=ChatSettings)
    context_size: int = 4096
    entered: list[str] = field(default_factory=list)
    closed: bool = False
    resets: int = 0
    rounds_made: int = 0
    devices: tuple[DeviceMemory, ...] = ()
    left_out: int = 0
    advice: SamplingAdvice = SamplingAdvice()  # noqa: RUF009 - frozen
    dialect: Dialect = Dialect()  # noqa: RUF009 - frozen
    explained: RoundExplanation | None = None
    watching: Callable[[RoundExplanation], None] | None = None
    looks: list[int] = field(default_factory=list)
    parting: Parting | None = None
    offered: Sequence[dict[str, Any]] = ()

    def __post_init__(self) -> None:
        self._turn = 0
        self._busy = threading.Lock()
        self._stats = GenerationStats()
        self._started = 0.0
        self._generating = False

    def turn(self, text: str, cancel: Cancel) -> Iterator[TurnEvent]:
        yield from self._turned([Message(Role.USER, text)], cancel)

    def go_on(self, results: Sequence[Message], cancel: Cancel) -> Iterator[TurnEvent]:
        yield from self._turned(results, cancel)

    def offer(
        self, tools: Sequence[dict[str, Any]], instead: Sequence[dict[str, Any]]
    ) -> ToolCosts:
        each = tuple(10 for _ in tools)
        whole = sum(each)
        searched = whole > self.context_size // 20
        self.offered = instead if searched else tools
        total = 30 if searched else whole
        return ToolCosts(total, whole, each, self.context_size, searched)

    def _turned(self, said: Sequence[Message], cancel: Cancel) -> Iterator[TurnEvent]:
        answer = self.answers[min(self._turn, len(self.answers) - 1)]
        self._turn += 1
        if isinstance(answer, Exception):
            raise answer
        if not self._busy.acquire(blocking=False):
            raise EngineError("an answer is running already")
        try:
            self.messages += said
            yield from self._generate(said[-1].content, answer, cancel)
        finally:
            self._generating = False
            self._busy.release()

    def regenerate(self, cancel: Cancel) -> Iterator[TurnEvent]:
        if not self.messages:
            raise LocalspecError("there is nothing to answer yet")
        before = list(self.messages)
        if self.messages[-1].role == Role.ASSISTANT:
            self.messages.pop()
        question = self.messages.pop()
        try:
            yield from self.turn(question.content, cancel)
        except LocalspecError:
            self.messages[:] = before
            raise

    def compact(self, cancel: Cancel) -> Iterator[TurnEvent]:
        before = list(self.messages)
        yield from self.turn("sum up", cancel)
        summary = self.messages[-1]
        self.messages[:] = before
        if summary.finish is FinishReason.STOP:
            self.messages[:] = [Message(Role.USER, "so far?"), summary]

    @property
    def written(self) -> object:
        return self

    def watch(self, told: Callable[[RoundExplanation], None] | None) -> None:
        self.watching = told

    def explain_round(self, _written: object, number: int, cancel: Cancel) -> RoundExplanation:
        self.looks.append(number)
        if self.explained is None:
            raise LocalspecError("there is no such round")
        return replace(self.explained, number=number or self.explained.number)

    def part(self, _one: object, _other: object, _cancel: Cancel) -> Parting | None:
        return self.parting

    def figures(self) -> Figures:
        stats = self._stats
        elapsed = time.monotonic() - self._started
        speed = stats.generated_tokens / elapsed if elapsed > 0 and stats.rounds else None
        return Figures(
            generating=self._generating,
            speculation=self.speculation and self.draft_name is not None,
            gamma_note=PAYS if self.speculation else GammaNote(GammaReason.OFF),
            speed_now=speed if self._generating else None,
            speed_average=stats.tokens_per_second,
            acceptance_rate=stats.acceptance_rate,
            tokens_per_round=stats.mean_tokens_per_round,
            drafted=stats.drafted_tokens,
            accepted=stats.accepted_tokens,
            recovered=stats.recovered_tokens,
            bonus=stats.bonus_tokens,
            generated=stats.generated_tokens,
            time_to_first_token_s=stats.time_to_first_token_s,
            draft_s=stats.draft_s,
            verify_s=stats.verify_s,
            prompt_tokens=stats.prompt_tokens,
            prompt_cached=stats.prefill_cached,
            context_used=min(self.context_size, 40 + stats.generated_tokens),
            context_size=self.context_size,
        )

    def count(self, text: str) -> int:
        return 7 * len(text.split())

    def memory(self) -> MemoryUse:
        return MemoryUse(
            target_weights=27 * MIB,
            draft_weights=1 * MIB,
            target_cache=6 * MIB,
            draft_cache=1 * MIB,
            buffers=12 * MIB,
            process=260 * MIB,
            peak_process=280 * MIB,
            machine_total=16 << 30,
            machine_available=9 << 30,
            devices=self.devices,
        )

    def enter(self, conversation: str) -> None:
        self.entered.append(conversation)

    def open(self, messages: Sequence[Message]) -> None:
        self.messages[:] = messages
        self.resets += not messages

    @contextmanager
    def aside(self) -> Iterator[None]:
        before = list(self.messages), self.settings, self.speculation, self._stats
        yield
        self.messages[:], self.settings, self.speculation, self._stats = before

    def rest(self, cancel: Cancel) -> None:
        """There is nothing to measure."""

    def close(self, progress: Callable[[float], None] = lambda _share: None) -> None:
        self.closed = True

    def _generate(self, text: str, answer: str, cancel: Cancel) -> Iterator[TurnEvent]:
        prompt = len(text.split()) + 20
        self._stats = GenerationStats()
        self._started = time.monotonic()
        self._generating = True
        if self.left_out:
            yield TurnsLeftOut(self.left_out)
        for step in range(1, self.prompt_steps + 1):
            yield PromptProgress(prompt * step // self.prompt_steps, prompt)
        self._stats.add_prefill(Prefill(prompt, 0, prompt, 0.02))
        released: list[Span] = []
        reason = FinishReason.STOP
        for index, (spans, done) in enumerate(self._rounds(answer)):
            if not self.gate.pass_through(cancel):
                reason = FinishReason.CANCELLED
                break
            if index == self.fail_after_rounds:
                raise EngineError("the engine broke", "Try again.")
            if self.round_s:
                time.sleep(self.round_s)
            self.rounds_made += 1
            self._stats.add(done)
            released.extend(spans)
            yield RoundText(spans, done)
        self._stats.finish_reason = reason
        whole = "".join(span.text for span in released)
        self.messages.append(Message(Role.ASSISTANT, whole, reason, tuple(released)))
        while self.ends_when_stopped and not cancel.is_set():
            time.sleep(0.005)
        yield TurnEnd(whole, reason, self._stats, self.stopped_by)

    def _rounds(self, answer: str) -> Iterator[tuple[tuple[Span, ...], Round]]:
        """Cut `answer` into words as tokens and those into rounds after the pattern."""
        tokens = answer.replace(" ", "\0 ").split("\0")
        position = index = 0
        while position < len(tokens):
            drafting = self.speculation and index > 0
            accepted = PATTERN[index % len(PATTERN)] if drafting else 0
            mine = tokens[position : position + accepted + 1]
            drafted = tuple(Span(token, Origin.DRAFT) for token in mine[:accepted])
            own = tuple(Span(token, Origin.TARGET) for token in mine[accepted:])
            yield (
                drafted + own,
                Round(
                    tokens=tuple(range(position, position + len(mine))),
                    gamma=GAMMA if drafting else 0,
                    drafted=GAMMA if drafting else 0,
                    accepted=accepted,
                    draft_s=0.002 if drafting else 0.0,
                    verify_s=0.006,
                    total_s=0.009,
                ),
            )
            position += len(mine)
            index += 1
