"""Files with the cache states of stored conversations, so that a prompt is not read again.

There is one file per conversation and set of models. Its header and its states each have a digest,
because wrong ids would produce wrong answers. A damaged or foreign file is renamed, not used.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from io import BufferedReader
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeAlias

import msgspec
from msgspec import Struct

from localspec import machine, private

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from localspec.engine.cancel import Cancel

STATES = "states"
"""The name of a folder next to the stored conversations."""

StoreProgress: TypeAlias = Callable[[float], None]
"""Receives the share that is done, from 0 to 1."""

_MAGIC = b"localspec state 1\n"
_ENDING, _ASIDE = ".state", ".damaged"
_PIECE = 1 << 24  # bytes that are hashed or written between two signs of progress
_LARGEST = 1 << 30  # bytes of a file: a larger one would delay the exit for too long
_MOST = 4 << 30  # bytes of all files
_SHARE = 0.1  # of the free disk space
_MOST_HEADER = 1 << 28


class StateHeader(Struct, frozen=True):
    """The header of a state file.

    Attributes:
        made_by: describes the models and how they ran.
        known: the rendered text and its ids, as `KnownIds.packed` returns them.
        tokens: the ids in each cache, the target's first.
        sizes: bytes of each cache's state.
        digest: SHA-256 of all states.
        joined: describes draft models that were loaded later, whose caches come last; empty if
            there are none.
    """

    made_by: str
    known: bytes
    tokens: list[list[int]]
    sizes: list[int]
    digest: bytes
    joined: str = ""


class StateFiles:
    """The state files of one set of models.

    Args:
        folder: created if it is missing; only the user can read its files.
        made_by: describes the models and how they run; files with another description are not used.
    """

    def __init__(self, folder: Path, made_by: str) -> None:
        self._folder = folder
        self._made_by = made_by

    def fits(self, size: int) -> bool:
        """Whether one file may hold `size` bytes of states; the disk may still have no room."""
        return size <= _LARGEST

    def save(
        self,
        name: str,
        known: bytes,
        tokens: Sequence[Sequence[int]],
        states: Sequence[NDArray[np.uint8]],
        *,
        joined: str = "",
        progress: StoreProgress = lambda _share: None,
    ) -> bool:
        """Write the caches of a conversation; the least recently used files make room.

        Args:
            name: the conversation's id.
            known: as in `StateHeader`.
            tokens: as in `StateHeader`.
            states: one per cache, the target's first.
            joined: as in `StateHeader`.
            progress: receives the share that is done, again and again.

        Returns:
            False if there is no room, or the folder is not writable; nothing is written then.
        """
        sizes = [len(state) for state in states]
        if not all(sizes) or not self.fits(sum(sizes)):
            return False
        digest = hashlib.sha256()
        for piece in _pieces(states, lambda share: progress(share / 2)):
            digest.update(piece)
        ids = [list(each) for each in tokens]
        header = StateHeader(self._made_by, known, ids, sizes, digest.digest(), joined)
        packed = msgspec.msgpack.encode(header)
        with suppress(OSError):
            private.make_folder(self._folder)
            self._make_room(sum(sizes))
            with private.whole_file(self._path(name)) as file:
                file.write(_MAGIC + len(packed).to_bytes(4, "little"))
                file.write(hashlib.sha256(packed).digest() + packed)
                for piece in _pieces(states, lambda share: progress((1 + share) / 2)):
                    file.write(piece)
            return True
        return False

    def find(self, name: str) -> StateHeader | None:
        """Read the header of a conversation's file; None if there is no usable file."""
        try:
            with self._opened(name) as file:
                return self._header(file)
        except FileNotFoundError:
            return None
        except (OSError, ValueError):
            self._put_aside(name)
            return None

    def states(self, name: str, header: StateHeader, cancel: Cancel) -> list[NDArray[np.uint8]]:
        """Read the states that `find` announced; an empty list if they cannot be read now.

        A file whose states are damaged is put aside.

        Raises:
            Cancelled: `cancel` was set.
        """
        digest = hashlib.sha256()
        try:
            with self._opened(name) as file:
                if self._header(file) != header:
                    return []
                found = [machine.block(size) for size in header.sizes]
                for piece in _pieces(found, lambda _share: cancel.check()):
                    file.readinto(piece)
                    digest.update(piece)
            os.utime(self._path(name))
        except (OSError, ValueError, MemoryError):
            return []
        if digest.digest() == header.digest:
            return found
        self._put_aside(name)
        return []

    def _put_aside(self, name: str) -> None:
        """Rename an unusable file; it is deleted with its conversation."""
        with suppress(OSError):
            self._path(name).replace(self._path(name).with_suffix(_ASIDE))

    def _header(self, file: Any) -> StateHeader:
        """Read a header and check that it fits these models and the file's length.

        Raises:
            ValueError: there is no header, it belongs to other models, or the length differs.
        """
        header = _read_header(file)
        if header.made_by != self._made_by or len(header.sizes) != len(header.tokens):
            raise ValueError("made by other models")
        if sum(header.sizes) != os.fstat(file.fileno()).st_size - file.tell():
            raise ValueError("another length than it says")
        return header

    def _opened(self, name: str) -> BufferedReader:
        """Open a file for reading.

        Raises:
            OSError: the file is missing or cannot be read.
            ValueError: it is a pipe or a device, whose reading might never end.
        """
        path = self._path(name)
        if not stat.S_ISREG(path.stat().st_mode):
            raise ValueError("no state")
        return path.open("rb")

    def _path(self, name: str) -> Path:
        models = hashlib.sha256(self._made_by.encode()).hexdigest()[:16]
        return self._folder / f"{checked(name)}.{models}{_ENDING}"

    def _make_room(self, size: int) -> None:
        """Delete the oldest files until `size` bytes fit.

        Raises:
            OSError: they do not fit even then.
        """
        taken = sum(n_bytes for _, n_bytes in by_age(self._folder))
        most = min(_MOST, taken + int(_SHARE * shutil.disk_usage(self._folder).free))
        if size > most:
            raise OSError("no room")
        keep_latest(self._folder, most - size)


def _pieces(states: Sequence[NDArray[np.uint8]], progress: StoreProgress) -> Iterator[memoryview]:
    """The bytes of all states in pieces; `progress` receives the share before each."""
    done, total = 0, sum(map(len, states))
    for state in states:
        for at in range(0, len(state), _PIECE):
            progress(done / total)
            piece = state.data[at : at + _PIECE]
            yield piece
            done += len(piece)


def keep_latest(folder: Path, most: int) -> None:
    """Delete the oldest files until the others have at most `most` bytes.

    Raises:
        OSError: the folder does not allow it.
    """
    files = by_age(folder)
    taken = sum(size for _, size in files)
    for path, size in files:
        if taken <= most:
            break
        taken -= size
        path.unlink(missing_ok=True)


def by_age(folder: Path) -> list[tuple[Path, int]]:
    """Regular files with their sizes in bytes, the oldest first; empty if the folder is missing.

    Raises:
        OSError: the folder cannot be read.
    """
    found = []
    for path in folder.iterdir() if folder.is_dir() else ():
        with suppress(FileNotFoundError):
            about = path.stat()
            if stat.S_ISREG(about.st_mode):  # reading a pipe may never end
                found.append((about.st_mtime_ns, path, about.st_size))
    return [(path, size) for _, path, size in sorted(found)]


def forget_models(folder: Path, marks: Collection[str]) -> int:
    """Delete the files whose models' description contains one of `marks`.

    Returns:
        Bytes freed.
    """
    freed = 0
    with suppress(OSError):
        for path, size in by_age(folder):
            if any(mark in _made_by(path) for mark in marks):
                path.unlink(missing_ok=True)
                freed += size
    return freed


def _made_by(path: Path) -> str:
    """Read the description of a file's models; empty if the file has no readable header."""
    try:
        with path.open("rb") as file:
            header = _read_header(file)
            return header.made_by + header.joined
    except (OSError, ValueError):
        return ""


def _read_header(file: BinaryIO) -> StateHeader:
    """Read a header and check it against its digest.

    Raises:
        ValueError: there is no header, or it is damaged.
    """
    if file.read(len(_MAGIC)) != _MAGIC:
        raise ValueError("no state")
    size = int.from_bytes(file.read(4), "little")
    digest, packed = file.read(32), file.read(min(size, _MOST_HEADER))
    if hashlib.sha256(packed).digest() != digest:
        raise ValueError("a damaged header")
    return msgspec.msgpack.decode(packed, type=StateHeader)


def forget(folder: Path, name: str) -> None:
    """Delete the files of a conversation."""
    with suppress(OSError):
        beginnings = (f"{checked(name)}.", f".{name}.")  # the second while a file is being written
        for path in folder.iterdir():
            if path.name.startswith(beginnings):
                path.unlink(missing_ok=True)


def checked(name: str) -> str:
    """Return a conversation's id if it is safe as a file name; a damaged store may hold others.

    Raises:
        OSError: it is not a safe file name.
    """
    if not (name.isascii() and name.isalnum()):
        raise OSError(f"no name of a file: {name!r}")
    return name
