"""The memory plan: sizes from headers are those that llama.cpp takes, and every choice fits."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from localspec import formats
from localspec.chat.events import TurnEnd
from localspec.chat.session.session import Session
from localspec.cli.shared_options import shared_options
from localspec.cli.subcommands import cli
from localspec.engine.cancel import Cancel
from localspec.engine.llama import Context, ContextOptions, Model
from localspec.engine.record.stats import DeviceMemory
from localspec.errors import OutOfMemory, UsageError
from localspec.loading import model_loader, planning
from localspec.loading.load import check, load_session
from localspec.loading.load_request import LoadRequest
from localspec.pairs.gguf import header as gguf
from localspec.pairs.hub.retries import RetryPolicy
from localspec.pairs.memory.free import DEVICE_RESERVE, Device, FreeMemory
from localspec.pairs.memory.model_facts import ModelFacts, draft_facts, facts
from localspec.pairs.memory.need import ModelSetup, need
from localspec.pairs.memory.outlook import outlook_for, unread
from localspec.pairs.memory.placement import DEFAULT_CTX, PROGRAM, MemoryPlan, UserLimits, plan
from localspec.pairs.names import catalogue
from localspec.pairs.names.reserved_names import STARTER
from localspec.pairs.report import describe
from localspec.pairs.report.examine import examine

from .support import gguf_models, ggufs, heads
from .support.any_model import OWN, write_any

GB = 10**9
CARD = DeviceMemory("a card", GB, GB, label="CUDA0")


def assert_close(path: Path, setup: ModelSetup) -> None:
    """The plan is within 5 % or 8 MB of what llama.cpp reports."""
    planned = need(facts(gguf.read_header(path)), setup)
    options = ContextOptions(
        n_ctx=setup.n_ctx,
        threads=1,
        flash_attention=setup.flash,
        snapshots=setup.snapshots,
        cache_k=setup.cache_k,
        cache_v=setup.cache_v,
    )
    with Model.load(path) as model, Context(model, options) as context:
        used = model.weights_bytes + context.cache_bytes + context.buffer_bytes
        assert abs(planned.total - used) <= max(8_000_000, 0.05 * used), (planned, used)
        assert planned.host_cache == pytest.approx(context.cache_bytes, rel=0.01, abs=40_000)
        assert planned.host_weights == pytest.approx(model.weights_bytes, rel=0.02)


@pytest.mark.parametrize("n_ctx", [300, 8192])
@pytest.mark.parametrize("flash", [True, False])
def test_the_toy_takes_what_was_planned(
    toy_target: Path, toy_draft: Path, n_ctx: int, flash: bool
) -> None:
    for path in (toy_target, toy_draft):
        assert_close(path, ModelSetup(n_ctx=n_ctx, flash=flash))


@pytest.mark.parametrize("kind", gguf_models.ARCHITECTURES)
def test_every_architecture_takes_what_was_planned(tmp_path: Path, kind: str) -> None:
    path = gguf_models.GENERATORS[kind](tmp_path / "it.gguf")
    for snapshots in (0, 8):
        assert_close(path, ModelSetup(n_ctx=8192, snapshots=snapshots))


@pytest.mark.few(1)
@pytest.mark.parametrize("architecture", sorted({*OWN, "grok"}))
def test_any_architecture_takes_what_was_planned(tmp_path: Path, architecture: str) -> None:
    path = write_any(tmp_path / "it.gguf", architecture, layers=4)
    for n_ctx in (2048, 8192):
        assert_close(path, ModelSetup(n_ctx=n_ctx))


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ["glm5-next", "hy_v4", "deepseek4", "qwen4exp"])
def test_sparse_attention_is_planned_without_flash_attention_too(
    tmp_path: Path, architecture: str
) -> None:
    path = write_any(tmp_path / "it.gguf", architecture, layers=4)
    assert_close(path, ModelSetup(n_ctx=8192, flash=False))


@pytest.mark.parametrize("cache", ["f32", "bf16", "q8_0", "q4_0", "iq4_nl", "q5_1"])
def test_every_cache_type_takes_what_was_planned(toy_target: Path, cache: str) -> None:
    assert_close(toy_target, ModelSetup(n_ctx=4096, cache_k=cache, cache_v=cache))


@pytest.mark.parametrize("values", ["f32", "q4_0"])
def test_what_flash_attention_converts_is_planned(toy_draft: Path, values: str) -> None:
    assert_close(toy_draft, ModelSetup(n_ctx=32768, cache_k="f32", cache_v=values))


@pytest.mark.slow
def test_a_small_model_with_a_large_vocabulary_takes_what_was_planned(tmp_path: Path) -> None:
    vocabulary = gguf_models.vocabulary_of(150_000)
    sizes = gguf_models.Sizes(n_embd=256)
    path = gguf_models.write_llama(tmp_path / "it.gguf", vocabulary, sizes, seed=0, type="q8_0")
    assert_close(path, ModelSetup(n_ctx=1024))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["f16", "q8_0"])
def test_a_larger_model_takes_what_was_planned(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "large.gguf"
    gguf_models.write_random_llama(path, n_layer=10, n_embd=512, type=kind)
    assert_close(path, ModelSetup(n_ctx=4096))


# --- choosing ---------------------------------------------------------------------------------


def model(layers: int = 32, layer_bytes: int = 130_000_000, width: int = 4096) -> ModelFacts:
    """A model of about 4.5 GB with a cache of 131 kB a token."""
    return ModelFacts(
        architecture="llama",
        trained=32768,
        vocab=128_000,
        width=width,
        heads=32,
        layer_weights=(layer_bytes,) * layers,
        other_weights=600_000_000,
        output_weights=300_000_000,
        kv_widths=((1024, 1024),) * layers,
        state=(0, 0),
        widest=4 * width + 3 * 14_000,
        masks=1,
    )


SMALL = replace(
    model(layers=16, layer_bytes=20_000_000, width=1024),
    kv_widths=((512, 512),) * 16,
    other_weights=200_000_000,
)


def chosen(
    free: FreeMemory, limits: UserLimits | None = None, drafts: Sequence[ModelFacts] = (SMALL,)
) -> MemoryPlan:
    return plan(model(), drafts, free, limits or UserLimits())


def test_with_room_nothing_is_given_up() -> None:
    found = chosen(FreeMemory(ram=20 * GB))
    assert (found.target.n_ctx, found.target.cache_k) == (DEFAULT_CTX, "f16")
    assert found.gave_up == ()
    assert found.advice == ()
    assert found.target.gpu_layers == 0


def test_less_memory_gives_less_context_and_what_is_chosen_fits() -> None:
    most = chosen(FreeMemory(ram=100 * GB))
    contexts = []
    for ram in range(most.host + PROGRAM, most.host - 2 * GB, -100_000_000):
        found = chosen(FreeMemory(ram=ram))
        if found.from_disk:
            break
        assert found.host + PROGRAM <= ram
        contexts.append((found.target.n_ctx, found.target.cache_k))
    assert contexts[0] == (DEFAULT_CTX, "f16")
    assert (4096, "f16") in contexts
    assert (4096, "q8_0") in contexts
    assert [n for n, _ in contexts] == sorted((n for n, _ in contexts), reverse=True)


@pytest.mark.parametrize(
    ("total", "n_ctx"), [(64, 32_768), (20, 32_768), (14, 16_384), (11, DEFAULT_CTX)]
)
def test_the_context_grows_within_a_modest_share_of_main_memory(total: int, n_ctx: int) -> None:
    found = chosen(FreeMemory(ram=total * GB, total=total * GB))
    assert found.target.n_ctx == n_ctx
    assert found.gave_up == ()
    assert n_ctx == DEFAULT_CTX or found.host + PROGRAM <= 0.6 * total * GB


def test_it_grows_no_further_than_the_model_was_trained_for() -> None:
    free = FreeMemory(ram=64 * GB, total=64 * GB)
    for trained, n_ctx in ((0, DEFAULT_CTX), (2048, 2048), (12_000, 12_000), (1 << 20, 32_768)):
        found = plan(replace(model(), trained=trained), [SMALL], free, UserLimits())
        assert found.target.n_ctx == n_ctx
    for trained, n_ctx in ((2048, DEFAULT_CTX), (16_384, 16_384)):  # a draft's
        found = plan(model(), [replace(SMALL, trained=trained)], free, UserLimits())
        assert found.target.n_ctx == n_ctx
    head = replace(SMALL, trained=2048, shown=3 * 4096, held=2)
    assert plan(model(), [head], free, UserLimits()).target.n_ctx == 32_768
    assert chosen(free, UserLimits(n_ctx=4096)).target.n_ctx == 4096


@pytest.mark.parametrize("card", [3, 6, 8, 12, 24])
def test_nothing_leaves_an_accelerator_for_a_larger_context(card: int) -> None:
    devices = (Device(card * GB),)
    usual = chosen(FreeMemory(64 * GB, devices))
    found = chosen(FreeMemory(64 * GB, devices, total=64 * GB))
    assert found.target.n_ctx >= usual.target.n_ctx == DEFAULT_CTX
    assert found.target.gpu_layers == usual.target.gpu_layers
    assert found.draft is not None
    assert usual.draft is not None
    assert found.draft.gpu_layers == usual.draft.gpu_layers
    assert found.target_need.device + SMALL.weights <= card * GB or card < 6


def test_more_than_a_modest_share_of_main_memory_is_told() -> None:
    told = "the models take 70 % of main memory: other programs may run short of it"
    assert chosen(FreeMemory(ram=10 * GB, total=10 * GB)).advice == (told,)
    assert chosen(FreeMemory(ram=12 * GB, total=12 * GB)).advice == ()


def test_a_plan_knows_what_twice_the_context_would_take() -> None:
    free = FreeMemory(ram=64 * GB, total=64 * GB)
    half, whole = (chosen(free, UserLimits(n_ctx=n)) for n in (8192, 16_384))
    assert half.doubled == whole.total - half.total > GB
    assert chosen(free, UserLimits(n_ctx=32_768)).doubled == 0  # not trained for more


def test_what_was_given_up_and_what_would_help_is_said() -> None:
    full = chosen(FreeMemory(ram=100 * GB))
    found = chosen(FreeMemory(ram=full.host))  # a little too little
    assert found.gave_up == ("4,096 instead of 8,192 tokens of context",)
    assert "without the draft 8,192 tokens of context would fit (--draft none)" in found.advice


def test_weights_larger_than_the_memory_are_streamed_with_a_warning() -> None:
    found = chosen(FreeMemory(ram=3 * GB))
    assert found.target.n_ctx == DEFAULT_CTX  # a smaller context would not save the weights
    assert found.from_disk > GB
    assert any("read from disk again and again" in line for line in found.advice)


def test_the_speed_of_reading_from_disk_is_measured_where_it_can_be() -> None:
    measured = plan(model(), [SMALL], FreeMemory(ram=3 * GB), UserLimits(), lambda: 5e8)
    assumed = plan(model(), [SMALL], FreeMemory(ram=3 * GB), UserLimits(), lambda: None)
    assert "some 9.5 s for every pass at 500 MB/s (as measured now)" in measured.advice[0]
    assert "0.11 tokens/s without drafting" in measured.advice[0]
    assert "some 2.4 s for every pass at 2 GB/s (assumed: an SSD" in assumed.advice[0]
    mixed = replace(model(), experts=(1,) * model().layers)
    told = plan(mixed, [SMALL], FreeMemory(ram=3 * GB), UserLimits(), lambda: 5e8).advice[0]
    assert "at most 9.5 s for every pass" in told
    assert told.endswith("at least 0.11 tokens/s without drafting")


def test_the_disk_is_left_alone_where_everything_fits() -> None:
    def must_not_be_asked() -> float:
        raise AssertionError

    assert not plan(
        model(), [SMALL], FreeMemory(ram=20 * GB), UserLimits(), must_not_be_asked
    ).from_disk


def test_nothing_is_streamed_under_a_limit_on_the_address_space() -> None:
    with pytest.raises(OutOfMemory, match="this process may take 3") as refused:
        chosen(FreeMemory(ram=64 * GB, address_space=3 * GB))
    assert "ulimit -v" in refused.value.remedy


def test_a_refusal_names_a_context_that_fits() -> None:
    free = FreeMemory(ram=8 * GB, address_space=8 * GB)
    with pytest.raises(OutOfMemory) as refused:
        chosen(free, UserLimits(n_ctx=32768))
    assert refused.value.remedy.startswith("With --ctx-size 16384 they would fit; with --draft")
    assert chosen(free, UserLimits(n_ctx=16384)).target.n_ctx == 16384


def test_a_refusal_names_the_draft_where_that_is_what_does_not_fit() -> None:
    alone = chosen(FreeMemory(ram=100 * GB), drafts=())
    free = FreeMemory(ram=alone.host + PROGRAM, address_space=alone.host + PROGRAM)
    with pytest.raises(OutOfMemory) as refused:
        chosen(free, UserLimits(n_ctx=DEFAULT_CTX, cache_k="f16", cache_v="f16"))
    assert "--draft none" in refused.value.remedy


def test_what_the_user_decided_stays() -> None:
    found = chosen(FreeMemory(ram=8 * GB), UserLimits(n_ctx=2048, cache_k="q4_0", cache_v="q4_0"))
    assert (found.target.n_ctx, found.target.cache_v) == (2048, "q4_0")
    assert found.gave_up == ()


def test_a_large_accelerator_takes_everything() -> None:
    found = chosen(FreeMemory(16 * GB, (Device(24 * GB),)))
    assert found.draft is not None
    assert (found.target.gpu_layers, found.draft.gpu_layers) == (-1, -1)
    assert found.gave_up == ()
    assert found.host < 2 * GB


@pytest.mark.parametrize("device", [2 * GB, 3 * GB, 4 * GB, 5 * GB])
def test_a_small_accelerator_takes_the_draft_and_as_many_layers_as_it_holds(device: int) -> None:
    found = chosen(FreeMemory(16 * GB, (Device(device),)))
    assert found.draft is not None
    assert found.draft.gpu_layers == -1
    assert 0 < found.target.gpu_layers < 32
    assert found.device <= device - DEVICE_RESERVE
    one_more = replace(found.target, gpu_layers=found.target.gpu_layers + 1)
    assert need(model(), one_more).device + found.draft_needs[0].device > device - DEVICE_RESERVE
    assert f"{found.target.gpu_layers} of 33 layers of the target" in found.gave_up[0]


def test_a_draft_without_room_on_the_accelerator_stays_on_the_cpu() -> None:
    found = chosen(FreeMemory(16 * GB, (Device(900_000_000),)))
    assert found.draft is not None
    assert found.draft.gpu_layers == 0
    assert "the draft on the CPU" in found.gave_up


def test_layers_that_were_asked_for_and_do_not_fit_are_refused() -> None:
    with pytest.raises(OutOfMemory, match="on the accelerator") as refused:
        chosen(FreeMemory(16 * GB, (Device(2 * GB),)), UserLimits(gpu_layers=-1))
    assert "--n-gpu-layers" in refused.value.remedy


@pytest.mark.parametrize("name", ["target", "draft"])
def test_layers_that_were_asked_for_are_refused_on_a_card_that_is_nearly_full(name: str) -> None:
    asked = UserLimits(gpu_layers=-1) if name == "target" else UserLimits(draft_gpu_layers=-1)
    with pytest.raises(OutOfMemory, match=f"the {name}'s layers asked for need"):
        chosen(FreeMemory(16 * GB, (Device(300_000_000),)), asked)


def test_a_draft_with_a_device_of_its_own_takes_nothing_of_the_targets() -> None:
    alone = chosen(FreeMemory(16 * GB, (Device(4 * GB),)), drafts=())
    found = chosen(FreeMemory(16 * GB, (Device(4 * GB, draft=False), Device(2 * GB, target=False))))
    assert found.draft is not None
    assert found.draft.gpu_layers == -1
    assert found.target.gpu_layers == alone.target.gpu_layers
    together = chosen(FreeMemory(16 * GB, (Device(4 * GB),)))
    assert together.target.gpu_layers < found.target.gpu_layers


def test_a_draft_whose_own_device_is_too_small_stays_on_the_cpu() -> None:
    devices = (Device(24 * GB, draft=False), Device(500_000_000, target=False))
    found = chosen(FreeMemory(16 * GB, devices))
    assert found.draft is not None
    assert (found.target.gpu_layers, found.draft.gpu_layers) == (-1, 0)
    assert found.gave_up == ("the draft on the CPU",)


def test_only_the_draft_on_an_accelerator() -> None:
    found = chosen(FreeMemory(16 * GB, (Device(24 * GB, target=False),)))
    assert found.draft is not None
    assert (found.target.gpu_layers, found.draft.gpu_layers) == (0, -1)
    assert found.gave_up == ()


def test_a_device_of_both_is_shared_out_and_the_targets_other_one_is_not() -> None:
    both = (Device(3 * GB, label="CUDA0"), Device(3 * GB, draft=False, label="CUDA1"))
    found = chosen(FreeMemory(16 * GB, both))
    left = 2 * (3 * GB - DEVICE_RESERVE) - found.draft_needs[0].device
    assert found.target_need.device <= left
    one_more = replace(found.target, gpu_layers=found.target.gpu_layers + 1)
    assert found.target.gpu_layers == -1 or need(model(), one_more).device > left


def test_every_device_keeps_what_its_driver_takes() -> None:
    one = chosen(FreeMemory(16 * GB, (Device(4 * GB),)), drafts=())
    two = chosen(FreeMemory(16 * GB, (Device(2 * GB), Device(2 * GB))), drafts=())
    assert 0 < two.target.gpu_layers < one.target.gpu_layers


def test_layers_of_the_draft_that_its_device_lacks_are_refused_by_its_option() -> None:
    free = FreeMemory(16 * GB, (Device(24 * GB, draft=False), Device(600_000_000, target=False)))
    with pytest.raises(OutOfMemory, match="the draft's layers") as refused:
        chosen(free, UserLimits(draft_gpu_layers=-1))
    assert "--draft-n-gpu-layers" in refused.value.remedy


def test_only_what_lies_on_an_accelerator_with_the_main_memory_counts_there() -> None:
    draft_in_ram = (Device(24 * GB, draft=False), Device(24 * GB, shared=24 * GB, target=False))
    apart = chosen(FreeMemory(16 * GB, draft_in_ram))
    assert apart.shared == apart.draft_needs[0].device
    assert apart.target_need.device > 4 * GB
    tight = apart.host + apart.shared + PROGRAM
    assert chosen(FreeMemory(tight, draft_in_ram)).gave_up == ()
    assert chosen(FreeMemory(tight - 1, draft_in_ram)).gave_up != ()


def test_the_devices_named_for_each_model_are_those_that_it_may_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cards = [DeviceMemory(name, GB, GB, label=name) for name in ("CUDA0", "CUDA1", "CUDA2")]
    monkeypatch.setattr(planning, "devices", lambda: cards)

    def use(**options: Any) -> list[tuple[bool, bool]]:
        asked = LoadRequest(**options)
        free = planning.free_memory(asked)
        return [(each.target, each.draft) for each in free.devices]

    assert use() == [(True, True)] * 3
    assert use(device=("CUDA0",)) == [(True, True), (False, False), (False, False)]
    assert use(device=("CUDA0", "CUDA1"), draft_device=("CUDA1",)) == [
        (True, False),
        (True, True),
        (False, False),
    ]
    cards[2] = replace(cards[2], label="RPC0")
    assert use(rpc=("a:1",)) == [(True, True), (True, True), (True, False)]
    assert use(rpc=("a:1",), device=("CUDA0", "RPC0"))[2] == (True, False)
    assert use(rpc=("a:1",), draft_device=("RPC0",))[2] == (True, True)
    assert use(device=("CUDA0",), draft_device=()) == [(True, False)] + [(False, False)] * 2
    cards[0] = replace(cards[0], left_out=True)
    assert use() == [(False, False), (True, True), (True, True)]
    assert use(rpc=("a:1",)) == [(False, False), (True, True), (True, False)]
    assert use(rpc=("a:1",), device=("CUDA0", "RPC0"))[0] == (True, True)
    assert planning._on_one_device(LoadRequest(split_mode="none")).device == ("CUDA1",)
    assert model_loader._devices_of_target(LoadRequest(rpc=("a:1",))) == ["CUDA1", "RPC0"]


def test_a_draft_that_comes_later_lies_where_one_that_comes_with_its_target_does(
    toy_target: Path, toy_draft: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning, "devices", lambda: [CARD])
    for where, layers in ((None, -1), ((), 0)):
        request = LoadRequest(
            pair=str(toy_target), draft=str(toy_draft), ctx_size=512, draft_device=where, scan=False
        )
        checked = check(request)
        assert planning.drafts_plan(checked, 512) == planning.load_plan(checked).memory.drafts
        assert [each.gpu_layers for each in planning.drafts_plan(checked, 512)] == [layers]


@pytest.mark.parametrize(
    ("options", "there"),
    [
        ({"draft_device": ()}, True),
        ({"draft_n_gpu_layers": 0}, True),
        ({"n_gpu_layers": 0}, False),
        ({"device": (), "draft_device": ("CUDA0",)}, False),
    ],
)
def test_the_buffers_of_a_head_inside_are_where_the_last_layers_of_its_target_are(
    options: dict[str, Any], there: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning, "devices", lambda: [CARD])
    target = str(heads.write_mtp(tmp_path / "mtp.gguf"))
    checked = check(LoadRequest(pair=target, draft="mtp", ctx_size=512, scan=False, **options))
    found = planning.load_plan(checked).memory
    assert bool(found.draft_needs[0].device_buffers) == there == bool(found.target_need.device)
    assert found.gave_up == ()  # it is where the user asked for it


def test_an_accelerator_that_shares_the_memory_adds_none() -> None:
    whole = chosen(FreeMemory(100 * GB, (Device(100 * GB, shared=100 * GB),)))
    found = chosen(FreeMemory(whole.total, (Device(whole.total, shared=whole.total),)))
    assert found.target.n_ctx < DEFAULT_CTX


@pytest.mark.parametrize("n_ctx", [8192, 32_768])
def test_what_cannot_stay_on_disk_fits_next_to_an_accelerator_that_shares_the_memory(
    n_ctx: int,
) -> None:
    free = FreeMemory(8 * GB, (Device(8 * GB, shared=8 * GB),))
    large = model(layer_bytes=480_000_000)
    found = plan(large, [SMALL], free, UserLimits(n_ctx=n_ctx))
    caches = sum(each.host_cache + each.host_buffers for each in found.needs)
    assert caches + found.shared + PROGRAM <= free.ram
    assert found.from_disk > 8 * GB
    assert found.gave_up[0] == "0 of 33 layers of the target on the accelerator"


def test_layers_that_were_asked_for_do_not_leave_an_accelerator_that_shares_the_memory() -> None:
    free = FreeMemory(8 * GB, (Device(8 * GB, shared=8 * GB),))
    large = model(layer_bytes=480_000_000)
    with pytest.raises(OutOfMemory, match="the models need about 17"):
        plan(large, [], free, UserLimits(n_ctx=8192, cache_v="f16", cache_k="f16", gpu_layers=14))


def test_what_is_set_apart_for_an_integrated_gpu_adds_to_the_main_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """96 GB are set apart; the driver also counts half of the 32 GB that the system has."""
    chip = DeviceMemory("a chip", 107 * GB, 112 * GB, integrated=True, label="Vulkan0", own=80 * GB)
    monkeypatch.setattr("localspec.machine.available", lambda: 24 * GB)
    monkeypatch.setattr("localspec.machine.total", lambda: 32 * GB)
    monkeypatch.setattr(planning, "devices", lambda: [chip])
    free = planning.free_memory(LoadRequest())
    assert [(each.free, each.shared) for each in free.devices] == [(99 * GB, 24 * GB)]
    large = model(layer_bytes=1_840_000_000)
    found = plan(large, [SMALL], free, UserLimits())
    assert found.device > 60 * GB
    assert (found.target.gpu_layers, found.from_disk, found.shared) == (-1, 0, 0)
    assert outlook_for(large, [SMALL], free).fit.verdict == "fits"
    larger = plan(model(layer_bytes=2_600_000_000), [SMALL], free, UserLimits())
    assert larger.shared == larger.device - 75 * GB > 0  # of it, 5 GB may be another program's
    assert chip.has_own
    chip = replace(chip, own=0)
    free = planning.free_memory(LoadRequest())
    assert [(each.free, each.shared) for each in free.devices] == [(24 * GB, 24 * GB)]
    assert plan(large, [SMALL], free, UserLimits()).from_disk > 30 * GB
    assert not chip.has_own


def test_drafts_leave_the_next_ones_the_memory_that_no_device_shares_with_them(
    toy_target: Path, toy_draft: Path
) -> None:
    request = LoadRequest(pair=str(toy_target), draft=str(toy_draft), ctx_size=512, scan=False)
    drafts = 2 * check(request).drafts
    free = FreeMemory(2 * GB, (Device(2 * GB, shared=2 * GB),))
    placed, left = planning._placed_alone(drafts, free, UserLimits(), 512)
    assert [each.target.gpu_layers for each in placed] == [-1, -1]
    assert left.ram == free.ram - sum(each.total for each in placed)


def test_a_further_draft_that_has_no_room_is_refused(toy_target: Path, toy_draft: Path) -> None:
    request = LoadRequest(pair=str(toy_target), draft=str(toy_draft), ctx_size=512, scan=False)
    drafts, limits = 2 * check(request).drafts, UserLimits(cache_k="f16", cache_v="f16")
    (one,), _ = planning._placed_alone(drafts[:1], FreeMemory(2 * GB), limits, 512)
    enough = 2 * one.total + PROGRAM
    assert len(planning._placed_alone(drafts, FreeMemory(enough), limits, 512)[0]) == 2
    with pytest.raises(OutOfMemory, match=f"the draft {toy_draft.name}: the models need"):
        planning._placed_alone(drafts, FreeMemory(enough - 1), limits, 512)


def test_further_drafters_are_counted_at_the_context_that_is_chosen(
    toy_target: Path, toy_draft: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    again = tmp_path / "again.gguf"
    again.symlink_to(toy_target)
    named = LoadRequest(pair=str(toy_target), draft=f"{toy_draft},{again}", scan=False)
    checked = check(named)
    drafts = tuple(replace(each, facts=SMALL) for each in checked.drafts)
    setup, models = ModelSetup(n_ctx=DEFAULT_CTX), (model(), SMALL, SMALL)
    together = sum(need(each, setup).total for each in models) + PROGRAM
    free = FreeMemory(ram=together, total=together)
    monkeypatch.setattr(planning, "free_memory", lambda *_: free)
    monkeypatch.setattr(planning, "devices", list)
    loaded = planning.load_plan(replace(checked, sizes=model(), drafts=drafts)).memory
    shown = outlook_for(model(), [SMALL, SMALL], free)
    assert shown.plan == loaded
    assert {each.n_ctx for each in (loaded.target, *loaded.drafts)} == {DEFAULT_CTX}
    assert (loaded.from_disk, loaded.total + PROGRAM) == (0, together)
    assert (shown.fit.verdict, shown.fit.needed) == ("fits", together)


def test_a_second_draft_has_no_room_on_a_card_that_the_first_has_filled() -> None:
    card = need(SMALL, ModelSetup(n_ctx=DEFAULT_CTX, gpu_layers=-1)).device + DEVICE_RESERVE
    free = FreeMemory(64 * GB, (Device(card, target=False),))
    found = chosen(free, drafts=[SMALL, SMALL])
    assert [each.gpu_layers for each in found.drafts] == [-1, 0]
    assert "the draft on the CPU" in found.gave_up


def test_snapshots_are_given_up_before_context() -> None:
    recurrent = replace(model(), architecture="qwen35", state=(2_000_000, 24))
    limits = UserLimits(snapshots=8)
    full = plan(recurrent, [SMALL], FreeMemory(ram=100 * GB), limits)
    assert (full.target.snapshots, full.gave_up) == (8, ())
    less = plan(recurrent, [SMALL], FreeMemory(ram=full.host), limits)
    assert (less.target.n_ctx, less.target.snapshots) == (DEFAULT_CTX, 0)
    assert "snapshots" in less.gave_up[0]
    assert full.host - less.host == 8 * 24 * 2_000_000 * 4


def test_the_copies_of_a_state_are_counted_that_two_prompts_and_a_round_go_back_to() -> None:
    setup = ModelSetup(n_ctx=512)
    with_state = replace(model(), architecture="mamba", state=(2_000_000, 24))
    own, state = need(with_state, setup), 2_000_000 * 24 * 4
    assert own.host_buffers - need(model(), setup).host_buffers == 3 * state
    assert own.host_cache - need(model(), setup).host_cache == state


def test_a_draft_keeps_no_copy_of_a_state_from_after_a_call(tmp_path: Path) -> None:
    header = gguf.read_header(gguf_models.write_random_mamba(tmp_path / "m.gguf"))
    target, draft, setup = facts(header), draft_facts(header), ModelSetup(n_ctx=512)
    other = need(target, setup).host_buffers - (need(draft, setup).host_buffers - draft.table)
    assert other == target.state[0] * target.state[1] * 4 > 0


def test_a_draft_as_large_as_the_target_is_said_to_cost_too_much() -> None:
    found = chosen(FreeMemory(ram=64 * GB), drafts=[model()])
    assert any("too big to save time" in line for line in found.advice)


def test_the_verdict_for_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("localspec.machine.available", lambda: 1_300)
    monkeypatch.setattr("localspec.machine.total", lambda: 2_500)
    found = [unread(n_bytes).verdict for n_bytes in (1000, 2000, 3000)]
    assert found == ["fits", "tight", "too large"]


@pytest.mark.parametrize(
    ("free", "verdict"),
    [
        (FreeMemory(ram=20 * GB), "fits"),
        (FreeMemory(ram=3 * GB), "tight"),
        (FreeMemory(ram=3 * GB, devices=(Device(24 * GB),)), "fits"),
        (FreeMemory(ram=3 * GB, devices=(Device(24 * GB, shared=24 * GB),)), "tight"),
    ],
)
def test_the_verdict_is_the_plans(
    monkeypatch: pytest.MonkeyPatch, free: FreeMemory, verdict: str
) -> None:
    monkeypatch.setattr("localspec.machine.total", lambda: 30 * GB)
    found = outlook_for(model(), [SMALL], free)
    assert found.fit.verdict == verdict
    assert found.plan is not None
    assert bool(found.plan.from_disk) == (verdict != "fits")
    assert (found.fit.needed <= found.fit.available) == (verdict == "fits")
    monkeypatch.setattr("localspec.machine.total", lambda: free.ram)
    again = outlook_for(model(), [SMALL], free).fit.verdict
    assert again == ("fits" if verdict == "fits" else "too large")


def test_lists_reports_and_loading_count_the_same_memory(starter_file: Path) -> None:
    row = next(row for row in catalogue.rows() if row.name == STARTER)
    free = partial(planning.free_memory, LoadRequest())
    report = examine(STARTER, None, RetryPolicy(), free=free, scan=False)
    planned = planning.load_plan(check(LoadRequest(pair=STARTER))).memory
    assert row.fit.needed == report.outlook.fit.needed == planned.total + PROGRAM
    assert report.outlook.n_ctx == planned.target.n_ctx == DEFAULT_CTX
    shown = CliRunner().invoke(cli, ["list", "--no-scan"]).stdout
    assert f"{formats.size(row.fit.needed)}: fits" in shown
    memory, first = (
        line.split(maxsplit=1)[1]
        for line in describe.lines(report)
        if line.startswith(("memory ", "plan "))
    )
    assert memory.startswith(f"about {formats.size(row.fit.needed)} with 8,192 tokens")
    assert first.endswith(
        f"{formats.size(planned.total)}, and {formats.size(PROGRAM)} for the program"
    )


def test_a_target_and_its_draft_are_counted_together() -> None:
    data = ggufs.model(n_bytes=64_000)
    header = gguf.parse_header(lambda at, size: data[at : at + size], None, "it")
    one = need(facts(header), ModelSetup(n_ctx=100)).total
    both = outlook_for(facts(header), [facts(header)], n_ctx=100).fit
    assert both.needed == 2 * one + PROGRAM


def test_show_says_how_a_pair_would_be_loaded(capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["show", "toy"], standalone_mode=False)
    said = capsys.readouterr().out
    assert "plan        1,024 tokens of context, f16 cache" in said
    assert "  draft     weights 1.78 MB" in said
    cli.main(["show", "toy", "--json"], standalone_mode=False)
    data = json.loads(capsys.readouterr().out)["plan"]
    assert data["fits"]
    assert data["twice_ctx_bytes"] == 0
    cli.main(["show", "toy", "-c", "512"], standalone_mode=False)
    assert re.search(
        r"plan        512 tokens .* program; twice the context: [\d.]+ MB more",
        capsys.readouterr().out,
    )
    assert data["host_bytes"] == sum(
        data[model][part]
        for model in ("target", "draft")
        for part in ("weights_bytes", "cache_bytes", "buffers_bytes")
    )


def test_show_tells_how_several_cards_could_share_a_target(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cards = [CARD]
    monkeypatch.setattr(planning, "devices", lambda: cards)
    for told in (False, True):
        cli.main(["show", "toy"], standalone_mode=False)
        said = capsys.readouterr().out
        assert ("--split-mode tensor" in said and "1.68 times as fast" in said) == told
        cards.append(replace(CARD, label="CUDA1"))


def test_show_says_why_a_pair_would_not_be_loaded(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("localspec.machine.available", lambda: 1_000_000)
    cli.main(["show", "toy"], standalone_mode=False)
    said = capsys.readouterr().out
    assert "plan        the models need about" in said
    assert "free are 1 MB" in said


# --- options ----------------------------------------------------------------------------------


def loaded(**options: Any) -> Session:
    how = LoadRequest(pair="toy", threads=1, gamma=2, n_predict=4, temp=0, **options)
    return load_session(how, progress=lambda _step, _share: None, cancel=Cancel())


def answer(session: Session) -> str:
    *_, end = session.turn("Say something.", Cancel())
    assert isinstance(end, TurnEnd)
    return end.text


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "options",
    [
        {"mmap": False},
        {"flash_attn": "on"},
        {"flash_attn": "off"},
        {"threads_batch": 2, "draft_threads": 1},
        {"device": (), "draft_device": ()},
        {"n_gpu_layers": -1, "draft_n_gpu_layers": 0},
    ],
)
def test_where_and_how_a_model_runs_does_not_change_what_it_says(options: dict[str, Any]) -> None:
    with closing(loaded()) as plain, closing(loaded(**options)) as placed:
        assert answer(placed) == answer(plain)


@pytest.mark.parametrize(
    ("free", "options", "used"),
    [
        (300_000_000, {}, [(), ()]),
        (GB, {"n_gpu_layers": 0, "draft_n_gpu_layers": 0}, [(), ()]),
        (GB, {"n_gpu_layers": 0}, [(), None]),
        (GB, {}, [None, None]),
    ],
)
def test_a_model_without_layers_on_a_device_takes_nothing_of_it(
    free: int, options: dict[str, Any], used: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """llama.cpp would reserve room on every device that it is told of, for a prompt's matrices."""
    seen, load = [], Model.load

    def recorded(path: Path, **how: Any) -> Model:
        seen.append(how["devices"])
        return load(path, **how)

    monkeypatch.setattr(planning, "devices", lambda: [replace(CARD, free=free)])
    monkeypatch.setattr(Model, "load", recorded)
    with closing(loaded(**options)):
        assert seen == used


def test_cache_types_are_those_asked_for() -> None:
    with closing(loaded()) as full, closing(loaded(cache_type_k="q8_0")) as small:
        used = small.pair.target.cache_bytes / full.pair.target.cache_bytes
        assert used == pytest.approx((34 / 32 + 2) / 4, rel=0.01)
        assert small.pair.loaded.cache_type_v == "f16"
        assert answer(small)


def test_devices_that_are_not_there_are_named() -> None:
    with pytest.raises(UsageError, match="sees no device CUDA7"):
        loaded(device=("CUDA7",))


def test_quantised_values_need_flash_attention() -> None:
    with pytest.raises(UsageError, match="only with flash attention"):
        loaded(cache_type_v="q8_0", flash_attn="off")


def test_all_experts_and_some_are_not_asked_for_together() -> None:
    with pytest.raises(UsageError, match="--cpu-moe and --n-cpu-moe"):
        loaded(cpu_moe=True, n_cpu_moe=0)


def test_the_command_line_takes_llama_cpps_names() -> None:
    seen: list[LoadRequest] = []

    def take(options: LoadRequest) -> None:
        seen.append(options)

    command = click.command()(shared_options(take))
    words = "-ngl all -ngld 3 -dev CUDA0,CUDA1 -devd none -tb 4 -td 2 -fa on -ctk q8_0 -ctv q4_0"
    command.main([*words.split(), "--mlock", "--no-mmap"], standalone_mode=False)
    assert seen[0] == LoadRequest(
        n_gpu_layers=-1,
        draft_n_gpu_layers=3,
        device=("CUDA0", "CUDA1"),
        draft_device=(),
        threads_batch=4,
        draft_threads=2,
        flash_attn="on",
        cache_type_k="q8_0",
        cache_type_v="q4_0",
        mlock=True,
        mmap=False,
    )
    with pytest.raises(click.BadParameter, match="auto or all"):
        command.main(["-ngl", "many"], standalone_mode=False)
