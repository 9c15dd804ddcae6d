"""The GGUF files next to a target on this disk."""

from __future__ import annotations

from itertools import chain, islice
from pathlib import Path
from typing import Final

from localspec.pairs.disk import folders

_MOST: Final = 200  # files looked at: a folder of downloads may hold any number


def files(target: Path) -> tuple[str, dict[str, Path]]:
    """The name of a target in its repository, and the GGUF files there by their names.

    In the Hub's cache that is the target's snapshot, elsewhere its folder, with the folders in it.
    """
    above = (each for each in target.parents if each.parent.name == "snapshots")
    root = next(above, target.parent)
    try:
        there = chain(root.glob(folders.ANY_GGUF), root.glob(f"*/{folders.ANY_GGUF}"))
        found = [path for path in islice(there, _MOST) if folders.is_file(path)]
    except OSError:  # a folder without access
        found = []
    names = {path.relative_to(root).as_posix(): path for path in found}
    return target.relative_to(root).as_posix(), names
