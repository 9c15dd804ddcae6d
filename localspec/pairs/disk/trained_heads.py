"""Heads that localspec trained: for which file each was made, and what it is worth elsewhere."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from localspec import private
from localspec.pairs.disk import folders
from localspec.pairs.disk.fingerprint import fingerprint
from localspec.pairs.gguf.header import GgufHeader, ModelFiles

TARGET: Final = "localspec.target"
TARGET_HASH: Final = "localspec.target_hash"
TOKENS: Final = "localspec.trained_tokens"
PRIVATE: Final = "localspec.trained_on_own_conversations"
ACCEPTED: Final = "localspec.accepted"
"""The share of first tokens, greedily, that the built-in held-out prompts accept."""


class _AcceptanceElsewhere(msgspec.Struct):
    """What a head has accepted beside another file than its own."""

    accepted: float


@dataclass(frozen=True, slots=True)
class HeadOrigin:
    """For which file a head was made.

    Attributes:
        name: of the file.
        hash: its fingerprint.
        accepted: what is accepted there (see `ACCEPTED`); None where that is not known.
        private: whether one's own conversations were trained on.
    """

    name: str
    hash: str
    accepted: float | None
    private: bool


def folder() -> Path:
    """Where heads are kept that were trained here."""
    return folders.data_folder() / "heads"


def is_ours(path: Path) -> bool:
    """Whether a file is a head that was trained here and lies where those are kept."""
    return folders.real(path).is_relative_to(folders.real(folder()))


def made_for(head: GgufHeader) -> HeadOrigin | None:
    """For which file a head was made; None where it does not say: others trained it."""
    known = head.text(TARGET_HASH)
    accepted = head.metadata.get(ACCEPTED)
    if not known:
        return None
    share = accepted if isinstance(accepted, float) else None
    return HeadOrigin(head.text(TARGET), known, share, head.metadata.get(PRIVATE) is True)


def notices(head: ModelFiles, target: ModelFiles) -> list[str]:
    """What the user should know of a head beside this target: that it was made for another file."""
    made, name = made_for(head.header), head.paths[0].name
    if made is None or made.hash == fingerprint(target.paths):
        return []
    said = f"the head {name} was made for another file ({made.name})"
    found = private.read_json(_path(head, target), _AcceptanceElsewhere)
    if found is None or made.accepted is None:
        return [f"{said}: `localspec train --check` measures what that costs"]
    return [f"{said}: {difference(made.accepted, found.accepted)}"]


def difference(made: float, here: float) -> str:
    """How many points of acceptance lie between two files, in words."""
    points = round(100 * (made - here))
    if points == 0:
        return "as much is accepted here"
    return f"{abs(points)} points {'less' if points > 0 else 'more'} accepted here"


def remember(head: ModelFiles, target: ModelFiles, accepted: float) -> None:
    """Keep what was measured of a head beside another file than its own.

    Raises:
        OSError: it cannot be written.
    """
    private.write_json(_path(head, target), _AcceptanceElsewhere(accepted))


def _path(head: ModelFiles, target: ModelFiles) -> Path:
    both = f"{fingerprint(head.paths)[:16]}-{fingerprint(target.paths)[:16]}"
    return folders.cache_folder() / "heads" / f"{both}.json"
