"""Looking at a pair before anything is fetched or loaded: sizes, vocabulary, memory, licence."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from localspec.errors import DownloadCorrupt, NotOnHub
from localspec.pairs import (
    drafts,
    references,
    resolver,
    sources,
    vocabulary,
)
from localspec.pairs.catalogue import CuratedFile, CuratedPair
from localspec.pairs.hub.patience import Patience
from localspec.pairs.installed import InstalledModel, InstalledPair
from localspec.pairs.memory import disk, outlook
from localspec.pairs.memory.facts import facts
from localspec.pairs.memory.free import Free
from localspec.pairs.memory.outlook import Outlook
from localspec.pairs.references import Reference
from localspec.pairs.resolver import NO_DRAFT
from localspec.pairs.sources import Source
from localspec.pairs.vocabulary import VocabularyReport

Note = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class PairReport:
    """Everything that is known about a pair before it is loaded.

    Attributes:
        name: the short name, empty where the pair has none yet.
        draft_reason: where the draft comes from, or why there is none.
        vocabulary: the comparison, None without a draft.
        candidates: drafts that were tried for a target without one.
        outlook: whether it fits, and how it would be loaded now.
    """

    name: str
    target: Source
    draft: Source | None
    draft_reason: str
    vocabulary: VocabularyReport | None
    outlook: Outlook
    candidates: tuple[drafts.Candidate, ...] = ()

    @property
    def missing(self) -> int:
        """Bytes that are still to be fetched."""
        same = self.draft is not None and self.draft.files == self.target.files
        draft = 0 if self.draft is None or same else self.draft.missing
        return self.target.missing + draft

    @property
    def n_bytes(self) -> int:
        """Size of all files of both models."""
        return self.target.n_bytes + (self.draft.n_bytes if self.draft else 0)


def examine(
    pair: str,
    draft: str | None,
    patience: Patience,
    note: Note | None = None,
    *,
    n_ctx: int | None = None,
    free: Free | None = None,
) -> PairReport:
    """Look at a pair, wherever its files are; an unfit draft is reported, not refused.

    Args:
        pair: a short name, a file or a Hub reference.
        draft: a file, a reference, a pair's name or ``none``; None leaves it to the pair.
        patience: how long to try, and whether the user wants to stop.
        note: is told what is being looked at.
        n_ctx: tokens of context to count memory for, None to choose.
        free: what the machine has free, None for its main memory alone.

    Raises:
        HubError, ModelError, UsageError: a model cannot be found or read.
        Cancelled: the user wants to stop.
    """
    name, target, known_draft = _find(pair, patience, note)
    candidates: tuple[drafts.Candidate, ...] = ()
    if draft is not None and draft.lower() == NO_DRAFT:
        found, reason = None, "none was wanted"
    elif draft is not None:
        found, reason = _find_draft(draft, patience, note), "named"
    elif known_draft is not None:
        found, reason = known_draft(), f"part of {name}"
    else:
        found, reason, candidates = _search(target, patience, note)
    report = vocabulary.compare(target.header, found.header) if found else None
    ahead = outlook.look(
        facts(target.header, target.more_bytes),
        facts(found.header, found.more_bytes) if found else None,
        free,
        n_ctx,
        lambda: disk.read_speed(target.paths[0]) if target.paths else None,
    )
    return PairReport(name, target, found, reason, report, ahead, candidates)


Finder = Callable[[], Source | None]


def _find(text: str, patience: Patience, note: Note | None) -> tuple[str, Source, Finder | None]:
    """Find the pair's name (empty if none), its target, and how to find its own draft."""
    found = resolver.meaning(text)
    if isinstance(found, InstalledPair):
        target = _from_record(found.target, patience, note)
        return found.name, target, _own_draft(found, patience, note)
    if isinstance(found, CuratedPair):
        entry = found
        target = replace(_curated(entry, entry.target, patience, note), licence=entry.licence)
        return entry.name, target, lambda: _curated(entry, entry.draft, patience, note)
    if isinstance(found, Reference):
        return "", sources.from_hub(found, patience, note), None
    return "", sources.local(found), None


def _curated(
    entry: CuratedPair, file: CuratedFile, patience: Patience, note: Note | None
) -> Source:
    """Look at one side of a curated pair; it must be the very file that was verified."""
    target, draft = (Reference(side.repo, file=side.file) for side in (entry.target, entry.draft))
    newest = f"If you trust its owner: `localspec pull {target} --draft {draft}`."
    try:
        found = sources.from_hub(file.reference, patience, note)
    except NotOnHub as error:
        raise NotOnHub(error.message, newest if file.revision else error.remedy) from None
    if file.sha256 and sources.sha256(found) != file.sha256:
        raise DownloadCorrupt(
            f"{found.label} is not the file that the catalogue was checked with", newest
        )
    return found


def _own_draft(record: InstalledPair, patience: Patience, note: Note | None) -> Finder:
    draft = record.draft
    return lambda: None if draft is None else _from_record(draft, patience, note)


def _from_record(model: InstalledModel, patience: Patience, note: Note | None) -> Source:
    """Look at an installed model where it is, or on the Hub where files of it are gone."""
    if not model.complete and model.reference:
        again = sources.from_hub(references.parse(model.reference), patience, note)
        if tuple(file.sha256 for file in again.files) != model.sha256:
            raise DownloadCorrupt(
                f"{again.label} is not the file that was pulled before",
                "Remove the pair, then pull it by its reference if you trust its owner.",
            )
        return again
    found = sources.local(model.path)
    return sources.from_record(found, model)


def _find_draft(text: str, patience: Patience, note: Note | None) -> Source:
    _, found, own_draft = _find(text, patience, note)
    # A pair's name stands for its draft here.
    return (own_draft() if own_draft is not None else None) or found


def _search(
    target: Source, patience: Patience, note: Note | None
) -> tuple[Source | None, str, tuple[drafts.Candidate, ...]]:
    """Find a draft for a target that came without one."""
    paired = drafts.paired_before(target)
    if paired:
        return _find_draft(paired, patience, note), f"as in the pair {paired}", ()
    candidates = tuple(drafts.search(target, patience, note))
    fitting = sum(candidate.fits for candidate in candidates)
    reason = f"none was named; {fitting or 'none'} of {len(candidates)} known models would fit"
    return None, reason, candidates
