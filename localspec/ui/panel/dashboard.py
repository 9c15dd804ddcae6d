"""The figures on the screen: in which form they show, and when they are taken anew."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from localspec.ui.panel.layout import PanelState
from localspec.ui.panel.panel import CompactPanel, FullPanel, PanelForm, natural_form, next_form

if TYPE_CHECKING:
    from textual.timer import Timer

    from localspec.process.messages import Status
    from localspec.ui.app import ChatApp

_FIGURES_S = 0.75
_STALE_S = 1.5  # longer than two frames of a running answer are ever apart


class Dashboard:
    """Both forms of the panel, fed with what the engine tells of itself.

    Args:
        app: whose panel it is.
        form: the form to begin with; None for what suits the terminal's size.

    Attributes:
        state: what the panels draw.
        compact, full: the widgets; at most one of them is displayed.
    """

    def __init__(self, app: ChatApp, form: str | None = None) -> None:
        self._app = app
        self.state = PanelState()
        self.compact = CompactPanel(self.state, id="compact")
        self.full = FullPanel(self.state, id="full")
        self._chosen = PanelForm(form) if form is not None else None
        self._timer: Timer | None = None
        self._status: Status | None = None
        self._fresh = self._running = False
        self._taken_at = float("-inf")

    def start(self) -> None:
        """The app is on screen: from now on `run` has an effect."""
        self._timer = self._app.set_interval(_FIGURES_S, self._tick, pause=True)

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

    def hear(self, status: Status) -> None:
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

    def cycle(self, wanted: str) -> None:
        """Choose the form by name, or the next one."""
        forms = {form.value: form for form in PanelForm}
        self._chosen = forms.get(wanted) or next_form(self._form(), self._app.size.width)
        self.place()

    def place(self) -> None:
        """Show the form that was chosen, or that suits the terminal's size."""
        form = self._form()
        self.full.display = form is PanelForm.FULL
        self.compact.display = form is PanelForm.COMPACT
        self._redraw()

    def _form(self) -> PanelForm:
        return self._chosen or natural_form(self._app.size.width, self._app.size.height)

    def _redraw(self) -> None:
        if self.full.display:
            self.full.redraw()
        elif self.compact.display:
            self.compact.redraw()
