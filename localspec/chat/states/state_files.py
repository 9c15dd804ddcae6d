"""Files of what the caches held of stored conversations, to go on without reading them again.

One file for a conversation and the models that read it. Its header has a digest of its own, and
one of what follows: wrong ids would make wrong answers. What is no such file is put aside.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import msgspec
from msgspec import Struct

from localspec import private

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

STATES = "states"
"""The folder beside the stored conversations."""

_MAGIC = b"localspec state 1\n"
_ENDING, _ASIDE = ".state", ".damaged"
_LARGEST = 1 << 30  # bytes of a file: more take longer to write than anybody waits at the end
_MOST = 4 << 30  # of all of them
_SHARE = 0.1  # of what is free on the disk
_MOST_HEADER = 1 << 28


class StateHeader(Struct, frozen=True):
    """What a file holds.

    Attributes:
        made_by: the models and how they ran.
        known: the text behind the ids, as `KnownIds.packed` gives it.
        tokens: the ids in each cache, the target's first.
        sizes: bytes of each cache's state.
        digest: of these bytes.
    """

    made_by: str
    known: bytes
    tokens: list[list[int]]
    sizes: list[int]
    digest: bytes


class StateFiles:
    """The files of one set of models.

    Args:
        folder: made where it is missing; its files are the user's own.
        made_by: the models and how they run: what others made is of no use.
    """

    def __init__(self, folder: Path, made_by: str) -> None:
        self._folder = folder
        self._made_by = made_by

    def save(
        self,
        name: str,
        known: bytes,
        tokens: Sequence[Sequence[int]],
        states: Sequence[NDArray[np.uint8]],
    ) -> None:
        """Keep the caches of a conversation; what was not used for longest makes room.

        Without room, or where the folder cannot be written, nothing is kept.

        Args:
            name: of the conversation.
            known: as `StateHeader` has it.
            tokens: as `StateHeader` has them.
            states: of the caches.
        """
        sizes = [len(state) for state in states]
        if not all(sizes) or sum(sizes) > _LARGEST:
            return
        digest = hashlib.sha256()
        for state in states:
            digest.update(state.data)
        header = StateHeader(self._made_by, known, [*map(list, tokens)], sizes, digest.digest())
        packed = msgspec.msgpack.encode(header)
        with suppress(OSError):
            private.make_folder(self._folder)
            self._make_room(sum(sizes))
            with private.whole_file(self._path(name)) as file:
                file.write(_MAGIC + len(packed).to_bytes(4, "little"))
                file.write(hashlib.sha256(packed).digest() + packed)
                for state in states:
                    file.write(state.data)

    def find(self, name: str) -> StateHeader | None:
        """What is kept of a conversation."""
        try:
            with self._opened(name) as file:
                return self._header(file)
        except FileNotFoundError:
            return None
        except (OSError, ValueError):
            self.put_aside(name)
            return None

    def states(self, name: str, header: StateHeader) -> list[NDArray[np.uint8]]:
        """The caches' contents that `find` has told of; nothing where they are damaged."""
        import numpy as np  # noqa: PLC0415 - whoever only deletes has none

        try:
            with self._opened(name) as file:
                if self._header(file) != header:
                    return []
                found = [np.fromfile(file, np.uint8, size) for size in header.sizes]
            os.utime(self._path(name))
        except (OSError, ValueError, MemoryError):
            return []
        digest = hashlib.sha256()
        for state in found:
            digest.update(state.data)
        return found if digest.digest() == header.digest else []

    def put_aside(self, name: str) -> None:
        """Give a file that is of no use another name; it goes with its conversation."""
        with suppress(OSError):
            self._path(name).replace(self._path(name).with_suffix(_ASIDE))

    def _header(self, file: Any) -> StateHeader:
        """Read a header, and stand behind it.

        Raises:
            ValueError: there is none, or one of other models.
        """
        header = _read_header(file)
        if header.made_by != self._made_by or len(header.sizes) != len(header.tokens):
            raise ValueError("made by other models")
        if sum(header.sizes) != os.fstat(file.fileno()).st_size - file.tell():
            raise ValueError("another length than it says")
        return header

    def _opened(self, name: str) -> BinaryIO:
        """Open a file to read it.

        Raises:
            OSError: there is none that can be read.
            ValueError: it is a pipe or a device, which might never end.
        """
        path = self._path(name)
        if not stat.S_ISREG(path.stat().st_mode):
            raise ValueError("no state")
        return path.open("rb")

    def _path(self, name: str) -> Path:
        models = hashlib.sha256(self._made_by.encode()).hexdigest()[:16]
        return self._folder / f"{checked(name)}.{models}{_ENDING}"

    def _make_room(self, size: int) -> None:
        """Delete the oldest files until there is room for another."""
        taken = sum(n_bytes for _, n_bytes in by_age(self._folder))
        most = min(_MOST, taken + int(_SHARE * shutil.disk_usage(self._folder).free))
        if size > most:
            raise OSError("no room")
        keep_latest(self._folder, most - size)


def keep_latest(folder: Path, most: int) -> None:
    """Delete the oldest files until the others have no more than so many bytes.

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
    """All files with their bytes, the latest last; none where there is no folder. No pipes.

    Raises:
        OSError: it may not be read.
    """
    found = []
    for path in folder.iterdir() if folder.is_dir() else ():
        with suppress(FileNotFoundError):
            about = path.stat()
            if stat.S_ISREG(about.st_mode):  # reading a pipe may never end
                found.append((about.st_mtime_ns, path, about.st_size))
    return [(path, size) for _, path, size in sorted(found)]


def forget_models(folder: Path, marks: Collection[str]) -> int:
    """Delete the files of models in whose description one of these texts stands.

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
    """Which models a file says it is of; empty where it says nothing that can be read."""
    try:
        with path.open("rb") as file:
            return _read_header(file).made_by
    except (OSError, ValueError):
        return ""


def _read_header(file: BinaryIO) -> StateHeader:
    """Read a header that is what was written.

    Raises:
        ValueError: there is none, or a damaged one.
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
        beginnings = (f"{checked(name)}.", f".{name}.")  # the latter while a file is written
        for path in folder.iterdir():
            if path.name.startswith(beginnings):
                path.unlink(missing_ok=True)


def checked(name: str) -> str:
    """A conversation's id, which is the name of a file; others come from a damaged store.

    Raises:
        OSError: it is none.
    """
    if not (name.isascii() and name.isalnum()):
        raise OSError(f"no name of a file: {name!r}")
    return name
