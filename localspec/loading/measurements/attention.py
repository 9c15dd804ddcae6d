"""Chooses flash attention or not, whichever is faster here; measured once per model and stored.

llama.cpp uses flash attention by default. On many processors it slows down passes over several
tokens as soon as there is some context. Both kinds are timed after copies of scratch tokens, in
their own contexts; the choice applies to everything loaded with the target. If a device computes,
the default stays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any

from localspec.engine.cancel import Cancel
from localspec.engine.length.cost import Points
from localspec.engine.length.profile import Profile, ProfileStore, fill, measure, of_file
from localspec.engine.llama import (
    Context,
    ContextOptions,
    Model,
    default_threads,
    kernels,
    machine,
    too_busy,
)
from localspec.limits import FLASH_ATTENTION
from localspec.pairs.memory.need import ModelSetup

QUICK, THOROUGH = 2.4, 100.0
"""Seconds for both kinds together: before a first prompt, and for a command that measures."""

# Tokens, or nearly the whole context: from here on the times of both grow linearly. A difference
# below `_GAIN` here is smaller everywhere before. 512 tokens were too few: a loss of 11 % at 900
# tokens showed as only 4 % there, and the slower kind stayed.
_DEPTH = 1536
_LEAST_DEPTH = 256  # llama.cpp computes this many cells at once: below, both look alike
_READ = 32  # scratch tokens to decode, then copied up to the depth
_SIZES = (1, 4)  # tokens of a baseline pass, and of one that verifies a usual draft
_TURNS = 3  # in turns, and the least time counts: a disturbance hits both
_FEW = 2  # turns that show nothing on a busy machine
_GAIN = 0.95  # the other kind must be 5 % faster, or llama.cpp's default stays

_WAYS = ("on", "off")
_MODEL = ("machine", "build", "file_bytes", "header_sha256", "n_gpu_layers", "cache")


@dataclass(frozen=True, slots=True)
class AttentionTiming:
    """The outcome of a measurement.

    Attributes:
        flash: whether flash attention is faster.
        depth: tokens of context at which both were timed.
        gain: time of the slower kind over that of the faster one.
    """

    flash: bool
    depth: int
    gain: float

    @property
    def option(self) -> str:
        """Its value for `--flash-attn`."""
        return "on" if self.flash else "off"

    def __str__(self) -> str:
        """The choice and its gain in one line, for people."""
        how = "with" if self.flash else "without"
        return f"{how} flash attention: {self.gain:.2f}× as fast at {self.depth} tokens"


def key(target: Path, setup: ModelSetup, threads: int | None) -> dict[str, Any]:
    """What a choice depends on: the model, its setup, and the requested threads.

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
    """The stored choice, if any."""
    both = {way: store.load({**known, "attention": way}) for way in _WAYS}
    times = {
        way: found.measured for way, found in both.items() if found and len(found.measured) == 1
    }
    if len(times) < len(_WAYS) or len({tuple(table) for table in times.values()}) > 1:
        return None
    ((depth, on),), ((_, off),) = (times[way].items() for way in _WAYS)
    slower = sum(on.values()) / sum(off.values())
    flash = slower * _GAIN <= 1
    return AttentionTiming(flash, depth, 1 / slower if flash else slower)


def measured_here(store: ProfileStore) -> list[AttentionTiming]:
    """The choices of all models measured with this machine and llama.cpp."""
    return _matching({"machine": machine(), "build": kernels()}, store)


def at_any_context(known: Mapping[str, Any], store: ProfileStore) -> list[AttentionTiming]:
    """The choices of the model in `known`, the key of a measurement, with the usual threads."""
    same = {name: known[name] for name in _MODEL if name in known}
    return _matching({**same, "threads": 0}, store)


def _matching(known: Mapping[str, Any], store: ProfileStore) -> list[AttentionTiming]:
    first = store.matching({**known, "use": "attention", "attention": _WAYS[0]})
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
    """The faster kind, measured unless it is known and `seconds` are few.

    Args:
        model: the target.
        how: its context options.
        known: `key` of both.
        store: where measurements are kept.
        seconds: `QUICK` or `THOROUGH`.
        repeatable: also measure on a busy machine, so that the next run decides alike.
        cancel: stops it.
        announce: called before measuring.

    Returns:
        None if the machine is too slow or too busy to measure, or tokens cannot be rolled back. A
        busy machine is measured all the same if `seconds` is `THOROUGH` and nothing is stored.

    Raises:
        Cancelled: `cancel` was set.
        OutOfMemory: the small contexts for measuring do not fit.
    """
    before, threads = stored(known, store), known["threads"] or default_threads()
    if before is not None and (seconds < THOROUGH or too_busy(threads)):
        return before
    if seconds < THOROUGH and not repeatable and too_busy(threads):
        return None
    announce()
    ways = {way: replace(how, flash_attention=FLASH_ATTENTION[way]) for way in _WAYS}
    found = in_turns(model, ways, known["depth"], _SIZES, seconds=seconds, cancel=cancel)
    for way, (depth, points) in found.items():
        store.save(Profile({**known, "attention": way}, {depth: points}))
    return stored(known, store) if found else before


def in_turns(
    model: Model,
    ways: Mapping[str, ContextOptions],
    depth: int,
    sizes: Sequence[int],
    *,
    seconds: float,
    cancel: Cancel,
) -> dict[str, tuple[int, Points]]:
    """Time passes of several sizes for each of several ways to run a model, in turns.

    Args:
        model: the model.
        ways: context options by name; each gets a small context of its own.
        depth: tokens of context to measure at.
        sizes: tokens of the passes.
        seconds: time after which no pass begins.
        cancel: stops it.

    Returns:
        The depth and the times of each way; empty if that took too long.

    Raises:
        Cancelled: `cancel` was set.
        OutOfMemory: the contexts do not fit.
    """
    if depth < _LEAST_DEPTH:
        return {}
    until = perf_counter() + seconds
    size = depth + 2 * _READ
    with ExitStack() as closing:
        contexts = {
            way: closing.enter_context(
                Context(model, replace(how, n_ctx=size, snapshots=0, copies=True), cancel)
            )
            for way, how in ways.items()
        }
        able = all(context.can_truncate for context in contexts.values())
        if not (able and all(_filled(context, depth, until) for context in contexts.values())):
            return {}
        turns: list[dict[str, Points]] = []
        while len(turns) < _TURNS and perf_counter() < until:
            turn: dict[str, Points] = {
                way: measure(context, sizes, budget=until - perf_counter()).points
                for way, context in contexts.items()
            }
            # A turn in which the program was suspended lacks the time of the pass that was running.
            if all(points.keys() >= {*sizes} for points in turn.values()):
                turns.append(turn)
    if len(turns) < _FEW:
        return {}
    return {way: (depth, {n: min(turn[way][n] for turn in turns) for n in sizes}) for way in ways}


def _filled(context: Context, depth: int, until: float) -> bool:
    """Fill `depth` cells of the cache, by decoding if need be; return whether it met `until`."""
    return fill(context, _READ, until=until) and (
        context.repeat(depth) or fill(context, depth, until=until)
    )
