"""Long pastes: the input shows a mark for each, which stands for all of its text."""

from __future__ import annotations

import re
from itertools import chain, count

MOST_LINES, MOST_CHARACTERS = 20, 4000
"""A paste with more of either is folded."""


class FoldedPastes:
    """Folds texts into marks, and marks into texts.

    Attributes:
        opened: whether pastes are shown as they are.
    """

    def __init__(self) -> None:
        self.opened = False
        self._texts: dict[str, str] = {}  # by the mark that stands for it

    def mark(self, text: str, shown: str) -> str:
        """What the input shows for a paste: a mark, or a short text as it is.

        Args:
            text: the paste.
            shown: what the input shows; a mark that the user typed there stands for itself.
        """
        lines = text.count("\n") + 1
        if self.opened or (lines <= MOST_LINES and len(text) <= MOST_CHARACTERS):
            return text
        size = f"{lines:,} lines" if lines > MOST_LINES else f"{len(text):,} characters"
        marks = chain([f"[pasted {size}]"], (f"[pasted {size}, {n}]" for n in count(2)))
        mark = next(
            one
            for one in marks
            if self._texts.get(one) == text or not (one in self._texts or one in shown)
        )
        self._texts[mark] = text
        return mark

    def unfolded(self, shown: str) -> str:
        """`shown` with the pastes in place of their marks."""
        if not self._texts:
            return shown
        marks = "|".join(map(re.escape, self._texts))
        return re.sub(marks, lambda match: self._texts[match[0]], shown)

    def folded(self, text: str) -> str:
        """`text` with marks in place of the pastes that have one, unless pastes are open."""
        for mark, paste in () if self.opened else self._texts.items():
            text = text.replace(paste, mark)
        return text

    def around(self, line: str, column: int) -> tuple[int, int]:
        """Where the mark begins and ends that `column` is inside of; `column` twice without one."""
        for mark in self._texts:
            first = max(0, column - len(mark) + 1)
            if (start := line.find(mark, first, column + len(mark) - 1)) >= 0:
                return start, start + len(mark)
        return column, column
