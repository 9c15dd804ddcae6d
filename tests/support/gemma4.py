"""Gemma 4 with random weights: a target, and an assistant that drafts from its last two layers.

The full layers' heads are wider than those of the layers with a sliding window, and fewer, as in
the real ones. Arguments make an assistant wrong in every way that a check must notice.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tests.support import toy
from tests.support.gguf_models import Sizes, Vocabulary, read_vocabulary
from tests.support.heads import Picky

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from tests.support.gguf_models import Weights

TARGET = "gemma4"
ASSISTANT = "gemma4-assistant"


@dataclass(frozen=True, kw_only=True)
class Attention:
    """How layers attend: those with a sliding window, and those without.

    `shared` says how many of the last layers read the cache of an earlier one.
    """

    sliding: Sequence[bool] = (True, False, True, False)
    width: int = 64
    width_swa: int = 32
    heads: int = 2
    kv: int = 1
    kv_swa: int = 2
    window: int = 48
    shared: int = 0

    def of(self, layer: int) -> tuple[int, int]:
        """Width of a head and number of key heads in a layer."""
        return (self.width_swa, self.kv_swa) if self.sliding[layer] else (self.width, self.kv)


USUAL = Attention()


@dataclass(frozen=True, kw_only=True)
class Assistant:
    """What an assistant says of itself; the defaults fit `write_gemma4`."""

    attention: Attention = field(default_factory=lambda: replace(USUAL, sliding=(True, False)))
    width: int = 32
    reads: int = 64
    promises: int | None = None
    nextn: int | None = None
    vocabulary: Vocabulary | None = None
    without: Sequence[str] = ()
    keys: Mapping[str, int] = field(default_factory=dict)
    scale_type: type = np.float32


def write_gemma4(
    path: Path,
    *,
    attention: Attention = USUAL,
    width: int = 64,
    vocabulary: Vocabulary | None = None,
    seed: int = 0,
) -> Path:
    """Write a target."""
    weights = Picky(path, TARGET, vocabulary or read_vocabulary(toy.TARGET), seed, "q8_0")
    sizes = Sizes(n_layer=len(attention.sliding), n_embd=width, n_ff=128)
    _says(weights, attention, sizes, {})
    weights.ends(width)
    weights.vector("rope_freqs.weight", attention.width // 2)
    for number in range(sizes.n_layer):
        layer, (head, kv) = f"blk.{number}", attention.of(number)
        _queries(weights, layer, width, attention.heads, head)
        if number < sizes.n_layer - attention.shared:
            weights.matrix(f"{layer}.attn_k", kv * head, width)
            weights.vector(f"{layer}.attn_k_norm.weight", head)
            if attention.sliding[number]:  # elsewhere the keys are the values, too
                weights.matrix(f"{layer}.attn_v", kv * head, width)
        _feeds(weights, layer, sizes, np.float32)
    return weights.save()


def write_assistant(path: Path, its: Assistant | None = None, *, seed: int = 1) -> Path:
    """Write an assistant."""
    its = its or Assistant()
    attention, width = its.attention, its.width
    known = its.vocabulary or read_vocabulary(toy.TARGET)
    weights = Picky(
        path, ASSISTANT, replace(known, template=None), seed, "q8_0", without=its.without
    )
    sizes = Sizes(n_layer=len(attention.sliding), n_embd=width, n_ff=64)
    numbers = {
        "embedding_length_out": its.reads if its.promises is None else its.promises,
        "nextn_predict_layers": sizes.n_layer if its.nextn is None else its.nextn,
    }
    _says(weights, attention, sizes, {**numbers, **its.keys})
    weights.matrix("token_embd", len(known.tokens), width, std=2 * width**-0.5)
    weights.vector("output_norm.weight", width)
    weights.matrix("nextn.pre_projection", width, 2 * its.reads)
    weights.matrix("nextn.post_projection", its.reads, width)
    weights.vector("rope_freqs.weight", attention.width // 2)
    for number in range(sizes.n_layer):
        layer, (head, _) = f"blk.{number}", attention.of(number)
        _queries(weights, layer, width, attention.heads, head)
        _feeds(weights, layer, sizes, its.scale_type)
    return weights.save()


def _says(weights: Weights, its: Attention, sizes: Sizes, keys: Mapping[str, int]) -> None:
    counts = [its.of(number)[1] for number in range(sizes.n_layer)]
    weights.sizes(replace(sizes, n_head=its.heads), head_count_kv=counts)
    writer, architecture = weights.writer, weights.architecture
    numbers = {
        "attention.key_length": its.width,
        "attention.value_length": its.width,
        "attention.key_length_swa": its.width_swa,
        "attention.value_length_swa": its.width_swa,
        "attention.sliding_window": its.window,
        "attention.shared_kv_layers": its.shared,
        "embedding_length_per_layer_input": 0,
        "rope.dimension_count": its.width,
        "rope.dimension_count_swa": its.width_swa,
    }
    for key, value in (numbers | dict(keys)).items():
        writer.add_uint32(f"{architecture}.{key}", value)
    writer.add_array(f"{architecture}.attention.sliding_window_pattern", list(its.sliding))


def _queries(weights: Weights, layer: str, width: int, heads: int, head: int) -> None:
    weights.vector(f"{layer}.attn_norm.weight", width)
    weights.matrix(f"{layer}.attn_q", heads * head, width)
    weights.vector(f"{layer}.attn_q_norm.weight", head)
    weights.matrix(f"{layer}.attn_output", width, heads * head)
    weights.vector(f"{layer}.post_attention_norm.weight", width)


def _feeds(weights: Picky, layer: str, sizes: Sizes, scale_type: type) -> None:
    weights.feed_forward(layer, sizes)
    weights.vector(f"{layer}.post_ffw_norm.weight", sizes.n_embd)
    if f"{layer}.layer_output_scale" not in weights.without:
        scale: NDArray[Any] = np.ones(1, scale_type)
        weights.writer.add_tensor(f"{layer}.layer_output_scale.weight", scale)
