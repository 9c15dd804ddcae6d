"""What others published about small batches: what to expect before this machine was measured.

`models/curves.toml` holds the published costs, and the speed of lookup that follows from each
(`benchmarks/hardware.py` computes it). docs/hardware.md shows the same data.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final, Literal

import msgspec

from localspec.engine.length.stopping import gamma_for
from localspec.formats import percent
from localspec.loading.measurements.ranking import acceptance, draft_reads
from localspec.pairs.disk.folders import shipped
from localspec.pairs.names.catalogue import ListedPair
from localspec.safe_text import decoded

KINDS: Final = ("edits", "quotes", "conversions", "code", "chat")
"""Kinds of text for which the speed of lookup is known; chat includes explanations, summaries."""

_TOLD: Final = ("edits", "chat")
_MAKERS: Final = {
    "nvidia": ("nvidia", "geforce", "rtx", "tesla", "quadro"),
    "amd": ("amd", "radeon", "instinct"),
    "apple": ("apple", "mtl"),
}
_NAMES: Final = {
    "nvidia": "NVIDIA cards",
    "amd": "AMD cards",
    "apple": "Apple's chips",
    "processor": "processors",
}
_NOTHING_MORE: Final = r"(?=\s*$|\s*\(| +(?:gpu|graphics|with|w/)(?!\w))"
"""What may follow the name of a chip; anything else, such as Ti, XT or Laptop, is part of it."""

Range = tuple[float, float]
"""The least and the most, over several curves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedCurve:
    """The costs of small batches of one model on one machine.

    Attributes:
        how: how it was measured: ``ub``, ``bb`` or ``pp`` (see `models/curves.toml`).
        times: n to T(n) / T(1), from 2 on.
        lookup: speed with lookup over no drafting, by `KINDS`.
        match: how the device or the processor calls itself; empty if `machine` begins with it.
        experts: whether the model is a mixture of experts.
    """

    machine: str
    model: str
    kind: Literal["nvidia", "amd", "apple", "processor"]
    how: Literal["ub", "bb", "pp"]
    source: str
    times: dict[int, float]
    lookup: dict[str, float] = field(default_factory=dict)
    match: str = ""
    experts: bool = False

    @property
    def points(self) -> dict[int, float]:
        """T(n) / T(1), with T(1)."""
        return {1: 1.0} | self.times

    def stands_for(self, name: str) -> bool:
        """Whether this is a curve of the device or processor called `name`.

        More words mean another chip ("RTX 4090 Laptop GPU", "RX 6800 XT"), and a name without a
        number means many ("Xeon").
        """
        own = self.match or self.machine.partition(",")[0]
        exact = rf"\b{re.escape(own)}{_NOTHING_MORE}"
        return bool(re.search(r"\d", own) and re.search(exact, name, re.IGNORECASE))


@dataclass(frozen=True, slots=True)
class Expectation:
    """What drafting is expected to bring on a machine that was not measured.

    Attributes:
        basis: which machines the costs are from, in words.
        lookup: speed over no drafting, by kind of text.
        draft: the same with the pair's draft model or head; None without one.
        accepted: the share of drafted tokens that is assumed to be accepted then.
    """

    basis: str
    lookup: Mapping[str, Range]
    draft: Range | None = None
    accepted: float = 0.0

    def __str__(self) -> str:
        """The expectation, for people."""
        told = " and ".join(f"{_times(self.lookup[kind])} for {kind}" for kind in _TOLD)
        parts = [f"{told} with lookup, which copies what repeats"]
        if self.draft is not None:
            share = percent(self.accepted)
            parts.insert(0, f"{_times(self.draft)} with its draft, if {share} of it is accepted")
        return f"{'; '.join(parts)} (from published costs of {self.basis})"

    @property
    def data(self) -> dict[str, Any]:
        """The expectation for programs."""
        return {"basis": self.basis, "lookup": dict(self.lookup), "draft": self.draft}


@cache
def curves() -> tuple[PublishedCurve, ...]:
    """All published curves.

    Raises:
        OSError: the file is missing.
    """
    data = tomllib.loads(decoded(shipped("curves.toml").read_bytes()))
    return tuple(msgspec.convert(data["curve"], list[PublishedCurve], str_keys=True))


def expected(
    processor: str, accelerators: Sequence[str] = (), row: ListedPair | None = None
) -> Expectation | None:
    """What drafting is expected to bring on a machine, before anything was measured there.

    Args:
        processor: the name of the processor.
        accelerators: the names of the devices that compute; empty if the processor does.
        row: the pair; None for any single model.

    Returns:
        None if no costs of such hardware were published.
    """
    experts = row is not None and row.active < 1
    basis, found = _like(list(accelerators) or [processor], bool(accelerators), experts=experts)
    if not found:
        return None
    lookup = {kind: _range(each.lookup[kind] for each in found) for kind in KINDS}
    reads = draft_reads(row) if row is not None and not experts else None
    if row is None or reads is None:
        return Expectation(basis, lookup)
    accepted, step = acceptance(row), reads / row.target_bytes
    gains = _range(_gain(each, accepted, step) for each in found)
    return Expectation(basis, lookup, gains, accepted)


def _like(
    names: Sequence[str], on_device: bool, *, experts: bool
) -> tuple[str, list[PublishedCurve]]:
    """The curves of hardware with these names, else of its kind; and that hardware in words."""
    known = [each for each in curves() if each.experts == experts]
    same = [each for each in known if any(map(each.stands_for, names))]
    if same:
        return f"{same[0].machine} ({same[0].model})", same[:1]
    said = " ".join(names).casefold()
    makers = _MAKERS if on_device else {"apple": _MAKERS["apple"]}
    made = (kind for kind, words in makers.items() if any(word in said for word in words))
    kind = next(made, "" if on_device else "processor")
    return _NAMES.get(kind, ""), [each for each in known if each.kind == kind]


def _gain(curve: PublishedCurve, accepted: float, step: float) -> float:
    """The speed-up of a draft whose tokens take `step` of T(1) each."""
    from localspec.engine.length.cost import Curve  # noqa: PLC0415 - numpy, for drafts alone

    return gamma_for(accepted, Curve(curve.points).times(max(curve.times)), step)[1]


def _range(values: Iterable[float]) -> Range:
    found = list(values)
    return min(found), max(found)


def _times(found: Range) -> str:
    """A range of speed-ups: ``1.2 to 1.6×``, ``1.3×``."""
    low, high = (f"{each:.1f}" for each in found)
    return f"{low}×" if low == high else f"{low} to {high}×"
