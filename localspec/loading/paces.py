"""How fast workers and this machine read weights: measured once for each, and kept.

Only where a worker may get layers: each device that may, and this machine's processor, is timed
with weights of the type that a target has most of (`engine/llama/pace.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from localspec.engine.length.profile import Profile
from localspec.engine.llama import (
    LOOK_S,
    RPC,
    add_workers,
    bearable,
    build,
    busy_cores,
    devices,
    machine,
    time_reading,
)
from localspec.errors import EngineError, OutOfMemory
from localspec.loading.measuring import profile_store
from localspec.machine import available
from localspec.pairs.gguf.header import GGML_TYPES, GgufHeader
from localspec.pairs.memory.free import Free, ReadPace

USUAL: Final = "Q8_0"
"""The type that speeds are told for where no target is named."""

_NUMBERS: Final = {name: number for number, (name, *_) in GGML_TYPES.items()}


def with_paces(free: Free, target: GgufHeader, threads: int) -> Free:
    """`free` with the speeds of all places where layers may go, if a worker is among them.

    Args:
        free: what there is.
        target: the header of the model that is to be loaded.
        threads: that compute here.
    """
    if not any(each.target and each.worker for each in free.devices):
        return free
    keeper = _PaceKeeper(most_of(target), threads)
    labels = [each.label for each in free.devices if each.target]
    paces = keeper.of_devices(lambda label: label in labels)
    return replace(
        free,
        devices=tuple(replace(each, pace=paces.get(each.label)) for each in free.devices),
        pace=keeper.here(free.ram),
    )


def measured_anew(workers: Sequence[str], threads: int) -> dict[str, ReadPace]:
    """The speed of every worker's devices and of this machine's processor, kept for later loads.

    Args:
        workers: that answered, HOST:PORT; their devices become known.
        threads: that compute here.

    Returns:
        With weights of the `USUAL` type, by llama.cpp's name of a device and the worker's address;
        this machine's by an empty text.
    """
    add_workers(workers)
    names = {each.label: f"{each.label} {each.name}" for each in devices()}
    found: dict[str, ReadPace | None] = {}
    for kind in (*_kinds_kept() - {USUAL}, USUAL):
        keeper = _PaceKeeper(kind, threads, anew=True)
        theirs = keeper.of_devices(lambda label: label.startswith(RPC))
        found = {"": keeper.here(available())} | {names[label]: it for label, it in theirs.items()}
    return {name: pace for name, pace in found.items() if pace is not None}


def _kinds_kept() -> set[str]:
    """Types of weights that were timed here before: what is kept of them may have changed, too."""
    return {one.identity["kind"] for one in profile_store().matching({"use": "pace"})} & {*_NUMBERS}


def most_of(header: GgufHeader) -> str:
    """The type that most bytes of a model are of."""
    found: Counter[str] = Counter({USUAL: 0})
    for tensor in header.tensors:
        found[tensor.type] += tensor.n_bytes
    return found.most_common(1)[0][0]


@dataclass(frozen=True, slots=True)
class _PaceKeeper:
    """How fast places read weights, as measured before or now.

    What is measured while other programs keep this machine busy holds for this load alone.

    Attributes:
        kind: ggml's name of the weights' type.
        threads: that compute on this machine's processor.
        anew: measure, whatever was kept.
    """

    kind: str
    threads: int
    anew: bool = False

    def here(self, free: int) -> ReadPace | None:
        """Of this machine's processor, where so many bytes are free; None without room."""
        found = self._pace({"threads": self.threads}, "", free)
        return found and ReadPace(found.speed)  # threads that begin are no network

    def of_devices(self, wanted: Callable[[str], bool]) -> dict[str, ReadPace | None]:
        """Of all devices with a wanted name, by that; None without room.

        They are known again by what they are: llama.cpp counts workers on from load to load.
        """
        found: dict[str, ReadPace | None] = {}
        seen: Counter[str] = Counter()
        for each in devices():
            seen[each.name] += 1
            if wanted(each.label):
                place = {"place": f"{each.name}, number {seen[each.name]}"}
                found[each.label] = self._pace(place, each.label, each.free)
        return found

    def _pace(self, place: dict[str, Any], label: str, free: int) -> ReadPace | None:
        store, number = profile_store(), _NUMBERS[self.kind]
        known = {"machine": machine(), "build": build(), "use": "pace", "kind": self.kind, **place}
        found = None if self.anew else store.load(known)
        if found is None:
            try:
                points = time_reading(label, number, free=free, threads=self.threads)
            except (OutOfMemory, EngineError):
                return None
            found = Profile(known, {0: points})
            if busy_cores(LOOK_S) <= bearable(self.threads):
                store.save(found)
        first, *others = sorted(found.measured[0].items())
        (few, wait), (many, seconds) = first, others[-1] if others else first
        # Where many bytes took no longer than few, nothing was told of the speed.
        return ReadPace((many - few) / (seconds - wait), wait) if seconds > wait else None
