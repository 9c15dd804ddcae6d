"""Fetching one file so that nothing is lost: resumed, verified, and published whole.

The bytes go to ``<blob>.part.incomplete`` beside their final place. Every new attempt, in
this process or in a later one, hashes what is there and asks for the rest. Only when size and
hash are right is the file moved to where it can be taken for a model.
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
from pathlib import Path
from typing import Any, Final

from localspec import formats
from localspec.errors import DownloadCorrupt, HubError, NotEnoughDisk
from localspec.pairs.hub import cache as hub_cache
from localspec.pairs.hub import client as hub
from localspec.pairs.hub.client import RemoteFile
from localspec.pairs.hub.patience import CONTINUES, Interrupted, Patience, Unreachable

# The library's tools list and clean up what ends in .incomplete.
PART_ENDING: Final = ".part.incomplete"
_HASH_BLOCK: Final = 1 << 20
_PUSH_EVERY: Final = 8 << 20
_MUCH: Final = 16 << 20
_LITTLE: Final = 1 << 16  # an attempt that brings no more is one in vain
_REPORT_EVERY_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class FileProgress:
    """How far one file has come.

    Attributes:
        etag: tells apart files of the same name in two repositories.
        phase: ``waiting`` (for another process), ``checking`` (hashing what was there),
            ``fetching``, ``pausing`` (before another attempt) or ``done``.
        done: bytes on disk; while checking, those that were checked.
        fetched: bytes that came over the network in this process.
        note: why there is a pause, else empty.
    """

    name: str
    etag: str
    phase: str
    done: int
    size: int
    fetched: int
    note: str = ""


def part_path(file: RemoteFile) -> Path:
    """Give the place of the file's bytes while they are not complete."""
    blob = hub_cache.blob_path(file)
    return blob.with_name(blob.name + PART_ENDING)


def part_size(file: RemoteFile) -> int:
    """Give the bytes that an earlier attempt has left, at most the file's size."""
    try:
        found = part_path(file).stat()
    except OSError:
        return 0
    return min(found.st_size, file.size) if stat.S_ISREG(found.st_mode) else 0


def have(file: RemoteFile) -> int:
    """Give the bytes of the file that are on this disk."""
    return file.size if hub_cache.is_here(file) else part_size(file)


def read_part(file: RemoteFile, offset: int, size: int) -> bytes:
    """Read bytes that an earlier attempt has left; they are not verified, and may be fewer."""
    if not part_size(file):  # a pipe would never be read to its end
        return b""
    try:
        with part_path(file).open("rb") as part:
            part.seek(offset)
            return part.read(size)
    except OSError:
        return b""


def fetch(
    file: RemoteFile, revision: str, patience: Patience, report: Callable[[FileProgress], None]
) -> Path:
    """Have `file` in the Hub cache, and return its path there.

    Two processes that fetch the same file take turns: the second finds it done.

    Raises:
        DownloadCorrupt: the bytes are not those promised; they were thrown away.
        NotEnoughDisk: the disk is full; what came so far is kept.
        HubError: the Hub or the network fails for longer than `patience`.
        Cancelled: the user wants to stop; what came so far is kept.
    """
    hub.require_safe(file)
    fetching = _Fetching(file, patience, report)
    pointer = hub_cache.snapshot_path(file)
    try:
        # Whatever is found is hashed: a name may lead elsewhere, and a disk may lie.
        if fetching.holds(pointer):
            with contextlib.suppress(OSError):  # a cache that others own may be read only
                hub_cache.note_revision(file, revision)
        else:
            hub_cache.prepare(file)
            with hub_cache.locked(file, patience, lambda: fetching.tell("waiting")):
                here = fetching.holds(hub_cache.blob_path(file))
                hub_cache.publish(file, None if here else fetching.run(), revision)
    except OSError as error:
        raise _disk_error(file, error) from None
    fetching.tell("done", file.size)
    return pointer


def _disk_error(file: RemoteFile, error: OSError) -> HubError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):  # disk, quota, largest file
        kept = formats.size(part_size(file))
        return NotEnoughDisk(
            f"the disk is full: {kept} of {file.name} ({formats.size(file.size)}) are kept",
            "Make room, then run the same command again: it continues where it stopped.",
        )
    return HubError(
        f"{file.name} cannot be written to {hub_cache.cache_folder()}: {error.strerror or error}",
        "Check the folder's permissions, or set HF_HOME to another.",
    )


class _Fetching:
    """One file on its way: what is on disk, its running hash, and how often it was tried."""

    def __init__(
        self, file: RemoteFile, patience: Patience, report: Callable[[FileProgress], None]
    ) -> None:
        self._file = file
        self._patience = patience
        self._report = report
        self._done = part_size(file)
        self._fetched = 0
        self._told = 0.0

    def tell(self, phase: str, done: int | None = None, note: str = "") -> None:
        """Report progress, at once."""
        done = self._done if done is None else done
        self._told = time.monotonic()
        file = self._file
        self._report(
            FileProgress(file.name, file.etag, phase, done, file.size, self._fetched, note)
        )

    def holds(self, path: Path) -> bool:
        """Tell whether `path` is the whole file: its size and its hash are right."""
        try:
            found = path.stat()
            if not stat.S_ISREG(found.st_mode) or found.st_size != self._file.size:
                return False
            with path.open("rb", buffering=0) as file:
                digest, _ = self._hash(file.fileno())
        except OSError:
            return False
        return bool(digest.hexdigest() == self._file.etag)

    def run(self) -> Path:
        """Fetch what is missing; return the complete, verified part file."""
        path = part_path(self._file)
        flags = os.O_RDWR | os.O_CREAT
        for more in ("O_NOFOLLOW", "O_BINARY", "O_NONBLOCK"):
            flags |= getattr(os, more, 0)
        handle = os.open(path, flags, 0o666)
        try:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                raise HubError(f"{path} is no file", "Delete it, and run the same command again.")
            digest = self._hash_what_is_there(handle)
            self._fetch_rest(handle, digest)
            os.fsync(handle)
        finally:
            os.close(handle)
        if digest.hexdigest() != self._file.etag:
            path.unlink()
            raise DownloadCorrupt(
                f"the bytes of {self._file.name} are not those that the Hub promised"
                " (their hash is wrong); they were thrown away",
                "Run the same command again; if it happens twice, look at proxies in between.",
            )
        return path

    def _hash_what_is_there(self, handle: int) -> Any:
        if os.fstat(handle).st_size > self._file.size:
            os.ftruncate(handle, 0)
        digest, self._done = self._hash(handle)
        self.tell("fetching")
        return digest

    def _hash(self, handle: int) -> tuple[Any, int]:
        """Hash an open file to its end; return the running hash, and how many bytes there are."""
        self.tell("checking", 0)
        digest, done = new_digest(self._file), 0
        while block := os.read(handle, _HASH_BLOCK):
            self._patience.check()
            digest.update(block)
            done += len(block)
            if time.monotonic() - self._told > _REPORT_EVERY_S:
                self.tell("checking", done)
        return digest, done

    def _fetch_rest(self, handle: int, digest: Any) -> None:
        pauses = self._patience.pauses
        failures = barren = 0
        while self._done < self._file.size:
            before = self._done
            try:
                self._fetch_once(handle, digest)
            except (Interrupted, Unreachable) as error:
                # Pauses grow until much has come; we give up only when nothing comes at all.
                failures = 0 if self._done - before > _MUCH else failures + 1
                barren = 0 if self._done - before > _LITTLE else barren + 1
                if barren > len(pauses):
                    raise
                self.tell("pausing", note=error.message)
                self._patience.wait(self._patience.pause_after(error, max(0, failures - 1)))

    def _fetch_once(self, handle: int, digest: Any) -> None:
        self._patience.check()
        with hub.open_body(self._file, self._patience, self._done) as body:
            os.lseek(handle, self._done, os.SEEK_SET)
            here = self._done - body.start  # a server that knows no ranges begins at 0
            for piece in body:
                new = memoryview(piece)[here : here + self._file.size - self._done]
                here = max(0, here - len(piece))
                self._keep(handle, new, digest)
                if self._done == self._file.size:
                    return
        raise Interrupted("the connection broke off", CONTINUES)

    def _keep(self, handle: int, piece: memoryview, digest: Any) -> None:
        """Write and hash what came."""
        left = piece
        while left:
            left = left[os.write(handle, left) :]
        digest.update(piece)
        _push_out(handle, self._done, self._done + len(piece))
        self._done += len(piece)
        self._fetched += len(piece)
        if time.monotonic() - self._told > _REPORT_EVERY_S:
            self.tell("fetching")


def new_digest(file: RemoteFile) -> Any:
    """Start the hash whose end must be the file's etag."""
    if file.sha256:
        return hashlib.sha256()
    # A file kept in git itself is named by git's own hash, which is no protection against
    # malice; there is no other.
    return hashlib.sha1(b"blob %d\0" % file.size, usedforsecurity=False)


def _push_out(handle: int, begin: int, end: int) -> None:
    """Have the system write to the disk already, now and then, so that fsync finds little to do.

    The advice that the bytes will not be needed does that on Linux. It drops from memory only
    what is on the disk by then, which the newest bytes are not.
    """
    if begin // _PUSH_EVERY < end // _PUSH_EVERY and hasattr(os, "posix_fadvise"):
        begin -= begin % _PUSH_EVERY
        with contextlib.suppress(OSError):  # some file systems take no advice
            os.posix_fadvise(handle, begin, end - begin, os.POSIX_FADV_DONTNEED)
