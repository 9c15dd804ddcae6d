"""What `--exact` costs here; `tune` times decoding with and without its settings, and stores both.

Where it costs next to nothing, the plan chooses it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from localspec.engine.cancel import Cancel
from localspec.engine.length.cost import Curve, Points
from localspec.engine.length.profile import Profile, ProfileStore
from localspec.engine.length.stopping import gamma_for
from localspec.engine.llama import ContextOptions, Model
from localspec.limits import MAX_BATCH_OUTPUTS
from localspec.loading.load_request import LoadRequest
from localspec.loading.measurements import exactness
from localspec.loading.measurements.attention import at_any_context, in_turns
from localspec.loading.results import ExactnessCost
from localspec.pairs.memory.placement import MemoryPlan

_SIZES: Final = (1, 2, 4, 8)  # tokens of the passes that are timed
_SECONDS: Final = 20.0
_COPIED: Final = 0.9  # chance that a copied token is accepted
_COPY: Final = MAX_BATCH_OUTPUTS  # the longest pass over a copy, beyond those that are timed
_USUAL, _EXACT = "usual", "exact"


def compare(
    model: Model,
    usual: ContextOptions,
    exact: ContextOptions,
    known: Mapping[str, Any],
    *,
    store: ProfileStore,
    cancel: Cancel,
) -> None:
    """Time passes with the usual settings and with those of `--exact`, in turns, and store both.

    Args:
        model: the target.
        usual: its context options without `--exact`.
        exact: the same with it.
        known: `exactness.key` of both.
        store: where the times are kept.
        cancel: stops it.

    Raises:
        Cancelled: `cancel` was set.
        OutOfMemory: the small contexts for measuring do not fit.
    """
    ways = {_USUAL: usual, _EXACT: exact}
    found = in_turns(model, ways, exactness.DEPTH, _SIZES, seconds=_SECONDS, cancel=cancel)
    for way, (depth, points) in found.items():
        store.save(Profile({**known, "manner": way}, {depth: points}))


def stored(known: Mapping[str, Any], store: ProfileStore) -> ExactnessCost | None:
    """The stored cost; None if it was not timed, or if passes of two sizes give other bits."""
    longest = exactness.stored(known, store) or 1
    both = [store.load({**known, "manner": way}) for way in (_USUAL, _EXACT)]
    tables = [next(iter(one.measured.values()), {}) for one in both if one is not None]
    if longest < 2 or len(tables) < len(both) or any(1 not in points for points in tables):
        return None
    usual, exact = tables
    baseline = 1 - usual[1] / exact[1]
    copying = 1 - _copying(exact, min(longest, _COPY)) / _copying(usual, _COPY)
    deeper = not all(choice.flash for choice in at_any_context(known, store))
    return ExactnessCost(max(0.0, baseline), max(0.0, copying), deeper=deeper)


def _copying(points: Points, longest: int) -> float:
    """Tokens per second where text is copied, in passes of up to `longest` tokens."""
    times = Curve(points).times(longest)
    return gamma_for(_COPIED, times, 0.0)[1] / times[1]


def comparable(request: LoadRequest) -> bool:
    """Whether `tune` compares `--exact` with the usual settings: the user chose no others."""
    chosen = request.threads or request.threads_batch or request.flash_attn != "auto"
    return not (chosen or request.lora)


def chosen(
    request: LoadRequest, target: Path, plan: MemoryPlan, store: ProfileStore
) -> LoadRequest:
    """`request` with the settings of `--exact` if these are free and the user chose nothing else.

    Raises:
        OSError: the file cannot be read.
    """
    if request.exact is not None or not comparable(request):
        return request
    options = exactness.settled(replace(request, exact=True))
    known = exactness.key(target, plan.target, options, from_disk=bool(plan.from_disk))
    cost = stored(known, store)
    return options if cost is not None and cost.free else request
