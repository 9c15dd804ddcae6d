"""The pair that the chat was last opened with: one small file in the data folder."""

from __future__ import annotations

import contextlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import msgspec

from localspec import private
from localspec.pairs import folders, references

FORMAT: Final = 1


@dataclass(frozen=True, slots=True)
class LastUsed:
    """What to open again.

    Attributes:
        pair: a name, an absolute path or a reference.
        draft: the same for a draft that was named besides, ``none``, or None where none was.
    """

    pair: str
    draft: str | None = None


class _Record(msgspec.Struct):
    format: int
    pair: str
    draft: str | None


def recall() -> LastUsed | None:
    """Read what was used last; None where nothing was, or where it cannot be read."""
    try:
        found = msgspec.json.decode(_path().read_bytes(), type=_Record)
    except (OSError, ValueError, RecursionError):
        return None
    known = found.format == FORMAT and found.pair.strip()
    return LastUsed(found.pair, found.draft) if known else None


def remember(pair: str, draft: str | None = None) -> None:
    """Keep what was used now; a folder that cannot be written costs nothing but the memory."""
    used = LastUsed(lasting(pair), None if draft is None else lasting(draft))
    with contextlib.suppress(OSError):
        private.make_folder(_path().parent)
        text = json.dumps({"format": FORMAT, **asdict(used)}, indent=2)
        private.write_atomically(_path(), text + "\n")


def forget(pair: str) -> None:
    """Let go of `pair`, if it was the last one."""
    used = recall()
    if used is not None and used.pair.lower() == pair.lower():
        with contextlib.suppress(OSError):
            _path().unlink(missing_ok=True)


def _path() -> Path:
    return folders.data_folder() / "last-pair.json"


def lasting(text: str) -> str:
    """What means the same in another working folder."""
    text = text.strip()
    if references.means_local(text):
        return str(folders.user_path(text).absolute())
    return text
