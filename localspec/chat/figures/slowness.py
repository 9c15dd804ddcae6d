"""Why an answer is slower than it could be, in one sentence based on measurements."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import Any

from localspec import formats, machine
from localspec.chat.figures.figures import Figures, check_words
from localspec.drafter_names import LOOKUP
from localspec.engine.length.cost import Costs
from localspec.engine.llama import Context

_LOOK_S = 5.0  # between two checks of the machine, since one takes milliseconds
_GROWN = 1.5  # least ratio of a token's time to that at the start, allowing for noise
_FEW = 4  # tokens in a typical pass over a draft
_NO_SAVING = 0.8  # share of the time of single passes; above it, drafts gain almost nothing
_WRONG, _ENOUGH = 0.3, 20  # share of drafted tokens accepted; drafted tokens before it counts


class SlownessCheck:
    """Finds the reason; one that affects the whole machine comes before one of this pair.

    Args:
        target: the target's context.
        costs: measured costs of passes; None if not measured.
    """

    def __init__(self, target: Context, costs: Costs | None) -> None:
        self._target, self._costs = target, costs
        self._looked, self._machine = -_LOOK_S, ""

    def found(self, now: Figures) -> dict[str, Any]:
        """Of `now`, the fields `slow`, `busy` and `check` by name."""
        busy, check = self.busy(), self.check(now.context_used)
        return {"slow": busy or self._reason(now), "busy": busy, "check": check}

    def _reason(self, now: Figures) -> str:
        """The first reason found in the machine, then in the pair; empty if there is none."""
        if now.generating and time.monotonic() - self._looked >= _LOOK_S:  # idle cores clock down
            self._looked, self._machine = time.monotonic(), next(_machine(), "")
        return self._machine or next(self._pair(now), "")

    def busy(self) -> str:
        """That other programs take threads that the answer needs; empty if they do not."""
        taken = self._target.threads.taken
        return formats.busy(taken, os.cpu_count() or 1) if taken else ""

    def check(self, context: int) -> float | None:
        """The time of a pass over four tokens divided by that over one; None if not measured."""
        if self._costs is None:
            return None
        curve = self._costs.target.at(context)
        return curve.seconds(_FEW) / curve.seconds(1)

    def _pair(self, now: Figures) -> Iterator[str]:
        if self._costs is not None:
            target = self._costs.target
            grown = target.at(now.context_used).seconds(1) / target.at(0).seconds(1)
            if target.grown(now.context_used) >= _GROWN:
                context = formats.count(now.context_used)
                yield f"after {context} tokens of context a token takes {grown:.1f} times as long"
        if now.speedup is None or now.speedup.low <= 1:
            yield from self._drafting(now)

    def _drafting(self, now: Figures) -> Iterator[str]:
        """Why drafting does not help."""
        if self._costs is not None and now.speculation:
            several = self.check(now.context_used) or 0.0
            if several / self._costs.target.doubt(_FEW) >= _NO_SAVING * _FEW:
                yield check_words(several)
        by_models = [each for name, *each in now.drafters if name != LOOKUP]
        drafted, accepted = (sum(each[i] for each in by_models) for i in (0, 1))
        if drafted >= _ENOUGH and accepted < _WRONG * drafted:
            share = formats.percent(accepted / drafted)
            yield f"the draft is often wrong: {share} of its tokens were accepted"


def _machine() -> Iterator[str]:
    """What slows down the whole machine, in the words of `localspec doctor`."""
    total, free = machine.total(), machine.available()
    yield from formats.swapped(machine.swapped_out(), free, total)
    yield from formats.throttled(*machine.clock())
    if machine.on_battery():
        yield formats.ON_BATTERY
