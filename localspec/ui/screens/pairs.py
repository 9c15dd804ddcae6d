"""The screen of pairs: the catalogue and installed pairs, to pull, use and remove."""

from __future__ import annotations

from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.timer import Timer
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from localspec.pairs.names.catalogue import ListedPair
from localspec.ui.pairs.pair_jobs import PairJobs
from localspec.ui.screens.pair_lines import (
    LOOKING,
    PairWork,
    detail_lines,
    key_hints,
    summary,
    table,
)
from localspec.ui.status_lines import as_many
from localspec.ui.widgets import KEY, MUTED, Dialogue, InputLine, MarkedList

_REDRAW_S = 0.25
_TYPING = (("Enter", "check"), ("Esc", "leave"))
_FORM = "user/repo[:QUANT] [--draft user/repo] [--name NAME]"


class PairsScreen(Dialogue[None]):
    """Shows the state of `PairJobs`, which keeps everything lasting, and passes on keys.

    Args:
        pairs: does the work.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        ("escape,q,Q,f12", "back", "Close"),
        ("x,X,delete", "remove", "Remove"),
        ("c,C", "cancel", "Cancel"),
        ("r,R", "refresh", "Look again"),
        ("p,P", "ask", "Pull another"),
    ]

    def __init__(self, pairs: PairJobs) -> None:
        super().__init__()
        self._pairs = pairs
        self._chosen: str | None = None  # the pair that was highlighted last
        self._list = MarkedList(id="pair-list")
        self._head = Static(markup=False, id="pair-head")
        # The first frame has it: what its size is to show comes with the next one, perhaps later.
        self._detail = Static(LOOKING, markup=False, id="pair-detail")
        self._keys = Static(markup=False, id="pair-keys")
        self._ask = InputLine(placeholder=_FORM, id="pair-ask", compact=True, select_on_focus=False)
        self._ask.cursor_blink = False
        self._drawn: list[Content] = []
        self._follow: Timer | None = None
        pairs.opened(self)

    def compose(self) -> ComposeResult:
        """The list, and the details of its selected line below."""
        with Vertical(id="pairs") as box:
            box.border_title = "Pairs"
            yield self._head
            yield self._list
            yield self._ask
            yield self._detail
            yield self._keys

    def on_mount(self) -> None:
        """Show the state; while work goes on, its news come from another thread."""
        self._ask.display = False
        self._list.focus()
        self._follow = self.set_interval(_REDRAW_S, self.redraw, pause=True)
        self.call_after_refresh(self.redraw)

    def on_unmount(self) -> None:
        """Tell the manager, however the screen was closed."""
        self._pairs.closed()

    def on_resize(self) -> None:
        """Lay out for the new size."""
        self.call_after_refresh(self.redraw)

    def action_back(self) -> None:
        """Leave the line that is being typed, a question, or the screen."""
        if self._ask.display:
            self._show_ask(shown=False)
        elif not self._pairs.step_back():
            self.dismiss()

    def action_remove(self) -> None:
        """Remove the selected pair, asked twice."""
        if (row := self._row()) is not None:
            self._pairs.remove(row)

    def action_cancel(self) -> None:
        """Stop a check or a pull."""
        self._pairs.cancel()

    def action_refresh(self) -> None:
        """Look at the disk again."""
        self._pairs.refresh()

    def action_ask(self) -> None:
        """Let the user type a reference to a pair that is not in the list."""
        self._show_ask(shown=True)

    def select(self, name: str) -> None:
        """Go to the line of `name`."""
        self.redraw()
        names = [row.name for row in self._pairs.state.shown()]
        if name in names:
            self._list.highlighted = names.index(name)

    @on(Input.Submitted)
    def _typed(self, event: Input.Submitted) -> None:
        if self._pairs.ask(event.value):
            self._show_ask(shown=False)

    def ask_again(self, text: str) -> None:
        """Let the user change `text`, which could not be used, and send it again."""
        self._ask.value = text
        self._show_ask(shown=True)

    def _show_ask(self, *, shown: bool) -> None:
        self._ask.display = shown
        (self._ask if shown else self._list).focus()
        self._draw_detail()

    @on(OptionList.OptionSelected)
    def _selected(self) -> None:
        if (row := self._row()) is not None:
            self._pairs.act(row)

    @on(OptionList.OptionHighlighted)
    def _highlighted(self, event: OptionList.OptionHighlighted) -> None:
        if event.option_id != self._chosen and self._chosen is not None:
            self._pairs.state.pass_on()
        self._chosen = event.option_id
        self._draw_detail()

    def redraw(self) -> None:
        """Show the state as it is now."""
        if not self.is_mounted:
            return
        self._draw_list()
        self._draw_detail()
        if self._follow is not None:
            at_work = self._pairs.state.work is not PairWork.NONE
            (self._follow.resume if at_work else self._follow.pause)()

    def _row(self) -> ListedPair | None:
        rows, at = self._pairs.state.shown(), self._list.highlighted
        return rows[at] if at is not None and at < len(rows) else None

    def _draw_list(self) -> None:
        """Write only the changed lines; the selection stays on its pair."""
        state = self._pairs.state
        width = max(0, self._list.scrollable_content_region.width - 2)
        head, *lines = table(state, width)
        self._head.update(head)
        names = [row.name for row in state.shown()]
        if names == [option.id for option in self._list.options]:
            for name, line, before in zip(names, lines, self._drawn, strict=True):
                if not line.is_same(before):
                    self._list.replace_option_prompt(name, line)
        else:
            here = self._list.highlighted_option
            self._list.clear_options()
            self._list.add_options(
                [Option(line, id=name) for name, line in zip(names, lines, strict=True)]
            )
            wanted = here.id if here is not None else state.name or state.in_use
            self._list.highlighted = names.index(wanted) if wanted in names else 0
        self._drawn = lines

    def _draw_detail(self) -> None:
        state, row = self._pairs.state, self._row()
        width = self._keys.size.width
        room = 3 if self.size.height < 16 else 8 if self.size.height < 30 else 14
        lines = detail_lines(state, row, width, room)
        self._detail.styles.height = room
        self._detail.update(Content("\n").join(lines))
        self.query_one("#pairs").border_subtitle = Content(summary(state))
        self._keys.update(self._key_line(row, width))

    def _key_line(self, row: ListedPair | None, width: int) -> Content:
        """As many keys as fit, the most important first."""
        own = _TYPING if self._ask.display else key_hints(self._pairs.state, row)
        keys = (*own, *self._pairs.app_hints())
        hints = [Content.assemble((key, KEY), (f" {meaning}", MUTED)) for key, meaning in keys]
        return as_many(hints, width)
