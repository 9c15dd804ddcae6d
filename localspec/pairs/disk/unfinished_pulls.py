"""The pulls that have not ended: the files that each wants, and those that it has fetched.

Other programs share the Hub cache. Of the whole files in it, only these records tell which a pull
that did not end has fetched, so that they may go with it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from localspec import private
from localspec.errors import LocalspecError
from localspec.pairs.disk import folders
from localspec.pairs.hub import cache as hub_cache
from localspec.pairs.hub.cache import RemoteFile
from localspec.safe_text import reason


@dataclass(frozen=True, slots=True)
class UnfinishedPull:
    """What is known of a pull that has not ended.

    Attributes:
        files: those that it wants.
        fetched: by etag of each file that it fetched, when that was written, in nanoseconds.
    """

    files: list[RemoteFile] = field(default_factory=list)
    fetched: dict[str, int] = field(default_factory=dict)

    def has_fetched(self, file: RemoteFile) -> bool:
        """Whether the file that is here is the one that the pull fetched."""
        return hub_cache.is_here(file) and self.fetched.get(file.etag) == _written(file)


def begin(name: str, wanted: Sequence[RemoteFile]) -> None:
    """Record that the pull of the pair `name` wants these files and those of earlier attempts.

    Raises:
        LocalspecError: it cannot be recorded.
    """
    known = _to_change(name)
    _save(name, UnfinishedPull(list(dict.fromkeys([*known.files, *wanted])), known.fetched))


def note_fetched(name: str, file: RemoteFile) -> None:
    """Record that the pull of the pair `name` has just fetched a file.

    Raises:
        LocalspecError: it cannot be recorded.
    """
    known = _to_change(name)
    _save(name, UnfinishedPull(known.files, {**known.fetched, file.etag: _written(file)}))


def names() -> list[str]:
    """The names of the pairs whose pulls have not ended."""
    return sorted(path.stem for path in _folder().glob("*.json"))


def find(name: str) -> UnfinishedPull:
    """What is known of the pull of the pair `name`; nothing without an unfinished one."""
    known = private.read_json(_path(name), UnfinishedPull) if name in names() else None
    return known or UnfinishedPull()


def other_than(name: str, file: RemoteFile) -> str:
    """The pair whose pull has not ended and wants `file`, except `name`; empty without one."""

    def identity(one: RemoteFile) -> tuple[str, ...]:
        return (one.repo.lower(), one.commit, one.name)

    others = (pair for pair in names() if pair != name)
    return next((pair for pair in others if identity(file) in map(identity, find(pair).files)), "")


def forget(name: str, files: Collection[RemoteFile]) -> None:
    """Forget these files of the pull of the pair `name`; with the last one goes the record.

    What an earlier attempt wanted of another quant stays.

    Raises:
        LocalspecError: it cannot be recorded.
    """
    known = _to_change(name)
    left = [file for file in known.files if file not in files]
    etags = {file.etag for file in left}
    fetched = {etag: written for etag, written in known.fetched.items() if etag in etags}
    if left:
        _save(name, UnfinishedPull(left, fetched))
        return
    with contextlib.suppress(OSError):
        _path(name).unlink(missing_ok=True)


def _written(file: RemoteFile) -> int:
    return hub_cache.snapshot_path(file).stat().st_mtime_ns


def _to_change(name: str) -> UnfinishedPull:
    with _recording(name):
        return private.read_to_change(_path(name), UnfinishedPull) or UnfinishedPull()


def _save(name: str, pull: UnfinishedPull) -> None:
    with _recording(name):
        private.write_json(_path(name), pull)


@contextlib.contextmanager
def _recording(name: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise LocalspecError(
            f"the pull of {name} cannot be recorded in {_folder()}: {reason(error)}",
            "Check the folder's permissions and the space on its disk.",
        ) from None


def _folder() -> Path:
    return folders.data_folder() / "pulls"


def _path(name: str) -> Path:
    return _folder() / f"{name}.json"
