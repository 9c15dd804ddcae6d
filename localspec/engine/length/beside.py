"""Whether the draft goes on while the target decodes, as rounds with it and without it tell.

A leaf: it sees what rounds took, never a clock, a model or a token.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from statistics import fmean, median

from localspec.engine.record.stats import Round

_LATELY = 0.05  # what a round counts in the averages: of about the last 20
_LAST = 5  # timings kept of a kind: a context grows, and the machine's speed changes
_ALONE = 2  # timings of a size with nothing beside it, before one beside it tells anything
_TRIALS = 3  # rounds beside the target by which its loss is known: of two no median tells
_COMPARED = 16  # while it pays, one round of so many goes without: 2 % where it saves a third

# Trying it may cost this share of the time, the first try apart. On one memory bus a pass may take
# twice as long for it.
_SHARE = 0.005


class Beside:
    """Whether the draft goes on during the target's pass.

    With V the seconds of that pass, s times as long beside the draft, c those of a draft pass, n
    the passes that are ready after it and h the chance that they are of use, it pays if

        h min(n, usual draft) c > (s - 1) V + (1 - h) c / 2:

    what is saved, against what the target loses and waiting for the pass that is going on when the
    guess proves wrong. h is the share of drafts that were accepted whole lately, times the share of
    these whose bonus token was the guess.

    s and n are measured in rounds that try it. What those lose is charged to an account that earns
    a small share of all time.

    Attributes:
        forced: go on, or don't, whatever was measured: for tests and measurements.
    """

    def __init__(self, *, forced: bool | None = None) -> None:
        self.forced = forced
        self._alone: defaultdict[int, deque[float]] = defaultdict(_recent)
        self._steps, self._slower, self._ready = _recent(), _recent(), _recent()
        self._lengths = deque[int](maxlen=_COMPARED)
        self._whole, self._usual = 0.5, 0.0
        self._guessed: float | None = None
        self._credit, self._trying = 0.0, False
        self._rounds = 0  # since one that went without

    def wants(self, drafted: int) -> bool:
        """Whether to go on beside the pass over so many drafted tokens."""
        if self.forced is not None:
            return self.forced
        alone, self._trying = self._alone[drafted + 1], False
        if len(alone) < _ALONE or not self._steps:
            return False
        verify_s = median(alone)
        if len(self._slower) >= _TRIALS and self._pays(verify_s, self.slower):
            return self._rounds < _COMPARED
        loss = (self.slower - 1) * verify_s
        affordable = self._rounds == 0 and self._credit >= loss
        self._trying = affordable and self._pays(verify_s, 1.0)
        return self._trying

    def reach(self, drafted: int) -> int:
        """Tokens that the next draft will hardly be longer than: what lately was the longest."""
        return max(drafted, *self._lengths, 0)

    @property
    def slower(self) -> float:
        """How many times as long the target's pass takes beside the draft; 1 as long as unknown."""
        return max(1.0, math.exp(median(self._slower))) if self._slower else 1.0

    def _pays(self, verify_s: float, slower: float) -> bool:
        step = median(self._steps)
        # One pass reads the last drafted token, which the next proposal would have read as well.
        ready = median(self._ready) if self._ready else verify_s / step - 1
        guessed = self._whole ** (1 / self._usual) if self._guessed is None else self._guessed
        right = self._whole * guessed
        saved = right * max(0.0, min(ready, self._usual)) * step
        return saved > (slower - 1) * verify_s + (1 - right) * step / 2

    def observe(self, done: Round, *, right: bool) -> None:
        """Learn from a round with a draft; `right`: the text is what was read ahead."""
        if not done.drafted or done.finish is not None:
            return
        waited = self._rounds > 0  # maybe for what was still being read along another way
        self._rounds = self._rounds + 1 if done.ahead else 0
        whole = done.accepted == done.drafted
        self._whole += _LATELY * (whole - self._whole)
        self._lengths.append(done.drafted)
        self._usual = fmean(self._lengths)
        if done.ahead and whole:
            before = self._whole if self._guessed is None else self._guessed
            self._guessed = before + _LATELY * (right - before)
        self._credit += _SHARE * done.total_s
        alone = self._alone[done.drafted + 1]
        if done.draft_passes and not (waited or done.kept):
            self._steps.append(done.draft_s / done.draft_passes)
        if not done.ahead:
            alone.append(done.verify_s)
        elif alone and done.verify_s > 0:
            loss = done.verify_s - median(alone)
            self._credit -= max(0.0, loss) if self._trying else 0.0
            self._slower.append(math.log(done.verify_s / median(alone)))
            self._ready.append(float(done.ahead - 1))


def _recent() -> deque[float]:
    return deque(maxlen=_LAST)
