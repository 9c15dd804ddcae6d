"""The help: all keys and all commands, from the same table that makes them work."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static

from localspec.ui.bases import HEAD, MUTED
from localspec.ui.commands import COMMANDS, OTHER_KEYS, Command
from localspec.ui.conversation.blocks import PLAIN_FRAME, Block, Frame, Gap, Paragraph, lay_out

_KEY_WIDTH = 20


def help_lines(width: int, commands: Sequence[Command] = COMMANDS) -> list[Content]:
    """Keys first, commands below, in two columns; the right one wraps in its own."""
    keys = [*OTHER_KEYS, *((one.shown, one.meaning) for one in commands if one.shown)]
    slashes = [(f"/{one.name} {one.argument}".rstrip(), one.meaning) for one in commands]
    blocks = [*_section("Keys", keys), *_section("Commands", slashes)]
    blocks.append(
        _line("The beginning of a command is enough. //text sends a message that begins with a "
              "slash.", MUTED)
    )  # fmt: skip
    return lay_out(blocks, width)


def _section(title: str, rows: list[tuple[str, str]]) -> list[Block]:
    blocks = [_line(title, HEAD)]
    rest = Content(" " * _KEY_WIDTH)
    for left, right in rows:
        first = Content.styled(left.ljust(_KEY_WIDTH), "bold")
        if len(left) > _KEY_WIDTH - 2:
            blocks.append(_line(left, "bold"))
            first = rest
        blocks.append(Block(Frame(first, rest), Paragraph(Content.styled(right, MUTED))))
    return [*blocks, Block(PLAIN_FRAME, Gap())]


def _line(text: str, style: str) -> Block:
    return Block(PLAIN_FRAME, Paragraph(Content.styled(text, style)))


class _Help(Static):
    """The text, wrapped anew for every width."""

    def __init__(self, commands: Sequence[Command]) -> None:
        super().__init__(markup=False)
        self._commands = commands

    def on_resize(self) -> None:
        """Wrap."""
        self.update(Content("\n").join(help_lines(self.size.width, self._commands)))


class HelpScreen(ModalScreen[None]):
    """Closes with Esc, F1, Enter or q.

    Args:
        commands: the table with the keys in force.
    """

    BINDINGS: ClassVar[list[BindingType]] = [("escape,f1,enter,q,Q", "dismiss", "Close")]

    def __init__(self, commands: Sequence[Command]) -> None:
        super().__init__()
        self._commands = commands

    def compose(self) -> ComposeResult:
        """A box that scrolls where the terminal is small."""
        with VerticalScroll(id="help") as box:
            box.border_title = "localspec"
            box.border_subtitle = "Esc closes"
            yield _Help(self._commands)
