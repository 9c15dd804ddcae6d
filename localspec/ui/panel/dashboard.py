"""The figures on the screen: whether drafting pays, how it goes, what it costs.

The full form is a column next to the conversation, the compact form two lines below it. `layout`
writes their lines; the widgets place them, and the dashboard takes new figures.
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

from localspec.chat.figures.benefit import summary
from localspec.process.messages import EngineStatus, SessionInfo
from localspec.ui.panel.layout import PanelState, compact_lines, full_lines, head_lines
from localspec.ui.widgets import LineWidget, Uncopied

_FIGURES_S = 0.75
_STALE_S = 1.5  # longer than the time between two frames of a running answer


class PanelForm(StrEnum):
    """How much of the panel is shown."""

    FULL = "full"
    COMPACT = "compact"
    OFF = "off"
    AUTO = "auto"
    """Whichever suits the terminal's size."""


def natural_form(width: int, height: int) -> PanelForm:
    """The form that suits a terminal of this size."""
    if width >= 100 and height >= 24:
        return PanelForm.FULL
    return PanelForm.COMPACT if width >= 50 and height >= 16 else PanelForm.OFF


def fitting_form(chosen: PanelForm, width: int, height: int) -> PanelForm:
    """The chosen form, unless it would leave the conversation no room."""
    natural = natural_form(width, height)
    too_large = width < 70 if chosen is PanelForm.FULL else natural is PanelForm.OFF
    return natural if chosen is PanelForm.AUTO or too_large else chosen


def next_form(form: PanelForm, width: int, height: int) -> PanelForm:
    """The next form after `form` that a terminal of this size has room for."""
    forms = (PanelForm.FULL, PanelForm.COMPACT, PanelForm.OFF)
    after = forms.index(form) + 1
    following = (*forms[after:], *forms[:after])
    return next(each for each in following if fitting_form(each, width, height) is each)


class _Column(Uncopied, LineWidget):
    """Lines, of which only the changed ones are drawn anew.

    They share one widget, because each widget costs something in every frame.

    Args:
        lines: gives the lines for a width in cells and a height in lines.
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
        """Replace the lines."""
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
        """Redraw in the colours of another theme."""
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
    """Both forms of the panel, fed with the engine's figures.

    Args:
        form: the form to begin with; None for what suits the terminal's size.

    Attributes:
        chosen: the form that the user chose.
        compact, full: the widgets; at most one of them is displayed.
    """

    def __init__(self, form: str | None = None) -> None:
        self.state = PanelState()
        self._short = _Column(lambda width, _: compact_lines(self.state, width), id="summary")
        self._long = _Column(self._all_lines, id="figures")
        self.compact = Vertical(self._short, id="compact")
        self.full = Vertical(self._long, id="full")
        self.chosen = PanelForm(form or PanelForm.AUTO)
        self._timer: Timer | None = None
        self._status: EngineStatus | None = None
        self._fresh = self._running = False
        self._taken_at = float("-inf")
        self._size = Size(0, 0)

    def start(self) -> None:
        """Note that the app is on screen: from now on `run` has an effect."""
        self._timer = self.full.set_interval(_FIGURES_S, self._tick, pause=True)

    def run(self, running: bool) -> None:
        """Let the figures move, or stand still."""
        self._running = running
        if self._timer is not None:
            (self._timer.resume if running else self._timer.pause)()

    def go_along(self) -> None:
        """Show new figures in the frame that draws text.

        A frame of their own would cost as much again: every change composes the whole screen.
        """
        if self._fresh:
            self.refresh()

    def _tick(self) -> None:
        """Show new figures although no text comes (a prompt is read, a model thinks)."""
        if self._fresh and time.monotonic() - self._taken_at >= _STALE_S:
            self.refresh()

    def seat(self, session: SessionInfo) -> None:
        """Begin anew with another pair."""
        self.state.note = session.speculation_note

    def leave(self) -> None:
        """Show no memory: the pair is unloaded."""
        self._status, self.state.memory = None, None
        self._redraw()

    def hear(self, status: EngineStatus) -> None:
        """Take new figures; while text is drawn they wait for its next frame."""
        self._status, self._fresh = status, True
        if not self._running:
            self.refresh()

    def refresh(self) -> None:
        """Show the latest figures."""
        if self._status is None:
            return
        self.state.take(self._status.figures)
        self.state.memory = self._status.memory
        self._fresh, self._taken_at = False, time.monotonic()
        self._redraw()

    def said(self) -> str:
        """What drafting brought to the running or the last answer."""
        return summary(self.state.figures)

    def unsaid(self) -> str:
        """The same, as far as neither the full panel nor the line below an answer says it."""
        return "" if self.full.display else summary(self.state.figures, counted=True)

    def cycle(self, wanted: str) -> bool:
        """Choose the form by name, or the next one; whether the terminal has room for it."""
        present = self._form()
        following = PanelForm(wanted) if wanted else next_form(present, *self._size)
        if following is present and not wanted:  # there is room for no other
            return not self._size
        self.chosen = following
        self.place(self._size)
        return not self._size or self.chosen in (PanelForm.AUTO, self._form())

    def place(self, size: Size) -> None:
        """Show the form that was chosen, as far as a terminal of this size has room for it."""
        self._size = size
        form = self._form()
        self.full.display = form is PanelForm.FULL
        self.compact.display = form is PanelForm.COMPACT
        self._redraw()

    def _form(self) -> PanelForm:
        return fitting_form(self.chosen, *self._size)

    def _redraw(self) -> None:
        if self.full.display:
            self._long.redraw()
        elif self.compact.display:
            self._short.redraw()

    def _all_lines(self, width: int, height: int) -> list[Content]:
        head = head_lines(self.state, width)
        return [*head, *full_lines(self.state, width, height - len(head))]
