"""Draft heads of the demo target in PyTorch: EAGLE-3 and MTP, and how they become GGUF.

A head reads what the target computed. Row i pairs the target's state at token i with token i + 1
and predicts token i + 2; a later step of the same draft gets the head's own state instead of the
target's. EAGLE-3 (arXiv 2503.01840) fuses three inner states of the target; MTP (arXiv 2412.19437)
takes its last one. The positions of a row differ by one between the two in llama.cpp; rotary
positions are relative, so that nothing of it shows here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import export
import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Kind
from model import Block, Llama, Norm, Shape, rotary_table, rotate
from torch import Tensor, nn
from torch.nn import functional

if TYPE_CHECKING:
    from pathlib import Path

    from tokenizers import Tokenizer

TAPS = (2, 5, 7)
"""Layers of the target whose inputs EAGLE-3 reads; llama.cpp wants three."""

EXPERTS = 1
"""Of the mixture that llama.cpp wants in an MTP block, beside the shared one."""

ATTENTION = ("attn_norm", "attn_q", "attn_k", "attn_v", "attn_output")

Kept = list[tuple[Tensor, Tensor]]
"""Keys and values of every step so far, each `(batch, heads, rows, width)`."""


def seen(step: int, length: int, device: torch.device) -> Tensor:
    """Say what the rows of a step attend to, `(length, (step + 1) * length)`.

    The row at i in step j belongs to the draft that began at row i - j: it sees the first step up
    to there, and of every later step the one row of its own draft.
    """
    parts = [torch.ones(length, length, dtype=torch.bool, device=device).tril(-step)]
    for later in range(1, step + 1):
        own = torch.zeros(length, length, dtype=torch.bool, device=device)
        own.diagonal(later - step).fill_(value=True)
        parts.append(own)
    return torch.cat(parts, dim=1)


class Head(nn.Module):
    """What both kinds share: one block of the target's shape, and steps over it."""

    kind: str

    def __init__(self, target: Llama, block: Block) -> None:
        super().__init__()
        self.shape = target.shape
        self.blk = nn.ModuleList([block])
        self.output_norm = Norm(self.shape.width, self.shape.epsilon)
        cos, sin = rotary_table(self.shape, self.shape.context)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def start_from(self, target: Llama) -> None:
        """Begin with the weights of the target's last block: they write what its output reads."""
        mine, last = self.blk[0].state_dict(), target.blk[-1].state_dict()
        width = self.shape.width
        with torch.no_grad():
            for name, value in mine.items():
                if name in last and value.dim() == 2:  # columns at the end read the state
                    value[:, -width:] = (
                        last[name][:, -width:] if value.shape[1] != width else last[name]
                    )
                elif name in last:
                    value.copy_(last[name])
            self.output_norm.weight.copy_(target.output_norm.weight)

    def features(self, states: list[Tensor]) -> Tensor:
        """Make a state for the first step of what `states_of` found, `(batch, rows, width)`."""
        raise NotImplementedError

    def enter(self, embedded: Tensor, given: Tensor) -> tuple[Tensor, Tensor]:
        """Make of tokens and states what goes on in the residual stream, and what is attended."""
        raise NotImplementedError

    def step(self, embedded: Tensor, given: Tensor, kept: Kept) -> tuple[Tensor, Tensor]:
        """Do one step over all rows; append to `kept`.

        Returns:
            The state for the next step, and what the target's output matrix scores.
        """
        block, length = self.blk[0], given.shape[1]
        cos, sin = self.cos[:length], self.sin[:length]
        stream, inner = self.enter(embedded, given)
        query = rotate(block.heads(block.attn_q(inner)), cos, sin)
        key = rotate(block.heads(block.attn_k(inner)), cos, sin)
        kept.append((key, block.heads(block.attn_v(inner))))
        keys, values = (torch.cat(part, dim=2) for part in zip(*kept, strict=True))
        mask = seen(len(kept) - 1, length, given.device)
        mixed = functional.scaled_dot_product_attention(query, keys, values, attn_mask=mask)
        mixed = mixed.transpose(1, 2).reshape(given.shape)
        x = stream + block.attn_output(mixed)
        inner = block.ffn_norm(x)
        x = x + block.ffn_down(functional.silu(block.ffn_gate(inner)) * block.ffn_up(inner))
        return self.leave(x)

    def leave(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Give what the last lines of `step` return."""
        raise NotImplementedError


class Eagle(Head):
    """EAGLE-3: the target's states at three depths, made one; tokens enter by attention alone."""

    kind = "eagle3"

    def __init__(self, target: Llama) -> None:
        shape = target.shape
        block = Block(shape)
        for name in ("attn_q", "attn_k", "attn_v"):
            setattr(block, name, nn.Linear(2 * shape.width, shape.width, bias=False))
        block.attn_norm_2 = Norm(shape.width, shape.epsilon)
        block.fc = nn.Linear(3 * shape.width, shape.width, bias=False)
        super().__init__(target, block)
        for parameter in block.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02)
        self.start_from(target)
        with torch.no_grad():
            block.attn_norm_2.weight.copy_(target.blk[-1].attn_norm.weight)
            nn.init.normal_(block.fc.weight, std=0.002)
            block.fc.weight[:, -shape.width :] += torch.eye(shape.width)

    def features(self, states: list[Tensor]) -> Tensor:
        """Make one state of three."""
        return self.blk[0].fc(torch.cat([states[tap] for tap in TAPS], dim=-1))

    def enter(self, embedded: Tensor, given: Tensor) -> tuple[Tensor, Tensor]:
        """Go on with the state; attend with the token beside it."""
        block = self.blk[0]
        return given, torch.cat((block.attn_norm(embedded), block.attn_norm_2(given)), dim=-1)

    def leave(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Hand the stream on as it is."""
        return x, self.output_norm(x)


class Mtp(Head):
    """MTP: the target's last state and the next token, mixed by a matrix, then one block."""

    kind = "mtp"

    def __init__(self, target: Llama) -> None:
        shape = target.shape
        super().__init__(target, Block(shape))
        self.start_from(target)
        self.enorm = Norm(shape.width, shape.epsilon)
        self.hnorm = Norm(shape.width, shape.epsilon)
        self.blk[0].eh_proj = nn.Linear(2 * shape.width, shape.width, bias=False)
        nn.init.normal_(self.blk[0].eh_proj.weight, std=0.5 * shape.width**-0.5)

    def features(self, states: list[Tensor]) -> Tensor:
        """Take the last state."""
        return states[-1]

    def enter(self, embedded: Tensor, given: Tensor) -> tuple[Tensor, Tensor]:
        """Mix token and state."""
        x = self.blk[0].eh_proj(torch.cat((self.enorm(embedded), self.hnorm(given)), dim=-1))
        return x, self.blk[0].attn_norm(x)

    def leave(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Hand on what is scored."""
        x = self.output_norm(x)
        return x, x


KINDS = {kind.kind: kind for kind in (Eagle, Mtp)}


@torch.no_grad()
def states_of(target: Llama, ids: Tensor) -> list[Tensor]:
    """Return what enters each layer for `(batch, positions)` ids, last the normed final state."""
    length = ids.shape[1]
    cos, sin = target.cos[:length], target.sin[:length]
    states = [target.token_embd(ids)]
    for block in target.blk:
        states.append(block(states[-1], cos, sin))
    states[-1] = target.output_norm(states[-1])
    return states


def unroll(head: Head, embedded: Tensor, features: Tensor, steps: int) -> list[Tensor]:
    """Draft from every row at once; return for each step what the output matrix scores.

    Row i of step j is the (j + 1)th token of the draft that began at row i - j; the first j rows of
    it mean nothing. The tokens are the true ones: only a draft that was right so far matters.
    """
    kept: Kept = []
    given, scored = features, []
    for step in range(steps):
        state, out = head.step(embedded, given.roll(1, dims=1) if step else given, kept)
        scored.append(out)
        given = state
    return scored


def _open(path: Path, architecture: str, shape: Shape, tokenizer: Tokenizer) -> gguf.GGUFWriter:
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_license("apache-2.0")
    export.write_shape(writer, shape)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    export.write_vocabulary(writer, tokenizer)
    return writer


def _close(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add(writer: gguf.GGUFWriter, name: str, array: np.ndarray) -> None:
    """Write a matrix as Q8_0, a vector as F32."""
    stored = Kind.Q8_0 if array.ndim > 1 else Kind.F32
    array = np.ascontiguousarray(array, dtype=np.float32)
    writer.add_tensor(name, gguf.quantize(array, stored), raw_dtype=stored)


def _weights(head: Head) -> dict[str, np.ndarray]:
    return {k: v.detach().cpu().float().numpy() for k, v in head.state_dict().items()}


def save_eagle3(head: Eagle, tokenizer: Tokenizer, path: Path) -> None:
    """Write an EAGLE-3 head; embeddings and output matrix are the target's."""
    writer = _open(path, "eagle3", _with_layers(head.shape, 1), tokenizer)
    writer.add_name("localspec demo EAGLE-3 head")
    writer.add_array("eagle3.target_layers", list(TAPS))
    writer.add_uint32("eagle3.target_hidden_size", head.shape.width)
    for name, array in _weights(head).items():
        turned = name.endswith(export.PERMUTED)
        stored = export.interleave(array, head.shape.heads) if turned else array
        _add(writer, name.replace("blk.0.fc.", "fc."), stored)
    _close(writer)


def save_mtp(head: Mtp, target: Path, tokenizer: Tokenizer, path: Path) -> None:
    """Write the target with the head in it, as the architecture `glm4moe`.

    Its layers are the target's but for the order of rotary rows, byte by byte. llama.cpp wants a
    mixture of experts in the head: one is shared, the other the only one, each half as wide, which
    is the same as one whole feed-forward.
    """
    shape, half = head.shape, head.shape.feed_forward // 2
    writer = _open(path, "glm4moe", _with_layers(shape, shape.layers + 1), tokenizer)
    writer.add_name("localspec demo target with MTP head")
    writer.add_uint32("glm4moe.nextn_predict_layers", 1)
    writer.add_leading_dense_block_count(shape.layers)
    writer.add_expert_count(EXPERTS)
    writer.add_expert_used_count(1)
    writer.add_expert_shared_count(1)
    writer.add_expert_feed_forward_length(half)
    writer.add_expert_weights_norm(True)
    writer.add_expert_weights_scale(1.0)
    for tensor in gguf.GGUFReader(target).tensors:
        data = np.array(tensor.data)
        if tensor.name.endswith(export.PERMUTED):
            data = export.separate(data, shape.heads)
        name = tensor.name.replace("ffn_norm", "post_attention_norm")
        writer.add_tensor(name, data, raw_dtype=tensor.tensor_type)
    for name, array in _mtp_tensors(_weights(head)):
        _add(writer, f"blk.{shape.layers}.{name}", array)
    _close(writer)


def _mtp_tensors(mine: dict[str, np.ndarray]) -> list[tuple[str, np.ndarray]]:
    """Name the tensors of an MTP block as llama.cpp does."""
    block = {name.removeprefix("blk.0."): array for name, array in mine.items() if "blk" in name}
    found = [(f"{name}.weight", block[f"{name}.weight"]) for name in ATTENTION]
    found.append(("post_attention_norm.weight", block["ffn_norm.weight"]))
    found.append(("nextn.eh_proj.weight", block["eh_proj.weight"]))
    found += [(f"nextn.{name}.weight", mine[f"{name}.weight"]) for name in ("enorm", "hnorm")]
    found.append(("nextn.shared_head_norm.weight", mine["output_norm.weight"]))
    for name in ("ffn_gate", "ffn_up", "ffn_down"):
        whole = block[f"{name}.weight"]
        shared, only = np.split(whole, 2, axis=1 if name == "ffn_down" else 0)
        found += [
            (f"{name}_shexp.weight", shared),
            (f"{name}_exps.weight", np.stack([only] * EXPERTS)),
        ]
    width = len(block["ffn_norm.weight"])
    found.append(("ffn_gate_inp.weight", np.zeros((EXPERTS, width), np.float32)))
    found.append(("exp_probs_b.bias", np.zeros(EXPERTS, np.float32)))
    return found


def _with_layers(shape: Shape, layers: int) -> Shape:
    return Shape(**(vars(shape) | {"layers": layers}))
