"""Muon for a head's matrices, AdamW for its norms.

Muon (Jordan et al., 2024) replaces the momentum of a matrix by the nearest orthogonal matrix, found
with a few Newton-Schulz steps. The scale that lets it share AdamW's learning rate is from Liu et
al., 2025 (2502.16982).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import torch
from torch import Tensor
from torch.optim import AdamW, Optimizer

from localspec.train.head.shape import ROUNDS

_QUINTIC: Final = (3.4445, -4.7750, 2.0315)  # from Muon's author, for a steep slope at zero
_MOMENTUM: Final = 0.95
_DECAY: Final = 0.01


def orthogonalised(matrix: Tensor) -> Tensor:
    """Push the singular values of a matrix towards 1."""
    a, b, c = _QUINTIC
    tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.mT if tall else matrix
    x = x / (x.norm() + 1e-7)
    for _ in range(ROUNDS):
        gram = x @ x.mT
        x = a * x + (b * gram + c * (gram @ gram)) @ x
    return x.mT if tall else x


class Muon(Optimizer):
    """Momentum, orthogonalised, with decoupled weight decay."""

    def __init__(self, matrices: Iterable[Tensor]) -> None:
        """Optimise these matrices, once `set_rate` has set a rate."""
        super().__init__(matrices, {"lr": 0.0})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # noqa: ARG002
        """Update every matrix by its gradient."""
        for group in self.param_groups:
            for matrix in group["params"]:
                state = self.state[matrix]
                if "momentum" not in state:
                    state["momentum"] = torch.zeros_like(matrix)
                momentum = state["momentum"].lerp_(matrix.grad, 1 - _MOMENTUM)
                push = orthogonalised(matrix.grad.lerp(momentum, _MOMENTUM))
                matrix.mul_(1 - group["lr"] * _DECAY)
                matrix.add_(push, alpha=-group["lr"] * 0.2 * max(matrix.shape) ** 0.5)


def optimisers(parameters: Iterable[Tensor]) -> list[Optimizer]:
    """Make both optimisers, whose rate `set_rate` sets before each step."""
    every = list(parameters)
    matrices = [each for each in every if each.dim() == 2]
    rest = [each for each in every if each.dim() < 2]
    return [Muon(matrices), AdamW(rest, betas=(0.9, 0.95), weight_decay=0.0)]


def set_rate(optimisers_: Sequence[Optimizer], lr: float) -> None:
    """Set the learning rate of every group for this step."""
    for optimiser in optimisers_:
        for group in optimiser.param_groups:
            group["lr"] = lr
