"""Tells which marks of an answer are only quoted: in inline code, or in a block of code."""

from __future__ import annotations

import re

_FENCE = re.compile(r"\s*(`{3,}+|~{3,}+)([^`]*)")
_TICKS = re.compile(r"(?<!`)`{1,2}(?!`)")  # around inline code; three begin a block
_LONGEST_LINE = 4096  # characters of a line's end that are kept, to tell whether it is code


class CodeQuotes:
    """Follows the text of a part of an answer.

    Args:
        ends: the marks that may end a part; they end a line too.

    Attributes:
        line: the text before the present position on the same line.
    """

    def __init__(self, ends: re.Pattern[str]) -> None:
        self._ends = ends
        self.line = ""
        self._fence = ""  # what began the block of code on the lines before

    def restart(self) -> None:
        """Begin another part."""
        self.line = self._fence = ""

    def add(self, text: str) -> None:
        """Go on after `text`."""
        *lines, line = (self.line + text).split("\n")
        for whole in lines:
            self._fence = _fence_after(whole[-_LONGEST_LINE:], self._fence)
        self.line = line[-_LONGEST_LINE:]

    def quoted(self, after: str, *, block: bool, final: bool) -> bool | None:
        """Whether a mark at the present position is quoted; None if that is not known yet.

        Args:
            after: the text after the mark.
            block: a block of code may quote it, if it is closed later: models also write calls in
                blocks, and end thoughts and answers inside open ones.
            final: no text will follow.
        """
        if block and self._fence and _fence_after(self.line, self._fence):
            closed = self._closed(after, final=final)
            if closed is not False:
                return closed
        begun = _inline_code(self.line)
        if not begun:
            return False
        line, newline, _ = after.partition("\n")
        whole = bool(newline) or final
        if "`" not in line:
            return False if whole else None
        for found in _TICKS.finditer(line):
            if found[0] in begun and (whole or found.end() < len(line)):
                return not line[found.start() - 1 : found.start()].isspace()
        return False if whole else None

    def _closed(self, after: str, *, final: bool) -> bool | None:
        """Whether the open block is closed on the lines after this one; None if not known yet."""
        lines = self._ends.sub("\n", after).split("\n")[1:] or [""]
        for line in lines if final else lines[:-1]:
            found = _FENCE.fullmatch(line)
            if found is not None and found[1].startswith(self._fence):
                return not found[2].strip()  # with words it begins another block
        return False if final else None


def _inline_code(line: str) -> list[str]:
    """The backticks that may begin the inline code in which a line ends.

    A backtick before white space begins no code, and one after white space ends none: so a sign
    alone, or one that begins the next code, is told from the one that closes.
    """
    begun: list[str] = []
    for found in _TICKS.finditer(line):
        if found[0] not in begun:
            begun += [] if line[found.end() : found.end() + 1].isspace() else [found[0]]
        elif not line[found.start() - 1 : found.start()].isspace():
            del begun[begun.index(found[0]) :]
    return begun


def _fence_after(line: str, fence: str) -> str:
    """What began the block of code that is open after a line; empty if none is open.

    Args:
        line: the whole line.
        fence: the same, before the line.
    """
    found = _FENCE.fullmatch(line)
    if found is None or (fence and (found[2].strip() or not found[1].startswith(fence))):
        return fence
    return "" if fence else found[1]
