"""With flash attention or without: whichever is faster here, measured once for a model and kept.

llama.cpp's flash attention, its default, makes a pass over several tokens slow on many processors
as soon as there is some context. Both ways are timed behind copies of scratch tokens, in contexts
of their own; the choice holds for everything that is loaded with the target. Where a device
computes, the default stays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any

from localspec.engine.cancel import Cancel
from localspec.engine.length.cost import Points
from localspec.engine.length.profile import Profile, ProfileStore, fill, measure, of_file
from localspec.engine.llama import (
    LOOK_S,
    Context,
    ContextOptions,
    Model,
    bearable,
    build,
    busy_cores,
    default_threads,
    machine,
)
from localspec.pairs.memory.need import ModelSetup

QUICK, THOROUGH = 2.4, 100.0
"""Seconds that both ways together may take: before a first prompt, and where somebody waits."""

# Tokens, or nearly the whole context: behind more both ways grow on in a straight line. Where they
# differ by less than `_GAIN` there, they differ by less everywhere before; behind 512 one that lost
# 11 % behind 900 tokens lost 4 %, and stayed.
_DEPTH = 1536
_LEAST_DEPTH = 256  # llama.cpp computes so many cells at once: behind fewer both look alike
_READ = 32  # scratch tokens that are read, and copied up to the depth
_SIZES = (1, 4)  # tokens of a plain pass and of one that verifies a usual draft
_TURNS = 3  # turn by turn, and the least time counts: a disturbance hits both ways
_FEW = 2  # turns tell nothing on a busy machine
_GAIN = 0.95  # the other way has to be faster by 5 %, or llama.cpp's default stays

_WAYS = {"on": True, "off": False}


@dataclass(frozen=True, slots=True)
class AttentionTiming:
    """What was found out.

    Attributes:
        flash: whether flash attention is faster.
        depth: tokens of context behind which that was measured.
        gain: how many times as fast that way is as the other.
    """

    flash: bool
    depth: int
    gain: float

    @property
    def option(self) -> str:
        """What `--flash-attn` calls it."""
        return "on" if self.flash else "off"

    def __str__(self) -> str:
        """A line for people, with what it gains."""
        how = "with" if self.flash else "without"
        return f"{how} flash attention: {self.gain:.2f}x as fast behind {self.depth} tokens"


def key(target: Path, setup: ModelSetup, threads: int | None) -> dict[str, Any]:
    """What a choice holds for: the model, how it is going to run, the threads asked for.

    Raises:
        OSError: the file cannot be read.
    """
    return {
        **of_file(target, draft=False),
        "use": "attention",
        "threads": threads or 0,
        "n_gpu_layers": setup.gpu_layers,
        "cache": [setup.cache_k, setup.cache_v],
        "depth": min(_DEPTH, setup.n_ctx - _READ),
    }


def stored(known: Mapping[str, Any], store: ProfileStore) -> AttentionTiming | None:
    """The choice that was measured before."""
    both = {way: store.load({**known, "attention": way}) for way in _WAYS}
    times = {way: found.measured for way, found in both.items() if found is not None}
    if len(times) < len(_WAYS) or len({tuple(table) for table in times.values()}) > 1:
        return None
    ((depth, on),), ((_, off),) = (times[way].items() for way in _WAYS)
    slower = sum(on.values()) / sum(off.values())
    flash = slower * _GAIN <= 1
    return AttentionTiming(flash, depth, 1 / slower if flash else slower)


def measured_here(store: ProfileStore) -> list[AttentionTiming]:
    """The choices of all models that were measured with this machine and llama.cpp."""
    known = {"use": "attention", "machine": machine(), "build": build()}
    first = store.matching({**known, "attention": next(iter(_WAYS))})
    found = (stored(one.identity, store) for one in first)
    return [choice for choice in found if choice is not None]


def choose(
    model: Model,
    how: ContextOptions,
    known: Mapping[str, Any],
    *,
    store: ProfileStore,
    seconds: float,
    repeatable: bool,
    cancel: Cancel,
    announce: Callable[[], None],
) -> AttentionTiming | None:
    """The faster way, measured unless it is known and `seconds` are few.

    Args:
        model: the target.
        how: it is going to run.
        known: `key` of both.
        store: where measurements are kept.
        seconds: `QUICK` or `THOROUGH`.
        repeatable: measure a busy machine too: the next run has to decide by the same.
        cancel: stops it.
        announce: called before measuring.

    Returns:
        None where that does not do, on a slow machine or a busy one, or nothing can be taken back.
        A busy one is asked where somebody waits and nothing is known.

    Raises:
        Cancelled: `cancel` was set.
        OutOfMemory: there is no room for the small contexts that are measured in.
    """
    before = stored(known, store)
    if before is not None and (seconds < THOROUGH or _busy(known)):
        return before
    if seconds < THOROUGH and not repeatable and _busy(known):
        return None
    announce()
    found = _compared(model, replace(how, snapshots=0), known["depth"], seconds, cancel)
    for way, (depth, points) in found.items():
        store.save(Profile({**known, "attention": way}, {depth: points}))
    return stored(known, store) if found else before


def _busy(known: Mapping[str, Any]) -> bool:
    return busy_cores(LOOK_S) > bearable(known["threads"] or default_threads())


def _compared(
    model: Model, how: ContextOptions, depth: int, seconds: float, cancel: Cancel
) -> dict[str, tuple[int, Points]]:
    """By way of attention the depth and the points; empty where it takes too long."""
    if depth < _LEAST_DEPTH:
        return {}
    until = perf_counter() + seconds
    small = replace(how, n_ctx=depth + 2 * _READ, copies=True)
    with ExitStack() as closing:
        contexts = {
            way: closing.enter_context(Context(model, replace(small, flash_attention=on), cancel))
            for way, on in _WAYS.items()
        }
        able = all(context.can_truncate for context in contexts.values())
        if not (able and all(_filled(context, depth, until) for context in contexts.values())):
            return {}
        turns: list[dict[str, Points]] = []
        while len(turns) < _TURNS and perf_counter() < until:
            turn = {way: _points(context, until) for way, context in contexts.items()}
            # One in which the program was stopped has no time for the pass that was going on.
            if all(points.keys() >= {*_SIZES} for points in turn.values()):
                turns.append(turn)
    if len(turns) < _FEW:
        return {}
    return {way: (depth, {n: min(turn[way][n] for turn in turns) for n in _SIZES}) for way in _WAYS}


def _filled(context: Context, depth: int, until: float) -> bool:
    """Fill so much of the cache, by reading if need be; whether that was done in time."""
    return fill(context, _READ, until=until) and (
        context.repeat(depth) or fill(context, depth, until=until)
    )


def _points(context: Context, until: float) -> Points:
    return measure(context, _SIZES, budget=until - perf_counter()).points
