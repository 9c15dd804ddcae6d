"""The bytes that one model takes, from its header alone: weights, caches, states, buffers.

`ModelFacts` are the sizes in a header, by llama.cpp's rules (src/llama-hparams.cpp,
src/llama-model.cpp, src/models); of a split model, the first part does not list the tensors of the
others. `need` computes bytes from them. Weights, caches and states are exact. The compute buffer is
estimated as the most that llama.cpp holds during a batch: in the feed-forward part, in attention,
or at the logits.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import gcd, prod
from typing import Final

from localspec.limits import HEAD_BATCH, HEAD_REACH, MAX_BATCH_OUTPUTS
from localspec.pairs.gguf.head_checks import ASSISTANT, MTP, has_usable_mtp, head_kind
from localspec.pairs.gguf.header import GGML_TYPES, GgufHeader, TensorInfo, padded

CTX_STEP: Final = 256  # llama.cpp rounds a context up to this
N_BATCH: Final = 512
USUAL_OUTPUTS: Final = 9  # rows of the output buffer with drafts of eight tokens
_LEAST_COMPUTE: Final = 1_100_000
_F32: Final = 4
_F16: Final = 2
_I64: Final = 8
_COPIES: Final = 3  # additional ones, if several devices work on a prompt at the same time
_COPIED_EXPERTS: Final = 2
_TOKEN_BYTES: Final = 180  # a token's text, twice, and its index
_BLOCKS: Final = {name.lower(): (block, size) for name, block, size in GGML_TYPES.values()}

# Architectures of which llama.cpp keeps snapshots of recurrent states (src/llama-arch.cpp).
_WITH_SNAPSHOTS: Final = (
    *("qwen35", "qwen35moe", "qwen4exp", "lfm2", "lfm2moe", "nemotron_h", "nemotron_h_moe"),
    *("kimi-k3", "deepseek4", "glm5-next", "bailingmoe3"),
)
_RECURRENT: Final = ("mamba", "mamba2", "rwkv6", "rwkv6qwen2", "rwkv7", "arwkv7", "falcon-h1")
# One of this many layers has attention, if the header does not say which.
_FULL_ATTENTION_INTERVAL: Final = {"minimax-01": 8}
_USUAL_INTERVAL: Final = 4
_GEMMA3N_OWN_CACHES: Final = 20  # later layers read the cache of an earlier one
_KDA_KERNEL: Final = 4
_MAX_LAYERS: Final = 512  # llama.cpp's limit
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
        borrows: whether it reads the target's cache and has none of its own.
        experts: the part of each layer's bytes that its experts take.
        largest_expert: bytes of the largest tensor of experts.
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
    largest_expert: int = 0

    @property
    def weights(self) -> int:
        """Bytes of all weights."""
        return sum(self.layer_weights) + self.other_weights

    @property
    def layers(self) -> int:
        """Number of layers, without the output layer."""
        return len(self.layer_weights)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSetup:
    """How to run a model.

    Attributes:
        n_ctx: tokens of context.
        cache_k, cache_v: types of the cache, by llama.cpp's names.
        gpu_layers: layers on accelerators, the output layer counted as the first; -1 for all.
        flash: whether flash attention is on.
        snapshots: of a recurrent state.
        split: device names with their numbers of layers, in order; empty for one device or none.
        cpu_moe: the first layers whose experts stay in main memory.
    """

    n_ctx: int
    cache_k: str = "f16"
    cache_v: str = "f16"
    gpu_layers: int = 0
    flash: bool = True
    snapshots: int = 0
    split: tuple[tuple[str, int], ...] = ()
    cpu_moe: int = 0


@dataclass(frozen=True, slots=True)
class MemoryNeed:
    """Bytes that one model takes in main memory (`host`) and on accelerators (`device`)."""

    host_weights: int
    device_weights: int
    host_cache: int
    device_cache: int
    host_buffers: int
    device_buffers: int

    @property
    def host(self) -> int:
        """Bytes in main memory."""
        return self.host_weights + self.host_cache + self.host_buffers

    @property
    def device(self) -> int:
        """Bytes on accelerators."""
        return self.device_weights + self.device_cache + self.device_buffers

    @property
    def total(self) -> int:
        """Bytes in all places."""
        return self.host + self.device

    @property
    def parts(self) -> dict[str, int]:
        """Bytes of weights, caches with states, and buffers in all places."""
        return {
            "weights": self.host_weights + self.device_weights,
            "cache": self.host_cache + self.device_cache,
            "buffers": self.host_buffers + self.device_buffers,
        }


def facts(header: GgufHeader, more_bytes: int = 0) -> ModelFacts:
    """Read the sizes from a header; `more_bytes` are weights in later parts of a split model."""
    layers = min(_number(header, "block_count"), _MAX_LAYERS)
    heads = _most(header, "attention.head_count")
    width = _number(header, "embedding_length")
    trunk = max(0, layers - _number(header, "nextn_predict_layers"))
    stateful = _stateful(header, layers, trunk)
    elements = _state_elements(header, heads) if stateful else 0
    per_layer, other, output, tied = _weights(header, layers, trunk, more_bytes)
    head_widths = _head_widths(header, layers, width)
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
        kv_widths=_kv_widths(header, head_widths, trunk, stateful),
        head_widths=(gcd(*(k for k, _ in head_widths)), gcd(*(v for _, v in head_widths))),
        state=(elements, len(stateful)) if elements else (0, 0),
        widest=_widest(header, width, heads),
        masks=2 if _number(header, "attention.sliding_window") else 1,
        experts=_by_layers(experts, layers, trunk),
        largest_expert=max((each.n_bytes for each in experts), default=0),
    )


def draft_facts(draft: GgufHeader, more_bytes: int = 0) -> ModelFacts:
    """The sizes of a draft model or a head's file, in addition to those of the target."""
    found = facts(draft, more_bytes)
    found = replace(found, table=_TOKEN_BYTES * found.vocab)
    kind = head_kind(draft)
    if not kind:
        return found
    if kind == MTP:
        ends = found.other_weights, found.output_weights
        return replace(
            mtp_facts(draft), other_weights=ends[0], output_weights=ends[1], table=found.table
        )
    if kind == ASSISTANT:
        return _assistant_facts(found, draft, more_bytes)
    # The head reads the inputs of several target layers. llama.cpp also reserves the buffer in
    # which they are computed, so they are held twice.
    shown = len(draft.settings("target_layers")) * _number(draft, "target_hidden_size", found.width)
    batch = min(HEAD_BATCH, _number(draft, "block_size", HEAD_BATCH))
    return replace(found, batch=batch, outputs=batch, shown=shown, held=2)


def _assistant_facts(found: ModelFacts, head: GgufHeader, more_bytes: int) -> ModelFacts:
    """The sizes of a head whose layers all count as multi-token prediction layers."""
    layers = found.layers
    widths = _head_widths(head, layers, found.width)
    return replace(
        found,
        layer_weights=_weights(head, layers, layers, more_bytes)[0],
        kv_widths=_by_heads(head, widths),
        borrows=True,
        batch=1,
        outputs=1,
        shown=_number(head, "embedding_length_out"),
    )


def own_head(target: GgufHeader) -> list[ModelFacts]:
    """The sizes of the head inside a target; empty if it has none that llama.cpp can use."""
    return [mtp_facts(target)] if has_usable_mtp(target) else []


def mtp_facts(target: GgufHeader) -> ModelFacts:
    """The sizes of the layers that draft (MTP), without those of the model before them."""
    whole, layers = facts(target), min(_number(target, "block_count"), _MAX_LAYERS)
    trunk = max(0, layers - _number(target, "nextn_predict_layers"))
    weights = _weights(target, layers, layers, 0)[0][trunk:]
    kv = _kv_widths(target, _head_widths(target, layers, whole.width), layers, frozenset())
    return replace(
        whole,
        layer_weights=weights,
        other_weights=0,
        output_weights=0,
        experts=(),
        kv_widths=kv[trunk:],
        state=(0, 0),
        batch=HEAD_BATCH,
        outputs=1,
        shown=whole.width * max(1, _number(target, "hyper_connection.count")),
    )


def active_share(header: GgufHeader) -> float:
    """Share of the weights that one token reads: a mixture of experts uses some of them."""
    used, count = _most(header, "expert_used_count"), _most(header, "expert_count")
    experts = sum(tensor.n_bytes for tensor in header.tensors if "_exps." in tensor.name)
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


def _weights(
    header: GgufHeader, layers: int, trunk: int, more_bytes: int
) -> tuple[tuple[int, ...], int, int, bool]:
    """Bytes per layer, of everything else, of the output, and whether that is the embedding.

    The layers after the trunk, which predict further tokens (MTP), are not loaded.
    """
    found = _by_layers(header.tensors, layers, layers)
    other = header.tensor_bytes - sum(found)
    output = sum(each.n_bytes for each in header.tensors if each.name.startswith("output."))
    tied = not output
    if tied:  # an accelerator gets a copy of the embedding
        output = sum(t.n_bytes for t in header.tensors if t.name == "token_embd.weight")
    if layers:  # parts that the header does not list are taken for evenly spread layers
        found = tuple(n_bytes + more_bytes // layers for n_bytes in found)
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
    if not any(_number(header, name) for name in named):
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
    inner, states = number("ssm.inner_size"), number("ssm.state_size")
    conv = max(0, kernel - 1) * (inner + 2 * number("ssm.group_count") * states)
    return conv + states * inner


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
    sliding = header.settings("attention.sliding_window_pattern")
    if len(sliding) < layers:
        sliding = [0] * layers  # given as a rule: then all widths are the same
    return [short if each else full for each in sliding[:layers]]


def _kv_widths(
    header: GgufHeader, heads: list[tuple[int, int]], trunk: int, stateful: frozenset[int]
) -> tuple[tuple[int, int], ...]:
    own = trunk - _number(header, "attention.shared_kv_layers")
    if header.architecture == "gemma3n":
        own = _GEMMA3N_OWN_CACHES
    without = frozenset() if header.architecture == "falcon-h1" else stateful
    return tuple(
        widths if i < min(own, trunk) and i not in without else (0, 0)
        for i, widths in enumerate(_by_heads(header, heads))
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
    key = _number(header, "attention.key_length", width // heads if heads else 0)
    parts = 3 * ff if _gated(header, ff) else 2 * ff
    if used := _most(header, "expert_used_count"):
        expert = _most(header, "expert_feed_forward_length", ff)
        parts = 3 * max(used * expert, used * width // 2)
    inner = _number(header, "ssm.inner_size")
    return 4 * width + max(parts, 3 * heads * key, 3 * inner)


def _gated(header: GgufHeader, ff: int) -> bool:
    """Whether the feed-forward part has a gate, perhaps in one matrix with the other product."""
    ups = [tensor for tensor in header.tensors if tensor.name.endswith("ffn_up.weight")]
    gates = any(".ffn_gate" in tensor.name for tensor in header.tensors)
    return gates or not ups or any(tensor.shape[-1] >= 2 * ff for tensor in ups)


def need(model: ModelFacts, setup: ModelSetup) -> MemoryNeed:
    """Compute the bytes that `model` takes when it is run with `setup`."""
    all_layers = model.layers + 1
    on_device = all_layers if setup.gpu_layers < 0 else min(setup.gpu_layers, all_layers)
    share = max(0, on_device - 1)  # llama.cpp offloads the last layers, the output before any
    first = model.layers - share
    weights_device = sum(model.layer_weights[first:]) + model.output_weights * bool(on_device)
    weights_host = sum(model.layer_weights[:first]) + model.other_weights
    if on_device and not model.tied:
        weights_host -= model.output_weights
    moved = sum(model.experts[first : setup.cpu_moe])
    weights_host, weights_device = weights_host + moved, weights_device - moved
    caches = _caches(model, setup)
    copy = prod(model.state) * _F32  # localspec's own copy of the states, for rollback
    states = copy * (1 + setup.snapshots * (model.architecture in _WITH_SNAPSHOTS))
    device_state = round(states * (share / model.layers if model.layers else 0))
    n_ctx, batch = padded(setup.n_ctx, CTX_STEP), min(model.batch, setup.n_ctx)
    kept = model.held * min(N_BATCH, setup.n_ctx) + min(HEAD_REACH, setup.n_ctx)
    shown = model.shown * kept * _F32
    usual = USUAL_OUTPUTS if model.outputs == MAX_BATCH_OUTPUTS else model.outputs
    compute = _compute(model, setup, n_ctx, batch, moved=bool(moved))
    output = model.vocab * usual * _F32
    inputs = n_ctx * batch * _F16 * model.masks
    host_compute = min(compute, inputs + _LEAST_COMPUTE) if on_device == all_layers else compute
    if moved:  # the processor computes them
        host_compute = max(host_compute, inputs + batch * model.widest * _F32)
    used = sum(1 for _, layers in setup.split if layers)
    several = used > 1 and on_device == all_layers
    copies = _COPIES * _copied(model, setup, n_ctx, batch) if several else 0
    return MemoryNeed(
        weights_host,
        weights_device,
        sum(caches[:first]) + states - device_state,
        sum(caches[first:]) + device_state,
        output + copy + host_compute + copies + shown + model.table,
        max(1, used) * (compute + copies) if on_device else 0,
    )


def _copied(model: ModelFacts, setup: ModelSetup, n_ctx: int, batch: int) -> int:
    """Bytes of a batch's inputs: rows, masks, and without flash attention the values' indices."""
    mask = n_ctx * batch * (_F16 if setup.flash else _F32) * model.masks
    widest = max((value for _, value in model.kv_widths), default=0)
    return batch * model.width * _F32 + mask + (0 if setup.flash else batch * widest * _I64)


def _caches(model: ModelFacts, setup: ModelSetup) -> list[int]:
    """Bytes of each layer's cache."""
    if model.borrows:
        return [0] * model.layers
    n = padded(setup.n_ctx, CTX_STEP)
    most = max((value for _, value in model.kv_widths), default=0)
    return [
        # Without flash attention values are transposed, and every layer gets the widest one's size.
        n * _row_bytes(key, setup.cache_k)
        + n * _row_bytes(value if setup.flash or not key else most, setup.cache_v)
        for key, value in model.kv_widths
    ]


def block_of(kind: str) -> int:
    """Elements in a block of a cache type."""
    return _BLOCKS[kind][0]


def _row_bytes(elements: int, kind: str) -> int:
    block, n_bytes = _BLOCKS[kind]
    return -(-elements // block) * n_bytes


def _compute(model: ModelFacts, setup: ModelSetup, n_ctx: int, batch: int, *, moved: bool) -> int:
    """Bytes of the compute buffer for a batch of tokens over a full cache.

    Experts in main memory (`moved`) are copied to the device for a prompt, one while another is in
    use.
    """
    attends = any(key for key, _ in model.kv_widths)
    stream = batch * model.width * _F32
    layer = batch * model.widest * _F32
    if attends and setup.flash:
        # Flash attention takes no f32: a layer's cache is converted to f16.
        key, value = max(model.kv_widths)
        converted = key * (setup.cache_k == "f32") + value * (setup.cache_v == "f32")
        layer += batch * n_ctx * _F16 * model.masks + converted * n_ctx * _F16
    elif attends:
        scores = batch * n_ctx * _F32
        layer = max(layer + scores, (model.heads + model.masks) * scores + 6 * stream)
    logits = model.vocab * min(model.outputs, batch) * _F32 + stream
    experts = _COPIED_EXPERTS * model.largest_expert + batch * model.widest * _F32 if moved else 0
    return max(layer, experts, logits, _LEAST_COMPUTE)
