"""An answer coloured by who proposed each piece first: the draft or the target."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Static

from localspec.chat.events import Origin

if TYPE_CHECKING:
    from localspec.chat.events import Span

# Underlined and coloured: the difference stays where there are no colours.
DRAFT_STYLE = "$text-success underline"
TARGET_STYLE = ""
# A growing text is wrapped anew with every frame: full chunks are left alone.
_FULL = 1500


def legend() -> Content:
    """What the two looks mean."""
    return Content.assemble(
        ("from the draft", DRAFT_STYLE), ("  ·  the target's own", "$foreground 65%")
    )


class OriginView(Vertical):
    """Plain text by origin, in chunks of whole lines."""

    def __init__(self) -> None:
        super().__init__()
        self._pieces: list[tuple[str, str]] = []
        self._length = 0
        self._last: Static | None = None

    def add(self, spans: Iterable[Span]) -> None:
        """Append text; the last chunk alone is drawn again."""
        for span in spans:
            style = DRAFT_STYLE if span.origin is Origin.DRAFT else TARGET_STYLE
            head, line_break, tail = span.text.rpartition("\n")
            if line_break and self._length + len(span.text) > _FULL:
                self._grow(head, style)
                self._draw()
                self._pieces, self._length, self._last = [], 0, None
                self._grow(tail, style)
            else:
                self._grow(span.text, style)
        self._draw()

    def _grow(self, text: str, style: str) -> None:
        if text:
            self._pieces.append((text, style))
            self._length += len(text)

    def _draw(self) -> None:
        content = Content.assemble(*self._pieces)
        if self._last is not None:
            self._last.update(content)
        elif self._pieces:
            self._last = Static(content, markup=False)
            self.mount(self._last)
