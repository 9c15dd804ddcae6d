"""The pairs on this machine: a name, and the files that it stands for.

One JSON file per pair, written aside and moved into place, so that a reader never sees half
of one and two processes never mix theirs.
"""

from __future__ import annotations

import contextlib
import json
import re
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import msgspec

from localspec import private
from localspec.errors import LocalspecError, UsageError
from localspec.limits import LARGEST_FILE
from localspec.pairs import folders
from localspec.safe_text import reason

FORMAT: Final = 1
DEMO: Final = "demo"
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}", re.ASCII)
_RESERVED: Final = frozenset({DEMO, "none"})


@dataclass(frozen=True, slots=True)
class InstalledModel:
    """One model of an installed pair.

    Attributes:
        paths: its files in order, absolute; the first is what llama.cpp is given.
        reference: where it came from, as a pinned Hub reference; empty for a local file.
        repo: ``user/name``, empty for a local file.
        commit: the snapshot it came from, empty for a local file.
        files: the files' names in the repository.
        sha256: the files' hashes in the same order, empty for local files.
        n_bytes: size of all files.
        licence: as the repository or the file says, empty when neither does.
    """

    paths: tuple[str, ...]
    reference: str = ""
    repo: str = ""
    commit: str = ""
    files: tuple[str, ...] = ()
    sha256: tuple[str, ...] = ()
    n_bytes: int = 0
    licence: str = ""

    @property
    def path(self) -> Path:
        """The first file."""
        return Path(self.paths[0])

    @property
    def complete(self) -> bool:
        """Whether all files are still there."""
        return all(folders.is_file(Path(path)) for path in self.paths)


@dataclass(frozen=True, slots=True)
class InstalledPair:
    """A name, its target and its draft (None for a pair that goes without)."""

    name: str
    target: InstalledModel
    draft: InstalledModel | None

    @property
    def models(self) -> tuple[InstalledModel, ...]:
        """The target, and the draft where there is one."""
        return (self.target,) if self.draft is None else (self.target, self.draft)

    @property
    def complete(self) -> bool:
        """Whether all files are still there."""
        return all(model.complete for model in self.models)


def folder() -> Path:
    """Give the folder of the records."""
    return folders.data_folder() / "pairs"


def check_name(name: str) -> str:
    """Return `name` as pairs are filed: in lower case.

    Raises:
        UsageError: it cannot be a pair's name.
    """
    lowered = name.lower()
    if not _NAME.fullmatch(lowered) or lowered in _RESERVED:
        raise UsageError(
            f"{name!r} cannot be a pair's name",
            "Use letters, digits, dots, dashes and underscores; demo and none are taken.",
        )
    return lowered


def find(name: str) -> InstalledPair | None:
    """Find the installed pair `name`, in whatever case it is written; None if there is none.

    Raises:
        LocalspecError: its record is there and damaged.
    """
    lowered = name.lower()
    if not _NAME.fullmatch(lowered):
        return None
    path = folder() / f"{lowered}.json"
    try:
        return _decode(lowered, path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise LocalspecError(
            f"the record of {lowered} is damaged: {path} ({error})",
            f"Run `localspec rm {lowered}`, then pull the pair again; files are kept.",
        ) from None


def all_pairs() -> list[InstalledPair]:
    """List the installed pairs by name; damaged records are left out.

    Raises:
        LocalspecError: their folder may not be read.
    """
    found = []
    for path in _record_paths():
        with contextlib.suppress(LocalspecError):
            pair = find(path.stem)
            if pair is not None:
                found.append(pair)
    return found


def damaged() -> list[str]:
    """List the names whose records cannot be read."""
    return [name for name, broken in _records() if broken]


def save(pair: InstalledPair) -> None:
    """Write the record of `pair`, in place of an older one.

    Raises:
        LocalspecError: the folder cannot be written.
    """
    name = check_name(pair.name)
    data = {"format": FORMAT, **asdict(pair), "name": name}
    with _recording(name):
        private.make_folder(folder())
        private.write_atomically(folder() / f"{name}.json", json.dumps(data, indent=2) + "\n")


def require_recordable(name: str) -> None:
    """Insist that a record for `name` could be written.

    Raises:
        LocalspecError: it could not.
    """
    with _recording(name):
        private.make_folder(folder())
        tempfile.TemporaryFile(dir=folder()).close()


@contextlib.contextmanager
def _recording(name: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise LocalspecError(
            f"the pair {name} cannot be recorded in {folder()}: {error.strerror}",
            "Check the folder's permissions and the space on its disk.",
        ) from None


def forget(name: str) -> None:
    """Delete the record of `name`; no model file is touched.

    Raises:
        LocalspecError: it cannot be deleted.
    """
    try:
        (folder() / f"{check_name(name)}.json").unlink(missing_ok=True)
    except OSError as error:
        raise LocalspecError(f"the record of {name} cannot be deleted: {error.strerror}") from None


def _record_paths() -> list[Path]:
    try:
        return sorted(folder().glob("*.json"))
    except OSError as error:
        raise LocalspecError(
            f"the records of pairs in {folder()} cannot be read: {error.strerror}",
            "Check the folder's permissions, or set LOCALSPEC_DATA to another.",
        ) from None


def _records() -> Iterator[tuple[str, bool]]:
    for path in _record_paths():
        try:
            yield path.stem, find(path.stem) is None
        except LocalspecError:
            yield path.stem, True


class _Record(msgspec.Struct):
    """A pair as its file has it."""

    format: int
    target: InstalledModel
    draft: InstalledModel | None


def _decode(name: str, data: bytes) -> InstalledPair:
    """Decode a record.

    Raises:
        ValueError: it is damaged, or of another version.
    """
    try:
        record = msgspec.json.decode(data, type=_Record)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError(reason(error)) from None
    if record.format != FORMAT:
        raise ValueError(f"format {record.format} is unknown")
    pair = InstalledPair(name, record.target, record.draft)
    if not all(model.paths and 0 <= model.n_bytes <= LARGEST_FILE for model in pair.models):
        raise ValueError("a model has no files, or an impossible size")
    return pair
