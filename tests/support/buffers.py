"""What a load takes of a device: by the plan, and by llama.cpp's log of its buffers."""

from __future__ import annotations

import re
from contextlib import closing
from dataclasses import dataclass

from localspec.engine.cancel import Cancel
from localspec.engine.llama.log import LogSection, start_backend
from localspec.loading.load import check, load_session
from localspec.loading.load_request import LoadRequest
from localspec.loading.planning import load_plan
from localspec.pairs.memory.placement import MemoryPlan

_BUFFER = re.compile(r"(\S+) +(model|KV|RS|compute) buffer size = +([\d.]+) MiB")


@dataclass(frozen=True, slots=True)
class Buffers:
    """Bytes of weights, of caches with states, and of buffers to compute in."""

    weights: int
    cache: int
    compute: int

    @property
    def total(self) -> int:
        return self.weights + self.cache + self.compute


def allocated(log: LogSection, place: str) -> Buffers:
    """What llama.cpp allocated in places whose names begin so: ``RPC``, ``Vulkan0``, ``CPU``."""
    found = dict.fromkeys(("model", "KV", "RS", "compute"), 0)
    for name, kind, mib in _BUFFER.findall(log.text()):
        if name.startswith(place):
            found[kind] += round(float(mib) * 2**20)
    return Buffers(found["model"], found["KV"] + found["RS"], found["compute"])


def on_devices(planned: MemoryPlan) -> Buffers:
    """What a plan takes of accelerators."""
    needs = planned.needs
    return Buffers(
        sum(each.device_weights for each in needs),
        sum(each.device_cache for each in needs),
        sum(each.device_buffers for each in needs),
    )


def compared(request: LoadRequest, place: str) -> tuple[Buffers, Buffers]:
    """Plan a request and load it: what the plan takes of a device, and what llama.cpp took."""
    planned = load_plan(check(request)).memory
    log = start_backend().section()
    with closing(load_session(request, progress=lambda *_: None, cancel=Cancel())):
        return on_devices(planned), allocated(log, place)
