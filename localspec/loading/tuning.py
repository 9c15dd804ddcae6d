"""Measures a pair's models on this machine, finds their best thread counts, and keeps that."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, replace

from localspec.chat.load_record import LoadRecord
from localspec.engine.cancel import Cancel
from localspec.engine.length.profile import Profile, identity, measure, measure_by_context
from localspec.engine.llama import Context, default_threads
from localspec.errors import LocalspecError
from localspec.loading.load import Progress, load_session
from localspec.loading.measuring import ANY_THREADS, identity_of, profile_store
from localspec.loading.request import LoadRequest

BUDGET = 12.0  # seconds for a model's curve
PASSES = 72
THREAD_BUDGET = 1.5  # seconds for one thread count
THREAD_SIZES = (1, 4, 1, 4, 1, 4, 1, 4)
_GAIN = 0.97  # another thread count has to be faster by 3 %, or the usual one stays


@dataclass(frozen=True, slots=True)
class Tuned:
    """What was found out about one model.

    Attributes:
        name: the model's file.
        threads: in use from now on.
        by_threads: seconds of one token and of four, for every thread count tried.
        points: n to seconds of one decode of n tokens.
        stored: whether it could be kept.
        spread: how far timings lay apart, in shares.
        takes_back: tokens that it takes back at once, None for any number.
    """

    name: str
    threads: int
    by_threads: Mapping[int, tuple[float, float]]
    points: Mapping[int, float]
    stored: bool
    spread: float
    takes_back: int | None


@dataclass(frozen=True, slots=True)
class TunedPair:
    """What was found out about a pair.

    Attributes:
        name: how the pair is called.
        target, draft: its models; None without a draft.
        draft_note: why nothing can be drafted; empty where something can.
    """

    name: str
    target: Tuned
    draft: Tuned | None
    draft_note: str


def tune(options: LoadRequest, *, progress: Progress, cancel: Cancel) -> TunedPair:
    """Load what `options` ask for, measure it, and store the result.

    Raises:
        LocalspecError: as `load_session`; a model cannot be measured.
        Cancelled: `cancel` was set.
    """
    with closing(load_session(options, progress=progress, cancel=cancel)) as session:
        pair = session.pair
        found = []
        for context in (pair.target, pair.draft):
            if context is not None:
                context.watch(cancel)
                progress(f"Measuring {context.model.path.name}", None)
                found.append(_tuned(context, options, pair.loaded, draft=context is pair.draft))
        draft = found[1] if len(found) > 1 else None
        return TunedPair(pair.name, found[0], draft, session.speculation_note)


def _tuned(context: Context, options: LoadRequest, loaded: LoadRecord, *, draft: bool) -> Tuned:
    """Measure one model, loaded like this, with its best number of threads; store that.

    Raises:
        LocalspecError: the model cannot be measured.
    """
    name = context.model.path.name
    if not context.can_truncate:
        raise LocalspecError(
            f"{name} cannot take back decoded tokens: nothing to tune",
            "Models of this architecture run without speculation.",
        )
    asked = (options.draft_threads if draft else None) or options.threads
    tried = {} if asked else _by_threads(context, options.threads_batch)
    threads = asked or _best_threads(tried, draft=draft)
    context.use_threads(threads, options.threads_batch)
    found, timing = measure_by_context(
        context, draft=draft, budget=BUDGET, passes=PASSES, repeats=2
    )
    points = found[min(found)]
    if not points:
        raise LocalspecError("the context is too small to measure in", "Raise --ctx-size.")
    store = profile_store()
    how = replace(loaded, threads=threads, draft_threads=threads)
    stored = store.save(Profile(identity_of(context, how, draft=draft), found))
    if tried:
        layers = loaded.draft_n_gpu_layers if draft else loaded.n_gpu_layers
        anyhow = identity(context, threads=ANY_THREADS, n_gpu_layers=layers, draft=draft)
        store.save(Profile(anyhow, threads=threads))
    return Tuned(name, threads, tried, points, stored, timing.spread, context.takes_back)


def _by_threads(context: Context, for_batches: int | None) -> dict[int, tuple[float, float]]:
    """Seconds of one token and of four by the number of threads."""
    most = os.cpu_count() or 1
    usual = default_threads()
    counts = sorted({n for n in (1, 2, 4, usual // 2, usual - 1, usual, most) if 1 <= n <= most})
    found = {}
    for threads in counts:
        context.use_threads(threads, for_batches)
        points = measure(context, THREAD_SIZES, budget=THREAD_BUDGET).points
        if points:
            found[threads] = points[1], points.get(4, 4 * points[1])
    return found


def _best_threads(tried: Mapping[int, tuple[float, float]], *, draft: bool) -> int:
    """The fastest count: a draft reads one token at a time, a target one or a few."""
    usual = default_threads()
    cost = {n: one if draft else one + few for n, (one, few) in tried.items()}
    if not cost:
        return usual
    best = min(cost, key=lambda n: cost[n])
    return usual if usual in cost and cost[best] > _GAIN * cost[usual] else best
