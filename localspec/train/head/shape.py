"""The sizes of an EAGLE-3 head, chosen for its target."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from localspec import formats
from localspec.errors import UnsupportedModel
from localspec.pairs.gguf.head_checks import TAPPED
from localspec.pairs.gguf.header import GgufHeader
from localspec.pairs.report import vocabulary

STEPS: Final = 4
"""Tokens per draft that a head is trained for in the end."""

ROUNDS: Final = 5
"""Newton-Schulz steps by which the update of a matrix is made orthogonal (see `optim`)."""

_EPSILON, _ROPE = 1e-5, 10_000.0  # defaults if the target's header has none
_LEAST_LAYERS: Final = 2
_USUAL_HEAD: Final = 64  # head width if the target's does not fit
# Possible sizes of a head, largest first: share of the target's feed-forward width, and number of
# tokens it can draft.
_SIZES: Final = (
    *((1.0, 32_768), (1.0, 16_384), (1.0, 8_192), (0.5, 8_192)),
    *((1.0, 4_096), (0.5, 4_096), (0.25, 4_096), (0.25, 2_048)),
)
_STEP: Final = 32  # a block of Q8_0


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadShape:
    """The sizes of a head.

    Attributes:
        width: floats per state, as in the target.
        taps: the layers of the target whose inputs it reads.
        feed_forward: inner width of its feed-forward part.
        vocab: tokens of the target.
        drafted: tokens that it can draft.
        epsilon: added to the mean square in its norms.
        rope_base: of its rotary positions.
        context: trained context length of the target, in tokens.
    """

    width: int
    taps: tuple[int, ...]
    heads: int
    kv_heads: int
    head_width: int
    feed_forward: int
    vocab: int
    drafted: int
    epsilon: float
    rope_base: float
    context: int

    @property
    def inner(self) -> int:
        """Total width of all queries."""
        return self.heads * self.head_width

    @property
    def inner_kv(self) -> int:
        """Total width of all keys."""
        return self.kv_heads * self.head_width

    @property
    def matrices(self) -> dict[str, tuple[int, int]]:
        """The trained matrices by their names in a file: rows, and inputs per row."""
        return {
            "fc": (self.width, len(self.taps) * self.width),
            "blk.0.attn_q": (self.inner, 2 * self.width),
            "blk.0.attn_k": (self.inner_kv, 2 * self.width),
            "blk.0.attn_v": (self.inner_kv, 2 * self.width),
            "blk.0.attn_output": (self.width, self.inner),
            "blk.0.ffn_gate": (self.feed_forward, self.width),
            "blk.0.ffn_up": (self.feed_forward, self.width),
            "blk.0.ffn_down": (self.width, self.feed_forward),
        }

    @property
    def learnt(self) -> int:
        """Number of trained weights, without norms."""
        return sum(rows * reads for rows, reads in self.matrices.values())

    @property
    def update_work(self) -> int:
        """Floating-point operations to update all matrices once (see `optim.orthogonalised`)."""
        sizes = map(sorted, self.matrices.values())
        return ROUNDS * sum(4 * less**2 * more + 2 * less**3 for less, more in sizes)

    @property
    def weights(self) -> int:
        """Number of weights in the file's matrices."""
        return self.learnt + self.drafted * self.width


def require_trainable(target: GgufHeader, label: str) -> None:
    """Check by the target's header that a head can be trained for it.

    Raises:
        UnsupportedModel: it cannot.
    """
    if target.architecture not in TAPPED:
        raise UnsupportedModel(
            f"no head can be trained for {label}: llama.cpp shows no layers of"
            f" {target.architecture or 'such'} models",
            "Use a draft model, or lookup, with this target.",
        )
    if (layers := _layers(target)) < _LEAST_LAYERS:
        raise UnsupportedModel(
            f"no head can be trained for {label}: it has {formats.counted(layers, 'layer')}",
            "A head would take as long as the target.",
        )


def _layers(target: GgufHeader) -> int:
    return target.setting("block_count") - target.setting("nextn_predict_layers")


def taps_of(layers: int) -> tuple[int, int, int]:
    """The layers whose inputs a head reads: an early one, the middle one and the last.

    EAGLE-3's own choice ends two layers earlier (2, n/2, n-3). With the input of the last layer, a
    head can start as a copy of that layer, and needs less training data.
    """
    return (min(2, max(0, layers // 2 - 1)), layers // 2, layers - 1)


def candidates(target: GgufHeader) -> Iterator[HeadShape]:
    """The possible shapes of a head for this target, largest first."""
    whole = _whole(target)
    seen = set()
    for share, drafted in _SIZES:
        wide = max(_STEP, round(whole.feed_forward * share / _STEP) * _STEP)
        shape = replace(whole, feed_forward=wide, drafted=min(whole.vocab, drafted))
        if shape not in seen:
            seen.add(shape)
            yield shape


def _whole(target: GgufHeader) -> HeadShape:
    width = target.setting("embedding_length")
    heads, kv_heads, head_width = _attention(target, width)
    vocab = vocabulary.vocabulary(target).size
    return HeadShape(
        width=width,
        taps=taps_of(_layers(target)),
        heads=heads,
        kv_heads=kv_heads,
        head_width=head_width,
        feed_forward=max(target.settings("feed_forward_length") or [2 * width]) or 2 * width,
        vocab=vocab,
        drafted=vocab,
        epsilon=_number(target, "attention.layer_norm_rms_epsilon", _EPSILON),
        rope_base=_number(target, "rope.freq_base", _ROPE),
        context=target.setting("context_length") or 4096,
    )


def _attention(target: GgufHeader, width: int) -> tuple[int, int, int]:
    """The target's own attention heads, if those of its last layer are of the usual kind."""
    heads = (target.settings("attention.head_count") or [0])[-1]
    kv_heads = (target.settings("attention.head_count_kv") or [heads])[-1]
    if heads > 0 and kv_heads > 0 and heads % kv_heads == 0:
        own = target.setting("attention.key_length") or width // heads
        if own % 2 == 0 and 0 < heads * own <= 2 * width:
            return heads, kv_heads, own
    head = min(width, _USUAL_HEAD)
    return max(1, width // head), max(1, width // head), head


def _number(header: GgufHeader, name: str, default: float) -> float:
    value = header.metadata.get(header.arch_key(name))
    return float(value) if isinstance(value, int | float) else default
