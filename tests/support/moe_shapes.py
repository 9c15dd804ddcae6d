"""Headers of published mixtures of experts, in files with holes for weights; llama.cpp reads them.

The shapes were read in load logs and headers that people printed (September 2025 to November 2026).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from localspec.pairs.gguf.header import GGML_TYPES
from tests.support import ggufs

# ggml's numbers of types
F32, F16, Q4_0, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K, Q6_K, MXFP4 = 0, 1, 2, 6, 7, 8, 12, 13, 14, 39
_FALLBACK = {Q4_K: Q5_0, Q5_K: Q5_1, Q6_K: Q8_0}  # where rows are not multiples of 256
Tensors = Iterator[tuple[str, tuple[int, ...]]]
Kind = Callable[[str], int]


def q4_k(name: str) -> int:
    """The type of a matrix in a file of one type: Q4_K, the output in Q6_K."""
    return Q6_K if name == "output.weight" else Q4_K


def mixed(usual: int, layers: int, *, eight: bool = False) -> Kind:
    """The types of llama.cpp's Q4_K_M and Q5_K_M: some in Q6_K, with eight experts some in Q8_0."""

    def kind(name: str) -> int:
        if name == "output.weight":
            return Q6_K
        at = int(name.split(".")[1]) if name.startswith("blk.") else 0
        if eight and ("attn_k." in name or "attn_v." in name):
            return Q8_0
        eighth = layers // 8
        more = at < eighth or at >= 7 * layers // 8 or (at - eighth) % 3 == 2
        return Q6_K if more and ("attn_v." in name or "ffn_down" in name) else usual

    return kind


def q4_0(name: str) -> int:
    """The types of a file in Q4_0."""
    return Q6_K if name == "output.weight" else Q4_0


def f16(_name: str) -> int:
    """Every matrix in F16."""
    return F16


def mxfp4(name: str) -> int:
    """The types of OpenAI's files: experts in MXFP4, all other matrices in Q8_0."""
    return MXFP4 if "_exps" in name else Q8_0


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A mixture's sizes.

    Attributes:
        architecture: llama.cpp's name of it.
        layers, width, vocab: numbers of layers, floats of a row, and tokens.
        heads: query heads, key heads and the width of each.
        experts: how many there are, how many a token uses, and their inner width.
        layer: the tensors of layer N without feed-forward parts.
        dense: the first layers without experts, and their inner width.
        shared: inner width of the expert that every token uses; 0 for none.
        tied: whether the output is the embedding.
        last_norm: the name of the norm before the output.
        second_norm: the name of the norm between attention and feed-forward part.
        rope: how many rotation frequencies the file stores; 0 for none.
        trained: tokens of context.
        keys: further settings.
        parameters: their number as published, to the digits that were printed; 0 if unknown.
        kind: the type of each matrix, by its name.
        more: the feed-forward parts of layer N; None for the usual ones.
    """

    architecture: str
    layers: int
    width: int
    vocab: int
    heads: tuple[int, int, int]
    experts: tuple[int, int, int]
    layer: Callable[[Shape, int], Tensors]
    dense: tuple[int, int] = (0, 0)
    shared: int = 0
    tied: bool = False
    last_norm: str = "output_norm"
    second_norm: str = "ffn_norm"
    rope: int = 0
    trained: int = 131_072
    keys: Mapping[str, object] = field(default_factory=dict)
    parameters: float = 0
    kind: Kind = q4_k
    more: Callable[[Shape, int], Tensors] | None = None

    def tensors(self) -> Tensors:
        """All tensors by name, rows first as in ggml."""
        yield "token_embd.weight", (self.width, self.vocab)
        yield f"{self.last_norm}.weight", (self.width,)
        if not self.tied:
            yield "output.weight", (self.width, self.vocab)
        if self.rope:
            yield "rope_freqs.weight", (self.rope,)
        for at in range(self.layers):
            for name, shape in self.layer(self, at):
                yield f"blk.{at}.{name}", shape
            for name, shape in (self.more or feed_forward)(self, at):
                yield f"blk.{at}.{name}", shape

    def write(self, path: Path) -> Path:
        """Write a file with this header and holes for weights."""
        table, offset = [], 0
        for name, shape in self.tensors():
            exact = len(shape) == 1 or name.endswith(("conv.weight", "gate_inp.weight", ".bias"))
            exact = exact or "conv1d" in name
            kind = F32 if exact else self.kind(name)
            if shape[0] % GGML_TYPES[kind][1]:
                kind = _FALLBACK.get(kind, Q8_0) if not shape[0] % 32 else F32
            table.append(ggufs.tensor(name, shape, kind, offset))
            _, block, size = GGML_TYPES[kind]
            offset += -(-(math.prod(shape) // block * size) // 32) * 32
        header = ggufs.header(self._metadata(), table)
        with path.open("wb") as file:
            file.write(header)
            file.truncate(len(header) + offset)
        return path

    def _metadata(self) -> list[tuple[str, int, object]]:
        heads, kv, head = self.heads
        count, used, inner = self.experts
        known: dict[str, object] = {
            "block_count": self.layers,
            "embedding_length": self.width,
            "attention.head_count": heads,
            "attention.head_count_kv": kv,
            "attention.key_length": head,
            "attention.value_length": head,
            "context_length": self.trained,
            "feed_forward_length": self.dense[1] or inner,
            "leading_dense_block_count": self.dense[0],
            "expert_count": count,
            "expert_used_count": used,
            "expert_feed_forward_length": inner,
            "expert_shared_count": self.shared // inner,
            "expert_shared_feed_forward_length": self.shared,
            "vocab_size": self.vocab,
            "attention.layer_norm_rms_epsilon": 1e-6,
            **self.keys,
        }
        found: list[tuple[str, int, object]] = [
            ("general.architecture", ggufs.STRING, self.architecture),
            ("tokenizer.ggml.model", ggufs.STRING, "no_vocab"),
        ]
        for name, value in known.items():
            kind, content = ggufs.F32 if isinstance(value, float) else ggufs.U32, value
            if isinstance(value, list):
                kind, content = ggufs.ARRAY, (ggufs.U32, value)
            found.append((f"{self.architecture}.{name}", kind, content))
        return found


def attention(it: Shape, at: int, *, gated: bool = False, normed: bool = True) -> Tensors:
    """The matrices of attention over all tokens, with norms."""
    heads, kv, head = it.heads
    yield "attn_norm.weight", (it.width,)
    yield f"{it.second_norm}.weight", (it.width,)
    yield "attn_q.weight", (it.width, heads * head * (1 + gated))
    yield "attn_k.weight", (it.width, kv * head)
    yield "attn_v.weight", (it.width, kv * head)
    yield "attn_output.weight", (heads * head, it.width)
    if normed:
        yield "attn_q_norm.weight", (head,)
        yield "attn_k_norm.weight", (head,)


def feed_forward(it: Shape, at: int) -> Tensors:
    """A dense part, or experts with the one that all tokens use."""
    count, _, inner = it.experts
    if at < it.dense[0]:
        for part in ("gate", "up"):
            yield f"ffn_{part}.weight", (it.width, it.dense[1])
        yield "ffn_down.weight", (it.dense[1], it.width)
        return
    yield "ffn_gate_inp.weight", (it.width, count)
    for part in ("gate", "up"):
        yield f"ffn_{part}_exps.weight", (it.width, inner, count)
    yield "ffn_down_exps.weight", (inner, it.width, count)
    if it.shared:
        for part in ("gate", "up"):
            yield f"ffn_{part}_shexp.weight", (it.width, it.shared)
        yield "ffn_down_shexp.weight", (it.shared, it.width)


def plain(it: Shape, at: int) -> Tensors:
    return attention(it, at, normed=False)


def wide_norms(it: Shape, at: int) -> Tensors:
    """OLMoE's attention, which norms all queries and all keys together."""
    yield from attention(it, at, normed=False)
    yield "attn_q_norm.weight", (it.width,)
    yield "attn_k_norm.weight", (it.width,)


def openai(it: Shape, at: int) -> Tensors:
    heads, kv, head = it.heads
    yield from attention(it, at, normed=False)
    yield "attn_sinks.weight", (heads,)
    for name, size in (("q", heads * head), ("k", kv * head), ("v", kv * head)):
        yield f"attn_{name}.bias", (size,)
    yield "attn_output.bias", (it.width,)
    count, _, inner = it.experts
    yield "ffn_gate_inp.bias", (count,)
    for part, size in (("gate", inner), ("up", inner), ("down", it.width)):
        yield f"ffn_{part}_exps.bias", (size, count)


def glm(it: Shape, at: int) -> Tensors:
    heads, kv, head = it.heads
    yield from attention(it, at, normed=False)
    for name, size in (("q", heads * head), ("k", kv * head), ("v", kv * head)):
        yield f"attn_{name}.bias", (size,)
    if at >= it.dense[0]:
        yield "exp_probs_b.bias", (it.experts[0],)
    if at == it.layers - 1:
        yield "nextn.eh_proj.weight", (2 * it.width, it.width)
        for name in ("enorm", "hnorm", "shared_head_norm"):
            yield f"nextn.{name}.weight", (it.width,)
        for name in ("embed_tokens", "shared_head_head"):
            yield f"nextn.{name}.weight", (it.width, it.vocab)


def gated_delta(it: Shape, at: int) -> Tensors:
    """Every fourth layer has attention, the others a gated delta net."""
    if at % 4 == 3:
        yield from attention(it, at, gated=True)
    else:
        yield "attn_norm.weight", (it.width,)
        yield f"{it.second_norm}.weight", (it.width,)
        yield "attn_qkv.weight", (it.width, 8192)
        yield "attn_gate.weight", (it.width, 4096)
        yield "ssm_conv1d.weight", (4, 8192)
        yield "ssm_dt.bias", (32,)
        yield "ssm_a", (32,)
        joined = it.architecture == "qwen3next"
        for name in ("ba",) if joined else ("beta", "alpha"):
            yield f"ssm_{name}.weight", (it.width, 64 if joined else 32)
        yield "ssm_norm.weight", (128,)
        yield "ssm_out.weight", (4096, it.width)
    yield "ffn_gate_inp_shexp.weight", (it.width,)


DELTA: Mapping[str, object] = {
    "ssm.conv_kernel": 4,
    "ssm.inner_size": 4096,
    "ssm.state_size": 128,
    "ssm.time_step_rank": 32,
    "ssm.group_count": 16,
    "full_attention_interval": 4,
}


def latent(it: Shape, at: int) -> Tensors:
    """GLM-4.7-Flash's attention through a compressed row."""
    heads = it.heads[0]
    yield "attn_norm.weight", (it.width,)
    yield "ffn_norm.weight", (it.width,)
    yield "attn_q_a.weight", (it.width, 768)
    yield "attn_q_a_norm.weight", (768,)
    yield "attn_q_b.weight", (768, heads * 256)
    yield "attn_kv_a_mqa.weight", (it.width, 576)
    yield "attn_kv_a_norm.weight", (512,)
    yield "attn_k_b.weight", (192, 512, heads)
    yield "attn_v_b.weight", (512, 256, heads)
    yield "attn_output.weight", (heads * 256, it.width)
    if at >= it.dense[0]:
        yield "exp_probs_b.bias", (it.experts[0],)


def uncompressed(it: Shape, at: int) -> Tensors:
    """DeepSeek-V2-Lite's attention in old files, whose keys and values are cached whole."""
    heads = it.heads[0]
    yield "attn_norm.weight", (it.width,)
    yield "ffn_norm.weight", (it.width,)
    yield "attn_q.weight", (it.width, heads * 192)
    yield "attn_kv_a_mqa.weight", (it.width, 576)
    yield "attn_kv_a_norm.weight", (512,)
    yield "attn_kv_b.weight", (512, heads * 256)
    yield "attn_output.weight", (heads * 128, it.width)


ATTENDING = (2, 6, 10, 14, 18, 21)


def short_convolution(it: Shape, at: int) -> Tensors:
    """LFM2's layers: six with attention, the others with a short convolution."""
    if at in ATTENDING:
        yield from attention(it, at)
    else:
        yield "attn_norm.weight", (it.width,)
        yield "ffn_norm.weight", (it.width,)
        yield "shortconv.conv.weight", (3, it.width)
        yield "shortconv.in_proj.weight", (it.width, 3 * it.width)
        yield "shortconv.out_proj.weight", (it.width, it.width)
    if at >= it.dense[0]:
        yield "exp_probs_b.bias", (it.experts[0],)


def gemma(it: Shape, at: int) -> Tensors:
    """Every sixth layer sees all tokens, with two wide key heads whose keys serve as values."""
    full = at % 6 == 5
    kv, head = (2, 512) if full else (8, 256)
    for name in ("attn", "ffn", "post_attention", "post_ffw"):
        yield f"{name}_norm.weight", (it.width,)
    yield "attn_q.weight", (it.width, 16 * head)
    yield "attn_k.weight", (it.width, kv * head)
    if not full:
        yield "attn_v.weight", (it.width, kv * head)
    yield "attn_output.weight", (16 * head, it.width)
    yield "attn_q_norm.weight", (head,)
    yield "attn_k_norm.weight", (head,)


def gemma_forward(it: Shape, at: int) -> Tensors:
    """A dense part next to the experts in every layer, whose gates and ups are one matrix."""
    count, _, inner = it.experts
    yield "ffn_gate_inp.weight", (it.width, count)
    yield "ffn_gate_up_exps.weight", (it.width, 2 * inner, count)
    yield "ffn_down_exps.weight", (inner, it.width, count)
    for part in ("gate", "up"):
        yield f"ffn_{part}.weight", (it.width, 2112)
    yield "ffn_down.weight", (2112, it.width)
    for name in ("pre_ffw_norm_2", "post_ffw_norm_1", "post_ffw_norm_2"):
        yield f"{name}.weight", (it.width,)
    yield "ffn_gate_inp.scale", (it.width,)
    yield "ffn_down_exps.scale", (it.experts[0],)
    yield "layer_output_scale.weight", (1,)


SHAPES: Mapping[str, Shape] = {
    "gpt-oss-20b": Shape(
        architecture="gpt-oss",
        layers=24,
        width=2880,
        vocab=201_088,
        heads=(64, 8, 64),
        experts=(32, 4, 2880),
        layer=openai,
        second_norm="post_attention_norm",
        keys={"attention.sliding_window": 128},
        parameters=20.91e9,
        kind=mxfp4,
    ),
    "gpt-oss-120b": Shape(
        architecture="gpt-oss",
        layers=36,
        width=2880,
        vocab=201_088,
        heads=(64, 8, 64),
        experts=(128, 4, 2880),
        layer=openai,
        second_norm="post_attention_norm",
        keys={"attention.sliding_window": 128},
        parameters=116.83e9,
        kind=mxfp4,
    ),
    "Qwen3-30B-A3B": Shape(
        architecture="qwen3moe",
        layers=48,
        width=2048,
        vocab=151_936,
        heads=(32, 4, 128),
        experts=(128, 8, 768),
        layer=attention,
        trained=40_960,
        parameters=30_532_122_624,
    ),
    "Qwen3-Next-80B-A3B": Shape(
        architecture="qwen3next",
        layers=48,
        width=2048,
        vocab=151_936,
        heads=(16, 2, 256),
        experts=(512, 10, 512),
        layer=gated_delta,
        second_norm="post_attention_norm",
        shared=512,
        trained=262_144,
        keys=DELTA,
        parameters=79_674_391_296,
    ),
    "Qwen3.6-35B-A3B": Shape(
        architecture="qwen35moe",
        layers=40,
        width=2048,
        vocab=248_320,
        heads=(16, 2, 256),
        experts=(256, 8, 512),
        layer=gated_delta,
        second_norm="post_attention_norm",
        shared=512,
        trained=262_144,
        keys={**DELTA, "rope.dimension_sections": [11, 11, 10, 0]},
        parameters=34.66e9,
    ),
    "GLM-4.5-Air": Shape(
        architecture="glm4moe",
        layers=47,
        width=4096,
        vocab=151_552,
        heads=(96, 8, 128),
        experts=(128, 8, 1408),
        layer=glm,
        second_norm="post_attention_norm",
        dense=(1, 10_944),
        shared=1408,
        keys={"nextn_predict_layers": 1},
        parameters=110.47e9,
    ),
    "GLM-4.7-Flash": Shape(
        architecture="deepseek2",
        layers=47,
        width=2048,
        vocab=154_880,
        heads=(20, 1, 576),
        experts=(64, 4, 1536),
        layer=latent,
        dense=(1, 10_240),
        shared=1536,
        trained=202_752,
        keys={
            "attention.kv_lora_rank": 512,
            "attention.q_lora_rank": 768,
            "attention.value_length": 512,
            "attention.key_length_mla": 256,
            "attention.value_length_mla": 256,
            "rope.dimension_count": 64,
        },
        parameters=29.94e9,
    ),
    "DeepSeek-V2-Lite": Shape(
        architecture="deepseek2",
        layers=27,
        width=2048,
        vocab=102_400,
        heads=(16, 16, 192),
        experts=(64, 6, 1408),
        layer=uncompressed,
        dense=(1, 10_944),
        shared=2816,
        trained=163_840,
        keys={
            "attention.kv_lora_rank": 512,
            "attention.value_length": 128,
            "rope.dimension_count": 64,
        },
        parameters=15.71e9,
    ),
    "Mixtral-8x7B": Shape(
        architecture="llama",
        layers=32,
        width=4096,
        vocab=32_000,
        heads=(32, 8, 128),
        experts=(8, 2, 14_336),
        layer=plain,
        trained=32_768,
        parameters=46.70e9,
    ),
    "OLMoE-1B-7B": Shape(
        architecture="olmoe",
        layers=16,
        width=2048,
        vocab=50_304,
        heads=(16, 16, 128),
        experts=(64, 8, 1024),
        layer=wide_norms,
        trained=4096,
        parameters=6_919_161_856,
    ),
    "LFM2.5-8B-A1B": Shape(
        architecture="lfm2moe",
        layers=24,
        width=2048,
        vocab=128_000,
        heads=(32, 8, 64),
        experts=(32, 4, 1792),
        layer=short_convolution,
        dense=(2, 7168),
        tied=True,
        last_norm="token_embd_norm",
        trained=128_000,
        keys={
            "shortconv.l_cache": 3,
            "expert_gating_func": 2,
            "attention.head_count_kv": [8 * (at in ATTENDING) for at in range(24)],
        },
        parameters=8_467_856_832,
    ),
    "Gemma-4-26B-A4B": Shape(
        architecture="gemma4",
        layers=30,
        width=2816,
        vocab=262_144,
        heads=(16, 8, 512),
        experts=(128, 8, 704),
        dense=(0, 2112),
        layer=gemma,
        more=gemma_forward,
        tied=True,
        rope=256,
        trained=262_144,
        keys={
            "attention.head_count_kv": [2 if at % 6 == 5 else 8 for at in range(30)],
            "attention.key_length_swa": 256,
            "attention.value_length_swa": 256,
            "attention.sliding_window": 1024,
            "embedding_length_per_layer_input": 0,
            "attention.sliding_window_pattern": [int(at % 6 != 5) for at in range(30)],
        },
        parameters=25.233e9,
    ),
}
