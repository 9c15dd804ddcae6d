"""Runs every prompt under every setting in turn, on models that are loaded once."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from itertools import product
from time import perf_counter
from typing import TypeAlias, TypeVar

from localspec.bench.prompt_sets import BenchPrompt
from localspec.bench.result import (
    INTERRUPTED,
    OFF,
    OUT_OF_TIME,
    SETTLED,
    AnswerDifference,
    BenchRun,
)
from localspec.chat.events import RoundText, TurnEnd
from localspec.chat.session.session import Session
from localspec.chat.settings import ChatSettings, Gamma
from localspec.engine.cancel import Cancel
from localspec.engine.record.round_record import GenerationRecord
from localspec.engine.record.stats import FinishReason
from localspec.errors import Cancelled, PromptTooLong

WARM_UP_TOKENS = 32

T = TypeVar("T")

BeforeAsking: TypeAlias = Callable[[str, int, int, float | None], object]
"""Called before a question with its name, how many were asked and how many there are (repeats
count), and the estimated seconds left, None before the first estimate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One setting that every prompt is answered under.

    Attributes:
        name: its name in the report; `OFF` does not draft.
        gamma: draft length, 0 for no drafting.
        swept: whether it belongs to a sweep over draft lengths.
        most: tokens of an answer at most, if fewer than the settings allow; None for no limit.
    """

    name: str
    session: Session
    gamma: Gamma
    swept: bool = False
    most: int | None = None


def in_turn(arms: Sequence[T], turn: int) -> list[T]:
    """The order of the arms for question `turn` of a kind: both ways, with changing starts.

    This way a drifting machine speed favours no setting. Two arms take turns as off-on, on-off,
    on-off, off-on, ...; with more, every arm comes first, and before and after every other.
    """
    start = turn // 2 % len(arms)
    order = [*arms[start:], *arms[:start]]
    return order[::-1] if turn % 2 else order


@dataclass(slots=True)
class BenchOutcome:
    """The runs of a bench. Every question in it was answered under all settings.

    Attributes:
        runs: in the order in which they were made.
        partings: where answers with and without speculation differ.
        compared: how many pairs of answers were compared.
        compared_tokens: how many tokens these have up to where they part, or else to their ends.
        too_long: names of questions that do not fit into the context.
        ended: `INTERRUPTED`, `OUT_OF_TIME` or `SETTLED` if it ended early; else empty.
    """

    runs: list[BenchRun] = field(default_factory=list)
    partings: list[AnswerDifference] = field(default_factory=list)
    compared: int = 0
    compared_tokens: int = 0
    too_long: list[str] = field(default_factory=list)
    ended: str = ""


class _OutOfTime(Exception):
    """The deadline has passed."""


@dataclass(frozen=True, slots=True)
class Runner:
    """Asks questions under several settings, in one thread.

    Attributes:
        arms: the first decodes without drafting.
        settings: common to all arms; the seed is that of the first repeat.
        cancel: ends the run; finished questions are kept.
        deadline: in seconds of `clock`, None for none; the question that it interrupts is left out,
            unless it is the first.
        settled: by the runs so far, the kinds of text of which no more is asked.
    """

    arms: Sequence[Arm]
    settings: ChatSettings
    cancel: Cancel
    deadline: float | None = None
    asking: BeforeAsking = lambda *_: None
    settled: Callable[[Sequence[BenchRun]], Collection[str]] = lambda _: ()
    clock: Callable[[], float] = perf_counter

    def warm_up(self, prompt: BenchPrompt) -> None:
        """Give a short answer under every setting, which is not recorded.

        Raises:
            Cancelled: the user stopped it.
        """
        short = replace(self.settings, n_predict=WARM_UP_TOKENS)
        for arm in self.arms:
            with suppress(PromptTooLong):
                self._answer(arm, prompt, 0, short, BenchOutcome())

    def run(self, prompts: Sequence[BenchPrompt], repeats: int) -> BenchOutcome:
        """Ask everything `repeats` times, or until it is stopped."""
        outcome, begun, total = BenchOutcome(), self.clock(), len(prompts) * repeats
        settled: Collection[str] = ()
        # Counted within each kind: over all, every question of some kinds would begin alike.
        turns = {kind: n for n, kind in enumerate(dict.fromkeys(each.kind for each in prompts))}
        try:
            for asked, (repeat, prompt) in enumerate(product(range(repeats), prompts)):
                self._check_time(outcome)
                if prompt.kind in settled:
                    outcome.ended = SETTLED
                elif prompt.name not in outcome.too_long:
                    self.asking(prompt.name, asked, total, self._left(begun, asked, total))
                    self._ask(prompt, repeat, in_turn(self.arms, turns[prompt.kind]), outcome)
                    turns[prompt.kind] += 1
                    settled = self.settled(outcome.runs)
        except Cancelled:
            outcome.ended = INTERRUPTED
        except _OutOfTime:
            outcome.ended = OUT_OF_TIME
        return outcome

    def _left(self, begun: float, done: int, total: int) -> float | None:
        now = self.clock()
        bounds = [(now - begun) / done * (total - done)] if done else []
        bounds += [] if self.deadline is None else [max(0.0, self.deadline - now)]
        return min(bounds, default=None)

    def _check_time(self, outcome: BenchOutcome) -> None:
        if self.deadline is not None and outcome.runs and self.clock() > self.deadline:
            raise _OutOfTime

    def _ask(
        self, prompt: BenchPrompt, repeat: int, order: Sequence[Arm], outcome: BenchOutcome
    ) -> None:
        """Ask one question under all settings; record all answers or none."""
        found: dict[str, BenchRun] = {}
        records: dict[str, GenerationRecord | None] = {}
        try:
            for arm in order:
                found[arm.name] = self._answer(arm, prompt, repeat, self.settings, outcome)
                records[arm.name] = arm.session.written
        except PromptTooLong:
            outcome.too_long.append(prompt.name)
            return
        if repeat == 0:  # at temperature 0 later repeats give the same answers
            self._compare(prompt.name, records, outcome)
        outcome.runs += found.values()

    def _answer(
        self,
        arm: Arm,
        prompt: BenchPrompt,
        repeat: int,
        settings: ChatSettings,
        outcome: BenchOutcome,
    ) -> BenchRun:
        """Answer once, from empty caches."""
        session = arm.session
        session.reset()
        for context in session.pair.contexts:
            context.clear()
        seed = (settings.sampling.seed or 0) + repeat
        sampling = replace(settings.sampling, seed=seed)
        most = settings.n_predict if arm.most is None else min(arm.most, settings.n_predict)
        session.settings = replace(settings, gamma=arm.gamma, sampling=sampling, n_predict=most)
        started = latest = self.clock()
        prompt_s: float | None = None
        with closing(session.turn(prompt.text, self.cancel)) as turn:
            for event in turn:
                if isinstance(event, TurnEnd):
                    after = self.clock() - latest
                    break
                latest = self.clock()
                if prompt_s is None and isinstance(event, RoundText):
                    # What a device was given to read it has read by the first round, and no sooner.
                    prompt_s = latest - started - event.round.between_s - event.round.total_s
                self._check_time(outcome)
            else:
                raise AssertionError("the turn ended without a TurnEnd")
        if event.reason is FinishReason.CANCELLED:
            raise Cancelled
        return BenchRun(
            prompt=prompt.name,
            kind=prompt.kind,
            arm=arm.name,
            repeat=repeat,
            stats=event.stats,
            prompt_s=prompt_s or 0.0,
            after_s=after,
            wall_s=latest + after - started,
        )

    def _compare(
        self, prompt: str, records: Mapping[str, GenerationRecord | None], outcome: BenchOutcome
    ) -> None:
        """Compare each answer with the one without drafting."""
        baseline, tokens = records[OFF], 0
        partings: list[AnswerDifference] = []
        for arm in self.arms[1:]:
            other = records[arm.name]
            if baseline is None or other is None:
                continue
            found = arm.session.part(baseline, other, self.cancel)
            if found is not None:
                partings.append(AnswerDifference(prompt, arm.name, found.at, found.margin))
            tokens += baseline.written if found is None else found.at + 1
        outcome.partings += partings
        outcome.compared += len(self.arms) - 1
        outcome.compared_tokens += tokens
