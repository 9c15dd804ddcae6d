"""The bottom line: the keys that matter most, as many as fit, clickable."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.content import Content

from localspec.ui.commands import COMMANDS
from localspec.ui.plain import Uncopied

if TYPE_CHECKING:
    from collections.abc import Sequence

    from localspec.ui.commands import Command


def key_line(width: int, commands: Sequence[Command] = COMMANDS) -> Content:
    """Keys and labels from the command table, in its order, as far as `width` reaches."""
    line = Content(" ")
    for command in commands:
        if not command.footer:
            continue
        key = command.shown.split(",")[0]
        click = f"[@click=app.command('{command.name}')]"
        label = f"{click}[bold $text-accent]{key}[/] [$foreground 70%]{command.footer}[/][/]"
        item = Content.from_markup(label)
        if line.cell_length + item.cell_length + 1 > width:
            break
        line = Content.assemble(line, item, "  ")
    return line


class KeyLine(Uncopied):
    """Textual's own footer lists keys by focus; this one keeps the order and what fits.

    Args:
        commands: the table with the keys in force.
    """

    ALLOW_SELECT = False

    def __init__(self, commands: Sequence[Command], *, id: str | None = None) -> None:  # noqa: A002
        super().__init__(id=id)
        self._commands = commands

    def render(self) -> Content:
        """Lay the keys out for the present width."""
        return key_line(self.size.width, self._commands)
