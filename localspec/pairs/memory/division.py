"""Divides a model's layers among several accelerators.

As in llama.cpp, devices share the layers in proportion to their free memory, if each has room for
its share; or in the proportions of --tensor-split. A token passes through all of them in turn.
Layers are counted from the last, which is on the last device.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import TypeAlias

from localspec.errors import UsageError
from localspec.pairs.memory.free import DEVICE_RESERVE, Device, FreeMemory
from localspec.pairs.memory.model_facts import ModelFacts
from localspec.pairs.memory.need import ModelSetup, need

_Counts: TypeAlias = tuple[int, ...]


def by_shares(
    setup: ModelSetup,
    model: ModelFacts,
    free: FreeMemory,
    parts: Sequence[float],
    *,
    asked: int | None,
) -> ModelSetup:
    """`setup` with its layers divided in these proportions; devices without one get none.

    Args:
        setup: of a target, with as many layers on devices as all of these hold together.
        model: its sizes.
        free: the memory that it may take.
        parts: the proportions, in the order of its devices.
        asked: the requested number of layers on devices, -1 for all; None for as many as leave
            every device room for its share.

    Raises:
        UsageError: there are more proportions than devices of the target, which has some.
    """
    devices = [each for each in free.devices if each.target]
    if devices and len(parts) > len(devices):
        raise UsageError(
            f"--tensor-split has {len(parts)} shares, the target may use {len(devices)} devices",
            "Run `localspec doctor`, which names them.",
        )
    layers = _counted(setup.gpu_layers, model)
    parts = (*parts, *[0.0] * len(devices))[: len(devices)]
    counts = _proportional(parts, layers)
    if asked is None:
        ladder = _Ladder.of(model, setup, len(devices))
        while not ladder.fits(counts, devices):
            layers -= 1
            counts = _proportional(parts, layers)
    return _split(setup, devices, counts, model)


def by_memory(
    setup: ModelSetup,
    model: ModelFacts,
    free: FreeMemory,
    *,
    asked: int | None,
    draft: bool = False,
) -> ModelSetup:
    """`setup` with its layers divided in proportion to each device's free memory.

    If a device lacks room for its share, all devices are filled instead, starting with the last.

    Args:
        setup: of a model, with as many layers on devices as all of these hold together; returned
            unchanged if there is one device.
        model: its sizes.
        free: the memory that it may take.
        asked: the requested number of layers on devices, -1 for all; None for as many as fit.
            Requested layers that do not fit are divided by free memory all the same.
        draft: whether this is the draft, which has its own devices.
    """
    devices = [each for each in free.devices if each.serves(draft=draft)]
    if len(devices) < 2 or not setup.gpu_layers:
        return setup
    layers = _counted(setup.gpu_layers, model)
    counts = _proportional([max(0, each.free) for each in devices], layers)
    ladder = _Ladder.of(model, setup, len(devices))
    if not ladder.fits(counts, devices):
        filled = ladder.filled(devices, layers)
        if asked is None or sum(filled) == layers:
            counts = filled
    return _split(setup, devices, counts, model)


def crowded(setup: ModelSetup, model: ModelFacts, free: FreeMemory) -> tuple[str, int, int] | None:
    """A device without room for its share: its name, and the bytes it needs and has; else None.

    Always None without shares: there is one device, or none has layers.
    """
    counts = tuple(layers for _, layers in setup.split)
    if not any(counts):
        return None
    there = {each.label: max(0, each.free) for each in free.devices}
    ladder = _Ladder.of(model, setup, sum(map(bool, counts)))
    sizes = zip(setup.split, ladder.sizes(counts), strict=True)
    found = ((label, size, there[label]) for (label, _), size in sizes)
    return next((each for each in found if each[1] > each[2]), None)


def _counted(layers: int, model: ModelFacts) -> int:
    """Resolve a number of layers on devices: the output counts as one, -1 means all."""
    whole = model.layers + 1
    return whole if layers < 0 else min(layers, whole)


def _split(
    setup: ModelSetup, devices: Sequence[Device], counts: _Counts, model: ModelFacts
) -> ModelSetup:
    split = tuple((each.label, n) for each, n in zip(devices, counts, strict=True))
    layers = -1 if sum(counts) > model.layers else sum(counts)
    return replace(setup, gpu_layers=layers, split=split)


def _proportional(parts: Sequence[float], layers: int) -> _Counts:
    """Divide `layers` among devices with these shares by llama.cpp's rule."""
    whole = sum(parts)
    if not whole:
        return tuple(0 for _ in parts)
    ends = [end / whole for end in accumulate(parts)]
    owners = [min(bisect_right(ends, i / layers), len(parts) - 1) for i in range(layers)]
    return tuple(owners.count(i) for i in range(len(parts)))


@dataclass(frozen=True, slots=True)
class _Ladder:
    """The memory of a model's layers on devices.

    Attributes:
        memory: bytes by the number of layers, counted from the last, without buffers.
        buffers: further bytes on every device that has layers.
    """

    memory: list[int]
    buffers: int

    @staticmethod
    def of(model: ModelFacts, setup: ModelSetup, devices: int) -> _Ladder:
        """Compute it for a model with `setup` whose layers are on this many devices."""
        alone = replace(setup, split=())
        needs = [need(model, replace(alone, gpu_layers=n)) for n in range(model.layers + 2)]
        split = tuple((str(number), 1) for number in range(devices))
        shared = need(model, replace(setup, gpu_layers=setup.gpu_layers or 1, split=split))
        return _Ladder(
            [each.device_weights + each.device_cache for each in needs],
            shared.device_buffers // max(1, devices),
        )

    def sizes(self, counts: _Counts) -> list[int]:
        """Bytes on each device for these numbers of layers; buffers included."""
        ends = [*accumulate(reversed(counts), initial=0)][::-1]
        memory = [self.memory[first] - self.memory[last] for first, last in pairwise(ends)]
        return [n + self.buffers if layers else 0 for n, layers in zip(memory, counts, strict=True)]

    def fits(self, counts: _Counts, devices: Sequence[Device]) -> bool:
        """Whether every device has room for its layers, its buffers and its driver."""
        sizes = zip(self.sizes(counts), devices, strict=True)
        return all(not size or size <= each.free - DEVICE_RESERVE for size, each in sizes)

    def filled(self, devices: Sequence[Device], most: int) -> _Counts:
        """As many layers as fit, at most `most`; the last device is filled first."""
        counts: list[int] = []
        first = 0
        for each in reversed(devices):
            room = self.memory[first] + each.free - DEVICE_RESERVE - self.buffers
            last = first
            while last < most and self.memory[last + 1] <= room:
                last += 1
            counts.append(last - first)
            first = last
        return tuple(reversed(counts))
