"""Blocks of text and how they become lines of a given width."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from typing import TypeAlias

from rich.cells import get_character_cell_size
from textual.content import Content

_RULE = "$foreground 45%"
_CODE_STYLE = "on $foreground 7%"
_NARROWEST = 8
_NARROWEST_COLUMN = 3
_NOTHING = Content("")


@dataclass(frozen=True, slots=True)
class Paragraph:
    """Words that wrap; a heading is a paragraph of another style."""

    text: Content


GAP = Paragraph(_NOTHING)
"""An empty line."""


@dataclass(frozen=True, slots=True)
class CodeBlock:
    """Lines that keep their spaces, on a ground of their own."""

    lines: tuple[Content, ...]


@dataclass(frozen=True, slots=True)
class TableBlock:
    """Cells by row; the first row is the head."""

    rows: tuple[tuple[Content, ...], ...]


@dataclass(frozen=True, slots=True)
class HorizontalRule:
    """A line across."""


BlockBody: TypeAlias = Paragraph | CodeBlock | TableBlock | HorizontalRule


@dataclass(frozen=True, slots=True)
class Block:
    """A body, and the text to its left: list markers, quote bars.

    Attributes:
        first: before the first line.
        rest: before every other line, of the same width.
    """

    body: BlockBody
    first: Content = _NOTHING
    rest: Content = _NOTHING


# Lines that are laid out in one step; a longer block is divided.
_PART = re.compile(r".{1,2000}(?:\n|\Z)|.{2000}", re.DOTALL)


def divided(text: str) -> list[str]:
    """`text` in parts that take some milliseconds each to lay out; no text is one empty part."""
    return [part.removesuffix("\n") for part in _PART.findall(text)] or [""]


def lay_out(blocks: Iterable[Block], width: int) -> list[Content]:
    """All lines of `blocks`, none wider than `width` cells (as far as `width` allows any text)."""
    lines: list[Content] = []
    for block in blocks:
        room = max(_NARROWEST, width - block.rest.cell_length)
        for index, line in enumerate(_body_lines(block.body, room)):
            prefix = block.rest if index else block.first
            lines.append(prefix + line if prefix else line)
    return lines


def _body_lines(body: BlockBody, room: int) -> Sequence[Content]:
    match body:
        case Paragraph(text):
            return text.wrap(room)
        case CodeBlock(lines):
            return _code_lines(lines, room)
        case TableBlock(rows):
            return _table_lines(rows, room)
        case HorizontalRule():
            return [Content.styled("─" * room, _RULE)]


def _code_lines(lines: tuple[Content, ...], room: int) -> list[Content]:
    ground = Content.styled(" ", _CODE_STYLE)
    out = []
    for line in lines:
        whole = line.expand_tabs(4)
        for part in whole.divide(_breaks(whole.plain, room - 2)):
            filled = part.truncate(room - 2, pad=True)
            out.append(Content.assemble(ground, filled.stylize_before(_CODE_STYLE), ground))
    return out


def _breaks(text: str, width: int) -> list[int]:
    """Where to break a line of code: after the last space that fits, else inside a word.

    Never inside its indentation, which would leave an empty line.
    """
    if len(text) <= width and text.isascii():
        return []
    found, start = list[int](), 0
    while True:
        end, cells = start, 0
        while end < len(text) and (cells := cells + get_character_cell_size(text[end])) <= width:
            end += 1
        if end == len(text):
            return found
        space = text.rfind(" ", start, end) + 1
        start = space if text[start:space].strip() else max(end, start + 1)
        found.append(start)


def _table_lines(rows: tuple[tuple[Content, ...], ...], room: int) -> list[Content]:
    """Columns; where even narrow ones do not fit, rows that wrap, with lines between them."""
    columns = zip_longest(*rows, fillvalue=_NOTHING)
    wanted = [max(cell.cell_length for cell in column) or 1 for column in columns]
    for bar in (" │ ", "│"):
        room_for_cells = room - len(bar) * (len(wanted) - 1)
        if sum(min(width, _NARROWEST_COLUMN) for width in wanted) <= room_for_cells:
            return _columns(rows, _column_widths(wanted, room_for_cells), bar)
    rule, lines = Content.styled("─" * room, _RULE), list[Content]()
    for row in rows:
        lines += [*Content.styled(" │ ", _RULE).join(row).wrap(room), rule]
    return lines[:-1]


def _columns(
    rows: tuple[tuple[Content, ...], ...], widths: Sequence[int], bar: str
) -> list[Content]:
    between = Content.styled(bar, _RULE)
    lines: list[Content] = []
    for index, row in enumerate(rows):
        cells = [cell.wrap(width) for cell, width in zip(row, widths, strict=False)]
        for level in zip_longest(*cells, fillvalue=Content("")):
            padded = map(partial(Content.truncate, pad=True), level, widths)
            lines.append(between.join(padded))
        if index == 0:
            cross = bar.replace(" ", "─").replace("│", "┼")
            lines.append(Content.styled(cross.join("─" * width for width in widths), _RULE))
    return lines


def _column_widths(wanted: Sequence[int], room: int) -> list[int]:
    """Every column as wide as its widest cell; the widest ones give way until all fit.

    There must be room for the narrowest columns.
    """
    widths = [*wanted]
    excess = sum(widths) - room
    while excess > 0:
        widest = widths.index(max(widths))
        second = max((w for i, w in enumerate(widths) if i != widest), default=0)
        cut = min(excess, max(1, widths[widest] - max(second, _NARROWEST_COLUMN)))
        widths[widest] -= cut
        excess -= cut
    return widths
