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

    def before(self, text: str) -> str:
        """The mark that `text` ends with; empty where it ends with none."""
        return next((mark for mark in self._texts if text.endswith(mark)), "")

    def after(self, text: str) -> str:
        """The mark that `text` begins with; empty where it begins with none."""
        return next((mark for mark in self._texts if text.startswith(mark)), "")
