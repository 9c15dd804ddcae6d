"""Muon for the matrices inside the blocks, AdamW for the rest.

Muon (Jordan et al., 2024) replaces the momentum of a matrix by the nearest orthogonal matrix, found
with a few Newton-Schulz steps; the scale that lets it share AdamW's learning rate is from Liu et
al., 2025 (arXiv 2502.16982).
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.optim import AdamW, Optimizer

if TYPE_CHECKING:
    from collections.abc import Iterable

    from model import Llama

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Of the quintic step, chosen by Muon's author for a steep slope at zero."""


def orthogonalise(stack: Tensor, steps: int = 5) -> Tensor:
    """Push the singular values of every matrix in `(count, rows, columns)` towards 1."""
    a, b, c = COEFFICIENTS
    tall = stack.shape[1] > stack.shape[2]
    x = stack.mT if tall else stack
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(steps):
        gram = x @ x.mT
        x = a * x + (b * gram + c * (gram @ gram)) @ x
    return x.mT if tall else x


class Muon(Optimizer):
    """Momentum, orthogonalised, with decoupled weight decay."""

    def __init__(
        self, matrices: Iterable[Tensor], *, lr: float, momentum: float, weight_decay: float
    ) -> None:
        super().__init__(matrices, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self) -> None:
        """Update every matrix, those of one shape together."""
        for group in self.param_groups:
            by_shape: dict[torch.Size, list[Tensor]] = defaultdict(list)
            for matrix in group["params"]:
                by_shape[matrix.shape].append(matrix)
            for matrices in by_shape.values():
                self.update(group, matrices)

    def update(self, group: dict, matrices: list[Tensor]) -> None:
        """Update matrices of one shape."""
        pushes = []
        for matrix in matrices:
            state = self.state[matrix]
            if "momentum" not in state:
                state["momentum"] = torch.zeros_like(matrix)
            state["momentum"].lerp_(matrix.grad, 1 - group["momentum"])
            pushes.append(matrix.grad.lerp(state["momentum"], group["momentum"]))
        scale = 0.2 * max(matrices[0].shape) ** 0.5
        for matrix, push in zip(matrices, orthogonalise(torch.stack(pushes)), strict=True):
            matrix.mul_(1 - group["lr"] * group["weight_decay"])
            matrix.add_(push, alpha=-group["lr"] * scale)


def optimisers(model: Llama, *, lr: float, weight_decay: float) -> list[Optimizer]:
    """Build both; `lr` is AdamW's, and Muon's by its scale."""
    matrices = [p for p in model.blk.parameters() if p.dim() == 2]
    rest = [p for n, p in model.named_parameters() if not n.startswith("blk.") or p.dim() < 2]
    return [
        Muon(matrices, lr=lr, momentum=0.95, weight_decay=weight_decay),
        AdamW(rest, lr=lr, betas=(0.9, 0.95), weight_decay=0.0, fused=False),
    ]


def set_rate(optimisers_: Iterable[Optimizer], lr: float) -> None:
    """Give every group the learning rate of this step."""
    for optimiser in optimisers_:
        for group in optimiser.param_groups:
            group["lr"] = lr
