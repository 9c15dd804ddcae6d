"""LoRA adapters with random weights, for any target; arguments make one wrong in many ways."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import gguf
import numpy as np

from localspec.pairs.gguf.header import read_header
from tests.support.gguf_models import finish

CHANGED = ("attn_q.weight", "attn_output.weight", "ffn_down.weight")
"""The tensors of every layer that an adapter changes."""


def write_adapter(
    path: Path,
    target: Path,
    *,
    changed: Sequence[str] = CHANGED,
    rank: int = 4,
    seed: int = 0,
    strength: float = 0.5,
    architecture: str | None = None,
    keys: Mapping[str, str] | None = None,
    alpha: float | None = 8.0,
    more: Callable[[gguf.GGUFWriter], None] | None = None,
    rename: Mapping[str, str] | None = None,
) -> Path:
    """Write an adapter.

    Args:
        path: the file to write.
        target: the model that it is for.
        changed: endings of the names of the tensors that it changes.
        rank: inner dimension of the two factors of a change.
        seed: of its weights.
        strength: standard deviation of a change's weights, in those of the tensor.
        architecture: the one that it names; None for the target's.
        keys: texts of its metadata, added or in place of the usual ones.
        alpha: divided by the rank, a factor of every change; None for none.
        more: writes more into the file.
        rename: other names for some of its tensors.
    """
    header, random = read_header(target), np.random.default_rng(seed)
    writer = gguf.GGUFWriter(path, architecture or header.architecture)
    known = {"general.type": "adapter", "adapter.type": "lora"}
    for key, value in {**known, **(keys or {})}.items():
        writer.add_string(key, value)
    if alpha is not None:
        writer.add_float32("adapter.lora.alpha", alpha)
    if more is not None:
        more(writer)
    for tensor in header.tensors:
        if not tensor.name.endswith(tuple(changed)):
            continue
        inputs, outputs, *others = tensor.shape
        std = strength * (rank * inputs) ** -0.5
        shapes = (rank, inputs), (outputs, rank)
        if tensor.name == "token_embd.weight":  # a row for each token
            shapes = (outputs, rank), (inputs, rank)
        for ending, shape in zip((".lora_a", ".lora_b"), shapes, strict=True):
            name = f"{tensor.name}{ending}"
            array = random.normal(0, std if ending == ".lora_a" else 1, (*reversed(others), *shape))
            writer.add_tensor((rename or {}).get(name, name), array.astype(np.float32))
    finish(writer)
    return path
