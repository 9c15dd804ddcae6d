"""Heads that localspec trained or measured: the file each was made for, and its acceptance."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import msgspec

from localspec import private
from localspec.pairs.disk import folders, starter
from localspec.pairs.disk.fingerprint import fingerprint
from localspec.pairs.gguf.head_checks import is_head
from localspec.pairs.gguf.header import GgufHeader, ModelFiles

TARGET: Final = "localspec.target"
TARGET_HASH: Final = "localspec.target_hash"
TOKENS: Final = "localspec.trained_tokens"
"""Metadata key: tokens of answers it learnt from, as often as it did, since it was begun."""

PRIVATE: Final = "localspec.trained_on_own_conversations"
ACCEPTED: Final = "localspec.accepted"
"""Metadata key: share of first tokens accepted, greedily, on the built-in held-out prompts."""


class _AcceptanceHere(msgspec.Struct):
    """The acceptance of a head with a target, as measured by ``train --check``."""

    accepted: Annotated[float, msgspec.Meta(ge=0, le=1)]


@dataclass(frozen=True, slots=True)
class HeadOrigin:
    """The file that a head was made for.

    Attributes:
        accepted: the acceptance there (see `ACCEPTED`); None if unknown.
        private: whether the user's own conversations were trained on.
        tokens: see `TOKENS`; 0 if unknown.
    """

    name: str
    hash: str
    accepted: float | None
    private: bool
    tokens: int


def folder() -> Path:
    """The folder of heads trained here."""
    return folders.data_folder() / "heads"


def is_ours(path: Path) -> bool:
    """Whether a file is a head trained here, in the folder for such heads."""
    return folders.real(path).is_relative_to(folders.real(folder()))


def made_for(head: GgufHeader) -> HeadOrigin | None:
    """The file that a head was made for; None if it does not say, as others trained it."""
    known = head.text(TARGET_HASH)
    share, tokens = head.metadata.get(ACCEPTED), head.metadata.get(TOKENS)
    if not known:
        return None
    return HeadOrigin(
        name=head.text(TARGET),
        hash=known,
        accepted=share if isinstance(share, float) and 0 <= share <= 1 else None,
        private=head.metadata.get(PRIVATE) is True,
        tokens=tokens if isinstance(tokens, int) else 0,
    )


def accepted(head: GgufHeader, files: Sequence[Path], target: Sequence[Path]) -> float | None:
    """The share of a head's first tokens that are accepted, greedily.

    Args:
        head: its header.
        files: its files.
        target: files of the target that it drafts for.

    Returns:
        What `remember` stored for both, else what the head's file says; None if neither is known,
            and for a draft model.
    """
    if not is_head(head):
        return None
    with suppress(OSError):  # files that are still to be fetched
        if (found := private.read_json(_path(files, target), _AcceptanceHere)) is not None:
            return found.accepted
    made = made_for(head)
    return None if made is None else made.accepted


def notices(head: ModelFiles, target: ModelFiles) -> list[str]:
    """Notices if a head was made for another file than this target."""
    made, name = made_for(head.header), head.paths[0].name
    if made is None or head.paths[0] == starter.head(target.paths[0]):
        return []  # llama.cpp may write the starter's copy with another header, not other weights
    if made.hash == fingerprint(target.paths):
        return []
    said = f"the head {name} was made for another file ({made.name})"
    found = private.read_json(_path(head.paths, target.paths), _AcceptanceHere)
    if found is None or made.accepted is None:
        files = " --check ".join(shlex.quote(str(each.paths[0])) for each in (target, head))
        return [f"{said}: `localspec train {files}` measures what that costs"]
    return [f"{said}: {difference(made.accepted, found.accepted)}"]


def difference(made: float, here: float) -> str:
    """The difference between two acceptances in percentage points, in words."""
    points = round(100 * (made - here))
    if points == 0:
        return "as much is accepted here"
    return f"{abs(points)} points {'less' if points > 0 else 'more'} accepted here"


def remember(head: ModelFiles, target: ModelFiles, accepted: float) -> None:
    """Store the measured acceptance of a head with a target (see `ACCEPTED`).

    Raises:
        OSError: it cannot be written.
    """
    private.write_json(_path(head.paths, target.paths), _AcceptanceHere(accepted))


def _path(head: Sequence[Path], target: Sequence[Path]) -> Path:
    both = f"{fingerprint(head)[:16]}-{fingerprint(target)[:16]}"
    return folders.cache_folder() / "heads" / f"{both}.json"
