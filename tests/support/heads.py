"""Draft heads with random weights: EAGLE-3 files for the toy target, and targets with MTP inside.

Arguments make a head wrong in every way that a check must notice.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from localspec.pairs.gguf import gguf_writer, header
from tests.support import toy
from tests.support.gguf_models import Sizes, Vocabulary, Weights, read_vocabulary

if TYPE_CHECKING:
    from collections.abc import Sequence

TOY_WIDTH = 384


class Picky(Weights):
    """Leaves tensors out, or gives them another type."""

    def __init__(self, *args: Any, without: Sequence[str] = (), **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.without = without

    def matrix(self, name: str, *shape: int, std: float | None = None) -> None:
        if name not in self.without:
            super().matrix(name, *shape, std=std)

    def vector(self, name: str, *shape: int, value: float = 1.0) -> None:
        if name.removesuffix(".weight") not in self.without:
            super().vector(name, *shape, value=value)


@dataclass(frozen=True, kw_only=True)
class Eagle:
    """What an EAGLE-3 head says of itself; the defaults fit the toy target."""

    taps: Sequence[int] = (2, 5, 7)
    reads: int = TOY_WIDTH
    sizes: Sizes = field(
        default_factory=lambda: Sizes(
            n_layer=1, n_embd=TOY_WIDTH, n_head=6, n_head_kv=6, n_ff=64, n_ctx=1024
        )
    )
    vocabulary: Vocabulary | None = None
    own_embedding: int = 0
    own_output: int = 0
    d2t: Sequence[int] | None = None
    d2t_type: type = np.int64
    without: Sequence[str] = ()
    keys: dict[str, int] = field(default_factory=dict)
    norm_type: type = np.float32


def write_eagle3(path: Path, head: Eagle | None = None, *, seed: int = 0) -> Path:
    """Write an EAGLE-3 head."""
    head = head or Eagle()
    vocabulary = replace(head.vocabulary or read_vocabulary(toy.TARGET), template=None)
    sizes, width = head.sizes, head.sizes.n_embd
    weights = Picky(path, "eagle3", vocabulary, seed, "q8_0", without=head.without)
    weights.sizes(sizes)
    writer = weights.writer
    writer.add_rope_dimension_count(sizes.head)
    writer.add_array("eagle3.target_layers", list(head.taps))
    writer.add_uint32("eagle3.target_hidden_size", head.reads)
    for key, value in head.keys.items():
        writer.add_uint32(f"eagle3.{key}", value)
    weights.matrix("fc", width, max(1, len(head.taps)) * head.reads)
    weights.vector("output_norm.weight", width)
    if head.own_embedding:
        weights.matrix("token_embd", head.own_embedding, width, std=1.0)
    if head.own_output:
        weights.matrix("output", head.own_output, width)
    if head.d2t is not None:
        writer.add_tensor("d2t", np.array(head.d2t, dtype=head.d2t_type))
    for number in range(sizes.n_layer):
        layer = f"blk.{number}"
        weights.vector(f"{layer}.attn_norm.weight", width)
        if f"{layer}.attn_norm_2" not in head.without:
            writer.add_tensor(f"{layer}.attn_norm_2.weight", np.ones(width, head.norm_type))
        weights.matrix(f"{layer}.attn_q", sizes.n_head * sizes.head, 2 * width)
        for name in ("attn_k", "attn_v"):
            weights.matrix(f"{layer}.{name}", sizes.n_head_kv * sizes.head, 2 * width)
        weights.matrix(f"{layer}.attn_output", width, sizes.n_head * sizes.head)
        weights.feed_forward(layer, sizes)
    return weights.save()


@dataclass(frozen=True, kw_only=True)
class Block:
    """What a DFlash head says of itself; the defaults fit the toy target.

    `anchored` makes it a DSpark head, whose first guess is the newest token's own row or not
    (`markov`: whether it has the tensors, None for as it says); `candidates` a DFlash2 one.
    """

    taps: Sequence[int] = (2, 5, 7)
    sizes: Sizes = field(
        default_factory=lambda: Sizes(
            n_layer=2, n_embd=TOY_WIDTH, n_head=6, n_head_kv=6, n_ff=64, n_ctx=1024
        )
    )
    vocabulary: Vocabulary | None = None
    places: int = 8
    mask: int | None = 3
    anchored: bool | None = None
    candidates: int = 0
    own_output: int = 0
    d2t: Sequence[int] | None = None
    without: Sequence[str] = ()
    keys: dict[str, int] = field(default_factory=dict)
    markov: bool | None = None


def write_dflash(path: Path, head: Block | None = None, *, seed: int = 0) -> Path:
    """Write a DFlash head, or one of the kinds derived from it."""
    head = head or Block()
    vocabulary = replace(head.vocabulary or read_vocabulary(toy.TARGET), template=None)
    sizes, width = head.sizes, head.sizes.n_embd
    weights = Picky(path, "dflash", vocabulary, seed, "q8_0", without=head.without)
    weights.sizes(sizes)
    weights.writer.add_rope_dimension_count(sizes.head)
    if head.taps:
        weights.writer.add_array("dflash.target_layers", list(head.taps))
    if head.mask is not None:
        weights.writer.add_mask_token_id(head.mask)
    for key, value in {"block_size": head.places, **head.keys}.items():
        weights.writer.add_uint32(f"dflash.{key}", value)
    weights.matrix("fc", width, max(1, len(head.taps)) * width)
    for name in ("enc.output_norm.weight", "output_norm.weight"):
        weights.vector(name, width)
    if head.own_output:
        weights.matrix("output", head.own_output, width)
    if head.d2t is not None:
        weights.writer.add_tensor("d2t", np.array(head.d2t, dtype=np.int64))
    for number in range(sizes.n_layer):
        layer = f"blk.{number}"
        weights.vector(f"{layer}.attn_norm.weight", width)
        weights.attention(layer, sizes, normed=True)
        weights.feed_forward(layer, sizes)
    _chain(weights, head)
    if head.candidates:
        _selector(weights, head)
    return weights.save()


def _chain(weights: Weights, head: Block) -> None:
    """The tensors that make a DSpark head, or half of them."""
    if head.anchored is not None:
        weights.writer.add_bool("dflash.sample_from_anchor", head.anchored)
    if head.markov or (head.markov is None and head.anchored is not None):
        count = len(weights.vocabulary.tokens)
        weights.matrix("markov_w1", count, 32, std=1.0)
        weights.matrix("markov_w2", head.own_output or count, 32, std=1.0)


def _selector(weights: Weights, head: Block, *, kernel: int = 3, group: int = 32) -> None:
    width, rank = head.sizes.n_embd, 32
    numbers = {"conv_kernel_size": kernel, "conv_group_size": group, "selector_rank": rank}
    for key, value in (numbers | {"selector_top_k": head.candidates}).items():
        weights.writer.add_uint32(f"dflash.{key}", value)
    count = len(weights.vocabulary.tokens)
    weights.matrix("selector_predecessor", count, rank, std=1.0)
    weights.matrix("selector_successor", count, rank, std=1.0)
    weights.matrix("selector_hidden", rank, width)
    for number in range(head.sizes.n_layer):
        for part in ("attn", "ffn"):
            base = weights.random.normal(0, 0.3, (2, kernel, width)).astype(np.float32)
            weights.writer.add_tensor(f"blk.{number}.{part}_conv_base", base)
            weights.matrix(f"blk.{number}.{part}_conv_proj", 2 * kernel * (width // group), width)


def write_mtp(
    path: Path,
    *,
    nextn: int = 1,
    dense: int = 2,
    without: Sequence[str] = (),
    architecture: str = "glm4moe",
    seed: int = 0,
) -> Path:
    """Write a target of two layers with `nextn` more that predict more tokens."""
    trunk = Sizes(n_layer=2, n_ff=64)
    sizes = replace(trunk, n_layer=trunk.n_layer + nextn)
    vocabulary = read_vocabulary(toy.TARGET)
    weights = Picky(path, architecture, vocabulary, seed, "q8_0", without=without)
    weights.sizes(sizes)
    writer = weights.writer
    writer.add_rope_dimension_count(sizes.head)
    writer.add_leading_dense_block_count(dense)
    writer.add_expert_count(2)
    writer.add_expert_used_count(1)
    writer.add_expert_shared_count(1)
    writer.add_expert_feed_forward_length(32)
    writer.add_expert_weights_norm(True)
    writer.add_expert_weights_scale(1.0)
    if nextn:
        writer.add_uint32(f"{architecture}.nextn_predict_layers", nextn)
    weights.ends(sizes.n_embd)
    for number in range(sizes.n_layer):
        layer, width = f"blk.{number}", sizes.n_embd
        weights.vector(f"{layer}.attn_norm.weight", width)
        weights.attention(layer, sizes, normed=False)
        weights.vector(f"{layer}.post_attention_norm.weight", width)
        if number < dense:
            weights.matrix(f"{layer}.ffn_gate", sizes.n_ff, width)
            weights.matrix(f"{layer}.ffn_up", sizes.n_ff, width)
            weights.matrix(f"{layer}.ffn_down", width, sizes.n_ff)
        else:
            _experts(weights, layer, width, 32)
        if number >= trunk.n_layer:
            weights.predicts(layer, width)
    return weights.save()


def split_mtp(whole: Path, trunk: Path, head: Path) -> None:
    """Write a target's layers and its MTP layers as two files, each with embedding and output."""
    found = header.read_header(whole)
    layers, more = found.setting("block_count"), found.setting("nextn_predict_layers")
    with whole.open("rb") as file:
        metadata = dict(header.raw_metadata(file))
        tensors = []
        for each in found.tensors:
            file.seek(found.data_offset + each.offset)
            data = file.read(each.n_bytes)
            tensors.append(gguf_writer.PackedTensor(each.name, each.type, each.shape, data))
    last = tuple(f"blk.{at}." for at in range(layers - more, layers))
    alone = [each for each in tensors if each.name.startswith((*last, "output", "token_embd"))]
    before = [each for each in tensors if not each.name.startswith(last)]
    fewer: dict[str, gguf_writer.MetaValue] = {found.arch_key("block_count"): layers - more}
    for name, value in found.metadata.items():  # settings with a value for each layer
        own = name.startswith(found.arch_key("")) and "rope." not in name
        if own and isinstance(value, array) and len(value) == layers:
            fewer[name] = value[: layers - more].tolist()
    without = {name: each for name, each in metadata.items() if "nextn_predict" not in name}
    gguf_writer.write(trunk, {**without, **fewer}, before)
    gguf_writer.write(head, metadata, alone)


def write_chain(path: Path, *, nextn: int = 3, without: Sequence[str] = (), seed: int = 0) -> Path:
    """Write a target of architecture `hy_v3` with several layers that predict one token each."""
    sizes = Sizes(n_layer=2 + nextn, n_ff=64)
    vocabulary = read_vocabulary(toy.TARGET)
    weights = Picky(path, "hy_v3", vocabulary, seed, "q8_0", without=without)
    weights.sizes(sizes)
    weights.writer.add_rope_dimension_count(sizes.head)
    weights.writer.add_expert_feed_forward_length(32)
    weights.writer.add_uint32("hy_v3.nextn_predict_layers", nextn)
    width = sizes.n_embd
    weights.ends(width)
    for number in range(sizes.n_layer):
        layer = f"blk.{number}"
        weights.vector(f"{layer}.attn_norm.weight", width)
        weights.attention(layer, sizes, normed=True)
        weights.feed_forward(layer, sizes)
        if number >= 2:
            weights.predicts(layer, width)
    return weights.save()


def _experts(weights: Weights, layer: str, width: int, inner: int) -> None:
    weights.matrix(f"{layer}.ffn_gate_inp", 2, width)
    weights.vector(f"{layer}.exp_probs_b.bias", 2, value=0.0)
    for name, *shape in (("gate", inner, width), ("up", inner, width), ("down", width, inner)):
        weights.matrix(f"{layer}.ffn_{name}_exps", 2, *shape)
        weights.matrix(f"{layer}.ffn_{name}_shexp", *shape)
