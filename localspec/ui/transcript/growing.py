"""Texts that grow: finished parts are laid out once, and only the end is parsed again."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from textual.content import Content

from localspec import formats
from localspec.chat.dialects import Dialect, ThoughtPiece
from localspec.chat.dialects.reading.origins import OriginReader
from localspec.chat.events import MODELS, Origin, Span
from localspec.chat.figures.figures import AnswerFigures
from localspec.process.messages import SessionInfo
from localspec.ui.transcript.blocks import GAP, Block, Paragraph, divided
from localspec.ui.transcript.cutting import LONGEST_TAIL, cut
from localspec.ui.transcript.markdown_blocks import TopLevelBlock, parse
from localspec.ui.widgets import MUTED

# All differ without their colours too, for terminals that have none.
STYLES = {
    Origin.DRAFT: "$text-success underline",
    Origin.SECOND: "$text-primary bold",
    Origin.THIRD: "$text-accent italic underline",
    Origin.FOURTH: "$text-secondary bold underline",
    Origin.LOOKUP: "$text-warning italic",
    Origin.TARGET: "",
}
"""The looks of an answer's pieces by origin, told apart not by colour alone."""
_GAP = Block(GAP)
LONGEST_PIECE = 1000
_SHOWN_WHILE_GROWING = 4000  # of a thought


class GrowingMarkdown:
    """Markdown: all top-level blocks but the last are final.

    Args:
        references: the link definitions of the whole text, also of parts that have not come yet.
    """

    def __init__(self, references: Mapping[str, Any] | None = None) -> None:
        self._references = references
        self._tail = ""
        self._unfinished: list[TopLevelBlock] = []  # the blocks of the tail
        self._any = False
        self._joined = False  # whether the tail goes on with a block that was cut
        self._numbers: Sequence[int] = ()  # of the list items that open it again

    def add(self, spans: Iterable[Span]) -> tuple[list[Block], list[Block]]:
        """Append text: blocks that have become final, and the new unfinished end.

        Never parses more than the longest tail and a piece in one go, however much comes.
        """
        text = "".join(span.text for span in spans)
        final: list[Block] = []
        for start in range(0, len(text), LONGEST_PIECE):
            self._tail += text[start : start + LONGEST_PIECE]
            for each in self._finished():
                final += self._spaced(each)
        live: list[Block] = []
        for each in self._unfinished:
            live += self._spaced(each, peek=True)
        return final, live

    def _finished(self) -> list[TopLevelBlock]:
        """Take all top-level blocks but the last from the tail, and a part of an endless one."""
        self._unfinished = self._parse(self._tail)
        finished = self._unfinished[:-1]
        if finished:
            self._tail = "\n".join(self._tail.split("\n")[self._unfinished[-1].first_line :])
            self._joined, self._numbers = False, ()
        if len(self._tail) > LONGEST_TAIL:
            head, rest, joined, numbers = cut(self._tail, self._numbers)
            finished += self._parse(head)
            self._tail, self._joined, self._numbers = rest, joined, numbers
        if finished:  # they may have kept the parser from links or tables
            self._unfinished = self._parse(self._tail)
        return finished

    def _parse(self, source: str) -> list[TopLevelBlock]:
        found = parse(source, self._references, self._numbers)
        if found:
            found[0] = replace(found[0], joined=self._joined)
        return found

    def _spaced(self, block: TopLevelBlock, *, peek: bool = False) -> list[Block]:
        """An empty line before every top-level block but the first and the rest of one."""
        blocks = block.blocks()
        spaced = [_GAP, *blocks] if self._any and blocks and not block.joined else blocks
        if not peek:
            self._any = self._any or bool(blocks)
        return spaced


class GrowingOrigins:
    """The plain text, by who proposed each piece first; all lines but the last are final."""

    def __init__(self) -> None:
        self._line: list[tuple[str, str]] = []
        self._length = 0

    def add(self, spans: Iterable[Span]) -> tuple[list[Block], list[Block]]:
        """Append text: lines that have become final, and the last line."""
        final: list[Block] = []
        for span in spans:
            style = STYLES[span.origin]
            first, *others = span.text.split("\n")
            self._grow(first, style)
            for text in others:
                final.append(self._take_line())
                self._grow(text, style)
            if self._length > LONGEST_TAIL:
                final.append(self._take_line())
        return final, [self._block()]

    def _grow(self, text: str, style: str) -> None:
        if text:
            self._line.append((text, style))
            self._length += len(text)

    def _block(self) -> Block:
        return Block(Paragraph(Content.assemble(*self._line)))

    def _take_line(self) -> Block:
        block = self._block()
        self._line, self._length = [], 0
        return block


class Thought:
    """A model's thought before an answer, with its tokens and seconds.

    Args:
        dialect: how the model marks it.
        tools: those that the model may call, as for `Dialect.reader`; calls are left out.
    """

    def __init__(self, dialect: Dialect, tools: Sequence[Any] | None = ()) -> None:
        self._dialect, self._tools = dialect, tools
        self._reader = self._new()
        self._text = ""
        self._counter = dialect.reader(tools, exact=True)
        self._began: float | None = None
        self._open, self._headed = False, True
        self.tokens = 0.0
        self.seconds = 0.0

    def restart(self) -> None:
        """Forget the text, which comes once more from the start."""
        self._reader = self._new()
        self._text = ""

    def _new(self) -> OriginReader:
        return OriginReader(self._dialect.reader(self._tools, exact=True))

    def show(self, shown: bool, *, headed: bool = True) -> None:
        """Open or fold it; `headed`: below a line with its length, which a click opens or folds."""
        self._open, self._headed = shown, headed

    def count(self, text: str, tokens: int) -> None:
        """Count the tokens of new text as it comes: `take` may get it late, or once more.

        Args:
            text: what the model has written since the last call.
            tokens: how many tokens it is; they are divided as the text is.
        """
        read = self._counter.feed(text)
        grown = sum(len(piece.text) for piece in read if isinstance(piece, ThoughtPiece))
        if grown and tokens:
            now = time.monotonic()
            self._began = self._began or now
            self.seconds = now - self._began
            self.tokens += tokens * min(1.0, grown / len(text))

    def take(self, spans: Iterable[Span]) -> tuple[list[Span], bool]:
        """The part of `spans` that belongs to the answer, and whether the thought has grown."""
        before = len(self._text)
        answer: list[Span] = []
        for span in spans:
            for thought, pieces in self._reader.feed(span):
                if thought:
                    self._text += "".join(piece.text for piece in pieces)
                else:
                    answer += pieces
        return answer, len(self._text) > before

    def figures(self) -> dict[str, float]:
        """The figures to store with the message."""
        if not self.tokens:
            return {}
        return {"thought_tokens": round(self.tokens), "thought_s": self.seconds}

    def recall(self, figures: AnswerFigures) -> None:
        """Take over the stored figures of an earlier answer."""
        tokens, seconds = figures.get("thought_tokens"), figures.get("thought_s")
        if not self.tokens and isinstance(tokens, int) and isinstance(seconds, int | float):
            self.tokens, self.seconds = tokens, seconds

    def flush(self) -> list[Span]:
        """The part of the answer that was held back because it might have become a mark."""
        said: list[Span] = []
        for thought, pieces in self._reader.end():
            if thought:
                self._text += "".join(piece.text for piece in pieces)
            else:
                said += pieces
        return said

    def blocks(self) -> list[Block]:
        """Its line, with the text if it is open; nothing without thoughts.

        A growing thought shows only its end, because every frame lays it out anew.
        """
        if not self._text.strip():
            return []
        n, unit = max(1, round(self.tokens)), "token"
        if not self.tokens:  # written by another program, or before tokens were counted
            n, unit = len(self._text.split()), "word"
        took = formats.counted(n, unit)
        if self.tokens:
            took += f", {formats.seconds(self.seconds)}"
        said = "thinking … " if self._reader.thinking else "thought for "
        sign = "▾" if self._open else "▸"
        head = Content.from_markup(
            f"[@click=app.command('thoughts')][bold $text-accent]{sign}[/] [{MUTED}]"
            f"{said}{took}[/][/]"
        )
        blocks = [Block(Paragraph(head))] if self._headed else []
        if self._open:
            bar = Content.styled("┊ ", MUTED)
            text = self._text.strip("\n")
            if self._reader.thinking and len(text) > _SHOWN_WHILE_GROWING:
                text = f"…{text[-_SHOWN_WHILE_GROWING:]}"
            blocks += [
                Block(Paragraph(Content.styled(part, f"{MUTED} italic")), bar, bar)
                for part in divided(text)
            ]
        return [*blocks, _GAP]


def legend(session: SessionInfo | None) -> Content:
    """The key to a text by origin, with all the models that draft in this session."""
    named = (session.draft_name if session else None) or ""
    drafts = named.count(" + ") + 1
    marks = [(f"draft {n}", STYLES[each]) for n, each in enumerate(MODELS[:drafts], 1)]
    drafted = marks if drafts > 1 else [("from the draft", STYLES[Origin.DRAFT])]
    return Content.assemble(
        *(piece for mark in drafted for piece in (mark, ("  ·  ", MUTED))),
        ("copied", STYLES[Origin.LOOKUP]),
        ("  ·  the target's own", MUTED),
    )
