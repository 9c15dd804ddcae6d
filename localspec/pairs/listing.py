"""What `localspec list` and the app's catalogue show: every pair, its size, fit and state."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from localspec.errors import LocalspecError
from localspec.pairs import catalogue, demo, installed
from localspec.pairs.catalogue import CuratedPair
from localspec.pairs.gguf import header as gguf
from localspec.pairs.installed import DEMO, InstalledPair
from localspec.pairs.memory import outlook
from localspec.pairs.memory.facts import facts
from localspec.pairs.memory.outlook import Fit

if TYPE_CHECKING:
    from localspec.pairs.examine import PairReport


@dataclass(frozen=True, slots=True)
class PairRow:
    """One pair.

    Attributes:
        kind: ``demo``, ``chat``, ``code``, ``reasoning``, or ``own`` for pairs by reference.
        memory_gb: the memory class, 0 where there is none.
        n_bytes: size of all its files.
        state: ``installed``, ``incomplete`` (files are gone) or ``available``.
        verified: whether it is pinned to revisions and hashes.
    """

    name: str
    kind: str
    memory_gb: int
    n_bytes: int
    fit: Fit
    licence: str
    state: str
    target: str
    draft: str
    notes: str
    verified: bool


def rows() -> list[PairRow]:
    """List the demo, the installed pairs and the rest of the catalogue, in this order.

    Raises:
        LocalspecError: the demo pair or the catalogue is missing.
    """
    known = catalogue.pairs()
    mine = installed.all_pairs()
    names = {pair.name for pair in mine}
    return [
        _demo(),
        *(_installed(pair, known.get(pair.name)) for pair in mine),
        *(_available(entry) for entry in known.values() if entry.name not in names),
    ]


def _demo() -> PairRow:
    pair = demo.pair()
    target, draft = (model.path.name for model in pair.models)
    return replace(
        _installed(pair, None),
        kind=DEMO,
        target=target,
        draft=draft,
        notes="Ships with localspec: a very small model for a first look.",
        verified=True,
    )


def _installed(pair: InstalledPair, entry: CuratedPair | None) -> PairRow:
    n_bytes = sum(model.n_bytes for model in pair.models)
    return PairRow(
        name=pair.name,
        kind=entry.kind if entry else "own",
        memory_gb=entry.memory_gb if entry else 0,
        n_bytes=n_bytes,
        fit=_fit(pair, n_bytes),
        licence=entry.licence if entry else pair.target.licence,
        state="installed" if pair.complete else "incomplete",
        target=pair.target.reference or pair.target.paths[0],
        draft="none" if pair.draft is None else pair.draft.reference or pair.draft.paths[0],
        notes=entry.notes if entry else "",
        verified=all(model.sha256 and all(model.sha256) for model in pair.models),
    )


def _fit(pair: InstalledPair, n_bytes: int) -> Fit:
    """The fit by the headers, or by the sizes where the files are gone or damaged."""
    try:
        target, *drafts = (facts(gguf.read_model(model.path).header) for model in pair.models)
    except LocalspecError:
        return outlook.unread(n_bytes)
    return outlook.counted(target, drafts[0] if drafts else None)


def examined(report: PairReport) -> PairRow:
    """A pair that was looked at and is not installed yet, as it would be listed."""
    target, draft = report.target, report.draft
    files = [file for model in (target, draft) if model is not None for file in model.files]
    return PairRow(
        name=report.name,
        kind="own",
        memory_gb=0,
        n_bytes=report.n_bytes,
        fit=report.outlook.fit,
        licence=target.licence,
        state="available",
        target=target.reference or target.label,
        draft="none" if draft is None else draft.reference or draft.label,
        notes="",
        verified=all(file.sha256 for file in files),
    )


def _available(entry: CuratedPair) -> PairRow:
    return PairRow(
        name=entry.name,
        kind=entry.kind,
        memory_gb=entry.memory_gb,
        n_bytes=entry.n_bytes,
        fit=outlook.unread(entry.n_bytes),
        licence=entry.licence,
        state="available",
        target=str(entry.target.reference),
        draft=str(entry.draft.reference),
        notes=entry.notes,
        verified=entry.verified,
    )
