"""Files and folders that only the user may read, and files that are replaced as a whole."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import msgspec

from localspec.safe_text import decoded

_OTHERS = 0o077

T = TypeVar("T")


def make_folder(path: Path) -> None:
    """Make a folder and its parents; an existing one named `localspec` is closed to others.

    Any other existing folder, such as a home, keeps its permissions.

    Raises:
        OSError: it cannot be made.
    """
    if not path.parent.exists():
        make_folder(path.parent)
    path.mkdir(mode=0o700, exist_ok=True)
    if path.name == "localspec":
        close_to_others(path, 0o700)


def make_file(path: Path) -> None:
    """Make a file if it is missing, and close it to others.

    Raises:
        OSError: it cannot be made.
    """
    path.touch(mode=0o600, exist_ok=True)
    close_to_others(path)


def close_to_others(path: Path, mode: int = 0o600) -> None:
    """Take the permissions of others from a file or folder, where that can be done."""
    with suppress(OSError):  # another user's, or a file system without permissions
        if path.stat().st_mode & _OTHERS:
            path.chmod(mode)


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """Write a file to the disk, then move it into place: readers see an old or a new whole one.

    Raises:
        OSError: it cannot be written; the temporary file is deleted.
    """
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def write_whole(path: Path, content: str | bytes) -> None:
    """Write `content` to `path` by `whole_file`.

    Raises:
        OSError: it cannot be written.
    """
    with whole_file(path) as file:
        file.write(content.encode() if isinstance(content, str) else content)


def write_json(path: Path, value: Any) -> None:
    """Write a small record (plain values, or a dataclass of them), and make its folder.

    Raises:
        OSError: the file cannot be written, or the folder cannot be made.
    """
    make_folder(path.parent)
    write_whole(path, msgspec.json.format(msgspec.json.encode(value)).decode() + "\n")


def read_json(path: Path, kind: type[T]) -> T | None:
    """Read a record that `write_json` wrote; None if it is missing or damaged.

    One that is to be changed is read by `read_to_change`.
    """
    try:
        return _record(path.read_bytes(), kind)
    except OSError:
        return None


def read_to_change(path: Path, kind: type[T]) -> T | None:
    """Read a record that is to be written again; None if it is missing, or damaged and put aside.

    Raises:
        OSError: it cannot be read now, or a damaged one cannot be renamed; it would be lost.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    found = _record(content, kind)
    if found is None:
        path.replace(path.with_name(f"{path.name}.damaged-{time.strftime('%Y%m%d-%H%M%S')}"))
    return found


def _record(content: bytes, kind: type[T]) -> T | None:
    try:
        return msgspec.json.decode(decoded(content), type=kind)
    except (ValueError, RecursionError):
        return None
