"""What others published about small batches: what to expect before this machine was measured.

`models/curves.toml` holds the published costs, and the speed of lookup that follows from each
(`benchmarks/hardware.py` computes it), and speeds with heads. Costs differ by the size of the
weights as much as by the machine: a `Group` has one kind of both. docs/hardware.md has the same
groups as rows.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import product
from typing import Any, Final, Literal

import msgspec

from localspec.drafter_names import MTP
from localspec.engine.length.stopping import gamma_for
from localspec.formats import percent
from localspec.loading.measurements.ranking import acceptance, draft_reads
from localspec.pairs.disk.folders import shipped
from localspec.pairs.names.catalogue import ListedPair
from localspec.safe_text import decoded

KINDS: Final = ("edits", "quotes", "conversions", "code", "chat")
"""Kinds of text for which the speed of lookup is known; chat includes explanations, summaries."""

_TOLD: Final = ("edits", "chat")
_EXPERTS: Final = "experts"
_DEVICES: Final = {
    "nvidia": r"nvidia|geforce|rtx|tesla|quadro",
    "amd": r"^(?!.*\b\d{3}m\b).*(amd|radeon|instinct)",
    "mobile": r"radeon.*\b\d{3}m\b",
    "apple": r"apple|mtl",
}
_NAMES: Final = {
    "nvidia": "NVIDIA cards",
    "amd": "AMD cards, Radeon 8060S",
    "mobile": "Radeon 780M and 890M by Vulkan",
    "apple": "Apple's chips",
    "processor": "processors without a card",
    _EXPERTS: "mixtures of experts on any machine",
}
_SIZES: Final = {6: "at most 6 bits", 8: "8 bits", 16: "16 bits"}
_MOST_BITS: Final = {6: 7.0, 8: 10.0, 16: 17.0}  # with scales, and finer weights in between
_USUAL: Final = 6  # nearly all files of the catalogue
_NOTHING_MORE: Final = r"(?=\s*$|\s*\(| +(?:gpu|graphics|with|w/)(?!\w))"
"""What may follow the name of a chip; anything else, such as Ti, XT or Laptop, is part of it."""

Range = tuple[float, float]
"""The least and the most, over several machines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """What was published of one model on one machine.

    Attributes:
        kind: what computes; ``experts`` on any machine if the model is a mixture of them.
        bits: of the weights: 16, 8, or 6 for all smaller ones.
        match: how the device or the processor calls itself; empty if `machine` begins with it.
    """

    machine: str
    model: str
    kind: Literal["nvidia", "amd", "mobile", "apple", "processor", "experts"]
    bits: Literal[6, 8, 16]
    source: str
    match: str = ""

    def stands_for(self, name: str) -> bool:
        """Whether this is of the device or processor called `name`.

        More words mean another chip ("RTX 4090 Laptop GPU", "RX 6800 XT"), and a name without a
        number means many ("Xeon").
        """
        own = self.match or self.machine.partition(",")[0]
        exact = rf"\b{re.escape(own)}{_NOTHING_MORE}"
        return bool(re.search(r"\d", own) and re.search(exact, name, re.IGNORECASE))


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedCurve(Published):
    """The costs of small batches.

    Attributes:
        how: how it was measured: ``ub``, ``bb`` or ``pp`` (see `models/curves.toml`).
        times: n to T(n) / T(1), from 2 on.
        lookup: speed with lookup over no drafting, by `KINDS`.
        both: the same with a draft model as well (see docs/hardware.md); empty for experts.
    """

    how: Literal["ub", "bb", "pp"]
    times: dict[int, float]
    lookup: dict[str, float] = field(default_factory=dict)
    both: dict[str, float] = field(default_factory=dict)

    @property
    def points(self) -> dict[int, float]:
        """T(n) / T(1), with T(1)."""
        return {1: 1.0} | self.times

    def gain(self, accepted: float, step: float) -> float:
        """The speed-up of a draft whose tokens take `step` of T(1) each."""
        from localspec.engine.length.cost import Curve  # noqa: PLC0415 - numpy, for drafts alone

        return gamma_for(accepted, Curve(self.points).times(max(self.times)), step)[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedSpeed(Published):
    """Tokens per second without and with a head, from end to end."""

    tokens: tuple[float, float]


@dataclass(frozen=True, slots=True)
class Group:
    """One kind of machine with weights of one size: a row of docs/hardware.md.

    Attributes:
        name: both, in words.
        speeds: what counts where there is no curve.
    """

    name: str
    curves: Sequence[PublishedCurve]
    speeds: Sequence[PublishedSpeed]

    @property
    def lookup(self) -> dict[str, Range]:
        """The speed of lookup over no drafting, by `KINDS`; empty if unknown."""
        found = self.curves
        return {kind: _range(each.lookup[kind] for each in found) for kind in KINDS if found}

    def drafted(self, accepted: float, step: float, *, head: bool) -> Range | None:
        """The speed-up of a draft or a head (see `PublishedCurve.gain`); all speeds are of heads.

        None for mixtures of experts: no speed of one with a head was published, and its step
        takes another share of the few weights that a token reads.
        """
        if any(each.kind == _EXPERTS for each in self.curves):
            return None
        gains = [each.gain(accepted, step) for each in self.curves]
        if not gains and head:
            gains = [each.tokens[1] / each.tokens[0] for each in self.speeds]
        return _range(gains) if gains else None

    def of(self, names: Sequence[str]) -> Group:
        """The part of it that is of hardware with one of these names; all if there is none."""
        curves = [each for each in self.curves if any(map(each.stands_for, names))][:1]
        speeds = [each for each in self.speeds if any(map(each.stands_for, names))][:1]
        own = next(iter((*curves, *speeds)), None)
        return self if own is None else Group(f"{own.machine} ({own.model})", curves, speeds)


@dataclass(frozen=True, slots=True)
class Expectation:
    """What drafting is expected to bring on a machine that was not measured.

    Attributes:
        basis: which machines and weights the figures are of, in words.
        lookup: speed over no drafting, by kind of text; empty if unknown.
        draft: the same with the pair's draft model or head; None without one.
        accepted: the share of drafted tokens that is assumed to be accepted then; 0 for published
            speeds.
    """

    basis: str
    lookup: Mapping[str, Range]
    draft: Range | None = None
    accepted: float = 0.0

    def __str__(self) -> str:
        """The expectation, for people."""
        parts = []
        if self.draft is not None:
            share = f", if {percent(self.accepted)} of it is accepted" if self.accepted else ""
            parts.append(f"{_times(self.draft)} with its draft{share}")
        if self.lookup:
            told = " and ".join(f"{_times(self.lookup[kind])} for {kind}" for kind in _TOLD)
            parts.append(f"{told} with lookup, which copies what repeats")
        what = "costs" if self.lookup else "speeds"
        return f"{'; '.join(parts)} (from published {what} of {self.basis})"

    @property
    def data(self) -> dict[str, Any]:
        """The expectation for programs."""
        return {"basis": self.basis, "lookup": dict(self.lookup), "draft": self.draft}


def curves() -> tuple[PublishedCurve, ...]:
    """All published curves.

    Raises:
        OSError: the file is missing.
    """
    return tuple(msgspec.convert(read()["curve"], list[PublishedCurve], str_keys=True))


def groups() -> dict[tuple[str, int], Group]:
    """What was published, by `Published.kind` and `Published.bits`.

    Raises:
        OSError: the file is missing.
    """
    known, speeds = curves(), msgspec.convert(read()["speed"], list[PublishedSpeed])
    found: dict[tuple[str, int], Group] = {}
    for key in product(_NAMES, _SIZES):
        of_curves = [each for each in known if (each.kind, each.bits) == key]
        of_speeds = [each for each in speeds if (each.kind, each.bits) == key]
        if of_curves or of_speeds:
            name = f"{_NAMES[key[0]]}, weights of {_SIZES[key[1]]}"
            found[key] = Group(name, of_curves, of_speeds)
    return found


def expected(
    processor: str, accelerators: Sequence[str] = (), row: ListedPair | None = None
) -> Expectation | None:
    """What drafting is expected to bring on a machine, before anything was measured there.

    Args:
        processor: the name of the processor.
        accelerators: the names of the devices that compute; empty if the processor does.
        row: the pair; None for any single model, with weights of the usual size.

    Returns:
        None if nothing was published of such hardware with weights of this size.
    """
    names = list(accelerators) or [processor]
    mixture = row is not None and row.active < 1
    kind = _EXPERTS if mixture else _kind(names, on_device=bool(accelerators))
    group = groups().get((kind, _USUAL if row is None else _size(row.bits)))
    if group is None:
        return None
    group, draft, accepted = group.of(names), None, 0.0
    if row is not None and (reads := draft_reads(row)) is not None:
        accepted = acceptance(row) if group.curves else 0.0
        head = row.drafter == MTP
        draft = group.drafted(acceptance(row), reads / row.target_bytes, head=head)
    if not group.lookup and draft is None:
        return None
    return Expectation(group.name, group.lookup, draft, accepted)


@cache
def read() -> dict[str, Any]:
    """The file of what was published.

    Raises:
        OSError: it is missing.
    """
    return tomllib.loads(decoded(shipped("curves.toml").read_bytes()))


def _size(bits: float) -> int:
    """`Published.bits` of weights of this many bits each; 0 if unknown."""
    return next((size for size, most in _MOST_BITS.items() if 0 < bits <= most), 0)


def _kind(names: Sequence[str], *, on_device: bool) -> str:
    """`Published.kind` of hardware with these names; empty if nothing is known of it."""
    words = _DEVICES if on_device else {"apple": _DEVICES["apple"]}
    found = (
        kind
        for kind, said in words.items()
        for name in names
        if re.search(said, name, re.IGNORECASE)
    )
    return next(found, "" if on_device else "processor")


def _range(values: Iterable[float]) -> Range:
    found = list(values)
    return min(found), max(found)


def _times(found: Range) -> str:
    """A range of speed-ups: ``1.2 to 1.6×``, ``1.3×``."""
    low, high = (f"{each:.1f}" for each in found)
    return f"{low}×" if low == high else f"{low} to {high}×"
