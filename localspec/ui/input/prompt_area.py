"""The input: it grows, sends on Enter, remembers sent messages and completes what is typed."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import ClassVar

from rich.cells import cell_len
from textual import events
from textual.binding import Binding, BindingType
from textual.widgets import TextArea
from textual.widgets.text_area import Edit, EditResult, Location

from localspec.safe_text import safe
from localspec.ui.commands.command import as_typed, message_text, parse
from localspec.ui.input.pastes import FoldedPastes
from localspec.ui.input.suggestions import CompletionList
from localspec.ui.widgets import unseen

LONGEST_PASTE = 200_000
_EMPTY_LINES = re.compile(r"\A(?:[^\S\n]*\n)+")
_NEWLINE_KEYS = ("shift+enter", "ctrl+j", "alt+enter", "ctrl+enter")


class InputHistory:
    """The sent messages, to walk with up and down; the unsent text waits at the end."""

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
        """Remember the messages sent in earlier runs, the oldest first."""
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
        """The entry after the present one, at last the unsent text; None when already there."""
        if self._position == len(self._sent):
            return None
        self._keep(current)
        self._position += 1
        at_end = self._position == len(self._sent)
        return self._unsent if at_end else self._sent[self._position]

    def _keep(self, current: str) -> None:
        """Leave the present place; an entry that was changed there becomes another entry."""
        if self._position == len(self._sent):
            self._unsent = current
        elif current.strip() and current != self._sent[self._position]:
            self._sent.append(current)


class PromptArea(TextArea):
    """A text area that sends on Enter and breaks the line on Shift+Enter, Ctrl+J or Alt+Enter.

    A long paste is shown as a mark: `text` has all of it, the document that is edited the mark.

    Args:
        enter: takes the text on Enter, which may be empty, and whether its last line was begun as
            a command; returns False if it may not be sent now.
        completion: the list of how the text may go on.
        say: shows an error with its remedy.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(",".join(_NEWLINE_KEYS), "break_line", "New line", show=False),
        Binding("ctrl+a", "select_all", "Select all", show=False),
        Binding("shift+backspace", "delete_left", show=False),
        # The page keys move the conversation: the input itself is small.
        Binding("pageup", "app.page(-1)", show=False),
        Binding("pagedown", "app.page(1)", show=False),
    ]

    def __init__(
        self,
        enter: Callable[[str, bool], bool],
        completion: CompletionList,
        say: Callable[..., None],
    ) -> None:
        self._pastes = FoldedPastes()  # before Textual asks for the text
        super().__init__(id="prompt", show_line_numbers=False, tab_behavior="focus", compact=True)
        self.highlight_cursor_line = False
        self.cursor_blink = False  # blinking would draw twice a second, all day long
        self.sent = InputHistory()
        self._pasted_to: tuple[int, int] | None = None  # the end of a paste of more than a line
        self._slash_at: tuple[int, int] | None = None  # where a slash was typed after that
        self._enter = enter
        self._completion = completion
        self._say = say

    @property
    def text(self) -> str:
        """All that was typed and pasted, with folded pastes in full."""
        return self._pastes.unfolded(self.document.text)

    @text.setter
    def text(self, value: str) -> None:
        self.load_text(value)

    @property
    def begun(self) -> str:
        """The text, if the cursor stands at its end, so that it can go on there."""
        return self.text if self.cursor_location == self.document.end else ""

    @property
    def entered(self) -> str:
        """What is sent: the text without blanks around it; code keeps those of its first line."""
        text, commands = self.text.strip(), self._completion.commands
        like_command = parse(text, commands) or message_text(text, commands) != text
        return text if like_command else _EMPTY_LINES.sub("", self.text).rstrip()

    @property
    def message(self) -> str:
        """What is entered, as the model gets it."""
        return message_text(self.entered, self._completion.commands)

    @property
    def selected_text(self) -> str:
        """The selected text, with folded pastes in full."""
        return self._pastes.unfolded(super().selected_text)

    @property
    def is_folded(self) -> bool:
        """Whether a mark stands for a paste."""
        return self._pastes.unfolded(self.document.text) != self.document.text

    def open_pastes(self, opened: bool) -> None:
        """Show all present and later pastes in full, or fold them."""
        whole, self._pastes.opened = self.text, opened
        shown = self._pastes.folded(whole)
        if shown != self.document.text:
            self.replace(shown, self.document.start, self.document.end)
            self.move_cursor(self.document.end)

    async def on_key(self, event: events.Key) -> None:
        """Send on Enter before the text area would break the line; complete on Tab."""
        # Textual has the app run a widget's bindings after letters that came with them: keys typed
        # into a slow connection would take effect in another order.
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
        if text := unseen(event):
            event.stop()
            event.prevent_default()
            self.replace(text, *self.selection, maintain_selection_offset=False)
        if event.key not in ("tab", "enter"):
            return
        event.stop()
        event.prevent_default()
        if event.key == "tab":
            self._go_on(self._completion.next() if self._listed() else None)
        elif not self._completion.take():
            self.submit()

    def _go_on(self, completed: str | None) -> None:
        if completed is not None:
            self.show(completed)

    def submit(self) -> None:
        """Send the text, if it may be sent now."""
        text = self.entered
        command = self._slash_at == (self.document.end[0], 0)
        # Clear it here, not in the sender: keys that are typed meanwhile must survive.
        if self._enter(text, command) and text:
            self._slash_at = None
            self.sent.add(text)
            self.clear()

    def clear(self) -> EditResult:
        """Empty the input, as a step of its own for undo."""
        self.history.checkpoint()
        return super().clear()

    async def on_paste(self, event: events.Paste) -> None:
        """Insert a paste as it is, all its lines, without control characters."""
        event.stop()
        event.prevent_default()
        self._paste(event.text)

    def action_paste(self) -> None:
        """Insert what was copied or cut here last."""
        self._paste(self.app.clipboard)

    def _paste(self, pasted: str) -> None:
        if len(pasted) > LONGEST_PASTE:
            self._say(
                f"the pasted text is too long: {len(pasted):,} characters, not more than"
                f" {LONGEST_PASTE:,} are taken",
                "Paste a part of it that fits into the context.",
                error=True,
            )
            return
        text = safe(pasted.replace("\r\n", "\n").replace("\r", "\n"))
        mark = self._pastes.mark(text, self.document.text)
        result = self.replace(mark, *self.selection, maintain_selection_offset=False)
        self.move_cursor(result.end_location)
        self._slash_at = None
        # A path or an address goes on with a slash, however long it is.
        if "\n" in text or (cell_len(text) > self.size.width and len(text.split()) > 1):
            self._pasted_to = self.cursor_location

    def action_break_line(self) -> None:
        """Break the line at the cursor; a place after a paste stays one."""
        pasted = self.cursor_location == self._pasted_to
        self.replace("\n", *self.selection, maintain_selection_offset=False)
        self._pasted_to = self.cursor_location if pasted else None
        self.scroll_cursor_visible()

    def edit(self, edit: Edit) -> EditResult:
        """Edit; a range that cuts a mark takes all of it, what is put inside goes behind it."""
        (start, _), (_, end) = self._around(edit.top), self._around(edit.bottom)
        edit.from_location, edit.to_location = end if edit.top == edit.bottom else start, end
        done = super().edit(edit)
        return replace(done, replaced_text=self._pastes.unfolded(done.replaced_text))  # to cut

    def _around(self, place: Location) -> tuple[Location, Location]:
        """The ends of the mark that a place is inside of; the place twice without one."""
        row, column = place
        if not column:  # its row may be the one behind the last
            return place, place
        start, end = self._pastes.around(self.document.get_line(row), column)
        return (row, start), (row, end)

    def action_cursor_up(self, select: bool = False) -> None:
        """Move up, in the list if it is open; from the first line, go back in the sent messages."""
        if self._listed() and not select:
            self._go_on(self._completion.move(-1))
        elif select or not self.navigator.is_first_wrapped_line(self.cursor_location):
            super().action_cursor_up(select)
        else:
            self._recall(self.sent.older(self.text))

    def action_cursor_down(self, select: bool = False) -> None:
        """Move down, in the list if it is open; from the last line, go forward again."""
        if self._listed() and not select:
            self._go_on(self._completion.move(1))
        elif select or not self.navigator.is_last_wrapped_line(self.cursor_location):
            super().action_cursor_down(select)
        else:
            self._recall(self.sent.newer(self.text))

    def _listed(self) -> bool:
        """Whether a list of completions is open."""
        self._completion.suggest(self.begun)  # letters may have come with the key
        return self._completion.display

    def _recall(self, entry: str | None) -> None:
        """Show a sent message, without a list that would take the next arrow."""
        if entry is not None:
            self.show(entry)
            self._completion.leave(self.text)

    def as_typed(self, message: str) -> str:
        """A message as the user would type it here."""
        return as_typed(message, self._completion.commands)

    def begin(self, text: str) -> None:
        """Replace the input with `text` to type on; Up finds what stood here."""
        if self.text.strip():
            self.sent.add(self.text)
        self.show(text)

    def put_back(self, text: str) -> None:
        """Put back a text that could not be sent, before newly typed text."""
        if text:
            self.show("\n".join(part for part in (text, self.text) if part))

    def keep(self, text: str) -> None:
        """Put back the text before a command: another command may follow."""
        alone = not self.text
        self.put_back(text)
        self._pasted_to = self.cursor_location if alone else None

    def give_back(self, text: str) -> None:
        """Put back a text that had no effect, unless something else was typed meanwhile."""
        if text and not self.text:
            self.show(text)

    def show(self, text: str) -> None:
        """Put `text`, which may come from a file, into the input, with the cursor at its end."""
        shown, self._slash_at = self._pastes.folded(safe(text)), None
        self.history.checkpoint()  # undo takes this back alone
        self.replace(shown, self.document.start, self.document.end)
        self.move_cursor(self.document.end)
