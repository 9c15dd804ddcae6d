"""The plan for published mixtures of experts: on six machines, and as llama.cpp printed them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.fit_params import CARDS, planned
from localspec.pairs.gguf.header import read_header
from localspec.pairs.memory.free import DEVICE_RESERVE, Device, FreeMemory
from localspec.pairs.memory.model_facts import ModelFacts, facts
from localspec.pairs.memory.need import ModelSetup, need
from localspec.pairs.memory.placement import PROGRAM, MemoryPlan, UserLimits, plan
from tests.support.moe_shapes import Q4_K, Q5_K, SHAPES, f16, mixed, q4_0

GB = 1_000_000_000
MIB = 1 << 20
MACHINES = ((8, 16), (8, 32), (12, 32), (16, 32), (16, 64), (24, 64))  # GB of card and of memory


@pytest.fixture(scope="module")
def sizes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ModelFacts]:
    """The facts of all shapes, read from files with holes for weights."""
    folder = tmp_path_factory.mktemp("shapes")
    return {
        name: facts(read_header(shape.write(folder / f"{name}.gguf")))
        for name, shape in SHAPES.items()
    }


@pytest.mark.parametrize("name", SHAPES)
def test_a_shape_has_the_published_number_of_parameters(name: str) -> None:
    shape = SHAPES[name]
    count = sum(math.prod(each) for _, each in shape.tensors())
    exact = isinstance(shape.parameters, int)
    assert count == shape.parameters if exact else count == pytest.approx(shape.parameters, 5e-4)


def setups(model: ModelFacts) -> Iterator[ModelSetup]:
    """Every placement, from the most on the card to the least."""
    whole = ModelSetup(n_ctx=8192, gpu_layers=-1)
    yield from (replace(whole, cpu_moe=moved) for moved in range(model.layers + 1))
    yield from (
        replace(whole, gpu_layers=n, cpu_moe=model.layers) for n in range(model.layers, -1, -1)
    )


@pytest.mark.parametrize("name", SHAPES)
def test_a_plan_takes_what_is_there_and_leaves_nothing_that_fits(
    name: str, sizes: dict[str, ModelFacts]
) -> None:
    model = sizes[name]
    for card, ram in MACHINES:
        free = FreeMemory(ram * GB, (Device(card * GB),), total=ram * GB)
        found = plan(model, [], free, UserLimits(n_ctx=8192))
        assert found.target_need.device <= card * GB - DEVICE_RESERVE
        if not found.from_disk:
            assert found.host + PROGRAM <= ram * GB
        best = next(
            each for each in setups(model) if need(model, each).device <= card * GB - DEVICE_RESERVE
        )
        chosen = found.target
        assert (chosen.gpu_layers, chosen.cpu_moe) == (best.gpu_layers, best.cpu_moe)


DRAFTED = 4  # tokens, in a round that drafts
SMALL = ModelFacts(  # Qwen3-0.6B in Q8_0
    architecture="qwen3",
    trained=40_960,
    vocab=151_936,
    width=1024,
    heads=16,
    layer_weights=(16_711_680,) * 28,
    other_weights=165_306_368,
    output_weights=165_306_368,
    tied=True,
    kv_widths=((1024, 1024),) * 28,
    head_widths=(128, 128),
    state=(0, 0),
    widest=6144,
    masks=1,
)
ONE_LAYER = replace(
    SMALL,
    layer_weights=(100_000_000,),
    other_weights=100_000_000,
    output_weights=100_000_000,
    tied=False,
    kv_widths=((1024, 1024),),
)


def read_from_main_memory(
    found: MemoryPlan, target: ModelFacts, draft: ModelFacts, name: str
) -> float:
    """Bytes of weights in a round that drafts, where each token chooses its experts by itself."""
    assert found.draft is not None
    on_card = found.target.gpu_layers
    whole = target.layers + 1 - on_card if on_card > 0 else 0  # layers, from the first
    count, used, _ = SHAPES[name].experts
    woken = 1 - (1 - used / count) ** (DRAFTED + 1)
    there = target.experts[: max(whole, found.target.cpu_moe)]
    rest = sum(target.layer_weights[:whole]) - sum(target.experts[:whole])
    drafting = DRAFTED * draft.read_bytes * (found.draft.gpu_layers == 0)
    return woken * sum(there) + rest + drafting


@pytest.mark.parametrize("draft", [SMALL, ONE_LAYER], ids=["a draft model", "a head"])
def test_with_the_draft_before_experts_a_round_reads_less_from_main_memory(
    draft: ModelFacts, sizes: dict[str, ModelFacts]
) -> None:
    for name, target in sizes.items():
        for card in CARDS:
            free = FreeMemory(128 * GB, (Device(card * GB),))
            first, last = (
                plan(target, [draft], free, UserLimits(n_ctx=8192, draft_gpu_layers=layers))
                for layers in (None, 0)
            )
            assert first.draft is not None
            assert first.draft.gpu_layers == -1
            read = [read_from_main_memory(each, target, draft, name) for each in (first, last)]
            assert read[0] < read[1], (name, card)


def test_the_page_next_to_llama_cpps_own_choice_shows_this_plan(
    sizes: dict[str, ModelFacts],
) -> None:
    page = Path(__file__).parents[1] / "docs/measurements/placement.md"
    rows = [line.split(" | ") for line in page.read_text("utf-8").splitlines()]
    rows = [row for row in rows if row[-1].endswith("% |")]
    shown = {(row[0].strip("| "), row[1]): f"{row[4]} | {row[5]}" for row in rows}
    assert len(shown) == len(SHAPES) * len(CARDS)
    for (name, gb), placed in shown.items():
        assert str(planned(sizes[name], int(gb), SHAPES[name])[1]) == placed, (name, gb)


ALL = ModelSetup(n_ctx=512, gpu_layers=-1)
CPU = ModelSetup(n_ctx=512)
Q8 = {"cache_k": "q8_0", "cache_v": "q8_0"}
# What llama.cpp printed in published logs, in MiB: the mixture with the types of its file, how it
# ran, and parts of what it took. Buffers for computing are those of 512 rows of logits.
PRINTED = {
    "gpt-oss-20b, whole context": (
        "gpt-oss-20b",
        None,
        replace(ALL, n_ctx=131_072),
        # What is mapped for the card is printed as the span of the whole file.
        {"device_weights": 11_536.18 - 586.82, "host_weights": 586.82}
        | {"device_buffers": 420.08, "host_buffers": 268.77},
    ),
    "gpt-oss-20b, experts on the processor": (
        "gpt-oss-20b",
        None,
        replace(ALL, n_ctx=131_072, cpu_moe=24),
        {"device_weights": 109.20 + 6 * 81.90 + 641.43},
    ),
    "gpt-oss-120b": (
        "gpt-oss-120b",
        None,
        replace(ALL, n_ctx=4096, flash=False),
        {"device_weights": 37_958.69 + 22_479.80, "host_weights": 586.82}
        | {"device_cache": 144 + 144},
    ),
    "Qwen3-30B-A3B, experts on the processor": (
        "Qwen3-30B-A3B",
        mixed(Q4_K, 48),
        replace(ALL, n_ctx=16_384, cpu_moe=48, flash=False),
        {"device_weights": 135.76 + 648.66, "device_cache": 384 + 1152}
        | {"device_buffers": 1080, "host_buffers": 36.01},
    ),
    "Qwen3-30B-A3B, some experts on the processor": (
        "Qwen3-30B-A3B",
        f16,
        replace(ALL, n_ctx=4096, cpu_moe=34),
        {"device_weights": 17_904, "device_cache": 384},
    ),
    "Qwen3.6-35B-A3B, three quarters on the card": (
        "Qwen3.6-35B-A3B",
        None,
        ModelSetup(n_ctx=132_352, gpu_layers=31, **Q8),
        {"host_cache": 274.66 + 16.75, "device_cache": 1098.62 + 46.06},
    ),
    "GLM-4.5-Air": (
        "GLM-4.5-Air",
        None,
        replace(ALL, n_ctx=131_072),
        {"device_cache": 23_552},
    ),
    "DeepSeek-V2-Lite": (
        "DeepSeek-V2-Lite",
        mixed(Q4_K, 27),
        replace(CPU, flash=False),
        {"host_weights": 9880.47, "host_cache": 81 + 54, "host_buffers": 204},
    ),
    "Mixtral": (
        "Mixtral-8x7B",
        mixed(Q5_K, 32, eight=True),
        ALL,
        {"device_weights": 30_649.55, "host_weights": 85.94, "device_cache": 64}
        | {"host_buffers": 9.01},
    ),
    "OLMoE": (
        "OLMoE-1B-7B",
        q4_0,
        ModelSetup(n_ctx=8192, gpu_layers=-1, **Q8),
        {"weights": 2025 + 1575 + 143.86, "device_cache": 306 + 238},
    ),
}


@pytest.mark.parametrize("row", PRINTED)
def test_a_plan_counts_what_llama_cpp_printed(row: str, tmp_path: Path) -> None:
    name, kind, setup, printed = PRINTED[row]
    shape = SHAPES[name] if kind is None else replace(SHAPES[name], kind=kind)
    model = facts(read_header(shape.write(tmp_path / "it.gguf")))
    taken = need(replace(model, outputs=512), setup)
    rows = 512 * model.vocab * 4  # llama.cpp prints the buffer of logits apart from these
    taken = replace(taken, host_buffers=taken.host_buffers - rows)
    for part, mib in printed.items():
        found = taken.parts[part] if part in taken.parts else getattr(taken, part)
        assert found == pytest.approx(mib * MIB, rel=0.05, abs=64e6), part


# Buffers of a device with ten layers of a mixture and 8,192 tokens of context, in MiB, counted by
# `llama-fit-params` (benchmarks/fit_params.py builds it): it copies matrices there for a prompt.
TEN_LAYERS = {
    "Mixtral-8x7B": 406,
    "gpt-oss-120b": 634,
    "Qwen3-30B-A3B": 300,
    "Qwen3.6-35B-A3B": 493,
}


@pytest.mark.parametrize("name", TEN_LAYERS)
def test_next_to_some_layers_a_card_has_room_for_copied_matrices(
    name: str, sizes: dict[str, ModelFacts]
) -> None:
    model = replace(sizes[name], outputs=512)
    taken = need(model, ModelSetup(n_ctx=8192, gpu_layers=10))
    assert 0.98 < taken.device_buffers / (TEN_LAYERS[name] * MIB) < 1.15


def test_next_to_some_layers_on_a_card_main_memory_has_no_room_for_their_logits(
    sizes: dict[str, ModelFacts],
) -> None:
    model = replace(sizes["gpt-oss-120b"], outputs=512)
    taken = need(model, ModelSetup(n_ctx=8192, gpu_layers=10))
    rows = 512 * model.vocab * 4
    assert 66 * MIB < taken.host_buffers - rows < 130 * MIB  # llama.cpp counts 66
