"""Whether models fit into this machine's memory: a plain estimate from headers and sizes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from localspec.pairs.gguf import GgufHeader

DEFAULT_CONTEXT: Final = 4096
_CACHE_ELEMENT_BYTES: Final = 2  # f16
_OVERHEAD: Final = 0.10  # compute buffers, logits, the program itself


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


def estimate_bytes(
    target: GgufHeader, draft: GgufHeader | None, n_ctx: int = DEFAULT_CONTEXT, more_bytes: int = 0
) -> int:
    """Estimate the memory in bytes for both models with caches for `n_ctx` tokens.

    Args:
        target: the target's header.
        draft: the draft's header, None without one.
        n_ctx: tokens of context.
        more_bytes: weights that the headers do not cover: later parts of split models.
    """
    models = [target] if draft is None else [target, draft]
    weights = sum(model.tensor_bytes for model in models) + more_bytes
    caches = sum(cache_bytes(model, n_ctx) for model in models)
    return round((weights + caches) * (1 + _OVERHEAD))


def estimate_unread(n_bytes: int) -> int:
    """Estimate the memory in bytes for models of which only the files' size is known."""
    return round(n_bytes * (1 + _OVERHEAD)) + n_bytes // 8


def cache_bytes(header: GgufHeader, n_ctx: int) -> int:
    """Give the bytes of an f16 key-value cache for `n_ctx` tokens.

    Layers without attention are left out where the header says so; sliding windows are
    counted in full, as llama.cpp allocates them by default.
    """
    layers = header.integer(header.arch_key("block_count"))
    heads = header.integer(header.arch_key("attention.head_count"))
    width = header.integer(header.arch_key("embedding_length"))
    kv_heads = header.integers(header.arch_key("attention.head_count_kv")) or [heads]
    head = width // heads if heads > 0 else 0
    key = header.integer(header.arch_key("attention.key_length"), head)
    value = header.integer(header.arch_key("attention.value_length"), head)
    per_layer = kv_heads * layers if len(kv_heads) == 1 else kv_heads[:layers]
    elements = sum(per_layer) * (key + value) * n_ctx
    return max(0, elements * _CACHE_ELEMENT_BYTES)


def machine(needed: int) -> Fit:
    """Compare `needed` bytes with this machine's memory, or its container's."""
    import psutil  # noqa: PLC0415 - only when it is needed

    memory = psutil.virtual_memory()
    limit, used = _cgroup()
    total = min(memory.total, limit)
    return Fit(needed, max(0, min(memory.available, limit - used)), total)


def _cgroup() -> tuple[int, int]:
    """Give the container's memory limit and what it uses already, in bytes."""
    folder = Path("/sys/fs/cgroup")
    try:
        limit = int((folder / "memory.max").read_text())
        used = int((folder / "memory.current").read_text())
    except (OSError, ValueError):  # no container, or no limit ("max")
        return 1 << 62, 0
    return limit, used
