"""Where localspec keeps its own files, and where it finds those that it came with."""

from __future__ import annotations

import os
from pathlib import Path

from localspec.errors import LocalspecError


def data_folder() -> Path:
    """Give the folder of localspec's own records; ``LOCALSPEC_DATA`` overrides the platform's.

    Raises:
        LocalspecError: there is no home folder; so also the next two.
    """
    return _folder("LOCALSPEC_DATA", "user_data_path")


def config_folder() -> Path:
    """Give the folder of the user's settings; ``LOCALSPEC_CONFIG`` overrides the platform's."""
    return _folder("LOCALSPEC_CONFIG", "user_config_path")


def cache_folder() -> Path:
    """Give the folder of what can be made again; ``LOCALSPEC_CACHE`` overrides the platform's."""
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


def shipped(name: str) -> Path:
    """Give the path of the file or folder `name` that localspec ships; it may not exist.

    An installed package has it in ``localspec/data``, a checkout in ``models``.
    """
    package = Path(__file__).resolve().parents[2]
    installed = package / "data" / name
    return installed if installed.exists() else package.parent / "models" / name


def user_path(text: str) -> Path:
    """Make a path of what a user wrote; ``~`` is their home."""
    path = Path(text)
    try:
        return path.expanduser()
    except RuntimeError:  # ~nobody
        return path


def real(path: Path) -> Path:
    """Give where `path` leads to; of links that lead in a circle, one of them."""
    return Path(os.path.realpath(path))  # resolve() raises RuntimeError for a circle


def is_file(path: Path) -> bool:
    """Tell whether `path` is a file; what the system cannot even look at is none."""
    try:
        return path.is_file()
    except (OSError, ValueError):  # too long a name, a closed folder, a NUL
        return False
