"""What decodes cost on this machine: T(n) of the target, the draft's steps and its catching up.

Pure: a measurement goes in (see `profile`), and how rounds compare with their neighbours corrects
it (see `neighbours`). Times are in seconds of the machine as it was when measured: only their
ratios mean something later. Nothing here assumes that T grows with n: on real kernels it is jagged.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from statistics import median, median_low
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from localspec.engine.record.stats import Round
from localspec.limits import MAX_BATCH_OUTPUTS

Points = Mapping[int, float]
"""n -> seconds of one decode of n tokens."""

ByContext = Mapping[int, Points]
"""tokens of context -> points measured behind so many."""

_TABLE = MAX_BATCH_OUTPUTS + 1  # n below is looked up, from here on it is computed
_STEP = 32  # tokens of context from one curve to the next: attention adds half a percent
_CURVES = 16  # kept, of 2 KB each: a conversation moves through one after the other
_LEAST_LEFT = 0.2  # of a decode's time, however far a line through two timings goes down

# A measurement may be wrong by any factor. No kernel does what these exclude; beyond that n tokens
# take no longer than n + 1 single ones (seen: two in Q8_0 take 2.9, docs/measurements/README.md).
_JAG = 2.0  # times what a longer decode takes: behind 512 tokens 16 took up to 1.8 times 64
_FASTER = 0.9  # of T(1): more tokens hardly take less

USUAL = 0.2
"""Of T(1): what a further token adds (0.15 to 0.35 in the simulator's curves), and a draft's step
(dearer ones seldom pay, and a draft's own measurement that is dearer may be wrong). Decides where a
point is beyond what kernels do and nothing is believed, or where nothing was measured."""

VOTES = 15
"""Remembered of each size: their median is within 2 % where single ones scatter by 6 %."""

FEW = 3
"""Votes that outvote what was measured: fewer may all be of one disturbed moment, and of two that
disagree no median tells the right one."""


class Curve:
    """Seconds of one decode, by the number of its tokens, at one length of context."""

    def __init__(self, points: Points) -> None:
        """Fill in what is not known, in a straight line from neighbour to neighbour.

        Args:
            points: at least one.
        """
        self._sizes, self._known = sorted(points), [points[n] for n in sorted(points)]
        last_n, last = self._sizes[-1], self._known[-1]
        # The slope beyond the last point is taken over half the curve: the last step is jagged.
        shorter = [point for point in points.items() if point[0] <= last_n / 2]
        middle_n, middle = max(shorter, default=(0, (1 - USUAL) * last))
        self._slope = max(0.0, (last - middle) / (last_n - middle_n))
        self._table: list[float] = self._line(np.arange(_TABLE)).tolist()

    def seconds(self, n: int) -> float:
        """Of one decode of `n` tokens."""
        return self._table[n] if n < _TABLE else float(self._line(np.array(n)))

    def times(self, n: int) -> list[float]:
        """Times of decodes of 0 (never asked for), 1, ... `n` tokens: at most a round's longest."""
        return self._table[: n + 1]

    def _line(self, n: NDArray[np.int64]) -> NDArray[np.float64]:
        beyond: NDArray[np.float64] = self._slope * np.maximum(0, n - self._sizes[-1])
        return np.interp(n, self._sizes, self._known) + beyond


def credible(points: Points, *, copies: bool = False) -> bool:
    """Whether kernels do this: whatever went on while it was measured, it did not show.

    Args:
        points: seconds by tokens.
        copies: whether a state is copied before decodes of more than one token, whatever it takes.
    """
    one, longer = (0.0 if copies else points.get(1, 0.0)), math.inf
    for n in sorted(points.keys() - ({1} if copies else set()), reverse=True):
        most = min(_JAG * longer, (n + 1) * one or math.inf)
        if not _FASTER * one <= points[n] <= most:
            return False
        longer = min(longer, points[n])
    return True


def _growth(measured: ByContext, estimate: Points) -> Curve:
    """What every token of context adds to a decode, by the size of it: attention reads the cache.

    T(n, context) = T(n, 0) + g(n) context. A GPU reads the cache once for all rows of a decode:
    there g is flat. llama.cpp's kernels for the CPU read it for each of a few rows.

    Args:
        measured: one context or two.
        estimate: stands in where it is one, in shares of T(1); where it is empty nothing grows.
    """
    short, long = min(measured), max(measured)
    if long > short:
        both = measured[short].keys() & measured[long].keys()
        more = {n: max(0.0, measured[long][n] - measured[short][n]) for n in both}
        return Curve({n: seconds / (long - short) for n, seconds in more.items()} or {1: 0.0})
    alone = Curve(measured[short]).seconds(1)
    return Curve({n: alone * share for n, share in estimate.items()} or {1: 0.0})


class Row(NamedTuple):
    """Decodes of one size, one behind the other, of which the first may take longer.

    On cards and workers llama.cpp has the graph of the last decode at hand, and no other. CUDA runs
    the first of a row as ever, records the second, and only then plays the record. By how many
    seconds the first, the second ... takes longer than those behind them is the `onset`.
    """

    size: int = 0
    length: int = 0

    def then(self, size: int) -> Row:
        """Behind one more."""
        return Row(size, self.length + 1 if size == self.size else 1)

    def longer(self, onset: Sequence[float]) -> float:
        """Seconds that the last of them took longer than one far behind it would."""
        return onset[self.length - 1] if 0 < self.length <= len(onset) else 0.0


class ModelCosts:
    """One model's curve at every context, as measured and as rounds correct it.

    Rounds vote, size by size: by how much (a logarithm) their time over that of plain rounds beside
    them is off what was measured. The median of a size's last votes and of the measurement corrects
    it; sizes without votes are off as the others are. T(1) of a target has no votes, since all
    others are over it.

    Attributes:
        believed: whether nothing speaks against the measurement.
        onset: see `Row`; nothing where it does not matter.
    """

    def __init__(
        self,
        measured: ByContext,
        learned: ByContext | None = None,
        *,
        estimate: Points | None = None,
        copies: bool = False,
        spread: float | None = None,
        onset: Sequence[float] = (),
    ) -> None:
        """Start from what was measured, at one context or two, and what was learnt since.

        Args:
            measured: the former.
            learned: the latter, at the shortest context that was measured.
            estimate: what a token of context adds by size, in shares of T(1), where one context
                was measured.
            copies: see `credible`.
            spread: how far timings lay apart, in shares of the lesser; None where nobody knows.
            onset: see above.
        """
        self._measured, self._estimate, self._copies = measured, estimate or {}, copies
        self._spread, self.onset = spread, onset
        self._context = min(measured)  # where the most points are
        self._told = (learned or {}).get(self._context, {})
        self.believed = all(credible(points, copies=copies) for points in measured.values())
        self._points: Points = measured[self._context]
        self._start()
        if not self.believed:
            self.disbelieve(self._base.seconds(1))

    def disbelieve(self, first: float) -> None:
        """Take it for a usual model whose decodes of one token take so many seconds."""
        self.believed = False
        self._points = {n: first * (1 + USUAL * (n - 1)) for n in self._points}
        self._start()

    def _start(self) -> None:
        self._base = Curve(self._points)
        known = self._measured if self.believed else {self._context: self._points}
        self._growth = _growth(known, self._estimate)
        self._curves: dict[int, Curve] = {}
        self._votes: dict[int, deque[float]] = {}
        self._stretches: deque[float] = deque(maxlen=VOTES)
        self._usual, self._corrected = 0.0, dict[int, float]()
        told = {n: math.log(s / self.expected(n, self._context)) for n, s in self._told.items()}
        for _ in range(FEW):
            self.vote(told)

    def at(self, context: int) -> Curve:
        """The curve for a context of so many tokens."""
        return self._curves.get(context // _STEP) or self._curve(context // _STEP)

    def _curve(self, step: int) -> Curve:
        if len(self._curves) >= _CURVES:
            self._curves.clear()
        sizes, middle = self._points.keys() | self._corrected.keys(), step * _STEP
        found = {n: self.expected(n, middle) * math.exp(self.correction(n)) for n in sizes}
        curve = self._curves[step] = Curve(found)
        return curve

    def expected(self, n: int, context: int) -> float:
        """Seconds of one decode of `n` tokens by the measurement alone."""
        base = self._base.seconds(n)
        return max(_LEAST_LEFT * base, base + (context - self._context) * self._growth.seconds(n))

    def doubt(self, n: int) -> float:
        """By what factor T(n) / T(1) may be off; infinite where nobody knows."""
        if self.votes(n) >= FEW:
            return 1.0
        return 1 + self._spread if self.believed and self._spread is not None else math.inf

    def grown(self, context: int) -> float:
        """How many times as long one token takes behind so many as behind none.

        At the least that the timings leave open; 1 where nothing was timed behind a context.
        """
        depth = max(self._measured)
        if depth == self._context:
            return 1.0
        measured = self.expected(1, depth) / self.doubt(1) / self.expected(1, 0)
        return max(1.0, 1 + (measured - 1) * context / depth)

    def vote(self, offs: Points) -> None:
        """A stretch's rounds, by their size, were off what was measured by this (logarithms)."""
        if offs:
            self._stretches.append(median(offs.values()))
        for n, off in offs.items():
            self._votes.setdefault(n, deque(maxlen=VOTES)).append(off)
        # The measurement has two votes, one where it is not believed. Of two in the middle the
        # lower counts: what disturbs a round only makes it longer.
        own = 1 + self.believed
        self._usual = median_low((*own * (0.0,), *self._stretches))
        before = own * (self._usual,)
        self._corrected = {n: median_low((*before, *votes)) for n, votes in self._votes.items()}
        self._curves.clear()

    def votes(self, n: int) -> int:
        """How many there are on this size."""
        return len(self._votes.get(n, ()))

    def correction(self, n: int) -> float:
        """What `expected` is off by now, as a logarithm."""
        return self._corrected.get(n, 0.0 if n == 1 else self._usual)

    def as_measured(self) -> ModelCosts:
        """New curves from the measurement alone, without anything learnt."""
        return ModelCosts(
            self._measured, estimate=self._estimate, copies=self._copies, onset=self.onset
        )

    def learned(self) -> dict[int, dict[int, float]]:
        """What rounds have taught, to be stored: the sizes of which there are enough votes."""
        here = self._context
        sure = (n for n in self._votes if self.votes(n) >= FEW)
        found = {n: self.expected(n, here) * math.exp(self.correction(n)) for n in sorted(sure)}
        return {here: found} if found else {}


class Costs:
    """What a round costs with this target and these drafters.

    Attributes:
        target: the target's costs. T(n) stands for all of a round but the drafting: the pass
            itself, the copy of a recurrent state before it, the sampler chain along the draft, the
            rule.
        drafts: the drafters' costs by their names.
        max_rollback: drafted tokens that the target takes back at once, None for any number.
        rereads: decodes of what stays, which is read again after a rejection: one or none.
    """

    def __init__(
        self,
        target: ByContext | ModelCosts,
        drafts: Mapping[str, ByContext | ModelCosts],
        max_rollback: int | None = None,
    ) -> None:
        """Costs by what was measured, or with what was learnt besides."""
        self.target = _model_costs(target, copies=max_rollback is not None)
        self.drafts = {name: _model_costs(draft) for name, draft in drafts.items()}
        if not self.believed:  # a draft's time says nothing beside another's that is wrong
            for draft in self.drafts.values():
                draft.disbelieve(USUAL * self.target.at(0).seconds(1))
        for draft in self.drafts.values():  # it may have been disturbed, and is seldom asked
            draft.believed &= draft.at(0).seconds(1) <= USUAL * self.target.at(0).seconds(1)
        self.max_rollback = max_rollback
        self.rereads = int(max_rollback == 0)

    def as_measured(self) -> Costs:
        """New costs from the measurements alone, without anything learnt."""
        drafts = {name: draft.as_measured() for name, draft in self.drafts.items()}
        return Costs(self.target.as_measured(), drafts, self.max_rollback)

    @property
    def believed(self) -> bool:
        """Whether nothing speaks against any of the measurements."""
        return all(model.believed for model in (self.target, *self.drafts.values()))

    def longest(self, most: int) -> int:
        """The longest draft worth considering, at most `most`.

        Where snapshots hold some tokens, to draft more would cost a copy and reading again.
        """
        return min(most, self.max_rollback) if self.max_rollback else most

    def decodes(self, done: Round) -> Iterator[tuple[ModelCosts, int, int, int]]:
        """What a round was made of: (whose, of how many tokens, behind how many, how often)."""
        yield self.target, done.drafted + 1, done.context, 1
        if self.rereads and done.accepted < done.drafted:
            yield self.target, done.accepted + 1, done.context, 1
        draft, behind = self.drafts.get(done.drafter), done.context - done.left_out
        if draft is not None and done.draft_passes:
            yield draft, max(1, done.draft_prefill), behind, 1
            yield draft, 1, behind, done.draft_passes - 1

    def times(self, n: int, context: int, last: int) -> list[float]:
        """Seconds of the target's decodes of up to `n` tokens, behind one of `last`.

        Where a row begins that is in them. What its second decode takes longer is not, since to
        leave the row for that would begin another one (replayed: up to a tenth slower).
        """
        times, first = self.target.at(context).times(n), sum(self.target.onset[:1])
        return [t + first * (i != last) for i, t in enumerate(times)] if first else times

    def plain_rounds(self, done: Round, *, longer: float = 0.0) -> float:
        """What a round costs in plain rounds.

        Args:
            done: the round.
            longer: seconds that the target's decode took longer for being behind others.
        """
        seconds = longer
        for model, n, behind, count in self.decodes(done):
            seconds += count * model.at(behind).seconds(n)
        return seconds / self.target.at(done.context).seconds(1)


def _model_costs(known: ByContext | ModelCosts, *, copies: bool = False) -> ModelCosts:
    return known if isinstance(known, ModelCosts) else ModelCosts(known, copies=copies)
