"""The input: it grows, Enter sends, and it remembers what was sent and knows what may follow."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from rich.cells import cell_len, set_cell_size
from textual import events
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.widgets import Static, TextArea

from localspec.pairs.folders import user_path
from localspec.safe_text import one_line, safe
from localspec.ui.bases import KEY, MUTED
from localspec.ui.commands import Command

LONGEST_PASTE = 200_000
_NEWLINE_KEYS = ("shift+enter", "ctrl+j", "alt+enter", "ctrl+enter")
MOST = 6
_PATH_COMMANDS = ("read", "import")
_MENTION = re.compile(r"(?:^|.*\s)@(\S*)$", re.DOTALL)


class History:
    """What was sent before, walked with up and down; the unsent text waits at the end."""

    def __init__(self) -> None:
        self._sent: list[str] = []
        self._position = 0
        self._unsent = ""

    def add(self, text: str) -> None:
        """Remember `text` as the latest; the same twice in a row counts once."""
        if not self._sent or self._sent[-1] != text:
            self._sent.append(text)
        self._position = len(self._sent)
        self._unsent = ""

    def begin(self, texts: list[str]) -> None:
        """Remember what was sent in earlier runs, the oldest first."""
        self._sent[:0] = texts
        self._position = len(self._sent)

    def older(self, current: str) -> str | None:
        """The entry before the present one; None at the oldest."""
        if self._position == 0:
            return None
        self._keep(current)
        self._position -= 1
        return self._sent[self._position]

    def newer(self, current: str) -> str | None:
        """The entry after the present one, in the end the unsent text; None when already there."""
        if self._position == len(self._sent):
            return None
        self._keep(current)
        self._position += 1
        at_end = self._position == len(self._sent)
        return self._unsent if at_end else self._sent[self._position]

    def _keep(self, current: str) -> None:
        """Leave the present place; a text of the list that was changed there joins the list."""
        if self._position == len(self._sent):
            self._unsent = current
        elif current.strip() and current != self._sent[self._position]:
            self._sent.append(current)


def as_typed(message: str) -> str:
    """A message as it is typed: one that begins with a slash would be a command."""
    return f"/{message}" if message.startswith("/") else message


class PromptArea(TextArea):
    """A text area that sends on Enter and breaks the line on Shift+Enter, Ctrl+J or Alt+Enter.

    Args:
        enter: takes the text on Enter, there may be none, and whether its last line was begun as
            a command; False where it may not be sent now.
        complete: asked on Tab: the whole text as it may go on, None where nothing is known.
        say: says what is wrong, with its remedy.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(",".join(_NEWLINE_KEYS), "break_line", "New line", show=False),
        Binding("ctrl+a", "select_all", "Select all", show=False),
        # The page keys move the conversation: the input itself is small.
        Binding("pageup", "app.page(-1)", show=False),
        Binding("pagedown", "app.page(1)", show=False),
    ]

    def __init__(
        self,
        enter: Callable[[str, bool], bool],
        complete: Callable[[], str | None],
        say: Callable[..., None],
    ) -> None:
        super().__init__(id="prompt", show_line_numbers=False, tab_behavior="focus", compact=True)
        self.highlight_cursor_line = False
        self.cursor_blink = False  # it would draw twice a second all day long
        self.sent = History()
        self._pasted_to: tuple[int, int] | None = None  # the end of a paste of more than a line
        self._slash_at: tuple[int, int] | None = None  # where one was typed behind that
        self._enter = enter
        self._complete = complete
        self._say = say

    async def on_key(self, event: events.Key) -> None:
        """Send on Enter before the text area would break the line; complete on Tab."""
        # Textual has the app run a widget's bindings, after letters that came with them: what is
        # typed into a slow connection would be in another order.
        for binding in self._bindings.key_to_bindings.get(event.key, ()):
            if await self.app.run_action(binding.action, self):
                event.stop()
                event.prevent_default()
                return
        if event.character == "/" and self.cursor_location == self._pasted_to:
            if self.cursor_location[1]:
                self.action_break_line()  # a command begins a line of its own
            self._slash_at = self.cursor_location
        self._pasted_to = None
        if event.key not in ("tab", "enter"):
            return
        event.stop()
        event.prevent_default()
        if event.key == "enter":
            self.submit()
        elif (completed := self._complete()) is not None:
            self.show(completed)

    def submit(self) -> None:
        """Send what is typed, if it may be sent now."""
        text = self.text.strip()
        command = self._slash_at == (self.document.end[0], 0)
        # Cleared at once, and not where it is sent: keys typed on must survive.
        if self._enter(text, command) and text:
            self._slash_at = None
            self.sent.add(text)
            self.clear()

    async def on_paste(self, event: events.Paste) -> None:
        """Insert a paste as it is, all its lines, without control characters."""
        event.stop()
        event.prevent_default()
        if len(event.text) > LONGEST_PASTE:
            self._say(
                f"the pasted text is too long: {len(event.text):,} characters, not more than"
                f" {LONGEST_PASTE:,} are taken",
                "Paste a part of it that fits into the context.",
                error=True,
            )
            return
        text = safe(event.text.replace("\r\n", "\n").replace("\r", "\n"))
        result = self.replace(text, *self.selection, maintain_selection_offset=False)
        self.move_cursor(result.end_location)
        self._slash_at = None
        # A path or an address goes on with a slash, however long it is.
        if "\n" in text or (cell_len(text) > self.size.width and len(text.split()) > 1):
            self._pasted_to = self.cursor_location

    def action_break_line(self) -> None:
        """Break the line at the cursor; what is behind a paste still is."""
        behind = self.cursor_location == self._pasted_to
        self.replace("\n", *self.selection, maintain_selection_offset=False)
        self._pasted_to = self.cursor_location if behind else None
        self.scroll_cursor_visible()

    def action_cursor_up(self, select: bool = False) -> None:
        """Move up; from the first line on, walk back through what was sent."""
        if select or not self.cursor_at_first_line:
            super().action_cursor_up(select)
        elif (entry := self.sent.older(self.text)) is not None:
            self.show(entry)

    def action_cursor_down(self, select: bool = False) -> None:
        """Move down; from the last line on, walk forward through what was sent."""
        if select or not self.cursor_at_last_line:
            super().action_cursor_down(select)
        elif (entry := self.sent.newer(self.text)) is not None:
            self.show(entry)

    def begin(self, text: str) -> None:
        """Have `text` typed on in place of what stands here, which Up finds."""
        if self.text.strip():
            self.sent.add(self.text)
        self.show(text)

    def put_back(self, text: str) -> None:
        """Return a text that could not be sent, before what was typed meanwhile."""
        self.show("\n".join(part for part in (text, self.text) if part))

    def keep(self, text: str) -> None:
        """Return what a command was typed behind: another one may follow."""
        alone = not self.text
        self.put_back(text)
        self._pasted_to = self.cursor_location if alone else None

    def give_back(self, text: str) -> None:
        """Return a text that came to nothing, unless something else was typed meanwhile."""
        if text and not self.text:
            self.show(text)

    def show(self, text: str) -> None:
        """Put `text` into the input, the cursor behind it; it may come from a file."""
        self.text, self._slash_at = safe(text), None
        self.move_cursor(self.document.end)


@dataclass(frozen=True, slots=True)
class Suggestion:
    """One way to go on.

    Attributes:
        text: the whole input then.
        shown: what is completed.
        meaning: what it does; may be empty.
    """

    text: str
    shown: str
    meaning: str = ""


def candidates(text: str, commands: Sequence[Command]) -> list[Suggestion]:
    """How `text`, with the cursor at its end, may go on."""
    if mention := _MENTION.match(text):
        start = text[: len(text) - len(mention[1])]
        return [Suggestion(start + path, path) for path in paths(mention[1])]
    if not text.startswith("/") or text.startswith("//") or "\n" in text:
        return []
    name, space, argument = text[1:].partition(" ")
    if not space:
        return [
            Suggestion(
                f"/{one.name} " if one.argument else f"/{one.name}",
                f"/{one.name} {one.argument}".rstrip(),
                one.meaning,
            )
            for one in commands
            if one.name.startswith(name.lower()) and one.name != name
        ]
    if name in _PATH_COMMANDS:
        return [Suggestion(f"/{name} {path}", path) for path in paths(argument)]
    known = next((one for one in commands if one.name == name), None)
    words = re.findall(r"[a-z][a-z-]*", known.argument) if known is not None else []
    return [
        Suggestion(f"/{name} {word}", word)
        for word in words
        if word.startswith(argument) and word != argument
    ]


def paths(begun: str) -> list[str]:
    """Files and folders whose path begins with `begun`; folders end in a separator."""
    folder, name = os.path.split(begun)
    try:
        with os.scandir(user_path(folder or ".")) as entries:
            found = [
                os.path.join(folder, one.name) + (os.sep if one.is_dir() else "")  # noqa: PTH118
                for one in entries
                if one.name.startswith(name) and (name.startswith(".") or one.name[0] != ".")
            ]
    except (OSError, ValueError):
        return []
    return sorted(one for one in found if one != begun)[:50]


class Completion(Static):
    """A short list above the input; Tab goes through it.

    Args:
        commands: the table.
    """

    def __init__(self, commands: Sequence[Command]) -> None:
        super().__init__("", markup=False, id="completion")
        self._commands = commands
        self._found: list[Suggestion] = []
        self._at = -1
        self.display = False

    def look(self, text: str) -> None:
        """The input has changed."""
        if 0 <= self._at < len(self._found) and text == self._found[self._at].text:
            return  # a completion itself
        self._found, self._at = candidates(text, self._commands), -1
        self._draw()

    def next(self) -> str | None:
        """The input with the next candidate; None where there is none."""
        if not self._found:
            return None
        self._at = (self._at + 1) % len(self._found)
        chosen = self._found[self._at].text
        if len(self._found) == 1:
            self._found, self._at = candidates(chosen, self._commands), -1
        self._draw()
        return chosen

    def _draw(self) -> None:
        self.display = bool(self._found)
        first = max(0, self._at - MOST + 1)
        listed = self._found[first : first + MOST]
        widest = max((cell_len(one_line(one.shown, 40)) for one in listed), default=0)
        lines = []
        for index, one in enumerate(listed, first):
            mark = "▸ " if index == self._at else "  "
            style = KEY if index == self._at else "bold"
            line = Content.assemble(
                mark, (set_cell_size(one_line(one.shown, 40), widest), style),
                (f"  {one.meaning}" if one.meaning else "", MUTED),
            )  # fmt: skip
            lines.append(line)
        more = len(self._found) - MOST
        if more > 0:
            lines.append(Content.styled(f"  and {more} more; Tab goes on", MUTED))
        self.update(Content("\n").join(lines))
