"""Whether models fit into this machine's memory: one word for lists and reports."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from localspec import machine
from localspec.pairs.memory.facts import facts
from localspec.pairs.memory.need import Setup, need
from localspec.pairs.memory.plan import PROGRAM

if TYPE_CHECKING:
    from localspec.pairs.gguf.header import GgufHeader

DEFAULT_CONTEXT: Final = 4096


@dataclass(frozen=True, slots=True)
class Fit:
    """Memory that is needed against memory that there is, in bytes.

    Attributes:
        available: what could be used now.
        total: what could be used if nothing else ran.
        verdict: ``fits``, ``tight`` (only when other programs make room) or ``too large``.
    """

    needed: int
    available: int
    total: int

    @property
    def verdict(self) -> str:
        """One of ``fits``, ``tight`` and ``too large``."""
        if self.needed <= self.available:
            return "fits"
        return "tight" if self.needed <= self.total else "too large"


def needed_bytes(
    target: GgufHeader, draft: GgufHeader | None, n_ctx: int | None = None, more_bytes: int = 0
) -> int:
    """Count the memory in bytes for both models with caches for `n_ctx` tokens.

    Args:
        target: the target's header.
        draft: the draft's header, None without one.
        n_ctx: tokens of context; None for 4,096, or for fewer where the target knows no more.
        more_bytes: weights that the headers do not cover: later parts of split models.
    """
    models = [facts(target, more_bytes)] + ([] if draft is None else [facts(draft)])
    setup = Setup(n_ctx=n_ctx or min(models[0].trained or DEFAULT_CONTEXT, DEFAULT_CONTEXT))
    return sum(need(model, setup).total for model in models) + PROGRAM


def unread_bytes(n_bytes: int) -> int:
    """Estimate the memory in bytes for models of which only the files' size is known."""
    return round(n_bytes * 1.1) + n_bytes // 8


def against_this_machine(needed: int) -> Fit:
    """Compare `needed` bytes with this machine's memory, or its container's."""
    return Fit(needed, machine.available(), machine.total())
