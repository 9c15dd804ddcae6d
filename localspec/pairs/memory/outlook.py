"""How a pair would be loaded on this machine, as lines for people and as data for programs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from localspec import machine
from localspec.errors import OutOfMemory
from localspec.pairs import units
from localspec.pairs.memory.facts import Facts
from localspec.pairs.memory.free import Free
from localspec.pairs.memory.need import Need, Setup
from localspec.pairs.memory.plan import DiskSpeed, MemoryPlan, Wishes, plan, unmeasured


@dataclass(frozen=True, slots=True)
class Outlook:
    """The plan, or why there is none.

    Attributes:
        plan: None where nothing fits.
        refusal: why nothing fits and what would, empty where something does.
    """

    plan: MemoryPlan | None
    refusal: str = ""


def look(
    target: Facts,
    draft: Facts | None,
    free: Free | None,
    n_ctx: int | None,
    disk: DiskSpeed = unmeasured,
) -> Outlook:
    """Plan with what is `free`; None stands for this machine's main memory alone.

    `disk` is called where the weights find no room.
    """
    free = free or Free(ram=machine.available(), address_space=machine.address_space_left())
    try:
        return Outlook(plan(target, draft, free, Wishes(n_ctx=n_ctx), disk))
    except OutOfMemory as error:
        return Outlook(None, f"{error.message}. {error.remedy}")


def lines(outlook: Outlook) -> list[str]:
    """Render for people: sizes first, then what was given up and what one could do."""
    found = outlook.plan
    if found is None:
        return [f"plan        {outlook.refusal}"]
    where = f", {units.size(found.device)} of it on the GPU" if found.device else ""
    first = (
        f"plan        {found.target.n_ctx:,} tokens of context, {found.target.cache_k} cache:"
        f" {units.size(found.total)}{where}"
    )
    models = [("target", found.target_need)]
    if found.draft_need is not None:
        models.append(("draft", found.draft_need))
    return [
        first,
        *(f"  {name:10}{_sizes(need)}" for name, need in models),
        *(f"  given up: {line}" for line in found.gave_up),
        *(f"  note: {line}" for line in found.advice),
    ]


def _sizes(need: Need) -> str:
    weights = units.size(need.host_weights + need.device_weights)
    cache = units.size(need.host_cache + need.device_cache)
    return f"weights {weights}, cache {cache}, buffers {units.size(_buffers(need))}"


def _buffers(need: Need) -> int:
    return need.host_buffers + need.device_buffers


def as_data(outlook: Outlook) -> dict[str, Any]:
    """Render for programs; sizes are in bytes."""
    found = outlook.plan
    if found is None:
        return {"fits": False, "reason": outlook.refusal}
    return {
        "fits": True,
        "n_ctx": found.target.n_ctx,
        "cache_type_k": found.target.cache_k,
        "cache_type_v": found.target.cache_v,
        "host_bytes": found.host,
        "device_bytes": found.device,
        "from_disk_bytes": found.from_disk,
        "target": _model_data(found.target, found.target_need),
        "draft": _model_data(found.draft, found.draft_need),
        "gave_up": list(found.gave_up),
        "advice": list(found.advice),
    }


def _model_data(setup: Setup | None, need: Need | None) -> dict[str, int] | None:
    if setup is None or need is None:
        return None
    return {
        "gpu_layers": setup.gpu_layers,
        "weights_bytes": need.host_weights + need.device_weights,
        "cache_bytes": need.host_cache + need.device_cache,
        "buffers_bytes": _buffers(need),
    }
