"""The live figures: counted while a turn runs, readable from any thread, and as words."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from localspec import formats
from localspec.engine.record.stats import (
    FinishReason,
    GammaNote,
    GammaReason,
    GenerationStats,
    Prefill,
    Round,
    Speedup,
)

AnswerFigures: TypeAlias = "Mapping[str, Any]"
"""The stored figures of an answer, by name; `figures_of` makes them."""

_WINDOW_S = 1.0
_FEW = 0.1  # drafted over generated tokens; fewer have almost no effect, accepted or not

_GAMMA = {
    GammaReason.OFF: "off",
    GammaReason.FIXED: "fixed",
    GammaReason.NOT_MEASURED: "drafting {length}: not measured here yet (localspec tune)",
    GammaReason.TOO_LITTLE_REPEATS: "not drafting: there is no draft model, and too little repeats",
    GammaReason.UNDECIDED: "automatic: decided while the answer is written",
    GammaReason.TOO_DEAR: "not drafting: this draft costs more than it saves here",
    GammaReason.UNKNOWN: "automatic: nothing is known about this draft yet",
    GammaReason.PAYS: "drafting {length}: {accepted}",
}


@dataclass(frozen=True, slots=True)
class Figures:
    """A snapshot of the figures. A rate is None while its divisor is 0.

    Attributes:
        speculation: whether drafting is switched on and possible.
        off: whether drafting was off in all rounds of this answer.
        gamma_note: where gamma comes from now, for `gamma_words`; None if it is not known.
        answer_note: the same at the end of the answer, whatever was switched since.
        speed_now: tokens per second over about the last second.
        speed_average: tokens per second of this turn after its first token.
        speedup: of this answer over the baseline, measured by neighbouring rounds with and without
            a draft; None if not known yet, or if the answer is too short. `benefit.ratio` says
            whether it may be told.
        lossy: "lossy" and the lenience if drafting changes the distribution, else "".
        acceptance_rate: accepted over drafted tokens, this turn.
        tokens_per_round: emitted tokens per verify pass, this turn.
        drafted, accepted, recovered, bonus: token counts, this turn; the last two are None if they
            were not stored.
        drafters: of each drafter that drafted its name, drafted and accepted tokens, this turn.
        generated: tokens generated this turn.
        repeats: whether the answer was stopped because it only repeated itself.
        time_to_first_token_s: seconds, without loading.
        draft_s, verify_s: seconds spent drafting and verifying, this turn.
        prompt_tokens, prompt_cached: tokens of the turn's prompt, and how many of them were cached.
        draft_cached, draft_read: of the drafter that was asked first: tokens of the prompt that its
            cache held, and tokens that it read before its first guess (including the answer's first
            token).
        context_used, context_size: tokens.
        flash_attn: how attention is computed: ``on``, ``off`` or ``auto``.
        slow: why the answer is slower than it could be, in a sentence; empty if nothing was found.
            Like the next two, as it was at the answer's end.
        busy: that other programs took threads that the answer needed, in a clause; else empty.
        check: the time of a pass over four tokens divided by that over one; None if not measured.
        spare: whether the model and other programs leave a core free.
    """

    generating: bool = False
    speculation: bool = False
    off: bool = False
    gamma_note: GammaNote | None = None
    answer_note: GammaNote | None = None
    speed_now: float | None = None
    speed_average: float | None = None
    speedup: Speedup | None = None
    lossy: str = ""
    acceptance_rate: float | None = None
    tokens_per_round: float | None = None
    drafted: int = 0
    accepted: int = 0
    drafters: tuple[tuple[str, int, int], ...] = ()
    recovered: int | None = 0
    bonus: int | None = 0
    generated: int = 0
    repeats: bool = False
    time_to_first_token_s: float | None = None
    draft_s: float = 0.0
    verify_s: float = 0.0
    prompt_tokens: int = 0
    prompt_cached: int = 0
    draft_cached: int = 0
    draft_read: int = 0
    context_used: int = 0
    context_size: int = 0
    flash_attn: str = "auto"
    slow: str = ""
    busy: str = ""
    check: float | None = None
    spare: bool = False

    @property
    def gamma(self) -> int:
        """Current draft length; 0 drafts nothing."""
        return self.gamma_note.length if self.gamma_note else 0


class Meter:
    """Counts one turn in the engine's thread; any thread may ask for `figures`.

    Args:
        context_size: tokens that the context holds.
        clock: a monotonic clock in seconds.
        lenience: of a lossy rule; None for a lossless one.

    Attributes:
        stats: the sums; only the engine's thread writes them.
        ended: the fields of `Figures` that stay as they were at the end of the answer.
    """

    def __init__(
        self,
        context_size: int,
        clock: Callable[[], float] = time.monotonic,
        *,
        lenience: float | None = None,
    ) -> None:
        self.stats = GenerationStats(lenience=lenience)
        self.ended: Mapping[str, Any] = {}
        self._speedup: Speedup | None = None
        self._off = False
        self._context_size = context_size
        self._clock = clock
        self._lock = threading.Lock()
        # (end of a round, tokens emitted) of the last second. The first entry marks the window's
        # start: its tokens came earlier and do not count.
        self._recent: deque[tuple[float, int]] = deque()
        self._recent_tokens = 0

    def prefilled(self, prefill: Prefill) -> None:
        """Count the prefill."""
        with self._lock:
            self.stats.add_prefill(prefill)
            self._recent.append((self._clock(), 0))

    def add(
        self,
        done: Round,
        speedup: Callable[[], Speedup | None] = lambda: None,
        *,
        off: bool = False,
    ) -> None:
        """Count one round.

        Args:
            done: the round.
            speedup: tells the turn's speed-up after it; asked where enough has been drafted.
            off: whether drafting was off.
        """
        with self._lock:
            self._off = off and (self._off or not self.stats.rounds)
            self.stats.add(done)
            self._speedup = speedup() if self.stats.comparable else None
            now = self._clock()
            self._recent.append((now, done.emitted))
            self._recent_tokens += done.emitted
            while len(self._recent) > 2 and now - self._recent[1][0] >= _WINDOW_S:
                self._recent.popleft()
                self._recent_tokens -= self._recent[0][1]

    def figures(self, *, generating: bool, speculation: bool, note: GammaNote) -> Figures:
        """A snapshot of this turn."""
        with self._lock:
            stats = self.stats
            return Figures(
                generating=generating,
                speculation=speculation,
                off=self._off,
                gamma_note=note,
                answer_note=note,
                speed_now=self._speed_now(generating=generating),
                speed_average=stats.tokens_per_second,
                speedup=self._speedup,
                lossy=lossy_words(stats.lenience),
                acceptance_rate=stats.acceptance_rate,
                tokens_per_round=stats.mean_tokens_per_round,
                drafted=stats.drafted_tokens,
                accepted=stats.accepted_tokens,
                drafters=stats.drafted_by,
                recovered=stats.recovered_tokens,
                bonus=stats.bonus_tokens,
                generated=stats.generated_tokens,
                repeats=stats.finish_reason is FinishReason.REPETITION,
                time_to_first_token_s=stats.time_to_first_token_s,
                draft_s=stats.draft_s,
                verify_s=stats.verify_s,
                prompt_tokens=stats.prompt_tokens,
                prompt_cached=stats.prefill_cached,
                draft_cached=stats.draft_cached,
                draft_read=stats.draft_prefill,
                context_used=min(stats.prompt_tokens + stats.generated_tokens, self._context_size),
                context_size=self._context_size,
            )

    def _speed_now(self, *, generating: bool) -> float | None:
        """Tokens per second over the last second, or since the prefill if that is shorter.

        A running round counts with its time so far if it takes longer than a second.
        """
        if not self._recent_tokens:
            return None
        now = self._clock() if generating else 0.0
        last = self._recent[-1][0]
        elapsed = (now if now - last > _WINDOW_S else last) - self._recent[0][0]
        return self._recent_tokens / elapsed if elapsed > 0 else None


def lossy_words(lenience: float | None) -> str:
    """The label that must accompany every speed under a lossy rule; empty for a lossless one."""
    return "" if lenience is None else f"lossy {lenience:g}"


def accepted_share(drafted: int, accepted: int, generated: int) -> float | None:
    """The share of the drafted tokens that were accepted; None if too few were drafted.

    "100 %" would look like a success if 4 tokens were drafted and 205 written.
    """
    return accepted / drafted if drafted and drafted >= _FEW * generated else None


def kept_words(drafted: int, accepted: int, generated: int) -> str:
    """That share in everyday words; the counts if too few were drafted."""
    if not drafted:
        return "nothing guessed"
    share = accepted_share(drafted, accepted, generated)
    kept = formats.count(accepted) if share is None else formats.percent(share)
    return f"kept {kept} of {formats.count(drafted)} guess{'es' if drafted > 1 else ''}"


def gamma_words(note: GammaNote | None) -> str:
    """Where gamma comes from, as text.

    Args:
        note: `Figures.gamma_note`; None gives an empty text.
    """
    if note is None:
        return ""
    accepted = f"{formats.percent(note.acceptance or 0.0)} accepted"
    said = _GAMMA[note.reason].format(
        length=note.length,
        accepted=f"{note.kind}, {accepted}" if note.kind else accepted,
    )
    lossy = note.lenience is not None and note.reason is not GammaReason.OFF
    return f"{said}, {lossy_words(note.lenience)}" if lossy else said


def check_words(check: float) -> str:
    """`Figures.check` as text."""
    return f"checking four tokens takes as long as writing {check:.1f}"


def speedup_words(found: Speedup) -> str:
    """What drafting gained, with its range of uncertainty, as text."""
    return f"{found.estimate:.1f}× ({found.low:.1f} to {found.high:.1f})"


def figures_of(stats: GenerationStats | None) -> dict[str, float]:
    """The figures of an answer that are stored."""
    if stats is None or not stats.generated_tokens:
        return {}
    found = {
        "generated_tokens": stats.generated_tokens,
        "tokens_per_second": stats.tokens_per_second,
        "acceptance_rate": stats.acceptance_rate,
        "drafted_tokens": stats.drafted_tokens,
        "accepted_tokens": stats.accepted_tokens,
        "context_used": stats.prompt_tokens + stats.generated_tokens,
        "lossy": stats.lenience if stats.drafted_tokens else None,
    }
    return {name: value for name, value in found.items() if value is not None}
