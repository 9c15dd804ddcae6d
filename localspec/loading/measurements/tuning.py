"""Measures a pair's models on this machine, finds their best thread counts, and stores both."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from typing import Any

from localspec.chat.session.pair import LoadedPair
from localspec.engine.cancel import Cancel
from localspec.engine.length.cost import ByContext, Curve
from localspec.engine.length.profile import (
    Profile,
    ProfileStore,
    Timing,
    identity,
    measure,
    measure_by_context,
)
from localspec.engine.llama import (
    Context,
    ContextOptions,
    build,
    busy_cores,
    default_threads,
    machine,
    most_threads,
    too_busy,
)
from localspec.errors import LocalspecError, OutOfMemory
from localspec.limits import FLASH_ATTENTION
from localspec.loading.load import check, load_session
from localspec.loading.load_request import LoadRequest
from localspec.loading.measurements import exactness, exactness_cost
from localspec.loading.measurements.expected_speed import choices, draft_step
from localspec.loading.measurements.measured_costs import (
    ANY_THREADS,
    chosen_threads,
    identity_of,
    profile_store,
)
from localspec.loading.model_loader import Progress
from localspec.loading.results import ExactnessCost, TunedModel, TunedPair
from localspec.pairs.memory.need import ModelSetup

CALM_S = 20.0  # seconds to wait for a quiet machine
_CALM, _LOOK = 0.3, 0.5  # cores that others may keep busy then, and seconds to measure that
BUDGET = 18.0  # seconds to measure a model's curves
PASSES = 72
THREAD_BUDGET = 1.5  # seconds for one thread count
THREAD_SIZES = (1, 4, 1, 4, 1, 4, 1, 4)
SHOWN = 17  # tokens of the longest decode that is reported
_GAIN = 0.97  # another thread count must be 3 % faster, or the usual one stays


def tune(
    options: LoadRequest, *, progress: Progress, warn: Callable[[str], None], cancel: Cancel
) -> TunedPair:
    """Load what `options` ask for, measure it, and store the result.

    `warn` is called with notices about the models.

    Raises:
        LocalspecError: as `load_session`; a model cannot be measured.
        Cancelled: `cancel` was set.
    """
    # Fail before waiting for a quiet machine; measure what is asked for, whatever it is worth.
    checked = check(replace(options, draft_anyway=True))
    wait_for_calm(progress, cancel)
    loading = load_session(checked, progress=progress, cancel=cancel, thorough=True)
    with closing(loading) as session:
        for notice in session.notices:
            warn(notice)
        pair = session.pair
        found = []
        for context in (pair.target, pair.draft):
            if context is not None:
                context.watch(cancel)
                progress(f"Measuring {context.model.path.name}", None)
                found.append(_tuned(context, checked.request, pair, progress, cancel))
        target, draft = found[0], found[1] if len(found) > 1 else None
        exact, cost = _exactness(checked.request, pair, pair.target.threads.most, progress, cancel)
        return TunedPair(
            name=pair.name,
            machine=machine(),
            build=build(),
            target=target,
            draft=draft,
            draft_step_s=draft_step(Curve(draft.points), pair.block) if draft else None,
            draft_note=session.speculation_note,
            choices=choices(
                {0: target.points}, {0: draft.points}, pair.target.max_rollback, block=pair.block
            )
            if draft
            else (),
            exact=exact,
            exact_cost=cost,
        )


def _exactness(
    request: LoadRequest, pair: LoadedPair, threads: int, progress: Progress, cancel: Cancel
) -> tuple[int | None, ExactnessCost | None]:
    """How long passes may be with `--exact`, and what it costs next to the usual `threads`.

    None if that is unknown: settings were asked for, so that there are no usual ones, or the
    machine was always busy.
    """
    if request.exact or not exactness_cost.comparable(request):
        return None, None
    model, how = pair.target.model, pair.loaded
    options = exactness.settled(replace(request, exact=True, device=how.device, rpc=how.rpc))
    setup = ModelSetup(
        n_ctx=2 * exactness.DEPTH,
        cache_k=how.cache_type_k,
        cache_v=how.cache_type_v,
        gpu_layers=how.n_gpu_layers,
        split=tuple((how.tensor_split or {}).items()),
        cpu_moe=how.n_cpu_moe,
    )
    usual = ContextOptions(
        n_ctx=setup.n_ctx,
        threads=threads,
        flash_attention=FLASH_ATTENTION[how.flash_attn],
        cache_k=setup.cache_k,
        cache_v=setup.cache_v,
    )
    known = exactness.key(model.path, setup, options, from_disk=how.from_disk)
    store = profile_store()
    trial = replace(
        usual, flash_attention=True, threads=options.threads, threads_batch=options.threads_batch
    )
    if not too_busy(threads):
        with suppress(OutOfMemory):  # the pair fills a card: what is stored already has to do
            progress("Comparing passes bit by bit", None)
            with Context(model, trial, cancel) as context:
                longest = exactness.longest(context, known, store=store, announce=lambda: None)
            if longest > 1:
                progress("Timing passes with and without --exact", None)
                exactness_cost.compare(model, usual, trial, known, store=store, cancel=cancel)
    return exactness.stored(known, store), exactness_cost.stored(known, store)


def wait_for_calm(progress: Progress, cancel: Cancel) -> float:
    """Wait up to `CALM_S` seconds until other programs leave the cores alone.

    Returns:
        How many cores they still keep busy; 0 if they leave them alone.

    Raises:
        Cancelled: `cancel` was set.
    """
    until = time.monotonic() + CALM_S
    while (others := busy_cores(_LOOK)) > _CALM and time.monotonic() < until:
        cancel.check()
        busy = f"Other programs keep {others:.1f} cores busy"
        progress(f"{busy}: waiting {CALM_S:.0f} s at most", None)
    return others if others > _CALM else 0.0


def _tuned(
    context: Context, options: LoadRequest, pair: LoadedPair, progress: Progress, cancel: Cancel
) -> TunedModel:
    """Measure one model of a pair with its best thread count; store reliable results.

    Raises:
        LocalspecError: the model cannot be measured.
        Cancelled: `cancel` was set.
    """
    name, draft = context.model.path.name, context is pair.draft
    if not context.can_truncate:
        raise LocalspecError(
            f"{name} cannot take back decoded tokens: nothing to tune",
            "Models of this architecture run without speculation.",
        )
    store = profile_store()
    asked = options.asked_threads(draft=draft)
    tried = {} if asked else _by_threads(context, options.threads_batch)
    usual = chosen_threads(context, asked, draft=draft, store=store)
    threads = _best_threads(tried, draft=draft) if tried else usual
    context.threads.use(threads, options.threads_batch)
    found, timing = _measured(context, progress, cancel, draft=draft)
    points = found[min(found)]
    if not points:
        raise LocalspecError("the context is too small to measure in", "Raise --ctx-size.")
    known = partial(identity_of, context, pair.loaded, draft=draft)
    new = Profile(known(), found, spread=timing.spread, onset=timing.warmup)
    busy = too_busy(context.threads.widest)
    noisy = busy or not timing.steady
    kept = None
    if noisy:  # keep the present thread count
        tried = {}
        context.threads.use(usual, options.threads_batch)
        kept = _well_known(store, known())
    elif tried:
        store.save(Profile(identity(context, threads=ANY_THREADS, draft=draft), threads=threads))
    if kept is not None:
        threads, points = usual, dict(kept.measured[min(kept.measured)])
    return TunedModel(
        name=name,
        threads=threads,
        by_threads=tried,
        points=points,
        curve=tuple(Curve(points).times(SHOWN)[1:]),
        stored=not noisy and store.save(new),
        spread=timing.spread,
        kept=kept is not None,
        busy=busy,
        noisy=noisy,
    )


def _well_known(store: ProfileStore, known: Mapping[str, Any]) -> Profile | None:
    """The stored profile, if its measurement was not disturbed."""
    before = store.load(known)
    return before if before is not None and before.steady else None


def _measured(
    context: Context, progress: Progress, cancel: Cancel, *, draft: bool
) -> tuple[ByContext, Timing]:
    """Time a model, twice if something disturbed it; return the steadier result.

    Raises:
        Cancelled: `cancel` was set.
    """
    timed = partial(
        measure_by_context, context, draft=draft, budget=BUDGET, passes=PASSES, repeats=2
    )
    first = timed()
    if first[1].steady:
        return first
    wait_for_calm(progress, cancel)
    progress(f"Measuring {context.model.path.name} once more: timings varied", None)
    again = timed()
    return min(first, again, key=lambda found: found[1].spread)


def _by_threads(context: Context, for_batches: int | None) -> dict[int, tuple[float, float]]:
    """Seconds of one token and of four, by thread count.

    Empty while other programs run: fewer threads would win, but only until those end.
    """
    most = most_threads()
    usual = default_threads()
    counts = sorted({n for n in (1, 2, 4, usual // 2, usual - 1, usual, most) if 1 <= n <= most})
    found: dict[int, tuple[float, float]] = {}
    if too_busy(usual):
        return found
    for threads in counts:
        context.threads.use(threads, for_batches)
        points = measure(context, THREAD_SIZES, budget=THREAD_BUDGET).points
        if points:
            found[threads] = points[1], points.get(4, 4 * points[1])
    return {} if too_busy(usual) else found


def _best_threads(tried: Mapping[int, tuple[float, float]], *, draft: bool) -> int:
    """The fastest count: a draft decodes one token at a time, a target one or a few."""
    usual = default_threads()
    cost = {n: one if draft else one + few for n, (one, few) in tried.items()}
    if not cost:
        return usual
    best = min(cost, key=lambda n: cost[n])
    return usual if usual in cost and cost[best] > _GAIN * cost[usual] else best
