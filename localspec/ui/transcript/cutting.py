"""Cuts a block that grows without end; its rest goes on in the same list, quote, fence or table."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

from localspec.ui.transcript.markdown_blocks import parse

if TYPE_CHECKING:
    from markdown_it.token import Token

LONGEST_TAIL = 4000
"""A block that does not end (one line of a megabyte, a long listing) is cut at this length."""
_LEAVES = {"paragraph_open", "heading_open", "fence", "code_block", "table_open"}
# The mark of a list item. Of five blanks or more after it, all but the first belong to code.
_MARK = r"(?:[-*+]|\d{1,9}[.)])(?: {1,4}(?! )| )"
_LONGEST_FENCE, _LONGEST_TABLE_HEAD = 40, 400


class Cut(NamedTuple):
    """The two parts of a block.

    Attributes:
        joined: whether no empty line stands between them.
        numbers: of the list items that open the rest again, of which nothing is shown.
    """

    head: str
    rest: str
    joined: bool
    numbers: Sequence[int] = ()


def cut(text: str, numbers: Sequence[int] = ()) -> Cut:
    """Divide a block that grows without end, which may be the rest of one itself, with `numbers`.

    Lines of their own open the lists, the fence or the table again before the rest. It is shorter
    by almost half of the longest tail, and at least by an eighth: the parser nests ten lists at
    most, and only a short head of a table is repeated.
    """
    rows = text[:LONGEST_TAIL].split("\n")
    starts = list(accumulate((len(row) + 1 for row in rows), initial=0))
    tokens = [each for block in parse("\n".join(rows), numbers=numbers) for each in block.tokens]
    row, at = _found(rows, starts, tokens)
    head, rest, whole = text[:at], text[at:], at == starts[row]
    joined = not whole or bool(rows[row - 1].strip(" \t>"))
    begun = [each for each in tokens if _lines(each).start < row + (not whole)]
    items = _last_items(begun, row)
    # An empty quote, of which nothing is drawn, stands where the text stood: how far that is from
    # the mark says what belongs to the item.
    firsts = [_lines(item).start for item in items]
    opening = {first: _place(rows[first], firsts.count(first))[0] + ">" for first in firsts}
    for leaf in (each for each in begun if each.type in _LEAVES and row in _lines(each)):
        first = _lines(leaf).start
        place = "".join(_place(rows[first], firsts.count(first)))
        indentation = re.sub("[^ >]", " ", place)
        if not whole or leaf.type == "paragraph_open":
            rest = indentation + (rest.lstrip(" \t>") if whole else rest)
        if leaf.type == "fence" and len(leaf.markup) <= _LONGEST_FENCE:
            info = leaf.info.strip()[:_LONGEST_FENCE]
            opening[first] = place + leaf.markup + re.split(r"[^\w+#.-]", info, maxsplit=1)[0]
            # A list would drop the empty lines at the end of a fence that is left open.
            head, joined = head.removesuffix("\n") + f"\n{indentation}{leaf.markup}\n", True
        elif leaf.type == "table_open" and starts[first + 2] - starts[first] <= _LONGEST_TABLE_HEAD:
            opening |= {first: rows[first], first + 1: rows[first + 1]}
    return Cut(
        head,
        "\n".join([*opening.values(), rest]),
        joined,
        [item.meta["number"] for item in items],
    )


def _lines(token: Token) -> range:
    return range(*token.map) if token.map else range(0)


def _found(rows: Sequence[str], starts: Sequence[int], tokens: Sequence[Token]) -> tuple[int, int]:
    """The line and the character before which to cut, in the last half.

    Before a line outside of fences and tables if there is one, rather one that is not indented;
    else at a space, else anywhere.
    """
    half = LONGEST_TAIL // 2
    long = [each for each in tokens if each.type in ("fence", "table_open")]
    inside = {row for each in long for row in _lines(each)[1:]}
    # Only the first characters of the last line are here, which may look like something else.
    # A fence alone may be the end of one: the rest would begin with an empty one.
    fit = {row for row, text in enumerate(rows[:-1]) if text.strip(" \t>`~")}
    # The dashes of a table mean nothing without the head above them.
    fit -= {_lines(each).start + 1 for each in long if each.type == "table_open"}
    if late := [row for row in fit if starts[row] > half]:
        begins = [text.lstrip(">").removeprefix(" ")[:1] not in " \t" for text in rows]
        return max((row not in inside, begins[row], row, starts[row]) for row in late)[2:]
    at = "\n".join(rows).rfind(" ", half) + 1 or LONGEST_TAIL
    return max(row for row in range(len(rows)) if starts[row] < at), at


def _last_items(begun: Sequence[Token], row: int) -> Collection[Token]:
    """The last item that has `begun` of each list around `row`, outer ones first."""
    lists = {each.level for each in begun if "list_open" in each.type and row in _lines(each)}
    found = (each for each in begun if each.type == "list_item_open" and each.level - 1 in lists)
    return {item.level: item for item in found}.values()


def _place(row: str, items: int) -> tuple[str, str]:
    """The marks of the `items` that begin in `row`; the quotes and blanks that follow them."""
    place = rf"((?:[ >]*{_MARK}){{{items}}})([ >]{{0,40}})"
    found = re.match(place, row.expandtabs(4).rstrip(" ") + " ")
    return (found[1], found[2]) if found else ("", "")
