"""Looking at a pair before anything is fetched or loaded: sizes, vocabulary, memory, licence.

Of a target that came without a draft, the known models are tried that might serve as one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

from localspec import formats
from localspec.errors import DownloadCorrupt, HubOffline, LocalspecError, NotOnHub
from localspec.pairs import catalogue, demo, installed, resolver, sources, vocabulary
from localspec.pairs import found as others
from localspec.pairs.catalogue import CuratedFile, CuratedPair
from localspec.pairs.found import FoundModel
from localspec.pairs.gguf import heads, strict
from localspec.pairs.gguf.header import read_header
from localspec.pairs.hub import cache as hub_cache
from localspec.pairs.hub.patience import Patience, silent
from localspec.pairs.installed import DEMO, InstalledPair
from localspec.pairs.memory import placement
from localspec.pairs.memory.free import Free, read_speed
from localspec.pairs.memory.need import ModelFacts, draft_facts, facts
from localspec.pairs.memory.placement import Outlook
from localspec.pairs.references import Reference
from localspec.pairs.resolver import NO_DRAFT
from localspec.pairs.sources import ModelSource
from localspec.pairs.vocabulary import VocabularyReport

# A draft that is not much smaller than its target costs more than it saves.
LARGEST_SHARE: Final = 0.5
AUTO: Final = "auto"
_WITHOUT_A_MODEL: Final = {NO_DRAFT: "none was wanted", "lookup": "what repeats is copied (lookup)"}
# Of other programs' models so many are tried, the smallest first: each has its header read.
MOST_OTHERS: Final = 40


@dataclass(frozen=True, slots=True)
class DraftCandidate:
    """A model that may be tried as a draft, or was.

    Attributes:
        draft: what to give as ``--draft``.
        bytes: its size.
        on_disk: whether it is here already.
        fits: whether it can serve the target.
        reason: why it does or does not.
    """

    draft: str
    bytes: int
    on_disk: bool
    fits: bool = False
    reason: str = ""


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
    target: ModelSource
    draft: ModelSource | None
    draft_reason: str
    vocabulary: VocabularyReport | None
    outlook: Outlook
    candidates: tuple[DraftCandidate, ...] = ()

    @property
    def models(self) -> tuple[ModelSource, ...]:
        """The target, and the draft where there is one."""
        return (self.target,) if self.draft is None else (self.target, self.draft)

    @property
    def missing(self) -> int:
        """Bytes that are still to be fetched; what serves as both is fetched once."""
        same = self.draft is not None and self.draft.files == self.target.files
        return sum(model.missing for model in self.models[: 1 if same else 2])

    @property
    def n_bytes(self) -> int:
        """Size of all files, the draft's included."""
        return sum(model.n_bytes for model in self.models)


def examine(
    pair: str,
    draft: str | None,
    patience: Patience,
    *,
    n_ctx: int | None = None,
    free: Free | None = None,
    scan: bool = True,
) -> PairReport:
    """Look at a pair, wherever its files are; an unfit draft is reported, not refused.

    Args:
        pair: a short name, a file or a Hub reference.
        draft: a file, a reference, a pair's name, ``lookup`` or ``none``; None or ``auto`` leaves
            it to the pair.
        patience: of whoever waits for it.
        n_ctx: tokens of context to count memory for, None to choose.
        free: what the machine has free, None for its main memory alone.
        scan: whether models of other programs on this disk count.

    Raises:
        HubError, ModelError, UsageError: a model cannot be found or read.
        Cancelled: the user wants to stop.
    """
    name, target, known_draft = _find(pair, patience, scan)
    strict.require_usable(target.header, target.label)
    candidates: tuple[DraftCandidate, ...] = ()
    word = None if draft is None else draft.strip().lower()
    if word in _WITHOUT_A_MODEL:
        found, reason = None, _WITHOUT_A_MODEL[word]
    elif draft is not None and word != AUTO:
        found, reason = _find_draft(draft, patience, scan), "named"
    elif known_draft is not None:
        found = known_draft()
        reason = f"part of {name}" if found else f"{name} has none"
    else:
        found, reason, candidates = _search(target, patience, scan)
    report = vocabulary.compare(target.header, found.header) if found else None
    ahead = placement.look(
        facts(target.header, target.more_bytes),
        _draft_facts(found, target) if found else None,
        free,
        n_ctx,
        lambda: read_speed(target.paths[0]) if target.paths else None,
    )
    return PairReport(name, target, found, reason, report, ahead, candidates)


def _draft_facts(draft: ModelSource, target: ModelSource) -> ModelFacts:
    """The sizes of a draft model, or of a head, which has to fit the target."""
    if heads.is_head(draft.header):
        heads.require_fit(draft.header, target.header, draft.label)
    return draft_facts(draft.header, draft.more_bytes)


Finder = Callable[[], ModelSource | None]


def _find(text: str, patience: Patience, scan: bool) -> tuple[str, ModelSource, Finder | None]:
    """Find the pair's name (empty if none), its target, and how to find its own draft."""
    found = resolver.meaning(text, scan=scan)
    if isinstance(found, InstalledPair):
        target, draft = sources.from_record(found.target, patience), found.draft
        own = partial(sources.from_record, draft, patience) if draft else lambda: None
        return found.name, target, own
    if isinstance(found, CuratedPair):
        entry = found
        target = replace(_curated(entry, entry.target, patience), licence=entry.licence)
        own = partial(_curated, entry, entry.draft, patience) if entry.draft else lambda: None
        return entry.name, target, own
    if isinstance(found, Reference):
        return "", sources.from_hub(found, patience), None
    if isinstance(found, FoundModel):
        target = sources.local(found.path)
        return found.name, replace(target, licence=target.licence or found.licence), None
    return "", sources.local(found), None


def _curated(entry: CuratedPair, file: CuratedFile, patience: Patience) -> ModelSource:
    """Look at one side of a curated pair; it must be the very file that was verified."""
    target, *drafts = (Reference(side.repo, file=side.file) for side in entry.files)
    draft = drafts[0] if drafts else NO_DRAFT
    newest = f"If you trust its owner: `localspec pull {target} --draft {draft}`."
    try:
        found = sources.from_hub(file.reference, patience)
    except NotOnHub as error:
        raise NotOnHub(error.message, newest if file.revision else error.remedy) from None
    if file.sha256 and sources.sha256(found) != file.sha256:
        raise DownloadCorrupt(
            f"{found.label} is not the file that the catalogue was checked with", newest
        )
    return found


def _find_draft(text: str, patience: Patience, scan: bool) -> ModelSource:
    _, found, own_draft = _find(text, patience, scan)
    # A pair's name stands for its draft here.
    return (own_draft() if own_draft is not None else None) or found


def _search(
    target: ModelSource, patience: Patience, scan: bool
) -> tuple[ModelSource | None, str, tuple[DraftCandidate, ...]]:
    """Find a draft for a target that came without one."""
    paired = _paired_before(target)
    if paired:
        return _find_draft(paired, patience, scan), f"as in the pair {paired}", ()
    candidates = _try_all(target, patience, scan)
    fitting = sum(candidate.fits for candidate in candidates)
    reason = f"none was named; {fitting or 'none'} of {len(candidates)} known models would fit"
    return None, reason, candidates


def _paired_before(target: ModelSource) -> str:
    """Find a known pair with the same target, an installed one or a curated one; else ""."""
    known = resolver.pair_with(target.paths[0])
    if known is not None:
        return known.name
    for entry in catalogue.pairs().values():
        same = target.repo.lower() == entry.target.repo.lower()
        if same and entry.draft and any(file.name == entry.target.file for file in target.files):
            return entry.name
    return ""


def _try_all(target: ModelSource, patience: Patience, scan: bool) -> tuple[DraftCandidate, ...]:
    """Try the demo's draft, the models on this disk and the catalogue's drafts on `target`.

    Of what is not on this disk only the start of the header is read, and all of it where that
    agrees. Without a network, the rest of the catalogue is left out. The fitting ones come
    first, those on this disk before the others, the smallest first.

    Raises:
        Cancelled: the user wants to stop.
    """
    found: dict[str, DraftCandidate] = {}
    for untried, where in _untried(target, scan):
        if untried.draft in found:
            continue
        patience.check()
        if not untried.on_disk:
            patience.note(f"trying {untried.draft} as a draft")
        try:
            found[untried.draft] = _tried(target, untried, where, patience)
        except HubOffline:
            break
    return tuple(sorted(found.values(), key=lambda one: (not one.fits, not one.on_disk, one.bytes)))


def _untried(target: ModelSource, scan: bool) -> Iterator[tuple[DraftCandidate, Path | Reference]]:
    """What is on this disk, but for the target itself, then what the catalogue knows besides."""
    named = [
        # The draft first: it has the pair's name.
        (pair.name if model is pair.draft else model.origin, model)
        for pair in installed.all_pairs()
        for model in reversed(pair.models)
        if model.complete
    ]
    for name, model in (*named, (DEMO, demo.pair().models[-1])):
        if model.path.resolve() != target.paths[0].resolve():
            yield DraftCandidate(name, model.n_bytes, on_disk=True), model.path
    curated = [
        (draft, hub_cache.find(draft.reference))
        for draft in (entry.draft for entry in catalogue.pairs().values())
        if draft is not None
    ]
    known = {target.paths[0].resolve(), *(cached[0].resolve() for _, cached in curated if cached)}
    theirs = sorted(others.scan().models if scan else (), key=lambda model: model.n_bytes)
    for one in [each for each in theirs if each.path.resolve() not in known][:MOST_OTHERS]:
        yield DraftCandidate(one.name, one.n_bytes, on_disk=True), one.path
    for draft, cached in curated:
        untried = DraftCandidate(str(draft.reference), draft.n_bytes, on_disk=bool(cached))
        yield untried, cached[0] if cached else draft.reference


def _tried(
    target: ModelSource, untried: DraftCandidate, where: Path | Reference, patience: Patience
) -> DraftCandidate:
    if untried.bytes > LARGEST_SHARE * target.n_bytes:
        share = formats.percent(LARGEST_SHARE)
        return replace(untried, reason=f"it is too large: more than {share} of the target")
    try:
        if isinstance(where, Path):
            header = read_header(where)
        else:
            quiet = replace(patience, note=silent)
            header = sources.from_hub(where, quiet, like=target.header).header
        if heads.is_head(header):
            heads.require_fit(header, target.header, untried.draft)
        report = vocabulary.compare(target.header, header)
    except HubOffline:
        raise
    except LocalspecError as error:
        return replace(untried, reason=error.message)
    return replace(untried, fits=report.compatible, reason=report.reason)
