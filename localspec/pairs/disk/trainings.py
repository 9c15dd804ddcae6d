"""Where unfinished trainings are kept, by target, and that one training runs at a time."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import filelock
import msgspec

from localspec import private
from localspec.errors import LocalspecError
from localspec.pairs.disk import folders
from localspec.pairs.disk.fingerprint import fingerprint
from localspec.safe_text import reason

_LOCK: Final = "lock"


class _TargetPath(msgspec.Struct):
    """What the record of a training says of the place of its target."""

    path: str


def root() -> Path:
    """The folder of all trainings."""
    return folders.data_folder() / "train"


def folder_of(target: str) -> Path:
    """The folder of the training of a target with this fingerprint, which may not exist."""
    return root() / target[:16]


def record_of(folder: Path) -> Path:
    """The record that a training in `folder` has begun; without it, none can go on."""
    return folder / "begun.json"


def unfinished(target: Sequence[Path]) -> Path | None:
    """The folder of a training of these files, begun or not; None without one.

    If the files are gone, it is the one that was begun with them where they were.
    """
    if not (every := _folders()):
        return None
    try:
        folder = folder_of(fingerprint(target))
    except OSError:
        wanted = str(target[0].absolute())
        known = ((each, private.read_json(record_of(each), _TargetPath)) for each in every)
        return next((each for each, its in known if its and its.path == wanted), None)
    return folder if folder.is_dir() else None


def void() -> list[Path]:
    """The folders of trainings that never began."""
    return [folder for folder in _folders() if not record_of(folder).exists()]


def _folders() -> list[Path]:
    try:
        return [path for path in root().iterdir() if path.is_dir()]
    except OSError:
        return []


@contextmanager
def alone() -> Iterator[None]:
    """Make sure that no other training runs on this machine.

    Raises:
        LocalspecError: another one is running.
    """
    private.make_folder(root())
    lock = filelock.FileLock(root() / _LOCK, timeout=0)
    try:
        lock.acquire()
    except filelock.Timeout:
        raise LocalspecError(
            "another training is running on this machine",
            "Wait for its end, or stop it: it can go on with --resume.",
        ) from None
    try:
        yield
    finally:
        lock.release()


def size(folder: Path) -> int:
    """Bytes of the files in the folder of a training.

    Raises:
        OSError: one cannot be looked at.
    """
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def delete(folder: Path) -> int:
    """Delete the folder of a training, while no training runs; return the bytes freed.

    Raises:
        LocalspecError: it cannot be deleted.
    """
    try:
        freed = size(folder)
        shutil.rmtree(folder)
    except OSError as error:
        raise LocalspecError(
            f"{folder} cannot be deleted: {reason(error)}", "Check its folder's permissions."
        ) from None
    return freed
