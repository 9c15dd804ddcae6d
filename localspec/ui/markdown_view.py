"""Markdown as models write it: raw HTML stays visible, line breaks stay where they are."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from markdown_it import MarkdownIt
from textual.widgets import Markdown

if TYPE_CHECKING:
    from markdown_it.rules_core import StateCore


@cache
def parser() -> MarkdownIt:
    """The one parser; it keeps nothing between two texts, and building it takes a millisecond.

    HTML is off: Textual draws nothing for it, and text that a model wrote must not vanish.
    Bare addresses are not linked: looking for them costs time in every frame.
    """
    made = MarkdownIt("gfm-like", {"html": False, "linkify": False})
    made.core.ruler.push("keep_line_breaks", _keep_line_breaks)
    return made


def _keep_line_breaks(state: StateCore) -> None:
    for token in state.tokens:
        for child in token.children or ():
            if child.type == "softbreak":
                child.type = "hardbreak"


class MarkdownView(Markdown):
    """Textual's Markdown with our parser; a click on a link never opens anything by itself."""

    def __init__(self) -> None:
        super().__init__(parser_factory=parser, open_links=False)
