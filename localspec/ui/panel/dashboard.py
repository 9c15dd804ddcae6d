"""The figures on the screen: is it worth it, how does it go, what does it cost.

The full form is a column beside the conversation, the compact form two lines below it. What they
say stands in `layout`; the widgets place it, and the dashboard takes new figures.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from enum import StrEnum
from itertools import zip_longest

from textual.containers import Vertical
from textual.content import Content
from textual.geometry import Region, Size
from textual.strip import Strip
from textual.timer import Timer
from textual.visual import Visual

from localspec.process.messages import EngineStatus, SessionInfo
from localspec.ui.panel.layout import PanelState, compact_lines, full_lines, head_lines, summary
from localspec.ui.widgets import LineWidget, Uncopied

_FIGURES_S = 0.75
_STALE_S = 1.5  # longer than two frames of a running answer are ever apart


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
    forms = list(PanelForm)
    following = forms[(forms.index(form) + 1) % len(forms)]
    return PanelForm.COMPACT if following is PanelForm.FULL and width < 70 else following


class _Column(Uncopied, LineWidget):
    """Lines of which only those are drawn anew that say something else than before.

    One widget for all of them: each costs something in every frame.

    Args:
        lines: what to show in so many cells by so many lines.
    """

    def __init__(self, lines: Callable[[int, int], list[Content]], *, id: str) -> None:  # noqa: A002
        super().__init__(id=id)
        self.auto_links = False
        self._lines = lines
        self._shown: list[Content] = []
        self._strips: dict[int, Strip] = {}

    def redraw(self) -> None:
        """Show what there is now."""
        self.show(self._lines(*self.size))

    def show(self, lines: list[Content]) -> None:
        """Put `lines` in place of those that are there."""
        changed = [
            y
            for y, (new, old) in enumerate(zip_longest(lines, self._shown))
            if new is None or old is None or not new.is_same(old)
        ]
        self._shown = lines
        for y in changed:
            self._strips.pop(y, None)
        if changed:
            self.refresh(*(Region(0, y, self.size.width, 1) for y in changed))

    def on_resize(self) -> None:
        """Lay out for the new size."""
        self._strips.clear()
        self.refresh()
        self.redraw()

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


class Dashboard:
    """Both forms of the panel, fed with what the engine tells of itself.

    Args:
        form: the form to begin with; None for what suits the terminal's size.

    Attributes:
        state: what the panels draw.
        chosen: the form that the user chose; None while it follows the terminal's size.
        compact, full: the widgets; at most one of them is displayed.
    """

    def __init__(self, form: str | None = None) -> None:
        self.state = PanelState()
        self._short = _Column(lambda width, _: compact_lines(self.state, width), id="summary")
        self._long = _Column(self._all_lines, id="figures")
        self.compact = Vertical(self._short, id="compact")
        self.full = Vertical(self._long, id="full")
        self.chosen = PanelForm(form) if form is not None else None
        self._timer: Timer | None = None
        self._status: EngineStatus | None = None
        self._fresh = self._running = False
        self._taken_at = float("-inf")
        self._size = Size(0, 0)

    def start(self) -> None:
        """The app is on screen: from now on `run` has an effect."""
        self._timer = self.full.set_interval(_FIGURES_S, self._tick, pause=True)

    def run(self, running: bool) -> None:
        """Let the figures move, or stand still."""
        self._running = running
        if self._timer is not None:
            (self._timer.resume if running else self._timer.pause)()

    def go_along(self) -> None:
        """Text is being drawn: new figures go into the same frame.

        A frame of their own costs as much again: whatever changes, all of the screen is put
        together.
        """
        if self._fresh:
            self.refresh()

    def _tick(self) -> None:
        """No text comes (a prompt is read, a model thinks hard): the figures move all the same."""
        if self._fresh and time.monotonic() - self._taken_at >= _STALE_S:
            self.refresh()

    def seat(self, session: SessionInfo) -> None:
        """Another pair answers."""
        self.state.note = session.speculation_note

    def hear(self, status: EngineStatus) -> None:
        """Take what the engine tells; while text is drawn it waits for that."""
        self._status, self._fresh = status, True
        if not self._running:
            self.refresh()

    def refresh(self) -> None:
        """Show what the engine told last."""
        if self._status is None:
            return
        self.state.take(self._status.figures)
        self.state.memory = self._status.memory
        self._fresh, self._taken_at = False, time.monotonic()
        self._redraw()

    def unsaid(self) -> str:
        """What drafting brought to the last answer, where the column is not there to say it."""
        return "" if self.full.display else summary(self.state.figures)

    def cycle(self, wanted: str) -> None:
        """Choose the form by name, or the next one."""
        following = next_form(self._form(), self._size.width)
        self.chosen = PanelForm(wanted) if wanted else following
        self.place(self._size)

    def place(self, size: Size) -> None:
        """Show the form that was chosen, or that suits a terminal of this size."""
        self._size = size
        form = self._form()
        self.full.display = form is PanelForm.FULL
        self.compact.display = form is PanelForm.COMPACT
        self._redraw()

    def _form(self) -> PanelForm:
        return self.chosen or natural_form(*self._size)

    def _redraw(self) -> None:
        if self.full.display:
            self._long.redraw()
        elif self.compact.display:
            self._short.redraw()

    def _all_lines(self, width: int, height: int) -> list[Content]:
        head = head_lines(self.state, width)
        return [*head, *full_lines(self.state, width, height - len(head))]
