"""From what people write for a pair to the files it stands for, without a network."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from localspec.errors import ModelFileError, NotOnHub, UsageError
from localspec.pairs import catalogue, folders, installed, references
from localspec.pairs.gguf import header as gguf
from localspec.pairs.hub import cache as hub_cache
from localspec.pairs.installed import DEMO, InstalledPair

NO_DRAFT: Final = "none"


@dataclass(frozen=True, slots=True)
class ResolvedPair:
    """Files that are on this disk.

    Attributes:
        name: how to show the pair.
        target: the target's first file.
        draft: the draft's first file, None for plain decoding.
        draft_reason: where the draft comes from, or why there is none.
    """

    name: str
    target: Path
    draft: Path | None
    draft_reason: str


def resolve(pair: str | None, draft: str | None = None) -> ResolvedPair:
    """Find the files that `pair` and `draft` stand for; nothing is fetched.

    Args:
        pair: a short name, a GGUF file or a Hub reference; None is the demo pair.
        draft: a file, a reference, an installed pair's name or ``none``; None leaves the
            choice to the pair.

    Raises:
        ModelFileError: a file is missing.
        NotOnHub: a name is unknown, or the pair is not on this disk; the remedy pulls it.
        BadReference: the text names no model.
        UsageError: there is no text.
    """
    found = _resolve_pair(DEMO if pair is None else _said(pair), pull_draft=draft)
    if draft is None:
        return found
    if draft.lower() == NO_DRAFT:
        return ResolvedPair(found.name, found.target, None, "none was wanted")
    return ResolvedPair(found.name, found.target, resolve_draft(draft), "named")


def resolve_draft(text: str) -> Path:
    """Find the one file that `text` stands for as a draft: of a pair's name, that pair's draft.

    Raises:
        ModelFileError, NotOnHub, BadReference: as `resolve`.
    """
    found = _resolve_pair(_said(text), pull_draft=None)
    by_name = not references.looks_like_path(text) and not references.looks_like_reference(text)
    return found.draft if by_name and found.draft else found.target


def _said(text: str) -> str:
    if not text.strip():
        raise UsageError("the name of a model is empty", "Name a pair, a GGUF file or a reference.")
    return text.strip()


def demo_files() -> tuple[Path, Path]:
    """Find the demo pair's target and draft, whatever their quants.

    Raises:
        ModelFileError: they are not there.
    """
    folder = folders.shipped(DEMO)
    sides = [sorted(folder.glob(f"{side}-*.gguf")) for side in ("target", "draft")]
    if not all(sides):
        raise ModelFileError(
            f"the demo pair is missing from {folder}", "Install localspec again, or pull a pair."
        )
    return sides[0][0], sides[1][0]


def _resolve_pair(text: str, pull_draft: str | None) -> ResolvedPair:
    if text.lower() == DEMO:
        target, draft = demo_files()
        return ResolvedPair(DEMO, target, draft, "part of the demo pair")
    if references.means_local(text):
        return _resolve_path(folders.user_path(text))
    if references.looks_like_reference(text):
        return _resolve_reference(text, pull_draft)
    return _resolve_name(text)


def _resolve_path(path: Path) -> ResolvedPair:
    gguf.require_file(path)
    return _with_known_draft(path.stem, path)


def _resolve_reference(text: str, pull_draft: str | None) -> ResolvedPair:
    paths = hub_cache.find(references.parse(text))
    if not paths:
        # A user may keep files in folders like a/b without an ending.
        if folders.is_file(Path(text)):
            return _with_known_draft(Path(text).stem, Path(text))
        more = f" --draft {pull_draft}" if pull_draft and pull_draft.lower() != NO_DRAFT else ""
        raise NotOnHub(f"{text} is not on this disk", f"Run `localspec pull {text}{more}`.")
    return _with_known_draft(text, paths[0])


def _resolve_name(name: str) -> ResolvedPair:
    pair = installed.find(name)
    if pair is not None:
        return _from_record(pair)
    entry = catalogue.pairs().get(name.lower())
    if entry is not None:
        return _from_cache(entry)
    if folders.is_file(Path(name)):
        return _with_known_draft(Path(name).stem, Path(name))
    raise NotOnHub(f"there is no pair named {name}", suggestion(name))


def _from_record(pair: InstalledPair) -> ResolvedPair:
    for model in pair.models:
        if not model.complete:
            raise ModelFileError(
                f"a file of the pair {pair.name} is gone: {_first_gone(model.paths)}",
                f"Run `localspec pull {repull_arguments(pair)}`.",
            )
    if pair.draft is None:
        return ResolvedPair(pair.name, pair.target.path, None, "the pair was pulled without one")
    return ResolvedPair(pair.name, pair.target.path, pair.draft.path, f"part of {pair.name}")


def repull_arguments(pair: InstalledPair) -> str:
    """Give the arguments with which `localspec pull` restores `pair`."""
    draft = pair.draft
    words = [pair.target.reference or pair.target.paths[0]]
    words += ["--draft", NO_DRAFT if draft is None else draft.reference or draft.paths[0]]
    return " ".join([*words, "--name", pair.name])


def _from_cache(entry: catalogue.CuratedPair) -> ResolvedPair:
    target, draft = (hub_cache.find(side.reference) for side in (entry.target, entry.draft))
    if not target or not draft:
        raise NotOnHub(f"{entry.name} is not on this disk", f"Run `localspec pull {entry.name}`.")
    return ResolvedPair(entry.name, target[0], draft[0], f"part of {entry.name}")


def _with_known_draft(name: str, target: Path) -> ResolvedPair:
    """Give `target` the draft of an installed pair that has the same target, if there is one."""
    real = target.resolve()
    for pair in installed.all_pairs():
        if pair.draft and pair.draft.complete and pair.target.path.resolve() == real:
            return ResolvedPair(name, target, pair.draft.path, f"as in the pair {pair.name}")
    return ResolvedPair(name, target, None, "none was named, and none is known for this target")


def _first_gone(paths: tuple[str, ...]) -> str:
    return next(path for path in paths if not folders.is_file(Path(path)))


def suggestion(name: str) -> str:
    """Say what may have been meant by `name`, which is no pair."""
    known = [DEMO, *(pair.name for pair in installed.all_pairs()), *catalogue.pairs()]
    close = difflib.get_close_matches(name.lower(), known, n=1)
    hint = f"Did you mean {close[0]}? " if close else ""
    return f"{hint}`localspec list` shows the names."
