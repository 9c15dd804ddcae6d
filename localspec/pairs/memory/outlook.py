"""Whether a pair fits into memory: now, or once other programs make room."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from localspec import formats, machine
from localspec.errors import OutOfMemory
from localspec.pairs.memory.free import SHARE, FreeMemory
from localspec.pairs.memory.model_facts import ModelFacts
from localspec.pairs.memory.need import ModelSetup, need
from localspec.pairs.memory.placement import (
    DEFAULT_CTX,
    PROGRAM,
    SNAPSHOTS,
    USUAL_CTX,
    DiskSpeed,
    MemoryPlan,
    UserLimits,
    plan,
)

ROOM: Final = 1.225
"""Bytes of memory for each byte of a model's files, where nothing else is known."""


@dataclass(frozen=True, slots=True)
class MemoryFit:
    """Needed and available memory, in bytes: a prediction, whatever the models use once loaded.

    Attributes:
        needed: by the models, their caches and buffers, and the program.
        available: free now, including accelerators with their own memory.
        total: free if nothing else ran.
        verdict: ``fits``, ``tight`` (fits if other programs make room) or ``too large``.
        rough: whether `needed` follows from the size of the files alone.
    """

    needed: int
    available: int
    total: int
    verdict: str
    rough: bool = False

    @property
    def size(self) -> str:
        """What is needed, in words; ``~`` marks a rough estimate."""
        return f"{'~' * self.rough}{formats.size(self.needed)}"

    @property
    def words(self) -> str:
        """The need, what is available, and whether that is enough."""
        basis = " by the size of its files" if self.rough else ""
        there = formats.size(self.available)
        return f"about {formats.size(self.needed)} needed{basis}, {there} available: {self.verdict}"

    def modest(self, room: int = 0) -> bool:
        """Whether a pair may be proposed, if it is counted in main memory alone.

        It takes at most 60 % of main memory, or no more than the `room` that accelerators have free
        in memory of their own.
        """
        return self.needed <= max(SHARE * self.total, room)

    def with_room(self, room: int) -> MemoryFit:
        """The same with `room` more bytes, of accelerators with their own memory."""
        available, total = self.available + room, self.total + room
        verdict = (
            self.verdict if self.verdict == "fits" else _verdict(self.needed, available, total)
        )
        return replace(self, available=available, total=total, verdict=verdict)


@dataclass(frozen=True, slots=True)
class MemoryOutlook:
    """The memory plan, or why there is none.

    Attributes:
        plan: None if nothing fits.
        refusal: why nothing fits and what would; else empty.
        n_ctx: tokens of context that `fit` assumes.
    """

    plan: MemoryPlan | None
    refusal: str
    n_ctx: int
    fit: MemoryFit


def outlook_for(
    target: ModelFacts,
    drafts: Sequence[ModelFacts],
    free: FreeMemory | None = None,
    n_ctx: int | None = None,
    disk: DiskSpeed = lambda: None,
    *,
    snapshots: int = SNAPSHOTS,
) -> MemoryOutlook:
    """Plan the memory of a pair, and judge whether it fits: what lists and reports show.

    Args:
        target: the target's sizes.
        drafts: those of all that drafts.
        free: the memory that it may take; None for this machine's main memory alone, since a list
            loads no driver to ask about accelerators (`MemoryFit.with_room` adds them).
        n_ctx: tokens of context, 0 for all that the target was trained for, None to choose.
        disk: measures the disk's speed; called if the weights do not fit.
        snapshots: of a recurrent target's state, 0 if nothing drafts.
    """
    free = free or FreeMemory(
        machine.available(), address_space=machine.address_space_left(), total=machine.total()
    )
    n_ctx = target.trained or DEFAULT_CTX if n_ctx == 0 else n_ctx
    limits, refusal = UserLimits(n_ctx=n_ctx, snapshots=snapshots), ""
    try:
        found = plan(target, drafts, free, limits, disk)
    except OutOfMemory as error:
        found, refusal = None, f"{error.message}. {error.remedy}"
    n_ctx = found.target.n_ctx if found else n_ctx or min(target.trained or USUAL_CTX, USUAL_CTX)
    emptied = replace(free, ram=max(free.ram, machine.total()), address_space=None)
    verdict = "fits" if found and not found.from_disk else "tight"
    if verdict == "tight" and not _fits(target, drafts, emptied, limits):
        verdict = "too large"
    least = (need(each, ModelSetup(n_ctx=n_ctx)).total for each in (target, *drafts))
    needed = found.total if found else sum(least)
    there, most = free.ram + free.own, emptied.ram + free.own
    fit = MemoryFit(needed + PROGRAM, there, most, verdict)
    return MemoryOutlook(found, refusal, n_ctx, fit)


def _fits(
    target: ModelFacts, drafts: Sequence[ModelFacts], free: FreeMemory, limits: UserLimits
) -> bool:
    try:
        return not plan(target, drafts, free, limits).from_disk
    except OutOfMemory:
        return False


def unread(n_bytes: int) -> MemoryFit:
    """Estimate the fit in main memory from the size of the files alone."""
    needed, available, total = round(n_bytes * ROOM), machine.available(), machine.total()
    verdict = _verdict(needed, available, total)
    return MemoryFit(needed, available, total, verdict, rough=True)


def _verdict(needed: int, available: int, total: int) -> str:
    return "fits" if needed <= available else "tight" if needed <= total else "too large"
