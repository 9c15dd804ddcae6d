"""Tests whether passes over several tokens give the bits of single-token passes; stores it.

llama.cpp uses different kernels for different batch sizes, and most round differently. Which ones
depends on the type of the weights, the processor and the build, so every size is tried. Drafts
whose passes stay within the equal sizes change no bit of what the target computes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from localspec.chat.session.pair import LoadedAdapter
from localspec.engine.length.profile import Profile, ProfileStore, fill, of_file, scratch
from localspec.engine.llama import Context, default_threads, too_busy
from localspec.errors import UsageError
from localspec.limits import MAX_BATCH_OUTPUTS
from localspec.loading.load_request import LoadRequest
from localspec.loading.measurements.measured_costs import where
from localspec.pairs.memory.need import ModelSetup

_MOST = 16  # tokens of a pass; longer ones take long to try and few rounds need them
_SECONDS = 10.0  # time in which a further size may be tried

DEPTH = 288
"""Tokens of context: beyond 256 cells, several threads share the attention of a single token."""


def settled(options: LoadRequest) -> LoadRequest:
    """Fill in the settings that `exact` implies, unless the user set others.

    A single token gets one thread, as several would split its attention. They do not split that of
    several tokens, so prompts and passes over drafts may use all threads.

    Raises:
        UsageError: flash attention is off; without it, batch sizes round differently.
    """
    if not options.exact:
        return options
    if options.flash_attn == "off":
        raise UsageError("--exact needs flash attention", "Leave --flash-attn off out.")
    several = options.threads_batch or options.threads or default_threads()
    return replace(options, flash_attn="on", threads=options.threads or 1, threads_batch=several)


def key(
    target: Path,
    setup: ModelSetup,
    options: LoadRequest,
    adapters: Sequence[LoadedAdapter] = (),
    *,
    from_disk: bool,
) -> dict[str, Any]:
    """What a trial depends on.

    Args:
        target: its first file.
        setup: of the target.
        options: those of `settled`.
        adapters: of the target.
        from_disk: whether weights stay on disk, so that kernels for other layouts multiply them.

    Raises:
        OSError: the file cannot be read.
    """
    depth = _depth(setup.n_ctx)
    return {
        **of_file(target, draft=False),
        "use": "exact",
        "threads": [options.threads, options.threads_batch],
        "n_gpu_layers": setup.gpu_layers,
        "cache": [setup.cache_k, setup.cache_v],
        **where(options.device, dict(setup.split), options.split_mode, options.rpc),
        **({"held": True} if (options.threads or 1) > 1 else {}),  # once a busy machine used fewer
        **({"depth": depth} if depth < DEPTH else {}),
        **({"from_disk": True} if from_disk else {}),
        **({"n_cpu_moe": setup.cpu_moe} if setup.cpu_moe else {}),
        **({"lora": [[each.sha256, each.scale] for each in adapters]} if adapters else {}),
    }


def stored(known: Mapping[str, Any], store: ProfileStore) -> int | None:
    """The stored result of `longest`, if any."""
    found = store.load(known)
    tried = [n for points in found.measured.values() for n in points] if found else []
    return max(tried, default=None)


def longest(
    target: Context,
    known: Mapping[str, Any],
    *,
    store: ProfileStore,
    announce: Callable[[], None],
) -> int:
    """The size up to which all passes give the bits of single ones, in tokens; 1 if two differ.

    Args:
        target: its cache must be empty, and is empty afterwards.
        known: `key` of it.
        store: where the result is kept.
        announce: called before trying.

    Raises:
        Cancelled: the target's watched flag was set.
    """
    before = stored(known, store)
    if before is not None or not target.can_truncate:
        return before or 1
    announce()
    depth = _depth(target.n_ctx)
    target.threads.hold(target.threads.most > 1)  # fewer would not share a token's attention
    try:
        fill(target, depth)
        times, in_time = _alike(target)
    finally:
        target.truncate(0)
    if in_time or not too_busy(target.threads.widest):
        store.save(Profile(known, {depth: times}))  # a calm machine may have time for longer passes
    return max(times)


def _depth(n_ctx: int) -> int:
    """Tokens of context at which passes are compared; fewer than `DEPTH` where few fit."""
    return min(DEPTH, n_ctx - _MOST)


def rows(exact: int | None) -> int:
    """The most tokens of a pass: the sizes found equal, or no limit if not even two are."""
    return exact if exact is not None and exact > 1 else MAX_BATCH_OUTPUTS


def _alike(target: Context) -> tuple[dict[int, float], bool]:
    """The batch sizes that give equal bits, from 1 on without a gap, and their seconds.

    Size 1 is always included, even if a device gives different bits every time.

    Returns:
        the seconds by size, and whether there was time to try the next size.
    """
    depth, tokens = len(target.tokens), scratch(target, _MOST)
    until = perf_counter() + _SECONDS
    singles: list[NDArray[np.float32]] = []
    times: dict[int, float] = {}
    target.mark()
    for n in range(1, _MOST + 1):
        singles.append(target.decode([tokens[n - 1]], 1)[0].copy())
        target.truncate(depth)
        started = perf_counter()
        several = target.decode(tokens[:n], n)  # the next single token continues from there
        seconds = perf_counter() - started
        if times and started > until:
            return times, False
        if times and not np.array_equal(several, singles):
            break
        times[n] = seconds
    return times, True
