"""The curated pairs: ``catalogue.toml``, read and checked."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from localspec.errors import LocalspecError
from localspec.pairs import folders
from localspec.pairs.references import Reference


@dataclass(frozen=True, slots=True)
class CuratedFile:
    """One side of a curated pair.

    Attributes:
        n_bytes: size in bytes; rounded while the entry has not been verified.
        sha256: the file's hash, empty while the entry has not been verified.
    """

    repo: str
    file: str
    revision: str
    n_bytes: int
    sha256: str

    @property
    def reference(self) -> Reference:
        """The same as a reference, pinned to the revision that was verified."""
        return Reference(self.repo, file=self.file, revision=self.revision)


@dataclass(frozen=True, slots=True)
class CuratedPair:
    """One entry of the catalogue.

    Attributes:
        kind: what it is for: ``chat``, ``code`` or ``reasoning``.
        memory_gb: the memory class it is meant for, in GB.
        licence: the target's licence.
        evidence: why the pair is believed to work.
        verified: whether revisions and hashes were checked against the Hub.
    """

    name: str
    kind: str
    memory_gb: int
    licence: str
    notes: str
    evidence: str
    target: CuratedFile
    draft: CuratedFile

    @property
    def verified(self) -> bool:
        """Whether both files are pinned to a revision and a hash."""
        return all(side.revision and side.sha256 for side in (self.target, self.draft))

    @property
    def n_bytes(self) -> int:
        """Size of both files in bytes."""
        return self.target.n_bytes + self.draft.n_bytes


def pairs() -> dict[str, CuratedPair]:
    """Read the catalogue, by name, in the order of its file.

    Raises:
        LocalspecError: the file is missing or damaged.
    """
    path = folders.shipped("catalogue.toml")
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
        return {entry["name"]: _pair(entry) for entry in data["pair"]}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise LocalspecError(
            f"the catalogue {path} cannot be read: {error}", "Install localspec again."
        ) from None


def _pair(entry: Mapping[str, Any]) -> CuratedPair:
    return CuratedPair(
        name=entry["name"],
        kind=entry["kind"],
        memory_gb=int(entry["memory_gb"]),
        licence=entry["licence"],
        notes=entry.get("notes", ""),
        evidence=entry.get("evidence", ""),
        target=_file(entry["target"]),
        draft=_file(entry["draft"]),
    )


def _file(side: Mapping[str, Any]) -> CuratedFile:
    return CuratedFile(
        repo=side["repo"],
        file=side["file"],
        revision=side.get("revision", ""),
        n_bytes=int(side.get("bytes") or side["gb"] * 1e9),
        sha256=side.get("sha256", ""),
    )
