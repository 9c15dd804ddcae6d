"""How a pair was loaded: plain values, which travel between processes and into every report."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadRecord:
    """How the models run, by the names that the command line's options have.

    Attributes:
        ctx_size: tokens that the context holds.
        threads, draft_threads: CPU threads of each model; 0 for a draft that is not there.
        threads_batch: the same for batches of both, None for as many.
        n_gpu_layers, draft_n_gpu_layers: layers on an accelerator, -1 for all.
        device, draft_device: names of the devices that were allowed, None for all.
        rpc: other machines' servers, HOST:PORT.
        flash_attn: ``on``, ``off`` or ``auto``.
        cache_type_k, cache_type_v: the caches' types.
        mmap: whether weights are mapped, not copied.
        mlock: whether they are kept from being swapped out.
        memory_plan_bytes: what the plan expected all of it to take.
    """

    ctx_size: int
    threads: int
    draft_threads: int = 0
    threads_batch: int | None = None
    n_gpu_layers: int = 0
    draft_n_gpu_layers: int = 0
    device: tuple[str, ...] | None = None
    draft_device: tuple[str, ...] | None = None
    rpc: tuple[str, ...] = ()
    flash_attn: str = "auto"
    cache_type_k: str = "f16"
    cache_type_v: str = "f16"
    mmap: bool = True
    mlock: bool = False
    memory_plan_bytes: int = 0

    def document(self) -> dict[str, Any]:
        """The same for JSON."""
        return asdict(self)
