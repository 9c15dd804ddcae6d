"""Stores the costs of the tests' models beforehand, so that no program that loads one measures.

On a machine that runs tests on every core a measurement is not trusted and not stored, so it would
be made again, for seconds, by each of a hundred processes that load a model.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Final

from localspec.engine.length.cost import Points
from localspec.engine.length.profile import Profile, identity
from localspec.engine.llama import (
    Context,
    ContextOptions,
    Model,
    default_threads,
    kernels,
    machine,
)
from localspec.loading.measurements import attention
from localspec.loading.measurements.measured_costs import profile_store
from localspec.pairs.disk import starter
from localspec.pairs.disk.starter import StarterForm
from localspec.pairs.memory.need import ModelSetup
from tests.support import toy

# Seconds by tokens in one decode, of a machine that reads weights more slowly than it computes.
_TARGET: Final = {1: 2.0e-3, 2: 2.2e-3, 4: 2.7e-3, 8: 4.0e-3, 16: 7.0e-3, 32: 13e-3, 64: 25e-3}
_DRAFT: Final = {1: 0.20e-3, 2: 0.24e-3, 4: 0.29e-3, 8: 0.48e-3, 16: 0.75e-3, 64: 2.3e-3}
_STARTER: Final = {n: 4 * seconds for n, seconds in _TARGET.items()}

_CONTEXTS: Final = (256, 512, 1024, 2048, 4096)
_FLASH: Final[tuple[dict[str, str], ...]] = ({}, {"flash_attn": "on"}, {"flash_attn": "off"})


def keep_toy() -> None:
    """Store the toy pair's costs in ``LOCALSPEC_CACHE``, for one thread and for all cores."""
    _keep(toy.TARGET, _TARGET)
    _keep(toy.DRAFT, _DRAFT, draft=True)


def keep_draft(step: float, path: Path = toy.DRAFT) -> None:
    """Store the seconds that a draft takes for a token."""
    _keep(path, {n: step / _DRAFT[1] * seconds for n, seconds in _DRAFT.items()}, draft=True)


def keep_target(points: Points, path: Path = toy.TARGET) -> None:
    """Store the costs of a target, by default the toy's."""
    _keep(path, points)


def keep_starter(path: Path) -> None:
    """Store the starter's costs, and that it answers from its own file: no process converts it."""
    _keep(path, _STARTER)
    starter.remember(StarterForm(machine(), kernels(), copy_bytes=0))


def _keep(path: Path, points: Points, *, draft: bool = False) -> None:
    store = profile_store()
    with (
        Model.load(path, n_gpu_layers=0) as model,
        Context(model, ContextOptions(n_ctx=64, threads=1)) as context,
    ):
        for threads, more in itertools.product({1, default_threads()}, _FLASH):
            known = identity(context, threads=threads, draft=draft)
            store.save(Profile(known | more, {0: points}, spread=0.0))
    if draft:
        return
    for asked, n_ctx in itertools.product((1, None), _CONTEXTS):
        known = attention.key(path, ModelSetup(n_ctx=n_ctx), asked)
        for way in ("on", "off"):  # equally fast: llama.cpp's default stays
            store.save(Profile({**known, "attention": way}, {known["depth"]: {1: 2e-3, 4: 3e-3}}))
