"""What one model takes, in bytes, from its header alone: weights, cache, state, buffers.

Weights, caches and states are exact. The compute buffer is what llama.cpp holds at its fullest
while it reads a batch: in the feed-forward part, in attention, or at the logits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from localspec.pairs.ggml_types import GGML_TYPES

if TYPE_CHECKING:
    from localspec.pairs.gguf import GgufHeader

CTX_STEP: Final = 256  # llama.cpp rounds a context up to this
N_BATCH: Final = 512
MAX_OUTPUTS: Final = 32  # rows of logits that the compute buffer is made for
USUAL_OUTPUTS: Final = 9  # rows that the output buffer grows to with drafts of eight
_LEAST_COMPUTE: Final = 1_100_000
_F32: Final = 4
_F16: Final = 2

CACHE_TYPES: Final = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")
"""What llama.cpp accepts for `--cache-type-k` and `--cache-type-v`."""

# Architectures of which llama.cpp keeps snapshots of recurrent states (src/llama-arch.cpp).
_WITH_SNAPSHOTS: Final = (
    *("qwen35", "qwen35moe", "qwen4exp", "lfm2", "lfm2moe", "nemotron_h", "nemotron_h_moe"),
    *("kimi-k3", "deepseek4", "glm5-next", "bailingmoe3"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """How a model is run.

    Attributes:
        n_ctx: tokens of context.
        cache_k, cache_v: types of the cache, by llama.cpp's names.
        gpu_layers: layers on an accelerator, the output layer counted as one; -1 for all.
        flash: whether flash attention is on.
        snapshots: of a recurrent state.
    """

    n_ctx: int
    cache_k: str = "f16"
    cache_v: str = "f16"
    gpu_layers: int = 0
    flash: bool = True
    snapshots: int = 0
    n_batch: int = N_BATCH


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What a header says of sizes.

    Attributes:
        trained: tokens of context that the model was trained for, 0 where it does not say.
        layer_weights: bytes of each layer.
        other_weights: bytes of embeddings and output.
        output_weights: of these, what an accelerator holds.
        kv_widths: (key, value) elements per token, for each layer; zeros without attention.
        state: elements of a recurrent layer's state, and in how many layers.
        widest: floats per token of a batch at the fullest moment between the layers' ends.
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

    @property
    def weights(self) -> int:
        """Bytes of all weights."""
        return sum(self.layer_weights) + self.other_weights

    @property
    def layers(self) -> int:
        """How many there are, the output layer left out."""
        return len(self.layer_weights)


@dataclass(frozen=True, slots=True)
class Need:
    """Bytes that one model takes in main memory (`host`) and on accelerators (`device`)."""

    host_weights: int
    device_weights: int
    host_cache: int
    device_cache: int
    host_buffers: int
    device_buffers: int

    @property
    def host(self) -> int:
        """All in main memory."""
        return self.host_weights + self.host_cache + self.host_buffers

    @property
    def device(self) -> int:
        """All on accelerators."""
        return self.device_weights + self.device_cache + self.device_buffers

    @property
    def total(self) -> int:
        """Everything."""
        return self.host + self.device

    @property
    def unmapped(self) -> int:
        """What must be in main memory: weights are mapped, and may be read from disk again."""
        return self.host_cache + self.host_buffers


def facts(header: GgufHeader, more_bytes: int = 0) -> Facts:
    """Read the sizes from a header; `more_bytes` are weights in later parts of a split model."""
    layers = max(0, header.integer(header.arch_key("block_count")))
    heads = max(header.integers(header.arch_key("attention.head_count")), default=0)
    width = header.integer(header.arch_key("embedding_length"))
    per_layer, other, output = _weights(header, layers, more_bytes)
    window = header.integer(header.arch_key("attention.sliding_window"))
    state = _state(header, layers)
    return Facts(
        architecture=header.architecture,
        trained=header.integer(header.arch_key("context_length")),
        vocab=len(header.tokens or ()) or header.integer(header.arch_key("vocab_size")),
        width=width,
        heads=heads,
        layer_weights=per_layer,
        other_weights=other,
        output_weights=output,
        kv_widths=_kv_widths(header, layers, heads, width, recurrent=state[1]),
        state=state,
        widest=_widest(header, width, heads),
        masks=2 if window else 1,
    )


def need(model: Facts, setup: Setup) -> Need:
    """Count what `model` takes when it is run as `setup` says."""
    all_layers = model.layers + 1
    on_device = all_layers if setup.gpu_layers < 0 else min(setup.gpu_layers, all_layers)
    share = min(on_device, model.layers)  # llama.cpp offloads the last layers
    first = model.layers - share
    weights_device = sum(model.layer_weights[first:])
    if on_device == all_layers:
        weights_device += model.output_weights
    weights_host = sum(model.layer_weights[:first]) + model.other_weights
    if on_device == all_layers:
        weights_host -= model.output_weights if model.output_weights < model.other_weights else 0
    caches = [_cache_layer(widths, setup) for widths in model.kv_widths]
    states = _state_bytes(model, setup)
    part = share / model.layers if model.layers else 0
    device_state = round(states * part)
    compute, output = _compute(model, setup), model.vocab * USUAL_OUTPUTS * _F32
    inputs = _padded(setup.n_ctx) * setup.n_batch * _F16 * model.masks
    host_compute = min(compute, inputs + _LEAST_COMPUTE) if on_device == all_layers else compute
    return Need(
        weights_host,
        weights_device,
        sum(caches[:first]) + states - device_state,
        sum(caches[first:]) + device_state,
        output + _copy(model) + host_compute,
        compute if on_device else 0,
    )


def _weights(header: GgufHeader, layers: int, more_bytes: int) -> tuple[tuple[int, ...], int, int]:
    """Bytes per layer, of everything else, and of the output."""
    found = [0] * layers
    other = output = 0
    for tensor in header.tensors:
        kind, _, rest = tensor.name.partition(".")
        number, _, _ = rest.partition(".")
        if kind == "blk" and number.isdecimal() and int(number) < layers:
            found[int(number)] += tensor.n_bytes
        else:
            other += tensor.n_bytes
            output += tensor.n_bytes if kind == "output" else 0
    if not output:  # tied: an accelerator gets a copy of the embedding
        output = sum(t.n_bytes for t in header.tensors if t.name == "token_embd.weight")
    if layers:  # the parts that the header does not list hold layers, evenly
        found = [n_bytes + more_bytes // layers for n_bytes in found]
    return tuple(found), other, output


def _kv_widths(
    header: GgufHeader, layers: int, heads: int, width: int, *, recurrent: int
) -> tuple[tuple[int, int], ...]:
    head = width // heads if heads > 0 else 0
    key = header.integer(header.arch_key("attention.key_length"), head)
    value = header.integer(header.arch_key("attention.value_length"), head)
    if rank := header.integer(header.arch_key("attention.kv_lora_rank")):
        # Latent attention keeps one compressed row, and its rotated part with it.
        return (((rank + header.integer(header.arch_key("rope.dimension_count"))), 0),) * layers
    kv_heads = header.integers(header.arch_key("attention.head_count_kv")) or [heads]
    per_layer = kv_heads * layers if len(kv_heads) == 1 else kv_heads[:layers]
    if recurrent and len(kv_heads) == 1 and any(per_layer):
        every = header.integer(header.arch_key("full_attention_interval"), 1) or 1
        per_layer = [n if (i + 1) % every == 0 else 0 for i, n in enumerate(per_layer)]
    return tuple((max(0, n) * key, max(0, n) * value) for n in per_layer)


def _state(header: GgufHeader, layers: int) -> tuple[int, int]:
    """Elements of one recurrent layer's state, and how many such layers there are."""

    def number(name: str) -> int:
        return header.integer(header.arch_key(name))

    width = number("embedding_length")
    if cache := number("shortconv.l_cache"):
        elements = width * (cache - 1)
    elif head := number("wkv.head_size"):
        elements = width * (head + (number("token_shift_count") or 2))
    elif inner := number("ssm.inner_size"):
        states, groups = number("ssm.state_size"), number("ssm.group_count")
        conv = max(0, number("ssm.conv_kernel") - 1) * (inner + 2 * groups * states)
        elements = conv + states * inner
    else:
        return 0, 0
    recurrent = {
        tensor.name.split(".")[1]
        for tensor in header.tensors
        if tensor.name.startswith("blk.")
        and (".ssm_" in tensor.name or ".shortconv" in tensor.name)
    }
    return elements, len(recurrent) or layers


def _widest(header: GgufHeader, width: int, heads: int) -> int:
    """Floats per token at the fullest moment: feed-forward or attention, beside the stream."""
    ff = max(header.integers(header.arch_key("feed_forward_length")), default=0)
    key = header.integer(header.arch_key("attention.key_length"), width // heads if heads else 0)
    if used := header.integer(header.arch_key("expert_used_count")):
        expert = header.integer(header.arch_key("expert_feed_forward_length"), ff)
        ff = max(used * expert, used * width // 2)
    inner = header.integer(header.arch_key("ssm.inner_size"))
    return 4 * width + 3 * max(ff, heads * key, inner)


def _cache_layer(widths: tuple[int, int], setup: Setup) -> int:
    n = _padded(setup.n_ctx)
    key, value = widths
    return n * (_row_bytes(key, setup.cache_k) + _row_bytes(value, setup.cache_v))


def _row_bytes(elements: int, kind: str) -> int:
    block, n_bytes = _BLOCKS[kind]
    return -(-elements // block) * n_bytes


def _state_bytes(model: Facts, setup: Setup) -> int:
    """The states, and llama.cpp's snapshots of them."""
    elements, layers = model.state
    copies = 1 + (setup.snapshots if model.architecture in _WITH_SNAPSHOTS else 0)
    return elements * layers * _F32 * copies


def _copy(model: Facts) -> int:
    """Our own copy of a state, to go back to."""
    return model.state[0] * model.state[1] * _F32


def _compute(model: Facts, setup: Setup) -> int:
    n_ctx = _padded(setup.n_ctx)
    batch = min(setup.n_batch, n_ctx)
    attends = any(key for key, _ in model.kv_widths)
    stream = batch * model.width * _F32
    layer = batch * model.widest * _F32
    if attends and setup.flash:
        layer += batch * n_ctx * _F16 * model.masks
    elif attends:
        scores = batch * n_ctx * _F32
        layer = max(layer + scores, (model.heads + model.masks) * scores + 6 * stream)
    logits = model.vocab * min(MAX_OUTPUTS, batch) * _F32 + stream
    return max(layer, logits, _LEAST_COMPUTE)


def _padded(n_ctx: int) -> int:
    return -(-n_ctx // CTX_STEP) * CTX_STEP


_BLOCKS: Final = {name.lower(): (block, size) for name, block, size in GGML_TYPES.values()}
