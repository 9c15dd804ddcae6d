"""What kind of text is being written: code inside a fence, prose outside."""

from __future__ import annotations

import re

_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
_LONGEST = 80
"""Characters of a line that are looked at: a fence stands at its beginning."""


class TextKind:
    """Follows Markdown's fences as the text comes in, in pieces of any size."""

    def __init__(self) -> None:
        self._line = ""
        self._fence = ""

    @property
    def name(self) -> str:
        """``code`` or ``prose``."""
        return "code" if self._fence else "prose"

    def feed(self, text: str) -> None:
        """Go on with `text`."""
        first, *others = text.split("\n")
        self._line += first[: max(0, _LONGEST - len(self._line))]
        for line in others:
            self._end_line()
            self._line = line[:_LONGEST]

    def _end_line(self) -> None:
        found = _FENCE.match(self._line)
        if found is None:
            return
        mark, after = found[1], self._line[found.end() :]
        if not self._fence:
            self._fence = mark
        elif mark.startswith(self._fence) and not after.strip():
            self._fence = ""
