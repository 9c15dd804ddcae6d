"""A tiny model of any architecture with random weights: llama.cpp says which tensors it has.

llama.cpp is given a header without tensors (`llama_model_init_from_user`), and asks for the data of
every tensor that the architecture may have; their names and shapes go into the file. It ends the
process over settings that make no model, so each model is written by a separate process:

    python -m tests.support.any_model ARCHITECTURE FILE SETTINGS_IN_JSON SEED KIND
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from tests.support import toy
from tests.support.gguf_models import KINDS, Vocabulary, add_vocabulary, finish, read_vocabulary

Settings = Mapping[str, Any]
LAYERS = 3
WIDTH = 128
LATENT = {  # multi-head latent attention
    "attention.key_length": 96,
    "attention.value_length": 64,
    "attention.key_length_mla": 64,
    "attention.value_length_mla": 32,
    "attention.kv_lora_rank": 64,
    "attention.q_lora_rank": 64,
    "attention.head_count_kv": 1,
    "rope.dimension_count": 32,
}
INDEXED = {
    "attention.indexer.head_count": 4,
    "attention.indexer.key_length": 128,
    "attention.indexer.top_k": 4096,
}
STREAMS = {
    "hyper_connection.count": 4,
    "hyper_connection.sinkhorn_iterations": 2,
    "hyper_connection.epsilon": 1e-6,
    "hyper_connection.magnitude": 1.0,
    "hyper_connection.low_rank": 8,
}
WINDOW = {
    "attention.sliding_window": 64,
    "attention.key_length_swa": 64,
    "attention.value_length_swa": 64,
    "rope.freq_base_swa": 10_000.0,
    "rope.dimension_count_swa": 64,
}
DELTA = {
    "ssm.conv_kernel": 4,
    "ssm.inner_size": 128,
    "ssm.state_size": 64,
    "ssm.time_step_rank": 2,
    "ssm.group_count": 2,
    "full_attention_interval": 2,
}
EVERY: Settings = {
    "context_length": 1024,
    "embedding_length": WIDTH,
    "feed_forward_length": 64,
    "attention.head_count": 2,
    "attention.head_count_kv": 2,
    "attention.key_length": 64,
    "attention.value_length": 64,
    "attention.layer_norm_rms_epsilon": 1e-5,
    "attention.layer_norm_epsilon": 1e-5,
    "rope.dimension_count": 64,
    "rope.freq_base": 10_000.0,
    "leading_dense_block_count": 1,
    "expert_count": 4,
    "expert_used_count": 2,
    "expert_feed_forward_length": 32,
    "expert_shared_count": 1,
    "expert_shared_feed_forward_length": 32,
    "expert_weights_scale": 1.0,
    "expert_weights_norm": True,
    "expert_gating_func": 2,
}
"""Settings of all architectures; llama.cpp ignores those that one does not have."""


def each(*values: Any) -> Callable[[int], list[Any]]:
    """A setting with a value for each layer; the last one is repeated."""
    return lambda layers: [*values, *[values[-1]] * layers][:layers]


MAMBA = {
    **DELTA,
    "attention.head_count_kv": each(0, 2, 0, 2),
    "feed_forward_length": each(0, 0, 64, 0),
}
SECTIONS = {"rope.dimension_sections": [16, 8, 8, 0]}
OWN: Mapping[str, Settings] = {
    "deepseek2": LATENT,
    "deepseek32": {**LATENT, **INDEXED},
    "glm-dsa": {**LATENT, **INDEXED},
    "bailingmoe3": {
        **LATENT,
        "attention.head_count_kv": each(0, 1),
        "kda.head_dim": 64,
        "kda.safe_gate": True,
        "kda.gate_lower_bound": -5.0,
        "ssm.conv_kernel": 4,
    },
    "deepseek4": {
        "attention.head_count": 4,
        "attention.head_count_kv": 1,
        "attention.q_lora_rank": 64,
        "rope.dimension_count": 32,
        "attention.sliding_window": 64,
        "attention.output_group_count": 4,
        "attention.output_lora_rank": 32,
        "attention.compress_ratios": each(0, 4, 128, 0),
        "attention.compress_rope_freq_base": 160_000.0,
        **INDEXED,
        "hyper_connection.count": 4,
        "hyper_connection.sinkhorn_iterations": 2,
        "hyper_connection.epsilon": 1e-6,
        "hash_layer_count": 0,
        "swiglu_clamp_exp": each(10.0),
        "expert_gating_func": 4,
    },
    "nemotron_h": MAMBA,
    "nemotron_h_moe": MAMBA,
    "minimax-01": {
        "residual_scale": 1.0,
        "full_attention_interval": 2,
        "attention.head_count": 8,
    },
    "phi3": {"attention.sliding_window": 64},
    "llama4": {"interleave_moe_layer_step": 1},
    "nanbeige": {"num_loops": 3},
    "mimo2": {**WINDOW, "attention.sliding_window_pattern": each(1, 0)},
    "cohere2moe": {**WINDOW, "attention.sliding_window_pattern": each(1, 0), "logit_scale": 1.0},
    "step35": {**WINDOW, "attention.sliding_window_pattern": each(1, 0)},
    "gpt-oss": {"attention.sliding_window": 64},
    "gemma4": {
        **WINDOW,
        "attention.sliding_window_pattern": each(1, 0),
        "attention.shared_kv_layers": 0,
        "embedding_length_per_layer_input": 0,
    },
    "muse-glimmer": {"logit_scale": 1.0, **WINDOW, "attention.sliding_window_pattern": each(1, 0)},
    "lfm2": {"shortconv.l_cache": 3, "attention.head_count_kv": each(0, 2)},
    "lfm2moe": {"shortconv.l_cache": 3, "attention.head_count_kv": each(0, 2)},
    "qwen3next": DELTA,
    "qwen35": {**DELTA, **SECTIONS},
    "qwen35moe": {**DELTA, **SECTIONS},
    "qwen4exp": {
        **DELTA,
        **SECTIONS,
        **INDEXED,
        **STREAMS,
        "attention.compress_ratios": each(4),
    },
    "hy_v4": {**LATENT, **INDEXED, **STREAMS, "attention.indexer.types": each(1, 0)},
    "glm5-next": {
        **LATENT,
        **INDEXED,
        **STREAMS,
        "attention.head_count_kv": each(0, 1),
        "attention.key_length": 64,
        "attention.indexer.top_k": 512,
        "attention.indexer.kpool": 4,
        "kda.head_dim": 64,
        "kda.gate_lower_bound": -5.0,
        "rope.dimension_count": 0,
        "ssm.conv_kernel": 4,
    },
    "minimax-m3": {
        **INDEXED,
        "attention.indexer.head_count": 2,
        "attention.indexer.top_k": 16,
        "attention.indexer.block_size": 64,
        "attention.indexer.local_blocks": 1,
    },
    "hunyuan_vl": SECTIONS,
}


def settings(architecture: str, layers: int, nextn: int, experts: int) -> dict[str, Any]:
    """The settings of a model; the last `nextn` of its layers predict more tokens."""
    found = {**EVERY, **OWN.get(architecture, {})}
    found |= {"block_count": layers, "expert_count": experts}
    if nextn:
        found["nextn_predict_layers"] = nextn
    return {name: value(layers) if callable(value) else value for name, value in found.items()}


def write_any(
    path: Path,
    architecture: str,
    *,
    layers: int = LAYERS,
    nextn: int = 0,
    seed: int = 0,
    experts: int = 4,
    kind: str = "f32",
) -> Path:
    """Write a model with the toy's vocabulary, in a separate process.

    Args:
        path: the file.
        architecture: by llama.cpp's name.
        layers: without those that predict more tokens.
        nextn: layers that predict more tokens (MTP).
        seed: of the weights.
        experts: in each layer, of which a token uses two.
        kind: the type of the experts' matrices, a key of `KINDS`; all others are in F32.

    Raises:
        RuntimeError: llama.cpp makes no such model; its last words follow.
    """
    known = settings(architecture, layers + nextn, nextn, experts)
    command = [sys.executable, "-m", __name__, architecture, str(path), json.dumps(known)]
    command += [str(seed), kind]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{architecture}: {done.stderr[-2000:]}")
    return path


def _written(path: Path, architecture: str, known: Settings, seed: int, kind: str) -> None:
    vocabulary = read_vocabulary(toy.TARGET)
    with tempfile.TemporaryDirectory() as folder:
        bare = Path(folder) / "bare.gguf"
        finish(_writer(bare, architecture, known, vocabulary))
        shapes = _as_published(_asked_for(bare), architecture, known)
    writer, random = _writer(path, architecture, known, vocabulary), np.random.default_rng(seed)
    for name, shape in shapes.items():
        raw = KINDS[kind if name.endswith("_exps.weight") else "f32"]
        writer.add_tensor(name, gguf.quantize(_weights(name, shape, random), raw), raw_dtype=raw)
    finish(writer)


def _as_published(
    shapes: dict[str, tuple[int, ...]], architecture: str, known: Settings
) -> dict[str, tuple[int, ...]]:
    """The tensors as published files have them, where llama.cpp without a file asks for others."""
    found = {name: shape for name, shape in shapes.items() if not name.startswith("dense_")}
    for name, (outputs, *inputs) in shapes.items():
        layer, _, part = name.rpartition(".attn_q.")
        if part == "weight" and architecture == "mimo2":  # its head insists on one matrix of three
            keys, values = (found[f"{layer}.attn_{each}.weight"][0] for each in "kv")
            found[f"{layer}.attn_qkv.weight"] = (outputs + keys + values, *inputs)
            apart = tuple(f"{layer}.attn_{each}." for each in "qkv")
            found = {each: it for each, it in found.items() if not each.startswith(apart)}
    if "nextn_predict_layers" in known and architecture == "deepseek4":
        # Without a file its last layer is like the others.
        layer = f"blk.{known['block_count'] - 1}.nextn"
        found |= {f"{layer}.eh_proj.weight": (WIDTH, 2 * WIDTH)}
        found |= {f"{layer}.{each}norm.weight": (WIDTH,) for each in "eh"}
    return found


def _writer(
    path: Path, architecture: str, known: Settings, vocabulary: Vocabulary
) -> gguf.GGUFWriter:
    writer = gguf.GGUFWriter(path, architecture)
    for name, value in known.items():
        key = f"{architecture}.{name}"
        if isinstance(value, list):
            writer.add_array(key, value)
        elif isinstance(value, bool):
            writer.add_bool(key, value)
        else:
            (writer.add_float32 if isinstance(value, float) else writer.add_uint32)(key, value)
    add_vocabulary(writer, vocabulary)
    return writer


def _weights(name: str, shape: tuple[int, ...], random: np.random.Generator) -> np.ndarray:
    """Random weights of a scale that keeps what a layer computes about as large as its input."""
    array = random.normal(0, shape[-1] ** -0.5, shape)
    if "norm" in name or "scale" in name or "rope" in name:
        array = np.ones(shape)
    elif name.endswith("ssm_a"):
        array = -np.abs(array)
    elif name.endswith(".bias"):
        array = 0.1 * array
    elif name.startswith(("token_embd", "output.")):
        array = array * (shape[-1] ** 0.5 if name.startswith("token_embd") else 2)
    return array.astype(np.float32)


class _Tensor(ctypes.Structure):
    """The beginning of ggml's `struct ggml_tensor`."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("buffer", ctypes.c_void_p),
        ("ne", ctypes.c_int64 * 4),
    )


class _Reading(ctypes.Structure):
    """`struct gguf_init_params`."""

    _fields_ = (("no_alloc", ctypes.c_bool), ("ctx", ctypes.c_void_p))


def _asked_for(bare: Path) -> dict[str, tuple[int, ...]]:
    """Map the name of each tensor that llama.cpp wants for this header to its shape, rows last."""
    from llama_cpp import llama_cpp as lib  # noqa: PLC0415 - only the process that writes

    from localspec.engine.llama.library import ggml_library  # noqa: PLC0415

    lib.llama_backend_init()
    base = ggml_library("ggml-base")
    base.gguf_init_from_file.restype = ctypes.c_void_p
    base.gguf_init_from_file.argtypes = (ctypes.c_char_p, _Reading)
    base.ggml_get_name.restype, base.ggml_get_name.argtypes = ctypes.c_char_p, (ctypes.c_void_p,)
    found: dict[str, tuple[int, ...]] = {}

    def note(tensor: int, _data: object) -> None:
        sizes = list(_Tensor.from_address(tensor).ne)
        while len(sizes) > 1 and sizes[-1] == 1:
            sizes.pop()
        found[base.ggml_get_name(tensor).decode()] = tuple(reversed(sizes))

    params = lib.llama_model_default_params()
    params.n_gpu_layers, params.load_mtp = 0, True
    header = base.gguf_init_from_file(os.fsencode(bare), _Reading(True, None))
    callback = lib.llama_model_set_tensor_data_t(note)
    model = lib.llama_model_init_from_user(header, callback, None, params)
    if not model:
        raise SystemExit("llama.cpp makes no model of these settings")
    return found


if __name__ == "__main__":
    _written(Path(sys.argv[2]), sys.argv[1], json.loads(sys.argv[3]), int(sys.argv[4]), sys.argv[5])
