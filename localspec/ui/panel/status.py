"""One line above the input: what the app is doing, and short answers to key presses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.content import Content
from textual.widgets import Static

from localspec.safe_text import one_line
from localspec.ui.panel import drawing
from localspec.ui.plain import Uncopied

if TYPE_CHECKING:
    from textual.timer import Timer

_FLASH_S = 4.0
_BAR = 16


class StatusLine(Static, Uncopied):
    """Shows a lasting state, covered for some seconds by the latest short answer."""

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002 - Textual's name for it
        super().__init__("", markup=False, id=id)
        self._lasting = Content("")
        self._timer: Timer | None = None

    def lasting(
        self, text: str, share: float | None = None, *, hint: str = "", tail: Content | None = None
    ) -> None:
        """What the app is doing, with a bar where a share of 1 is known."""
        parts = [Content.assemble((one_line(text), "$foreground 65%"))]
        if share is not None:
            parts.append(drawing.bar(share, _BAR, "$primary"))
            parts.append(Content(f"{100 * share:.0f} %"))
        if hint:
            parts.append(Content.assemble((hint, "$foreground 65%")))
        if tail is not None:
            parts.append(tail)
        self._lasting = Content("  ").join(parts)
        if self._timer is None:
            self.update(self._lasting, layout=False)

    def flash(self, text: str) -> None:
        """A short answer that goes away by itself."""
        if self._timer is not None:
            self._timer.stop()
        self.update(Content.assemble((one_line(text), "bold $text-accent")), layout=False)
        self._timer = self.set_timer(_FLASH_S, self._unflash)

    def settle(self) -> None:
        """Drop a short answer that is no longer true."""
        if self._timer is not None:
            self._timer.stop()
            self._unflash()

    def _unflash(self) -> None:
        self._timer = None
        self.update(self._lasting, layout=False)
