"""What is free: main memory, the address space, and the accelerators that each model may use."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

DEVICE_RESERVE: Final = 400_000_000  # what a driver takes for itself on an accelerator


@dataclass(frozen=True, slots=True)
class Device:
    """One accelerator.

    Attributes:
        free: bytes that are free there.
        shared: whether it uses the main memory.
        target, draft: whether that model may use it.
    """

    free: int
    shared: bool = False
    target: bool = True
    draft: bool = True

    def serves(self, *, draft: bool) -> bool:
        """Whether the draft, or else the target, may use it."""
        return self.draft if draft else self.target

    @property
    def room(self) -> int:
        """Bytes for models, the driver's own left out."""
        return max(0, self.free - DEVICE_RESERVE)


@dataclass(frozen=True, slots=True)
class Free:
    """What may be taken, in bytes.

    Attributes:
        ram: main memory, by the machine's and the container's limit.
        devices: the accelerators.
        address_space: what a limit on the address space leaves, None where there is none. It counts
            mapped weights too, so nothing can be left on disk under it.
    """

    ram: int
    devices: tuple[Device, ...] = ()
    address_space: int | None = None

    def on_devices(self, *, draft: bool) -> int:
        """Bytes that are free on the accelerators of one model."""
        return sum(each.free for each in self.devices if each.serves(draft=draft))

    def room(self, *, draft: bool) -> int:
        """The same for its layers, what the drivers take left out."""
        return sum(each.room for each in self.devices if each.serves(draft=draft))

    def less(self, n_bytes: int, *, draft: bool) -> Free:
        """What is left when one model has taken `n_bytes`.

        It is spread over its devices as llama.cpp does it: by what is free on each.
        """
        whole = self.on_devices(draft=draft)
        if not whole:
            return self
        devices = (
            replace(each, free=each.free - n_bytes * each.free // whole)
            if each.serves(draft=draft)
            else each
            for each in self.devices
        )
        return replace(self, devices=tuple(devices))

    @property
    def shared(self) -> int:
        """Bytes that are free on accelerators which use the main memory."""
        return sum(each.free for each in self.devices if each.shared)
