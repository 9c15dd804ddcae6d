"""The ids of stored conversations, in files, for prompt lookup to copy from in other conversations.

There is one file per conversation and vocabulary. It is rewritten after every answer and deleted
with the conversation. A damaged or foreign file is renamed, not used.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from localspec import private
from localspec.chat.states.state_files import by_age, checked, keep_latest

if TYPE_CHECKING:
    from localspec.engine.drafters.past_texts import Past, TextIds

PAST = "past"
"""The name of a folder next to the stored conversations."""

MOST = 1_000_000
"""Tokens to keep at most; the conversations with the latest answers are kept."""

_MAGIC = b"localspec past 1\n"
_ENDING, _ASIDE = ".past", ".damaged"
_HEAD = len(_MAGIC) + 4  # bytes before the tokens
_LARGEST = _HEAD + 4 * MOST  # bytes of a file
_SAMPLE = 1024


class KnownPieces(Protocol):
    """The part of a model that identifies its vocabulary."""

    n_vocab: int

    def piece(self, token: int, *, special: bool = False) -> bytes:
        """The bytes of `token`."""
        ...


class PastStore:
    """The files of one vocabulary.

    Args:
        folder: created if it is missing; only the user can read its files.
        vocabulary: the one the ids belong to.

    Attributes:
        problems: one sentence about all files that were renamed because they could not be used.
    """

    def __init__(self, folder: Path, vocabulary: KnownPieces) -> None:
        self.problems: list[str] = []
        self._folder = folder
        self._n_vocab = vocabulary.n_vocab
        self._ending = f".{_fingerprint(vocabulary)}{_ENDING}"
        self._conversation = ""
        self._known: tuple[int, str] | None = None
        self._past: Past | None = None

    def enter(self, conversation: str) -> None:
        """Switch to this conversation; an empty id means that it is not stored."""
        self._conversation = conversation

    def recall(self) -> Past:
        """The texts of all other conversations; files that have not changed are not read again."""
        from localspec.engine.drafters.past_texts import Past  # noqa: PLC0415 - numpy can wait

        known = self._changed(), self._conversation
        if self._past is None or known != self._known:
            self._past, self._known = Past(self._texts()), known
        return self._past

    def keep(self, tokens: Sequence[int]) -> None:
        """Store all tokens of the conversation, in place of what was stored before.

        Nothing happens if the conversation is not stored or the folder is not writable.
        """
        if not self._conversation:
            return
        import numpy as np  # noqa: PLC0415 - as in `recall`

        data = np.array(tokens[-MOST:], "<i4").tobytes()
        with suppress(OSError):
            alone = self._known == (self._changed(), self._conversation)
            private.make_folder(self._folder)
            name = checked(self._conversation) + self._ending
            with private.whole_file(self._folder / name) as file:
                file.write(_MAGIC + zlib.crc32(data).to_bytes(4, "little") + data)
            keep_latest(self._folder, _LARGEST)
            if alone:  # the other conversations have not changed
                self._known = self._changed(), self._conversation

    def _changed(self) -> int:
        try:
            return self._folder.stat().st_mtime_ns
        except OSError:
            return 0

    def _texts(self) -> list[TextIds]:
        """Read all stored texts, the latest last; unreadable files are skipped."""
        found: list[TextIds] = []
        own = self._conversation + self._ending
        with suppress(OSError):
            for path, size in by_age(self._folder):
                if path.name.endswith(self._ending) and path.name != own:
                    with suppress(OSError):  # deleted meanwhile
                        found += self._text(path, min(size, _LARGEST))
        return found

    def _text(self, path: Path, size: int) -> list[TextIds]:
        """Read a file of `size` bytes: one text, or none if the file had to be renamed."""
        import numpy as np  # noqa: PLC0415 - as in `recall`

        with path.open("rb") as file:
            data = file.read(size)
        head, ids = data[:_HEAD], data[_HEAD:]
        if head == _MAGIC + zlib.crc32(ids).to_bytes(4, "little") and len(ids) % 4 == 0:
            found = np.frombuffer(ids, "<i4").astype(np.int32, copy=False)
            if not len(found) or (found.min() >= 0 and found.max() < self._n_vocab):
                return [found]
        with suppress(OSError):
            path.replace(path.with_suffix(_ASIDE))
        self.problems = [
            "A damaged file of what an earlier conversation said was put aside: nothing is copied"
            f" from it ({self._folder})"
        ]
        return []


def clear(folder: Path) -> None:
    """Delete the files of all vocabularies.

    Raises:
        OSError: the folder does not allow it.
    """
    for path, _ in by_age(folder):
        path.unlink(missing_ok=True)


def _fingerprint(vocabulary: KnownPieces) -> str:
    """Identify a vocabulary by a sample of its tokens; a collision only costs wrong guesses."""
    n = vocabulary.n_vocab
    digest = hashlib.sha256(str(n).encode())
    for token in range(0, n, max(1, n // _SAMPLE)):
        digest.update(vocabulary.piece(token, special=True) + b"\0")
    return digest.hexdigest()[:16]
