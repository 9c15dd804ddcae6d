"""The input: grows with its text, Enter sends, remembers what was sent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from textual.binding import Binding, BindingType
from textual.message import Message
from textual.widgets import TextArea

from localspec.safe_text import safe

if TYPE_CHECKING:
    from collections.abc import Callable

    from textual import events

LONGEST_PASTE = 200_000
_NEWLINE_KEYS = ("shift+enter", "ctrl+j", "alt+enter", "ctrl+enter")


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
        if self._position == len(self._sent):
            self._unsent = current
        self._position -= 1
        return self._sent[self._position]

    def newer(self) -> str | None:
        """The entry after the present one, in the end the unsent text; None when already there."""
        if self._position == len(self._sent):
            return None
        self._position += 1
        at_end = self._position == len(self._sent)
        return self._unsent if at_end else self._sent[self._position]


class Prompt(TextArea):
    """A text area that sends on Enter and breaks the line on Shift+Enter, Ctrl+J or Alt+Enter.

    Args:
        accepts: asked on Enter, before anything else can happen: may this text be sent now? There
            may be none.
        complete: asked on Tab: the whole text as it may go on, None where nothing is known.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(",".join(_NEWLINE_KEYS), "break_line", "New line", show=False),
        Binding("pageup", "scroll_transcript(-1)", show=False),
        Binding("pagedown", "scroll_transcript(1)", show=False),
    ]

    @dataclass
    class Sent(Message):
        """Enter was pressed and the text was accepted; the input is empty again."""

        text: str

    @dataclass
    class PasteRefused(Message):
        """A paste was longer than any prompt can be."""

        length: int

    @dataclass
    class ScrollWanted(Message):
        """The transcript is to move by a page, backwards if negative."""

        pages: int

    def __init__(
        self,
        accepts: Callable[[str], bool],
        complete: Callable[[], str | None],
        *,
        id: str | None = None,  # noqa: A002
    ) -> None:
        super().__init__(id=id, show_line_numbers=False, tab_behavior="focus", compact=True)
        self.highlight_cursor_line = False
        self.cursor_blink = False  # it would draw twice a second all day long
        self.sent = History()
        self._accepts = accepts
        self._complete = complete

    async def on_key(self, event: events.Key) -> None:
        """Send on Enter before the text area would break the line; complete on Tab."""
        # Textual has the app run a widget's bindings, after letters that came with them: what is
        # typed into a slow connection would be in another order.
        for binding in self._bindings.key_to_bindings.get(event.key, ()):
            if await self.app.run_action(binding.action, self):
                event.stop()
                event.prevent_default()
                return
        if event.key == "tab":
            event.stop()
            event.prevent_default()
            completed = self._complete()
            if completed is not None:
                self.show(completed)
        if event.key == "enter":
            event.stop()
            event.prevent_default()
            self.submit()

    def submit(self) -> None:
        """Send what is typed, if it may be sent now."""
        text = self.text.strip()
        if self._accepts(text) and text:
            # Cleared here and not where the message arrives: keys typed on must survive.
            self.sent.add(text)
            self.clear()
            self.post_message(self.Sent(text))

    async def on_paste(self, event: events.Paste) -> None:
        """Insert a paste as it is, all its lines, without control characters."""
        event.stop()
        event.prevent_default()
        if len(event.text) > LONGEST_PASTE:
            self.post_message(self.PasteRefused(len(event.text)))
            return
        text = safe(event.text.replace("\r\n", "\n").replace("\r", "\n"))
        result = self.replace(text, *self.selection, maintain_selection_offset=False)
        self.move_cursor(result.end_location)

    def action_break_line(self) -> None:
        """Break the line at the cursor."""
        self.replace("\n", *self.selection, maintain_selection_offset=False)
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
        elif (entry := self.sent.newer()) is not None:
            self.show(entry)

    def action_scroll_transcript(self, pages: int) -> None:
        """Let the page keys move the conversation: the input itself is small."""
        self.post_message(self.ScrollWanted(pages))

    def show(self, text: str) -> None:
        """Put `text` into the input, the cursor behind it; it may come from a file."""
        self.text = safe(text)
        self.move_cursor(self.document.end)
