"""Whether the draft model goes on while the target decodes, judged by the times of rounds.

A leaf: it sees the times of rounds, never a clock, a model or a token.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from statistics import fmean, median

from localspec.engine.record.stats import Round

_LATELY = 0.05  # the weight of a round in the averages, over about the last 20
_LAST = 5  # timings kept of each kind: the context grows, and the machine's speed changes
_ALONE = 2  # timings of a size without the draft that are needed for comparison
_TRIALS = 3  # rounds with overlap after which the target's loss is known
_COMPARED = 16  # while it pays, one of this many rounds goes without: costs 2 % if it saves a third

# Trials may cost this share of the time, apart from the first one. On a shared memory bus a target
# pass may take twice as long.
_SHARE = 0.005


class AheadPolicy:
    """Whether the draft model goes on during the target's pass.

    Let V be the seconds of that pass, s the factor by which the draft model slows it down, c the
    seconds of one of the model's own passes, n how many of these are done meanwhile, h the chance
    that they are of use, and l the tokens of a usual draft. Then it pays if

        h min(n, l) c > (s - 1) V + (1 - h) c / 2.

    The left side is the time saved. The right side is the target's loss, and the wait for the
    model's pass that is still running when the guess proves wrong. h is the recent share of drafts
    that were accepted whole, times the share of these whose bonus token was the guess.

    s and n are measured in trial rounds. Their loss is charged to an account that earns a small
    share of all time.
    """

    def __init__(self) -> None:
        self._alone: defaultdict[int, deque[float]] = defaultdict(_recent)
        self._steps, self._slower, self._ready = _recent(), _recent(), _recent()
        self._lengths = deque[int](maxlen=_COMPARED)
        self._whole, self._usual = 0.5, 0.0
        self._guessed: float | None = None
        self._credit, self._trying = 0.0, False
        self._rounds = 0  # since the last one without overlap

    def wants(self, drafted: int) -> bool:
        """Whether to go on during a verify pass over `drafted` tokens."""
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
        """The longest recent draft, which the next one will hardly exceed."""
        return max(drafted, *self._lengths, 0)

    @property
    def slower(self) -> float:
        """The factor by which the draft slows the target's pass down; 1 while unknown."""
        return max(1.0, math.exp(median(self._slower))) if self._slower else 1.0

    def _pays(self, verify_s: float, slower: float) -> bool:
        step = median(self._steps)
        # One of the passes reads the last drafted token, as the next proposal would do anyway.
        ready = median(self._ready) if self._ready else verify_s / step - 1
        guessed = self._whole ** (1 / self._usual) if self._guessed is None else self._guessed
        right = self._whole * guessed
        saved = right * max(0.0, min(ready, self._usual)) * step
        return saved > (slower - 1) * verify_s + (1 - right) * step / 2

    def observe(self, done: Round, *, right: bool) -> None:
        """Learn from a round with a draft; `right` if the text went as was read ahead."""
        if not done.drafted or done.finish is not None:
            return
        waited = self._rounds > 0  # perhaps for a pass along a wrong guess
        self._rounds = self._rounds + 1 if done.ahead else 0
        whole = done.accepted == done.drafted
        self._whole += _LATELY * (whole - self._whole)
        self._lengths.append(done.drafted)
        self._usual = fmean(self._lengths)
        if done.ahead and whole:
            before = self._whole if self._guessed is None else self._guessed
            self._guessed = before + _LATELY * (right - before)
        most = max(_TRIALS, self.slower) * done.total_s  # enough for the next trial
        self._credit = min(self._credit + _SHARE * done.total_s, most)
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
