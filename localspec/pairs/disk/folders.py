"""The folders of localspec's own files, and of the files that it ships; how files are found."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final

from localspec.errors import LocalspecError

ANY_GGUF: Final = "*.[gG][gG][uU][fF]"
"""The pattern of GGUF files: repositories on the Hub write the end of their names either way."""


def data_folder() -> Path:
    """The folder of localspec's own records; ``LOCALSPEC_DATA`` overrides the platform's.

    Raises:
        LocalspecError: there is no home folder; the same goes for `config_folder` and
            `cache_folder`.
    """
    return _folder("LOCALSPEC_DATA", "user_data_path")


def config_folder() -> Path:
    """The folder of the user's settings; ``LOCALSPEC_CONFIG`` overrides the platform's."""
    return _folder("LOCALSPEC_CONFIG", "user_config_path")


def cache_folder() -> Path:
    """The folder of files that can be recreated; ``LOCALSPEC_CACHE`` overrides the platform's."""
    return _folder("LOCALSPEC_CACHE", "user_cache_path")


def _folder(variable: str, usual: str) -> Path:
    override = os.environ.get(variable)
    if override:
        return user_path(override)
    import platformdirs  # noqa: PLC0415 - only when it is needed

    try:
        found: Path = getattr(platformdirs, usual)("localspec", appauthor=False)
    except RuntimeError:  # there is neither HOME nor an entry for the user
        raise LocalspecError(
            "there is no home folder to keep files in", f"Set HOME, or {variable} to a folder."
        ) from None
    return found


def home() -> Path:
    """The user's home folder.

    Raises:
        LocalspecError: there is none.
    """
    try:
        return Path.home()
    except RuntimeError:  # there is neither HOME nor an entry for the user
        raise LocalspecError("there is no home folder", "Set HOME to one.") from None


def shipped(name: str) -> Path:
    """The path of the file or folder `name` that localspec ships; it may not exist.

    An installed package has it in ``localspec/data``, a checkout in ``models``.
    """
    package = Path(__file__).resolve().parents[2]
    installed = package / "data" / name
    return installed if installed.exists() else package.parent / "models" / name


def user_path(text: str) -> Path:
    """The path that a user wrote, with ``~`` expanded."""
    path = Path(text)
    try:
        return path.expanduser()
    except RuntimeError:  # an unknown user
        return path


def real(path: Path) -> Path:
    """The target of `path`, with links resolved; in a circle of links, one of them."""
    return Path(os.path.realpath(path))  # resolve() raises RuntimeError for a circle


def same(one: Path, other: Path) -> bool:
    """Whether two paths lead to one file, also by names in another case on disks that ignore it."""
    try:  # some drives of Windows number no files
        return real(one) == real(other) or (one.stat().st_ino != 0 and one.samefile(other))
    except (OSError, ValueError):  # it is missing, or no path
        return False


def is_file(path: Path) -> bool:
    """Whether `path` is a file; false if the system cannot look at it."""
    try:
        return path.is_file()
    except (OSError, ValueError):  # a name too long, a folder without access, a NUL
        return False


def regular_size(path: Path) -> int | None:
    """Size in bytes of a regular file; None if `path` is anything else, such as a pipe."""
    try:
        found = path.stat()
    except (OSError, ValueError):
        return None
    return found.st_size if stat.S_ISREG(found.st_mode) else None
