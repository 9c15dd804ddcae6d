"""Models split over several files: ``NAME-00001-of-00003.gguf`` and so on."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from localspec.errors import ModelFileError

if TYPE_CHECKING:
    from pathlib import Path

SPLIT_NAME: Final = re.compile(r"^(?P<stem>.+)-(?P<no>\d{5})-of-(?P<count>\d{5})\.gguf$", re.I)


def split_names(name: str) -> list[str]:
    """All parts that belong to the split file `name`; `name` alone when it is not split."""
    match = SPLIT_NAME.match(name)
    if match is None:
        return [name]
    count, ending = int(match["count"]), name[-5:]
    return [f"{match['stem']}-{no:05}-of-{count:05}{ending}" for no in range(1, count + 1)]


def require_parts(path: Path, count: int) -> tuple[Path, ...]:
    """Find all `count` parts of the model whose first part is `path`.

    Raises:
        ModelFileError: a part is missing, or `path` is not named as the first of `count`.
    """
    if SPLIT_NAME.match(path.name) is None or len(split_names(path.name)) != count:
        raise ModelFileError(
            f"{path} is one of {count} parts, and its name does not say which",
            f"Give the parts their names back: NAME-00001-of-{count:05}.gguf and so on.",
        )
    paths = tuple(path.with_name(name) for name in split_names(path.name))
    if path != paths[0]:
        raise ModelFileError(f"{path} is not the first part of its model", f"Name {paths[0]}.")
    missing = [part.name for part in paths if not part.exists()]
    if missing:
        raise ModelFileError(
            f"{path} has {count} parts and {len(missing)} are missing: {_some(missing)}",
            "Put all parts into the same folder.",
        )
    return paths


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
