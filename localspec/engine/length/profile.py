"""Measures what decodes cost here, once, and keeps it: per machine, build, threads and model file.

Times are in seconds. The stored file of a model holds two tables: `measured`, which never changes
until it is measured again, and `learned`, the same corrected by the rounds that were run since. A
generation that must be repeatable uses the former.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from localspec import private
from localspec.engine.length.cost import ByContext, Points
from localspec.engine.llama import Context, Head, build, machine

FORMAT = 3

# What tells most about the curve first: a slow machine measures no further than its time allows.
# What matters most is timed again, and the least time counts, since whatever disturbs a decode
# makes it longer. Some decodes lie between: a disturbance lasts. The longest are of copies.
TARGET_SIZES = (
    *(1, 2, 1, 4, 8, 3, 5, 6, 2, 4, 16, 3, 8, 32, 5, 6),
    *(1, 12, 64, 16, 2, 32, 10, 4, 12, 14, 64, 9, 7, 10, 11, 17, 13, 15),
)
DRAFT_SIZES = (1, 2, 1, 2, 16, 1, 4, 16, 1, 4, 64, 8, 1, 64, 8)
PASSES = 30
_ROW = 3  # CUDA records the second decode of a size, and plays the record from the third on
TARGET_BUDGET = 2.0  # seconds; with the choice of attention both make 5 before a first prompt
REMOTE_BUDGET = 10.0  # a pass that waits for a network may take half a second
DRAFT_BUDGET = 0.6
_SHALLOW = 0.6  # of the budget for an empty cache, what is left for a filled one

# Attention takes longer the more is in the cache: a few sizes are timed again behind scratch
# tokens, as many as can be read in a moment. Few would show nothing but noise: for a model so slow
# that it reads no more, `growth` estimates what the context adds.
TARGET_DEEP = (1, 4, 16, 1, 4, 16, 8)
DRAFT_DEEP = (1, 16, 1, 4, 64, 16, 4, 64)
_DEPTH = 1024
_LEAST_DEPTH = 256
_FILLING = 0.75  # seconds
_READ = 128  # tokens at once: on a busy machine more may take seconds
_AGAIN = (1, 1)  # behind them in an empty cache: had the machine slowed down meanwhile?
_LEAST = 2  # sizes measured however long it takes: a curve is more than a point
_STEADY = 0.5  # a spread above this is noise from elsewhere
_ACQUAINTED = 6.0  # seconds, for all sizes that were not measured
_PAUSE, _PAUSE_S = 10.0, 1.0  # times, and seconds, beyond any decode: the program was stopped
_HEADER = 1 << 20  # bytes of a model file that are hashed

# A stored file is not a profile if a figure in it cannot be a timing.
_Size = Annotated[int, Meta(ge=1, le=1 << 30)]
_Depth = Annotated[int, Meta(ge=0, le=1 << 30)]
_Seconds = Annotated[float, Meta(gt=0, lt=1e5)]
_Table = dict[_Depth, Annotated[dict[_Size, _Seconds], Meta(min_length=1)]]


class _StoredProfile(msgspec.Struct):
    """A profile as it is stored; tables by context hold seconds by tokens."""

    identity: dict[str, Any]
    measured: _Table
    learned: _Table
    threads: Annotated[int, Meta(ge=1, le=512)] | None  # ggml's own limit
    format: Literal[3]
    spread: Annotated[float, Meta(ge=0)] | None
    onset: Annotated[tuple[Annotated[float, Meta(ge=0, lt=1e5)], ...], Meta(max_length=_ROW - 1)]


@dataclass(frozen=True, slots=True)
class Timing:
    """What was measured.

    Attributes:
        points: size to seconds, for the sizes that there was time for.
        spread: how far timings of one size lay apart, in shares of the lesser: the median over
            the sizes that were timed more than once.
        onset: seconds that the first decodes of a row take longer (see `Row`), where they do.
    """

    points: dict[int, float]
    spread: float = 0.0
    onset: tuple[float, ...] = ()

    @staticmethod
    def of(found: Mapping[int, Sequence[float]], longer: Sequence[Sequence[float]]) -> Timing:
        """Of every timing of each size, and of what was longer where rows began."""
        spreads = sorted(max(each) / min(each) - 1 for each in found.values() if len(each) > 1)
        points = {n: min(each) for n, each in sorted(found.items())}
        onset = tuple(max(0.0, median(each)) for each in zip(*longer, strict=True))
        return Timing(points, spreads[len(spreads) // 2] if spreads else 0.0, onset)

    @property
    def steady(self) -> bool:
        """Whether it is worth keeping: something else may have been running."""
        return _steady(self.spread)


def measure(
    context: Context,
    sizes: Sequence[int],
    *,
    budget: float,
    passes: int = PASSES,
    one_row: bool = False,
    clock: Callable[[], float] = perf_counter,
) -> Timing:
    """Time decodes of several sizes on scratch positions behind what the cache holds.

    The cache is left as it was. Where a size is named more than once the least time counts. A pass
    in which the program was stopped, or the machine slept, counts for nothing. Where decodes of one
    size settle, a target's are done three times, and the last one counts.

    Args:
        context: of the model to measure; it must be able to take back tokens.
        sizes: tokens per decode, what tells most first.
        budget: seconds in which a new pass may be begun.
        passes: timings at most, and a decode that only warms up.
        one_row: ask for the logits of the last token alone, as a draft does.
        clock: counts seconds.

    Raises:
        Cancelled: the context's watched flag was set; the cache is as before.
    """
    kept = len(context.tokens)
    fitting = [n for n in sizes if n <= min(context.free, context.n_batch)]
    found: defaultdict[int, list[float]] = defaultdict(list)
    longer: list[list[float]] = []
    row = _ROW if context.settles and not one_row else 1
    begun, last = clock(), 1
    context.mark()
    try:
        known = [(1, _seconds(context, 1, one_row, clock))] if fitting else []
        for n in fitting[: max(0, passes - 1)]:
            if clock() - begun > budget and len(found) >= min(_LEAST, len(set(fitting))):
                break
            new = n not in found and not context.familiar(n, 1 if one_row else n)
            times = [_seconds(context, n, one_row, clock) for _ in range(max(row, 1 + new))]
            if max(times) > _PAUSE_S + _PAUSE * min(t * max(1, n / m) for m, t in known):
                begun += sum(times)
                continue
            known.append((n, times[-1]))
            found[n].append(times[-1])
            longer += [[each - times[-1] for each in times[:-1]]] * (n != last and not new)
            last = n
    finally:
        context.truncate(kept)
    return Timing.of(found, longer)


def acquaint(context: Context, longest: int, *, clock: Callable[[], float] = perf_counter) -> None:
    """Decode up to `longest` tokens at once, so that no round has to be the first that does.

    For a target on workers or a card, where the first decode of a size takes longer than those
    after it: with 20 ms each way 0.5 seconds in place of 0.2, on an H100 10 ms in place of 5. No
    more time is spent on it than it saves.

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
    """Decode so many scratch tokens once, and take them back.

    What a round does before it drafts counts as well: a recurrent state is copied, except where one
    token is decoded. Going back is not part of it.
    """
    kept, tokens = len(context.tokens), scratch(context, n)
    started = clock()
    if n > 1:  # a plain round copies no recurrent state, one that drafts does
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

    Decodes of one token are timed once more in the empty cache: what changed since then is part of
    the spread, since it may have disturbed what was timed in between.

    Args:
        context: of the model; measured only where it stands if its cache is not empty.
        draft: whether it drafts: other sizes tell most, and only one row of logits is needed.
        budget: seconds for all of it, in which a new pass may be begun.
        passes: decodes at most, without those that fill the cache.
        repeats: how often to go through the sizes.
        clock: counts seconds.

    Returns:
        (points by tokens of context, what was timed where it stands with the spread of all)

    Raises:
        Cancelled: the context's watched flag was set; the cache is as before.
    """
    sizes = repeats * (DRAFT_SIZES if draft else TARGET_SIZES)
    deep = repeats * (DRAFT_DEEP if draft else TARGET_DEEP)
    held, later, end = context.behind, len(deep) + 1, clock() + budget
    once_more = len(_AGAIN) + 1
    timed = partial(measure, context, one_row=draft, clock=clock)
    first = timed(sizes, budget=_SHALLOW * budget, passes=passes - later - once_more)
    depth = 0 if held else affordable_depth(context, first.points)
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
    """How much context to measure behind, 0 where too little can be read in time, or held."""
    if not points or not context.holds:
        return 0
    token = min(seconds / n for n, seconds in points.items())
    depth = min(_DEPTH, context.n_ctx // 2, int(_FILLING / token))
    return depth if depth >= _LEAST_DEPTH else 0


def growth(context: Context, *, on_device: bool) -> dict[int, float]:
    """What a token of context adds to a decode at least, by its size, in shares of T(1).

    For where it is not measured: a token's part of the cache is read as fast as weights. A device
    reads it once for all rows; the processor more often, though not for every row anew (see the
    table in docs/gamma.md).
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
    """Read so many scratch tokens; whether that was done by the time `until`."""
    step = min(context.n_batch, _READ)
    for start in range(0, tokens, step):
        if clock() > until:
            return False
        context.mark()  # an interrupted decode goes back to here
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
        identity: what they hold for.
        measured: by tokens of context, as measured: one or two lengths.
        learned: of the shortest length, the sizes that rounds have corrected; empty until then.
        threads: the fastest number of CPU threads that was found; None if nobody looked.
        spread: how far timings lay apart (see `Timing`); None where nobody wrote it down.
        onset: see `Timing`.
    """

    identity: Mapping[str, Any]
    measured: ByContext = field(default_factory=dict)
    learned: ByContext = field(default_factory=dict)
    threads: int | None = None
    spread: float | None = None
    onset: tuple[float, ...] = ()

    @property
    def steady(self) -> bool:
        """Whether it is known well: kept without that is what has to be repeated alone."""
        return _steady(self.spread or 0.0)

    @property
    def best(self) -> ByContext:
        """What is known best: as measured, but for sizes that rounds have corrected."""
        return {at: {**points, **self.learned.get(at, {})} for at, points in self.measured.items()}


def _steady(spread: float) -> bool:
    return spread < _STEADY


def identity(context: Context, *, threads: int, draft: bool) -> dict[str, Any]:
    """What a timing of this model holds for."""
    known = {
        **of_file(context.model.path, draft=draft),
        "threads": threads,
        "n_gpu_layers": context.model.gpu_layers,
        "weights_bytes": context.model.weights_bytes,
    }
    if isinstance(context, Head):  # the file may hold a whole model besides
        known["head"] = context.kind
    # What a round costs that copies a recurrent state, and how many snapshots there are.
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
        "build": build(),
        "use": "draft" if draft else "target",
        "file_bytes": path.stat().st_size,
        "header_sha256": header,
    }


def profile(context: Context, known: Mapping[str, Any]) -> Profile:
    """Measure a model in a few seconds: T(n) of a target, steps and reading of a draft."""
    draft = known["use"] == "draft"
    budget = DRAFT_BUDGET if draft else TARGET_BUDGET
    if context.model.remote:
        budget = REMOTE_BUDGET
    points, timing = measure_by_context(context, draft=draft, budget=budget)
    return Profile(known, points, spread=timing.spread, onset=timing.onset)


class ProfileStore:
    """Profiles as JSON files in a folder. What cannot be read or written is as good as absent."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def load(self, known: Mapping[str, Any]) -> Profile | None:
        """The profile for this identity, if it was measured before."""
        found = _load(self._path(known))
        return found if found is not None and found.identity == known else None

    def matching(self, known: Mapping[str, Any]) -> list[Profile]:
        """All profiles whose identity has the items of `known` among its own."""
        every = (_load(path) for path in sorted(self.folder.glob("*.json")))
        return [one for one in every if one is not None and known.items() <= one.identity.items()]

    def save(self, profile: Profile) -> bool:
        """Store atomically; whether that was possible."""
        document = json.dumps({**asdict(profile), "format": FORMAT}, indent=1)
        path = self._path(profile.identity)
        try:
            private.make_folder(self.folder)
            with private.whole_file(path) as file:
                file.write(document.encode())
        except OSError:
            return False
        return True

    def learn(self, profile: Profile, learned: ByContext) -> bool:
        """Store what use has taught about a profile; whether that was possible."""
        return self.save(replace(profile, learned=learned))

    def _path(self, known: Mapping[str, Any]) -> Path:
        text = json.dumps(dict(known), sort_keys=True)
        return self.folder / f"{hashlib.sha256(text.encode()).hexdigest()[:24]}.json"


def _load(path: Path) -> Profile | None:
    """The profile in a file; None where there is none that can be read."""
    try:
        stored = msgspec.json.decode(path.read_bytes(), type=_StoredProfile)
    except (OSError, ValueError, RecursionError):
        return None
    return Profile(
        stored.identity,
        stored.measured,
        stored.learned,
        stored.threads,
        stored.spread,
        stored.onset,
    )
