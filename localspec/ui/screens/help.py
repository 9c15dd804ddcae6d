"""The help and the entries of the palette, both made from the table of commands."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.command import Hit, Hits
from textual.containers import VerticalScroll
from textual.content import Content
from textual.system_commands import SystemCommandsProvider
from textual.widgets import Static

from localspec.ui.commands.command import AnyCommand
from localspec.ui.commands.command_table import COMMANDS, find
from localspec.ui.transcript.blocks import GAP, Block, Paragraph, lay_out
from localspec.ui.widgets import HEAD, MUTED, Dialogue

_KEY_WIDTH = 20
_TWO_COLUMNS = 50  # cells; below, meanings stand under their keys
# Keys that do not belong to a command; the help lists them first.
_OTHER_KEYS = (
    ("Enter", "send"),
    ("Ctrl+J, Alt+Enter", "break the line; Shift+Enter too, where the terminal tells it apart"),
    ("Up, Down", "what you sent before, from the first and last line"),
    ("Page Up, Down", "move the conversation"),
    ("Esc", "close a list, else stop the answer or loading, leave an edit; twice: empty the input"),
    ("Ctrl+A", "select all that is typed"),
    ("Ctrl+Z, Ctrl+Y", "take back the last change; make it again"),
    ("Ctrl+C", "copy what is selected, else stop the answer; twice: quit"),
    ("Ctrl+P", "all that can be done now, to search by name and meaning"),
    ("Tab, Up, Down", "go through an open list of commands, their words, or files"),
    ("Mouse", "select text; click keys, versions and thoughts; the wheel moves the conversation"),
)
_FIGURES = (
    ("guessed, kept", "tokens that were drafted, and those of them that the target accepted"),
    ("gamma", "how many tokens are guessed before each check"),
    ("recovered", "the target's token in place of the first wrong guess"),
    ("bonus", "one more token after a draft that was kept whole"),
    ("wait", "the time to the first token of an answer"),
)
# Words that find a command in the palette, in addition to its names and its meaning.
WORDS = {
    "help": "keys shortcuts commands manual",
    "speculation": "speculative decoding drafting draft faster on off",
    "origin": "raw marks colours who wrote draft target underline",
    "panel": "figures statistics stats speed tokens dashboard sidebar",
    "regen": "regenerate again redo reroll answer",
    "history": "conversations chats sessions previous find delete",
    "edit": "correct fix change question undo",
    "earlier": "version previous back undo",
    "later": "version next forward redo",
    "copy": "clipboard yank code",
    "read": "attach file open upload include",
    "pairs": "change switch download install remove catalogue",
    "get": "proposal propose recommended best model download fetch install",
    "bench": "benchmark measure compare speed off on report",
    "draft": "drafter head small model change choose",
    "show": "info model target draft loaded licence",
    "stats": "statistics figures conversation totals speed tokens",
    "tune": "measure calibrate threads attention costs",
    "unload": "free sleep idle ram vram stop",
    "preset": "system prompt persona role saved",
    "twice": "compare comparison side by side off on benchmark",
    "round": "inside explain why accepted recovered bonus slow motion probabilities",
    "system": "instructions persona role prompt",
    "gamma": "draft length drafted tokens",
    "set": "settings options parameters sampling seed top-k top-p context size stop",
    "temp": "temperature creativity randomness greedy sampling",
    "think": "thinking reasoning effort budget thoughts on off",
    "thoughts": "thinking reasoning fold files",
    "title": "rename name conversation",
    "export": "write file markdown json share",
    "import": "load open file markdown json",
    "compact": "summary summarise shorten context full",
    "forget": "past copies lookup privacy erase earlier conversations",
    "mcp": "tools servers plugins functions agents calls context protocol",
    "clear": "chat conversation start over forget",
    "quit": "leave close end",
    "theme": "colours colors dark light appearance",
}
_BY_MEANING = 0.5  # of a name's score at most: names come first


def help_lines(width: int, commands: Sequence[AnyCommand] = COMMANDS) -> list[Content]:
    """Keys first, commands below, in two columns if there is room; the right one wraps."""
    hang = _KEY_WIDTH if width >= _TWO_COLUMNS else 2
    own = sorted((one for one in commands if one.shown), key=_function_key)
    keys = [*_OTHER_KEYS, *((one.shown, one.alone) for one in own)]
    slashes = [(f"/{one.name} {one.argument}".rstrip(), one.explained) for one in commands]
    blocks = [*_section("Keys", keys, hang), *_section("Commands", slashes, hang)]
    blocks += _section("Words of the figures (F4)", [*_FIGURES], hang)
    blocks.append(
        _line("The beginning of a command is enough. //text sends a message that begins like one.",
              MUTED)
    )  # fmt: skip
    return lay_out(blocks, width)


def _function_key(command: AnyCommand) -> int:
    """The number of its function key, by which the keys are found; others follow."""
    found = re.match(r"F(\d+)", command.shown)
    return int(found[1]) if found else sys.maxsize


def _section(title: str, rows: list[tuple[str, str]], hang: int) -> list[Block]:
    blocks = [_line(title, HEAD)]
    rest = Content(" " * hang)
    for left, right in rows:
        first = Content.styled(left.ljust(hang), "bold")
        if len(left) > hang - 2:
            blocks.append(_line(left, "bold"))
            first = rest
        blocks.append(Block(Paragraph(Content.styled(right, MUTED)), first, rest))
    return [*blocks, Block(GAP)]


def _line(text: str, style: str) -> Block:
    return Block(Paragraph(Content.styled(text, style)))


class _Help(Static):
    """The text, wrapped anew for every width."""

    def __init__(self, commands: Sequence[AnyCommand]) -> None:
        super().__init__(markup=False)
        self._commands = commands

    def on_resize(self) -> None:
        """Wrap."""
        self.update(Content("\n").join(help_lines(self.size.width, self._commands)))


class HelpScreen(Dialogue[None]):
    """Closes with Esc, F1, Enter or q.

    Args:
        commands: the table with the keys in force.
    """

    BINDINGS: ClassVar[list[BindingType]] = [("escape,f1,enter,q,Q", "dismiss", "Close")]

    def __init__(self, commands: Sequence[AnyCommand]) -> None:
        super().__init__()
        self._commands = commands

    def compose(self) -> ComposeResult:
        """A box that scrolls where the terminal is small."""
        with VerticalScroll(id="help") as box:
            box.border_title = "localspec"
            box.border_subtitle = "Esc closes"
            yield _Help(self._commands)


class PaletteCommands(SystemCommandsProvider):
    """Searches commands by name and meaning; Textual's own provider looks at names only."""

    async def search(self, query: str) -> Hits:
        """Commands with `query` in their name, or with all its words in meaning or keywords."""
        matcher, words = self.matcher(query), query.casefold().split()
        for name, meaning, call, *_ in self.app.get_system_commands(self.screen):
            score = matcher.match(name)
            command = name.casefold()
            others = find(command).also
            known = f"{meaning} {others} {WORDS[command]}".casefold()
            if not score and all(word in known for word in words):
                score = _BY_MEANING
            if score:
                yield Hit(score, matcher.highlight(name), call, help=meaning)
