"""Measures the cost of a model's decodes once, and stores it by machine, build, threads and file.

Times are in seconds. A model's stored file holds a table that stays the same until the model is
measured again, `measured`, and what came later: sizes that were `added` in idle moments, and those
that rounds have corrected, `learned`. A generation that must be repeatable uses `measured`.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import median, median_high
from time import perf_counter
from typing import Annotated, Any, Literal

from msgspec import Meta

from localspec import private
from localspec.engine.length.cost import PAUSE, PAUSE_S, ByContext, ModelCosts, Points, credible
from localspec.engine.llama import Context, Head, kernels, machine

# The sizes that tell most come first, since a slow machine runs out of time: 16 among them, as a
# table that ends at 8 charges long copies too much. Those that matter most are timed again, with
# others in between, as a disturbance lasts; the least time counts, as disturbances only make
# decodes longer. The longest sizes are those of copied drafts.
TARGET_SIZES = (
    *(1, 2, 1, 4, 16, 8, 3, 5, 6, 2, 4, 3, 8, 32, 5, 6),
    *(1, 12, 64, 16, 2, 32, 10, 4, 12, 14, 64, 9, 7, 10, 11, 17, 13, 15, 48, 63),
)
DRAFT_SIZES = (1, 2, 1, 2, 16, 1, 4, 16, 1, 4, 64, 8, 1, 64, 8)
PASSES = 30
_RUN = 3  # CUDA records the second decode of a size and replays it from the third on
TARGET_BUDGET = 2.0  # seconds; a first prompt waits 5 in all, with the choice of attention
LONG_BUDGET = 10.0  # over a network, where a pass may take half a second, and in idle moments
DRAFT_BUDGET = 0.6
_SHALLOW = 0.6  # share of the budget for an empty cache, if there is time to fill one

# Attention takes longer in a filled cache, so a few sizes are timed again after scratch tokens. If
# the model is too slow to read enough of them, the difference would drown in noise; then `growth`
# estimates what the context adds.
TARGET_DEEP = (1, 4, 16, 1, 4, 16, 8)
DRAFT_DEEP = (1, 16, 1, 4, 64, 16, 4, 64)
_DEPTH = 1024
_LEAST_DEPTH = 256
_FILLING = 0.75  # seconds
_READ = 128  # tokens per decode; on a busy machine more may take seconds
_AGAIN = (1, 1)  # sizes timed once more at the end: has the machine's speed changed meanwhile?
_LEAST = 2  # sizes measured whatever time they take, as a curve needs two points
_STEADY = 0.5  # a larger spread comes from other programs
_ACQUAINTED = 6.0  # the most seconds for sizes that were not measured
_HEADER = 1 << 20  # bytes of a model file that are hashed

# A stored file is not a profile if a figure in it cannot be a timing.
_Size = Annotated[int, Meta(ge=1, le=1 << 30)]
_Depth = Annotated[int, Meta(ge=0, le=1 << 30)]
_Seconds = Annotated[float, Meta(gt=0, lt=1e5)]
_Table = Mapping[_Depth, Annotated[Mapping[_Size, _Seconds], Meta(min_length=1)]]
_Warmup = tuple[Annotated[float, Meta(ge=0, lt=1e5)], ...]


@dataclass(frozen=True, slots=True)
class Timing:
    """A measurement.

    Attributes:
        points: size to seconds, for the sizes that there was time for.
        spread: the largest time of a size over its least, minus 1: the median over the sizes that
            were timed more than once.
        warmup: extra seconds of the first decodes of a size (see `SameSizeRun`); empty if there are
            none.
    """

    points: dict[int, float]
    spread: float = 0.0
    warmup: tuple[float, ...] = ()

    @staticmethod
    def of(found: Mapping[int, Sequence[float]], extra: Sequence[Sequence[float]]) -> Timing:
        """Summarise the timings of each size, and the extra seconds of its first decodes."""
        spreads = [max(each) / min(each) - 1 for each in found.values() if len(each) > 1]
        points = {n: min(each) for n, each in sorted(found.items())}
        warmup = tuple(max(0.0, median(each)) for each in zip(*extra, strict=True))
        return Timing(points, median_high(spreads) if spreads else 0.0, warmup)

    @property
    def steady(self) -> bool:
        """Whether nothing disturbed it, so that it is worth storing."""
        return self.spread < _STEADY


def measure(
    context: Context,
    sizes: Sequence[int],
    *,
    budget: float | Callable[[Points], float],
    passes: int = PASSES,
    one_row: bool = False,
    clock: Callable[[], float] = perf_counter,
) -> Timing:
    """Time decodes of several sizes at positions after the cache's tokens.

    The cache is left as it was. If a size is named more than once, its least time counts. A pass in
    which the program was suspended or the machine slept is ignored. If repeating a size makes its
    decodes faster (`Context.settles`), a target decodes it three times and the last time counts.

    Args:
        context: of the model to measure; it must be able to roll back tokens.
        sizes: tokens per decode; those that tell most come first.
        budget: seconds after which no further pass begins; it may follow from the times so far.
        passes: the most decodes, including one that only warms up.
        one_row: request the logits of the last token alone, as a draft does.
        clock: returns seconds.

    Raises:
        Cancelled: the context's watched flag was set; the cache is as before.
    """
    kept = len(context.tokens)
    fitting = [n for n in sizes if n <= min(context.free, context.n_batch)]
    found: defaultdict[int, list[float]] = defaultdict(list)
    extra: list[list[float]] = []
    repeats = _RUN if context.settles and not one_row else 1
    begun, last = clock(), 1
    context.mark()
    try:
        known = [(1, _seconds(context, 1, one_row, clock))] if fitting else []
        for n in fitting[: max(0, passes - 1)]:
            most = budget({n: min(its) for n, its in found.items()}) if callable(budget) else budget
            if clock() - begun > most and len(found) >= min(_LEAST, len(set(fitting))):
                break
            new = n not in found and not context.familiar(n, 1 if one_row else n)
            times = [_seconds(context, n, one_row, clock) for _ in range(max(repeats, 1 + new))]
            if max(times) > PAUSE_S + PAUSE * min(t * max(1, n / m) for m, t in known):
                begun += sum(times)
                continue
            known.append((n, times[-1]))
            found[n].append(times[-1])
            if n != last and not new:
                extra.append([each - times[-1] for each in times[:-1]])
            last = n
    finally:
        context.truncate(kept)
    return Timing.of(found, extra)


def acquaint(context: Context, longest: int, *, clock: Callable[[], float] = perf_counter) -> None:
    """Warm up the batch sizes up to `longest` tokens that no decode has used yet.

    On workers and cards the first decode of a size takes longer than the next ones: over a network
    with 20 ms each way 0.5 seconds instead of 0.2, on an H100 10 ms instead of 5. The warm-up takes
    no more time than it saves.

    Raises:
        Cancelled: the context's watched flag was set; the cache is as before.
    """
    most = min(longest, context.free)
    sizes = [n for n in dict.fromkeys((*TARGET_SIZES, *range(longest + 1))) if 1 < n <= most]
    sizes = [n for n in sizes if not context.familiar(n, n)]
    if not sizes:
        return
    kept = len(context.tokens)
    context.mark()
    try:
        first, again = (_seconds(context, sizes[0], False, clock) for _ in range(2))
        until = clock() + min(_ACQUAINTED, len(sizes) * (first - again))
        for n in sizes[1:]:
            if clock() >= until:
                break
            _seconds(context, n, False, clock)
    finally:
        context.truncate(kept)


def _seconds(context: Context, n: int, one_row: bool, clock: Callable[[], float]) -> float:
    """Time one decode of `n` scratch tokens, and roll it back.

    As in a round, the copy of a recurrent state before a draft is included, and the rollback is
    not.
    """
    kept, tokens = len(context.tokens), scratch(context, n)
    started = clock()
    if n > 1:  # a round without a draft copies no recurrent state
        context.mark(0 if one_row else n, anew=True)
    context.decode(tokens, 1 if one_row else n)
    seconds = clock() - started
    context.truncate(kept)
    return seconds


def measure_by_context(
    context: Context,
    *,
    draft: bool,
    budget: float,
    passes: int = PASSES,
    repeats: int = 1,
    clock: Callable[[], float] = perf_counter,
) -> tuple[dict[int, dict[int, float]], Timing]:
    """Time a model as `measure` does, in an empty cache and again deep in a context.

    Decodes of one token are timed again at the end. If their time has changed, that change counts
    in the spread, since it may have affected everything measured in between.

    Args:
        context: of the model; if its cache is not empty, only its present depth is measured.
        draft: whether it is a draft, for which other sizes matter and one row of logits is enough.
        budget: seconds after which no further pass begins.
        passes: the most decodes, without those that fill the cache.
        repeats: how often to go through the sizes.
        clock: returns seconds.

    Returns:
        (points by tokens of context, the timing at the first depth with the spread of all)

    Raises:
        Cancelled: the context's watched flag was set; the cache is as before.
    """
    sizes = repeats * (DRAFT_SIZES if draft else TARGET_SIZES)
    deep = repeats * (DRAFT_DEEP if draft else TARGET_DEEP)
    held, later, end = context.held, len(deep) + 1, clock() + budget
    once_more = len(_AGAIN) + 1
    timed = partial(measure, context, one_row=draft, clock=clock)

    def second_depth(points: Points) -> int:
        return 0 if held else affordable_depth(context, points)

    def shallow(points: Points) -> float:
        return (_SHALLOW if second_depth(points) else 1.0) * budget

    first = timed(sizes, budget=shallow, passes=passes - later - once_more)
    depth = second_depth(first.points)
    try:
        if not depth or not fill(context, depth, until=end, clock=clock):
            return {held: first.points}, first
        second = timed(deep, budget=end - clock(), passes=later)
    finally:
        context.truncate(held)
    last = timed(_AGAIN, budget=math.inf, passes=once_more).points
    meanwhile = [abs(math.log(last[n] / first.points[n])) for n in last.keys() & first.points]
    spread = max(first.spread, second.spread, math.expm1(max(meanwhile, default=0.0)))
    return {held: first.points, depth: second.points}, replace(first, spread=spread)


def affordable_depth(context: Context, points: Points) -> int:
    """Tokens of context for the second depth; 0 if too few can be read in time, or held."""
    if not points or not context.holds:
        return 0
    token = min(seconds / n for n, seconds in points.items())
    depth = min(_DEPTH, context.n_ctx // 2, int(_FILLING / token))
    return depth if depth >= _LEAST_DEPTH else 0


def growth(context: Context, *, on_device: bool) -> dict[int, float]:
    """The least cost of a token of context by the size of the decode, in shares of T(1).

    It replaces a measurement, and assumes that the cache is read as fast as the weights. A device
    reads it once for all rows; the CPU reads it again for every few rows.
    """
    share = context.token_bytes / max(1, context.model.weights_bytes)
    many = max(TARGET_DEEP)
    return {1: share, many: share if on_device else (many + 1) / 2 * share}


def fill(
    context: Context,
    tokens: int,
    *,
    until: float = math.inf,
    clock: Callable[[], float] = perf_counter,
) -> bool:
    """Decode `tokens` scratch tokens; return whether that was done by the time `until`."""
    step = min(context.n_batch, _READ)
    for start in range(0, tokens, step):
        if clock() > until:
            return False
        context.mark()  # an interrupted decode is rolled back to here
        context.decode(scratch(context, min(step, tokens - start)), 0)
    context.wait()
    return True


def scratch(context: Context, n: int) -> list[int]:
    """Tokens of all sorts, so that a mixture of experts uses many of its experts."""
    return [(7919 * (i + 1)) % context.model.n_vocab for i in range(n)]


@dataclass(frozen=True, slots=True)
class Profile:
    """One model's costs on this machine.

    Attributes:
        identity: everything that the costs depend on.
        measured: points at one context, or at two.
        learned: at the shortest context, the sizes that rounds have corrected; empty until then.
        threads: the fastest number of CPU threads; None if it was not searched for.
        spread: see `Timing`; None if it was not stored.
        onset: `Timing.warmup`, under the name that stored files have.
        added: at the shortest context, the sizes that were timed in idle moments.
    """

    identity: Mapping[str, Any]
    measured: _Table = field(default_factory=dict)
    learned: _Table = field(default_factory=dict)
    threads: Annotated[int, Meta(ge=1, le=512)] | None = None  # ggml's own limit
    spread: Annotated[float, Meta(ge=0)] | None = None
    onset: Annotated[_Warmup, Meta(max_length=_RUN - 1)] = ()
    added: Mapping[_Size, _Seconds] = field(default_factory=dict)
    format: Literal[3] = 3

    @property
    def steady(self) -> bool:
        """Whether nothing disturbed it; a disturbed one is stored only to repeat a run."""
        return (self.spread or 0.0) < _STEADY

    @property
    def best(self) -> ByContext:
        """All points, with the corrected sizes in place of theirs."""
        found = {at: {**points, **self.learned.get(at, {})} for at, points in self.measured.items()}
        if found:
            at = min(found)
            found[at] = {**self.added, **found[at]}
        return found


def identity(context: Context, *, threads: int, draft: bool) -> dict[str, Any]:
    """Everything that a timing of this model depends on."""
    known = {
        **of_file(context.model.path, draft=draft),
        "threads": threads,
        "n_gpu_layers": context.model.gpu_layers,
        "weights_bytes": context.model.weights_bytes,
    }
    if isinstance(context, Head):  # the same file may also hold a whole model
        known["head"] = context.kind
    # For a recurrent model, the cost depends on the number of snapshots.
    return known if context.max_rollback is None else {**known, "takes_back": context.max_rollback}


def of_file(path: Path, *, draft: bool) -> dict[str, Any]:
    """The part of `identity` that is known before the model is loaded.

    Raises:
        OSError: the file cannot be read.
    """
    with path.open("rb") as file:
        header = hashlib.sha256(file.read(_HEADER)).hexdigest()
    return {
        "machine": machine(),
        "build": kernels(),
        "use": "draft" if draft else "target",
        "file_bytes": path.stat().st_size,
        "header_sha256": header,
    }


def profile(context: Context, known: Mapping[str, Any]) -> Profile:
    """Measure a model in a few seconds: T(n) of a target, or the decodes of a draft."""
    draft = known["use"] == "draft"
    budget = DRAFT_BUDGET if draft else TARGET_BUDGET
    if context.model.remote:
        budget = LONG_BUDGET
    points, timing = measure_by_context(context, draft=draft, budget=budget)
    return Profile(known, points, spread=timing.spread, onset=timing.warmup)


def lacking(context: Context, known: Profile) -> list[int]:
    """The sizes of a target's passes that its profile does not have, though they fit."""
    most, first = min(context.free, context.n_batch), known.measured[min(known.measured)]
    have = first.keys() | known.added.keys()
    return [n for n in dict.fromkeys(TARGET_SIZES) if n <= most and n not in have]


def timed_later(
    context: Context,
    n: int,
    known: Profile,
    costs: ModelCosts,
    *,
    clock: Callable[[], float] = perf_counter,
) -> float | None:
    """Time passes of `n` tokens of a target after the cache's tokens, in turns with single tokens.

    Args:
        context: of the target.
        n: the size.
        known: the target's profile.
        costs: those of `known`; they convert the time to the profile's context, and to the
            machine's speed when the profile was measured.
        clock: returns seconds.

    Returns:
        The converted seconds; None if something disturbed the timing.

    Raises:
        Cancelled: the context's watched flag was set; the cache is as before.
    """
    at, depth = min(known.measured), context.held
    timing = measure(context, (1, n, 1, n), budget=math.inf, clock=clock)
    if not timing.steady or not {1, n} <= timing.points.keys():
        return None
    speed = costs.expected(1, depth) / timing.points[1]
    grown = costs.expected(n, depth) - costs.expected(n, at)
    seconds = speed * timing.points[n] - grown
    points = {**known.added, **known.measured[at], n: seconds}
    return seconds if credible(points, copies=context.max_rollback is not None) else None


class ProfileStore:
    """Profiles as JSON files in a folder; unreadable ones count as absent."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def load(self, known: Mapping[str, Any]) -> Profile | None:
        """The profile for this identity, if it was measured before."""
        found = private.read_json(self._path(known), Profile)
        return found if found is not None and found.identity == known else None

    def matching(self, known: Mapping[str, Any]) -> list[Profile]:
        """All profiles whose identity has the items of `known` among its own.

        One whose identity is damaged is left out: its file has the name of another.
        """
        paths = sorted(self.folder.glob("*.json"))
        every = [(path, private.read_json(path, Profile)) for path in paths]
        return [
            one
            for path, one in every
            if one and known.items() <= one.identity.items() and path == self._path(one.identity)
        ]

    def save(self, profile: Profile) -> bool:
        """Store `profile` atomically; return whether that was possible."""
        try:
            private.write_json(self._path(profile.identity), profile)
        except OSError:
            return False
        return True

    def _path(self, known: Mapping[str, Any]) -> Path:
        text = json.dumps(dict(known), sort_keys=True)
        return self.folder / f"{hashlib.sha256(text.encode()).hexdigest()[:24]}.json"
