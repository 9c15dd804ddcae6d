"""Which device gets how many of a model's layers, where there are several, or workers lend theirs.

A token passes through all places one after the other: a pass takes the sum of what each place
needs for its layers, and waits for the network at every worker that has some. So the fastest place
is filled first, and a worker that costs more than it brings gets none. Where speeds are not known,
devices share the layers by what is free on each, as llama.cpp has it, if each has room for its own.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from math import inf
from typing import Final, TypeAlias

from localspec.errors import UsageError
from localspec.pairs.memory.free import DEVICE_RESERVE, Device, Free, ReadPace
from localspec.pairs.memory.need import ModelFacts, Setup, need

WORTH: Final = 0.95  # a pass has to be faster by 5 %, or memory alone decides: speeds vary
_NEAR: Final = 5e-5  # seconds of waiting that are not worth a word
# Where speeds are not known: devices are all alike, and faster than this machine's processor.
_HERE, _THERE = ReadPace(1.0), ReadPace(2.0)

_Counts: TypeAlias = tuple[int, ...]


def by_shares(
    setup: Setup, model: ModelFacts, free: Free, parts: Sequence[float], *, asked: int | None
) -> Setup:
    """`setup` with its layers divided in these proportions; devices without one get none.

    Args:
        setup: how a target runs, with as many layers on devices as all of these hold together.
        model: its sizes.
        free: what there is for it.
        parts: the proportions, in the order of its devices.
        asked: how many layers are to be on devices, -1 for all; None for as many as leave every
            device room for its own.

    Raises:
        UsageError: there are more than the target has devices, and it has some.
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
        rooms = [each.free - DEVICE_RESERVE for each in devices]
        while any(n > room for n, room in zip(ladder.sizes(counts), rooms, strict=True) if n):
            layers -= 1
            counts = _proportional(parts, layers)
    return _split(setup, devices, counts, model)


def crowded(setup: Setup, model: ModelFacts, free: Free) -> tuple[str, int, int] | None:
    """A device that does not hold its share: its name, the bytes it needs and has; None if all do.

    Without shares there is one device, or nothing on any.
    """
    counts = tuple(layers for _, layers in setup.split)
    if not any(counts):
        return None
    there = {each.label: max(0, each.free) for each in free.devices}
    ladder = _Ladder.of(model, setup, sum(map(bool, counts)))
    sizes = zip(setup.split, ladder.sizes(counts), strict=True)
    found = ((label, size, there[label]) for (label, _), size in sizes)
    return next((each for each in found if each[1] > each[2]), None)


def by_speed(
    setup: Setup,
    model: ModelFacts,
    free: Free,
    *,
    host_room: int,
    asked: int | None,
    draft: bool = False,
) -> Setup:
    """`setup` with the layers that each place gets, by memory and, where it is known, by speed.

    Args:
        setup: how a model runs, with as many layers on devices as all of these hold together. It
            stays where there is one device, the speed of which is not known.
        model: its sizes.
        free: what there is for it.
        host_room: bytes of main memory that it may take.
        asked: how many layers are to be on devices; None to choose, -1 for all.
        draft: whether it is the draft, which has devices of its own.
    """
    devices = [each for each in free.devices if each.serves(draft=draft)]
    known, fixed = _paces(free, devices), asked is not None
    if len(devices) < (1 if known else 2) or not (setup.gpu_layers or (known and not fixed)):
        return setup
    pace, paces = known or (_HERE, [_THERE] * len(devices))
    ladder = _Ladder.of(model, setup, len(devices))
    rooms = [each.free - DEVICE_RESERVE - ladder.buffers for each in devices]
    usual = _counted(setup.gpu_layers, model)
    chosen = _proportional([max(0, each.free) for each in devices], usual)
    most = WORTH * (ladder.seconds(chosen, rooms, paces) + ladder.here(usual, pace))
    ways = ladder.best(rooms, paces)
    for layers, found in enumerate(ways):
        possible = layers == usual if fixed else ladder.host[layers] <= host_room
        if found is not None and possible:
            seconds = found[0] + ladder.here(layers, pace)
            if seconds < most:
                most, chosen = seconds, found[1]
    if most == inf and not fixed:  # more than all places hold: the rest will be read from disk
        chosen = [counts for _, counts in filter(None, ways)][-1]
    return _split(setup, devices, chosen, model)


def told(setup: Setup, model: ModelFacts, free: Free) -> str:
    """What each place got and why, for people; empty where nothing was divided by speed."""
    devices = [each for each in free.devices if each.target]
    known = _paces(free, devices)
    if known is None or not setup.split:
        return ""
    split, whole = dict(setup.split), model.layers + 1
    places = [("here", whole - sum(split.values()), known[0])]
    for each, pace in zip(devices, known[1], strict=True):
        where = f"on {each.label}{each.worker and f' ({each.worker})'}"
        places.append((where, split[each.label], pace))
    listed = ", ".join(f"{n or 'none'} {where} at {_pace(pace)}" for where, n, pace in places)
    return f"{whole} layers by memory and speed: {listed}"


def _paces(free: Free, devices: Sequence[Device]) -> tuple[ReadPace, list[ReadPace]] | None:
    """How fast this machine and its devices are; None where that is not known of all."""
    paces = [each.pace for each in devices if each.pace is not None]
    return None if free.pace is None or len(paces) < len(devices) else (free.pace, paces)


def _pace(pace: ReadPace) -> str:
    """How fast a place is, and how far away."""
    far = f" and {1000 * pace.wait:.1f} ms away" if pace.wait > _NEAR else ""
    return f"{pace.speed / 1e9:.3g} GB/s{far}"


def _counted(layers: int, model: ModelFacts) -> int:
    """A number of layers on devices as it is; the output is one of them, -1 means all."""
    whole = model.layers + 1
    return whole if layers < 0 else min(layers, whole)


def _split(setup: Setup, devices: Sequence[Device], counts: _Counts, model: ModelFacts) -> Setup:
    split = tuple((each.label, n) for each, n in zip(devices, counts, strict=True))
    layers = -1 if sum(counts) > model.layers else sum(counts)
    return replace(setup, gpu_layers=layers, split=split)


def _proportional(parts: Sequence[float], layers: int) -> _Counts:
    """How many of `layers` devices with these shares get, by llama.cpp's rule."""
    whole = sum(parts)
    if not whole:
        return tuple(0 for _ in parts)
    ends = [end / whole for end in accumulate(parts)]
    owners = [min(bisect_right(ends, i / layers), len(parts) - 1) for i in range(layers)]
    return tuple(owners.count(i) for i in range(len(parts)))


@dataclass(frozen=True, slots=True)
class _Ladder:
    """A target's sizes by the number of layers, counted from the last, that devices have.

    Attributes:
        weights, memory: bytes on devices; of the weights, which a pass reads, and of all but
            buffers.
        host: bytes that remain in main memory.
        buffers: bytes besides, on every device that has layers.
    """

    weights: list[int]
    memory: list[int]
    host: list[int]
    buffers: int

    @staticmethod
    def of(model: ModelFacts, setup: Setup, devices: int) -> _Ladder:
        """Of a model set up so, if as many devices as given here share the layers."""
        alone = replace(setup, split=())
        needs = [need(model, replace(alone, gpu_layers=n)) for n in range(model.layers + 2)]
        split = tuple((str(number), 1) for number in range(devices))
        shared = need(model, replace(setup, gpu_layers=setup.gpu_layers or 1, split=split))
        return _Ladder(
            [each.device_weights for each in needs],
            [each.device_weights + each.device_cache for each in needs],
            [each.host for each in needs],
            shared.device_buffers // max(1, devices),
        )

    def here(self, layers: int, pace: ReadPace) -> float:
        """Seconds of a pass on this machine's processor, where devices have so many layers."""
        return (self.weights[-1] - self.weights[layers]) / pace.speed

    def sizes(self, counts: _Counts) -> list[int]:
        """Bytes on each of the devices that have so many layers each, with their buffers."""
        ends = [*accumulate(reversed(counts), initial=0)][::-1]
        memory = [self.memory[first] - self.memory[last] for first, last in pairwise(ends)]
        return [n + self.buffers if layers else 0 for n, layers in zip(memory, counts, strict=True)]

    def seconds(self, counts: _Counts, rooms: Sequence[int], paces: Sequence[ReadPace]) -> float:
        """Of a pass on devices that have so many layers each; infinite where one is too small."""
        sum_, end = 0.0, sum(counts)
        for taken, room, pace in zip(counts, rooms, paces, strict=True):
            sum_ += self._part(end, end - taken, room, pace)
            end -= taken
        return sum_

    def best(
        self, rooms: Sequence[int], paces: Sequence[ReadPace]
    ) -> list[tuple[float, _Counts] | None]:
        """For every number of layers the fastest way to put them on the devices, in this order.

        Returns:
            By that number: seconds of a pass, and the layers of each; None where they have no room.
        """
        table: list[tuple[float, _Counts] | None] = [(0.0, ()), *[None] * (len(self.memory) - 1)]
        for room, pace in zip(reversed(rooms), reversed(paces), strict=True):
            table = [self._longer(table, layers, room, pace) for layers in range(len(table))]
        return table

    def _longer(
        self, table: Sequence[tuple[float, _Counts] | None], layers: int, room: int, pace: ReadPace
    ) -> tuple[float, _Counts] | None:
        """The fastest way with one device more, ahead of those of `table`."""
        found = []
        for taken in range(layers + 1):
            if (part := self._part(layers, layers - taken, room, pace)) == inf:
                break
            if (rest := table[layers - taken]) is not None:
                found.append((part + rest[0], (taken, *rest[1])))
        return min(found, default=None)

    def _part(self, first: int, last: int, room: int, pace: ReadPace) -> float:
        """Seconds of the layers from the first to the last, counted from the end, on a device."""
        if first == last:
            return 0.0
        if self.memory[first] - self.memory[last] > room:
            return inf
        return pace.wait + (self.weights[first] - self.weights[last]) / pace.speed
