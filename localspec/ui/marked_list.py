"""A list whose chosen line has a mark, so that it is found without colour too."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.strip import Strip
from textual.widgets import OptionList

if TYPE_CHECKING:
    from rich.segment import Segment

MARK = "▸"


class MarkedList(OptionList):
    """Puts a mark before the highlighted option, in a cell that the lines leave for it."""

    def render_line(self, y: int) -> Strip:
        """The line, its first cell a mark where an option that is highlighted begins."""
        strip = super().render_line(y)
        line = self.scroll_offset.y + y
        here = self._lines[line] if line < len(self._lines) else None
        if here is None or here != (self.highlighted, 0):
            return strip
        first, *_ = strip.crop(0, 1)
        return Strip.join([Strip([_as_mark(first)], 1), strip.crop(1)])


def _as_mark(segment: Segment) -> Segment:
    return type(segment)(MARK, segment.style)
