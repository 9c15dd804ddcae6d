"""One model, wherever it is: a file on this disk, or a repository that is only examined."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from localspec import formats
from localspec.errors import (
    DownloadCorrupt,
    HubOffline,
    ModelFileError,
    UnsupportedModel,
    VocabularyMismatch,
)
from localspec.pairs.disk import folders
from localspec.pairs.disk.installed import InstalledModel
from localspec.pairs.gguf import head_checks, usable
from localspec.pairs.gguf import header as gguf
from localspec.pairs.gguf.cursor import ReadRange
from localspec.pairs.gguf.header import GgufHeader
from localspec.pairs.hub import cache as hub_cache
from localspec.pairs.hub import client as hub
from localspec.pairs.hub import download
from localspec.pairs.hub.cache import RemoteFile
from localspec.pairs.hub.client import RemoteRepo
from localspec.pairs.hub.retries import RetryPolicy
from localspec.pairs.names import references, repository_files
from localspec.pairs.names.references import Reference
from localspec.pairs.report import vocabulary

_MOST_TRIED: Final = 8  # headers of files that one reference may mean


@dataclass(frozen=True, slots=True)
class ModelSource:
    """One model and what is known about it before it is loaded.

    Attributes:
        header: the first file's header, with the tensors of all files.
        n_bytes: size of all files.
        paths: its files where they are, or will be once fetched.
        files: its files on the Hub; empty for local models.
        missing: bytes still to be fetched.
        revision: the requested branch or tag.
        licence: from the repository; empty if unknown.
        listing: the GGUF files of its repository; empty if the Hub was not asked.
    """

    header: GgufHeader
    n_bytes: int
    paths: tuple[Path, ...]
    files: tuple[RemoteFile, ...] = ()
    missing: int = 0
    revision: str = ""
    licence: str = ""
    gated: bool = False
    listing: tuple[RemoteFile, ...] = ()

    @property
    def label(self) -> str:
        """Its name for people."""
        if not self.files:
            return str(self.paths[0])
        others = len(self.files) - 1
        more = f" and {formats.counted(others, 'more part')}" if others > 0 else ""
        return f"{self.repo}:{self.files[0].name}{more}"

    @property
    def repo(self) -> str:
        """``user/name``; empty for local files."""
        return self.files[0].repo if self.files else ""

    @property
    def reference(self) -> str:
        """The pinned Hub reference, empty for local files."""
        first = self.files[0] if self.files else None
        return f"{first.repo}:{first.name}@{first.commit}" if first else ""

    def record(self) -> InstalledModel:
        """Its entry for an installed pair's record."""
        return InstalledModel(
            paths=tuple(str(path.absolute()) for path in self.paths),
            reference=self.reference,
            repo=self.repo,
            commit=self.files[0].commit if self.files else "",
            files=tuple(file.name for file in self.files),
            sha256=tuple(file.sha256 for file in self.files),
            n_bytes=self.n_bytes,
            licence=self.licence,
        )


def _require_usable(header: GgufHeader, label: str) -> None:
    """Check that the model is usable; of a head, without its target, only that it is whole."""
    if head_checks.is_head(header):
        usable.require_whole(header, label)
    else:
        usable.require_usable(header, label)


def local(path: Path) -> ModelSource:
    """Look at a model on this disk.

    Raises:
        ModelFileError: it is missing or damaged.
        UnsupportedModel: it cannot chat.
    """
    model = gguf.read_model(path)
    _require_usable(model.header, str(path))
    licence = model.header.text("general.license")
    return ModelSource(model.header, model.file_bytes, model.paths, licence=licence)


def from_hub(
    reference: Reference,
    retries: RetryPolicy,
    like: GgufHeader | None = None,
    *,
    target: bool = False,
) -> ModelSource:
    """Look at a model on the Hub, reading the headers of what is not on this disk.

    If several files may be meant by name, they are read in turn until one is a model. Without a
    connection, a complete model in the cache is used.

    Args:
        reference: which model.
        retries: the caller's.
        like: a target; reading stops once the model cannot be a draft for it.
        target: whether it must be a model that can chat, and not a head.

    Raises:
        VocabularyMismatch: it cannot be a draft for `like`.
        HubError: it does not exist, needs access rights, or the Hub cannot be asked.
        ModelFileError: its header is damaged.
        UnsupportedModel: it cannot chat.
        Cancelled: the user stopped it.
    """
    retries.note(f"looking at {reference}")
    try:
        repo = hub.look_up(reference, retries)
    except HubOffline:
        paths = hub_cache.find(reference)
        if not paths:
            raise
        return _from_cache(reference, paths)
    check = usable.require_usable if target else _require_usable
    refused: list[UnsupportedModel] = []
    for names in repository_files.candidates(repo.files, reference)[:_MOST_TRIED]:
        found = of_repository(repo, names, retries, revision=reference.revision, like=like)
        try:
            check(found.header, found.label)
        except UnsupportedModel as error:
            refused.append(error)
        else:
            return found
    raise refused[0]


def of_repository(
    repo: RemoteRepo,
    names: Sequence[str],
    retries: RetryPolicy,
    *,
    revision: str = "",
    like: GgufHeader | None = None,
) -> ModelSource:
    """Look at these files of a repository, all parts of one model or a head.

    Raises:
        VocabularyMismatch, HubError, ModelFileError, Cancelled: as `from_hub`.
    """
    files = tuple(repo.files[name] for name in names)
    for file in files:
        hub.require_safe(file)
    first = _header_of(files[0], retries, like)
    # The first part may list no tensors, and any part those of some layers or experts alone.
    header = gguf.of_all_parts([first, *(_header_of(file, retries, None) for file in files[1:])])
    return ModelSource(
        header=header,
        n_bytes=sum(file.size for file in files),
        paths=tuple(hub_cache.snapshot_path(file) for file in files),
        files=files,
        missing=sum(file.size - download.have(file) for file in files),
        revision=revision or "main",
        licence=repo.licence or header.text("general.license"),
        gated=repo.gated,
        listing=tuple(file for name, file in repo.files.items() if name.lower().endswith(".gguf")),
    )


def _from_cache(reference: Reference, paths: list[Path]) -> ModelSource:
    """Take a cached model as it is; its commit is that of its snapshot."""
    snapshots = hub_cache.repo_folder(reference.repo) / "snapshots"
    commit = paths[0].relative_to(snapshots).parts[0]
    files = tuple(
        RemoteFile(
            reference.repo,
            commit,
            path.relative_to(snapshots / commit).as_posix(),
            path.stat().st_size,
            hub_cache.etag_of(path) or _own_sha256(path),
        )
        for path in paths
    )
    # By its commit: what a branch now points to is not known.
    return replace(local(paths[0]), paths=tuple(paths), files=files, revision=commit)


def from_record(model: InstalledModel, retries: RetryPolicy) -> ModelSource:
    """Look at an installed model where it is, or on the Hub if files are missing.

    Raises:
        DownloadCorrupt: the Hub now has another file in its place.
        LocalspecError: as `local` and `from_hub`.
    """
    if not model.complete and model.reference:
        again = from_hub(references.parse(model.reference), retries)
        if tuple(file.sha256 for file in again.files) == model.sha256:
            return again
        raise DownloadCorrupt(
            f"{again.label} is not the file that was pulled before",
            "Remove the pair, then pull it by its reference if you trust its owner.",
        )
    found = local(model.path)
    found = replace(found, licence=model.licence or found.licence)
    files = tuple(
        # A file kept in git itself has no sha256 in the record; the name of its blob identifies it.
        RemoteFile(
            model.repo,
            model.commit,
            name,
            path.stat().st_size,
            digest or hub_cache.etag_of(path) or path.name,
        )
        for name, path, digest in zip(model.files, found.paths, model.sha256, strict=False)
    )
    if not model.repo or len(files) != len(found.paths):
        return found
    return replace(found, files=files, revision=model.commit)


def sha256(source: ModelSource) -> str:
    """The hash of the first file; empty if neither the Hub nor this disk knows it.

    In a cache without links, the file itself is hashed.
    """
    known = source.files[0].sha256
    if known or source.missing or not folders.is_file(source.paths[0]):
        return known
    return _own_sha256(source.paths[0])


def _own_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _header_of(file: RemoteFile, retries: RetryPolicy, like: GgufHeader | None) -> GgufHeader:
    if hub_cache.is_here(file):
        return _cached_header(file)
    label = f"{file.repo}:{file.name}"
    accept = vocabulary.require_like(like) if like is not None else None

    def remote(offset: int, size: int) -> bytes:
        return hub.read_range(file, offset, size, retries)

    def here_first(offset: int, size: int) -> bytes:
        return download.read_part(file, offset, size) or remote(offset, size)

    def parsed(read: ReadRange) -> GgufHeader:
        return gguf.parse_header(read, file.size, label, accept)

    if download.part_size(file):
        # Bytes left by an earlier pull save a request, but they are not verified, so no refusal may
        # rely on them.
        with contextlib.suppress(ModelFileError, VocabularyMismatch):
            return parsed(here_first)
    return parsed(remote)


def _cached_header(file: RemoteFile) -> GgufHeader:
    blob = hub_cache.has_blob(file)
    path = hub_cache.blob_path(file) if blob else hub_cache.snapshot_path(file)
    try:
        return gguf.read_header(path)
    except ModelFileError as error:
        remedy = f"If it is damaged, delete {path} and run the same command again."
        raise ModelFileError(error.message, remedy) from None
