"""The lines around the conversation: which pair answers, what the app is doing, the main keys."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from textual.content import Content
from textual.timer import Timer
from textual.widgets import Static

from localspec.process.messages import SessionInfo
from localspec.safe_text import one_line, shortened
from localspec.ui.commands.command import AnyCommand
from localspec.ui.panel import drawing
from localspec.ui.widgets import HEAD, KEY, MUTED, Uncopied, key_hint

_FLASH_S = 4.0
_BAR, _LEAST = 16, 12  # cells of the bar, and of the text before it
_FIRST = ("help", "quit", "speculation", "pairs", "regen", "history")  # what a newcomer looks for


class TitleLine(Static, Uncopied):
    """The program's name, the pair's, and those of its models."""

    def show(self, session: SessionInfo | None) -> None:
        """Name what has been loaded, if anything has."""
        pieces = [("localspec", HEAD)]
        if session is not None:
            models = [] if session.target_name == session.pair_name else [session.target_name]
            models += ["+", session.draft_name] if session.draft_name else []
            pieces += [
                (f"  {one_line(session.pair_name, 40)}", "bold"),
                (f"  {one_line(' '.join(models), 100)}", MUTED),
            ]
        self.update(Content.assemble(*pieces), layout=False)


class StatusLine(Static, Uncopied):
    """Shows a lasting state, covered for some seconds by the latest short answer."""

    def __init__(self) -> None:
        super().__init__("", markup=False, id="status")
        self._lasting = Content("")
        self._timer: Timer | None = None

    def lasting(
        self, text: str, share: float | None = None, *, hint: str = "", tail: Content | None = None
    ) -> None:
        """Show what the app is doing, with a bar if the share of 1 is known.

        With a share it stays on one line: it would jump as the share grows.
        """
        said, parts = one_line(text), []
        if hint:
            parts.append(Content.assemble((hint, MUTED)))
        if tail is not None:
            parts.append(Content.assemble(("│  ", MUTED), tail))
        if share is not None:
            parts.insert(0, Content(f"{100 * share:>3.0f} %"))
            room = self.size.width - sum(2 + part.cell_length for part in parts)
            if room >= _BAR + _LEAST:
                parts.insert(0, drawing.bar(share, _BAR, "$primary"))
                room -= _BAR + 2
            said = shortened(said, max(_LEAST, room)) if self.size.width else said
        self._lasting = Content("  ").join([Content.assemble((said, MUTED)), *parts])
        if self._timer is None:
            self._say(self._lasting)

    def flash(self, text: str) -> None:
        """A short answer that goes away by itself."""
        if self._timer is not None:
            self._timer.stop()
        self._say(Content.assemble((one_line(text), KEY)))
        self._timer = self.set_timer(_FLASH_S, self._unflash)

    def settle(self) -> None:
        """Drop a short answer that has become untrue."""
        if self._timer is not None:
            self._timer.stop()
            self._unflash()

    def _unflash(self) -> None:
        self._timer = None
        self._say(self._lasting)

    def _say(self, content: Content) -> None:
        """Show it; lay the screen out anew only if the number of lines changes."""
        width, height = self.size
        lines = content.get_height({}, width) if width else 0
        self.update(content, layout=lines != height)


def _rank(command: AnyCommand) -> int:
    return _FIRST.index(command.name) if command.name in _FIRST else len(_FIRST)


class KeyLine(Uncopied):
    """The keys that fit, `_FIRST` before others; Textual's own footer lists keys by focus.

    Args:
        commands: the table with the keys in force.
    """

    ALLOW_SELECT = False

    def __init__(self, commands: Sequence[AnyCommand]) -> None:
        super().__init__(id="keys")
        self._commands = commands

    def render(self) -> Content:
        """Lay out as many keys as fit, with dots at the end if others do not."""
        items = [
            key_hint(one.shown.split(",")[0], one.footer, f"app.command('{one.name}')")
            for one in sorted(self._commands, key=_rank)
            if one.footer
        ]
        return Content.assemble(" ", as_many(items, self.size.width - 2))


def as_many(hints: Sequence[Content], width: int) -> Content:
    """As many keys as fit, the most important first, and whether there are more."""
    line = drawing.joined(hints, width)
    if line.is_same(drawing.joined(hints, sys.maxsize)):
        return line
    return Content.assemble(drawing.joined(hints, width - 2), (" …", MUTED))
