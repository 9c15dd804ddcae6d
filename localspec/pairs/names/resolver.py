"""What people mean when they name a pair, and the files on this disk that it stands for."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from localspec.errors import ModelFileError, NotFetched, NotOnHub, UsageError
from localspec.pairs.disk import folders, installed, other_programs, starter
from localspec.pairs.disk.installed import InstalledPair
from localspec.pairs.disk.other_programs import FoundModel, FoundModels
from localspec.pairs.gguf import header as gguf
from localspec.pairs.hub import cache as hub_cache
from localspec.pairs.names import catalogue, references
from localspec.pairs.names.catalogue import CuratedPair
from localspec.pairs.names.references import Reference
from localspec.pairs.names.reserved_names import STARTER

NO_DRAFT: Final = "none"


@dataclass(frozen=True, slots=True)
class ResolvedPair:
    """Files on this disk.

    Attributes:
        name: the pair's name for display.
        target: the target's first file.
        draft: the draft's first file, None if nothing drafts.
        draft_reason: the source of the draft, or why there is none.
        besides: the first files of further drafters.
    """

    name: str
    target: Path
    draft: Path | None
    draft_reason: str
    besides: tuple[Path, ...] = ()

    @property
    def drafts(self) -> tuple[Path, ...]:
        """The first files of all drafters."""
        return self.besides if self.draft is None else (self.draft, *self.besides)


def resolve(pair: str | None, draft: str | None = None, *, scan: bool = True) -> ResolvedPair:
    """Find the files that `pair` and `draft` mean; nothing is fetched.

    Args:
        pair: a short name, a GGUF file or a Hub reference; None means the starter.
        draft: a file, a reference, an installed pair's name or ``none``; None leaves the choice to
            the pair.
        scan: whether a name may mean a model of another program.

    Raises:
        ModelFileError: a file is missing.
        NotOnHub: a name is unknown, or the pair is not on this disk; the remedy pulls it.
        BadReference: the text does not name a model.
        UsageError: the text is empty.
    """
    target = _on_disk(STARTER if pair is None else pair, scan, pull_draft=draft)
    if draft is None:
        return target
    if draft.lower() == NO_DRAFT:
        return replace(target, draft=None, draft_reason="none was wanted", besides=())
    named = _on_disk(draft, scan)
    # Here the name of a pair means its drafter.
    is_pair = isinstance(meaning(draft, scan=scan), InstalledPair | CuratedPair)
    first, *others = (named.drafts if is_pair else ()) or (named.target,)
    return replace(target, draft=first, draft_reason="named", besides=tuple(others))


Meaning = InstalledPair | CuratedPair | Reference | FoundModel | Path


def meaning(text: str, *, scan: bool = True) -> Meaning:
    """The meaning of `text`: a pair's name, a model on the Hub, or a file on this disk.

    Only text written like a path may mean a missing file. With `scan`, models of other programs are
    searched for if nothing else has the name.

    Raises:
        NotOnHub: it is written like a name, but nothing has that name.
        BadReference: it is written like a Hub reference but does not name a model.
        UsageError: the text is empty.
        LocalspecError: the pair's record is damaged.
    """
    text = text.strip()
    if not text:
        raise UsageError(
            "the name of a model is empty", "Name a pair, a GGUF file or a Hub reference."
        )
    path = folders.user_path(text)
    if references.means_local(text):
        return path
    if any(mark in text for mark in "/@"):  # a file may be named a/b without an ending
        return path if folders.is_file(path) else references.parse(text)
    name = STARTER if starter.is_meant(text) else text.lower()
    pair = starter.pair() if name == STARTER else installed.find(text)
    known = pair or catalogue.pairs().get(name)
    if known is not None:
        return known
    if folders.is_file(path):
        return path
    others = other_programs.scan() if scan else FoundModels(())
    if theirs := others.named(text):
        return theirs
    raise NotOnHub(f"there is no pair named {text}", suggestion(text, others))


def _on_disk(text: str, scan: bool, pull_draft: str | None = None) -> ResolvedPair:
    text, meant = text.strip(), meaning(text, scan=scan)
    if isinstance(meant, InstalledPair):
        return _from_record(meant)
    if isinstance(meant, CuratedPair):
        here = [hub_cache.find(file.reference) for file in meant.files]
        if all(here):
            draft, reason = None, "the catalogue names none for it"
            if meant.draft is not None:
                draft, reason = here[1][0], f"part of {meant.name}"
            return ResolvedPair(meant.name, here[0][0], draft, reason)
        pulls = f"Run `localspec pull {meant.name}`."
        remedy = starter.REMEDY if meant.name == STARTER else pulls
        raise NotFetched(f"{meant.name} is not on this disk", remedy)
    if isinstance(meant, Reference):
        if paths := hub_cache.find(meant):
            return _with_known_draft(text, paths[0])
        more = f" --draft {pull_draft}" if pull_draft and pull_draft.lower() != NO_DRAFT else ""
        raise NotFetched(f"{text} is not on this disk", f"Run `localspec pull {text}{more}`.")
    if isinstance(meant, FoundModel):
        return _with_known_draft(meant.name, meant.path)
    gguf.require_file(meant)
    return _with_known_draft(meant.stem, meant)


def _from_record(pair: InstalledPair) -> ResolvedPair:
    target, draft = pair.target, pair.draft
    for model in pair.models:
        if not model.complete:
            named = ",".join(each.origin for each in pair.drafts) or NO_DRAFT
            raise ModelFileError(
                f"a file of the pair {pair.name} is gone: {model.first_gone}",
                f"Run `localspec pull {target.origin} --draft {named} --name {pair.name}`.",
            )
    if draft is None and pair.name == STARTER:  # a head may have been trained for it
        return _with_known_draft(pair.name, target.path)
    if draft is None:
        return ResolvedPair(pair.name, target.path, None, "the pair was pulled without one")
    return _with_drafts_of(pair, pair.name, target.path, f"part of {pair.name}")


def _with_known_draft(name: str, target: Path) -> ResolvedPair:
    """Give `target` the draft of an installed pair with the same target, if any."""
    pair = pair_with(target)
    if pair is None:
        return ResolvedPair(name, target, None, "none was named, and none is known for this target")
    return _with_drafts_of(pair, name, target, f"as in the pair {pair.name}")


def _with_drafts_of(pair: InstalledPair, name: str, target: Path, reason: str) -> ResolvedPair:
    first, *others = (each.path for each in pair.drafts)
    return ResolvedPair(name, target, first, reason, tuple(others))


def pair_with(target: Path) -> InstalledPair | None:
    """Find an installed pair with this target whose drafters are on this disk; None without one."""
    real = folders.real(target)
    for pair in installed.all_pairs():
        here = pair.drafts and all(each.complete for each in pair.drafts)
        if here and folders.real(pair.target.path) == real:
            return pair
    return None


def suggestion(name: str, others: FoundModels | None = None) -> str:
    """Suggest a known pair, or one of the `others`, with a name similar to `name`."""
    known = [*(pair.name for pair in installed.all_pairs()), *catalogue.pairs()]
    known += [model.name for model in others.models] if others else []
    close = difflib.get_close_matches(name.lower(), known, n=1)
    hint = f"Did you mean {close[0]}? " if close else ""
    return f"{hint}`localspec list` shows the names."
