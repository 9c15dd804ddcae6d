"""An EAGLE-3 head in torch that computes what llama.cpp computes (src/models/eagle3.cpp).

Row r pairs the target's state at token r with token r + 1 and predicts token r + 2. In later steps
of a draft, the head's own state replaces the target's (2503.01840, section 3). Step j at row r
belongs to the draft that began at row r - j. Its token is the true one, since a draft only
continues after accepted tokens. So a token keeps its row and its rotary position in every step.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from localspec.train.head.head_files import NORMS, OUTPUT, Tensors
from localspec.train.head.shape import HeadShape

_PROJECTIONS = ("attn_q", "attn_k", "attn_v")
_BLOCK = 128  # rows of a product with the output matrix: see `lessons._padded`


class HeadNetwork(nn.Module):
    """The head. Its output matrix is copied from the target and is not trained."""

    output: Tensor

    def __init__(self, shape: HeadShape, tensors: Tensors) -> None:
        """Start from these weights.

        Args:
            shape: the sizes.
            tensors: by their names in a file (see `head_files.Tensors`).
        """
        super().__init__()
        self.shape = shape
        learns = (*shape.matrices, *NORMS)
        self.its = nn.ParameterDict(
            {_key(name): nn.Parameter(torch.tensor(tensors[name])) for name in learns}
        )
        self.register_buffer(OUTPUT, torch.tensor(tensors[OUTPUT]), persistent=False)

    def tensors(self) -> dict[str, np.ndarray[tuple[int, ...], np.dtype[np.float32]]]:
        """The weights by their names in a file."""
        names = (*self.shape.matrices, *NORMS)
        found = {name: self.its[_key(name)].detach() for name in names} | {OUTPUT: self.output}
        return {name: value.cpu().float().numpy() for name, value in found.items()}

    def unroll(self, states: Tensor, embedded: Tensor, steps: int) -> list[Tensor]:
        """Draft from every row at once.

        Args:
            states: `(texts, rows, taps * width)`, the target's at token r in row r.
            embedded: `(texts, rows, width)`, the target's embedding of token r + 1 in row r.
            steps: tokens per draft.

        Returns:
            For every step `(texts, rows, width)`, the input of `scores`. The first j rows of step j
            belong to no draft.
        """
        length = embedded.shape[1]
        turns = self._turns(length, embedded.device)
        early = self._norm(embedded, "blk.0.attn_norm")
        # A row keeps its token, so this part is the same in every step.
        known = [self._part(early, name, first=True) for name in _PROJECTIONS]
        kept: list[tuple[Tensor, Tensor]] = []
        state = functional.linear(states, self.its[_key("fc")])
        found = []
        for step in range(steps):
            state = self._step(state, known, kept, turns)
            found.append(self._norm(state, "output_norm"))
            if step + 1 < steps:
                state = state.roll(1, dims=1)
        return found

    def scores(self, rows: Tensor) -> Tensor:
        """Logits of the ids that the head can draft, `(n, drafted)`, from `(n, width)`."""
        n = rows.shape[-2]
        padded = functional.pad(rows, (0, 0, 0, -n % _BLOCK))
        return functional.linear(padded, self.output)[..., :n, :]

    def _step(
        self,
        state: Tensor,
        known: list[Tensor],
        kept: list[tuple[Tensor, Tensor]],
        turns: tuple[Tensor, Tensor],
    ) -> Tensor:
        """One step over all rows; its keys and values join `kept`."""
        shape = self.shape
        normed = self._norm(state, "blk.0.attn_norm_2")
        query, key, value = (
            self._heads(before + self._part(normed, name, first=False))
            for before, name in zip(known, _PROJECTIONS, strict=True)
        )
        kept.append((_turned(key, turns), value))
        keys, values = (torch.cat(part, dim=2) for part in zip(*kept, strict=True))
        mask = seen(len(kept) - 1, state.shape[1], state.device)
        mixed = functional.scaled_dot_product_attention(
            _turned(query, turns),
            keys,
            values,
            attn_mask=mask,
            enable_gqa=shape.heads != shape.kv_heads,
        )
        mixed = mixed.transpose(1, 2).flatten(2)
        x = state + functional.linear(mixed, self.its[_key("blk.0.attn_output")])
        inner = self._norm(x, "blk.0.ffn_norm")
        gate = functional.silu(functional.linear(inner, self.its[_key("blk.0.ffn_gate")]))
        up = functional.linear(inner, self.its[_key("blk.0.ffn_up")])
        return x + functional.linear(gate * up, self.its[_key("blk.0.ffn_down")])

    def _part(self, rows: Tensor, name: str, *, first: bool) -> Tensor:
        """Apply a projection to the token (its first columns) or to the state."""
        matrix, width = self.its[_key(f"blk.0.{name}")], self.shape.width
        return functional.linear(rows, matrix[:, :width] if first else matrix[:, width:])

    def _norm(self, rows: Tensor, name: str) -> Tensor:
        scaled = rows.float()
        scaled = scaled * torch.rsqrt(scaled.pow(2).mean(-1, keepdim=True) + self.shape.epsilon)
        return scaled * self.its[_key(name)]

    def _heads(self, rows: Tensor) -> Tensor:
        """Split rows into heads: `(texts, heads, rows, head width)`."""
        return rows.unflatten(-1, (-1, self.shape.head_width)).transpose(1, 2)

    def _turns(self, length: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Cosines and sines of the rotary positions, each `(rows, head width / 2)`."""
        half = torch.arange(0, self.shape.head_width, 2, dtype=torch.float64)
        speeds = self.shape.rope_base ** (-half / self.shape.head_width)
        angles = torch.arange(length, dtype=torch.float64)[:, None] * speeds
        return angles.cos().float().to(device), angles.sin().float().to(device)


def _key(name: str) -> str:
    """The name without dots, as torch requires."""
    return name.replace(".", "-")


def _turned(rows: Tensor, turns: tuple[Tensor, Tensor]) -> Tensor:
    """Rotate neighbouring elements by their position's angle: ggml's NORM type of RoPE."""
    cos, sin = turns
    a, b = rows.float().unflatten(-1, (-1, 2)).unbind(-1)
    turned = torch.stack((a * cos - b * sin, a * sin + b * cos), dim=-1)
    return turned.flatten(-2).to(rows.dtype)


def seen(step: int, length: int, device: torch.device) -> Tensor:
    """Which rows a step attends to: `(length, (step + 1) * length)`.

    The row at r in step j belongs to the draft that began at row r - j. It sees the first step up
    to that row, and the row of its own draft in each later step.
    """
    parts = [torch.ones(length, length, dtype=torch.bool, device=device).tril(-step)]
    for later in range(1, step + 1):
        own = torch.zeros(length, length, dtype=torch.bool, device=device)
        if length > step - later:
            own.diagonal(later - step).fill_(value=True)
        parts.append(own)
    mask = torch.cat(parts, dim=1)
    mask[:step, 0] = True  # rows without a draft: a row that sees nothing would become NaN
    return mask
