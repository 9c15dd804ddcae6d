"""The loaded models behind a session, and how they were loaded."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from localspec import machine
from localspec.chat.advice import SamplingAdvice
from localspec.engine.llama import BUSY, Context, devices
from localspec.engine.record.stats import DeviceMemory, MemoryUse


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
        tensor_split: by the target's devices how many of its layers each has; None where there is
            one or none.
        flash_attn: ``on``, ``off`` or ``auto``.
        cache_type_k, cache_type_v: the caches' types.
        mmap: whether weights are mapped, not copied.
        mlock: whether they are kept from being swapped out.
        exact: tokens of a pass up to which all give equal bits, 1 where two give others; None where
            nobody asked.
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
    tensor_split: Mapping[str, int] | None = None
    flash_attn: str = "auto"
    cache_type_k: str = "f16"
    cache_type_v: str = "f16"
    mmap: bool = True
    mlock: bool = False
    exact: int | None = None
    memory_plan_bytes: int = 0

    def document(self) -> dict[str, Any]:
        """All fields by name, for JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedPair:
    """A target, what drafts for it, and what is worth knowing about them.

    Attributes:
        name: how the pair is called.
        reference: what names it on a command line: PAIR, and a draft that was named besides.
        target: the target's context.
        chat_template: in place of the target's own; None for that.
        advice: sampling settings that are advised for the target.
        drafts: the contexts of draft models, by the names of the drafters.
        lookup: whether what repeats is copied.
        draft_note: why nothing can be drafted; empty where something can.
        notices: what the user should know.
        loaded: how the models were loaded.
        devices_before: the accelerators before anything was loaded.
    """

    name: str
    reference: tuple[str, str | None] = ("", None)
    target: Context
    chat_template: str | None = None
    advice: SamplingAdvice = SamplingAdvice()  # noqa: RUF009 - frozen
    loaded: LoadRecord
    drafts: Mapping[str, Context] = field(default_factory=dict)
    lookup: bool = False
    draft_note: str = ""
    notices: tuple[str, ...] = ()
    devices_before: tuple[DeviceMemory, ...] = ()

    @property
    def draft(self) -> Context | None:
        """The first draft model's context; None without any."""
        return next(iter(self.drafts.values()), None)

    def without(self, names: Collection[str], why: str) -> LoadedPair:
        """This pair with some draft models freed, and told why by a notice."""
        for name in names:
            self._close_draft(self.drafts[name])
        kept = {name: each for name, each in self.drafts.items() if name not in names}
        first = next(iter(kept.values()), None)
        return replace(
            self,
            drafts=kept,
            draft_note="" if kept or self.lookup else why,
            notices=(*self.notices, why),
            loaded=replace(
                self.loaded,
                draft_threads=first.threads.most if first else 0,
                draft_n_gpu_layers=first.model.gpu_layers if first else 0,
            ),
        )

    def spare(self) -> bool:
        """Whether the target's threads and other programs leave a core, or most of one."""
        return (os.cpu_count() or 1) - self.target.threads.now - self.target.threads.others >= BUSY

    def hold_threads(self, hold: bool) -> None:
        """Whether all models keep their threads whatever else runs (see `Context`).

        Where passes give equal bits anyway, their threads have no say.
        """
        hold = hold and (self.loaded.exact or 1) == 1
        for context in (self.target, *self.drafts.values()):
            context.threads.hold(hold)

    def memory(self) -> MemoryUse:
        """Where the memory goes now."""
        target, drafts, now = self.target, self.drafts.values(), devices()
        return MemoryUse(
            target_weights=target.model.weights_bytes,
            draft_weights=sum(
                draft.model.weights_bytes for draft in drafts if draft.model is not target.model
            ),
            target_cache=target.cache_bytes,
            draft_cache=sum(draft.cache_bytes for draft in drafts),
            buffers=target.buffer_bytes + sum(draft.buffer_bytes for draft in drafts),
            process=machine.resident(),
            peak_process=machine.peak_resident(),
            machine_total=machine.total(),
            machine_available=machine.available(),
            devices=now,
            on_devices=sum(
                max(0, before.free - each.free)
                for before, each in zip(self.devices_before, now, strict=False)
                if not each.integrated
            ),
        )

    def close(self) -> None:
        """Free caches and weights."""
        self.close_drafts()
        self.target.close()
        self.target.model.close()

    def close_drafts(self) -> None:
        """Free those of the drafts alone."""
        for draft in self.drafts.values():
            self._close_draft(draft)

    def _close_draft(self, draft: Context) -> None:
        draft.close()
        if draft.model is not self.target.model:  # as that of a head inside it is
            draft.model.close()
