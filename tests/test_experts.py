"""Mixtures whose experts stay in main memory: they are planned, loaded, and write the same."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from localspec.chat.events import RoundText
from localspec.chat.session.pair import LoadRecord
from localspec.cli.subcommands import cli
from localspec.engine.cancel import Cancel
from localspec.engine.llama import Context, ContextOptions, Model, add_workers, backends, devices
from localspec.engine.llama.log import start_backend
from localspec.engine.record.stats import DeviceMemory
from localspec.loading import planning
from localspec.loading.load import check, load_session
from localspec.loading.load_request import LoadRequest
from localspec.loading.measurements.measured_costs import unusual
from localspec.loading.planning import load_plan
from localspec.pairs.gguf.header import read_header
from localspec.pairs.memory.free import DEVICE_RESERVE, Device, FreeMemory
from localspec.pairs.memory.model_facts import ModelFacts, facts
from localspec.pairs.memory.need import ModelSetup, need
from localspec.pairs.memory.placement import MemoryPlan, UserLimits, plan
from tests.fakes import tokens_of
from tests.support import toy
from tests.support.any_model import write_any
from tests.support.buffers import allocated, compared
from tests.support.gguf_models import write_random_moe
from tests.support.heads import write_mtp
from tests.support.moe_shapes import SHAPES
from tests.support.workers import worker

GB = 1_000_000_000
needs_backend = pytest.mark.skipif("RPC" not in backends(), reason="this build has no RPC backend")


# --- the plan ---------------------------------------------------------------------------------


def mixture(layers: int = 24, expert_gb: float = 0.5, other_gb: float = 0.05) -> ModelFacts:
    """The sizes of a mixture: for each layer, those of its experts and of the rest."""
    experts, rest = round(expert_gb * GB), round(other_gb * GB)
    return ModelFacts(
        architecture="qwen3moe",
        trained=32_768,
        vocab=150_000,
        width=2048,
        heads=16,
        layer_weights=(experts + rest,) * layers,
        other_weights=GB // 2,
        output_weights=GB // 4,
        kv_widths=((512, 512),) * layers,
        state=(0, 0),
        widest=16_384,
        masks=1,
        head_widths=(128, 128),
        experts=(experts,) * layers,
        largest_matrix=experts // 3,
    )


def planned(card_gb: float, limits: UserLimits | None = None, ram_gb: float = 64) -> MemoryPlan:
    free = FreeMemory(round(ram_gb * GB), (Device(round(card_gb * GB)),))
    return plan(mixture(), [], free, limits or UserLimits(n_ctx=4096))


@pytest.mark.parametrize("card_gb", [4, 6, 8, 10, 12, 16, 24])
def test_as_few_experts_as_needed_stay_in_main_memory(card_gb: float) -> None:
    found = planned(card_gb)
    room = card_gb * GB - DEVICE_RESERVE
    assert found.target_need.device <= room
    setup = found.target
    if not setup.cpu_moe:
        assert card_gb >= 16
        assert setup.gpu_layers == -1
        return
    assert setup.gpu_layers == -1  # attention and what all tokens share come first
    fewer = replace(setup, cpu_moe=setup.cpu_moe - 1)
    assert need(mixture(), fewer).device > room
    assert found.gave_up == (f"the experts of {setup.cpu_moe} of 24 layers in main memory",)


def test_where_all_experts_stay_whole_layers_follow() -> None:
    found = planned(1.5)
    assert found.target.cpu_moe == 24
    assert 0 < found.target.gpu_layers < 24
    assert found.target_need.device <= 1.5 * GB - DEVICE_RESERVE


def test_main_and_device_memory_take_all_weights_together() -> None:
    model = mixture()
    for moved in (0, 1, 12, 24):
        taken = need(model, ModelSetup(n_ctx=4096, gpu_layers=-1, cpu_moe=moved))
        assert taken.host_weights + taken.device_weights == model.weights
        assert taken.host_weights == moved * model.experts[0] + model.other_weights - GB // 4


def test_masks_stay_while_experts_are_copied() -> None:
    """llama.cpp's Vulkan took up to 1 MiB more than was planned without them (placement.md)."""
    short, long = (
        need(mixture(), ModelSetup(n_ctx=n, gpu_layers=-1, cpu_moe=24)) for n in (4096, 32_768)
    )
    assert long.device_buffers - short.device_buffers == (32_768 - 4096) * 512 * 2


@pytest.mark.parametrize(("asked", "moved"), [(0, 0), (5, 5), (24, 24), (99, 24), (-1, 24)])
def test_what_is_asked_for_is_kept(asked: int, moved: int) -> None:
    limits = UserLimits(n_ctx=4096, cpu_moe=asked)
    found = planned(24, limits)
    assert found.target.cpu_moe == moved
    assert not any("experts" in each for each in found.gave_up)
    assert planned(4, limits).target.cpu_moe in (moved, 0)


def test_without_a_device_nothing_is_moved() -> None:
    found = plan(mixture(), [], FreeMemory(64 * GB), UserLimits(n_ctx=4096, cpu_moe=-1))
    assert (found.target.cpu_moe, found.target.gpu_layers) == (0, 0)


def test_all_layers_asked_for_fit_by_their_experts() -> None:
    found = planned(8, UserLimits(n_ctx=4096, gpu_layers=-1))
    assert found.fits
    assert found.target.cpu_moe > 0


def test_a_model_without_experts_is_placed_as_before() -> None:
    dense = replace(mixture(), experts=(0,) * 24, largest_matrix=0)
    free = FreeMemory(64 * GB, (Device(8 * GB),))
    found = plan(dense, [], free, UserLimits(n_ctx=4096, cpu_moe=-1))
    assert found.target.cpu_moe == 0
    assert 0 < found.target.gpu_layers < 24


MIB = 1 << 20


def test_costs_are_kept_apart_by_where_experts_are() -> None:
    """As more tokens wake more experts, passes grow otherwise with these in main memory."""
    for draft, kept in ((False, 3), (True, 1)):
        keys = [
            unusual(LoadRecord(ctx_size=256, threads=1, n_cpu_moe=moved), draft=draft)
            for moved in (0, 4, 24)
        ]
        assert len({str(each) for each in keys}) == kept


def test_show_says_how_many_layers_have_their_experts_in_main_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_random_moe(tmp_path / "moe.gguf", n_expert=64)
    one = ModelSetup(n_ctx=2048, gpu_layers=-1, cpu_moe=1)
    free = DEVICE_RESERVE + need(facts(read_header(path)), one).device
    monkeypatch.setattr(planning, "devices", lambda: [DeviceMemory("a card", free, free)])
    cli.main(["show", str(path), "-c", "2048", "--no-scan"], standalone_mode=False)
    said = capsys.readouterr().out
    assert "of it on the GPU, the experts of 1 layer in main memory" in said
    assert "  given up: the experts of 1 of 2 layers in main memory" in said
    cli.main(["show", str(path), "-c", "2048", "--no-scan", "--json"], standalone_mode=False)
    target = json.loads(capsys.readouterr().out)["plan"]["target"]
    assert (target["gpu_layers"], target["n_cpu_moe"]) == (-1, 1)


@pytest.fixture(scope="module")
def gpt_oss(tmp_path_factory: pytest.TempPathFactory) -> ModelFacts:
    """The sizes of gpt-oss-20b as published."""
    path = tmp_path_factory.mktemp("published") / "gpt-oss-20b.gguf"
    return facts(read_header(SHAPES["gpt-oss-20b"].write(path)))


def test_weights_of_a_published_mixture_lie_where_llama_cpp_put_them(gpt_oss: ModelFacts) -> None:
    """A published log has 1,242 MiB on eight cards, with all experts on the processor."""
    printed = 109.20 + 6 * 81.90 + 641.43
    taken = need(gpt_oss, ModelSetup(n_ctx=4096, gpu_layers=-1, cpu_moe=24))
    assert taken.device_weights / MIB == pytest.approx(printed, rel=0.001)
    whole = need(gpt_oss, ModelSetup(n_ctx=4096, gpu_layers=-1))
    assert whole.host_weights / MIB == pytest.approx(586.82, rel=0.001)


@pytest.mark.parametrize(("card_gb", "ram_gb"), [(6, 16), (8, 16), (8, 32), (12, 32), (16, 64)])
def test_a_published_mixture_fits_consumer_machines(
    gpt_oss: ModelFacts, card_gb: int, ram_gb: int
) -> None:
    """The plan fits into the card, and keeps no more experts in main memory than it must."""
    room = card_gb * GB - DEVICE_RESERVE
    free = FreeMemory(ram_gb * GB, (Device(card_gb * GB),), total=ram_gb * GB)
    found = plan(gpt_oss, [], free, UserLimits())
    setup = found.target
    assert found.fits
    assert found.target_need.device <= room
    assert setup.gpu_layers == -1
    fewer = replace(setup, cpu_moe=setup.cpu_moe - 1)
    assert setup.cpu_moe == 0 or need(gpt_oss, fewer).device > room


# --- in llama.cpp -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_random_moe(tmp_path_factory.mktemp("moe") / "moe.gguf", n_expert=8)


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    """A device that is not this machine's processor: a worker that lends its own."""
    with worker() as (found, _):
        yield found
        add_workers(())


def weights_by_place(path: Path, moved: int) -> tuple[int, int, np.ndarray]:
    """Bytes of weights on this machine and on the worker, by llama.cpp, and a text's logits."""
    log = start_backend().section()
    labels = [each.label for each in devices()]
    with Model.load(path, devices=labels, cpu_moe=moved) as model:
        there = allocated(log, "RPC").weights
        here = log.allocated("model") - there
        with Context(model, ContextOptions(n_ctx=256, threads=1)) as context:
            logits = np.array(context.decode([*range(40, 60)], 20))
    return here, there, logits


@needs_backend
def test_experts_lie_where_the_plan_says_and_compute_the_same(path: Path, endpoint: str) -> None:
    add_workers([endpoint])
    model = facts(read_header(path))
    how = ContextOptions(n_ctx=256, threads=1)
    with Model.load(path, devices=()) as alone, Context(alone, how) as context:
        expected = np.array(context.decode([*range(40, 60)], 20))
    for moved in (0, 1, model.layers // 2, model.layers):
        here, there, logits = weights_by_place(path, moved)
        taken = need(model, ModelSetup(n_ctx=256, gpu_layers=-1, cpu_moe=moved))
        assert there == pytest.approx(taken.device_weights, rel=0.01, abs=50_000)
        assert here >= taken.host_weights * 0.99 - 50_000  # mapped spans have gaps
        assert np.abs(logits - expected).max() < 0.05 * np.abs(expected).max()


@pytest.mark.slow
@needs_backend
@pytest.mark.parametrize("architecture", ["qwen3moe", "gpt-oss", "lfm2moe", "gemma4", "qwen35moe"])
def test_mixtures_of_other_architectures_are_placed_and_answer_alike(
    architecture: str, endpoint: str, tmp_path: Path
) -> None:
    """The experts of no, some or all layers are on this machine; prompt lookup drafts."""
    target = write_any(tmp_path / "it.gguf", architecture)
    add_workers([endpoint])
    model, said = facts(read_header(target)), []
    assert any(model.experts)
    for moved in (0, 1, model.layers):
        here, there, _ = weights_by_place(target, moved)
        taken = need(model, ModelSetup(n_ctx=256, gpu_layers=-1, cpu_moe=moved))
        assert there == pytest.approx(taken.device_weights, rel=0.01, abs=50_000)
        assert here >= taken.host_weights * 0.99 - 50_000
        for gamma in (0, 4):
            request = LoadRequest(
                pair=str(target),
                draft="lookup",
                rpc=(endpoint,),
                ctx_size=512,
                threads=1,
                flash_attn="on",
                n_gpu_layers=-1,
                n_cpu_moe=moved,
                temp=0.0,
                seed=1,
                gamma=gamma,
                n_predict=24,
                scan=False,
            )
            total = load_plan(check(request)).memory.total
            session = load_session(request, progress=lambda *_: None, cancel=Cancel())
            with closing(session):
                memory = session.memory()
                answer = session.turn("Tell me a story.", Cancel())
                rounds = [each.round for each in answer if isinstance(each, RoundText)]
            used = memory.target_weights + memory.target_cache + memory.buffers
            assert abs(total - used) < max(0.05 * used, 32e6)
            said.append(tokens_of(rounds))
    assert all(each == said[0] for each in said)


@needs_backend
@pytest.mark.few(2)
@pytest.mark.parametrize(
    "options",
    [
        {"cpu_moe": True},
        {},  # a draft model would stay on this machine
        {"n_cpu_moe": 2, "draft_device": ()},
        {"n_gpu_layers": 1, "draft_n_gpu_layers": -1},
    ],
)
def test_a_head_inside_lies_with_the_last_layers_of_its_target(
    options: dict[str, Any], endpoint: str, tmp_path: Path
) -> None:
    """Whatever is said of drafts, llama.cpp places the head's weights and cache as the target's."""
    target = str(write_mtp(tmp_path / "mtp.gguf", dense=0))
    request = LoadRequest(
        pair=target, rpc=(endpoint,), ctx_size=512, threads=1, scan=False, **options
    )
    wanted, found = compared(request, "RPC")
    assert found.weights == pytest.approx(wanted.weights, rel=0.01, abs=10_000)
    assert found.cache == pytest.approx(wanted.cache, rel=0.01, abs=10_000)


@needs_backend
@pytest.mark.few(2)
@pytest.mark.parametrize("draft", ["lookup", "mtp", "model"])
@pytest.mark.parametrize("moved", [{"n_cpu_moe": 1}, {"cpu_moe": True}])
def test_drafting_changes_nothing_of_it(
    path: Path, endpoint: str, draft: str, moved: dict[str, object], tmp_path: Path
) -> None:
    """Drafts come from prompt lookup, from a model, and from MTP in another architecture."""
    target = write_mtp(tmp_path / "mtp.gguf", dense=0) if draft == "mtp" else path
    said = []
    for gamma in (0, 4):
        request = LoadRequest(
            pair=str(target),
            draft=str(toy.DRAFT) if draft == "model" else draft,
            draft_anyway=True,
            rpc=(endpoint,),
            ctx_size=512,
            threads=1,
            temp=0.0,
            seed=1,
            gamma=gamma,
            n_predict=40,
            scan=False,
            repeat_stop=False,
            **moved,
        )
        plan_of_it = load_plan(check(request)).memory
        session = load_session(request, progress=lambda *_: None, cancel=Cancel())
        try:
            assert session.pair.loaded.n_cpu_moe == plan_of_it.target.cpu_moe > 0
            memory = session.memory()
            taken = memory.target_weights + memory.target_cache + memory.buffers
            assert abs(plan_of_it.total - taken) < max(0.05 * taken, 32e6)
            rounds = [
                event.round
                for event in session.turn("Tell me a story.", Cancel())
                if isinstance(event, RoundText)
            ]
        finally:
            session.close()
        said.append(tokens_of(rounds))
    assert len(said[0]) == 40
    assert said[0] == said[1]
