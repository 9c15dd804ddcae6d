"""What people mean when they name a pair, and the files on this disk that it stands for."""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from localspec.drafter_names import NONE
from localspec.errors import ModelFileError, NotFetched, NotOnHub, UsageError
from localspec.pairs.disk import folders, installed, other_programs, starter
from localspec.pairs.disk.installed import InstalledPair
from localspec.pairs.disk.other_programs import FoundModel, FoundModels
from localspec.pairs.gguf import header as gguf
from localspec.pairs.hub import cache as hub_cache
from localspec.pairs.names import catalogue, draft_option, references
from localspec.pairs.names.catalogue import CuratedPair
from localspec.pairs.names.draft_option import AllowedDrafters
from localspec.pairs.names.references import Reference
from localspec.pairs.names.reserved_names import STARTER


@dataclass(frozen=True, slots=True)
class ResolvedPair:
    """Files on this disk.

    Attributes:
        name: the pair's name for display.
        target: the target's first file.
        drafts: the first files of all drafters.
        draft_reason: the source of the drafters, or why there are none.
        asked: what was asked to draft; a head inside the target and lookup have no files.
    """

    name: str
    target: Path
    drafts: tuple[Path, ...]
    draft_reason: str
    asked: AllowedDrafters = AllowedDrafters()  # noqa: RUF009 - frozen

    @property
    def draft(self) -> Path | None:
        """The first draft's first file; None if no file drafts."""
        return next(iter(self.drafts), None)


def resolve(pair: str | None, draft: str | None = None, *, scan: bool = True) -> ResolvedPair:
    """Find the files that `pair` and `draft` mean; nothing is fetched.

    Args:
        pair: a short name, a GGUF file or a Hub reference; None means the starter.
        draft: a value of ``--draft``; None leaves the choice to the pair.
        scan: whether a name may mean a model of another program.

    Raises:
        ModelFileError: a file is missing.
        NotOnHub: a name is unknown, or the pair is not on this disk; the remedy pulls it.
        BadReference: the text does not name a model.
        UsageError: a text is empty, or a drafter is named twice.
    """
    asked = draft_option.parse(draft)
    text = (STARTER if pair is None else pair).strip()
    named = ["--draft", draft] if draft is not None and asked.named else []
    pull = f"Run `{shlex.join(['localspec', 'pull', text, *named])}`."
    found = _files(meaning(text, scan=scan), text, pull, own=asked.own)
    require_present(asked.named)
    drafts = tuple(path for name in asked.named for path in _drafts_on_disk(name, pull, scan))
    require_different(drafts)
    if asked.own:
        own = [folders.real(path) for path in found.drafts]
        further = (path for path in drafts if folders.real(path) not in own)
        drafts = (*found.drafts, *further)
    else:
        found = replace(found, draft_reason="named" if drafts else asked.why_no_model)
    return replace(found, drafts=drafts, asked=asked)


def require_present(drafters: Sequence[str]) -> None:
    """Check the paths among several names of drafters: a comma may have cut one in two.

    Raises:
        ModelFileError: one names no file; the remedy says what a comma means.
    """
    for name in drafters if len(drafters) > 1 else ():
        if references.means_local(name):
            try:
                gguf.require_file(folders.user_path(name))
            except ModelFileError as error:
                remedy = f"{error.remedy} Commas separate the names of drafters."
                raise ModelFileError(error.message, remedy) from None


def require_different(drafts: Sequence[Path]) -> None:
    """Check that no file drafts twice.

    Raises:
        UsageError: one is named twice.
    """
    real = [folders.real(path) for path in drafts]
    twice = next((path for i, path in enumerate(real) if path in real[:i]), None)
    if twice is not None:
        raise UsageError(f"--draft names {twice.name} twice", "Name each drafter once.")


Meaning = InstalledPair | CuratedPair | Reference | FoundModel | Path


def meaning(text: str, *, scan: bool = True) -> Meaning:
    """The meaning of `text`: a pair's name, a model on the Hub, or a file on this disk.

    Only text written like a path may mean a missing file. With `scan`, models of other programs are
    searched for if nothing else has the name, also on a disk that has to wake up first.

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
    others = _of_others(text) if scan else FoundModels(())
    if theirs := others.named(text):
        return theirs
    unknown, remedy = f"there is no pair named {text}", suggestion(text, others)
    if not others.complete:
        unknown += ", and looking for models of other programs ended early"
        remedy = f"Try again once the disk is awake, or name the model's file. {remedy}"
    raise NotOnHub(unknown, remedy)


def _of_others(text: str) -> FoundModels:
    """Models of other programs. If `text` names none of them, a sleeping disk may wake up first."""
    others = other_programs.scan()
    if others.complete or others.named(text):
        return others
    return other_programs.scan(other_programs.NAMED_WITHIN_S)


def _drafts_on_disk(text: str, pull: str, scan: bool) -> tuple[Path, ...]:
    """The files that `text` means as a drafter: of a pair, its own drafters if it has any.

    The starter stands for its model, which may draft for larger ones. `pull` is the remedy if it is
    not here: with its target, as a head cannot be pulled alone.
    """
    meant = meaning(text, scan=scan)
    if isinstance(meant, Reference) and not meant.file:
        head = hub_cache.find_head(meant)
        if head is not None:
            return (head,)
    found = _files(meant, text, pull)
    own = found.drafts if isinstance(meant, InstalledPair | CuratedPair) else ()
    return own if own and found.name != STARTER else (found.target,)


def _files(meant: Meaning, text: str, pull: str, *, own: bool = True) -> ResolvedPair:
    """The files of what `text` means; its `own` drafters must be there if they are wanted."""
    if isinstance(meant, InstalledPair):
        return of_record(meant, own=own)
    if isinstance(meant, CuratedPair):
        wanted = meant.files if own else meant.files[:1]
        here = [hub_cache.find(file.reference) for file in wanted]
        if all(here):
            (target, *_), *drafts = here
            reason = f"part of {meant.name}" if drafts else "the catalogue names none for it"
            return ResolvedPair(meant.name, target, tuple(each[0] for each in drafts), reason)
        remedy = starter.remedy() if meant.name == STARTER else pull
        raise NotFetched(f"{meant.name} is not on this disk", remedy)
    if isinstance(meant, Reference):
        if paths := hub_cache.find(meant):
            return _with_known_draft(text, paths[0])
        raise NotFetched(f"{text} is not on this disk", pull)
    if isinstance(meant, FoundModel):
        return _with_known_draft(meant.name, meant.path)
    gguf.require_file(meant)
    return _with_known_draft(meant.stem, meant)


def of_record(pair: InstalledPair, *, own: bool = True) -> ResolvedPair:
    """The files of an installed pair; its `own` drafters must be there if they are wanted.

    Raises:
        ModelFileError: one is missing.
    """
    for model in pair.models if own else (pair.target,):
        if not model.complete:
            named = ",".join(each.origin for each in pair.drafts) or NONE
            words = [pair.target.origin, "--draft", named, "--name", pair.name]
            remedy = f"Run `localspec pull {shlex.join(words)}`."
            if not model.repo:
                remedy = f"Put it back, or run `localspec rm {pair.name}` and pull it anew."
            raise ModelFileError(
                f"a file of the pair {pair.name} is gone: {model.first_gone}", remedy
            )
    whole, reason = starter.with_drafters(pair)
    return _with_drafts_of(whole, pair.name, pair.target.path, reason)


def _with_known_draft(name: str, target: Path) -> ResolvedPair:
    """Give `target` the draft of an installed pair with the same target, if any."""
    pair = installed.pair_with(target)
    if pair is None:
        return ResolvedPair(name, target, (), "none was named, and none is known for this target")
    return _with_drafts_of(pair, name, target, f"as in the pair {pair.name}")


def _with_drafts_of(pair: InstalledPair, name: str, target: Path, reason: str) -> ResolvedPair:
    return ResolvedPair(name, target, tuple(each.path for each in pair.drafts), reason)


def suggestion(name: str, others: FoundModels | None = None) -> str:
    """Suggest a known pair, or one of the `others`, with a name similar to `name`."""
    known = [*(pair.name for pair in installed.all_pairs()), *catalogue.pairs()]
    known += [model.name for model in others.models] if others else []
    close = difflib.get_close_matches(name.lower(), known, n=1)
    hint = f"Did you mean {close[0]}? " if close else ""
    return f"{hint}`localspec list` shows the names."
