"""Files and folders that nobody but the user may read: conversations, records, measurements."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from pathlib import Path

_OTHERS = 0o077


def make_folder(path: Path) -> None:
    """Make a folder with those above it; an older one of ours is closed to others.

    A folder that somebody chose, such as a home, keeps the rights that it has.

    Raises:
        OSError: it cannot be made.
    """
    if not path.parent.exists():
        make_folder(path.parent)
    path.mkdir(mode=0o700, exist_ok=True)
    if path.name == "localspec":
        _close(path, 0o700)


def make_file(path: Path) -> None:
    """Make a file that is not there yet, and close it to others.

    Raises:
        OSError: it cannot be made.
    """
    path.touch(mode=0o600, exist_ok=True)
    _close(path, 0o600)


def write_atomically(path: Path, text: str) -> None:
    """Write `text` so that a reader sees the old file or the new one, whole; no folder is made.

    Raises:
        OSError: it cannot be written; the old file is as it was.
    """
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _close(path: Path, mode: int) -> None:
    with suppress(OSError):  # somebody else's, or a file system without rights
        if path.stat().st_mode & _OTHERS:
            path.chmod(mode)
