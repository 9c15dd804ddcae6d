"""Downloads one file without losing data: resumed, verified, and published as a whole.

The bytes go to ``<blob>.part.incomplete`` next to their final place. Every new attempt, in this
process or a later one, hashes the bytes on disk and requests the rest. Only when size and hash are
right is the file moved to where it counts as a model.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import stat
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from localspec import formats
from localspec.errors import DownloadCorrupt, HubError, NotEnoughDisk
from localspec.pairs.disk import folders
from localspec.pairs.hub import cache as hub_cache
from localspec.pairs.hub import client as hub
from localspec.pairs.hub.cache import RemoteFile
from localspec.pairs.hub.retries import (
    CONTINUES,
    RetryPolicy,
    TransferInterrupted,
    Unreachable,
    retried,
)

PART_ENDING: Final = ".part.incomplete"  # the library's tools clean up names ending in .incomplete
# Bytes of one request: for files of more than 50 GB, the Hub's storage may refuse to send all
# (status 400) and still serve ranges.
MOST_AT_ONCE: Final = 32_000_000_000
_LONGEST_FOLDER: Final = hub_cache.LONGEST_ON_WINDOWS - 12  # so that a short name fits in it
_HASH_BLOCK: Final = 1 << 20
_PUSH_EVERY: Final = 8 << 20
_REPORT_EVERY_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class FileProgress:
    """Progress of one file; `etag` distinguishes files of the same name in two repositories.

    Attributes:
        phase: ``waiting`` (for another process), ``checking`` (hashing bytes on disk),
            ``fetching``, ``pausing`` (before another attempt: `note` says when and why), ``done``.
        done: bytes on disk; while checking, those that were checked.
        fetched: bytes received over the network in this process.
    """

    name: str
    etag: str
    phase: str
    done: int
    size: int
    fetched: int
    note: str = ""


def part_path(file: RemoteFile) -> Path:
    """The path of the file's bytes while they are incomplete."""
    blob = hub_cache.blob_path(file)
    return blob.with_name(blob.name + PART_ENDING)


def part_size(file: RemoteFile) -> int:
    """Bytes left by an earlier attempt, at most the file's size."""
    return min(folders.regular_size(part_path(file)) or 0, file.size)


def have(file: RemoteFile) -> int:
    """Bytes of the file on this disk."""
    return file.size if hub_cache.is_here(file) else part_size(file)


def read_part(file: RemoteFile, offset: int, size: int) -> bytes:
    """Read bytes left by an earlier attempt; they are not verified, and may be fewer."""
    if part_size(file):  # 0 for a named pipe, whose reading would never end
        with contextlib.suppress(OSError), part_path(file).open("rb") as part:
            part.seek(offset)
            return part.read(size)
    return b""


def fetch(
    file: RemoteFile,
    revision: str,
    retries: RetryPolicy,
    report: Callable[[FileProgress], None],
    *,
    fetched: Callable[[RemoteFile], None] = lambda _: None,
) -> Path:
    """Download `file` into the Hub cache; return its path there.

    If two processes fetch the same file, the second waits and finds it done. `fetched` is called
    by the first, once the file is published and before another process gets hold of it.

    Raises:
        DownloadCorrupt: the bytes are not those promised; they were deleted.
        NotEnoughDisk: the disk is full; received bytes are kept.
        HubError: the Hub or the network fails for longer than `retries`.
        Cancelled: the user stopped it; received bytes are kept.
    """
    hub.require_safe(file)
    fetching = _Fetching(file, retries, report)
    pointer = hub_cache.snapshot_path(file)
    try:
        # Existing files are hashed too: a name may link elsewhere, and a disk may err.
        if fetching.holds(pointer):
            with contextlib.suppress(OSError):  # a cache of another user may be read-only
                hub_cache.note_revision(file, revision)
        else:
            hub_cache.prepare(file)
            with hub_cache.locked(file, retries, lambda: fetching.tell("waiting")):
                here = fetching.holds(hub_cache.blob_path(file))
                hub_cache.publish(file, None if here else fetching.run(), revision)
                if not here:
                    fetched(file)
    except OSError as error:
        raise _disk_error(file, error) from None
    fetching.tell("done", file.size)
    return pointer


def _disk_error(file: RemoteFile, error: OSError) -> HubError:
    kept = f"{formats.size(part_size(file))} of {file.name} ({formats.size(file.size)}) are kept"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):  # disk, quota
        return NotEnoughDisk(f"the disk is full: {kept}", f"Make room. {CONTINUES}")
    if error.errno == errno.EFBIG:  # as on FAT32 from 4 GB
        raised = "" if os.name == "nt" else ", or allow larger files (ulimit -f)"
        other = f"Set HF_HOME to a folder on a disk of another format{raised}."
        return NotEnoughDisk(f"no file may be as large on this disk: {kept}", other)
    windows = os.name == "nt"  # it says only that the path was not found
    if error.errno == errno.ENAMETOOLONG or (
        windows and error.errno == errno.ENOENT and len(str(error.filename)) > _LONGEST_FOLDER
    ):
        what = f"the name of {file.name} in {hub_cache.cache_folder()} is too long for"
        if windows:
            short = "Set HF_HOME to a short folder such as C:\\hf, or enable long paths."
            return HubError(f"{what} Windows", short)
        return HubError(f"{what} this disk", "Set HF_HOME to a folder on another disk.")
    where = f"{file.name} cannot be written to {hub_cache.cache_folder()}"
    remedy = "Check the folder's permissions, or set HF_HOME to another."
    return HubError(f"{where}: {error.strerror or error}", remedy)


class _Fetching:
    """One file in transfer: what is on disk, its running hash, and progress reports."""

    def __init__(
        self, file: RemoteFile, retries: RetryPolicy, report: Callable[[FileProgress], None]
    ) -> None:
        self._file, self._retries, self._report = file, retries, report
        self._done, self._fetched, self._told = part_size(file), 0, 0.0

    def tell(self, phase: str, done: int | None = None, note: str = "", pause: float = 0) -> None:
        """Report progress, unless the last report is less than `pause` seconds old."""
        now, file = time.monotonic(), self._file
        if now - self._told >= pause:
            self._told = now
            done = self._done if done is None else done
            one = FileProgress(file.name, file.etag, phase, done, file.size, self._fetched, note)
            self._report(one)

    def holds(self, path: Path) -> bool:
        """Whether `path` is the complete file, by its size and hash."""
        if folders.regular_size(path) == self._file.size:
            with contextlib.suppress(OSError), path.open("rb", buffering=0) as file:
                return bool(self._hash(file).hexdigest() == self._file.etag)
        return False

    def run(self) -> Path:
        """Fetch the missing bytes; return the complete, verified part file."""
        path = part_path(self._file)
        with open(path, "a+b", buffering=0, opener=_open_safely) as part:
            if not stat.S_ISREG(os.fstat(part.fileno()).st_mode):
                raise HubError(f"{path} is not a file", "Delete it and run the same command again.")
            if part.tell() > self._file.size:
                part.truncate(0)
            _cut_zeros(part, self._retries.check)
            digest = self._hash(part)
            self._done = part.tell()
            self.tell("fetching")
            retried(
                lambda: self._fetch_rest(part, digest),
                self._retries,
                (TransferInterrupted, Unreachable),
                lambda: self._done,
                lambda why: self.tell("pausing", note=why),
            )
            os.fsync(part.fileno())
        if digest.hexdigest() != self._file.etag:
            path.unlink()
            raise DownloadCorrupt(
                f"the bytes of {self._file.name} are not those that the Hub promised"
                " (their hash is wrong); they were thrown away",
                "Run the same command again; if it happens twice, look at proxies in between.",
            )
        return path

    def _hash(self, file: Any) -> Any:
        """Read an open file from its start to its end; return the running hash."""
        # Git's own hash, used for files kept in git, does not protect against malice, but the Hub
        # publishes no other.
        git = b"" if self._file.sha256 else b"blob %d\0" % self._file.size
        digest = hashlib.sha1(git, usedforsecurity=False) if git else hashlib.sha256()
        self.tell("checking", 0)
        file.seek(0)
        while block := file.read(_HASH_BLOCK):
            self._retries.check()
            digest.update(block)
            self.tell("checking", file.tell(), pause=_REPORT_EVERY_S)
        return digest

    def _fetch_rest(self, part: Any, digest: Any) -> None:
        def keep(piece: bytes) -> bool:
            new = memoryview(piece)[: self._file.size - self._done]
            digest.update(new)
            while new:
                written = part.write(new)
                _push_out(part.fileno(), self._done, self._done + written)
                self._done += written
                self._fetched += written
                new = new[written:]
            return self._done < self._file.size

        while self._done < self._file.size:
            stop = min(self._done + MOST_AT_ONCE, self._file.size)
            tick = partial(self.tell, "fetching")
            hub.receive_file(self._file, self._retries, keep, self._done, stop, tick=tick)
            if self._done < stop:
                raise TransferInterrupted("the connection broke off")


def _open_safely(path: str, flags: int) -> int:
    """Open without following a link, and without waiting for the other end of a named pipe."""
    safely = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    return os.open(path, flags | safely, 0o666)


def _cut_zeros(part: Any, check: Callable[[], None]) -> None:
    """Cut zeros off the end of a file, which are fetched again; `check` may raise meanwhile.

    After a power cut, NTFS and exFAT have them in place of bytes that never reached the disk.
    """
    end, block = os.fstat(part.fileno()).st_size, b""
    while end and not block:
        check()
        begin = max(0, end - _HASH_BLOCK)
        part.seek(begin)
        block = part.read(end - begin).rstrip(b"\0")
        end = begin + len(block)
    part.truncate(end)


def _push_out(handle: int, begin: int, end: int) -> None:
    """Make Linux write to the disk now and then, so that the last fsync is short.

    Declaring the bytes unneeded starts the write; only bytes already on disk leave the memory.
    """
    if begin // _PUSH_EVERY < end // _PUSH_EVERY and hasattr(os, "posix_fadvise"):
        begin -= begin % _PUSH_EVERY
        with contextlib.suppress(OSError):  # some file systems do not support it
            os.posix_fadvise(handle, begin, end - begin, os.POSIX_FADV_DONTNEED)
