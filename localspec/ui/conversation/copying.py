"""What `/copy` copies: an answer, or a block of code in it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from localspec.errors import UsageError
from localspec.ui.conversation.items import Answer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from localspec.ui.conversation.items import Item

_FENCE = re.compile(
    r"^( {0,3})(`{3,}+|~{3,}+)[^\n]*+\n(.*?)(?:^ {0,3}\2[`~]*[ \t]*$|\Z)", re.M | re.S
)


def code_blocks(text: str) -> list[str]:
    """The fenced blocks of a Markdown text, without their fences."""
    return [match[3].removesuffix("\n") for match in _FENCE.finditer(text)]


def wanted(items: Sequence[Item], argument: str) -> tuple[str, str]:
    """The text to copy, and how it is called.

    Args:
        items: what is on the screen.
        argument: empty for the last answer; a number for an earlier one (2 is the one before the
            last); ``code`` for the last block of code in the last answer, ``code N`` for its Nth.

    Raises:
        UsageError: there is no such thing.
    """
    answers = [item for item in items if isinstance(item, Answer) and item.text]
    what, _, number = argument.partition(" ")
    if what == "code":
        return _code(answers, number)
    back = _whole(what or "1")
    if back > len(answers):
        raise UsageError("there is no answer yet" if not answers else "there are fewer answers")
    name = "the last answer" if back == 1 else f"the answer {back - 1} before the last"
    return answers[-back].said, name


def _code(answers: Sequence[Answer], number: str) -> tuple[str, str]:
    blocks = code_blocks(answers[-1].said) if answers else []
    if not blocks:
        raise UsageError("there is no code in the last answer")
    index = _whole(number) if number else len(blocks)
    if index > len(blocks):
        raise UsageError(f"the last answer has {len(blocks)} blocks of code")
    return blocks[index - 1], f"block {index} of {len(blocks)}"


def _whole(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 9) or int(text) < 1:
        raise UsageError(f"“{text}” is no number from 1 on", "Say /copy, /copy 2 or /copy code 1.")
    return int(text)
