"""The Hub cache, ``models--user--repo/{blobs,refs,snapshots}``: finding files and adding them.

Layout, links and locks follow the huggingface_hub library, so that its tools and llama.cpp share
the files.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from localspec.errors import HubError, NotOnHub, UsageError
from localspec.pairs.disk import folders
from localspec.pairs.hub.retries import RetryPolicy
from localspec.pairs.names import repository_files
from localspec.pairs.names.draft_option import HEADS
from localspec.pairs.names.references import Reference
from localspec.private import write_whole
from localspec.safe_text import reason

# ruff: noqa: PLC0415 - importing huggingface_hub takes a second; many commands do not need it

LONGEST_ON_WINDOWS: Final = 259  # characters of a file's path, with its drive, without long paths


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """One file of a repository at one commit.

    Attributes:
        size: in bytes.
        etag: name of its blob in the cache: the sha256 of a large file, or the git blob id (a sha1
            over a header and the bytes) of a file kept in git itself.
    """

    repo: str
    commit: str
    name: str
    size: int
    etag: str

    @property
    def sha256(self) -> str:
        """The file's sha256; empty if the Hub does not publish it."""
        return self.etag if re.fullmatch(r"[0-9a-f]{64}", self.etag) else ""


def constants() -> Any:
    """The library's settings; `UsageError` if it cannot use one of the HF_* variables.

    Without its telemetry: to tell the Hub which coding agent runs it, it would ask the Hub for a
    list of agents, in a request that has no bounds. Without its warning of disks that have no
    links, which would be printed into the progress.
    """
    try:
        from huggingface_hub import constants as found
    except ValueError as error:
        what = f"{faulty_variable(error)} cannot be used: {reason(error)}"
        raise UsageError(what, "Correct it, or unset it.") from None
    found.HF_HUB_DISABLE_TELEMETRY = found.HF_HUB_DISABLE_SYMLINKS_WARNING = True
    return found


def faulty_variable(error: Exception) -> str:
    """The variable of the library whose value `error` quotes, or else all that are set."""
    given = [name for name in sorted(os.environ) if name.startswith("HF_") and os.environ[name]]
    quoted = [name for name in given if repr(os.environ[name]) in str(error)]
    return quoted[0] if len(quoted) == 1 else f"one of {' and '.join(given)}"


def cache_folder() -> Path:
    """The Hub cache's folder, as set by ``HF_HUB_CACHE`` and ``HF_HOME``."""
    return Path(constants().HF_HUB_CACHE).absolute()  # absolute, as in the records of pairs


def repo_folder(repo: str) -> Path:
    """The cache's folder of `repo`, in any case, by its own name; it may not exist.

    On disks that ignore case the folder is there under any, and paths in records have its own.
    """
    folder = cache_folder() / ("models--" + repo.replace("/", "--"))
    with contextlib.suppress(OSError):
        names = [each.name for each in folder.parent.iterdir()]
        if folder.name not in names:
            alike = (name for name in names if name.lower() == folder.name.lower())
            return folder.with_name(next(alike, folder.name))
    return folder


def repo_folders() -> list[Path]:
    """The cache's folders of all repositories."""
    return sorted(cache_folder().glob("models--*"))


def repo_of(folder: Path) -> str:
    """A repository's name by its folder; of names with two hyphens, one that has this folder."""
    return folder.name.removeprefix("models--").replace("--", "/")


def blob_path(file: RemoteFile) -> Path:
    """The path of the file's bytes in the cache."""
    return repo_folder(file.repo) / "blobs" / file.etag


def snapshot_path(file: RemoteFile) -> Path:
    """The path of the file's name in the cache, a link to its bytes."""
    return repo_folder(file.repo) / "snapshots" / file.commit / file.name


def etag_of(path: Path) -> str:
    """The etag of a file in the cache, from its link; empty where the cache has no links.

    The blob may itself link to bytes that all repositories share, under another hash.
    """
    try:
        return path.readlink().name
    except OSError:
        return ""


def has_blob(file: RemoteFile) -> bool:
    """Whether the cache has all bytes of the file."""
    return folders.regular_size(blob_path(file)) == file.size


def is_here(file: RemoteFile) -> bool:
    """Whether the cache has the complete file; without links, its name holds the bytes."""
    pointer = snapshot_path(file)
    plain = not pointer.is_symlink()
    return has_blob(file) or (plain and folders.regular_size(pointer) == file.size)


def delete_blob(file: RemoteFile) -> int:
    """Delete the file's bytes if they are there; return the bytes that this frees.

    Bytes that repositories share stay until none links to them, as the library counts.
    """
    from huggingface_hub.utils import _shared_blobs

    blob = blob_path(file)
    shared = _shared_blobs.shared_blob_target(blob, cache_folder())
    freed = 0 if blob.is_symlink() else folders.regular_size(blob) or 0
    blob.unlink(missing_ok=True)
    if shared is not None:
        freed += _shared_blobs.sweep_shared_blob(shared, cache_dir=cache_folder())
    return freed


@contextlib.contextmanager
def locked(
    file: RemoteFile, retries: RetryPolicy, on_wait: Callable[[], None] = lambda: None
) -> Iterator[None]:
    """Hold the library's own lock on the file's blob; `Cancelled` if the user stops the wait.

    `on_wait` is called a few times a second while another process holds the lock.
    """
    from filelock import Timeout
    from huggingface_hub.utils import WeakFileLock  # type: ignore[attr-defined]

    lock = cache_folder() / ".locks" / repo_folder(file.repo).name / f"{file.etag}.lock"
    lock.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as held:
        while True:
            retries.check()
            try:
                held.enter_context(WeakFileLock(lock, timeout=0.2))
                break
            except Timeout:
                on_wait()
        yield


def prepare(file: RemoteFile) -> None:
    """Make the cache's folders for `file`; on Windows, a name that may be too long is tried.

    Raises:
        HubError: a link in the cache leads out of it.
        OSError: a folder cannot be made, or a name of this length cannot be in it.
    """
    own = folders.real(repo_folder(file.repo))
    for folder in (blob_path(file).parent, snapshot_path(file).parent):
        if not folders.real(folder).is_relative_to(own):
            raise HubError(f"{folder} is a link that leads out of the cache", "Remove that link.")
        folder.mkdir(parents=True, exist_ok=True)
    pointer = snapshot_path(file)
    if sys.platform == "win32" and len(str(pointer)) > LONGEST_ON_WINDOWS:
        tried = pointer.with_name(os.urandom(128).hex()[: len(pointer.name)])
        os.close(os.open(tried, os.O_CREAT | os.O_TEMPORARY))  # which removes it, come what may
    # As the library does, so that backups may skip the cache (https://bford.info/cachedir/).
    with contextlib.suppress(OSError), (cache_folder() / "CACHEDIR.TAG").open("x") as tag:
        tag.write("Signature: 8a477f597d28d172789f06886806bc55\n")


def publish(file: RemoteFile, complete: Path | None, revision: str) -> None:
    """Put a verified file where the library and llama.cpp look for it, under `revision`.

    `complete` holds its bytes, which are moved; None if the blob is there already.
    """
    blob = blob_path(file)
    if complete is not None:
        complete.replace(blob)
    _link(snapshot_path(file), blob, alone=complete is not None)
    note_revision(file, revision)


def note_revision(file: RemoteFile, revision: str) -> None:
    """Record that `revision`, a branch or a tag, points to the file's commit.

    All who use the cache may read it, as far as its folder lets them.
    """
    if revision == file.commit:
        return
    ref = repo_folder(file.repo) / "refs" / revision
    with contextlib.suppress(OSError, ValueError):
        if ref.read_text(encoding="ascii") == file.commit:
            return
    ref.parent.mkdir(parents=True, exist_ok=True)
    write_whole(ref, file.commit)
    with contextlib.suppress(OSError):  # a file system without permissions
        ref.chmod(ref.parent.stat().st_mode & 0o666)


def _link(pointer: Path, blob: Path, *, alone: bool) -> None:
    """Make `pointer` a link to `blob`; without links, a copy, or the `blob` moved if `alone`."""
    from huggingface_hub.file_download import _create_symlink

    pointer.parent.mkdir(parents=True, exist_ok=True)  # `rm` of another file may have taken it away
    _create_symlink(str(blob), str(pointer), new_blob=alone)


def free_bytes(folder: Path) -> int:
    """Free bytes on the disk of `folder`, which may not exist yet."""
    for place in (folder, *folder.parents):
        with contextlib.suppress(OSError):  # missing, or in a folder without access
            return shutil.disk_usage(place).free
    return 0


def find(reference: Reference) -> list[Path]:
    """Find all parts of the model that `reference` means; empty if any is missing in the cache."""
    for files in _cached(reference):
        with contextlib.suppress(NotOnHub):
            return [files[name] for name in repository_files.choose(files, reference)]
    return []


def find_head(reference: Reference) -> Path | None:
    """Find the head that a repository named as a draft gives, by its name; None without one."""
    for files in _cached(reference):
        sizes = {name: path.stat().st_size for name, path in files.items()}
        model = repository_files.first_file(files, reference)
        for kind in HEADS:
            names = repository_files.heads(
                sizes, kind, model=model, quant=reference.quant, far=False
            )
            if names:
                return files[names[0]]
    return None


def _cached(reference: Reference) -> Iterator[dict[str, Path]]:
    """The GGUF files of each snapshot that a reference may mean, by their names."""
    for snapshot in _snapshots(repo_folder(reference.repo), reference.revision):
        with contextlib.suppress(OSError):  # it cannot be read
            paths = [
                path for path in sorted(snapshot.rglob(folders.ANY_GGUF)) if folders.is_file(path)
            ]
            yield {path.relative_to(snapshot).as_posix(): path for path in paths}


def _snapshots(folder: Path, revision: str) -> list[Path]:
    """List a repository's snapshots: those of `revision`; without any, main's, then the newest."""
    commit, branch = revision, folder / "refs" / (revision or "main")
    with contextlib.suppress(OSError, ValueError):
        if folders.is_file(branch):  # reading a pipe would never end
            commit = branch.read_text(encoding="ascii").strip()
    known = re.fullmatch(r"[0-9a-f]{7,40}", commit) is not None
    try:
        found = sorted((folder / "snapshots").glob("*"), key=lambda path: -path.lstat().st_mtime)
    except OSError:  # the cache cannot be read
        return []
    named = [path for path in found if known and path.name.startswith(commit)]
    return named if revision else named + [path for path in found if path not in named]
