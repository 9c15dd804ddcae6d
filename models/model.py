"""The Llama architecture in PyTorch, no more than the demo pair needs.

Pre-norm blocks with RMSNorm, rotary positions, causal attention, SwiGLU, tied embeddings. Inside,
the rotary pairs are (i, i + half); GGUF's `llama` architecture wants (2i, 2i + 1), so `export.py`
permutes the rows of the query and key matrices.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True)
class Shape:
    """The sizes of a model."""

    vocab: int
    width: int
    layers: int
    heads: int
    feed_forward: int
    context: int = 1024
    """Longest context it was trained at."""
    epsilon: float = 1e-5
    rope_base: float = 10_000.0

    @property
    def head_width(self) -> int:
        """Width of one attention head."""
        return self.width // self.heads


def rotary_table(shape: Shape, positions: int) -> tuple[Tensor, Tensor]:
    """Return cosines and sines, `(positions, head width / 2)`."""
    half = shape.head_width // 2
    frequency = shape.rope_base ** (-torch.arange(half, dtype=torch.float64) / half)
    angle = torch.outer(torch.arange(positions, dtype=torch.float64), frequency)
    return angle.cos().float(), angle.sin().float()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn the pairs (i, i + half) of `(batch, heads, positions, width)` by their positions."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


class Norm(nn.Module):
    """Root-mean-square norm with a gain."""

    def __init__(self, width: int, epsilon: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.epsilon = epsilon

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the last dimension."""
        scale = torch.rsqrt(x.square().mean(-1, keepdim=True) + self.epsilon)
        return x * scale * self.weight


class Block(nn.Module):
    """One layer: attention and feed-forward, each added to the residual stream."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        width, wide = shape.width, shape.feed_forward
        self.shape = shape
        self.attn_norm = Norm(width, shape.epsilon)
        self.attn_q = nn.Linear(width, width, bias=False)
        self.attn_k = nn.Linear(width, width, bias=False)
        self.attn_v = nn.Linear(width, width, bias=False)
        self.attn_output = nn.Linear(width, width, bias=False)
        self.ffn_norm = Norm(width, shape.epsilon)
        self.ffn_gate = nn.Linear(width, wide, bias=False)
        self.ffn_up = nn.Linear(width, wide, bias=False)
        self.ffn_down = nn.Linear(wide, width, bias=False)

    def heads(self, x: Tensor) -> Tensor:
        """Split `(batch, positions, width)` into heads."""
        batch, length, _ = x.shape
        return x.view(batch, length, self.shape.heads, self.shape.head_width).transpose(1, 2)

    def attend(self, x: Tensor, cos: Tensor, sin: Tensor, memory: Memory | None) -> Tensor:
        """Attend to what came before and to `x` itself."""
        query = rotate(self.heads(self.attn_q(x)), cos, sin)
        key = rotate(self.heads(self.attn_k(x)), cos, sin)
        value = self.heads(self.attn_v(x))
        if memory is None:
            mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        else:
            key, value = memory.extend(self, key, value)
            mixed = functional.scaled_dot_product_attention(
                query, key, value, attn_mask=memory.mask
            )
        return self.attn_output(mixed.transpose(1, 2).reshape(x.shape))

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, memory: Memory | None = None) -> Tensor:
        """Apply the layer."""
        x = x + self.attend(self.attn_norm(x), cos, sin, memory)
        inner = self.ffn_norm(x)
        return x + self.ffn_down(functional.silu(self.ffn_gate(inner)) * self.ffn_up(inner))


class Memory:
    """Keys and values of a batch of prompts padded on the left, for generation."""

    def __init__(self, model: Llama, lengths: Tensor, columns: int) -> None:
        shape, like = model.shape, model.token_embd.weight
        size = (len(lengths), shape.heads, columns, shape.head_width)
        self.kept = [(like.new_zeros(size), like.new_zeros(size)) for _ in range(shape.layers)]
        self.used = 0
        self.pad = int(lengths.max()) - lengths
        self.mask = torch.empty(0)
        self.order: dict[Block, int] = {}

    def open(self, count: int) -> Tensor:
        """Make room for `count` columns; return the position of each, `(batch, count)`."""
        column = torch.arange(self.used, self.used + count, device=self.pad.device)
        seen = torch.arange(self.used + count, device=self.pad.device)
        causal = seen[None, :] <= column[:, None]
        real = seen[None, :] >= self.pad[:, None]
        own = seen[None, :] == column[:, None]  # a padding column may see itself: no empty rows
        self.mask = ((causal & real[:, None]) | own)[:, None]
        return (column - self.pad[:, None]).clamp(min=0)

    def select(self, rows: Tensor) -> None:
        """Keep some rows of the batch."""
        self.kept = [(keys[rows], values[rows]) for keys, values in self.kept]
        self.pad = self.pad[rows]

    def extend(self, block: Block, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Store the new columns of a layer; return all of its columns."""
        layer = self.order.setdefault(block, len(self.order))
        keys, values = self.kept[layer]
        stop = self.used + key.shape[2]
        keys[:, :, self.used : stop] = key
        values[:, :, self.used : stop] = value
        return keys[:, :, :stop], values[:, :, :stop]


class Llama(nn.Module):
    """Ids in, final hidden states or logits out."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.token_embd = nn.Embedding(shape.vocab, shape.width)
        self.blk = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.output_norm = Norm(shape.width, shape.epsilon)
        cos, sin = rotary_table(shape, shape.context)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        self.reset()

    def reset(self) -> None:
        """Draw fresh weights; what is added to the residual stream starts smaller."""
        for name, parameter in self.named_parameters():
            if parameter.dim() < 2:
                continue
            out = name.endswith(("attn_output.weight", "ffn_down.weight"))
            nn.init.normal_(parameter, std=0.02 / ((2 * self.shape.layers) ** 0.5 if out else 1))

    def hidden(self, ids: Tensor) -> Tensor:
        """Return the normed final states of `(batch, positions)` ids."""
        length = ids.shape[1]
        cos, sin = self.cos[:length], self.sin[:length]
        x = self.token_embd(ids)
        for block in self.blk:
            x = block(x, cos, sin)
        return self.output_norm(x)

    def logits(self, hidden: Tensor) -> Tensor:
        """Score every id of the vocabulary."""
        return functional.linear(hidden, self.token_embd.weight)

    def forward(self, ids: Tensor) -> Tensor:
        """Return the logits of `(batch, positions)` ids."""
        return self.logits(self.hidden(ids))

    def step(self, ids: Tensor, memory: Memory) -> Tensor:
        """Decode `(batch, n)` ids on top of a memory; return the last logits, `(batch, vocab)`."""
        at = memory.open(ids.shape[1])
        cos, sin = self.cos[at][:, None], self.sin[at][:, None]
        x = self.token_embd(ids)
        for block in self.blk:
            x = block(x, cos, sin, memory)
        memory.used += ids.shape[1]
        return self.logits(self.output_norm(x[:, -1]))


def loss_sum(model: Llama, hidden: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
    """Sum the weighted cross-entropies, in nats."""
    logits = model.logits(hidden.flatten(0, 1))
    losses = functional.cross_entropy(logits, targets.flatten(), reduction="none")
    return losses @ weights.flatten()
