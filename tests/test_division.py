"""Layers of a target on several places: what scripted speeds and memory give, against all ways."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import pytest

from localspec.errors import OutOfMemory, UsageError
from localspec.pairs.memory import division
from localspec.pairs.memory.free import DEVICE_RESERVE, Device, Free, ReadPace
from localspec.pairs.memory.need import ModelFacts, Need, Setup, need
from localspec.pairs.memory.placement import PROGRAM, MemoryPlan, Wishes, plan
from tests.test_memory_plan import model

GB = 10**9
LAYER = need(model(), Setup(n_ctx=4096, gpu_layers=-1)).device / 33  # bytes, roughly, in all


def lent(number: int, layers: float, speed: float | None = 10.0, wait: float = 0.0) -> Device:
    """A worker with room for so many layers, that reads so many GB a second."""
    return Device(
        DEVICE_RESERVE + 2 * GB // 10 + round(layers * LAYER),
        label=f"RPC{number}",
        worker=f"10.0.0.{number}:50052",
        pace=None if speed is None else ReadPace(speed * GB, wait),
    )


def planned(free: Free, **wishes: object) -> MemoryPlan:
    return plan(model(), None, free, Wishes(n_ctx=4096, **wishes))  # type: ignore[arg-type]


def layers(found: MemoryPlan) -> list[int]:
    """What is here, and what each device has."""
    lent = [n for _, n in found.target.split]
    return [33 - sum(lent), *lent]


# Little memory here: all has to be lent.
SMALL = Free(ram=3 * GB, pace=ReadPace(12 * GB))
LARGE = Free(ram=20 * GB, pace=ReadPace(12 * GB))


def test_a_slow_worker_gets_what_the_fast_one_has_no_room_for() -> None:
    found = planned(replace(SMALL, devices=(lent(0, 26, 2.0), lent(1, 26, 20.0))))
    here, slow, fast = layers(found)
    assert fast >= 24
    assert 0 <= slow <= 9 - here
    other = planned(replace(SMALL, devices=(lent(0, 26, 20.0), lent(1, 26, 2.0))))
    assert layers(other)[1] >= 24


def test_workers_that_are_alike_share_by_memory() -> None:
    """A few per cent of speed are no reason: they vary."""
    free = replace(LARGE, pace=ReadPace(4 * GB), devices=(lent(0, 40, 10.0), lent(1, 20, 10.2)))
    here, first, second = layers(planned(free))
    assert here == 0
    assert first > second > 8
    assert first + second == 33


def test_where_memory_leaves_no_choice_speed_has_no_say() -> None:
    devices = (lent(0, 17, 1.0), lent(1, 17, 20.0))
    _, slow, fast = layers(planned(replace(SMALL, devices=devices), gpu_layers=-1))
    assert (slow + fast, slow >= 16, fast >= 16) == (33, True, True)


def test_a_worker_that_only_slows_down_gets_none_and_that_is_told() -> None:
    found = planned(replace(LARGE, devices=(lent(0, 40, 3.0, 0.0104),)))
    assert layers(found) == [33, 0]
    assert found.target.gpu_layers == 0
    assert found.device == 0
    assert found.divided == (
        "33 layers by memory and speed: 33 here at 12 GB/s, none on RPC0 (10.0.0.0:50052) at"
        " 3 GB/s and 10.4 ms away"
    )
    assert found.gave_up == ()


def test_a_fast_worker_gets_all_and_its_distance_counts() -> None:
    near = planned(replace(LARGE, devices=(lent(0, 40, 100.0, 0.001),)))
    assert (layers(near), near.target.gpu_layers) == ([0, 33], -1)
    far = planned(replace(LARGE, devices=(lent(0, 40, 100.0, 0.5),)))
    assert layers(far) == [33, 0]
    # Of two that are alike the second would only be one more to wait for.
    two = planned(replace(LARGE, devices=(lent(0, 40, 100.0, 0.05), lent(1, 40, 100.0, 0.05))))
    assert sorted(layers(two)) == [0, 0, 33]


def test_layers_that_were_asked_for_are_lent_however_slow() -> None:
    free = replace(LARGE, devices=(lent(0, 40, 1.0), lent(1, 40, 2.0)))
    assert layers(planned(free, gpu_layers=-1)) == [0, 0, 33]
    assert layers(planned(free, gpu_layers=10)) == [23, 0, 10]
    assert planned(free, gpu_layers=0).target.split == ()


def test_without_every_speed_memory_alone_decides() -> None:
    found = planned(replace(LARGE, devices=(lent(0, 40, 1.0), lent(1, 40, None))))
    assert (layers(found), found.target.gpu_layers, found.divided) == ([0, 17, 16], -1, "")
    found = planned(Free(ram=20 * GB, devices=(lent(0, 40, 1.0),)))
    assert (found.target.split, found.target.gpu_layers) == ((), -1)


def test_a_small_device_beside_a_large_one_gets_no_more_than_it_has_room_for() -> None:
    """In proportion to what is free it would get three or four layers: without its buffers."""
    found = planned(Free(20 * GB, (lent(0, 40, None), lent(1, 1.5, None))))
    assert layers(found) == [0, 33, 0]
    assert (found.target.gpu_layers, found.gave_up) == (-1, ())
    found = planned(Free(20 * GB, (lent(0, 24, None), lent(1, 2, None))))
    assert layers(found) == [7, 25, 1]
    assert found.gave_up == ("26 of 33 layers of the target on the accelerator",)
    with pytest.raises(OutOfMemory, match=r"the target's layers asked for need .* on RPC1, .* are"):
        planned(found.free, gpu_layers=-1)


def test_a_draft_goes_where_it_has_room() -> None:
    draft = replace(model(layers=16), other_weights=0, output_weights=0)
    large, small = (replace(lent(i, n, None), target=False) for i, n in enumerate((20, 1)))

    def drafted(*devices: Device, asked: int | None = None) -> MemoryPlan:
        wishes = Wishes(n_ctx=4096, draft_gpu_layers=asked)
        return plan(model(), draft, Free(40 * GB, devices), wishes)

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


def test_proportions_that_were_asked_for_overrule_speed() -> None:
    devices = (lent(0, 40, 1.0), lent(1, 40, 20.0))
    free = replace(LARGE, devices=devices)
    assert layers(planned(free, split=(3.0, 1.0)))[1:] == [25, 8]
    assert layers(planned(free, split=(1.0,)))[1:] == [33, 0]
    assert planned(replace(LARGE, devices=()), split=(1.0,)).target.split == ()
    with pytest.raises(UsageError, match="has 3 shares, the target may use 2 devices"):
        planned(free, split=(1.0, 1.0, 1.0))


def test_of_an_open_number_of_layers_every_device_has_room_for_its_share() -> None:
    """What all hold together is no measure: the smaller one is to get a third of it here."""
    found = planned(replace(LARGE, pace=None, devices=(lent(0, 40), lent(1, 4))), split=(2.0, 1.0))
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
    wishes = Wishes(n_ctx=4096, split=(1.0, 1.0), gpu_layers=-1, draft_gpu_layers=-1)
    assert layers(plan(model(), draft, free, wishes))[1:] == [17, 16]
    free = replace(free, devices=(lent(0, 24), replace(lent(1, 60), draft=False)))
    with pytest.raises(OutOfMemory, match=r"target's layers asked for need .* on RPC0"):
        plan(model(), draft, free, wishes)
    open_ = plan(model(), draft, free, replace(wishes, gpu_layers=None))
    assert 7 <= layers(open_)[1] <= 10
    assert layers(plan(model(), None, free, replace(wishes, gpu_layers=None)))[1] == 17


def test_where_all_places_are_too_small_together_the_rest_is_read_from_disk() -> None:
    free = Free(GB, (lent(0, 3, 5.0), lent(1, 1.5, 1.0)), pace=ReadPace(12 * GB))
    found = planned(free)
    assert found.from_disk > GB
    assert layers(found)[1:] == [3, 1]


def test_the_draft_has_its_room_first() -> None:
    """Main memory that the draft takes holds no layers of the target."""
    draft = replace(model(layers=16), other_weights=0, output_weights=0)
    whole = planned(replace(LARGE, devices=())).host
    free = Free(whole + PROGRAM + GB, (lent(0, 40, 3.0),), pace=ReadPace(12 * GB))
    wishes = Wishes(n_ctx=4096, draft_gpu_layers=0)
    assert layers(plan(model(), None, free, wishes)) == [33, 0]
    found = plan(model(), draft, free, wishes)
    assert found.fits
    assert layers(found)[1] > 0


def test_what_is_left_is_counted_where_the_layers_went() -> None:
    free = replace(LARGE, devices=(lent(0, 40, 3.0), lent(1, 40, 100.0)))
    found = planned(free)
    assert layers(found) == [0, 0, 33]
    left = [before.free - after.free for before, after in
            zip(free.devices, found.left.devices, strict=True)]  # fmt: skip
    assert left == [0, found.device]


def _sizes(small: ModelFacts) -> list[Need]:
    """By the number of layers on devices."""
    return [need(small, Setup(n_ctx=1024, gpu_layers=n)) for n in range(small.layers + 2)]


def _held(sizes: list[Need], first: int, last: int) -> int:
    """Bytes of the layers from the first to the last, counted from the end, on a device."""
    held = sizes[first].device_weights + sizes[first].device_cache
    return held - sizes[last].device_weights - sizes[last].device_cache


def _buffers(small: ModelFacts, devices: tuple[Device, ...], layers: int = -1) -> int:
    """Bytes besides on each of the devices, which together have room for so many layers."""
    split = tuple((each.label, 1) for each in devices)
    shared = need(small, Setup(n_ctx=1024, gpu_layers=layers or 1, split=split))
    return shared.device_buffers // len(devices)


def _together(small: ModelFacts, devices: tuple[Device, ...]) -> int:
    """How many layers there is room for in what all devices have, as if they were one."""
    room = DEVICE_RESERVE + sum(max(0, each.free - DEVICE_RESERVE) for each in devices)
    return plan(small, None, Free(20 * GB, (Device(room),)), Wishes(n_ctx=1024)).target.gpu_layers


def _all_ways(small: ModelFacts, free: Free, layers: int = -1) -> dict[tuple[int, ...], float]:
    """Every division that has room, and the seconds of a pass: counted from the definition."""
    found, buffers = {}, DEVICE_RESERVE + _buffers(small, free.devices, layers)
    paces = [free.pace, *(each.pace for each in free.devices)]
    sizes = _sizes(small)
    for counts in itertools.product(range(small.layers + 2), repeat=len(free.devices)):
        if sum(counts) > small.layers + 1 or sizes[sum(counts)].host + PROGRAM > free.ram:
            continue
        ends = [sum(counts[i:]) for i in range(len(counts) + 1)]
        seconds = (sizes[-1].device_weights - sizes[ends[0]].device_weights) / free.pace.speed
        for i, (each, pace) in enumerate(zip(free.devices, paces[1:], strict=True)):
            if counts[i] and _held(sizes, ends[i], ends[i + 1]) + buffers > each.free:
                break
            read = sizes[ends[i]].device_weights - sizes[ends[i + 1]].device_weights
            seconds += read / pace.speed + pace.wait if counts[i] else 0
        else:
            found[counts] = seconds
    return found


def _machine(rng: random.Random) -> tuple[ModelFacts, tuple[Device, ...]]:
    """A model of six layers that differ, and one to three devices."""
    layers = tuple(rng.randrange(50, 400) * 10**6 for _ in range(6))
    return replace(model(layers=6), layer_weights=layers), tuple(
        Device(
            DEVICE_RESERVE + 200_000_000 + rng.randrange(0, 2 * GB),
            label=f"RPC{i}",
            pace=ReadPace(rng.uniform(1, 40) * GB, rng.choice((0, 0.001, 0.05))),
        )
        for i in range(rng.randrange(1, 4))
    )


def test_no_share_that_has_room_is_larger() -> None:
    """Against every number of layers, for 300 machines; shared as llama.cpp does it."""
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
        free = Free(20 * GB, devices)
        chosen = plan(small, None, free, Wishes(n_ctx=1024, split=tuple(parts))).target
        assert tuple(n for _, n in chosen.split) == fitting[-1]
        found.append(sum(fitting[-1]))
    assert {*found} == {*range(8)}


def test_without_speeds_no_division_that_has_room_lends_more() -> None:
    """Against every one there is, for 300 machines; llama.cpp's own wherever that has room."""
    rng, own_has_none = random.Random(7), 0
    for _ in range(300):
        small, devices = _machine(rng)
        free = Free(20 * GB, tuple(replace(each, pace=None) for each in devices))
        together = _together(small, devices)
        ways = _all_ways(small, replace(free, pace=ReadPace(GB), devices=devices), together)
        most = max(map(sum, ways))
        found = plan(small, None, free, Wishes(n_ctx=1024)).target
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


def test_no_division_that_has_room_is_faster() -> None:
    """Against every one there is, for 300 machines; within the 5 % that are no reason."""
    rng, differs = random.Random(20261124), 0
    for _ in range(300):
        small, devices = _machine(rng)
        pace = ReadPace(rng.uniform(1, 40) * GB)
        free = Free(rng.randrange(1 * GB, 5 * GB), devices, pace=pace)
        ways = _all_ways(small, free)
        setup = Setup(n_ctx=1024, gpu_layers=-1)
        room = free.ram - PROGRAM
        found = division.by_speed(setup, small, free, host_room=room, asked=None)
        counts = tuple(n for _, n in found.split)
        if ways:
            assert counts in ways
            assert ways[counts] * division.WORTH <= min(ways.values()) * (1 + 1e-9)
            differs += len(ways) > 1 and ways[counts] < max(ways.values()) / 2
    assert differs > 50
