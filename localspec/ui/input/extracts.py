"""Text from files for a message, and from answers for the clipboard."""

from __future__ import annotations

import re
import stat
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

from localspec import formats
from localspec.errors import UsageError
from localspec.pairs.disk.folders import is_file, user_path
from localspec.safe_text import decoded_without_zeros
from localspec.ui.transcript.items import Answer, ConversationItem
from localspec.ui.transcript.markdown_blocks import code_blocks

LONGEST = 200_000
_MOST_MENTIONS = 500  # each costs a look at the disk
_MENTION = re.compile(r"(?<!\S)@(\"[^\"\n]+\"|\S+)")
_CLOSING, _LONGEST_NAME = ".,;:!?)", 300
_PATH_LIKE = re.compile(r"\.{0,2}[/~].+|[^()]+\.\w{1,8}")
_SHORTER = "Attach a part of it that fits into the context."


def attached(path: Path) -> str:
    """The text of a file under its name, between fences that do not occur in it.

    Raises:
        UsageError: the file cannot be read, is not text, or is too long for any prompt.
    """
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):  # reading a pipe or a device may never end
            raise UsageError(f"cannot read {path}: it is not a file", "Check the path.")
        if found.st_size > 4 * LONGEST:
            raise UsageError(f"{path} is too long: {found.st_size:,} bytes", _SHORTER)
        text = decoded_without_zeros(path.read_bytes())
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", "Check the path.") from None
    except UnicodeDecodeError as error:
        binary = b"\0" in error.object  # a picture; not an older program's text
        way = "Attach text files only." if binary else "Save it as UTF-8 to attach it."
        raise UsageError(f"{path} is not UTF-8 text", way) from None
    if len(text) > LONGEST:
        raise UsageError(f"{path} is too long: {len(text):,} characters", _SHORTER)
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    ending = "" if text.endswith("\n") else "\n"
    return f"{path}:\n{fence}{path.suffix[1:]}\n{text}{ending}{fence}"


def expand(text: str) -> str:
    """`text`, followed by the files that it mentions as ``@path``.

    A word that names no file stays a word. A file that `text` already has, because an earlier
    message is edited, is not added again.

    Raises:
        UsageError: as `attached`.
    """
    mentions = islice(_MENTION.finditer(text), _MOST_MENTIONS)
    found = (_named(match[1].strip('"')) for match in mentions)
    paths = dict.fromkeys(
        path for path in found if path is not None and f"\n\n{path}:\n```" not in text
    )
    return "\n\n".join([text, *map(attached, paths)])


def missing(text: str) -> str:
    """The first ``@path`` in `text` that looks like a file's path and names no file; may be empty.

    A mention without an ending is a word; one that begins a later line is code.
    """
    for match in islice(_MENTION.finditer(text), _MOST_MENTIONS):
        before = text.rfind("\n", 0, match.start()) + 1
        code = before > 0 and not text[before : match.start()].strip()
        name = match[1].strip('"').rstrip(_CLOSING)[:_LONGEST_NAME]
        if not code and _PATH_LIKE.fullmatch(name) and _named(match[1].strip('"')) is None:
            return name
    return ""


def _named(text: str) -> Path | None:
    """The file that a word names, without closing punctuation; None if it names none."""
    for name in (text, text.rstrip(_CLOSING)):
        if name and is_file(path := user_path(name)):
            return path
    return None


def to_copy(items: Sequence[ConversationItem], argument: str) -> tuple[str, str]:
    """The text to copy, and what to call it.

    Args:
        items: the items on the screen.
        argument: empty for the last answer; a number for an earlier one (2 is the one before the
            last); ``code`` for the last block of code in the last answer, ``code N`` for its Nth.

    Raises:
        UsageError: the answer or the block does not exist.
    """
    # Of an answer that is only a thought or a call nothing is left to copy.
    answers = (item.said for item in reversed(items) if isinstance(item, Answer))
    texts = (text for text in answers if text.strip())
    what, _, number = argument.partition(" ")
    if what == "code":
        return _code(next(texts, ""), number)
    back = _whole(what or "1")
    found = list(islice(texts, back))
    if len(found) < back:
        fewer = "there are fewer answers on the screen; scroll up for earlier ones, if any"
        raise UsageError(fewer if found else "there is no answer yet")
    name = "the last answer" if back == 1 else f"the answer {back - 1} before the last"
    return found[-1], name


def _code(answer: str, number: str) -> tuple[str, str]:
    blocks = code_blocks(answer)
    if not blocks:
        raise UsageError("there is no code in the last answer")
    index = _whole(number) if number else len(blocks)
    if index > len(blocks):
        here = formats.counted(len(blocks), "block")
        raise UsageError(f"the last answer has {here} of code")
    return blocks[index - 1], f"block {index} of {len(blocks)}"


def _whole(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 9) or int(text) < 1:
        raise UsageError(f"“{text}” is not a positive number", "Say /copy, /copy 2, /copy code 1.")
    return int(text)
