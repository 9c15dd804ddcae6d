"""The conversation on the screen: one widget that draws the visible lines.

Textual's own Markdown has a widget for each paragraph, which is laid out and styled again and again
while text streams in; with a fast model that took half of a core. Here lines out of sight cost
nothing, so an old conversation does not slow down a new answer.
"""

from __future__ import annotations

import re
import time
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias, TypeVar

from rich.cells import cell_len
from textual import events
from textual.content import Content
from textual.geometry import Offset, Region, Size
from textual.scroll_view import ScrollView
from textual.scrollbar import ScrollBar
from textual.selection import SELECT_ALL, Selection
from textual.strip import Strip
from textual.style import Style
from textual.timer import Timer
from textual.visual import Visual
from textual.widget import Widget

from localspec.chat.conversation import Message, tools_called
from localspec.chat.dialects import Dialect
from localspec.chat.events import Origin, Span
from localspec.chat.figures.figures import AnswerFigures
from localspec.chat.history.conversation_record import MessageVersion
from localspec.engine.record.stats import FinishReason
from localspec.errors import PromptTooLong, in_words
from localspec.process.messages import SessionInfo
from localspec.ui.transcript.items import (
    Answer,
    ConversationItem,
    FoldedItem,
    Notice,
    Question,
    ToolReturn,
    Welcome,
)
from localspec.ui.widgets import LineWidget, PlainScrollBar

# Laying out thousands of messages takes seconds. The first number is for a search for one of them,
# the second for a reader at the top, who would feel more of them as a jerk.
BATCH, STEP = 40, 10
_TOP = 1
# Laying out goes on for so long before keys and frames get their turn.
_STRETCH_S, _PAUSE_S = 0.03, 0.005
_WORD = re.compile(r"\w+")
_JUMPS = 8  # a growing answer scrolls by this fraction of the visible lines

AnyItem = TypeVar("AnyItem", bound=ConversationItem)

Shown: TypeAlias = "tuple[Message, MessageVersion, AnswerFigures]"
"""A message, where it stands, and how it was made."""

# An item, how many letters and digits of it stand at one side of the place, and whether that is
# below it. They stay however it is wrapped. In an answer they are those below, since its thoughts,
# which may open, come first; of a question the middle may open. None for the line above its
# beginning.
_Place: TypeAlias = "tuple[ConversationItem, int | None, bool]"


class Transcript(ScrollView, LineWidget, can_focus=False):
    """The scrolling conversation; stays at the newest line until the user scrolls away."""

    def __init__(self) -> None:
        super().__init__(id="transcript")
        self.by_origin = False
        self.thoughts_shown = False
        self._dialect = Dialect()
        self.tools: Sequence[Any] = ()  # those that the model may call
        self.items: list[ConversationItem] = []
        self._older: list[Shown] = []
        self._above = 0  # how many items stand above the messages
        self._more = 0  # whether the item below those says that older messages exist
        self._starts: list[int] = []
        self._margin = 2
        self._following = True  # whether to keep the newest line in sight
        self._goes_on: Timer | None = None  # while not everything is laid out
        self._sought: _Place | None = None  # to scroll to until everything is laid out
        self._ground = Style()
        self._strips: dict[int, tuple[Content, Strip]] = {}  # drawn lines in and near the view
        self.auto_links = False

    @property
    def vertical_scrollbar(self) -> ScrollBar:
        """Our scrollbar, made on first use, as Textual makes its own."""
        if self._vertical_scrollbar is None:
            self._vertical_scrollbar = bar = PlainScrollBar(name="vertical")
            bar.display = False
            self.app._start_widget(self, bar)  # noqa: SLF001 - there is no public way
        return self._vertical_scrollbar

    # Changing the conversation

    def open(self, session: SessionInfo | None, shown: Sequence[Shown]) -> None:
        """Show a conversation, or the welcome.

        Args:
            session: the loaded pair that answers in it, if any.
            shown: its messages.
        """
        self.screen.clear_selection()
        self._dialect = session.dialect if session else Dialect()
        self.items = [Notice(notice) for notice in (session.notices if session else ())]
        if session and not shown:
            self.items.insert(0, Welcome(session))
        self._older = list(shown)
        self._above = len(self.items)
        self._add_older()
        self._measure(0)
        self._to_end()

    def _add_older(self, count: int = BATCH) -> None:
        """Put `count` older messages above the shown ones."""
        while count < len(self._older) and self._older[-count][0].role == "tool":
            count += 1  # an answer and the results of its calls stay together
        batch, self._older = self._older[-count:], self._older[:-count]
        del self.items[self._above : self._above + self._more]
        items: list[ConversationItem] = []
        results: list[Message] = []
        for message, place, figures in reversed(batch):
            if message.role == "tool":
                items.append(ToolReturn(message, place, opened=self.thoughts_shown))
                results.append(message)
                continue
            if message.role == "user":
                items.append(Question(message.content, place, opened=self.thoughts_shown))
            elif message.role == "assistant":
                said = message.spans or [Span(message.content, Origin.TARGET)]
                answer = self._new_answer(said, tools_called(results))
                answer.place = place
                answer.finish(figures, message.finish)
                items.append(answer)
            results = []
        items.reverse()
        self._more = 1 if self._older else 0
        if self._more:
            items.insert(0, Notice(f"{len(self._older):,} earlier messages: scroll up"))
        self.items[self._above : self._above] = items

    def _show_older(self, count: int = BATCH) -> None:
        """Add `count` older messages and stay where the reader is."""
        if self._older:
            self.screen.clear_selection()  # it is kept by the numbers of lines
            self._add_older(count)
            self._measure_above()

    def _measure_above(self) -> None:
        """Stay where the reader is after the text above has grown."""
        height = self.virtual_size.height
        below = height - self.scroll_offset.y
        self._measure(0)
        if self.virtual_size.height != height:
            self.screen.clear_selection()
        if self._sought is not None:
            self._to_sought()
        elif not self._following:
            top = self.virtual_size.height - below
            self.scroll_to(y=top, animate=False, immediate=True)

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        """Add older messages at the top; follow new text at the end."""
        super().watch_scroll_y(old_value, new_value)
        self._sought = None  # the reader has chosen another place
        self._following = new_value >= self.max_scroll_y
        if new_value <= 0 < old_value:
            self.call_after_refresh(self._show_older, STEP)

    def page(self, by: int) -> None:
        """Scroll by pages, backwards if negative."""
        if by < 0 and self.scroll_offset.y <= 0:
            self._show_older(STEP)
        (self.scroll_page_up if by < 0 else self.scroll_page_down)(animate=False)

    def ask(self, text: str, place: MessageVersion | None = None) -> Answer:
        """Show a question, and return the item for its answer."""
        if any(isinstance(item, Welcome) for item in self.items):
            self.screen.clear_selection()
        self.items = [item for item in self.items if not isinstance(item, Welcome)]
        self._above = min(self._above, len(self.items))
        self._measure(0)
        self._add(Question(text, place, opened=self.thoughts_shown))
        return self.answer_again(None)

    def go_on(self, results: Iterable[tuple[Message, MessageVersion]]) -> Answer:
        """Show the results of calls, and return the item for the answer after them."""
        for result, place in results:
            self._add(ToolReturn(result, place, opened=self.thoughts_shown))
        return self._add(self._new_answer((), self.tools))

    def find(self, node: str) -> ConversationItem | None:
        """The item that shows a node; adds older messages until it is there."""
        while True:
            for item in self.items:
                if item.place and item.place.node == node:
                    return item
            if not self._older:
                return None
            self._show_older()

    def cut(self, node: str) -> None:
        """Take a message and all that follows away."""
        if (item := self.find(node)) is not None:
            self.screen.clear_selection()
            index = self.items.index(item)
            del self.items[index:]
            self._measure(index)

    def show(self, node: str) -> None:
        """Scroll to a message."""
        if (item := self.find(node)) is not None:
            self._sought = item, None, False
            self._to_sought()

    def _hold(self) -> None:
        """Stay at the line at the top of the view, whatever its number will be."""
        if not self._following and self._sought is None and self._starts:
            y = self.scroll_offset.y
            index = max(0, bisect_right(self._starts, y) - 1)
            item, line = self.items[index], y - self._starts[index]
            late = isinstance(item, Question) and 2 * line > len(item.shown)
            below = line > 0 and (late or isinstance(item, Answer))
            lines = item.shown[line:] if below else item.shown[: max(0, line)]
            self._sought = item, sum(map(_letters, lines)), below

    def _to_sought(self) -> None:
        if self._sought is None:
            return
        item, letters, below = sought = self._sought
        if item in self.items:
            y, line = self._starts[self.items.index(item)], _line_above if below else _line_below
            y += -1 if letters is None else line(item.shown, letters)
            self.scroll_to(y=max(0, y), animate=False, immediate=True)
        self._sought = sought if self._goes_on is not None else None
        self._following = self._sought is None and self.scroll_y >= self.max_scroll_y

    def answer_again(self, last: Answer | None) -> Answer:
        """Put a fresh answer in place of the last one, if there is one; show the end.

        It grows at the end as any other, so its question moves below the later messages.
        """
        if last is not None:
            self.screen.clear_selection()
            first, index = self._with_question(last), self.items.index(last)
            question, since = self.items[first:index], self.items[index + 1 :]
            self.items[first:] = [*since, *question]
            self._measure(first)
        answer = self._add(self._new_answer((), self.tools))
        self._to_end()
        return answer

    def put_back(self, fresh: Answer, old: Answer) -> None:
        """Put the old answer back in place of a fresh one that never began."""
        index = self.items.index(fresh)
        self.items[index] = old
        self._measure(index)

    def take_back(self, answer: Answer) -> None:
        """Remove an answer that never began, and its question."""
        index, first = self.items.index(answer), self._with_question(answer)
        del self.items[first : index + 1]
        self._measure(first)

    def _with_question(self, answer: Answer) -> int:
        """Where an answer begins, with the question above it."""
        index = self.items.index(answer)
        return index - 1 if index and isinstance(self.items[index - 1], Question) else index

    def write(self, answer: Answer, spans: Iterable[Span], tokens: int = 0) -> None:
        """Append text to an answer, `tokens` in all."""
        self._grown(answer, answer.write(spans, tokens))

    def finish(self, answer: Answer, figures: AnswerFigures, reason: FinishReason | None) -> None:
        """An answer is complete."""
        answer.finish(figures, reason)
        self._grown(answer)

    def say(
        self, text: str, remedy: str = "", *, error: bool = False, unasked: bool = False
    ) -> None:
        """`tell`, and show it; if it was `unasked` for, show only the welcome, if that is there."""
        self.tell(text, remedy, error=error)
        if not unasked:
            self._to_end()
        elif isinstance(self.items[0], Welcome):
            self.scroll_to(y=0, animate=False, immediate=True)

    def tell(self, text: str, remedy: str = "", *, error: bool = False) -> None:
        """Show a notice below everything else; a reader who has scrolled up stays there."""
        self._add(Notice(text, remedy, error=error))

    def say_error(self, error: Exception) -> None:
        """Show what went wrong."""
        text, remedy = in_words(error)
        if isinstance(error, PromptTooLong):  # elsewhere an option of the command line helps
            remedy = "Shorten it, or say /set ctx-size N: the pair is loaded with a larger context."
        self.say(text, remedy, error=True)

    def say_before(self, answer: Answer | None, text: str, remedy: str = "") -> None:
        """Show a notice above an answer and its question."""
        index = self._with_question(answer) if answer in self.items else len(self.items)
        self.screen.clear_selection()
        self.items.insert(index, Notice(text, remedy))
        self._measure(index)

    def show_origins(self, by_origin: bool) -> None:
        """Switch all answers, and those to come."""
        self.screen.clear_selection()
        self._hold()
        self.by_origin = by_origin
        for item in self.items:
            if isinstance(item, Answer):
                item.show_origins(by_origin)
        self._measure(0)
        self._to_sought()

    def show_thoughts(self, shown: bool) -> None:
        """Open or fold thoughts and attached files everywhere, also in later messages."""
        self.screen.clear_selection()
        self._hold()
        self.thoughts_shown = shown
        for item in self.items:
            if isinstance(item, Answer | FoldedItem):
                item.show_thoughts(shown)
        self._measure(0)
        self._to_sought()

    def _new_answer(self, spans: Iterable[Span] = (), tools: Sequence[Any] | None = ()) -> Answer:
        answer = Answer(spans, by_origin=self.by_origin, dialect=self._dialect, tools=tools)
        answer.show_thoughts(self.thoughts_shown)
        return answer

    def last_answer(self) -> Answer | None:
        """The newest answer."""
        return next((item for item in reversed(self.items) if isinstance(item, Answer)), None)

    def plain(self) -> str:
        """All text of the conversation, as it is wrapped."""
        lines = [line for item in self.items for line in item.lines(self._text_width())]
        if self._goes_on is not None:
            self._go_on()
        return "\n".join(line.plain.rstrip() for line in lines)

    # Lines

    def _add(self, item: AnyItem) -> AnyItem:
        self.items.append(item)
        self._measure(len(self.items) - 1)
        return item

    def _grown(self, item: ConversationItem, changed: int = 0) -> None:
        """Update the places of the items after one that changed from its line `changed` on."""
        if item in self.items:
            self._measure(self.items.index(item), changed, growing=True)

    def _measure(self, first: int, changed: int = 0, *, growing: bool = False) -> None:
        """Measure the items from `first` on again, and draw.

        Args:
            first: the first item that may have changed.
            changed: the first changed line of that item.
            growing: whether more lines are about to come.
        """
        width = self._text_width()
        if width <= 0:
            return
        following = self.is_vertical_scroll_end and self._sought is None
        self._lay_out(width)
        del self._starts[first:]
        line = self._starts[-1] + len(self.items[first - 1].lines_so_far(width)) if first else _TOP
        changed_from = line + changed
        for item in self.items[first:]:
            self._starts.append(line)
            line += len(item.lines_so_far(width))
        height = self._with_room(line) if growing else line
        if height != self.virtual_size.height:
            self._set_height(height)
            if following:
                self._to_end()
        self._draw_from(changed_from)

    def _lay_out(self, width: int) -> None:
        """Lay out what remains, first from the sought place on, then the newest; or go on later."""
        until = time.thread_time() + _STRETCH_S
        sought = self._sought[0] if self._sought is not None else None
        at = self.items.index(sought) if sought in self.items else len(self.items)
        for item in (*self.items[at:], *reversed(self.items[:at])):
            while item.advance(width):
                if time.thread_time() > until:
                    if self._goes_on is None:
                        self._goes_on = self.set_timer(_PAUSE_S, self._go_on)
                    return

    def _go_on(self) -> None:
        if self._goes_on is not None:
            self._goes_on.stop()
        self._goes_on = None
        self._measure_above()

    def _with_room(self, lines: int) -> int:
        """`lines` and some empty ones below, into which an answer grows.

        Scrolling redraws every visible line, a growing line only itself. So an answer scrolls by
        several lines now and then.
        """
        view = self.size.height
        step = max(1, view // _JUMPS)
        return view + -(-(lines - view) // step) * step if lines > view else lines

    def _set_height(self, height: int) -> None:
        """Set the height for the scrollbar without laying out the whole screen anew."""
        self.set_reactive(Widget.virtual_size, Size(self.size.width, height))
        self.vertical_scrollbar.window_virtual_size = height
        self.vertical_scrollbar.window_size = self.size.height
        if self.scroll_y > self.max_scroll_y and self._sought is None:
            self._to_end()

    def _draw_from(self, line: int) -> None:
        top = max(0, line - self.scroll_offset.y)
        if top < self.size.height:
            self.refresh(Region(0, top, self.size.width, self.size.height - top))

    def _to_end(self) -> None:
        self._sought = None
        self.scroll_end(animate=False, immediate=True, x_axis=False)

    def _text_width(self) -> int:
        return self.size.width - 2 * self._margin

    def on_resize(self, event: events.Resize) -> None:
        """Wrap everything anew."""
        self.screen.clear_selection()
        self._strips.clear()
        self._margin = 2 if event.size.width >= 60 else 1
        self._hold()
        self._measure(0)
        self._to_sought()
        self.call_after_refresh(self._follow)

    def _follow(self) -> None:
        """Stay at the end after a change of size, unless the user has scrolled up meanwhile."""
        if self._following:
            self._to_end()

    def notify_style_update(self) -> None:
        """Redraw everything in the colours of another theme."""
        super().notify_style_update()
        self._strips.clear()

    def render_lines(self, crop: Region) -> list[Strip]:
        """The lines in `crop`."""
        self._ground = self.visual_style  # worked out once a frame, not once a line
        self._let_go()
        return super().render_lines(crop)

    def render_line(self, y: int) -> Strip:
        """One line with the places of its characters, by which Textual finds what is selected.

        Not for drawing: Textual keeps 16,384 styles for ever, and a place makes each a new one.
        """
        absolute = y + self.scroll_offset.y
        strip = self.drawn(y)
        return strip if self._line(absolute) is None else strip.apply_offsets(0, absolute)

    def drawn(self, y: int) -> Strip:
        """Draw one line, or return the kept strip."""
        absolute = y + self.scroll_offset.y
        line, selection = self._line(absolute), self.text_selection
        if line is None:
            return Strip.blank(self.size.width, self._ground.rich_style)
        if selection is not None:
            return self._draw(line, selection.get_span(absolute))
        kept = self._strips.get(absolute)
        if kept is None or kept[0] is not line:
            # Return the same strip object each time: Textual caches what it derives from it.
            kept = self._strips[absolute] = (line, self._draw(line, None))
        return kept[1]

    def _line(self, absolute: int) -> Content | None:
        """A line of the conversation; None above, below, and where nothing is laid out yet."""
        index = bisect_right(self._starts, absolute) - 1
        shown = self.items[index].shown if 0 <= index < len(self.items) else ()
        local = absolute - self._starts[index] if shown else 0
        # A new width holds from `on_resize` on; a frame may come before that.
        return shown[local] if local < len(shown) else None

    def _let_go(self) -> None:
        """Drop drawn lines far out of sight: each takes 7 kB with what Textual derives from it."""
        top, view = self.scroll_offset.y, self.size.height
        if len(self._strips) > 4 * view:
            near = range(top - view, top + 2 * view)
            self._strips = {y: kept for y, kept in self._strips.items() if y in near}

    def _draw(self, line: Content, selected: tuple[int, int] | None) -> Strip:
        line = line.pad_left(self._margin)
        if selected is not None:
            start, end = selected
            style = self.screen.get_visual_style("screen--selection")
            line = line.stylize(style, start, len(line) if end == -1 else end)
        strips = Visual.to_strips(
            self, line, self.size.width, 1, self._ground, apply_selection=False, pad=True
        )
        return strips[0]

    def get_selection(self, selection: Selection) -> tuple[str, str] | None:
        """The selected text as it is wrapped, without the margin; all is all that was ever said."""
        if selection == SELECT_ALL:
            self._show_older(len(self._older))
        margin = " " * self._margin
        text = "\n" * _TOP + "\n".join(margin + line for line in self.plain().split("\n"))
        found = selection.extract(text)
        return "\n".join(line.removeprefix(margin) for line in found.split("\n")), "\n"

    def selection_updated(self, selection: Selection | None) -> None:  # noqa: ARG002
        """Draw everything anew: Textual does not say which lines the selection concerns."""
        self.refresh()

    def text_select_all(self) -> None:
        """Leave a double click, for which Textual calls this, to `on_click`."""

    def on_click(self, event: events.Click) -> None:
        """Select the word under the mouse at a double click; three clicks select everything."""
        y = event.y + self.scroll_offset.y
        line = self._line(y)
        if event.widget is not self or event.chain != 2 or line is None:
            return
        for word in _WORD.finditer(line.plain):
            left, right = (cell_len(line.plain[:at]) + self._margin for at in word.span())
            if left <= event.x < right:
                start, end = (Offset(at + self._margin, y) for at in word.span())
                self.screen.selections = {self: Selection(start, end)}


def _letters(line: Content) -> int:
    """How many characters a line has that neither wrapping nor Markdown adds."""
    return sum(map(str.isalnum, line.plain))


def _line_below(lines: Sequence[Content], letters: int) -> int:
    """The number of the line before which so many letters stand."""
    for number, line in enumerate(lines):
        if letters < _letters(line):
            return number
        letters -= _letters(line)
    return max(0, len(lines) - 1)


def _line_above(lines: Sequence[Content], letters: int) -> int:
    """The number of the line from which on so many letters stand."""
    for number in range(len(lines) - 1, -1, -1):
        letters -= _letters(lines[number])
        if letters <= 0:
            return number
    return 0
