"""What decodes cost on this machine: T(n) of the target, the draft's steps and its catching up.

Pure: a measurement goes in (see `profile`), every round's own timing corrects it. Times are in
seconds. Nothing here assumes that T grows with n: on real kernels it is jagged.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise

Points = Mapping[int, float]
"""n -> seconds of one decode of n tokens."""

Buckets = Mapping[int, Points]
"""context bucket -> points measured with about that much context."""

# Standard deviations of the logarithm, squared: one timing; a point measured before or learnt;
# a point that was only interpolated; what the machine's speed may change by from round to round.
_NOISE = 0.06**2
_MEASURED = 0.03**2
_UNKNOWN = 0.20**2
_WANDER = 0.01**2

_CLIP = 2.5  # standard deviations; what lies beyond counts no more than this
_STREAK = 4  # so many outliers on one side are no outliers: the machine has changed
_STALE = 0.005  # how far points may move before the table is worked out anew
_GOING_BACK = 0.1  # weight of one observation
_MOST_REREADS = 10.0
_TABLE = 32  # n up to here is looked up, beyond it is computed


def bucket(context: int) -> int:
    """Which curve serves a context of so many tokens: 0 below 256, then one per doubling."""
    return (context >> 8).bit_length()


class Drift:
    """A machine's common factor on all its timings: a throttling processor, a busy neighbour."""

    def __init__(self) -> None:
        self.log = 0.0
        self.doubt = _MEASURED
        self.streak = 0

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

    Attributes:
        drift: of the machine, shared with other curves.
        least: at n the least of what `shape` has after n.
    """

    def __init__(self, points: Points, drift: Drift | None = None) -> None:
        """Start from measured points; at least one."""
        self.drift = drift if drift is not None else Drift()
        self._log = {n: math.log(seconds) for n, seconds in sorted(points.items())}
        self._doubt = dict.fromkeys(self._log, _MEASURED)
        self._rebuild()

    @property
    def unit(self) -> float:
        """Seconds for one of what `shape` counts: what the machine's drift multiplies."""
        return math.exp(self.drift.log)

    def seconds(self, n: int) -> float:
        """Of one decode of `n` tokens, now."""
        return self.unit * (self._table[n] if n < _TABLE else self._beyond(n))

    def shape(self, n: int) -> list[float]:
        """Times of decodes of 0 (never asked for), 1, ... `n` tokens, in units."""
        return self._table[: n + 1]

    def times(self, n: int) -> list[float]:
        """The same in seconds."""
        unit = self.unit
        return [unit * each for each in self.shape(n)]

    def points(self) -> dict[int, float]:
        """The known points as they are now."""
        return {n: math.exp(log + self.drift.log) for n, log in self._log.items()}

    def copy(self) -> Curve:
        """A curve that starts from what this one knows, with the same drift."""
        return Curve({n: math.exp(log) for n, log in self._log.items()}, self.drift)

    def observe(self, n: int, seconds: float) -> None:
        """One decode of `n` tokens took this long."""
        if n < 1 or seconds <= 0:
            return
        drift = self.drift
        drift.doubt += _WANDER
        log = self._log.get(n, math.log(self._table[n] if n < _TABLE else self._beyond(n)))
        doubt = self._doubt.get(n, _UNKNOWN)
        spread = doubt + drift.doubt + _NOISE
        error = drift.admit(math.log(seconds) - log - drift.log, spread)
        spread = doubt + drift.doubt + _NOISE
        drift.log += drift.doubt / spread * error
        drift.doubt *= 1 - drift.doubt / spread
        # A point never becomes certain: it may be the context that has grown.
        self._doubt[n] = max(doubt * (1 - doubt / spread), _WANDER)
        known = n in self._log
        self._log[n] = log + doubt / spread * error
        self._moved += abs(doubt / spread * error)
        if not known or self._moved > _STALE:
            self._rebuild()

    def _rebuild(self) -> None:
        """Fill in what is not known, in a straight line from neighbour to neighbour."""
        self._moved = 0.0
        known = sorted((n, math.exp(log)) for n, log in self._log.items())
        last_n, last = known[-1]
        # The slope beyond the last point is taken over half the curve: the last step is jagged.
        middle_n, middle = next(
            ((n, s) for n, s in reversed(known) if n <= last_n / 2), (0, 0.8 * last)
        )
        self._last, self._slope = (last_n, last), max(0.0, (last - middle) / (last_n - middle_n))
        table = [known[0][1]] * (known[0][0] + 1)
        for (a, low), (b, high) in pairwise(known):
            table += [low + (high - low) * (n - a) / (b - a) for n in range(a + 1, b + 1)]
        table += [self._beyond(n) for n in range(len(table), _TABLE)]
        self._table, self.least = table, least_after(table)

    def _beyond(self, n: int) -> float:
        return self._last[1] + self._slope * (n - self._last[0])


def least_after(times: Sequence[float]) -> list[float]:
    """At index n the least of what comes after n; infinite at the last."""
    return [*accumulate(reversed(times[1:]), min, initial=math.inf)][::-1]


class ModelCosts:
    """One model's curves, by context; a length never seen starts from the nearest one known."""

    def __init__(self, buckets: Buckets) -> None:
        self._drift = Drift()
        self._curves = {at: Curve(points, self._drift) for at, points in buckets.items()}

    def at(self, context: int) -> Curve:
        """The curve for a context of so many tokens."""
        wanted = bucket(context)
        curve = self._curves.get(wanted)
        if curve is None:
            nearest = min(self._curves, key=lambda known: (abs(known - wanted), known))
            curve = self._curves[wanted] = self._curves[nearest].copy()
        return curve

    def buckets(self) -> dict[int, dict[int, float]]:
        """All that is known now, to be stored."""
        return {at: curve.points() for at, curve in sorted(self._curves.items())}


class Costs:
    """What a round costs with this target and these drafters.

    Attributes:
        target: the target's curves. T(n) stands for all of a round but the drafting: the pass
            itself, the copy of a recurrent state before it, the sampler chain along the draft, the
            rule.
        drafts: the drafters' curves, in the order in which the policy knows them.
        takes_back: drafted tokens that the target takes back at once, None for any number.
        rereads: seconds of going back over those of a decode of what stays, which is read again;
            0 where nothing is.
    """

    def __init__(
        self, target: Buckets, drafts: Sequence[Buckets], takes_back: int | None = None
    ) -> None:
        self.target = ModelCosts(target)
        self.drafts = tuple(ModelCosts(buckets) for buckets in drafts)
        self.takes_back = takes_back
        self.rereads = 1.0 if takes_back == 0 else 0.0

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

    def drafting(self, drafter: int, context: int, lag: int, passes: int) -> float:
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

    def observe_target(self, context: int, n: int, seconds: float) -> None:
        """A round's verification of `n` tokens took this long."""
        self.target.at(context).observe(n, seconds)

    def observe_draft(
        self, drafter: int, context: int, lag: int, passes: int, seconds: float
    ) -> None:
        """A round's drafting took this long (see `drafting`)."""
        if passes == 0:
            return
        curve = self.drafts[drafter].at(context)
        if lag <= 2:  # reading one token or two is a step like the others
            curve.observe(1, seconds / passes)
        else:
            curve.observe(lag, seconds - (passes - 1) * curve.seconds(1))
