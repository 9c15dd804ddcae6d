"""The bytes that one model takes: weights, caches, states, buffers.

Weights, caches and states are exact. The compute buffer is estimated as the most that llama.cpp
holds during a batch: in the feed-forward part, in attention, or at the logits.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import Final

from localspec.limits import HEAD_REACH, MAX_BATCH_OUTPUTS, N_BATCH
from localspec.pairs.gguf.header import GGML_TYPES, padded
from localspec.pairs.memory.model_facts import ModelFacts

CTX_STEP: Final = 256  # llama.cpp rounds a context up to this
USUAL_OUTPUTS: Final = 9  # rows of the output buffer with drafts of eight tokens
_LEAST_COMPUTE: Final = 1_100_000
_F32: Final = 4
_F16: Final = 2
_I64: Final = 8
_COPIES: Final = 3  # additional ones, if several devices work on a prompt at the same time
_COPIED_EXPERTS: Final = 2
_BLOCKS: Final = {name.lower(): (block, size) for name, block, size in GGML_TYPES.values()}

# Architectures of which llama.cpp keeps snapshots of recurrent states (src/llama-arch.cpp).
_WITH_SNAPSHOTS: Final = (
    *("qwen35", "qwen35moe", "qwen4exp", "lfm2", "lfm2moe", "nemotron_h", "nemotron_h_moe"),
    *("kimi-k3", "deepseek4", "glm5-next", "bailingmoe3"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSetup:
    """How to run a model.

    Attributes:
        n_ctx: tokens of context.
        cache_k, cache_v: types of the cache, by llama.cpp's names.
        gpu_layers: layers on accelerators, the output layer counted as the first; -1 for all.
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


def need(model: ModelFacts, setup: ModelSetup) -> MemoryNeed:
    """Compute the bytes that `model` takes when it is run with `setup`."""
    setup = replace(setup, flash=setup.flash and model.flashes)
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
    state = prod(model.state) * _F32
    states = state * (1 + setup.snapshots * (model.architecture in _WITH_SNAPSHOTS))
    device_state = round(states * (share / model.layers if model.layers else 0))
    n_ctx, batch = padded(setup.n_ctx, CTX_STEP), min(model.batch, setup.n_ctx)
    kept = model.held * min(N_BATCH, setup.n_ctx) + min(HEAD_REACH, setup.n_ctx)
    shown = model.shown * kept * _F32
    usual = USUAL_OUTPUTS if model.outputs == MAX_BATCH_OUTPUTS else model.outputs
    partly = 0 < on_device < all_layers
    layer = _layer(model, setup, n_ctx, batch)
    copies = _COPIED_EXPERTS if moved else int(partly)
    compute = max(layer, _logits_or_copies(model, setup, n_ctx, batch, copies))
    output = model.vocab * usual * _F32
    inputs = n_ctx * batch * _F16 * model.masks
    host_compute = layer if partly else compute
    if on_device == all_layers:
        host_compute = min(compute, inputs + _LEAST_COMPUTE)
    if moved:  # the processor computes them
        host_compute = max(host_compute, inputs + batch * model.widest * _F32)
    used = sum(1 for _, layers in setup.split if layers)
    several = used > 1 and on_device == all_layers
    shared = _COPIES * _copied(model, setup, n_ctx, batch) if several else 0
    return MemoryNeed(
        weights_host,
        weights_device,
        sum(caches[:first]) + states - device_state,
        sum(caches[first:]) + device_state,
        output + model.marks * state + host_compute + shared + shown + model.table,
        max(1, used) * (compute + shared) if on_device else 0,
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


def _layer(model: ModelFacts, setup: ModelSetup, n_ctx: int, batch: int) -> int:
    """Bytes that a layer takes for a batch of tokens over a full cache."""
    layer = batch * model.widest * _F32
    if model.attends and setup.flash:
        # Flash attention takes no f32: a layer's cache is converted to f16.
        key, value = max(model.kv_widths)
        converted = key * (setup.cache_k == "f32") + value * (setup.cache_v == "f32")
        layer += batch * n_ctx * _F16 * model.masks + converted * n_ctx * _F16
    elif model.attends:
        scores = batch * n_ctx * _F32
        stream = batch * model.width * _F32
        layer = max(layer + scores, (model.heads + model.masks) * scores + 6 * stream)
    layer += batch * model.indexer.n_floats(n_ctx, flash=setup.flash) * _F32
    return max(layer, _LEAST_COMPUTE)


def _logits_or_copies(
    model: ModelFacts, setup: ModelSetup, n_ctx: int, batch: int, copies: int
) -> int:
    """Bytes of the logits, or of matrices that are copied from main memory for a prompt.

    Of these there are as many `copies` at a time, and the masks stay. This llama.cpp has one of a
    layer, and of experts up to two (docs/measurements/placement.md).
    """
    logits = (model.vocab * min(model.outputs, batch) + batch * model.width) * _F32
    if not copies:
        return logits
    masks = batch * n_ctx * (_F16 if setup.flash else _F32) * model.attends * model.masks
    return max(logits, copies * model.largest_matrix + batch * model.widest * _F32 + masks)
