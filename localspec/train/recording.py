"""The place of a trained head, and the pair that records it."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Final

from localspec import private
from localspec.drafter_names import NONE
from localspec.errors import LocalspecError
from localspec.pairs.disk import folders, installed, trained_heads
from localspec.pairs.disk.fingerprint import fingerprint
from localspec.pairs.disk.installed import InstalledModel, InstalledPair
from localspec.pairs.gguf.header import read_header
from localspec.pairs.names import catalogue
from localspec.pairs.names.reserved_names import FORMER_STARTER, STARTER

_LONGEST: Final = 56
_ODD: Final = re.compile(r"[^a-z0-9._-]+")
_ENDING: Final = ".head.gguf"


def place(target: Path, out: Path | None) -> Path:
    """The path to write the head of a target to.

    In localspec's folder it takes the place of this target's head, and of no other's.

    Raises:
        OSError: localspec's folder for heads cannot be made.
    """
    if out is not None:
        return out.absolute()
    private.make_folder(trained_heads.folder())
    others = (
        draft.path.name.removesuffix(_ENDING)
        for pair in installed.all_pairs()
        if folders.real(pair.target.path) != folders.real(target)
        for draft in pair.drafts
    )
    return trained_heads.folder() / f"{_numbered(target.stem, {*others})}{_ENDING}"


def replaced(head: Path, target: tuple[Path, ...]) -> float:
    """The acceptance of the head in the place of a new one (see `ACCEPTED`); 0 without one.

    Args:
        head: the place.
        target: a head of another target has none.
    """
    try:
        made = trained_heads.made_for(read_header(head))
    except (LocalspecError, OSError):
        return 0.0
    return made.accepted or 0.0 if made and made.hash == fingerprint(target) else 0.0


def record(target: tuple[Path, ...], head: Path) -> str:
    """Let the target draft with the head from now on; return the name of the pair.

    A pair with this target gets the head in addition to its drafters; without one, a new pair is
    made.

    Raises:
        LocalspecError: the record cannot be written.
    """
    own = InstalledModel((str(head),), n_bytes=head.stat().st_size)
    real = folders.real(target[0])
    known = next(
        (each for each in installed.all_pairs() if folders.real(each.target.path) == real), None
    )
    if known is None:
        paths = tuple(str(path.absolute()) for path in target)
        model = InstalledModel(paths, n_bytes=sum(path.stat().st_size for path in target))
        pair = InstalledPair(_free_name(target[0].stem), model, own)
    else:
        others = [each for each in known.drafts if folders.real(each.path) != folders.real(head)]
        first, *more = (own, *others)
        pair = replace(known, draft=first, besides=tuple(more))
    installed.save(pair)
    return pair.name


def _free_name(stem: str) -> str:
    """A name for a new pair that is not in use."""
    wanted = _ODD.sub("-", stem.lower()).strip("-._")[:_LONGEST] or "trained"
    taken = {pair.name for pair in installed.all_pairs()} | set(catalogue.pairs())
    return _numbered(wanted, taken | {STARTER, FORMER_STARTER, NONE})


def _numbered(wanted: str, taken: Collection[str]) -> str:
    """`wanted`, with a number if it is taken."""
    name, number = wanted, 2
    while name in taken:
        name, number = f"{wanted}-{number}", number + 1
    return name
