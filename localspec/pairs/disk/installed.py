"""The pairs on this machine, as names and files; and the pair that was used last.

Each pair has a JSON file. It is written under a temporary name and then moved, so that readers
never see half a file and two processes never mix theirs.
"""

from __future__ import annotations

import contextlib
import re
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from localspec import private
from localspec.errors import LocalspecError, UsageError
from localspec.limits import LARGEST_FILE
from localspec.pairs.disk import folders
from localspec.pairs.names import draft_option, references
from localspec.pairs.names.reserved_names import FORMER_STARTER, STARTER
from localspec.safe_text import decoded, encodable, reason

_NAME: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}", re.ASCII)
RESERVED: Final = (FORMER_STARTER, *draft_option.WORDS)
"""Words with another meaning where a pair or a model is named."""

_FORMAT: Final = 2


@dataclass(frozen=True, slots=True)
class InstalledModel:
    """One model of an installed pair.

    Attributes:
        paths: absolute paths of its files, in order; llama.cpp opens the first.
        reference: its pinned Hub reference; empty for a local file.
        repo: ``user/name``, empty for a local file.
        commit: of the snapshot; empty for a local file.
        files: the files' names in the repository.
        sha256: the files' hashes in the same order, empty for local files.
        n_bytes: size of all files.
        licence: from the repository or the file; empty if neither names one.
    """

    paths: Annotated[tuple[str, ...], Meta(min_length=1)]
    reference: str = ""
    repo: str = ""
    commit: str = ""
    files: tuple[str, ...] = ()
    sha256: tuple[str, ...] = ()
    n_bytes: Annotated[int, Meta(ge=0, le=LARGEST_FILE)] = 0
    licence: str = ""

    @property
    def path(self) -> Path:
        """The first file."""
        return Path(self.paths[0])

    @property
    def origin(self) -> str:
        """Its source, in a form that `localspec pull` takes."""
        return self.reference or self.paths[0]

    @property
    def complete(self) -> bool:
        """Whether all files still exist."""
        return not self.first_gone

    @property
    def first_gone(self) -> str:
        """The first missing file; empty if all exist."""
        return next((path for path in self.paths if not folders.is_file(Path(path))), "")


@dataclass(frozen=True, slots=True)
class InstalledPair:
    """A name, its target and its drafters.

    Attributes:
        draft: a model or a head; None for a pair without one.
        besides: further drafters, such as a head in addition to a draft model.
    """

    name: str
    target: InstalledModel
    draft: InstalledModel | None
    besides: tuple[InstalledModel, ...] = ()

    @property
    def drafts(self) -> tuple[InstalledModel, ...]:
        """All drafters with files of their own."""
        return self.besides if self.draft is None else (self.draft, *self.besides)

    @property
    def models(self) -> tuple[InstalledModel, ...]:
        """The target, and all drafters with files of their own."""
        return (self.target, *self.drafts)

    @property
    def complete(self) -> bool:
        """Whether all files still exist."""
        return all(model.complete for model in self.models)


def folder() -> Path:
    """The folder of the records."""
    return folders.data_folder() / "pairs"


def check_name(name: str) -> str:
    """Return `name` in lower case, as pairs are stored.

    Raises:
        UsageError: it is not a valid name for a pair.
    """
    lowered = name.lower()
    if not _NAME.fullmatch(lowered) or lowered in RESERVED:
        raise UsageError(
            f"{name!r} cannot be a pair's name",
            "Use letters, digits, dots, dashes and underscores; demo and the words of --draft"
            " are taken.",
        )
    return lowered


def find(name: str) -> InstalledPair | None:
    """Find the installed pair `name`, ignoring case; None if it does not exist.

    Raises:
        LocalspecError: its record is damaged.
    """
    lowered = name.lower()
    if not _NAME.fullmatch(lowered):
        return None
    path = folder() / f"{lowered}.json"
    try:
        record = msgspec.json.decode(decoded(path.read_bytes()), type=_PairRecord)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise LocalspecError(
            f"the record of {lowered} is damaged: {path} ({reason(error)})",
            f"Run `localspec rm {lowered}`, then pull the pair again; files are kept.",
        ) from None
    return InstalledPair(lowered, record.target, record.draft, record.besides)


def all_pairs() -> list[InstalledPair]:
    """List the installed pairs by name, without those whose records are damaged.

    Raises:
        LocalspecError: their folder cannot be read.
    """
    return [pair for _, pair in _records() if pair is not None]


def pair_with(target: Path) -> InstalledPair | None:
    """Find an installed pair with this target whose drafters are on this disk; None without one."""
    for pair in all_pairs():
        here = pair.drafts and all(each.complete for each in pair.drafts)
        if here and folders.same(pair.target.path, target):
            return pair
    return None


def damaged() -> list[str]:
    """List the names whose records cannot be read."""
    return [name for name, pair in _records() if pair is None]


def _records() -> Iterator[tuple[str, InstalledPair | None]]:
    """Yield every name with its pair, or None if the record is damaged.

    A file that is not named after a pair is skipped.
    """
    try:
        paths = sorted(path for path in folder().glob("*.json") if _NAME.fullmatch(path.stem))
    except OSError as error:
        raise LocalspecError(
            f"the records of pairs in {folder()} cannot be read: {error.strerror}",
            "Check the folder's permissions, or set LOCALSPEC_DATA to another.",
        ) from None
    for path in paths:
        pair = None
        with contextlib.suppress(LocalspecError):
            pair = find(path.stem)
        yield path.stem, pair


def save(pair: InstalledPair) -> None:
    """Write the record of `pair`, replacing an older one.

    Raises:
        LocalspecError: the folder cannot be written.
    """
    name = check_name(pair.name)
    data = {"format": _FORMAT, **asdict(pair), "name": name}
    with _recording(name):
        private.write_json(folder() / f"{name}.json", data)


def require_recordable(name: str) -> None:
    """Check that a record for `name` could be written.

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
    except (OSError, UnicodeError) as error:
        raise LocalspecError(
            f"the pair {name} cannot be recorded in {folder()}: {reason(error)}",
            "Check the folder's permissions and the space on its disk.",
        ) from None


def forget(name: str) -> None:
    """Delete the record of `name`; no model file is touched.

    Raises:
        LocalspecError: it cannot be deleted.
    """
    try:
        (folder() / f"{name.lower()}.json").unlink(missing_ok=True)
    except OSError as error:
        raise LocalspecError(f"the record of {name} cannot be deleted: {error.strerror}") from None


class _PairRecord(msgspec.Struct):
    """A pair as stored; before format 2, a draft was the only other model of a pair."""

    format: Literal[1, 2]
    target: InstalledModel
    draft: InstalledModel | None
    besides: tuple[InstalledModel, ...] = ()


@dataclass(frozen=True, slots=True)
class LastUsed:
    """What to open again.

    Attributes:
        pair: a name, an absolute path or a reference.
        draft: a draft that was named in addition, ``none``, or None if none was named.
    """

    pair: str
    draft: str | None = None
    format: Literal[1] = 1


def recall_last() -> LastUsed | None:
    """What was used last; None if nothing was, or if it cannot be read."""
    found = private.read_json(_last_path(), LastUsed)
    if found is None or not found.pair.strip():
        return None
    return replace(found, pair=lasting(found.pair))


def remember_last(pair: str, draft: str | None = None) -> None:
    """Store what is in use.

    If the folder is read-only, or a path works in this folder alone, nothing is stored.
    """
    used = LastUsed(lasting(pair), None if draft is None else lasting_drafts(draft))
    names = (used.pair, *draft_option.names_in(used.draft or ""))
    if any(references.means_local(each) and not Path(each).is_absolute() for each in names):
        return
    with contextlib.suppress(OSError):
        private.write_json(_last_path(), used)


def forget_last(pair: str) -> None:
    """Forget `pair` if it was used last."""
    used = recall_last()
    if used is not None and used.pair.lower() == pair.lower():
        with contextlib.suppress(OSError):
            _last_path().unlink(missing_ok=True)


def _last_path() -> Path:
    return folders.data_folder() / "last-pair.json"


def lasting_drafts(text: str) -> str:
    """Apply `lasting` to each of several drafters."""
    return ",".join(map(lasting, draft_option.names_in(text)))


def lasting(text: str) -> str:
    """The form of `text` to store: paths are made absolute, so they work in any folder.

    In a folder whose name is not valid UTF-8, which cannot be stored, they stay as they are.
    """
    text = text.strip()
    if references.means_local(text):
        path = str(folders.user_path(text).absolute())
        return path if encodable(path) == path else text
    return STARTER if text.lower() == FORMER_STARTER else text
