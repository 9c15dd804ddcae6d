"""Texts that a hostile model or file may put on the screen, and what showing them must hold."""

from __future__ import annotations

import gc
import random
import re
import time
from collections.abc import Callable
from dataclasses import dataclass

from localspec.chat.dialects import Dialect
from localspec.chat.events import Origin, Span
from localspec.safe_text import one_line
from localspec.ui.transcript.items import Answer, ConversationItem, Notice, Question
from localspec.ui.transcript.markdown_blocks import code_blocks

# What must never reach a terminal as it is. A tab is laid out as blanks before it does.
CONTROL = re.compile("[\x00-\x08\x0a-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
WIDTHS = (8, 20, 80, 200)
DIALECT = Dialect()

# fmt: off
_PIECES = (
    *("[", "![", "]", "](", "[a](", ")", "[[a]]", "[a][", "](<", "](a 'b", '](a "', "[^1]", "<a@b"),
    *("*", "**", "*a ", "_", "*_", "**a *", "~~", "~~a",
      "`", "`a", "``", "\\", "&", "&amp;", "&#1"),
    *("&#13;", "&#27;", "&#x202e;", "&Tab;", "<", "<!--", "<div>", "http://a.b ", "<http:", "(c)"),
    *("> ", ">", ">\n", "> > - ", "- ", "-\n", "1. ", "1. a\n", "+ a\n", "    ", "\t", "- [ ] a\n"),
    *("|", "|\n", "a|b\n-|-\n", "|-\n", "c|d\n",
      "||||||||", "---\n", "===\n", "a\n=\n", "# a\n", "#"),
    *("```\n", "```json\n", "```python\n", "~~~\n", "```a b", "````", '{"a":1},', "def f(x):\n"),
    *("[a]: b\n", "[a]:\n", '[a]: b "\n', "[a\n", "[a]: <", "[a]: ((", "[x]", "\n", "\n\n", "  \n"),
    *("x", "x y ", "漢字", "a\u0301", "\u0301",
      "\U0001f468\u200d", "\u05d0", "\U0001f1e9", "\ud800"),
    *("\x1b[2J", "\x1b]0;x\x07", "\x9b1m", "\x00", "\r", "\r\n",
      "\x0b", "\u2028", "\u202e", "\ufeff"),
    *("<think>", "</think>", "'", '"', "/*", "//", "${", "<?php ", "#{", "\\x",
      "@", "%", "=begin\n"),
)
_LANGUAGES = ("python", "json", "js", "c++", "bash", "html", "yaml", "sql", "rust", "go", "perl",
              "ruby", "php", "markdown", "latex", "diff", "java", "swift", "toml", "css")
# fmt: on


def hostile(seed: int) -> str:
    """Up to 30,000 characters: one piece again and again, some mixed, or all at random."""
    luck = random.Random(seed)
    size = luck.choice((300, 3000, 9000, 30_000))
    kind = luck.randrange(6)
    if kind == 0:
        piece = luck.choice(_PIECES)
        text = piece * (size // len(piece))
    elif kind == 1:
        text = "".join(luck.choices(luck.sample(_PIECES, 3), k=size // 3))
    elif kind == 2:
        text = "".join(luck.choices(_PIECES, k=size // 4))
    elif kind == 3:
        opening, closing = luck.sample(_PIECES, 2)
        half = size // 2
        text = opening * (half // len(opening)) + closing * (half // len(closing))
    elif kind == 4:
        mixed = "".join(luck.choices(luck.sample(_PIECES, 4), k=size // 4))
        text = f"```{luck.choice(_LANGUAGES)}\n{mixed}"
    else:
        rows = "".join(luck.choices(["|", "a|", "b | ", "\n", "|\n"], k=size // 2))
        columns = luck.choice((1, 3, 40, 400))
        text = f"{'a|' * columns}\n{'-|' * columns}\n{rows}"
    return text[:30_000]


@dataclass(slots=True)
class Shown:
    """The result of showing one text.

    Attributes:
        slowest: seconds of processor time of the longest step, and what it did.
        controls: control characters that came out.
    """

    slowest: tuple[float, str] = (0.0, "")
    controls: str = ""

    def step(self, what: str, do: Callable[[], object]) -> object:
        gc.disable()  # it would walk what thousands of tests before this one have left
        try:
            began = time.thread_time()
            done = do()
            self.slowest = max(self.slowest, (time.thread_time() - began, what))
        finally:
            gc.enable()
        return done

    def look(self, item: ConversationItem, width: int) -> None:
        found = "".join(line.plain for line in item.lines_so_far(width))
        self.controls += "".join(CONTROL.findall(found))


def show(text: str, seed: int) -> Shown:
    """Show a text in each of the screen's ways, step by step."""
    luck = random.Random(seed)
    shown = Shown()
    width = luck.choice(WIDTHS)
    _whole(shown, text, width, by_origin=False)
    _whole(shown, text, width, by_origin=True)
    _stream(shown, text, width, luck)
    for item in (Question(text), Notice(text, text)):
        name = type(item).__name__
        while shown.step(name, lambda item=item: item.advance(width)):  # type: ignore[misc]
            pass
        shown.look(item, width)
    shown.step("copy", lambda: code_blocks(text))
    shown.controls += "".join(CONTROL.findall(str(shown.step("title", lambda: one_line(text)))))
    return shown


def _whole(shown: Shown, text: str, width: int, *, by_origin: bool) -> None:
    """A stored answer, opened and then seen at another width."""
    answer = Answer([Span(text, Origin.DRAFT)], by_origin=by_origin, dialect=DIALECT)
    answer.show_thoughts(True)
    shown.step("finish", lambda: answer.finish({}, None))
    for one in (width, width + 1):
        while shown.step("stored", lambda one=one: answer.advance(one)):  # type: ignore[misc]
            pass
        shown.look(answer, one)


def _stream(shown: Shown, text: str, width: int, luck: random.Random) -> None:
    """An answer that grows, in pieces as they come in a frame."""
    answer = Answer(dialect=DIALECT)
    answer.show_thoughts(luck.random() < 0.5)
    rest = text[:4000]
    while rest:
        size = luck.choice((1, 7, 200, 900))
        piece, rest = [Span(rest[:size], Origin.TARGET)], rest[size:]
        shown.step("stream", lambda piece=piece: answer.write(piece, 1))  # type: ignore[misc]
        while shown.step("stream lines", lambda: answer.advance(width)):
            pass
    shown.step("finish", lambda: answer.finish({}, None))
    answer.lines(width)
    shown.look(answer, width)
