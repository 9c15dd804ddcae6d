"""What decodes cost on this machine: T(n) of the target, the draft's steps and its catching up.

Pure: a measurement goes in (see `profile`), every round's own timing corrects it. Times are in
seconds. Nothing here assumes that T grows with n: on real kernels it is jagged.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate

import numpy as np

Points = Mapping[int, float]
"""n -> seconds of one decode of n tokens."""

ByContext = Mapping[int, Points]
"""tokens of context -> points measured behind so many."""

# Standard deviations of the logarithm, squared: one timing; a point measured before or learnt, when
# anything may have gone on beside it; what the machine's speed has changed by since then; a point
# that was only interpolated; what the speed may change by from round to round.
_NOISE = 0.06**2
_MEASURED = 0.15**2
_SINCE = 0.50**2
_UNKNOWN = 0.30**2
_WANDER = 0.01**2

_CLIP = 2.5  # standard deviations; what lies beyond counts no more than this
_STREAK = 4  # so many outliers on one side are no outliers: the machine has changed
_PAUSE = math.log(10)  # slower by so much, and by so many seconds, it was no decode:
_PAUSE_S = 0.25  # the program was stopped
_ALIKE = 0.8  # of a measurement's error, shared by sizes that no round has timed yet
_TRIED = 5  # tokens of a decode at most, of which the best is hoped as long as no round timed it
_AT_BEST = 0.05  # of T(1), for every further token
_STALE = 0.005  # how far points may move before the table is worked out anew
_GOING_BACK = 0.1  # weight of one observation
_MOST_REREADS = 10.0
_TABLE = 32  # n below is looked up, from here on it is computed
_SIZES = np.arange(_TABLE)
_LEAST_LEFT = 0.2  # of a decode's time, with however much less context
_STEP = 16  # tokens of context, from one table to the next within a bucket


def bucket(context: int) -> int:
    """Which curve serves a context of so many tokens: 0 below 256, then one per doubling."""
    return (context >> 8).bit_length()


def middle(of: int) -> int:
    """The context that a bucket's curve stands for."""
    return 384 << (of - 1) if of else 128


class Drift:
    """A machine's common factor on all its timings: a throttling processor, a busy neighbour."""

    def __init__(self) -> None:
        self.log = 0.0
        self.doubt = _SINCE
        self.streak = 0

    def paused(self, error: float, seconds: float) -> bool:
        """Whether a timing that was so far off tells of a pause, not of the machine."""
        if error <= _PAUSE or seconds <= _PAUSE_S:
            return False
        self.streak = max(0, self.streak) + 1
        return self.streak < _STREAK

    def admit(self, error: float, spread: float) -> float:
        """The error to learn from: clipped, unless too many in a row say the same."""
        limit = _CLIP * math.sqrt(spread)
        if abs(error) <= limit:
            self.streak = 0
            return error
        side = 1 if error > 0 else -1
        self.streak = self.streak + side if self.streak * side >= 0 else side
        if abs(self.streak) >= _STREAK:
            self.doubt += error * error
            return error
        return math.copysign(limit, error)


class Curve:
    """Seconds of one decode, by the number of its tokens, at one length of context.

    Every observation corrects two things at once, each by its share of the doubt: the point it
    belongs to, and the drift that all points have in common. That is a Kalman filter without
    its cross terms, on logarithms, with Huber's clipping.

    The points hold for one length of context. A little more or less of it (`stand`) adds or takes
    off what the growth says, and what is seen there corrects the points all the same.

    Attributes:
        drift: of the machine, shared with other curves.
        observed: whether it has been corrected.
        least: at n the least of what `shape` has after n.
    """

    def __init__(
        self, points: Points, drift: Drift | None = None, growth: Growth | None = None
    ) -> None:
        """Start from measured points; at least one."""
        self.drift = drift if drift is not None else Drift()
        self._growth, self._more = growth, 0
        self.observed = False
        self._log = {n: math.log(seconds) for n, seconds in sorted(points.items())}
        self._doubt = dict.fromkeys(self._log, _MEASURED)
        self._rebuild()

    @property
    def unit(self) -> float:
        """Seconds for one of what `shape` counts: what the machine's drift multiplies."""
        return math.exp(self.drift.log)

    def seconds(self, n: int) -> float:
        """Of one decode of `n` tokens, now."""
        return self.unit * self._steady(n)

    def shape(self, n: int) -> list[float]:
        """Times of decodes of 0 (never asked for), 1, ... `n` tokens, fewer than 32, in units."""
        return self._table[: n + 1]

    def hoped(self, n: int) -> list[float]:
        """As `shape`, but short decodes that no round has timed as fast as they may be at best.

        Where a measurement was disturbed, drafting may seem never to pay, and would never be tried.
        """
        one, hoped = self._table[1], self.shape(n)
        for size in range(2, min(n, _TRIED) + 1):
            if self._doubt.get(size, _UNKNOWN) >= _MEASURED:
                hoped[size] = min(hoped[size], one * (1 + _AT_BEST * (size - 1)))
        return hoped

    def times(self, n: int) -> list[float]:
        """Seconds, now, of decodes of 0 (never asked for), 1, ... `n` tokens, fewer than 32."""
        unit = self.unit
        return [unit * each for each in self.shape(n)]

    def stand(self, more: int) -> None:
        """Serve a context of so many tokens more than that of the points; fewer if negative."""
        if self._growth is not None and more != self._more:
            self._more = more
            self._tabulate()

    def points(self) -> dict[int, float]:
        """The known points as they are now, at the context that they stand for."""
        return {n: math.exp(log + self.drift.log) for n, log in self._log.items()}

    def observe(self, n: int, seconds: float) -> None:
        """One decode of `n` tokens took this long."""
        if n < 1 or seconds <= 0:
            return
        # What is read at once may be of any length: that is learnt at powers of two alone.
        at = n if n < _TABLE else 1 << round(math.log2(n))
        log = self._log.get(at, math.log(self._between(at)))
        expected = math.log(self._here(n, math.exp(log) if at == n else self._between(n)))
        drift = self.drift
        seen = math.log(seconds) - expected - drift.log
        if drift.paused(seen, seconds):
            return
        self.observed = True
        drift.doubt += _WANDER
        doubt = self._doubt.get(at, _UNKNOWN)
        spread = doubt + drift.doubt + _NOISE
        error = drift.admit(seen, spread)
        spread = doubt + drift.doubt + _NOISE
        drift.log += drift.doubt / spread * error
        drift.doubt *= 1 - drift.doubt / spread
        # A point never becomes certain: it may be the context that has grown. What was so far off
        # that it counts in part makes nothing surer.
        sure = error == seen
        self._doubt[at] = max(doubt * (1 - doubt / spread), _WANDER) if sure else doubt
        known, correction = at in self._log, doubt / spread * error
        self._log[at] = log + correction
        self._moved += abs(correction)
        if 1 < at < _TABLE and doubt >= _MEASURED:
            self._pass_on(at, _ALIKE * correction)
        if not known or self._moved > _STALE:
            self._rebuild()

    def _pass_on(self, but: int, correction: float) -> None:
        """What went wrong at one size went wrong at others: they were measured side by side."""
        for n, doubt in self._doubt.items():
            if 1 < n < _TABLE and n != but and doubt >= _MEASURED:
                self._log[n] += correction

    def _rebuild(self) -> None:
        """Fill in what is not known, in a straight line from neighbour to neighbour."""
        self._moved = 0.0
        known = sorted(self._log)
        seconds = [math.exp(self._log[n]) for n in known]
        self._known = list(zip(known, seconds, strict=True))
        last_n, last = known[-1], seconds[-1]
        # The slope beyond the last point is taken over half the curve: the last step is jagged.
        half = bisect_right(known, last_n / 2) - 1
        middle_n, middle = (known[half], seconds[half]) if half >= 0 else (0, 0.8 * last)
        self._slope = max(0.0, (last - middle) / (last_n - middle_n))
        self._base = np.interp(_SIZES, known, seconds)
        self._base += self._slope * np.maximum(_SIZES - last_n, 0)
        self._tabulate()

    def _tabulate(self) -> None:
        """Work the table out for the context in force."""
        here = self._base
        if self._growth is not None and self._more:
            here = np.maximum(_LEAST_LEFT * here, here + self._more * self._growth.table)
        self._table: list[float] = here.tolist()
        self.least = least_after(self._table)

    def _steady(self, n: int) -> float:
        """Of one decode of `n` tokens, without the drift."""
        return self._table[n] if n < _TABLE else self._here(n, self._between(n))

    def _here(self, n: int, seconds: float) -> float:
        """What is `seconds` at the points' context, at the one in force."""
        if self._growth is None or not self._more:
            return seconds
        return self._growth.added(n, seconds, self._more)

    def _between(self, n: int) -> float:
        """On the line between the known points on both sides of `n`, or beyond the last."""
        known = self._known
        after = bisect_left(known, (n, 0.0))
        if after == 0:
            return known[0][1]
        a, low = known[after - 1]
        if after == len(known):
            return low + self._slope * (n - a)
        b, high = known[after]
        return low + (high - low) * (n - a) / (b - a)


def least_after(times: Sequence[float]) -> list[float]:
    """At index n the least of what comes after n; infinite at the last."""
    return [*accumulate(reversed(times[1:]), min, initial=math.inf)][::-1]


class Growth:
    """What every token of context adds to a decode, by the size of it: attention reads the cache.

    T(n, context) = T(n, 0) + g(n) context. A GPU reads the cache once for all rows of a decode:
    there g is flat. llama.cpp's kernels for the CPU read it for each of a few rows. So g goes in
    straight lines from size to size.

    Attributes:
        flat: whether nothing grows.
        table: `seconds` of 0, 1, ... 31.
    """

    def __init__(self, measured: ByContext, estimate: Points | None = None) -> None:
        """From the shortest and the longest context measured.

        Args:
            measured: one context or two.
            estimate: stands in where it is one: by size what a token of context adds, in shares
                of T(1). Without it nothing grows.
        """
        short, long = min(measured), max(measured)
        if long == short:
            alone = Curve(measured[short]).seconds(1)
            self._added = [(n, alone * share) for n, share in sorted((estimate or {}).items())]
        else:
            both = measured[short].keys() & measured[long].keys()
            self._added = [
                (n, max(0.0, measured[long][n] - measured[short][n]) / (long - short))
                for n in sorted(both)
            ]
        self.flat = not any(added for _, added in self._added)
        self.table = np.array([self.seconds(int(n)) for n in _SIZES])

    def seconds(self, n: int) -> float:
        """Of a decode of `n` tokens, for each token of context."""
        added = self._added
        if len(added) < 2:
            return added[0][1] if added else 0.0
        at = min(max(1, bisect_left(added, (n, 0.0))), len(added) - 1)
        (a, low), (b, high) = added[at - 1 : at + 1]
        return max(0.0, low + (high - low) * (n - a) / (b - a))

    def over(self, points: Points, tokens: int) -> dict[int, float]:
        """The points with so many tokens more, or fewer, of context."""
        return {n: self.added(n, seconds, tokens) for n, seconds in points.items()}

    def added(self, n: int, seconds: float, tokens: int) -> float:
        """What a decode of `n` tokens, of `seconds`, takes with so many tokens more, or fewer."""
        return max(_LEAST_LEFT * seconds, seconds + tokens * self.seconds(n))


class ModelCosts:
    """One model's curves, one for each bucket of contexts.

    A bucket that was never used starts from the nearest context known, by what the tokens between
    add. How much that is was measured or estimated; rounds correct the curves, not the growth.
    """

    def __init__(
        self,
        measured: ByContext,
        learned: ByContext | None = None,
        *,
        estimate: Points | None = None,
    ) -> None:
        """Start from what was measured, at one context or two, and what was learnt since.

        Args:
            measured: the former.
            learned: the latter.
            estimate: of the growth, where one context was measured (see `Growth`).
        """
        self._drift = Drift()
        self._measured, self._estimate = measured, estimate
        self._growth = Growth(measured, estimate)
        self._learned = dict(learned or {})
        first = min(measured)  # where the most points are
        self._known = self._learned or {first: measured[first]}
        self._curves: dict[int, Curve] = {}

    def at(self, context: int) -> Curve:
        """The curve for a context of so many tokens."""
        wanted = bucket(context)
        curve = self._curves.get(wanted)
        if curve is None:
            curve = self._curves[wanted] = self._new(middle(wanted))
        curve.stand(context - context % _STEP - middle(wanted))
        return curve

    def as_measured(self) -> ModelCosts:
        """New curves from the measurement alone, without anything learnt."""
        return ModelCosts(self._measured, estimate=self._estimate)

    def learned(self) -> dict[int, dict[int, float]]:
        """What rounds have taught, by context, to be stored."""
        now = {middle(at): curve.points() for at, curve in self._curves.items() if curve.observed}
        return {at: dict(points) for at, points in sorted({**self._learned, **now}.items())}

    def _new(self, context: int) -> Curve:
        known = dict(self._known)
        for at, curve in self._curves.items():
            if curve.observed:
                known[middle(at)] = {n: s / curve.unit for n, s in curve.points().items()}
        nearest = min(known, key=lambda at: abs(at - context))
        points = self._growth.over(known[nearest], context - nearest)
        return Curve(points, self._drift, None if self._growth.flat else self._growth)


class Costs:
    """What a round costs with this target and these drafters.

    Attributes:
        target: the target's curves. T(n) stands for all of a round but the drafting: the pass
            itself, the copy of a recurrent state before it, the sampler chain along the draft, the
            rule.
        drafts: the drafters' curves by their names.
        takes_back: drafted tokens that the target takes back at once, None for any number.
        rereads: seconds of going back over those of a decode of what stays, which is read again;
            0 where nothing is.
    """

    def __init__(
        self,
        target: ByContext | ModelCosts,
        drafts: Mapping[str, ByContext | ModelCosts],
        takes_back: int | None = None,
    ) -> None:
        """Costs by what was measured, or with what was learnt besides."""
        self.target = _model_costs(target)
        self.drafts = {name: _model_costs(draft) for name, draft in drafts.items()}
        self.takes_back = takes_back
        self.rereads = 1.0 if takes_back == 0 else 0.0

    def as_measured(self) -> Costs:
        """New costs from the measurements alone, without anything learnt."""
        drafts = {name: draft.as_measured() for name, draft in self.drafts.items()}
        return Costs(self.target.as_measured(), drafts, self.takes_back)

    def longest(self, most: int) -> int:
        """The longest draft worth considering, at most `most`.

        Where snapshots hold some tokens, to draft more would cost a copy and reading again.
        """
        return min(most, self.takes_back) if self.takes_back else most

    def going_back(self, context: int, drafted: int, accepted: int) -> float:
        """Seconds of taking back what was rejected, which is no part of T(n)."""
        if not self.rereads or accepted >= drafted:
            return 0.0
        return self.rereads * self.target.at(context).seconds(accepted + 1)

    def drafting(self, drafter: str, context: int, lag: int, passes: int) -> float:
        """Seconds of so many draft passes, the first of which reads `lag` tokens."""
        if passes == 0:
            return 0.0
        curve = self.drafts[drafter].at(context)
        return curve.seconds(max(1, lag)) + (passes - 1) * curve.seconds(1)

    def observe_going_back(self, context: int, accepted: int, seconds: float) -> None:
        """Taking back all but `accepted` drafted tokens and the one before took this long."""
        if self.rereads and seconds > 0:
            seen = seconds / self.target.at(context).seconds(accepted + 1)
            self.rereads += _GOING_BACK * (min(seen, _MOST_REREADS) - self.rereads)

    def observe_draft(
        self, drafter: str, context: int, lag: int, passes: int, seconds: float
    ) -> None:
        """A round's drafting took this long (see `drafting`)."""
        if passes == 0:
            return
        curve = self.drafts[drafter].at(context)
        if lag <= 2:  # reading one token or two is a step like the others
            curve.observe(1, seconds / passes)
        else:
            curve.observe(lag, seconds - (passes - 1) * curve.seconds(1))


def _model_costs(known: ByContext | ModelCosts) -> ModelCosts:
    return known if isinstance(known, ModelCosts) else ModelCosts(known)
