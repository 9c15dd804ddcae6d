"""One answer: Markdown that grows while the model writes, or the same text by origin."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Static

from localspec.chat.events import Span
from localspec.engine.stats import FinishReason
from localspec.ui import numbers
from localspec.ui.markdown_view import MarkdownView
from localspec.ui.origin_view import OriginView
from localspec.ui.safe_text import safe

if TYPE_CHECKING:
    from textual.app import ComposeResult
    from textual.widgets.markdown import MarkdownStream

    from localspec.engine.stats import GenerationStats

# Text streamed block by block comes out as text parsed at once, with this one exception: a link
# whose address is defined further down. Only then is the whole text parsed again at the end.
_LATE_DEFINITION = re.compile(r"^ {0,3}\[[^\]\n]+\]:", re.MULTILINE)
_ENDINGS = {
    FinishReason.STOP: "",
    FinishReason.LENGTH: "length limit reached",
    FinishReason.CONTEXT: "the context is full",
    FinishReason.CANCELLED: "stopped",
}


class Answer(Vertical):
    """The text of one answer and, below it, one line of figures.

    Args:
        spans: text that is already there (a conversation opened again).
        by_origin: show who proposed what instead of Markdown.
    """

    def __init__(self, spans: Iterable[Span] = (), *, by_origin: bool = False) -> None:
        super().__init__(classes="answer")
        self._spans: list[Span] = [Span(safe(span.text), span.origin) for span in spans]
        self._by_origin = by_origin
        self._markdown: MarkdownView | None = None
        self._stream: MarkdownStream | None = None
        self._origins: OriginView | None = None
        self._in_markdown = 0
        self._footnote = Static("", markup=False, classes="footnote")

    def compose(self) -> ComposeResult:
        """The line of figures; the views come when there is text to show."""
        yield self._footnote

    async def on_mount(self) -> None:
        """Show the text that was there from the beginning."""
        if self._spans:
            await self._show()

    @property
    def text(self) -> str:
        """The text so far, as it is shown."""
        return "".join(span.text for span in self._spans)

    async def write(self, spans: Iterable[Span]) -> None:
        """Append what one or several rounds released."""
        new = [Span(safe(span.text), span.origin) for span in spans if span.text]
        if not new:
            return
        self._spans.extend(new)
        if self._by_origin:
            (await self._origin_view()).add(new)
        else:
            await self._stream_markdown("".join(span.text for span in new))

    async def finish(self, stats: GenerationStats | None, reason: FinishReason | None) -> None:
        """No more text comes: settle the Markdown and say how it went."""
        if self._stream is not None:
            stream, self._stream = self._stream, None
            await stream.stop()
            if self._markdown is not None and _LATE_DEFINITION.search(self.text):
                await self._markdown.update(self.text)
        self._footnote.update(Content(footnote(stats, reason, empty=not self._spans)))
        self._footnote.display = True

    async def show_origins(self, by_origin: bool) -> None:
        """Switch between Markdown and the view by origin; also while text is coming."""
        if by_origin != self._by_origin:
            self._by_origin = by_origin
            await self._show()

    async def _show(self) -> None:
        if self._by_origin:
            if self._origins is not None:
                await self._origins.remove()
                self._origins = None
            if self._spans:
                (await self._origin_view()).add(self._spans)
        else:
            # What came while the other view was on is missing here.
            await self._stream_markdown(self.text[self._in_markdown :])
            if self._footnote.display and self._stream is not None:
                stream, self._stream = self._stream, None
                await stream.stop()
        if self._markdown is not None:
            self._markdown.display = not self._by_origin
        if self._origins is not None:
            self._origins.display = self._by_origin

    async def _origin_view(self) -> OriginView:
        if self._origins is None:
            self._origins = OriginView()
            await self.mount(self._origins, before=self._footnote)
        return self._origins

    async def _stream_markdown(self, text: str) -> None:
        if not text:
            return
        if self._markdown is None:
            self._markdown = MarkdownView()
            await self.mount(self._markdown, before=self._footnote)
        if self._stream is None:
            self._stream = MarkdownView.get_stream(self._markdown)
        self._in_markdown += len(text)
        await self._stream.write(text)


def footnote(stats: GenerationStats | None, reason: FinishReason | None, *, empty: bool) -> str:
    """One line about a finished answer: length, speed, acceptance, and how it ended."""
    parts = []
    if stats is not None and stats.generated_tokens:
        tokens = stats.generated_tokens
        parts.append(f"{numbers.count(tokens)} token{'s' if tokens != 1 else ''}")
        if stats.tokens_per_second is not None:
            parts.append(f"{numbers.speed(stats.tokens_per_second)} tokens/s")
        if stats.acceptance_rate is not None:
            parts.append(f"{numbers.percent(stats.acceptance_rate)} accepted")
    ending = _ENDINGS[reason] if reason is not None else "broken off"
    if empty:
        ending = ending or "an empty answer"
    return " · ".join([*parts, ending] if ending else parts)
