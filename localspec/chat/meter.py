"""From rounds to the live figures."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

from localspec.chat.figures import Figures
from localspec.chat.wording import lossy_words
from localspec.engine.stats import GammaNote, GenerationStats, Prefill, Round, Speedup

_WINDOW_S = 1.0


class Meter:
    """Counts one turn in the engine's thread; `figures` may be asked for from any thread.

    Args:
        context_size: tokens that the context holds.
        clock: a monotonic clock in seconds.
        lenience: of a lossy rule, None for a lossless one.

    Attributes:
        stats: the sums; the engine's thread alone writes them.
    """

    def __init__(
        self,
        context_size: int,
        clock: Callable[[], float] = time.monotonic,
        *,
        lenience: float | None = None,
    ) -> None:
        self.stats = GenerationStats(lenience=lenience)
        self._speedup: Speedup | None = None
        self._context_size = context_size
        self._clock = clock
        self._lock = threading.Lock()
        # (end of a round, tokens emitted) of the last second. The first entry is where the
        # window begins: its own tokens came before, and are not in the sum.
        self._recent: deque[tuple[float, int]] = deque()
        self._recent_tokens = 0

    def prefilled(self, prefill: Prefill) -> None:
        """Count the prompt pass."""
        with self._lock:
            self.stats.add_prefill(prefill)
            self._recent.append((self._clock(), 0))

    def add(self, done: Round, speedup: Speedup | None = None) -> None:
        """Count one round, after which the turn's speed-up is known to be this."""
        with self._lock:
            self.stats.add(done)
            self._speedup = speedup
            now = self._clock()
            self._recent.append((now, done.emitted))
            self._recent_tokens += done.emitted
            while len(self._recent) > 2 and now - self._recent[1][0] >= _WINDOW_S:
                self._recent.popleft()
                self._recent_tokens -= self._recent[0][1]

    def figures(
        self, *, generating: bool, speculation: bool, gamma: int, note: GammaNote
    ) -> Figures:
        """A snapshot of this turn."""
        with self._lock:
            stats = self.stats
            return Figures(
                generating=generating,
                speculation=speculation,
                gamma=gamma,
                gamma_note=note,
                speed_now=self._speed_now(),
                speed_average=stats.tokens_per_second,
                speedup=self._speedup,
                lossy=lossy_words(stats.lenience),
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
                draft_cached=stats.draft_cached,
                draft_read=stats.draft_prefill,
                context_used=min(stats.prompt_tokens + stats.generated_tokens, self._context_size),
                context_size=self._context_size,
            )

    def _speed_now(self) -> float | None:
        """Tokens per second over the last second, or since the prompt where that is shorter."""
        if not self._recent_tokens:
            return None
        elapsed = self._recent[-1][0] - self._recent[0][0]
        return self._recent_tokens / elapsed if elapsed > 0 else None
