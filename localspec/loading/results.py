"""What comes of a request: plain values, which travel between processes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from localspec.chat.figures import Figures
from localspec.engine.stats import FinishReason, GenerationStats


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """An answer to a single prompt.

    Attributes:
        text: all of it.
        reason: why it ended.
        stats: sums over its rounds.
        figures: the live figures at its end.
        speculation_note: why nothing can be drafted; empty where something can.
        peak_memory_bytes: of the engine's process and its accelerators.
        settings: everything that was in force, by the names of the command line.
        notices: what the user should know about the pair and its settings.
    """

    text: str
    reason: FinishReason
    stats: GenerationStats
    figures: Figures
    speculation_note: str
    peak_memory_bytes: int
    settings: Mapping[str, Any]
    notices: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """What `auto` does at a steady acceptance.

    Attributes:
        acceptance: of every drafted token, given that those before it were accepted.
        gamma: the draft length; 0 for plain decoding.
        speedup: over plain decoding.
    """

    acceptance: float
    gamma: int
    speedup: float


@dataclass(frozen=True, slots=True)
class Tuned:
    """What was found out about one model.

    Attributes:
        name: the model's file.
        threads: in use from now on.
        by_threads: seconds of one token and of four, for every thread count tried.
        points: n to seconds of one decode of n tokens.
        curve: the same for every n from 1, interpolated.
        stored: whether it could be kept.
        spread: how far timings lay apart, in shares.
        kept: whether an earlier measurement, which varied less, stays in its place.
    """

    name: str
    threads: int
    by_threads: Mapping[int, tuple[float, float]]
    points: Mapping[int, float]
    curve: tuple[float, ...]
    stored: bool
    spread: float
    kept: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TunedPair:
    """What was found out about a pair.

    Attributes:
        name: how the pair is called.
        machine: the processor and its accelerators, in words.
        build: the version of llama-cpp-python.
        target, draft: its models; None without a draft.
        draft_note: why nothing can be drafted; empty where something can.
        choices: the draft length for each acceptance; empty without a draft.
    """

    name: str
    machine: str
    build: str
    target: Tuned
    draft: Tuned | None
    draft_note: str
    choices: tuple[Choice, ...]
