"""The cost of decodes on this machine: T(n) of the target, and the draft's decodes.

Pure: it starts from a measurement (see `profile`), which comparisons of neighbouring rounds correct
(see `neighbours`). Times are in seconds at the machine's speed when it was measured, so only their
ratios hold later. Nothing here assumes that T grows with n: with real kernels it is jagged.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from statistics import median, median_low, variance
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from localspec.engine.record.stats import Round
from localspec.limits import MAX_BATCH_OUTPUTS

Points = Mapping[int, float]
"""n -> seconds of one decode of n tokens."""

ByContext = Mapping[int, Points]
"""tokens of context -> points measured at that context."""

_TABLE = MAX_BATCH_OUTPUTS + 1  # n below is looked up, from here on it is computed
_STEP = 32  # tokens of context between two curves: attention adds half a percent over these
_CURVES = 16  # kept at a time, 2 KB each: a conversation goes through them in order
_LEAST_LEFT = 0.2  # least share of a decode's time that extrapolation to less context leaves

PAUSE, PAUSE_S = 10.0, 1.0  # factor and seconds above a usual decode: the program was suspended

# A measurement may be wrong by any factor. These limits exclude what no kernel does.
_JAG = 2.0  # T(n) over T(m), n < m; seen: at 512 tokens of context, 1.8 for 16 tokens over 64
_FASTER = 0.9  # least T(n) over T(1)
# Most T(n) over n + 1/2 single tokens. Seen: two in Q8_0 take 2.9 (docs/measurements/README.md),
# eight in IQ2_XS on a Radeon 780M 10.1 (llama.cpp#18031).
_SLOWER = 1.25

USUAL = 0.2
"""The usual cost of a further token, and of a draft's step, as shares of T(1). It is assumed where
nothing was measured, or the measurement is not credible. The simulator's curves have 0.15 to 0.35
per token; a draft whose step costs more seldom pays, and its measurement may be wrong."""

VOTES = 15
"""Votes kept for each size: if single votes scatter by 6 %, their median is within 2 %."""

FEW = 3
"""The votes that outvote a measurement. Fewer may all come from one disturbed moment, and a median
of two that disagree tells nothing."""

WORTH = 1.1
"""The least gain that is worth trying: a draft that could gain less than a tenth even if it were
nearly always right is not probed. (To probe only drafts that could more than double the speed costs
texts of many kinds 2.4 %.)"""


class Curve:
    """Seconds of one decode, by the number of its tokens, at one length of context.

    Attributes:
        least: at index n, the least seconds of a decode of n tokens or more, as far as a round's
            longest.
        opening: seconds of the shortest decode that, if all its tokens stay, is `WORTH` times as
            fast as single tokens; those of a single token if there is none.
    """

    def __init__(self, points: Points) -> None:
        """Interpolate linearly between the known points.

        Args:
            points: at least one.
        """
        self._sizes, self._known = sorted(points), [points[n] for n in sorted(points)]
        last_n, last = self._sizes[-1], self._known[-1]
        # After the last point, the slope of the curve's second half: single steps are jagged.
        shorter = [point for point in points.items() if point[0] <= last_n / 2]
        middle_n, middle = max(shorter, default=(0, (1 - USUAL) * last))
        self._slope = max(0.0, (last - middle) / (last_n - middle_n))
        table = self._line(np.arange(_TABLE))
        self._table: list[float] = table.tolist()
        self.least: list[float] = np.minimum.accumulate(table[::-1])[::-1].tolist()
        one = self._table[1]
        self.opening: float = next(
            (t for n, t in enumerate(self._table) if n * one > WORTH * t), one
        )

    def seconds(self, n: int) -> float:
        """Seconds of one decode of `n` tokens."""
        return self._table[n] if n < _TABLE else float(self._line(np.array(n)))

    def times(self, n: int) -> list[float]:
        """Seconds of decodes of 0 (unused), 1, ... `n` tokens, at most a round's longest."""
        return self._table[: n + 1]

    def _line(self, n: NDArray[np.int64]) -> NDArray[np.float64]:
        beyond: NDArray[np.float64] = self._slope * np.maximum(0, n - self._sizes[-1])
        return np.interp(n, self._sizes, self._known) + beyond


def credible(points: Points, *, copies: bool = False) -> bool:
    """Whether kernels can have these times; otherwise something disturbed the measurement.

    Args:
        points: seconds by number of tokens.
        copies: whether decodes of several tokens also copy a state, which may take any time.
    """
    one, longer = (0.0 if copies else points.get(1, 0.0)), math.inf
    for n in sorted(points.keys() - ({1} if copies else set()), reverse=True):
        most = min(_JAG * longer, _SLOWER * (n + 0.5) * one or math.inf)
        if not _FASTER * one <= points[n] <= most:
            return False
        longer = min(longer, points[n])
    return True


def _growth(measured: ByContext, estimate: Points) -> Curve:
    """g(n): seconds that each token of context adds to a decode of n tokens, by attention.

    T(n, context) = T(n, 0) + g(n) context. A GPU reads the cache once for all rows of a decode, so
    g is flat there. llama.cpp's CPU kernels read it again for every few rows.

    Args:
        measured: points at one context, or at two.
        estimate: g(n) in shares of T(1), used if there is only one; if it is empty, g is 0.
    """
    short, long = min(measured), max(measured)
    if long > short:
        both = measured[short].keys() & measured[long].keys()
        more = {n: max(0.0, measured[long][n] - measured[short][n]) for n in both}
        return Curve({n: seconds / (long - short) for n, seconds in more.items()} or {1: 0.0})
    alone = Curve(measured[short]).seconds(1)
    return Curve({n: alone * share for n, share in estimate.items()} or {1: 0.0})


class SameSizeRun(NamedTuple):
    """Consecutive decodes of one batch size, the first of which may take longer.

    On cards and workers llama.cpp keeps only the graph of the last decode. CUDA runs the first
    decode of a size normally, records the second, and replays the record from the third on. The
    extra seconds of the first, the second ... decode of a run are the `warmup`.
    """

    size: int = 0
    length: int = 0

    def then(self, size: int) -> SameSizeRun:
        """The run after one more decode, of `size` tokens."""
        return SameSizeRun(size, self.length + 1 if size == self.size else 1)

    def extra_s(self, warmup: Sequence[float]) -> float:
        """The extra seconds of the run's last decode."""
        return warmup[self.length - 1] if 0 < self.length <= len(warmup) else 0.0


class ModelCosts:
    """One model's curve at every context, measured and then corrected by rounds.

    Rounds vote on each size: a vote is the logarithm by which their time, relative to baseline
    rounds next to them, differs from the measurement. The median of the latest votes and the
    measurement corrects a size; sizes without votes get the median correction. T(1) of a target has
    no votes, since it is the unit of all others.

    Attributes:
        deep: whether the growth with the context was measured too.
        believed: whether the measurement is credible.
        scatter: the variance of the corrections between sizes with enough votes; 0 of fewer than
            two.
        warmup: see `SameSizeRun`; empty if a new size costs nothing extra.
    """

    def __init__(
        self,
        measured: ByContext,
        learned: ByContext | None = None,
        *,
        added: Points | None = None,
        estimate: Points | None = None,
        copies: bool = False,
        spread: float | None = None,
        warmup: Sequence[float] = (),
    ) -> None:
        """Start from a measurement and what rounds have taught since.

        Args:
            measured: points at one context, or at two.
            learned: corrected points at the shortest measured context.
            added: further points there, which a generation that must be repeatable does not use.
            estimate: cost of a token of context by size, in shares of T(1), if only one context was
                measured.
            copies: see `credible`.
            spread: relative spread of the timings; None if unknown.
            warmup: see `SameSizeRun`.
        """
        self._measured, self._estimate, self._copies = measured, estimate or {}, copies
        self._spread, self.warmup = spread, warmup
        self._context = min(measured)  # it has the most points
        self._told = (learned or {}).get(self._context, {})
        self.deep = len(measured) > 1
        self.believed = all(credible(points, copies=copies) for points in measured.values())
        self._points: Points = {**(added or {}), **measured[self._context]}
        self._start()
        if not self.believed:
            self.disbelieve(self._base.seconds(1))

    def disbelieve(self, first: float) -> None:
        """Assume the usual costs for a model that decodes one token in `first` seconds."""
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
        self._usual, self._corrected, self.scatter = 0.0, dict[int, float](), 0.0
        told = {n: math.log(s / self.expected(n, self._context)) for n, s in self._told.items()}
        for _ in range(FEW):
            self.vote(told)

    def at(self, context: int) -> Curve:
        """The curve at `context` tokens of context."""
        return self._curves.get(context // _STEP) or self._curve(context // _STEP)

    def _curve(self, step: int) -> Curve:
        if len(self._curves) >= _CURVES:
            self._curves.clear()
        sizes, middle = self._points.keys() | self._corrected.keys(), step * _STEP
        found = {n: self.expected(n, middle) * math.exp(self.correction(n)) for n in sizes}
        curve = self._curves[step] = Curve(found)
        return curve

    def expected(self, n: int, context: int) -> float:
        """Measured seconds of one decode of `n` tokens, without corrections."""
        base = self._base.seconds(n)
        return max(_LEAST_LEFT * base, base + (context - self._context) * self._growth.seconds(n))

    def doubt(self, n: int) -> float:
        """The factor by which T(n) / T(1) may be wrong; infinite if unknown."""
        if self.votes(n) >= FEW:
            return 1.0
        return 1 + self._spread if self.believed and self._spread is not None else math.inf

    def grown(self, context: int) -> float:
        """T(1) at `context` over T(1) in an empty cache.

        The least ratio that the timings allow; 1 if only one context was measured.
        """
        depth = max(self._measured)
        if depth == self._context:
            return 1.0
        measured = self.expected(1, depth) / self.doubt(1) / self.expected(1, 0)
        return max(1.0, 1 + (measured - 1) * context / depth)

    def vote(self, offs: Points) -> None:
        """Add a stretch's votes: logarithms of its times over the measured ones, by size."""
        if offs:
            self._stretches.append(median(offs.values()))
        for n, off in offs.items():
            self._votes.setdefault(n, deque(maxlen=VOTES)).append(off)
        # The measurement has two votes if it is credible, else one. Disturbances only make rounds
        # longer, so the lower of two middle votes counts.
        own = 1 + self.believed
        self._usual = median_low((*own * (0.0,), *self._stretches))
        before = own * (self._usual,)
        self._corrected = {n: median_low((*before, *votes)) for n, votes in self._votes.items()}
        sure = [off for n, off in self._corrected.items() if self.votes(n) >= FEW]
        self.scatter = variance(sure) if len(sure) > 1 else 0.0
        self._curves.clear()

    def votes(self, n: int) -> int:
        """The number of votes on this size."""
        return len(self._votes.get(n, ()))

    def correction(self, n: int) -> float:
        """The present correction of `expected`, as a logarithm."""
        return self._corrected.get(n, 0.0 if n == 1 else self._usual)

    def as_measured(self) -> ModelCosts:
        """New curves from the measurement alone."""
        return ModelCosts(
            self._measured, estimate=self._estimate, copies=self._copies, warmup=self.warmup
        )

    def learned(self) -> dict[int, dict[int, float]]:
        """The corrected points of all sizes with enough votes, to be stored."""
        here = self._context
        sure = (n for n in self._votes if self.votes(n) >= FEW)
        found = {n: self.expected(n, here) * math.exp(self.correction(n)) for n in sorted(sure)}
        return {here: found} if found else {}


class Costs:
    """The cost of a round with this target and these drafters.

    Attributes:
        target: the target's costs. T(n) covers a whole round except the drafting: the pass, the
            copy of a recurrent state before it, the sampler chain along the draft, and the rule.
        max_rollback: drafted tokens that the target can roll back at once, None for any number.
        rereads: how often a rejection makes the target decode the accepted tokens again: 0 or 1.
    """

    def __init__(
        self,
        target: ByContext | ModelCosts,
        drafts: Mapping[str, ByContext | ModelCosts],
        max_rollback: int | None = None,
    ) -> None:
        """Combine measurements, or costs that rounds have already corrected."""
        self.target = _model_costs(target, copies=max_rollback is not None)
        self.drafts = {name: _model_costs(draft) for name, draft in drafts.items()}
        if not self.believed:  # relative to a wrong time, the others mean nothing
            for draft in self.drafts.values():
                draft.disbelieve(USUAL * self.target.at(0).seconds(1))
        for draft in self.drafts.values():  # few rounds would correct a wrong high cost
            draft.believed &= draft.at(0).seconds(1) <= USUAL * self.target.at(0).seconds(1)
        self.max_rollback = max_rollback
        self.rereads = int(max_rollback == 0)

    def as_measured(self) -> Costs:
        """New costs from the measurements alone."""
        drafts = {name: draft.as_measured() for name, draft in self.drafts.items()}
        return Costs(self.target.as_measured(), drafts, self.max_rollback)

    @property
    def believed(self) -> bool:
        """Whether all measurements are credible."""
        return all(model.believed for model in (self.target, *self.drafts.values()))

    def longest(self, most: int) -> int:
        """The longest draft worth considering, at most `most`.

        If snapshots cover a few tokens, a longer draft would cost a copy and decoding again.
        """
        return min(most, self.max_rollback) if self.max_rollback else most

    def decodes(self, done: Round) -> Iterator[tuple[ModelCosts, int, int, int]]:
        """The decodes of a round: (model, tokens of each, tokens of context, how many)."""
        yield self.target, done.drafted + 1, done.context, 1
        if self.rereads and done.accepted < done.drafted:
            yield self.target, done.accepted + 1, done.context, 1
        draft, context = self.drafts.get(done.drafter), done.context - done.left_out
        if draft is not None and done.draft_passes:
            yield draft, max(1, done.draft_prefill), context, 1
            yield draft, 1, context, done.draft_passes - 1

    def times(self, n: int, context: int, last: int) -> list[float]:
        """Seconds of the target's decodes of 0 to `n` tokens, after one of `last` tokens.

        They include the extra time of the first decode at another size, but not that of the second:
        changing the size again to avoid it costs that time once more (up to a tenth slower in a
        replay).
        """
        times, first = self.target.at(context).times(n), sum(self.target.warmup[:1])
        return [t + first * (i != last) for i, t in enumerate(times)] if first else times

    def baseline_rounds(self, done: Round, *, warmup_s: float = 0.0) -> float:
        """The cost of a round, in baseline rounds.

        Args:
            done: the round.
            warmup_s: extra seconds of the target's decode because its size is new.
        """
        seconds = warmup_s
        for model, n, context, count in self.decodes(done):
            seconds += count * model.at(context).seconds(n)
        return seconds / self.target.at(done.context).seconds(1)


def _model_costs(known: ByContext | ModelCosts, *, copies: bool = False) -> ModelCosts:
    return known if isinstance(known, ModelCosts) else ModelCosts(known, copies=copies)
