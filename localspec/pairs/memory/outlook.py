"""Whether a pair fits, as lists and pages tell it: now, or once other programs make room."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from localspec import machine
from localspec.errors import OutOfMemory
from localspec.pairs.memory.free import Free
from localspec.pairs.memory.need import ModelFacts, Setup, need
from localspec.pairs.memory.placement import (
    PROGRAM,
    SNAPSHOTS,
    DiskSpeed,
    MemoryPlan,
    Wishes,
    plan,
    usual_context,
)

COUNTED_CTX: Final = 4096  # tokens of context that lists count with


@dataclass(frozen=True, slots=True)
class Fit:
    """Memory that is needed against memory that there is, in bytes.

    Attributes:
        needed: by the models, their caches and buffers, and the program.
        available: what could be used now, accelerators with memory of their own included.
        total: what could be used if nothing else ran.
        verdict: ``fits``, ``tight`` (only when other programs make room) or ``too large``.
    """

    needed: int
    available: int
    total: int
    verdict: str

    def beside(self, room: int) -> Fit:
        """The same, where accelerators that it did not count have `room` bytes of their own."""
        available, total = self.available + room, self.total + room
        verdict = (
            self.verdict if self.verdict == "fits" else _verdict(self.needed, available, total)
        )
        return Fit(self.needed, available, total, verdict)


@dataclass(frozen=True, slots=True)
class Outlook:
    """The plan, or why there is none, and what follows for the memory.

    Attributes:
        plan: None where nothing fits.
        refusal: why nothing fits and what would, empty where something does.
        n_ctx: tokens of context that `fit` counts with.
    """

    plan: MemoryPlan | None
    refusal: str
    n_ctx: int
    fit: Fit


def look(
    target: ModelFacts,
    draft: ModelFacts | None,
    free: Free | None = None,
    n_ctx: int | None = None,
    disk: DiskSpeed = lambda: None,
    *,
    besides: Sequence[ModelFacts] = (),
    snapshots: int = SNAPSHOTS,
) -> Outlook:
    """Plan with what is free.

    Args:
        target: the target's sizes.
        draft: the draft's, None without one.
        free: what may be taken, None for this machine's main memory alone.
        n_ctx: tokens of context, None to choose.
        disk: called where the weights find no room.
        besides: the sizes of what else drafts. It comes first, in main memory.
        snapshots: of the target's state, 0 where nothing drafts.
    """
    free = free or Free(ram=machine.available(), address_space=machine.address_space_left())
    wishes, refusal = Wishes(n_ctx=n_ctx, snapshots=snapshots), ""
    before = sum(need(each, Setup(n_ctx=n_ctx or usual_context(target))).total for each in besides)
    try:
        found = plan(target, draft, replace(free, ram=free.ram - before), wishes, disk)
    except OutOfMemory as error:
        found, refusal = None, f"{error.message}. {error.remedy}"
    n_ctx = found.target.n_ctx if found else n_ctx or COUNTED_CTX
    emptied = replace(free, ram=max(free.ram, machine.total()), address_space=None)
    verdict = "fits" if found and not found.from_disk else "tight"
    alone = replace(emptied, ram=emptied.ram - before)
    if verdict == "tight" and not _fits(target, draft, alone, wishes):
        verdict = "too large"
    models = (target,) if draft is None else (target, draft)
    needed = found.total if found else sum(need(each, Setup(n_ctx=n_ctx)).total for each in models)
    own = sum(each.free for each in free.devices if not each.shared)
    fit = Fit(needed + before + PROGRAM, free.ram + own, emptied.ram + own, verdict)
    return Outlook(found, refusal, n_ctx, fit)


def _fits(target: ModelFacts, draft: ModelFacts | None, free: Free, wishes: Wishes) -> bool:
    try:
        return not plan(target, draft, free, wishes).from_disk
    except OutOfMemory:
        return False


def counted(
    target: ModelFacts, draft: ModelFacts | None, besides: Sequence[ModelFacts] = ()
) -> Fit:
    """The fit for lists: with 4,096 tokens, or fewer where the target knows no more.

    A list loads no driver to ask about accelerators: it counts the main memory alone, until
    `Fit.beside` adds what is known of theirs.
    """
    n_ctx = min(target.trained or COUNTED_CTX, COUNTED_CTX)
    return look(target, draft, n_ctx=n_ctx, besides=besides).fit


def unread(n_bytes: int) -> Fit:
    """An estimate of the fit of models of which only the files' size is known, in main memory."""
    needed, available, total = round(n_bytes * 1.225), machine.available(), machine.total()
    return Fit(needed, available, total, _verdict(needed, available, total))


def _verdict(needed: int, available: int, total: int) -> str:
    return "fits" if needed <= available else "tight" if needed <= total else "too large"
