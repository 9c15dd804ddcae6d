"""The Hub cache, ``models--user--repo/{blobs,refs,snapshots}``: what is there, and adding to it.

Layout, links and locks are the library's own, so that its tools and llama.cpp share the files.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from localspec.errors import HubError, NotOnHub, UsageError
from localspec.pairs import folders, references
from localspec.private import write_whole
from localspec.safe_text import reason

if TYPE_CHECKING:
    from localspec.pairs.hub.client import RemoteFile
    from localspec.pairs.hub.patience import Patience
    from localspec.pairs.references import Reference

# ruff: noqa: PLC0415 - loading the library takes a second, and many commands do without it


def constants() -> Any:
    """Give the library's settings; it reads the environment when it is loaded first.

    Raises:
        UsageError: one of the HF_* variables makes no sense.
    """
    try:
        from huggingface_hub import constants as found
    except ValueError as error:
        raise UsageError(
            f"one of the HF_* environment variables cannot be used: {reason(error)}",
            "Correct it, or unset it.",
        ) from None
    return found


def cache_folder() -> Path:
    """Give the Hub cache's folder, as ``HF_HUB_CACHE`` and ``HF_HOME`` and the defaults say."""
    return Path(constants().HF_HUB_CACHE).absolute()  # as the records of pairs have it


def repo_folder(repo: str) -> Path:
    """Give the cache's folder of `repo`; it may not exist."""
    return cache_folder() / ("models--" + repo.replace("/", "--"))


def blob_path(file: RemoteFile) -> Path:
    """Give the place of the file's bytes in the cache."""
    return repo_folder(file.repo) / "blobs" / file.etag


def has_blob(file: RemoteFile) -> bool:
    """Tell whether the file's bytes are in the cache, in full."""
    return _has_size(blob_path(file), file.size)


def is_here(file: RemoteFile) -> bool:
    """Tell whether the file is in the cache, in full, under whatever name.

    Where links cannot be made, the snapshot holds the bytes and there is no blob.
    """
    pointer = snapshot_path(file)
    return has_blob(file) or (not pointer.is_symlink() and _has_size(pointer, file.size))


def _has_size(path: Path, size: int) -> bool:
    try:
        found = path.stat()
    except OSError:
        return False
    return stat.S_ISREG(found.st_mode) and found.st_size == size


def snapshot_path(file: RemoteFile) -> Path:
    """Give the place of the file's name in the cache, a link to its bytes."""
    return repo_folder(file.repo) / "snapshots" / file.commit / file.name


@contextlib.contextmanager
def locked(
    file: RemoteFile, patience: Patience, on_wait: Callable[[], None] | None = None
) -> Iterator[None]:
    """Hold the library's own lock on the file's blob; wait for others that hold it.

    Args:
        file: whose blob.
        patience: whether the user wants to stop.
        on_wait: is told, now and then, that somebody else holds the lock.

    Raises:
        Cancelled: the user wants to stop while waiting.
    """
    from filelock import Timeout
    from huggingface_hub.utils import WeakFileLock  # type: ignore[attr-defined]

    folder = cache_folder() / ".locks" / repo_folder(file.repo).name
    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        while True:
            patience.check()
            try:
                stack.enter_context(WeakFileLock(folder / f"{file.etag}.lock", timeout=0.2))
                break
            except Timeout:
                if on_wait is not None:
                    on_wait()
        yield


def prepare(file: RemoteFile) -> None:
    """Make the cache's folders for `file`.

    Raises:
        OSError: they cannot be made.
        HubError: a link in the cache leads out of it.
    """
    cache = cache_folder()
    for folder in (blob_path(file).parent, snapshot_path(file).parent):
        if not folders.real(folder).is_relative_to(folders.real(repo_folder(file.repo))):
            raise HubError(
                f"{folder} is a link that leads out of the cache", f"Remove it from {cache}."
            )
        folder.mkdir(parents=True, exist_ok=True)


def publish(file: RemoteFile, complete: Path | None, revision: str) -> None:
    """Put a complete, verified file where the library and llama.cpp will find it.

    Args:
        file: what it is.
        complete: its bytes, to be moved into place; None when the blob is there already.
        revision: the branch or tag that was asked for.
    """
    blob, pointer = blob_path(file), snapshot_path(file)
    if complete is not None:
        complete.replace(blob)
    leads_there = pointer.is_symlink() and folders.real(pointer) == folders.real(blob)
    if not (leads_there and blob.is_file()):
        _link(pointer, blob, alone=complete is not None)
    note_revision(file, revision)


def note_revision(file: RemoteFile, revision: str) -> None:
    """Record that `revision`, a branch or a tag, is the file's commit."""
    if revision != file.commit:
        ref = repo_folder(file.repo) / "refs" / revision
        ref.parent.mkdir(parents=True, exist_ok=True)
        write_whole(ref, file.commit)


def _link(pointer: Path, blob: Path, *, alone: bool) -> None:
    """Make `pointer` lead to `blob`; where links cannot be made, it becomes the file itself.

    Args:
        pointer: in a snapshot.
        blob: is there.
        alone: nothing else can lead to `blob` so far; else a copy is made where links cannot.
    """
    aside = pointer.with_name(f".{pointer.name[:100]}.{os.getpid()}")
    aside.unlink(missing_ok=True)
    try:
        if constants().HF_HUB_DISABLE_SYMLINKS:
            raise OSError
        aside.symlink_to(os.path.relpath(blob, pointer.parent))
    except (OSError, NotImplementedError):  # Windows grants it to few
        if alone:
            blob.replace(pointer)
            return
        shutil.copyfile(blob, aside)
    aside.replace(pointer)


def free_bytes(folder: Path) -> int:
    """Give the free space in bytes where `folder` is, or where it would be made."""
    for place in (folder, *folder.parents):
        with contextlib.suppress(OSError):  # not there yet, or in a folder that is closed to us
            return shutil.disk_usage(place).free
    return 0


def find(reference: Reference) -> list[Path]:
    """Find the files that `reference` means, complete with all parts; empty when not cached."""
    try:
        snapshots = _snapshots(reference)
    except OSError:  # a cache that may not be read
        return []
    for snapshot in snapshots:
        files = {
            path.relative_to(snapshot).as_posix(): path
            for path in sorted(snapshot.rglob("*.gguf"))
            if folders.is_file(path)  # a link whose blob is gone is none
        }
        with contextlib.suppress(NotOnHub):
            return [files[name] for name in references.choose(files, reference)]
    return []


def _snapshots(reference: Reference) -> list[Path]:
    """List the snapshots that may answer `reference`, the most likely first."""
    folder = repo_folder(reference.repo)
    revision = reference.revision or "main"
    if re.fullmatch(r"[0-9a-f]{7,40}", revision):
        return sorted((folder / "snapshots").glob(f"{revision}*"))
    try:
        commit = (folder / "refs" / revision).read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        commit = ""
    found = [folder / "snapshots" / commit] if re.fullmatch(r"[0-9a-f]{40}", commit) else []
    if not reference.revision:
        # Nothing was asked for in particular: any snapshot will do, the newest first.
        others = [path for path in (folder / "snapshots").glob("*") if path not in found]
        found += sorted(others, key=lambda path: path.lstat().st_mtime, reverse=True)
    return found
