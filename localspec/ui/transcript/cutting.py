"""Cuts a block that grows without end; its rest goes on in the same list, quote or fence."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

from localspec.ui.transcript.markdown_blocks import parse

if TYPE_CHECKING:
    from markdown_it.token import Token

LONGEST_TAIL = 4000
"""A block that does not end (one line of a megabyte, a long listing) is cut at this length."""
# The beginning of a block's first line: the marks of the lists and quotes that it stands in.
_PLACE = re.compile(r"(?:[ >]|[-*+] |\d{1,9}[.)] ){0,40}")
_INDENTATION = re.compile("[ >]{0,40}")
_MARK = re.compile(r"[^ >]")
_NO_LANGUAGE = re.compile(r"[^\w+#.-]")
_LONGEST_FENCE = 40  # its mark, and the name of its language


class Cut(NamedTuple):
    """The two parts of a block.

    Attributes:
        joined: whether no empty line stands between them.
        unmarked: the widths of the list items that open the rest, of which no mark is shown.
    """

    head: str
    rest: str
    joined: bool
    unmarked: tuple[int, ...] = ()


def cut(text: str, unmarked: Sequence[int] = ()) -> Cut:
    """Divide a block that grows without end, which begins with `unmarked` list items itself.

    The rest is shorter by at least almost half of the longest tail: what opens it again is only
    the marks of lists, quotes and a fence, and the name of a language.
    """
    rows = text[:LONGEST_TAIL].split("\n")
    tokens = [each for block in parse("\n".join(rows)) for each in block.tokens if each.map]
    starts = list(accumulate((len(row) + 1 for row in rows), initial=0))
    row, at = _found(rows, starts, tokens)
    head, rest, whole = text[:at], text[at:], at == starts[row]
    joined = not whole or bool(rows[row - 1].strip(" \t>"))
    around = [each for each in tokens if each.type != "inline" and _covers(each, row)]
    if not around or around[-1].type == "code_block":  # which keeps its blanks
        return Cut(head, rest, joined)
    leaf = around[-1]
    begun = leaf.map[0] if leaf.map else row
    own = whole and begun == row  # its marks are in the rest
    lead = _lead(rows[begun], marks=not own)
    items = [each for each in tokens if each.type == "list_item_open"]
    usual = (len(each.info) + 2 if each.info else 2 for each in items[len(unmarked) :])
    widths = [
        width
        for each, width in zip(items, (*unmarked, *usual), strict=False)
        if _covers(each, row) and not (own and each.map and each.map[0] == row)
    ]
    again = re.sub("(> ?)|  ", lambda run: run[1] or "- ", lead) if widths else lead
    # Every two blanks become an item: that is as many as there were, or more, which take no room.
    widths += [0] * (again.count("-") - len(widths))
    if leaf.type == "fence" and not own and len(leaf.markup) <= _LONGEST_FENCE:
        language = _NO_LANGUAGE.split(leaf.info.strip(), 1)[0][:_LONGEST_FENCE]
        closed = head.removesuffix("\n") + f"\n{lead}{leaf.markup}\n"
        opened = f"{again}{leaf.markup}{language}\n" + ("" if whole else lead)
        return Cut(closed, opened + rest, True, tuple(widths))
    return Cut(head, again + (rest.lstrip(" \t>") if whole else rest), joined, tuple(widths))


def _covers(token: Token, row: int) -> bool:
    return token.map is not None and token.map[0] <= row < token.map[1]


def _found(rows: Sequence[str], starts: Sequence[int], tokens: Sequence[Token]) -> tuple[int, int]:
    """The line and the character before which to cut, in the last half.

    Before a line outside of fences if there is one, rather one that is not indented; else at a
    space, else anywhere.
    """
    half = LONGEST_TAIL // 2
    fenced = {
        row
        for token in tokens
        if token.type == "fence" and token.map
        for row in range(token.map[0] + 1, token.map[1])
    }
    # A fence alone may be the end of one: the rest would begin with an empty one.
    # Only the first characters of the last line are here, which may look like something else.
    whole = enumerate(rows[:-1])
    late = [row for row, text in whole if starts[row] > half and text.strip(" \t>`~")]
    if late:
        begins = [text.lstrip(">").removeprefix(" ")[:1] not in " \t" for text in rows]
        row = max(late, key=lambda row: (row not in fenced, begins[row], row))
        return row, starts[row]
    at = "\n".join(rows).rfind(" ", half) + 1 or LONGEST_TAIL
    return max(row for row in range(len(rows)) if starts[row] < at), at


def _lead(opening: str, *, marks: bool) -> str:
    """The place of a block that begins with the line `opening`: quotes and blanks.

    Args:
        opening: the line.
        marks: whether `opening` has marks of the lists around the block, which become blanks.
    """
    place = (_PLACE if marks else _INDENTATION).match(opening.expandtabs(4))
    return _MARK.sub(" ", place[0]) if place else ""
