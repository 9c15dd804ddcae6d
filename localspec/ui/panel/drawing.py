"""Bars, sparklines and strips as styled text: pure functions, no widgets, no clock.

Every picture can be read without colour: shapes say the same as colours do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from rich.segment import Segment
from rich.style import Style
from textual.content import Content
from textual.renderables.digits import Digits as DigitsRenderable

from localspec.ui.widgets import MUTED

ACCEPTED, RECOVERED, BONUS, UNDRAFTED, REJECTED = "■", "▲", "◆", "□", "·"
STYLES = {
    ACCEPTED: "$success",
    RECOVERED: "$warning",
    BONUS: "$accent",
    UNDRAFTED: MUTED,
    REJECTED: "$foreground 55%",
}
FAINT = "$foreground 35%"
_LEVELS = "▁▂▃▄▅▆▇█"

Piece: TypeAlias = tuple[str, str]
"""A text and its style."""


def big_digits(figure: str) -> list[str]:
    """A figure three lines high."""
    pieces = DigitsRenderable(figure).render(Style.null())
    return "".join(piece.text for piece in pieces if isinstance(piece, Segment)).splitlines()


def bar(share: float | None, width: int, style: str = "$success") -> Content:
    """A line of `width` cells, heavy as far as `share` of 1 reaches."""
    filled = round(min(max(share or 0.0, 0.0), 1.0) * width)
    return Content.assemble(("━" * filled, style), ("─" * (width - filled), FAINT))


def sparkline(
    values: Sequence[float], width: int, style: str = "$primary", top: float | None = None
) -> Content:
    """The last `width` values as columns, newest on the right, scaled to `top` or the largest."""
    shown = list(values)[-width:]
    top = max(shown, default=0.0) if top is None else top
    if top <= 0:
        return Content.assemble((_LEVELS[0] * width, FAINT))
    last = len(_LEVELS) - 1
    marks = "".join(_LEVELS[round(value / top * last)] for value in shown)
    return Content.assemble((_LEVELS[0] * (width - len(marks)), FAINT), (marks, style))


def stacked_bar(parts: Sequence[tuple[float, str, str]], width: int) -> Content:
    """A bar of parts given as (amount, mark, style); every part above 0 gets at least a cell."""
    present = [part for part in parts if part[0] > 0]
    whole = sum(part[0] for part in present)
    if not present or width < len(present):
        return bar(None, width)
    cells = [max(1, round(width * part[0] / whole)) for part in present]
    cells[cells.index(max(cells))] += width - sum(cells)
    return Content.assemble(
        *((mark * count, style) for count, (_, mark, style) in zip(cells, present, strict=True))
    )


def round_columns(rounds: Sequence[str], width: int, height: int) -> list[Content]:
    """The last rounds as columns of marks that grow upwards, newest on the right.

    A column taller than `height` loses its rejected tokens first, then its accepted ones.
    """
    columns = [_fit(marks, height) for marks in list(rounds)[-(width // 2) :]]
    lines = []
    for row in range(height - 1, -1, -1):
        marks = [column[row] if row < len(column) else " " for column in columns]
        pieces = [(f"{mark} ", STYLES.get(mark, "")) for mark in marks]
        lines.append(Content.assemble((" " * (width - 2 * len(marks)), ""), *pieces))
    return lines


def _fit(marks: str, height: int) -> str:
    if len(marks) <= height:
        return marks
    emitted = marks.rstrip(REJECTED)
    return marks[:height] if len(emitted) <= height else emitted[-height:]


def two_sides(left: Content | Piece, right: Content | Piece, width: int) -> Content:
    """`left` and `right` at the two ends of a line of `width` cells."""
    left, right = Content.assemble(left), Content.assemble(right)
    gap = max(1, width - left.cell_length - right.cell_length)
    return Content.assemble(left, " " * gap, right)


def joined(parts: Sequence[Content], width: int) -> Content:
    """As many parts as fit, in order, two cells apart; at least the first."""
    line = parts[0]
    for part in parts[1:]:
        if line.cell_length + 2 + part.cell_length > width:
            break
        line = Content.assemble(line, "  ", part)
    return line
