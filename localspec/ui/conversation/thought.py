"""A model's thoughts above its answer: one line that can be opened."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from textual.content import Content

from localspec import formats
from localspec.chat.events import Span
from localspec.chat.thinking import Thinking, ThoughtSplitter
from localspec.ui.bases import MUTED
from localspec.ui.conversation.blocks import Block, Frame, Gap, Paragraph, divided

if TYPE_CHECKING:
    from collections.abc import Iterable

    from localspec.ui.conversation.items import Figures

_SHOWN_WHILE_GROWING = 4000


class Thought:
    """What an answer's model thought, how many tokens and seconds that took.

    Args:
        thinking: how the model marks it.
    """

    def __init__(self, thinking: Thinking) -> None:
        self._thinking = thinking
        self._splitter = ThoughtSplitter(thinking)
        self._text = ""
        self._answered = False
        self._began: float | None = None
        self._open = False
        self.tokens = 0.0
        self.seconds = 0.0

    def restart(self) -> None:
        """The whole text comes once more."""
        self._splitter = ThoughtSplitter(self._thinking)
        self._text = ""
        self._answered = False

    def show(self, shown: bool) -> None:
        """Open or fold it."""
        self._open = shown

    def take(self, spans: Iterable[Span], tokens: int) -> tuple[list[Span], bool]:
        """The part of `spans` that belongs to the answer, and whether the thought has grown.

        Args:
            spans: new text.
            tokens: how many tokens it is; they are divided as the text is.
        """
        before, total, answer = len(self._text), 0, []
        for span in spans:
            total += len(span.text)
            for thought, text in self._splitter.feed(span.text):
                if thought:
                    self._text += text
                else:
                    answer.append(Span(text, span.origin))
        grown = len(self._text) - before
        if grown and tokens:
            now = time.monotonic()
            self._began = self._began or now
            self.seconds = now - self._began
            self.tokens += tokens * min(1.0, grown / total)
        if self._text and answer and not self._answered:  # blank lines between the two
            answer[0] = Span(answer[0].text.lstrip(), answer[0].origin)
        self._answered = self._answered or any(span.text for span in answer)
        return [span for span in answer if span.text], grown > 0

    def figures(self) -> dict[str, float]:
        """What is worth keeping about it."""
        if not self.tokens:
            return {}
        return {"thought_tokens": round(self.tokens), "thought_s": self.seconds}

    def recall(self, figures: Figures) -> None:
        """Take over what was kept of an answer that was written earlier."""
        tokens, seconds = figures.get("thought_tokens"), figures.get("thought_s")
        if not self.tokens and isinstance(tokens, int) and isinstance(seconds, int | float):
            self.tokens, self.seconds = tokens, seconds

    def flush(self) -> str:
        """Text that looked like the beginning of a mark at the very end."""
        return self._splitter.flush()

    def blocks(self) -> list[Block]:
        """One line, and the text where it is open; nothing without thoughts.

        While it grows its end alone is shown: it is laid out anew for every frame.
        """
        if not self._text.strip():
            return []
        doing = "thinking …" if self._splitter.inside else "thought"
        parts = [doing]
        if self.tokens:
            parts.append(f"{formats.count(round(self.tokens))} tokens")
            parts.append(formats.seconds(self.seconds))
        else:
            parts.append(f"{formats.count(len(self._text.split()))} words")
        sign = "▾" if self._open else "▸"
        head = Content.from_markup(
            f"[@click=app.command('thoughts')][bold $text-accent]{sign}[/] [{MUTED}]"
            f"{' · '.join(parts)}[/][/]"
        )
        bar = Content.styled("┊ ", MUTED)
        blank = Content("")
        blocks = [Block(Frame(blank, blank), Paragraph(head))]
        if self._open:
            text = self._text.strip("\n")
            if self._splitter.inside and len(text) > _SHOWN_WHILE_GROWING:
                text = f"…{text[-_SHOWN_WHILE_GROWING:]}"
            blocks += [
                Block(Frame(bar, bar), Paragraph(Content.styled(part, f"{MUTED} italic")))
                for part in divided(text)
            ]
        return [*blocks, Block(Frame(blank, blank), Gap())]
