"""The loaded models behind a session."""

from __future__ import annotations

from dataclasses import dataclass

from localspec import machine
from localspec.chat.load_record import LoadRecord
from localspec.engine.llama import Context, devices
from localspec.engine.stats import DeviceMemory, MemoryUse


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedPair:
    """A target, perhaps a draft, and what is worth knowing about them.

    Attributes:
        name: how the pair is called.
        reference: what names it on a command line: PAIR, and a draft that was named besides.
        target: the target's context.
        draft: the draft's context, None for plain decoding.
        draft_note: why nothing can be drafted; empty where something can.
        notices: what the user should know.
        loaded: how the models were loaded.
        devices_before: the accelerators before anything was loaded.
    """

    name: str
    reference: tuple[str, str | None] = ("", None)
    target: Context
    loaded: LoadRecord
    draft: Context | None = None
    draft_note: str = ""
    notices: tuple[str, ...] = ()
    devices_before: tuple[DeviceMemory, ...] = ()

    def hold_threads(self, hold: bool) -> None:
        """Whether all models keep their threads whatever else runs (see `Context`)."""
        for context in (self.target, self.draft):
            if context is not None:
                context.hold_threads(hold)

    def memory(self) -> MemoryUse:
        """Where the memory goes now."""
        target, draft = self.target, self.draft
        return MemoryUse(
            target_weights=target.model.weights_bytes,
            draft_weights=draft.model.weights_bytes if draft else 0,
            target_cache=target.cache_bytes,
            draft_cache=draft.cache_bytes if draft else 0,
            buffers=target.buffer_bytes + (draft.buffer_bytes if draft else 0),
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
        self.close_draft()
        self.target.close()
        self.target.model.close()

    def close_draft(self) -> None:
        """Free those of the draft alone."""
        if self.draft is not None:
            self.draft.close()
            self.draft.model.close()
