"""The curated pairs of ``catalogue.toml``, and the list of all pairs with size, fit and state."""

from __future__ import annotations

import shlex
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import msgspec

from localspec.drafter_names import DRAFT, MTP, NONE
from localspec.errors import LocalspecError, in_clone, install_again
from localspec.pairs.disk import folders, starter, trained_heads
from localspec.pairs.disk.installed import InstalledPair
from localspec.pairs.gguf import head_checks
from localspec.pairs.gguf import header as gguf
from localspec.pairs.memory.model_facts import active_share, draft_facts, facts, own_head
from localspec.pairs.memory.outlook import MemoryFit, outlook_for, unread
from localspec.pairs.names.references import Reference
from localspec.pairs.names.repository_files import of_model, quant_bits, quant_of
from localspec.pairs.names.reserved_names import STARTER
from localspec.safe_text import decoded

_LETTER_BY_LETTER = ("hash", "name")


@dataclass(frozen=True, slots=True)
class CuratedFile:
    """One side of a curated pair.

    Attributes:
        gb: size in GB, rounded; 0 if `bytes` is set.
        seen: how the names are known until they can be checked: ``hash`` (public lists had them
            with a hash), ``name`` (letter by letter), ``inferred`` in part; empty if not noted.
        bytes, revision, sha256: set once the entry has been verified.
    """

    repo: str
    file: str
    gb: float = 0
    seen: str = ""
    bytes: int = 0
    revision: str = ""
    sha256: str = ""

    @property
    def n_bytes(self) -> int:
        """Size in bytes; rounded while the entry has not been verified."""
        return self.bytes or int(self.gb * 1e9)

    @property
    def reference(self) -> Reference:
        """The file on the Hub, pinned to the revision that was verified."""
        return Reference(self.repo, file=self.file, revision=self.revision)


@dataclass(frozen=True, slots=True)
class SecondChoice(CuratedFile):
    """A further drafter for a curated target; `file` is empty if only the repository is known.

    Attributes:
        why: its kind, and what is known of it.
    """

    why: str = ""

    @property
    def option(self) -> str:
        """The value of ``--draft`` that takes it."""
        return f"{self.repo}:{self.file}" if self.file else self.repo


@dataclass(frozen=True, slots=True)
class CuratedPair:
    """One entry of the catalogue.

    Attributes:
        kind: its purpose: ``chat``, ``code`` or ``reasoning``, or ``starter``.
        memory_gb: the memory class it is meant for, in GB.
        architecture: llama.cpp's name of the target's.
        template: the chat template with which its thoughts and calls were tested, as a file name in
            llama.cpp's source; empty if none was.
        draft: None if only lookup or a head inside the target drafts.
        head: ``mtp`` if the target's file has that head; otherwise empty.
        active: share of the weights that a token reads; less than 1 for a mixture of experts.
        evidence: why drafting should help, and where that was published.
        sampling: the advice of the target's makers, by llama.cpp's names of the settings.
    """

    name: str
    kind: str
    memory_gb: int
    licence: str
    architecture: str
    target: CuratedFile
    template: str = ""
    draft: CuratedFile | None = None
    others: tuple[SecondChoice, ...] = ()
    head: str = ""
    active: float = 1.0
    notes: str = ""
    evidence: str = ""
    sampling: Mapping[str, int | float] = field(default_factory=dict)

    @property
    def drafter(self) -> str:
        """The model that drafts: ``draft`` or ``mtp``; empty for none."""
        return DRAFT if self.draft is not None else self.head

    @property
    def dialect(self) -> str:
        """A sentence on whether its thoughts and calls are known to be read correctly."""
        if self.template:
            return f"thoughts and calls were tried with the chat template {self.template}"
        return "its chat template was not seen; how it marks thoughts and calls is learnt here"

    @property
    def names(self) -> str:
        """A sentence on whether the repositories and files are known to have these names."""
        if self.verified:
            return "checked against the Hub"
        if all(file.seen in _LETTER_BY_LETTER for file in self.files):
            return "as public lists have them; not checked against the Hub"
        return "not checked against the Hub; one may be different there"

    @property
    def files(self) -> tuple[CuratedFile, ...]:
        """The target, and the draft if there is one."""
        return (self.target,) if self.draft is None else (self.target, self.draft)

    @property
    def verified(self) -> bool:
        """Whether all files are pinned to a revision and a hash."""
        return all(file.revision and file.sha256 for file in self.files)

    @property
    def n_bytes(self) -> int:
        """Size of all files in bytes."""
        return sum(file.n_bytes for file in self.files)


def pairs() -> dict[str, CuratedPair]:
    """Read the catalogue, by name, in the order of its file.

    Raises:
        LocalspecError: the file is missing or damaged.
    """
    path = folders.shipped("catalogue.toml")
    try:
        return {pair.name: pair for pair in _curated(path.read_bytes())}
    except (OSError, ValueError, KeyError) as error:
        restore = f"git -C {shlex.quote(str(path.parent))} restore {path.name}"
        way = f"Restore it: {restore}" if in_clone() else install_again()
        raise LocalspecError(f"the catalogue {path} cannot be read: {error}", way) from None


@lru_cache(maxsize=1)
def _curated(data: bytes) -> Sequence[CuratedPair]:
    """The entries of a catalogue, kept because a command asks for them several times."""
    return msgspec.convert(tomllib.loads(decoded(data))["pair"], list[CuratedPair])


def sampling_for(name: str, file: str) -> Mapping[str, int | float]:
    """The sampling settings that a model's makers advise, if the catalogue knows the model.

    Args:
        name: of its pair.
        file: name of its first file; another quant of a curated target counts as the same model.
    """
    try:
        known = pairs()
    except LocalspecError:  # reported when a curated pair is requested
        return {}
    same = (pair for pair in known.values() if of_model([pair.target.file], file))
    found = next(same, None) or known.get(name)
    return found.sampling if found is not None else {}


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedPair:
    """One pair in a list.

    Attributes:
        kind: ``starter``, ``chat``, ``code``, ``reasoning``, or ``own`` for pairs by reference.
        memory_gb: the memory class, 0 without one.
        n_bytes: size of all its files.
        target_bytes, draft_bytes: of each model's.
        active: share of the target's weights that a token reads.
        bits: approximate bits per target weight; 0 if unknown.
        drafter: the model that drafts: ``draft``, ``mtp`` (inside the target), or empty.
        block: the most tokens that it guesses in one pass; 0 for one, or if unknown.
        accepted: measured acceptance of a head that drafts; None if unknown.
        state: ``installed``, ``incomplete`` (files are missing), ``available``, or ``found`` (of
            another program).
        evidence: why drafting should help, from the catalogue.
        verified: whether it is pinned to revisions and hashes.
    """

    name: str
    kind: str = "own"
    memory_gb: int = 0
    n_bytes: int
    target_bytes: int = 0
    draft_bytes: int = 0
    active: float = 1.0
    bits: float = 0.0
    drafter: str = ""
    block: int = 0
    accepted: float | None = None
    fit: MemoryFit
    licence: str
    state: str
    target: str
    draft: str
    notes: str = ""
    evidence: str = ""
    verified: bool


def rows() -> list[ListedPair]:
    """List the starter, the installed pairs and the rest of the catalogue, in this order.

    Raises:
        LocalspecError: the catalogue is missing.
    """
    known = pairs()
    mine = starter.pairs_here()
    names = {pair.name for pair in mine}
    here = [_installed(starter.with_drafters(pair)[0], known.get(pair.name)) for pair in mine]
    others = [_available(entry) for entry in known.values() if entry.name not in names]
    return sorted([*here, *others], key=lambda row: row.name != STARTER)


def _installed(pair: InstalledPair, entry: CuratedPair | None) -> ListedPair:
    n_bytes = sum(model.n_bytes for model in pair.models)
    active, bits, drafter, accepted = 1.0, 0.0, DRAFT if pair.draft else "", None
    block = 0
    try:
        target, *drafts = (gguf.read_model(model.path) for model in pair.models)
        sizes, inside = [draft_facts(each.header) for each in drafts], own_head(target.header)
        of_target = facts(target.header, mtp=bool(inside))
        fit = outlook_for(of_target, sizes + inside).fit
        active, bits = active_share(target.header), target.header.bits
        drafter = drafter or (MTP if inside else "")
        if drafts:
            accepted = trained_heads.accepted(drafts[0].header, drafts[0].paths, target.paths)
            block = head_checks.block(drafts[0].header)
    except LocalspecError:  # files are missing or damaged
        fit = unread(n_bytes)
    return ListedPair(
        name=pair.name,
        kind=entry.kind if entry else "own",
        memory_gb=entry.memory_gb if entry else 0,
        n_bytes=n_bytes,
        target_bytes=pair.target.n_bytes,
        draft_bytes=pair.draft.n_bytes if pair.draft else 0,
        active=active,
        bits=bits,
        drafter=drafter,
        block=block,
        accepted=accepted,
        fit=fit,
        licence=entry.licence if entry else pair.target.licence,
        state="installed" if pair.complete else "incomplete",
        target=pair.target.origin,
        draft=",".join(each.origin for each in pair.drafts) or NONE,
        notes=entry.notes if entry else "",
        evidence=_evidence(entry, pair),
        verified=all(model.sha256 and all(model.sha256) for model in pair.models),
    )


def _evidence(entry: CuratedPair | None, pair: InstalledPair) -> str:
    """Why drafting should help; drafters that came to a pair without one are named."""
    if entry is None or entry.draft is not None or not pair.drafts:
        return entry.evidence if entry else ""
    names = " and ".join(each.path.name for each in pair.drafts)
    return f"with {names} where that pays; {entry.evidence}"


def _available(entry: CuratedPair) -> ListedPair:
    return ListedPair(
        name=entry.name,
        kind=entry.kind,
        memory_gb=entry.memory_gb,
        n_bytes=entry.n_bytes,
        target_bytes=entry.target.n_bytes,
        draft_bytes=entry.draft.n_bytes if entry.draft else 0,
        active=entry.active,
        bits=quant_bits(quant_of(entry.target.file)),
        drafter=entry.drafter,
        fit=unread(entry.n_bytes),
        licence=entry.licence,
        state="available",
        target=str(entry.target.reference),
        draft=str(entry.draft.reference) if entry.draft else NONE,
        notes=entry.notes,
        evidence=entry.evidence,
        verified=entry.verified,
    )
