"""Where a trained head goes, and the pair that it is recorded in."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Final

from localspec import private
from localspec.pairs.disk import folders, installed, trained_heads
from localspec.pairs.disk.installed import InstalledModel, InstalledPair
from localspec.pairs.names import catalogue
from localspec.pairs.names.reserved_names import FORMER_STARTER, STARTER

_LONGEST: Final = 56
_ODD: Final = re.compile(r"[^a-z0-9._-]+")


def place(target: Path, out: Path | None) -> Path:
    """Where the head of a target is written.

    Raises:
        OSError: localspec's folder for heads cannot be made.
    """
    if out is not None:
        return out.absolute()
    private.make_folder(trained_heads.folder())
    return trained_heads.folder() / f"{target.stem}.head.gguf"


def record(target: tuple[Path, ...], head: Path) -> str:
    """Have the target draft with the head from now on; give the name of the pair that says so.

    A pair that has this target gets the head besides what it has; without one there is a new pair.

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
    """A name for a new pair, such as no other has."""
    wanted = _ODD.sub("-", stem.lower()).strip("-._")[:_LONGEST] or "trained"
    taken = {pair.name for pair in installed.all_pairs()} | set(catalogue.pairs())
    taken |= {STARTER, FORMER_STARTER, "none"}
    name, number = wanted, 2
    while name in taken:
        name, number = f"{wanted}-{number}", number + 1
    return name
