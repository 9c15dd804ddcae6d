"""The speculation panel: is it worth it, how does it go, what does it cost.

The full form is a column beside the conversation, the compact form two lines below it. What they
say stands in `panel_layout`; the widgets place it.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.widget import Widget
from textual.widgets import Digits, Static

from localspec.ui import drawing
from localspec.ui.panel_layout import big_speed, compact_lines, full_lines

if TYPE_CHECKING:
    from textual.app import ComposeResult

    from localspec.ui import drawing
from localspec.ui.panel_layout import PanelState


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


class CompactPanel(Widget):
    """Two lines below the conversation."""

    def __init__(self, state: PanelState, *, id: str | None = None) -> None:  # noqa: A002
        super().__init__(id=id)
        self.state = state

    def render(self) -> Content:
        """Lay the lines out for the present width."""
        lines = compact_lines(self.state, self.size.width)
        return Content("\n").join(lines[: max(1, self.size.height)])


class _Body(Widget):
    """The sections below the digits."""

    def __init__(self, state: PanelState) -> None:
        super().__init__()
        self.state = state

    def render(self) -> Content:
        """Lay the sections out for the present size."""
        return Content("\n").join(full_lines(self.state, self.size.width, self.size.height))


class FullPanel(Vertical):
    """The column beside the conversation: the speed in big digits, everything else below."""

    def __init__(self, state: PanelState, *, id: str | None = None) -> None:  # noqa: A002
        super().__init__(id=id)
        self.state = state
        self._digits = Digits("0")
        self._unit = Static("", markup=False, id="unit")
        self._body = _Body(state)

    def compose(self) -> ComposeResult:
        """Digits above, the body below."""
        with Horizontal(id="speed"):
            yield self._digits
            yield self._unit
        yield self._body

    def redraw(self) -> None:
        """Show the state as it is now."""
        figure, meaning = big_speed(self.state)
        self._digits.update(figure)
        self._unit.update(
            drawing.styled(("tokens/s\n", "bold"), (meaning, "$foreground 65%")), layout=False
        )
        self._body.refresh()
