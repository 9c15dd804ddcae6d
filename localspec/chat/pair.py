"""The loaded models behind a session."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from localspec import machine
from localspec.chat.load_record import LoadRecord
from localspec.engine.llama import Context, devices
from localspec.engine.stats import DeviceMemory, MemoryUse


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedPair:
    """A target, what drafts for it, and what is worth knowing about them.

    Attributes:
        name: how the pair is called.
        reference: what names it on a command line: PAIR, and a draft that was named besides.
        target: the target's context.
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

    def memory(self) -> MemoryUse:
        """Where the memory goes now."""
        target, drafts = self.target, self.drafts.values()
        return MemoryUse(
            target_weights=target.model.weights_bytes,
            draft_weights=sum(draft.model.weights_bytes for draft in drafts),
            target_cache=target.cache_bytes,
            draft_cache=sum(draft.cache_bytes for draft in drafts),
            buffers=target.buffer_bytes + sum(draft.buffer_bytes for draft in drafts),
            process=machine.resident(),
            peak_process=machine.peak_resident(),
            machine_total=machine.total(),
            machine_available=machine.available(),
            devices=devices(),
        )

    def device_bytes(self) -> int:
        """Accelerator memory that went away since before the load: ours, if nobody else came."""
        before = {i: device.free for i, device in enumerate(self.devices_before)}
        now = enumerate(devices())
        return sum(max(0, before.get(i, device.free) - device.free) for i, device in now)

    def close(self) -> None:
        """Free caches and weights."""
        self.close_drafts()
        self.target.close()
        self.target.model.close()

    def close_drafts(self) -> None:
        """Free those of the drafts alone."""
        for draft in self.drafts.values():
            draft.close()
            draft.model.close()
