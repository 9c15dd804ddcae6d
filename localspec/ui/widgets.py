"""Bases for widgets and dialogues: plain lines, nothing copied, a mark at a list's chosen line.

Put `LineWidget` and `Uncopied` last among a widget's bases: Textual takes styles for the name of
the first one only.

`LineWidget` is for widgets without a border, padding or links. Textual puts every line of a widget
through its styles before it is shown; without any styles to add, that costs more than the line
itself, several times a second, while a model needs the core.
"""

from __future__ import annotations

import unicodedata
from typing import ClassVar, cast

from rich.color import Color
from rich.segment import Segment
from textual import events
from textual.await_complete import AwaitComplete
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.geometry import Region
from textual.screen import ModalScreen, ScreenResultType
from textual.scrollbar import ScrollBar, ScrollBarRender
from textual.selection import Selection
from textual.strip import Strip
from textual.widget import Widget
from textual.widgets import Input, OptionList

from localspec.safe_text import safe

MARK = "▸"
MUTED, HEAD, KEY = "$foreground 65%", "bold $text-primary", "bold $text-accent"


def key_hint(key: str, label: str, action: str) -> Content:
    """A key and what it does, which a click does too."""
    return Content.from_markup(f'[@click="{action}"][{KEY}]{key}[/] [$foreground 70%]{label}[/][/]')


def unseen(event: events.Key) -> str:
    """The character of a key that Textual takes for no text, because it has no glyph.

    Joiners between letters and inside emoji, spaces of other widths, emoji newer than Python's
    tables. A character that could steer the terminal becomes a picture, as in a paste.
    """
    character = event.character
    if character is None or len(character) != 1 or event.is_printable:
        return ""
    return "" if unicodedata.category(character) in ("Cc", "Cs") else safe(character)


class Dialogue(ModalScreen[ScreenResultType]):
    """A screen over the others."""

    def dismiss(self, result: ScreenResultType | None = None) -> AwaitComplete:
        """Close it, unless another screen is on top: two Enters at once close one screen."""
        return super().dismiss(result) if self.app.screen is self else AwaitComplete()


class InputLine(Input):
    """One line of text without a blinking cursor, which takes every character that is typed."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("shift+backspace", "delete_left", show=False),
    ]

    def on_key(self, event: events.Key) -> None:
        """Insert a character that Textual would drop."""
        if text := unseen(event):
            event.stop()
            event.prevent_default()
            self.replace(text, *sorted(self.selection))


class LineWidget(Widget):
    """Shows what its `drawn` draws, as it is."""

    def drawn(self, y: int) -> Strip:
        """Draw one line."""
        return self.render_line(y)

    def render_lines(self, crop: Region) -> list[Strip]:
        """The lines in `crop`."""
        background = self.background_colors[1]
        filters = self.get_line_filters()
        strips = []
        for y in crop.line_range:
            strip = self.drawn(y)
            for line_filter in filters:
                strip = strip.apply_filter(line_filter, background)
            strips.append(strip.crop(crop.x, crop.right))
        return strips


class Uncopied(Widget):
    """A widget that a copied selection leaves out."""

    def get_selection(self, selection: Selection) -> tuple[str, str] | None:  # noqa: ARG002
        """Return nothing; Textual would give the text, or the name of a widget that draws lines."""
        return None


class PlainScrollBar(ScrollBar, LineWidget):
    """A vertical scrollbar, one cell wide, drawn only when it changes."""

    _drawn: object = None
    _strips: tuple[Strip, ...] = ()

    def render_lines(self, crop: Region) -> list[Strip]:
        """The lines in `crop`."""
        self._draw()
        return super().render_lines(crop)

    def render_line(self, y: int) -> Strip:
        """One cell."""
        return self._strips[y]

    def _draw(self) -> None:
        # How long, where and in which colours: nothing is drawn yet.
        bar = cast("ScrollBarRender", self.render())
        state = (self.size.height, bar.virtual_size, bar.window_size, bar.position, bar.style)
        if state == self._drawn:
            return
        style = self.app.console.get_style(bar.style)
        cells = self.renderer.render_bar(
            size=self.size.height,
            virtual_size=bar.virtual_size,
            window_size=bar.window_size,
            position=bar.position,
            back_color=style.bgcolor or Color.default(),
            bar_color=style.color or Color.default(),
        )
        # Equal cells are the same object, and so are their strips: Textual keeps what it derives.
        kinds = {id(cell): Strip([cell], 1) for cell in cells.segments}
        self._strips = tuple(kinds[id(cell)] for cell in cells.segments)
        self._drawn = state


class MarkedList(OptionList):
    """Puts a mark before the highlighted option, in a cell that the lines leave for it.

    So the option can be found without colour.
    """

    def render_line(self, y: int) -> Strip:
        """The line; its first cell is a mark if the highlighted option begins there."""
        strip = super().render_line(y)
        line = self.scroll_offset.y + y
        here = self._lines[line] if line < len(self._lines) else None
        if here is None or here != (self.highlighted, 0):
            return strip
        first, *_ = strip.crop(0, 1)
        return Strip.join([Strip([Segment(MARK, first.style)], 1), strip.crop(1)])
