"""What one model takes, in bytes, from its header alone: weights, cache, state, buffers.

Weights, caches and states are exact. The compute buffer is what llama.cpp holds at its fullest
while it reads a batch: in the feed-forward part, in attention, or at the logits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from localspec.limits import MAX_BATCH_OUTPUTS
from localspec.pairs.gguf.header import GGML_TYPES
from localspec.pairs.memory.facts import ModelFacts

CTX_STEP: Final = 256  # llama.cpp rounds a context up to this
N_BATCH: Final = 512
USUAL_OUTPUTS: Final = 9  # rows that the output buffer grows to with drafts of eight
_LEAST_COMPUTE: Final = 1_100_000
_F32: Final = 4
_F16: Final = 2

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
        gpu_layers: layers on an accelerator, the output layer counted as the first; -1 for all.
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
    def weights(self) -> int:
        """All weights."""
        return self.host_weights + self.device_weights

    @property
    def cache(self) -> int:
        """All caches and states."""
        return self.host_cache + self.device_cache

    @property
    def buffers(self) -> int:
        """All compute and output buffers."""
        return self.host_buffers + self.device_buffers

    @property
    def unmapped(self) -> int:
        """What must be in main memory: weights are mapped, and may be read from disk again."""
        return self.host_cache + self.host_buffers


def need(model: ModelFacts, setup: Setup) -> Need:
    """Count what `model` takes when it is run as `setup` says."""
    all_layers = model.layers + 1
    on_device = all_layers if setup.gpu_layers < 0 else min(setup.gpu_layers, all_layers)
    share = max(0, on_device - 1)  # llama.cpp offloads the last layers, the output before any
    first = model.layers - share
    weights_device = sum(model.layer_weights[first:]) + model.output_weights * bool(on_device)
    weights_host = sum(model.layer_weights[:first]) + model.other_weights
    if on_device and not model.tied:
        weights_host -= model.output_weights
    caches = _caches(model, setup)
    states = _state_bytes(model, setup)
    part = share / model.layers if model.layers else 0
    device_state = round(states * part)
    compute, output = _compute(model, setup), model.vocab * USUAL_OUTPUTS * _F32
    inputs = _padded(setup.n_ctx) * min(setup.n_batch, setup.n_ctx) * _F16 * model.masks
    host_compute = min(compute, inputs + _LEAST_COMPUTE) if on_device == all_layers else compute
    return Need(
        weights_host,
        weights_device,
        sum(caches[:first]) + states - device_state,
        sum(caches[first:]) + device_state,
        output + _copy(model) + host_compute,
        compute if on_device else 0,
    )


def _caches(model: ModelFacts, setup: Setup) -> list[int]:
    """Bytes of each layer's cache."""
    n = _padded(setup.n_ctx)
    most = max((value for _, value in model.kv_widths), default=0)
    return [
        # Without flash attention values lie transposed, in every layer as many as in the widest.
        n * _row_bytes(key, setup.cache_k)
        + n * _row_bytes(value if setup.flash or not key else most, setup.cache_v)
        for key, value in model.kv_widths
    ]


def block_of(kind: str) -> int:
    """Elements that a type of the cache packs together."""
    return _BLOCKS[kind][0]


def _row_bytes(elements: int, kind: str) -> int:
    block, n_bytes = _BLOCKS[kind]
    return -(-elements // block) * n_bytes


def _state_bytes(model: ModelFacts, setup: Setup) -> int:
    """The states, and llama.cpp's snapshots of them."""
    elements, layers = model.state
    copies = 1 + (setup.snapshots if model.architecture in _WITH_SNAPSHOTS else 0)
    return elements * layers * _F32 * copies


def _copy(model: ModelFacts) -> int:
    """Our own copy of a state, to go back to."""
    return model.state[0] * model.state[1] * _F32


def _compute(model: ModelFacts, setup: Setup) -> int:
    n_ctx = _padded(setup.n_ctx)
    batch = min(setup.n_batch, setup.n_ctx)
    attends = any(key for key, _ in model.kv_widths)
    stream = batch * model.width * _F32
    layer = batch * model.widest * _F32
    if attends and setup.flash:
        layer += batch * n_ctx * _F16 * model.masks + _converted(model, setup)
    elif attends:
        scores = batch * n_ctx * _F32
        layer = max(layer + scores, (model.heads + model.masks) * scores + 6 * stream)
    logits = model.vocab * min(MAX_BATCH_OUTPUTS, batch) * _F32 + stream
    return max(layer, logits, _LEAST_COMPUTE)


def _converted(model: ModelFacts, setup: Setup) -> int:
    """A layer's cache once more in f16: flash attention takes no f32."""
    key, value = max(model.kv_widths, default=(0, 0))
    n = (key if setup.cache_k == "f32" else 0) + (value if setup.cache_v == "f32" else 0)
    return n * _padded(setup.n_ctx) * _F16


def _padded(n_ctx: int) -> int:
    return -(-n_ctx // CTX_STEP) * CTX_STEP


_BLOCKS: Final = {name.lower(): (block, size) for name, block, size in GGML_TYPES.values()}
