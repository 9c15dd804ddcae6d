"""The stored conversations: search as you type, open, rename, delete and undo, export."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option
from textual.worker import Worker

from localspec import formats
from localspec.chat.history import import_export
from localspec.chat.history.store import Store
from localspec.chat.history.tree import ListedConversation
from localspec.errors import in_words
from localspec.safe_text import one_line
from localspec.ui.conversation.conversation_library import ConversationLibrary
from localspec.ui.widgets import MUTED, Dialogue, InputLine, MarkedList, key_hint

_DAY_S = 24 * 3600
# The shown meaning of each key; the actions have the same names.
_KEYS = {
    "Enter": "open",
    "Ctrl+N": "rename",
    "Ctrl+D": "delete",
    "Ctrl+Z": "undo",
    "Ctrl+S": "export",
    "Esc": "leave",
}


def entry(listed: ListedConversation, now: float, current: str = "") -> Content:
    """A conversation on two lines: title and when, then pair, length and where a search hit.

    Args:
        listed: the conversation.
        now: the time, in seconds.
        current: the id of the one on screen.
    """
    header = listed.header
    form = "%H:%M" if now - header.updated < _DAY_S / 2 else "%Y-%m-%d"
    shown = formats.moment(header.updated, lambda when: when.strftime(form))
    messages = formats.counted(listed.messages, "message")
    here = "on screen" if header.id == current else ""
    parts = [here, one_line(header.pair.name, 30), messages, one_line(listed.found, 120)]
    return Content.assemble(
        (one_line(header.title, 100), "bold"),
        (f"  {shown}", "$text-accent"),
        "\n",
        (" · ".join(part for part in parts if part), MUTED),
    )


class HistoryScreen(Dialogue[str | None]):
    """Dismissed with the id of the conversation to open, or None.

    Args:
        library: holds the conversations.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        ("escape,f7,ctrl+l", "leave", "Close"),
        # Before the search gets them.
        *(
            Binding(key.lower(), action, action.capitalize(), priority=True)
            for key, action in _KEYS.items()
            if key.startswith("Ctrl")
        ),
        ("down", "move(1)", "Next"),
        ("up", "move(-1)", "Previous"),
        ("pagedown", "page('down')", "Next page"),
        ("pageup", "page('up')", "Previous page"),
    ]

    def __init__(self, library: ConversationLibrary) -> None:
        super().__init__()
        self._library = library
        self._found: list[ListedConversation] = []
        self._found_by: str | None = None  # the search that found them
        self._opens = False  # the one that the present search finds, once it is listed
        self._renaming: str | None = None
        self._sought = ""  # the search before a title was edited
        self._nothing = False
        self._search = InputLine(placeholder="search", id="search")
        self._search.cursor_blink = False
        self._list = MarkedList(id="conversations", markup=False)
        self._hint = Static("", id="hint", markup=False)

    def compose(self) -> ComposeResult:
        """Search on top, the list, the keys."""
        with Vertical(id="history") as box:
            box.border_title = "conversations"
            yield self._search
            yield self._list
            yield self._hint
            keys = (key_hint(key, action, f"screen.{action}") for key, action in _KEYS.items())
            yield Static(Content("  ").join(keys), id="history-keys")

    def on_mount(self) -> None:
        """Show all."""
        self._list.can_focus = False
        self._refresh()

    @property
    def _current(self) -> str:
        """The id of the conversation on screen, which may change while the list is open."""
        return self._library.record.header.id

    # The list

    @on(Input.Changed)
    def _typed(self) -> None:
        if self._renaming is None:
            self._opens = False
            self._refresh()

    def _work(self, job: Callable[[], Awaitable[None]], group: str) -> None:
        """Run it in the background and report its errors; a newer list replaces an older one."""

        async def told() -> None:  # not begun here: one that is replaced may never begin
            try:
                await job()
            except Exception as error:
                self._say(". ".join(in_words(error)))

        _: Worker[None] = self.run_worker(told, exclusive=group == "list", group=group)

    def _refresh(self, keep: int = 0, chosen: str = "") -> None:
        """List again, and choose a conversation by its id, else by place."""
        self._work(partial(self._fetch, self._search.value, keep, chosen), "list")

    async def _fetch(self, search: str, keep: int, chosen: str) -> None:
        self._found = await self._library.ask(lambda store: store.listed(search))
        self._found_by = search
        now = time.time()
        if self._nothing:
            self._say("")
        self._nothing = not self._found
        self._list.clear_options()
        self._list.add_options([Option(entry(one, now, self._current)) for one in self._found])
        ids = [one.header.id for one in self._found]
        if self._found:
            at = ids.index(chosen) if chosen in ids else min(keep, len(ids) - 1)
            self._list.highlighted = at
            if self._opens:
                self.action_open()
        else:
            self._say("nothing found" if search.strip() else "no conversation is stored yet")

    def _change(self, job: Callable[[Store], None]) -> None:
        # Read it here: by the time a worker begins, the list may have been closed.
        asked = self._library.ask(job, changes=True)
        self._work(lambda: asked, "change")

    def _chosen(self) -> ListedConversation | None:
        index = self._list.highlighted
        if self._renaming is None and self._found_by != self._search.value:
            return None  # the list for these words is not there yet
        return self._found[index] if index is not None and index < len(self._found) else None

    def _say(self, text: str) -> None:
        self._hint.update(one_line(text, 300))

    # Actions

    @on(Input.Submitted)
    def _entered(self) -> None:
        if self._renaming is not None:
            self._finish_renaming()
        else:
            self.action_open()

    @on(OptionList.OptionSelected)
    def _clicked(self) -> None:
        if self._renaming is None:
            self.action_open()

    def action_move(self, by: int) -> None:
        """Choose another conversation while the search keeps the cursor."""
        if self._renaming is None:
            (self._list.action_cursor_down if by > 0 else self._list.action_cursor_up)()

    async def action_page(self, direction: str) -> None:
        """Go a page up or down in the list."""
        if self._renaming is None:
            await self._list.run_action(f"page_{direction}")

    def action_open(self) -> None:
        """Open the chosen one."""
        chosen = self._chosen()
        self._opens = self._found_by != self._search.value
        if chosen is not None:
            self.dismiss(chosen.header.id)

    def action_leave(self) -> None:
        """Stop renaming, or leave."""
        if self._renaming is not None:
            self._stop_renaming()
        else:
            self.dismiss(None)

    def action_rename(self) -> None:
        """Edit the title in place of the search."""
        chosen = self._chosen()
        if chosen is not None and self._renaming is None:
            self._renaming, self._sought = chosen.header.id, self._search.value
            self._search.value = one_line(chosen.header.title, 100)
            self._search.cursor_position = len(self._search.value)
            self._say("Enter gives the new title, Esc leaves the old one")

    def _finish_renaming(self) -> None:
        title = one_line(self._search.value, 100)
        conversation = self._renaming
        if title and conversation is not None:
            if conversation == self._current:
                self._library.record.rename(title)
            self._change(lambda store: store.rename(conversation, title))
        self._stop_renaming()

    def _stop_renaming(self) -> None:
        self._say("")
        renamed, self._renaming = self._renaming or "", None
        with self.prevent(Input.Changed):
            self._search.value = self._sought
            self._search.cursor_position = len(self._sought)
        self._refresh(self._list.highlighted or 0, renamed)

    def action_delete(self) -> None:
        """Delete the chosen one; it can be brought back."""
        chosen = self._chosen()
        if chosen is None or self._renaming is not None:
            return
        conversation = chosen.header.id
        if conversation == self._current:
            self._say("this conversation is open: begin another one first (/clear)")
            return
        self._change(lambda store: store.delete(conversation))
        self._say(f"deleted “{one_line(chosen.header.title, 60)}”; Ctrl+Z brings it back")
        self._refresh(self._list.highlighted or 0)

    def action_undo(self) -> None:
        """Bring the last deleted one back, also one of an earlier run."""
        if self._renaming is None:
            self._work(self._undo, "change")

    async def _undo(self) -> None:
        title = await self._library.ask(lambda store: store.undelete(), changes=True)
        if title is None:
            self._say("nothing was deleted within the last week")
        else:
            self._say(f"“{one_line(title, 60)}” is back")
            self._refresh(self._list.highlighted or 0)

    def action_export(self) -> None:
        """Write the chosen one to a JSON file and a Markdown file in the current folder."""
        chosen = self._chosen()
        if chosen is not None:
            self._work(partial(self._export, chosen.header.id), "export")

    async def _export(self, conversation: str) -> None:
        written = [
            await self._library.write_file(form, conversation=conversation)
            for form in import_export.FORMS
        ]
        self._say(f"written to {' and '.join(map(str, written))} in {Path.cwd()}")
