"""The sizes of a model that decide its memory, from its header alone.

They follow llama.cpp's rules (src/llama-hparams.cpp, src/llama-model.cpp, src/models). Of a split
model, the first part does not list the tensors of the others.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import gcd
from typing import Final

from localspec.drafter_names import ASSISTANT, MTP
from localspec.limits import HEAD_BATCH, MAX_BATCH_OUTPUTS, N_BATCH
from localspec.pairs.gguf.head_checks import has_usable_mtp, head_kind
from localspec.pairs.gguf.header import MAX_LAYERS, GgufHeader, TensorInfo
from localspec.pairs.memory.indexers import DENSE, Indexer, indexer, with_indexers

_TOKEN_BYTES: Final = 180  # a token's text, twice, and its index
_RECURRENT: Final = ("mamba", "mamba2", "rwkv6", "rwkv6qwen2", "rwkv7", "arwkv7", "falcon-h1")
# One of this many layers has attention, if the header does not say which.
_LIGHTNING: Final = "minimax-01"  # its other layers keep a square for each head instead
_FULL_ATTENTION_INTERVAL: Final = {_LIGHTNING: 8}
_USUAL_INTERVAL: Final = 4
_WINDOWS: Final = {"llama4": 8192, "gemma2": 4096}  # if the header does not say
_GEMMA3N_OWN_CACHES: Final = 20  # later layers read the cache of an earlier one
_KDA_KERNEL: Final = 4
# Tensors that `--cpu-moe` keeps in main memory (common/common.h, LLM_FFN_EXPS_REGEX).
_EXPERTS: Final = re.compile(r"\.ffn_(up|down|gate|gate_up)_(ch|)exps")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """The sizes in a header.

    Attributes:
        trained: trained context length in tokens, 0 if unknown.
        layer_weights: bytes of each layer; 0 for one that is not loaded.
        other_weights: bytes of embeddings and output.
        output_weights: the part of them that an accelerator holds.
        tied: whether that part is a copy, as the output is the embedding.
        kv_widths: (key, value) elements per token, for each layer; zeros without attention.
        head_widths: the greatest common divisor of the heads' widths, of keys and of values.
        state: elements of a recurrent layer's state, and number of such layers.
        widest: the most floats per token of a batch that a layer holds at once.
        batch, outputs: the most tokens of one decode, and the most rows of logits.
        shown: floats per token that the target outputs for this head.
        held: how many copies of these llama.cpp holds for a batch.
        table: bytes of llama.cpp's vocabulary; 0 for a target, as `PROGRAM` includes its own.
        borrows: whether its cache counts as the target's: it has none, or is inside the target.
        experts: the part of each layer's bytes that its experts take.
        largest_matrix: bytes of the largest tensor of a layer.
        indexer: what choosing the tokens that are attended to takes of a batch.
        marks: how many copies of its state localspec keeps for rollback: of a question, of a round,
            and of a target's prompt that goes on after calls.
    """

    architecture: str
    trained: int
    vocab: int
    width: int
    heads: int
    layer_weights: tuple[int, ...]
    other_weights: int
    output_weights: int
    kv_widths: tuple[tuple[int, int], ...]
    state: tuple[int, int]
    widest: int
    masks: int
    tied: bool = False
    head_widths: tuple[int, int] = (0, 0)
    batch: int = N_BATCH
    outputs: int = MAX_BATCH_OUTPUTS
    shown: int = 0
    held: int = 1
    table: int = 0
    borrows: bool = False
    experts: tuple[int, ...] = ()
    largest_matrix: int = 0
    indexer: Indexer = DENSE
    marks: int = 3

    @property
    def flashes(self) -> bool:
        """Whether llama.cpp has flash attention for it (src/llama-context.cpp turns it off)."""
        return self.architecture != "grok"

    @property
    def attends(self) -> bool:
        """Whether a layer of it has attention."""
        return any(key for key, _ in self.kv_widths)

    @property
    def weights(self) -> int:
        """Bytes of all weights."""
        return sum(self.layer_weights) + self.other_weights

    @property
    def read_bytes(self) -> int:
        """Bytes of the weights that a decode of one token reads, but for a mixture of experts."""
        return sum(self.layer_weights) + self.output_weights

    @property
    def inside(self) -> bool:
        """Whether it is a head inside the target, whose weights count as the target's."""
        return not self.weights

    @property
    def layers(self) -> int:
        """Number of layers, without the output layer."""
        return len(self.layer_weights)


def facts(header: GgufHeader, *, mtp: bool = False) -> ModelFacts:
    """Read the sizes from a header.

    Args:
        header: with the tensors of all files.
        mtp: whether the layers that draft (MTP) are loaded: llama.cpp places them, their experts
            and their caches like the model's other layers, as its last ones.
    """
    layers = min(_number(header, "block_count"), MAX_LAYERS)
    heads = _most(header, "attention.head_count")
    width = _number(header, "embedding_length")
    trunk = max(0, layers - _number(header, "nextn_predict_layers"))
    stateful = _stateful(header, layers, trunk)
    elements = _state_elements(header, heads) if stateful else 0
    loaded = layers if mtp else trunk
    per_layer, other, output, tied = _weights(header, layers, loaded)
    head_widths = _head_widths(header, layers, width)
    kv_widths = _kv_widths(header, head_widths, trunk, loaded, stateful)
    chooses = indexer(header, sum(1 for key, _ in kv_widths[:trunk] if key))
    experts = [each for each in header.tensors if _EXPERTS.search(each.name)]
    return ModelFacts(
        architecture=header.architecture,
        trained=_number(header, "context_length"),
        vocab=len(header.tokens or ()) or _number(header, "vocab_size"),
        width=width,
        heads=heads,
        layer_weights=per_layer,
        other_weights=other,
        output_weights=output,
        tied=tied,
        kv_widths=with_indexers(header, kv_widths, head_widths, trunk),
        head_widths=(gcd(*(k for k, _ in head_widths)), gcd(*(v for _, v in head_widths))),
        state=(elements, len(stateful)) if elements else (0, 0),
        widest=_widest(header, width, heads),
        masks=1 + _slides(header) + chooses.masks,
        indexer=chooses,
        experts=_by_layers(experts, layers, loaded),
        largest_matrix=max(
            (each.n_bytes for each in header.tensors if each.name.startswith("blk.")), default=0
        ),
    )


def draft_facts(draft: GgufHeader) -> ModelFacts:
    """The sizes of a draft model or a head's file, in addition to those of the target."""
    found = facts(draft)
    found = replace(found, table=_TOKEN_BYTES * found.vocab, marks=2)
    kind = head_kind(draft)
    if not kind:
        return found
    if kind == MTP:
        ends = found.other_weights, found.output_weights
        return replace(
            mtp_facts(draft), other_weights=ends[0], output_weights=ends[1], table=found.table
        )
    if kind == ASSISTANT:
        return _assistant_facts(found, draft)
    # The head reads the inputs of several target layers. llama.cpp also reserves the buffer in
    # which they are computed, so they are held twice.
    shown = len(draft.settings("target_layers")) * _number(draft, "target_hidden_size", found.width)
    batch = min(HEAD_BATCH, _number(draft, "block_size", HEAD_BATCH))
    return replace(found, batch=batch, outputs=batch, shown=shown, held=2)


def _assistant_facts(found: ModelFacts, head: GgufHeader) -> ModelFacts:
    """The sizes of a head whose layers all count as multi-token prediction layers."""
    layers = found.layers
    widths = _head_widths(head, layers, found.width)
    return replace(
        found,
        layer_weights=_weights(head, layers, layers)[0],
        kv_widths=_by_heads(head, widths),
        borrows=True,
        batch=1,
        outputs=1,
        shown=_number(head, "embedding_length_out"),
    )


def own_head(target: GgufHeader) -> list[ModelFacts]:
    """The sizes of the head inside a target; empty if it has none that llama.cpp can use.

    They are those of its buffers: its layers are the target's (`facts` with `mtp`).
    """
    if not has_usable_mtp(target):
        return []
    found = mtp_facts(target)
    return [replace(found, layer_weights=(0,) * found.layers, borrows=True)]


def mtp_facts(target: GgufHeader) -> ModelFacts:
    """The sizes of the layers that draft (MTP), without those of the model before them."""
    whole = facts(target, mtp=True)
    trunk = max(0, whole.layers - _number(target, "nextn_predict_layers"))
    return replace(
        whole,
        layer_weights=whole.layer_weights[trunk:],
        other_weights=0,
        output_weights=0,
        experts=(),
        kv_widths=whole.kv_widths[trunk:],
        state=(0, 0),
        masks=whole.masks - whole.indexer.masks,
        indexer=DENSE,
        batch=HEAD_BATCH,
        outputs=1,
        shown=whole.width * max(1, _number(target, "hyper_connection.count")),
    )


def active_share(header: GgufHeader) -> float:
    """Share of the weights that one token reads: a mixture of experts uses some of them."""
    used, count = _most(header, "expert_used_count"), _most(header, "expert_count")
    experts = sum(tensor.n_bytes for tensor in header.tensors if _EXPERTS.search(tensor.name))
    if not (experts and 0 < used < count):
        return 1.0
    return 1.0 - experts / header.tensor_bytes * (1 - used / count)


def _number(header: GgufHeader, name: str, default: int = 0) -> int:
    """The architecture's own setting `name`; a negative size counts as 0."""
    return max(0, header.setting(name, default))


def _most(header: GgufHeader, name: str, default: int = 0) -> int:
    """The largest value of a setting that may differ from layer to layer."""
    return max(header.settings(name), default=default)


def _by_layer(header: GgufHeader, name: str, layers: int) -> list[int]:
    """A setting's value for each layer, given as one for all or as an array; empty if missing."""
    found = header.settings(name)
    return found * layers if len(found) == 1 else (found + [0] * layers)[: layers * bool(found)]


def _weights(header: GgufHeader, layers: int, trunk: int) -> tuple[tuple[int, ...], int, int, bool]:
    """Bytes per layer, of everything else, of the output, and whether that is the embedding.

    The layers after the trunk, which predict further tokens (MTP), are not loaded.
    """
    found = _by_layers(header.tensors, layers, layers)
    other = header.tensor_bytes - sum(found)
    output = sum(each.n_bytes for each in header.tensors if each.name.startswith("output."))
    tied = not output
    if tied:  # an accelerator gets a copy of the embedding
        output = sum(t.n_bytes for t in header.tensors if t.name == "token_embd.weight")
    return (*found[:trunk], *[0] * (layers - trunk)), other, output, tied


def _by_layers(tensors: Iterable[TensorInfo], layers: int, trunk: int) -> tuple[int, ...]:
    """Bytes of these tensors in each layer; 0 in layers after the trunk."""
    found = [0] * layers
    for tensor in tensors:
        kind, _, rest = tensor.name.partition(".")
        number, _, _ = rest.partition(".")
        if kind == "blk" and number.isdecimal() and int(number) < trunk:
            found[int(number)] += tensor.n_bytes
    return tuple(found)


def _stateful(header: GgufHeader, layers: int, trunk: int) -> frozenset[int]:
    """Indices of the layers with a recurrent state."""
    named = ("shortconv.l_cache", "wkv.head_size", "ssm.inner_size", "kda.head_dim")
    lightning = header.architecture == _LIGHTNING
    if not (lightning or any(_number(header, name) for name in named)):
        return frozenset()
    every = range(trunk)
    kv_heads = header.settings("attention.head_count_kv")
    if header.architecture in _RECURRENT:
        return frozenset(every)
    if chosen := _by_layer(header, "attention.recurrent_layers", layers):
        return frozenset(i for i in every if chosen[i])
    if len(kv_heads) > 1:
        # Nemotron-H also has layers with a feed-forward part alone.
        alone = header.architecture.startswith("nemotron_h")
        ff = _by_layer(header, "feed_forward_length", layers) if alone else []
        without = _by_layer(header, "attention.head_count_kv", layers)
        return frozenset(i for i in every if not without[i] and not (ff and ff[i]))
    if not any(kv_heads):
        return frozenset(every)
    usual = _FULL_ATTENTION_INTERVAL.get(header.architecture, _USUAL_INTERVAL)
    interval = _number(header, "full_attention_interval", usual) or 1
    return frozenset(i for i in every if (i + 1) % interval)


def _state_elements(header: GgufHeader, heads: int) -> int:
    """Elements of one recurrent layer's state."""

    def number(name: str) -> int:
        return _number(header, name)

    width, kernel = number("embedding_length"), number("ssm.conv_kernel")
    if cache := number("shortconv.l_cache"):
        return width * (cache - 1)
    if head := number("wkv.head_size"):
        return width * (head + (number("token_shift_count") or 2))
    if head := number("kda.head_dim"):
        return heads * head * (3 * ((kernel or _KDA_KERNEL) - 1) + head)
    if header.architecture == _LIGHTNING:
        return heads * _key_length(header, heads) ** 2
    inner, states = number("ssm.inner_size"), number("ssm.state_size")
    conv = max(0, kernel - 1) * (inner + 2 * number("ssm.group_count") * states)
    return conv + states * inner


def _key_length(header: GgufHeader, heads: int) -> int:
    """Elements of a key head."""
    usual = _number(header, "embedding_length") // heads if heads else 0
    return _number(header, "attention.key_length", usual)


def _head_widths(header: GgufHeader, layers: int, width: int) -> list[tuple[int, int]]:
    """Elements of a key and of a value head in each layer."""

    def both(ending: str, defaults: tuple[int, int]) -> tuple[int, int]:
        key, value = defaults
        return (
            _number(header, f"attention.key_length{ending}", key),
            _number(header, f"attention.value_length{ending}", value),
        )

    heads = next(iter(header.settings("attention.head_count")), 0)
    usual = width // heads if heads > 0 else 0
    full = both("", (usual, usual))
    if _number(header, "attention.key_length_mla"):
        full = full[0], 0  # latent attention keeps one compressed row, from which both are made
    short = both("_swa", full)
    if not full[1]:
        short = short[0], 0
    sliding = header.settings("attention.sliding_window_pattern")
    if len(sliding) < layers:
        sliding = [0] * layers  # given as a rule: then all widths are the same
    return [short if each else full for each in sliding[:layers]]


def _kv_widths(
    header: GgufHeader,
    heads: list[tuple[int, int]],
    trunk: int,
    loaded: int,
    stateful: frozenset[int],
) -> tuple[tuple[int, int], ...]:
    """Elements that each layer caches of a token; layers from `trunk` to `loaded` draft (MTP)."""
    own = trunk - _number(header, "attention.shared_kv_layers")
    if header.architecture == "gemma3n":
        own = _GEMMA3N_OWN_CACHES
    without = frozenset() if header.architecture == "falcon-h1" else stateful
    passes = _number(header, "num_loops") or 1  # each through all layers, with its own cache
    return tuple(
        (passes * key, passes * value)
        if (i < min(own, trunk) or trunk <= i < loaded) and i not in without
        else (0, 0)
        for i, (key, value) in enumerate(_by_heads(header, heads))
    )


def _by_heads(header: GgufHeader, heads: list[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Elements of a token's keys and values in each layer, as if every layer cached them."""
    layers = len(heads)
    counts = _by_layer(header, "attention.head_count_kv", layers) or _by_layer(
        header, "attention.head_count", layers
    )
    return tuple(
        (max(0, n) * key, max(0, n) * value) for n, (key, value) in zip(counts, heads, strict=False)
    )


def _widest(header: GgufHeader, width: int, heads: int) -> int:
    """The most floats per token that a layer holds, in feed-forward or attention."""
    ff = _most(header, "feed_forward_length")
    attention = 3 * heads * _key_length(header, heads)
    if header.architecture == _LIGHTNING:
        # How far tokens are apart, how their weights decay with it, and their products.
        attention += 3 * heads * N_BATCH
    parts = 3 * ff if _gated(header, ff) else 2 * ff
    if used := _most(header, "expert_used_count"):
        expert = _most(header, "expert_feed_forward_length", ff)
        parts = 3 * max(used * expert, used * width // 2)
    inner = _number(header, "ssm.inner_size")
    return 4 * width + max(parts, attention, 3 * inner)


def _slides(header: GgufHeader) -> bool:
    """Whether layers attend within a window: llama.cpp switches Phi-3's off."""
    window = _number(header, "attention.sliding_window", _WINDOWS.get(header.architecture, 0))
    return window > 0 and header.architecture != "phi3"


def _gated(header: GgufHeader, ff: int) -> bool:
    """Whether the feed-forward part has a gate, perhaps in one matrix with the other product."""
    ups = [tensor for tensor in header.tensors if tensor.name.endswith("ffn_up.weight")]
    gates = any(".ffn_gate" in tensor.name for tensor in header.tensors)
    return gates or not ups or any(tensor.shape[-1] >= 2 * ff for tensor in ups)
