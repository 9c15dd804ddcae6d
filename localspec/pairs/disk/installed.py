"""The pairs on this machine: a name, and the files that it stands for; and which was last used.

One JSON file per pair, written aside and moved into place, so that a reader never sees half
of one and two processes never mix theirs.
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
from localspec.pairs.names import references
from localspec.pairs.names.reserved_names import FORMER_STARTER, STARTER
from localspec.safe_text import decoded, reason

_NAME: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}", re.ASCII)
_RESERVED: Final = frozenset({FORMER_STARTER, "none"})
_FORMAT: Final = 2


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
        """Where it came from: what `localspec pull` takes."""
        return self.reference or self.paths[0]

    @property
    def complete(self) -> bool:
        """Whether all files are still there."""
        return not self.first_gone

    @property
    def first_gone(self) -> str:
        """The first file that is not there any more; empty where all are."""
        return next((path for path in self.paths if not folders.is_file(Path(path))), "")


@dataclass(frozen=True, slots=True)
class InstalledPair:
    """A name, its target and what drafts for it.

    Attributes:
        draft: a model or a head; None for a pair that goes without.
        besides: what else drafts, such as a head beside a draft model.
    """

    name: str
    target: InstalledModel
    draft: InstalledModel | None
    besides: tuple[InstalledModel, ...] = ()

    @property
    def drafts(self) -> tuple[InstalledModel, ...]:
        """All that drafts and has files of its own."""
        return self.besides if self.draft is None else (self.draft, *self.besides)

    @property
    def models(self) -> tuple[InstalledModel, ...]:
        """The target, and all that drafts and has files of its own."""
        return (self.target, *self.drafts)

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
    """List the installed pairs by name; damaged records are left out.

    Raises:
        LocalspecError: their folder may not be read.
    """
    return [pair for _, pair in _records() if pair is not None]


def damaged() -> list[str]:
    """List the names whose records cannot be read."""
    return [name for name, pair in _records() if pair is None]


def _records() -> Iterator[tuple[str, InstalledPair | None]]:
    """Give every name with its pair, None where the record is damaged."""
    try:
        paths = sorted(folder().glob("*.json"))
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
    """Write the record of `pair`, in place of an older one.

    Raises:
        LocalspecError: the folder cannot be written.
    """
    name = check_name(pair.name)
    data = {"format": _FORMAT, **asdict(pair), "name": name}
    with _recording(name):
        private.write_json(folder() / f"{name}.json", data)


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
        (folder() / f"{check_name(name)}.json").unlink(missing_ok=True)
    except OSError as error:
        raise LocalspecError(f"the record of {name} cannot be deleted: {error.strerror}") from None


class _PairRecord(msgspec.Struct):
    """A pair as its file has it; until format 2 no more than a draft stood beside the target."""

    format: Literal[1, 2]
    target: InstalledModel
    draft: InstalledModel | None
    besides: tuple[InstalledModel, ...] = ()


@dataclass(frozen=True, slots=True)
class LastUsed:
    """What to open again.

    Attributes:
        pair: a name, an absolute path or a reference.
        draft: the same for a draft that was named besides, ``none``, or None where none was.
    """

    pair: str
    draft: str | None = None
    format: Literal[1] = 1


def recall_last() -> LastUsed | None:
    """Read what was used last; None where nothing was, or where it cannot be read."""
    found = private.read_json(_last_path(), LastUsed)
    if found is None or not found.pair.strip():
        return None
    return replace(found, pair=lasting(found.pair))


def remember_last(pair: str, draft: str | None = None) -> None:
    """Keep what was used now, a folder that cannot be written costs nothing but the memory."""
    used = LastUsed(lasting(pair), None if draft is None else lasting_drafts(draft))
    with contextlib.suppress(OSError):
        private.write_json(_last_path(), used)


def forget_last(pair: str) -> None:
    """Let go of `pair`, if it was the last one."""
    used = recall_last()
    if used is not None and used.pair.lower() == pair.lower():
        with contextlib.suppress(OSError):
            _last_path().unlink(missing_ok=True)


def _last_path() -> Path:
    return folders.data_folder() / "last-pair.json"


def lasting_drafts(text: str) -> str:
    """`lasting` of several names with commas between them."""
    return ",".join(lasting(word) for word in text.split(","))


def lasting(text: str) -> str:
    """`text` as it is kept: a path made absolute, which means the same in another folder."""
    text = text.strip()
    if references.means_local(text):
        return str(folders.user_path(text).absolute())
    return STARTER if text.lower() == FORMER_STARTER else text
