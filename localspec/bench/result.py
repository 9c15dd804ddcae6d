"""The results of a bench: plain values that pictures, tables and documents show.

Times are in seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from localspec.engine.record.parting import Parting
from localspec.engine.record.stats import GenerationStats
from localspec.formats import times

FORMAT = 1
INTERRUPTED, OUT_OF_TIME, SETTLED = "interrupted", "out of time", "settled"
"""Why a run ended before all was asked: the user stopped it; the time was up; every kind of text
had its answer."""

OFF, ALL = "off", "all"
"""The name of the setting without drafting; the name of the row over all kinds."""

LEAST_TOKENS = 8
"""Answers shorter than this are too short to time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchRun:
    """One timed answer.

    Attributes:
        repeat: counted from 0.
        prompt_s: from the question to the first round, templating included.
        after_s: Python's work after the last round.
        wall_s: from the question to the end of the answer, measured apart from the parts.
    """

    prompt: str
    kind: str
    arm: str
    repeat: int
    stats: GenerationStats
    prompt_s: float
    after_s: float
    wall_s: float

    @property
    def tokens(self) -> tuple[int, ...]:
        """The ids of the answer."""
        return tuple(token for done in self.stats.rounds for token in done.tokens)

    @property
    def draft_s(self) -> float:
        """Seconds of drafting."""
        return sum(done.draft_s for done in self.stats.rounds if done.draft_passes or done.kept)

    @property
    def verify_s(self) -> float:
        """Seconds of the target, which may have to read again what stays after a rejection."""
        return self.stats.verify_s + sum(done.rollback_s for done in self.stats.rounds)

    @property
    def python_s(self) -> float:
        """Seconds outside of both models: sampling, the rule, text, and the time between rounds."""
        whole = sum(done.total_s + done.between_s for done in self.stats.rounds)
        return whole - self.draft_s - self.verify_s + self.after_s

    @property
    def timed(self) -> bool:
        """Whether it is long enough to give a speed."""
        stats = self.stats
        return stats.tokens_per_second is not None and stats.generated_tokens >= LEAST_TOKENS


@dataclass(frozen=True, slots=True)
class TimeShares:
    """Shares of the time without the prompt; they add up to 1."""

    draft: float
    verify: float
    python: float


@dataclass(frozen=True, slots=True)
class MeanInterval:
    """A geometric mean and its 95 % interval, None if there are too few values."""

    value: float
    low: float | None = None
    high: float | None = None

    @property
    def above_one(self) -> bool:
        """Whether all of the interval lies above 1."""
        return self.low is not None and self.low > 1

    @property
    def below_one(self) -> bool:
        """Whether all of the interval lies below 1."""
        return self.high is not None and self.high < 1

    def __str__(self) -> str:
        """``1.62× (1.50 to 1.75)``."""
        said = times(self.value)
        if self.low is None or self.high is None:
            return said
        return f"{said} ({self.low:.2f} to {self.high:.2f})"


@dataclass(frozen=True, slots=True, kw_only=True)
class KindRow:
    """One kind of text, or all of them, under one setting.

    Attributes:
        kind: `ALL` for the row over all kinds.
        prompts: how many questions were timed.
        tokens_per_second: geometric mean over prompts; over all kinds, of the kinds' means.
        speedup: over no drafting, prompt by prompt; None for no drafting itself.
        acceptance: accepted over drafted tokens; None if nothing was drafted.
        tokens_per_round: emitted tokens per pass of the target.
        gamma: drafted tokens per round that drafted; None if none did.
        drafting: share of the rounds that drafted.
        time_to_first_token_s: median over prompts.
    """

    kind: str
    prompts: int
    tokens_per_second: float | None
    speedup: MeanInterval | None
    acceptance: float | None
    tokens_per_round: float | None
    gamma: float | None
    drafting: float
    time_to_first_token_s: float | None
    shares: TimeShares | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmReport:
    """One setting.

    Attributes:
        name: ``off`` is decoding without drafting.
        draft: the draft's name; None if nothing drafts.
        gamma: ``"auto"`` or a number.
        swept: whether it belongs to a sweep over draft lengths.
        drafters: the kind of each, and the name in its file, empty if that has none.
    """

    name: str
    draft: str | None
    gamma: str
    swept: bool
    kinds: tuple[KindRow, ...]
    overall: KindRow
    drafters: tuple[tuple[str, str], ...] = ()

    @property
    def rows(self) -> tuple[KindRow, ...]:
        """One for every kind, and the one over all."""
        return (*self.kinds, self.overall)


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """T(n): one decode of `n` tokens by the target.

    Attributes:
        seconds: measured before the runs; None if only the runs have it.
        in_runs: median in the timed runs; None if none had this size.
    """

    n: int
    seconds: float | None
    in_runs: float | None


@dataclass(frozen=True, slots=True)
class Prediction:
    """The prediction for one draft length.

    Attributes:
        speedup: over the prediction for no drafting.
        roofline: the same for a draft that is free and always right, with no time in Python.
    """

    gamma: int
    tokens_per_round: float
    tokens_per_second: float
    speedup: float
    roofline: float


@dataclass(frozen=True, slots=True)
class SweepPoint:
    """One draft length, predicted and measured.

    Attributes:
        predicted: from T(n), the draft's cost and the acceptance.
        tokens_per_second: measured, all tokens over all time; None if it was not run.
        speedup: measured, prompt by prompt.
    """

    predicted: Prediction
    tokens_per_second: float | None
    speedup: MeanInterval | None


@dataclass(frozen=True, slots=True)
class AnswerDifference:
    """Two different answers to one question.

    Attributes:
        at, margin: as in `Parting`.
    """

    prompt: str
    arm: str
    at: int
    margin: float | None

    @property
    def near_tie(self) -> bool:
        """Whether rounding may have decided."""
        return Parting(self.at, self.margin).near_tie


@dataclass(frozen=True, slots=True)
class AnswersAgree:
    """Whether the answers with and without speculation were the same.

    Attributes:
        compared: how many pairs of answers were compared.
        same: how many pairs were the same in all tokens compared.
        tokens: tokens of all pairs, up to where they part or one was cut off.
        near_ties: how many of the partings are near ties, which rounding decides.
        partings_per_1000: partings for 1,000 of these tokens; None without any tokens.
    """

    compared: int
    same: int
    greedy: bool
    partings: tuple[AnswerDifference, ...]
    tokens: int = 0
    near_ties: int = 0
    partings_per_1000: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchReport:
    """A whole bench.

    Attributes:
        environment: machine, backend, versions, models with their hashes.
        draft_note: why nothing can be drafted; empty if something can.
        arms: the settings; the first decodes without drafting.
        curve: T(n) of the target.
        draft_step_s: one decode of the first draft; None without one, and for one that guesses a
            block in one pass or whose tokens are not the target's.
        sweep: by draft length, for the first draft; empty where `draft_step_s` is None.
        prompts: how many questions the set has.
        too_long, too_short: names of prompts that did not fit into the context, or whose answers
            have too few tokens to time.
        ended: `INTERRUPTED`, `OUT_OF_TIME` or `SETTLED`; empty if all repeats were run.
        peak_memory_bytes: of the process and its accelerators.
        busy_cores: how many cores other programs kept busy when it began; 0 for a calm machine.
        verdict: conclusions, one sentence each.
    """

    environment: Mapping[str, Any]
    settings: Mapping[str, Any]
    draft_note: str
    arms: tuple[ArmReport, ...]
    curve: tuple[CurvePoint, ...]
    draft_step_s: float | None
    sweep: tuple[SweepPoint, ...]
    agreement: AnswersAgree
    prompts: int
    too_long: tuple[str, ...]
    too_short: tuple[str, ...]
    ended: str
    peak_memory_bytes: int
    busy_cores: float = 0.0
    verdict: tuple[str, ...] = ()
    runs: tuple[BenchRun, ...] = ()

    @property
    def off(self) -> ArmReport:
        """The setting without drafting."""
        return self.arms[0]

    @property
    def on(self) -> tuple[ArmReport, ...]:
        """The settings that draft, those of a sweep left out."""
        return tuple(arm for arm in self.arms[1:] if not arm.swept)

    @property
    def best(self) -> tuple[ArmReport, MeanInterval] | None:
        """The fastest of those that drafted, else of all, and its speed-up; None without any."""
        timed = [(arm, found) for arm in self.on if (found := arm.overall.speedup)]
        return max(timed, key=lambda one: (one[0].overall.drafting > 0, one[1].value), default=None)

    @property
    def step(self) -> float | None:
        """T(1) in seconds."""
        return next((p.seconds for p in self.curve if p.n == 1), None)
