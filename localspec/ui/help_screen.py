"""The help: all keys and all commands, from the same table that makes them work."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual.containers import VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static

from localspec.ui.commands import COMMANDS, OTHER_KEYS

if TYPE_CHECKING:
    from textual.app import ComposeResult
    from textual.binding import BindingType


def help_content() -> Content:
    """Keys first, commands below, in two columns."""
    keys = [(command.shown, command.meaning) for command in COMMANDS if command.shown]
    commands = [
        (f"/{command.name} {command.argument}".rstrip(), command.meaning) for command in COMMANDS
    ]
    return Content.assemble(
        ("Keys\n", "bold $text-primary"),
        *_rows([*OTHER_KEYS, *keys]),
        ("\nCommands\n", "bold $text-primary"),
        *_rows(commands),
        (
            "\nThe beginning of a command is enough. //text sends a message that begins with a "
            "slash.\n",
            "$foreground 65%",
        ),
    )


def _rows(rows: list[tuple[str, str]]) -> list[tuple[str, str]]:
    width = max(len(left) for left, _ in rows if len(left) < 24) + 2
    pieces = []
    for left, right in rows:
        gap = "\n" + " " * width if len(left) >= width else " " * (width - len(left))
        pieces += [(left, "bold"), (f"{gap}{right}\n", "$foreground 65%")]
    return pieces


class HelpScreen(ModalScreen[None]):
    """Closes with Esc, F1, Enter or q."""

    BINDINGS: ClassVar[list[BindingType]] = [("escape,f1,enter,q", "dismiss", "Close")]

    def compose(self) -> ComposeResult:
        """A box that scrolls where the terminal is small."""
        with VerticalScroll(id="help") as box:
            box.border_title = "localspec"
            box.border_subtitle = "Esc closes"
            yield Static(help_content(), markup=False)
