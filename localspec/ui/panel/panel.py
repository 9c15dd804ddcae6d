"""The speculation panel: is it worth it, how does it go, what does it cost.

The full form is a column beside the conversation, the compact form two lines below it. What they
say stands in `panel_layout`; the widgets place it.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from textual.containers import Vertical
from textual.content import Content
from textual.geometry import Region
from textual.visual import Visual

from localspec.ui.bases import Plain, Uncopied
from localspec.ui.panel.layout import compact_lines, full_lines, head_lines

if TYPE_CHECKING:
    from textual.app import ComposeResult
    from textual.strip import Strip

    from localspec.ui.panel.layout import PanelState


class PanelForm(StrEnum):
    """How much of the panel is shown."""

    FULL = "full"
    COMPACT = "compact"
    OFF = "off"


def natural_form(width: int, height: int) -> PanelForm:
    """What suits a terminal of this size while the user has not chosen."""
    if width >= 100 and height >= 24:
        return PanelForm.FULL
    return PanelForm.COMPACT if width >= 50 and height >= 16 else PanelForm.OFF


def next_form(form: PanelForm, width: int) -> PanelForm:
    """The form after `form`; the column needs room beside the conversation."""
    forms = [PanelForm.FULL, PanelForm.COMPACT, PanelForm.OFF]
    following = forms[(forms.index(form) + 1) % len(forms)]
    return PanelForm.COMPACT if following is PanelForm.FULL and width < 70 else following


class _Lines(Uncopied):
    """Lines of which only those are drawn anew that say something else than before."""

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002 - Textual's name for it
        super().__init__(id=id)
        self.auto_links = False
        self._shown: list[Content] = []
        self._strips: dict[int, Strip] = {}

    def show(self, lines: list[Content]) -> None:
        """Put `lines` in place of those that are there."""
        height = max(len(lines), len(self._shown))
        changed = [y for y in range(height) if not _same(lines, self._shown, y)]
        self._shown = lines
        for y in changed:
            self._strips.pop(y, None)
        if changed:
            self.refresh(*(Region(0, y, self.size.width, 1) for y in changed))

    def forget(self) -> None:
        """What was drawn has another width or other colours."""
        self._strips.clear()
        self.refresh()

    def notify_style_update(self) -> None:
        """Another theme."""
        super().notify_style_update()
        self._strips.clear()

    def render_line(self, y: int) -> Strip:
        """Draw one line, once."""
        if y not in self._strips:
            line = self._shown[y] if y < len(self._shown) else Content("")
            width = self.size.width
            drawn = Visual.to_strips(self, line, width, 1, self.visual_style, pad=True)
            self._strips[y] = drawn[0]
        return self._strips[y]


def _same(new: list[Content], old: list[Content], y: int) -> bool:
    return y < len(new) and y < len(old) and new[y].is_same(old[y])


class CompactPanel(_Lines):
    """Two lines below the conversation."""

    def __init__(self, state: PanelState, *, id: str | None = None) -> None:  # noqa: A002
        super().__init__(id=id)
        self._state = state

    def redraw(self) -> None:
        """Show the state as it is now."""
        self.show(compact_lines(self._state, self.size.width))

    def on_resize(self) -> None:
        """Lay out for the new width."""
        self.forget()
        self.redraw()


class _Column(_Lines, Plain):
    """Lines in a column that has its padding around it."""


class FullPanel(Vertical):
    """The column beside the conversation: the speed in big digits, everything else below."""

    def __init__(self, state: PanelState, *, id: str | None = None) -> None:  # noqa: A002
        super().__init__(id=id)
        self._state = state
        self._body = _Column(id="figures")

    def compose(self) -> ComposeResult:
        """One widget for all lines: each costs something in every frame."""
        yield self._body

    def redraw(self) -> None:
        """Show the state as it is now."""
        width, height = self._body.size
        head = head_lines(self._state)
        self._body.show([*head, *full_lines(self._state, width, height - len(head))])

    def on_resize(self) -> None:
        """Lay out for the new size, once the parts have theirs."""
        self._body.forget()
        self.call_after_refresh(self.redraw)
