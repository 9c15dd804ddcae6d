"""Layers of a target on several devices: what scripted memory gives, against all divisions."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import pytest

from localspec.errors import OutOfMemory, UsageError
from localspec.pairs.memory.free import DEVICE_RESERVE, Device, FreeMemory
from localspec.pairs.memory.model_facts import ModelFacts
from localspec.pairs.memory.need import MemoryNeed, ModelSetup, need
from localspec.pairs.memory.placement import MemoryPlan, UserLimits, plan
from tests.test_memory_plan import model

GB = 10**9
LAYER = need(model(), ModelSetup(n_ctx=4096, gpu_layers=-1)).device / 33  # bytes, roughly, in all


def lent(number: int, layers: float) -> Device:
    """A worker with room for this many layers."""
    return Device(
        DEVICE_RESERVE + 2 * GB // 10 + round(layers * LAYER),
        label=f"RPC{number}",
        worker=f"10.0.0.{number}:50052",
    )


def planned(free: FreeMemory, **limits: object) -> MemoryPlan:
    return plan(model(), [], free, UserLimits(n_ctx=4096, **limits))  # type: ignore[arg-type]


def layers(found: MemoryPlan) -> list[int]:
    """What is here, and what each device has."""
    lent = [n for _, n in found.target.split]
    return [33 - sum(lent), *lent]


LARGE = FreeMemory(ram=20 * GB)


def test_workers_share_by_memory() -> None:
    here, first, second = layers(planned(replace(LARGE, devices=(lent(0, 40), lent(1, 20)))))
    assert here == 0
    assert first > second > 8
    assert first + second == 33


def test_a_worker_alone_gets_all_that_it_has_room_for() -> None:
    found = planned(replace(LARGE, devices=(lent(0, 40),)))
    assert (found.target.split, found.target.gpu_layers) == ((), -1)
    found = planned(replace(LARGE, devices=(lent(0, 10),)))
    assert (found.target.split, 8 <= found.target.gpu_layers <= 10) == ((), True)


def test_layers_that_were_asked_for_are_lent() -> None:
    free = replace(LARGE, devices=(lent(0, 40), lent(1, 40)))
    assert layers(planned(free, gpu_layers=-1)) == [0, 17, 16]
    assert layers(planned(free, gpu_layers=10)) == [23, 5, 5]
    assert planned(free, gpu_layers=0).target.split == ()


def test_a_small_device_beside_a_large_one_gets_no_more_than_it_has_room_for() -> None:
    """In proportion to free memory it would get three or four, without room for its buffers."""
    found = planned(FreeMemory(20 * GB, (lent(0, 40), lent(1, 1.5))))
    assert layers(found) == [0, 33, 0]
    assert (found.target.gpu_layers, found.gave_up) == (-1, ())
    found = planned(FreeMemory(20 * GB, (lent(0, 24), lent(1, 2))))
    assert layers(found) == [7, 25, 1]
    assert found.gave_up == ("26 of 33 layers of the target on the accelerator",)
    with pytest.raises(OutOfMemory, match=r"the target's layers asked for need .* on RPC1, .* are"):
        planned(found.free, gpu_layers=-1)


def test_a_draft_goes_where_it_has_room() -> None:
    draft = replace(model(layers=16), other_weights=0, output_weights=0)
    large, small = (replace(lent(i, n), target=False) for i, n in enumerate((20, 1)))

    def drafted(*devices: Device, asked: int | None = None) -> MemoryPlan:
        limits = UserLimits(n_ctx=4096, draft_gpu_layers=asked)
        return plan(model(), [draft], FreeMemory(40 * GB, devices), limits)

    alike = drafted(large, replace(large, label="RPC1")).draft
    assert alike is not None
    assert dict(alike.split) == {"RPC0": 9, "RPC1": 8}
    found = drafted(large, small)
    assert found.draft is not None
    assert dict(found.draft.split) == {"RPC0": 15, "RPC1": 2}  # in proportion it would be three
    assert found.left.devices[1].free < small.free
    narrow = replace(large, free=large.free - round(12 * LAYER))
    both = drafted(narrow, small).draft
    assert both is not None
    assert both.gpu_layers == 0
    with pytest.raises(OutOfMemory, match=r"the draft's layers asked for need"):
        drafted(narrow, small, asked=-1)


def test_proportions_that_were_asked_for_overrule_memory() -> None:
    free = replace(LARGE, devices=(lent(0, 40), lent(1, 40)))
    assert layers(planned(free, split=(3.0, 1.0)))[1:] == [25, 8]
    assert layers(planned(free, split=(1.0,)))[1:] == [33, 0]
    assert planned(replace(LARGE, devices=()), split=(1.0,)).target.split == ()
    with pytest.raises(UsageError, match="has 3 shares, the target may use 2 devices"):
        planned(free, split=(1.0, 1.0, 1.0))


def test_of_an_open_number_of_layers_every_device_has_room_for_its_share() -> None:
    """The total room does not decide: the smaller device is to hold a third of the layers."""
    found = planned(replace(LARGE, devices=(lent(0, 40), lent(1, 4))), split=(2.0, 1.0))
    here, large, small = layers(found)
    assert (small, large, here) == (3, 8, 22)  # the output is one of the three
    assert found.gave_up == ("11 of 33 layers of the target on the accelerator, shared by"
                             " --tensor-split",)  # fmt: skip
    found = planned(replace(LARGE, devices=(lent(0, 40), lent(1, 0))), split=(2.0, 1.0))
    assert layers(found)[1:] == [2, 0]  # of three the second one has one
    assert planned(replace(LARGE, devices=(lent(0, 0),)), split=(1.0,)).device == 0


def test_a_device_too_small_for_the_share_that_was_asked_for_is_named() -> None:
    free = replace(LARGE, devices=(lent(0, 40), lent(1, 4)))
    with pytest.raises(OutOfMemory, match=r"^the target's layers asked for need 1\.8\d GB on RPC1,"
                       r" 1\.2\d GB are free there$") as refused:  # fmt: skip
        planned(free, split=(2.0, 1.0), gpu_layers=-1)
    assert refused.value.remedy == "Leave --n-gpu-layers out, or lower it."
    assert layers(planned(free, split=(2.0, 1.0), gpu_layers=9))[1:] == [6, 3]
    assert layers(planned(free, split=(20.0, 1.0), gpu_layers=-1))[1:] == [32, 1]


def test_the_draft_leaves_less_for_a_share() -> None:
    draft = replace(model(layers=16), other_weights=0, output_weights=0)
    free = replace(LARGE, devices=(lent(0, 60), replace(lent(1, 24), draft=False)))
    limits = UserLimits(n_ctx=4096, split=(1.0, 1.0), gpu_layers=-1, draft_gpu_layers=-1)
    assert layers(plan(model(), [draft], free, limits))[1:] == [17, 16]
    free = replace(free, devices=(lent(0, 24), replace(lent(1, 60), draft=False)))
    with pytest.raises(OutOfMemory, match=r"target's layers asked for need .* on RPC0"):
        plan(model(), [draft], free, limits)
    open_ = plan(model(), [draft], free, replace(limits, gpu_layers=None))
    assert 7 <= layers(open_)[1] <= 10
    assert layers(plan(model(), [], free, replace(limits, gpu_layers=None)))[1] == 17


def test_where_all_places_are_too_small_together_the_rest_is_read_from_disk() -> None:
    free = FreeMemory(GB, (lent(0, 3), lent(1, 1.5)))
    found = planned(free)
    assert found.from_disk > GB
    assert layers(found)[1:] == [3, 1]


def _sizes(small: ModelFacts) -> list[MemoryNeed]:
    """The memory needs, indexed by the number of layers on devices."""
    return [need(small, ModelSetup(n_ctx=1024, gpu_layers=n)) for n in range(small.layers + 2)]


def _held(sizes: list[MemoryNeed], first: int, last: int) -> int:
    """Bytes on a device of the layers from `last` to `first`, both counted from the last layer."""
    held = sizes[first].device_weights + sizes[first].device_cache
    return held - sizes[last].device_weights - sizes[last].device_cache


def _buffers(small: ModelFacts, devices: tuple[Device, ...], layers: int = -1) -> int:
    """Bytes of buffers on each device when the devices together hold `layers` layers."""
    split = tuple((each.label, 1) for each in devices)
    shared = need(small, ModelSetup(n_ctx=1024, gpu_layers=layers or 1, split=split))
    return shared.device_buffers // len(devices)


def _together(small: ModelFacts, devices: tuple[Device, ...]) -> int:
    """How many layers would fit into the memory of all devices if it were one device's."""
    room = DEVICE_RESERVE + sum(max(0, each.free - DEVICE_RESERVE) for each in devices)
    return plan(
        small, [], FreeMemory(20 * GB, (Device(room),)), UserLimits(n_ctx=1024)
    ).target.gpu_layers


def _all_ways(small: ModelFacts, free: FreeMemory, layers: int = -1) -> set[tuple[int, ...]]:
    """Every division that fits, found by trying all of them."""
    found, buffers = set(), DEVICE_RESERVE + _buffers(small, free.devices, layers)
    sizes = _sizes(small)
    for counts in itertools.product(range(small.layers + 2), repeat=len(free.devices)):
        ends = [sum(counts[i:]) for i in range(len(counts) + 1)]
        if ends[0] <= small.layers + 1 and not any(
            counts[i] and _held(sizes, ends[i], ends[i + 1]) + buffers > each.free
            for i, each in enumerate(free.devices)
        ):
            found.add(counts)
    return found


def _machine(rng: random.Random) -> tuple[ModelFacts, tuple[Device, ...]]:
    """A model of six layers that differ, and one to three devices."""
    layers = tuple(rng.randrange(50, 400) * 10**6 for _ in range(6))
    return replace(model(layers=6), layer_weights=layers), tuple(
        Device(
            DEVICE_RESERVE + 200_000_000 + rng.randrange(0, 2 * GB),
            label=f"RPC{i}",
        )
        for i in range(rng.randrange(1, 4))
    )


def test_no_share_that_has_room_is_larger() -> None:
    """Every number of layers is tried, for 300 machines, and shared as llama.cpp does it."""
    rng, found = random.Random(23), []
    for _ in range(300):
        small, devices = _machine(rng)
        sizes, parts = _sizes(small), [rng.randrange(1, 5) for _ in devices]
        buffers = DEVICE_RESERVE + _buffers(small, devices, _together(small, devices))
        ends = [sum(parts[: i + 1]) / sum(parts) for i in range(len(parts))]
        fitting = []
        for n in range(8):
            owners = [next(i for i, end in enumerate(ends) if layer / n < end)
                      for layer in range(n)]  # fmt: skip
            counts = tuple(map(owners.count, range(len(devices))))
            after = [sum(counts[i:]) for i in range(len(counts) + 1)]
            if not any(counts[i] and _held(sizes, after[i], after[i + 1]) + buffers > each.free
                       for i, each in enumerate(devices)):  # fmt: skip
                fitting.append(counts)
        free = FreeMemory(20 * GB, devices)
        chosen = plan(small, [], free, UserLimits(n_ctx=1024, split=tuple(parts))).target
        assert tuple(n for _, n in chosen.split) == fitting[-1]
        found.append(sum(fitting[-1]))
    assert {*found} == {*range(8)}


def test_no_division_that_has_room_lends_more() -> None:
    """Every division is tried, for 300 machines; llama.cpp's own is taken wherever it fits."""
    rng, own_has_none = random.Random(7), 0
    for _ in range(300):
        small, devices = _machine(rng)
        free = FreeMemory(20 * GB, devices)
        together = _together(small, devices)
        ways = _all_ways(small, free, together)
        most = max(map(sum, ways))
        found = plan(small, [], free, UserLimits(n_ctx=1024)).target
        counts = tuple(n for _, n in found.split)
        if len(devices) == 1:
            assert (counts, found.gpu_layers % 8) == ((), most)
            continue
        assert sum(counts) == most
        assert not any(counts) or counts in ways
        whole = sum(each.free for each in devices)
        ends = [sum(each.free for each in devices[: i + 1]) / whole for i in range(len(devices))]
        owners = [next(i for i, end in enumerate(ends) if n / most < end) for n in range(most)]
        own = tuple(map(owners.count, range(len(devices))))
        own_has_none += together % 8 > most or own not in ways
        assert counts == own or together % 8 > most or own not in ways
    assert own_has_none > 20
