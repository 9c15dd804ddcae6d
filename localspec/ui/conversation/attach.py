"""Text files in a message: read, checked, and put in as a fenced block."""

from __future__ import annotations

import re
import stat
from itertools import islice
from pathlib import Path

from localspec.errors import UsageError
from localspec.pairs.folders import is_file, user_path

LONGEST = 200_000
_MOST_MENTIONS = 500  # each is looked for on the disk
_MENTION = re.compile(r"(?<!\S)@(\"[^\"\n]+\"|\S+)")


def attached(path: Path) -> str:
    """The text of a file under its name, between fences that do not occur in it.

    Raises:
        UsageError: it cannot be read, is no text, or is too long for any prompt.
    """
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):  # reading a pipe or a device may never end
            raise UsageError(f"cannot read {path}: it is no file", "Check the path.")
        if found.st_size > 4 * LONGEST:
            raise UsageError(f"{path} is too long: {found.st_size:,} bytes", _SHORTER)
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", "Check the path.") from None
    except UnicodeDecodeError:
        raise UsageError(f"{path} is no UTF-8 text", "Attach text files only.") from None
    if "\0" in text:
        raise UsageError(f"{path} is no text", "Attach text files only.")
    if len(text) > LONGEST:
        raise UsageError(f"{path} is too long: {len(text):,} characters", _SHORTER)
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    ending = "" if text.endswith("\n") else "\n"
    return f"{path}:\n{fence}{path.suffix[1:]}\n{text}{ending}{fence}"


_SHORTER = "Attach a part of it that fits into the context."


def expand(text: str) -> str:
    """`text` with the files behind it that it mentions as ``@path``.

    What names no file stays a word. A file that is in `text` already, as it is where a message is
    changed, is not put in again.

    Raises:
        UsageError: as `attached`.
    """
    mentions = islice(_MENTION.finditer(text), _MOST_MENTIONS)
    found = (_named(match[1].strip('"')) for match in mentions)
    paths = dict.fromkeys(
        path for path in found if path is not None and f"\n\n{path}:\n```" not in text
    )
    return "\n\n".join([text, *map(attached, paths)])


def _named(text: str) -> Path | None:
    """The file that a word names, closing punctuation left aside; None for none."""
    for name in (text, text.rstrip(".,;:!?)")):
        if name and is_file(path := user_path(name)):
            return path
    return None
