"""What a bench found: plain values that every picture, table and document is made from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from localspec.bench.agreement import Parting
from localspec.bench.predict import Prediction
from localspec.bench.runs import Run, Shares
from localspec.bench.statistics import Interval

FORMAT = 1
INTERRUPTED, OUT_OF_TIME = "interrupted", "out of time"
OFF, ALL = "off", "all"
"""The setting that is plain decoding; the row over all kinds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One kind of text, or all of them, under one setting. Times in seconds.

    Attributes:
        kind: the kind; `ALL` over all.
        prompts: questions that were timed.
        tokens_per_second: geometric mean over prompts (over all: of the kinds' means).
        speedup: over plain decoding, prompt by prompt; None for plain decoding itself.
        acceptance: accepted over drafted tokens; None where nothing was drafted.
        tokens_per_round: emitted tokens per target pass.
        gamma: drafted tokens per round that drafted; None where none did.
        drafting: share of the rounds that drafted.
        time_to_first_token_s: median over prompts.
        shares: where the time goes.
    """

    kind: str
    prompts: int
    tokens_per_second: float | None
    speedup: Interval | None
    acceptance: float | None
    tokens_per_round: float | None
    gamma: float | None
    drafting: float
    time_to_first_token_s: float | None
    shares: Shares | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmReport:
    """One setting.

    Attributes:
        name: how it is called; ``off`` is plain decoding.
        draft: the draft's name; None where nothing drafts.
        gamma: ``"auto"`` or a number.
        demonstration: whether it drafted for show where that did not pay.
        swept: one of a sweep over draft lengths.
        kinds: a row for every kind.
        overall: the row over all.
    """

    name: str
    draft: str | None
    gamma: str
    demonstration: bool
    swept: bool
    kinds: tuple[Row, ...]
    overall: Row

    @property
    def rows(self) -> tuple[Row, ...]:
        """All of them."""
        return (*self.kinds, self.overall)


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """T(n): one decode of `n` tokens by the target.

    Attributes:
        n: tokens.
        seconds: measured beforehand; None where only the runs show it.
        in_runs: median in the timed runs; None where none was of that size.
    """

    n: int
    seconds: float | None
    in_runs: float | None


@dataclass(frozen=True, slots=True)
class SweepPoint:
    """One draft length: what was expected beside what was measured.

    Attributes:
        predicted: from T(n), the draft's cost and the acceptance.
        tokens_per_second: measured, all tokens over all time; None where it was not run.
        speedup: measured, prompt by prompt.
    """

    predicted: Prediction
    tokens_per_second: float | None
    speedup: Interval | None


@dataclass(frozen=True, slots=True)
class Agreement:
    """Whether the answers with and without speculation were the same.

    Attributes:
        compared: pairs of answers.
        same: pairs that were the same to the last token.
        greedy: whether that was at temperature 0.
        partings: the others.
    """

    compared: int
    same: int
    greedy: bool
    partings: tuple[Parting, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A whole bench.

    Attributes:
        environment: machine, backend, versions, models with their hashes.
        settings: everything that was asked for.
        draft_note: why nothing can be drafted; empty where something can.
        arms: the settings; the first is plain decoding.
        curve: T(n) of the target.
        draft_step_s: one decode of the first draft; None without one.
        sweep: by draft length, for the first draft.
        agreement: of the outputs.
        prompts: questions that there were.
        too_long, too_short: names of prompts that did not fit, or whose answers have too few
            tokens to time.
        ended: `INTERRUPTED` or `OUT_OF_TIME`; empty where everything was asked as often as wanted.
        peak_memory_bytes: of the process and its accelerators.
        runs: every run.
        verdict: what all this means, a sentence each.
    """

    environment: Mapping[str, Any]
    settings: Mapping[str, Any]
    draft_note: str
    arms: tuple[ArmReport, ...]
    curve: tuple[CurvePoint, ...]
    draft_step_s: float | None
    sweep: tuple[SweepPoint, ...]
    agreement: Agreement
    prompts: int
    too_long: tuple[str, ...]
    too_short: tuple[str, ...]
    ended: str
    peak_memory_bytes: int
    runs: tuple[Run, ...] = ()
    verdict: tuple[str, ...] = ()

    @property
    def off(self) -> ArmReport:
        """Plain decoding."""
        return self.arms[0]

    @property
    def on(self) -> tuple[ArmReport, ...]:
        """The settings that draft, those of a sweep left out."""
        return tuple(arm for arm in self.arms[1:] if not arm.swept)

    @property
    def best(self) -> ArmReport | None:
        """The fastest of those; None without a draft, or where nothing was timed."""
        timed = [arm for arm in self.on if arm.overall.speedup is not None]
        return max(timed, key=_speedup, default=None)

    @property
    def step(self) -> float | None:
        """Seconds of T(1)."""
        return next((p.seconds for p in self.curve if p.n == 1), None)


def _speedup(arm: ArmReport) -> float:
    return arm.overall.speedup.value if arm.overall.speedup else 0.0
