"""A session's loaded models, and how they were loaded."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from localspec import machine
from localspec.chat.advice import SamplingAdvice
from localspec.drafter_names import MODELS, kind_of
from localspec.engine.llama import BUSY, BlockHead, Context, devices
from localspec.engine.record.stats import DeviceMemory, MemoryUse


@dataclass(frozen=True, slots=True)
class LoadedAdapter:
    """A LoRA adapter of the target.

    Attributes:
        scale: factor of what it adds.
    """

    path: str
    scale: float
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadRecord:
    """How the models run, by the names of the command line's options.

    Attributes:
        ctx_size: tokens that the context holds.
        threads, draft_threads: CPU threads of each model; 0 without a draft model.
        threads_batch: threads of both models for batches; None for the same number.
        n_gpu_layers, draft_n_gpu_layers: layers on an accelerator, -1 for all.
        n_cpu_moe: layers of the target, from the first, whose experts are in main memory.
        lora: LoRA adapters of the target.
        device, draft_device: names of the allowed devices, None for all.
        rpc: servers on other machines, HOST:PORT.
        split_mode: how its devices share the target.
        tensor_split: layers of the target on each of its devices; None for fewer than two devices.
        flash_attn: ``on``, ``off`` or ``auto``.
        mmap: whether weights are mapped, not copied.
        mlock: whether weights are locked in memory, so that they cannot be swapped out.
        from_disk: whether weights find no room in memory, and are read from disk again and again.
        exact: the largest pass, in tokens, up to which all sizes give equal bits; 1 if two sizes
            already differ, None if it was not tested.
        exact_by_plan: whether the plan chose that, since it costs next to nothing here.
        memory_plan_bytes: what the memory plan expected for everything.
    """

    ctx_size: int
    threads: int
    draft_threads: int = 0
    threads_batch: int | None = None
    n_gpu_layers: int = 0
    draft_n_gpu_layers: int = 0
    n_cpu_moe: int = 0
    lora: tuple[LoadedAdapter, ...] = ()
    device: tuple[str, ...] | None = None
    draft_device: tuple[str, ...] | None = None
    rpc: tuple[str, ...] = ()
    split_mode: str = "layer"
    tensor_split: Mapping[str, int] | None = None
    flash_attn: str = "auto"
    cache_type_k: str = "f16"
    cache_type_v: str = "f16"
    mmap: bool = True
    mlock: bool = False
    from_disk: bool = False
    exact: int | None = None
    exact_by_plan: bool = False
    memory_plan_bytes: int = 0

    def document(self) -> dict[str, Any]:
        """All fields by name, for JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedPair:
    """A target and its drafters.

    Attributes:
        reference: what names the pair on a command line: PAIR, and the draft if one was named.
        chat_template: replaces the target's own; None keeps that.
        drafts: the contexts of draft models and heads, by drafter name.
        draft_note: why neither a model nor a head drafts, if none does.
        waiting: the shown names of draft models that are still to be loaded.
        left_out: why a draft model is not used; empty if all are.
        saves_nothing: whether one is not used because it would save no time.
        exact_note: what is known of ``--exact`` here.
        notices: what the user should know.
        devices_before: the accelerators as they were before anything was loaded.
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
    waiting: tuple[str, ...] = ()
    left_out: str = ""
    saves_nothing: bool = False
    exact_note: str = ""
    notices: tuple[str, ...] = ()
    devices_before: tuple[DeviceMemory, ...] = ()

    @property
    def draft(self) -> Context | None:
        """The context of the first draft model or head; None without any."""
        return next(iter(self.drafts.values()), None)

    @property
    def block(self) -> int:
        """The most tokens that the first drafter guesses in one pass; 0 if each takes a pass."""
        return self.draft.longest if isinstance(self.draft, BlockHead) else 0

    @property
    def contexts(self) -> tuple[Context, ...]:
        """The target's context, then those of draft models and heads."""
        return (self.target, *self.drafts.values())

    @property
    def models(self) -> list[str]:
        """The names of the draft models, without heads."""
        return [name for name in self.drafts if kind_of(name) in MODELS]

    @property
    def draft_state(self) -> str:
        """Why a draft model does not draft, or not yet; empty if all do."""
        if self.waiting:
            names, verb = " and ".join(self.waiting), "is" if len(self.waiting) == 1 else "are"
            return f"{names} {verb} still being loaded"
        return self.left_out

    def having(self, drafts: Mapping[str, Context]) -> LoadedPair:
        """The pair with these drafters in place of its own."""
        first = next(iter(drafts.values()), None)
        loaded = replace(
            self.loaded,
            draft_threads=first.threads.most if first else 0,
            draft_n_gpu_layers=first.model.gpu_layers if first else 0,
        )
        return replace(self, drafts=drafts, loaded=loaded)

    def without(self, names: Collection[str], why: str) -> LoadedPair:
        """Free some draft models; return the remaining pair with a notice that tells `why`.

        Args:
            names: of the drafters; none for models that were not loaded.
            why: a sentence for the user.
        """
        for name in names:
            self._close_draft(self.drafts[name])
        kept = {name: each for name, each in self.drafts.items() if name not in names}
        return replace(self.having(kept), left_out=why, notices=(*self.notices, why))

    def spare(self) -> bool:
        """Whether the target's threads and other programs leave about one core free."""
        return (os.cpu_count() or 1) - self.target.threads.now - self.target.threads.others >= BUSY

    def hold_threads(self, hold: bool) -> None:
        """Set whether all models keep their number of threads whatever else runs (see `Context`).

        If passes of several sizes give equal bits anyway, the threads are never held.
        """
        hold = hold and (self.loaded.exact or 1) == 1
        for context in self.contexts:
            context.threads.hold(hold)

    def memory(self) -> MemoryUse:
        """The present memory use, by purpose."""
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
                if each.has_own
            ),
        )

    def close(self) -> None:
        """Free caches and weights."""
        self.close_drafts()
        self.target.close()
        self.target.model.close()

    def close_drafts(self) -> None:
        """Free the draft models alone."""
        for draft in self.drafts.values():
            self._close_draft(draft)

    def _close_draft(self, draft: Context) -> None:
        draft.close()
        if draft.model is not self.target.model:  # a head inside the target shares its model
            draft.model.close()
