"""Markdown as models write it, as blocks: raw HTML stays visible, line breaks stay where they are.

Textual's own Markdown mounts and styles a widget for every paragraph, list item and table cell,
which took half of a core with a fast model (measured by `benchmarks/screen_cost.py`). Here an
answer is one widget, and only its unfinished end is parsed again.
"""

# ruff: noqa: ARG002 - one signature for all handlers of tokens
# ruff: noqa: PLC0415 - what no first frame needs is imported after it (see `launch`)

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import islice
from typing import TYPE_CHECKING, Any

from textual.content import Content

from localspec.safe_text import safe
from localspec.ui.transcript.blocks import (
    GAP,
    Block,
    BlockBody,
    CodeBlock,
    HorizontalRule,
    Paragraph,
    TableBlock,
)
from localspec.ui.widgets import MUTED

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.token import Token

_HEADINGS = {"h1": "bold underline $text-primary", "h2": "bold $text-primary"}
_INLINE = {"strong_open": "bold", "em_open": "italic", "s_open": "strike"}
_CODE_SPAN = "bold $text-accent on $foreground 7%"
_BULLETS = "•◦▪"
# Colouring code costs time in every frame, so that longer code stays plain. So does a long line:
# it is folded, and every part looks through the colours of the whole.
_LONGEST_COLOURED, _LONGEST_COLOURED_LINE = 6000, 500
_LONGEST_INFO = 100
# The parser fills up the rows of a table: with more places than this, lines stay what they are.
_MOST_CELLS = 3000
# At every depth of a quote it looks at all lines that follow, marked or not.
_MOST_QUOTED = 5000
# From every opening bracket it looks for the closing one.
_MOST_BRACKETS = 200
_DEFINITION = re.compile(r"^ {0,3}\[[^\]\n]{1,200}\]:[^\n]{0,500}$", re.MULTILINE)
_MOST_DEFINITIONS = 100


@cache
def _parser(*left_out: str) -> MarkdownIt:
    """One parser for all: it keeps nothing between two texts, and making it takes a millisecond.

    HTML is off: what a model wrote must not vanish. Bare addresses are not searched for.
    """
    from markdown_it import MarkdownIt

    return MarkdownIt("gfm-like", {"html": False, "linkify": False}).disable(left_out)


def definitions(text: str) -> Mapping[str, Any]:
    """Where links lead that are defined in lines of their own (``[name]: address``).

    Only the first hundred count: the parser takes ever longer for each.
    """
    found = islice(_DEFINITION.finditer(text), _MOST_DEFINITIONS)
    context: dict[str, Any] = {}
    _parser().parse("\n\n".join(match[0] for match in found), context)
    references: Mapping[str, Any] = context.get("references", {})
    return references


@dataclass(frozen=True, slots=True)
class TopLevelBlock:
    """A parsed top-level block, which becomes drawable blocks on request.

    Attributes:
        first_line: where it begins in the source.
        joined: whether it is the rest of a block, without an empty line before it.
    """

    first_line: int
    tokens: Sequence[Token]
    joined: bool = False

    def blocks(self) -> list[Block]:
        """Its drawable blocks, made on request because colouring code takes most of the time."""
        return _Builder().build(self.tokens)


def parse(
    source: str, references: Mapping[str, Any] | None = None, numbers: Sequence[int] = ()
) -> list[TopLevelBlock]:
    """The top-level blocks of `source`.

    Args:
        source: some thousand characters; for some texts the parser's time grows faster than their
            length.
        references: what `definitions` has found in the whole text.
        numbers: of the first list items, which only open again what was cut and are not drawn.
    """
    tokens = _parser(*_too_slow(source)).parse(source, {"references": dict(references or {})})
    _number(tokens, numbers)
    found: list[TopLevelBlock] = []
    start = 0
    for index, token in enumerate(tokens):
        if token.level == 0 and token.nesting <= 0:
            group = tokens[start : index + 1]
            first_line = group[0].map[0] if group[0].map else 0
            found.append(TopLevelBlock(first_line, group))
            start = index + 1
    return found


def _number(tokens: Sequence[Token], given: Sequence[int]) -> None:
    """Store in each list item its number, also in lists with bullets; hide those of `given`."""
    left, following = list(given), dict[int, int]()
    for token in tokens:
        if token.type in ("bullet_list_open", "ordered_list_open"):
            following[token.level + 1] = int(token.attrs.get("start", 1))
        elif token.type == "list_item_open":
            token.hidden = bool(left)
            token.meta["number"] = left.pop(0) if left else following[token.level]
            following[token.level] = token.meta["number"] + 1


def code_blocks(text: str) -> list[str]:
    """The fenced blocks of a text, also in lists and quotes, without fences and indentation."""
    if "```" not in text and "~~~" not in text:  # a long text takes long to parse
        return []
    # Nothing else is needed, and the rest takes longer.
    tokens = _parser("inline", "reference", *_too_slow(text)).parse(text)
    return [token.content.removesuffix("\n") for token in tokens if token.type == "fence"]


def _too_slow(source: str) -> list[str]:
    """The rules that would take too long for `source`, which stays what it is without them."""
    rows = source.split("\n")
    left_out = list[str]()
    if len(rows) * max(row.count("|") for row in rows) > _MOST_CELLS:
        left_out.append("table")
    depth = max(row[: len(row) - len(row.lstrip("> "))].count(">") for row in rows)
    if len(rows) * depth > _MOST_QUOTED:
        left_out.append("blockquote")
    if source.count("[") > _MOST_BRACKETS:
        left_out += ["link", "image"]
    return left_out


@dataclass(slots=True)
class _Nesting:
    """One list item or quote that the present block stands in."""

    first: Content
    rest: Content
    used: bool = False

    def prefix(self) -> Content:
        """The marker the first time, blanks of the same width afterwards."""
        used, self.used = self.used, True
        return self.rest if used else self.first


class _Builder:
    """Turns the tokens of one top-level block into blocks."""

    def __init__(self) -> None:
        self._blocks: list[Block] = []
        self._levels: list[_Nesting] = []
        self._items = 0  # around the present block
        self._gap = False
        self._style = ""
        self._tight = False
        self._rows: list[list[Content]] = []
        self._in_table = False

    def build(self, tokens: Sequence[Token]) -> list[Block]:
        """All blocks of these tokens."""
        for token in tokens:
            handle = getattr(self, f"_on_{token.type}", None)
            if handle is not None:
                handle(token)
        return self._blocks

    def _emit(self, body: BlockBody, *, gap_after: bool = True) -> None:
        rest = Content("").join(level.rest for level in self._levels)
        if self._gap and self._blocks:
            self._blocks.append(Block(GAP, rest, rest))
        first = Content("").join(level.prefix() for level in self._levels)
        self._blocks.append(Block(body, first, rest))
        self._gap = gap_after

    def _on_heading_open(self, token: Token) -> None:
        self._style = _HEADINGS.get(token.tag, "bold")

    def _on_paragraph_open(self, token: Token) -> None:
        self._style, self._tight = "", token.hidden

    def _on_inline(self, token: Token) -> None:
        text = inline(token.children or [])
        if self._in_table:
            self._rows[-1].append(text if len(self._rows) > 1 else text.stylize_before("bold"))
            return
        self._emit(
            Paragraph(text.stylize_before(self._style) if self._style else text),
            gap_after=not self._tight,
        )
        self._style, self._tight = "", False

    def _on_bullet_list_close(self, token: Token) -> None:
        self._gap = self._gap or not self._items

    _on_ordered_list_close = _on_bullet_list_close

    def _on_list_item_open(self, token: Token) -> None:
        bullet = _BULLETS[self._items % len(_BULLETS)]
        marker = f"{token.meta['number']}." if token.info else bullet
        first = Content.styled(f"{marker} ", "$text-primary")
        self._levels.append(_Nesting(first, Content(" " * first.cell_length), used=token.hidden))
        self._items += 1

    def _on_list_item_close(self, token: Token) -> None:
        if not self._levels[-1].used:  # an item without text
            self._emit(GAP, gap_after=False)
        self._levels.pop()
        self._items -= 1

    def _on_blockquote_open(self, token: Token) -> None:
        bar = Content.styled("▌ ", "$primary 60%")
        self._levels.append(_Nesting(bar, bar))

    def _on_blockquote_close(self, token: Token) -> None:
        self._levels.pop()

    def _on_fence(self, token: Token) -> None:
        language = token.info.strip().partition(" ")[0]
        # A line this long is not the name of a language; it must not vanish.
        first = f"{safe(token.info)}\n" if len(token.info) > _LONGEST_INFO else ""
        self._emit(CodeBlock(code_lines(first + token.content, "" if first else language)))

    def _on_code_block(self, token: Token) -> None:
        self._emit(CodeBlock(code_lines(token.content, "")))

    def _on_hr(self, token: Token) -> None:
        self._emit(HorizontalRule())

    def _on_table_open(self, token: Token) -> None:
        self._in_table, self._rows = True, []

    def _on_tr_open(self, token: Token) -> None:
        self._rows.append([])

    def _on_table_close(self, token: Token) -> None:
        self._in_table = False
        self._emit(TableBlock(tuple(tuple(row) for row in self._rows)))


def code_lines(code: str, language: str) -> tuple[Content, ...]:
    """Source code, coloured where the language is known, one content a line."""
    from textual.highlight import highlight

    code = code.removesuffix("\n")
    lines = code.split("\n")
    long = len(code) > _LONGEST_COLOURED or max(map(len, lines)) > _LONGEST_COLOURED_LINE
    if long or not language:
        return tuple(Content(line) for line in lines)
    # It drops the last line break; spaces in place of tabs would move the colours.
    coloured = highlight(f"{code}\n", language=language, tab_size=0)
    return tuple(coloured.split("\n", allow_blank=True))


def inline(tokens: Sequence[Token]) -> Content:
    """Words with their styles; a link shows where it leads, unless its text is that address.

    Made safe once more, because the parser replaces names by characters (``&#13;``).
    """
    pieces: list[tuple[str, str]] = []
    styles: list[str] = []
    links: list[tuple[str, int]] = []  # where an open link leads, and its first piece
    for token in tokens:
        kind = token.type
        if kind == "text":
            pieces.append((token.content, " ".join(styles)))
        elif kind in ("softbreak", "hardbreak"):
            pieces.append(("\n", ""))
        elif kind == "code_inline":
            pieces.append((token.content, _CODE_SPAN))
        elif kind == "image":
            pieces += [
                (f"🖼 {token.content}", "italic"),
                (f" ‹{token.attrs.get('src', '')}›", MUTED),
            ]
        elif kind == "link_open":
            styles.append("underline $text-accent")
            links.append((str(token.attrs.get("href", "")), len(pieces)))
        elif kind == "link_close":
            styles.pop()
            address, first = links.pop()
            pieces += _where(address, pieces[first:])
        elif kind in _INLINE:
            styles.append(_INLINE[kind])
        elif kind.endswith("_close"):
            styles.pop()
    return Content.assemble(*((safe(text), style) for text, style in pieces))


def _where(address: str, link: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """What tells where a link leads: nothing if its own pieces say just that."""
    said = "".join(text for text, _ in link)
    return [] if said and said == address else [(f" ‹{address}›", MUTED)]
