"""The pulls that began and have not ended, each with the files that it fetches.

Other programs share the Hub cache. Of the whole files in it, only this record tells which came with
a pull that did not end, and may go with it.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from localspec import private
from localspec.errors import LocalspecError
from localspec.pairs.disk import folders
from localspec.pairs.hub import cache as hub_cache
from localspec.pairs.hub.cache import RemoteFile
from localspec.safe_text import reason


def begin(name: str, wanted: list[RemoteFile]) -> None:
    """Record that the pull of the pair `name` fetches those of the `wanted` files not here yet.

    What an earlier attempt has fetched still counts as fetched by the pull.

    Raises:
        LocalspecError: it cannot be recorded.
    """
    before = files_of(name)
    files = [*before, *(each for each in wanted if not hub_cache.is_here(each))]
    if len(files) == len(before):
        return
    try:
        private.write_json(_path(name), list(dict.fromkeys(files)))
    except OSError as error:
        raise LocalspecError(
            f"the pull of {name} cannot be recorded in {_folder()}: {reason(error)}",
            "Check the folder's permissions and the space on its disk.",
        ) from None


def names() -> list[str]:
    """The names of the pairs whose pulls have not ended."""
    return sorted(path.stem for path in _folder().glob("*.json"))


def files_of(name: str) -> list[RemoteFile]:
    """The files that an unfinished pull of the pair `name` fetches; empty without such a pull."""
    known = private.read_json(_path(name), list[RemoteFile]) if name in names() else None
    return known or []


def end(name: str) -> None:
    """Forget the pull of the pair `name`: it is done, or what it left is removed."""
    with contextlib.suppress(OSError):
        _path(name).unlink(missing_ok=True)


def _folder() -> Path:
    return folders.data_folder() / "pulls"


def _path(name: str) -> Path:
    return _folder() / f"{name}.json"
