"""What headers of many architectures say: as llama.cpp allocates for models of these shapes.

Most figures of the caches and states were read from llama.cpp's log (llama-cpp-python 0.3.36),
which loaded files with these headers and holes in place of weights. Those of Nemotron-H, of Qwen3.5
with layers that predict more tokens and of `recurrent_layers` follow from its source: it made no
context for such files. So do those of MiniMax-01, Nanbeige and the models with an indexer;
test_memory_plan.py holds small ones next to it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from localspec.errors import OutOfMemory, UsageError
from localspec.pairs.gguf import header as gguf
from localspec.pairs.memory.free import Device, FreeMemory
from localspec.pairs.memory.model_facts import ModelFacts, facts
from localspec.pairs.memory.need import ModelSetup, need
from localspec.pairs.memory.placement import PROGRAM, MemoryPlan, UserLimits, plan

from .support import ggufs

Keys = Mapping[str, int | Sequence[int]]
CELLS = 4096
EXPERTS = {"expert_count": 8, "expert_used_count": 4, "expert_feed_forward_length": 512}
SSM = {"ssm.conv_kernel": 4, "ssm.state_size": 128}
HEADS_256 = {"attention.key_length": 256, "attention.value_length": 256}
INDEXER = {
    "attention.indexer.head_count": 64,
    "attention.indexer.key_length": 128,
    "attention.indexer.top_k": 2048,
}
LATENT = {"attention.kv_lora_rank": 512, "rope.dimension_count": 64}

# architecture, its keys, bytes of the cache and of the states at 4,096 tokens in f16
KNOWN: dict[str, tuple[str, Keys, int]] = {
    "one row for keys and values": (
        "deepseek2",
        {"block_count": 27, "embedding_length": 2048, "attention.head_count": 16, **LATENT}
        | {"attention.head_count_kv": 1, "attention.key_length": 576}
        | {"attention.value_length": 512, "attention.key_length_mla": 192},
        127_401_984,
    ),
    "a compressed row that is not what is cached": (
        "deepseek2",
        {"block_count": 27, "embedding_length": 2048, "attention.head_count": 16, **LATENT}
        | {"attention.head_count_kv": 16, "attention.key_length": 192}
        | {"attention.value_length": 128},
        1_132_462_080,
    ),
    "the same, MiniCPM3": (
        "minicpm3",
        {"block_count": 4, "embedding_length": 2560, "attention.head_count": 40}
        | {"attention.head_count_kv": 40, "attention.kv_lora_rank": 256}
        | {"attention.key_length": 96, "attention.value_length": 64, "rope.dimension_count": 32},
        209_715_200,
    ),
    "layers that read an earlier one's cache": (
        "gemma3n",
        {"block_count": 30, "embedding_length": 2048, "attention.head_count": 8, **HEADS_256}
        | {"attention.head_count_kv": 2, "attention.sliding_window": 512},
        167_772_160,
    ),
    "the same by a key, and other heads in sliding layers": (
        "gemma4",
        {"block_count": 12, "embedding_length": 1536, "attention.head_count": 8}
        | {"attention.head_count_kv": [1] * 12, "attention.sliding_window": 512}
        | {"attention.key_length": 512, "attention.value_length": 512}
        | {"attention.key_length_swa": 256, "attention.value_length_swa": 256}
        | {"attention.shared_kv_layers": 6}
        | {"attention.sliding_window_pattern": [1, 1, 1, 1, 1, 0] * 2},
        CELLS * (5 * 512 + 1024) * 2,
    ),
    "heads by layer, none in one": (
        "deci",
        {"block_count": 4, "embedding_length": 4096, "attention.head_count": [32, 0, 32, 32]}
        | {"attention.head_count_kv": [8, 0, 4, 8]},
        CELLS * 20 * 256 * 2,
    ),
    "no head count for keys: that of queries": (
        "olmo2",
        {"block_count": 4, "embedding_length": 2048, "attention.head_count": 16},
        CELLS * 4 * 4096 * 2,
    ),
    "every layer with attention and a state": (
        "falcon-h1",
        {"block_count": 4, "embedding_length": 1024, "attention.head_count": 8, **SSM}
        | {"attention.head_count_kv": 2, "attention.key_length": 64, "attention.value_length": 64}
        | {"ssm.inner_size": 1536, "ssm.group_count": 1},
        CELLS * 4 * 256 * 2 + 4 * 4 * (3 * (1536 + 256) + 1536 * 128),
    ),
    "a state where there are no heads for keys": (
        "granitehybrid",
        {"block_count": 6, "embedding_length": 1536, "attention.head_count": 12, **SSM, **EXPERTS}
        | {"attention.head_count_kv": [0, 0, 4, 0, 0, 4], "ssm.inner_size": 3072}
        | {"ssm.group_count": 1},
        CELLS * 2 * 1024 * 2 + 4 * 4 * (3 * (3072 + 256) + 3072 * 128),
    ),
    "neither attention nor a state in a feed-forward layer": (
        "nemotron_h",
        {"block_count": 6, "embedding_length": 3136, "attention.head_count": 40, **SSM}
        | {"attention.head_count_kv": [0, 0, 8, 0, 0, 0], "ssm.inner_size": 7680}
        | {"feed_forward_length": [0, 12544, 0, 12544, 0, 12544], "ssm.group_count": 8}
        | {"attention.key_length": 128, "attention.value_length": 128},
        CELLS * 2048 * 2 + 2 * 4 * (3 * (7680 + 2048) + 7680 * 128),
    ),
    "attention in every fourth layer, as the architecture has it": (
        "qwen3next",
        {"block_count": 8, "embedding_length": 2048, "attention.head_count": 16, **SSM, **EXPERTS}
        | {"attention.head_count_kv": 2, "ssm.inner_size": 4096, "ssm.group_count": 16}
        | HEADS_256,
        CELLS * 2 * 1024 * 2 + 6 * 4 * (3 * (4096 + 4096) + 4096 * 128),
    ),
    "a last layer that predicts more tokens and is not loaded": (
        "qwen35",
        {"block_count": 9, "embedding_length": 2560, "attention.head_count": 16, **SSM}
        | {"attention.head_count_kv": 4, "ssm.inner_size": 4096, "ssm.group_count": 16}
        | {"full_attention_interval": 4, "nextn_predict_layers": 1, **HEADS_256},
        CELLS * 2 * 2048 * 2 + 6 * 4 * (3 * (4096 + 4096) + 4096 * 128),
    ),
    "the layers with a state are listed": (
        "qwen35",
        {"block_count": 4, "embedding_length": 2560, "attention.head_count": 16, **SSM}
        | {"attention.head_count_kv": 4, "ssm.inner_size": 4096, "ssm.group_count": 16}
        | {"attention.recurrent_layers": [1, 1, 0, 0], **HEADS_256},
        CELLS * 2 * 2048 * 2 + 2 * 4 * (3 * (4096 + 4096) + 4096 * 128),
    ),
    "delta attention": (
        "kimi-linear",
        {"block_count": 4, "embedding_length": 2304, "attention.head_count": 32, **LATENT}
        | {"attention.head_count_kv": [0, 0, 0, 1], "attention.key_length": 576}
        | {"attention.value_length": 512, "attention.key_length_mla": 192}
        | {"ssm.conv_kernel": 4, "kda.head_dim": 128},
        CELLS * 576 * 2 + 3 * 4 * 32 * 128 * (9 + 128),
    ),
    "attention in every eighth layer, a square for each head in the others": (
        "minimax-01",
        {"block_count": 16, "embedding_length": 6144, "attention.head_count": 64, **EXPERTS}
        | {"attention.head_count_kv": 8, "attention.key_length": 128}
        | {"attention.value_length": 128},
        CELLS * 2 * 2048 * 2 + 14 * 4 * 64 * 128**2,
    ),
    "the same, and a header that says which layers": (
        "minimax-01",
        {"block_count": 4, "embedding_length": 512, "attention.head_count": 8}
        | {"attention.head_count_kv": 4, "full_attention_interval": 2},
        CELLS * 2 * 512 * 2 + 2 * 4 * 8 * 64**2,
    ),
    "every layer passed through three times, with a cache for each time": (
        "nanbeige",
        {"block_count": 4, "embedding_length": 2048, "attention.head_count": 16}
        | {"attention.head_count_kv": 4, "num_loops": 3},
        CELLS * 3 * 4 * 1024 * 2,
    ),
    "keys of an indexer": (
        "deepseek32",
        {"block_count": 5, "embedding_length": 7168, "attention.head_count": 128, **LATENT}
        | {"attention.head_count_kv": 1, "attention.key_length": 576, "nextn_predict_layers": 1}
        | {"attention.value_length": 512, "attention.key_length_mla": 192, **INDEXER},
        CELLS * 4 * (576 + 128) * 2,
    ),
    "an indexer in the layers that are listed": (
        "hy_v4",
        {"block_count": 4, "embedding_length": 4096, "attention.head_count": 64, **LATENT}
        | {"attention.head_count_kv": 1, "attention.key_length": 576}
        | {"attention.value_length": 512, "attention.key_length_mla": 192, **INDEXER}
        | {"attention.indexer.types": [1, 0, 0, 1]},
        CELLS * (4 * 576 + 2 * 128) * 2,
    ),
    "an indexer in the layers that llama.cpp knows": (
        "glm-dsa",
        {"block_count": 8, "embedding_length": 6144, "attention.head_count": 64, **LATENT}
        | {"attention.head_count_kv": 1, "attention.key_length": 576, "context_length": 1 << 20}
        | {"attention.value_length": 512, "attention.key_length_mla": 192, **INDEXER},
        CELLS * (8 * 576 + 4 * 128) * 2,
    ),
    "one row for keys and values in layers of two widths, and an indexer in the wide ones": (
        "dots3note",
        {"block_count": 4, "embedding_length": 4096, "attention.head_count": 64, **LATENT}
        | {"attention.head_count_kv": 1, "attention.key_length": 576, **INDEXER}
        | {"attention.value_length": 512, "attention.key_length_mla": 192}
        | {"attention.key_length_swa": 320, "attention.value_length_swa": 256}
        | {"attention.sliding_window": 512, "attention.sliding_window_pattern": [1, 0, 1, 0]}
        | {"attention.indexer.types": [0, 1, 0, 1]},
        CELLS * 2 * (576 + 128 + 320) * 2,
    ),
    "an indexer with a value head, in no dense layer": (
        "minimax-m3",
        {"block_count": 4, "embedding_length": 6144, "attention.head_count": 64, **INDEXER}
        | {"attention.head_count_kv": 4, "attention.key_length": 128}
        | {"attention.value_length": 128, "leading_dense_block_count": 3},
        CELLS * (4 * 1024 + 256) * 2,
    ),
    "keys, gates and pooled keys in the layers with attention": (
        "glm5-next",
        {"block_count": 4, "embedding_length": 4096, "attention.head_count": 32, **LATENT}
        | {"attention.head_count_kv": [0, 0, 0, 1], "attention.key_length": 512}
        | {"attention.value_length": 512, "attention.key_length_mla": 192, "kda.head_dim": 128}
        | {"ssm.conv_kernel": 4, "attention.indexer.kpool": 4, **INDEXER},
        CELLS * (512 + 3 * 128) * 2 + 3 * 4 * 32 * 128 * (9 + 128),
    ),
    "an indexer in the layers without a state": (
        "qwen4exp",
        {"block_count": 8, "embedding_length": 2048, "attention.head_count": 16, **SSM, **EXPERTS}
        | {"attention.head_count_kv": 2, "ssm.inner_size": 4096, "ssm.group_count": 16}
        | {**HEADS_256, **INDEXER},
        CELLS * 2 * (1024 + 128) * 2 + 6 * 4 * (3 * (4096 + 4096) + 4096 * 128),
    ),
    "one row for keys and values, and a quarter of a row and of an indexer's key for each token": (
        "deepseek4",
        {"block_count": 4, "embedding_length": 4096, "attention.head_count": 64, **INDEXER}
        | {"attention.head_count_kv": 1, "attention.key_length": 512}
        | {"attention.value_length": 512, "attention.sliding_window": 128}
        | {"attention.compress_ratios": [0, 4, 4, 0]},
        CELLS * (4 * 512 + 2 * (512 + 128) // 4) * 2,
    ),
    "no attention at all": (
        "rwkv7",
        {
            "block_count": 4,
            "embedding_length": 2048,
            "attention.head_count": 0,
            "wkv.head_size": 64,
        },
        4 * 4 * 2048 * (64 + 2),
    ),
}


def header(
    architecture: str, keys: Keys, tensors: Sequence[tuple[str, int]] = ()
) -> gguf.GgufHeader:
    """A header with these keys, and tensors of one row with the given numbers of floats."""
    metadata = [("general.architecture", ggufs.STRING, architecture)]
    for name, value in keys.items():
        kind = (ggufs.U32, value) if isinstance(value, int) else (ggufs.ARRAY, (ggufs.U32, value))
        metadata.append((f"{architecture}.{name}", *kind))  # type: ignore[arg-type]
    listed, offset = [], 0
    for name, width in tensors:
        listed.append(ggufs.tensor(name, [width], 0, offset))
        offset += -(-4 * width // 32) * 32
    data = ggufs.header(metadata, listed)
    return gguf.parse_header(lambda at, size: data[at : at + size], None, "it")


@pytest.mark.parametrize("name", KNOWN)
def test_caches_and_states_are_those_that_llama_cpp_allocates(name: str) -> None:
    architecture, keys, n_bytes = KNOWN[name]
    assert need(facts(header(architecture, keys)), ModelSetup(n_ctx=CELLS)).host_cache == n_bytes


@pytest.mark.parametrize(
    ("architecture", "window", "masks"),
    [
        *(("llama4", None, 2), ("llama4", 0, 1), ("gemma2", None, 2)),
        *(("gemma3", None, 1), ("gemma3", 512, 2), ("phi3", 2048, 1)),
    ],
)
def test_a_window_has_a_mask_of_its_own(architecture: str, window: int | None, masks: int) -> None:
    keys: Keys = {} if window is None else {"attention.sliding_window": window}
    assert facts(header(architecture, keys)).masks == masks


@pytest.mark.parametrize("keys", [{}, {"block_count": 4}, {"attention.head_count": [0, 0]}])
def test_a_header_without_sizes_is_no_reason_to_fail(keys: Keys) -> None:
    found = need(facts(header("llama", keys)), ModelSetup(n_ctx=CELLS))
    assert found.host_weights == found.host_cache == 0


@pytest.mark.parametrize("key", ["block_count", "context_length", "nextn_predict_layers"])
def test_impossible_numbers_cost_nothing(key: str) -> None:
    shape: Keys = {"block_count": 4, "embedding_length": 64, "attention.head_count": 4}
    found = facts(header("llama", {**shape, key: 2**32 - 1}))
    assert found.layers <= 512
    assert need(found, ModelSetup(n_ctx=CELLS)).total < 10**9


def test_arrays_that_are_too_short_leave_layers_without() -> None:
    keys: Keys = {"block_count": 4, "embedding_length": 64, "attention.head_count": 4}
    short = facts(header("llama", {**keys, "attention.head_count_kv": [4, 4]}))
    assert short.kv_widths == ((64, 64), (64, 64), (0, 0), (0, 0))


def test_all_parts_of_a_split_model_are_counted_by_layer(tmp_path: Path) -> None:
    for name, data in ggufs.split_model("big", 3).items():
        (tmp_path / name).write_bytes(data)
    model = gguf.read_model(tmp_path / "big-00001-of-00003.gguf")
    assert len(model.header.tensors) == 3
    assert facts(model.header).weights == model.header.tensor_bytes


# --- accelerators -----------------------------------------------------------------------------

SHAPE: Keys = {"block_count": 2, "embedding_length": 64, "attention.head_count": 4}
LAYERS = [("token_embd.weight", 8000), ("blk.0.w", 1000), ("blk.1.w", 2000)]


def on_device(model: ModelFacts, layers: int) -> tuple[int, int]:
    found = need(model, ModelSetup(n_ctx=256, gpu_layers=layers))
    return found.host_weights, found.device_weights


def test_the_output_goes_to_the_accelerator_before_any_layer() -> None:
    own = facts(header("llama", SHAPE, [*LAYERS, ("output.weight", 4000)]))
    assert [on_device(own, n) for n in (0, 1, 2, 3, -1)] == [
        (60_000, 0),
        (44_000, 16_000),
        (36_000, 24_000),
        (32_000, 28_000),
        (32_000, 28_000),
    ]


def test_a_tied_output_is_a_copy_of_the_embedding() -> None:
    tied = facts(header("llama", SHAPE, LAYERS))
    assert [on_device(tied, n) for n in (0, 1, 2, -1)] == [
        (44_000, 0),
        (44_000, 32_000),
        (36_000, 40_000),
        (32_000, 44_000),
    ]


def test_a_layer_that_is_not_loaded_weighs_nothing() -> None:
    found = facts(header("qwen35", {**SHAPE, "nextn_predict_layers": 1}, LAYERS))
    assert found.layer_weights == (4000, 0)


# --- types of the cache -----------------------------------------------------------------------

NARROW: Keys = {"block_count": 32, "embedding_length": 2560, "attention.head_count": 32}


def test_a_smaller_cache_is_chosen_only_where_llama_cpp_takes_it() -> None:
    narrow, wide = (
        facts(header("phi2", {**NARROW, "embedding_length": width})) for width in (2560, 2048)
    )
    assert (narrow.head_widths, wide.head_widths) == ((80, 80), (64, 64))
    for model, kinds in ((narrow, {"f16"}), (wide, {"f16", "q8_0"})):
        most = plan(model, [], FreeMemory(ram=10**11), UserLimits()).host + PROGRAM
        tried = range(most, most // 8, -most // 40)
        limit = [FreeMemory(ram=ram, address_space=ram) for ram in tried]
        assert {found.target.cache_k for free in limit if (found := fitted(model, free))} == kinds


def fitted(
    model: ModelFacts, free: FreeMemory, drafts: Sequence[ModelFacts] = ()
) -> MemoryPlan | None:
    try:
        return plan(model, drafts, free, UserLimits())
    except OutOfMemory:
        return None


def test_a_cache_type_that_llama_cpp_would_refuse_is_refused_before_the_load() -> None:
    narrow = facts(header("phi2", NARROW))
    wide = facts(header("phi2", {**NARROW, "embedding_length": 2048}))
    free = FreeMemory(10**11, (Device(10**9),))
    with pytest.raises(UsageError, match="target's heads are 80 wide: q8_0 holds blocks of 32"):
        plan(narrow, [], free, UserLimits(cache_k="q8_0", cache_v="f16"))
    with pytest.raises(UsageError, match="the draft's heads") as refused:
        plan(wide, [narrow], free, UserLimits(cache_k="f16", cache_v="q4_0"))
    assert "--cache-type-v" in refused.value.remedy
    assert plan(narrow, [], free, UserLimits(cache_k="bf16", cache_v="f32")).target.cache_v == "f32"


def test_a_model_without_flash_attention_is_planned_without_it() -> None:
    """llama.cpp turns it off for Grok, and then caches no quantised values."""
    wide = {**NARROW, "embedding_length": 2048}
    grok, usual = facts(header("grok", wide)), facts(header("llama", wide))
    on, off = (ModelSetup(n_ctx=CELLS, flash=flash) for flash in (True, False))
    assert need(grok, on) == need(grok, off) == need(usual, off) != need(usual, on)
    for target, drafts in ((grok, []), (usual, [grok])):
        most = plan(target, drafts, FreeMemory(10**11), UserLimits()).host + PROGRAM
        limit = [FreeMemory(ram, address_space=ram) for ram in range(most, most // 8, -most // 40)]
        found = [it for free in limit if (it := fitted(target, free, drafts))]
        assert len(found) > 10
        assert {it.target.cache_k for it in found} == {"f16"}
        with pytest.raises(UsageError, match=r"not have for the (target|draft)'s architecture"):
            plan(target, drafts, limit[0], UserLimits(cache_k="f16", cache_v="q8_0"))
    limits = UserLimits(cache_k="q8_0", cache_v="f16")
    assert plan(grok, [], FreeMemory(10**11), limits).target.cache_k == "q8_0"


@pytest.mark.parametrize("name", [name for name in KNOWN if name.startswith("one row for keys")])
def test_keys_and_values_of_one_row_have_one_type(name: str) -> None:
    architecture, keys, _ = KNOWN[name]
    model, free = facts(header(architecture, keys)), FreeMemory(10**11)
    with pytest.raises(UsageError, match="cached in the same type"):
        plan(model, [], free, UserLimits(cache_k="q8_0", cache_v="f16"))
    assert (
        plan(model, [], free, UserLimits(cache_k="q8_0", cache_v="q8_0")).target.cache_k == "q8_0"
    )
