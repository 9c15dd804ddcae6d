"""One prompt answered twice, without and with drafting, side by side with both speeds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.timer import Timer
from textual.widgets import Static

from localspec import formats
from localspec.chat.conversation import Message, Role
from localspec.chat.dialects import Dialect
from localspec.chat.events import Disturbed, RoundText, TurnEnd, TurnEvent
from localspec.chat.figures.benefit import guessed, of_two, why_parted
from localspec.engine.common_prefix import common_prefix
from localspec.engine.record.parting import Parting
from localspec.engine.record.stats import FinishReason, GenerationStats
from localspec.errors import UsageError
from localspec.safe_text import one_line
from localspec.ui.conversation.stream import FramePacer
from localspec.ui.transcript.items import Answer
from localspec.ui.widgets import Dialogue

_EVERY_S = 0.125


@dataclass(slots=True)
class AnswerSide:
    """One of the two answers.

    Attributes:
        speculation: whether it is drafted.
        answer: the part that is written, as the chat shows answers.
        stats: its figures, once it has ended.
        so_far: the same figures while it is written.
        busy: that other programs took threads that it needed, in a clause; else empty.
    """

    speculation: bool
    answer: Answer = field(default_factory=Answer)
    stats: GenerationStats | None = None
    busy: str = ""
    so_far: GenerationStats = field(default_factory=GenerationStats)

    @property
    def text(self) -> str:
        """The part that is written, as it is shown."""
        return self.answer.text

    def hear(self, event: TurnEvent) -> None:
        """Take an event of the answer."""
        if isinstance(event, RoundText):
            self.answer.write(event.spans)
            self.so_far.add(event.round)
        elif isinstance(event, TurnEnd):
            self.answer.finish({}, FinishReason.STOP)  # the heading has its figures
            self.stats = event.stats
        elif isinstance(event, Disturbed):
            self.busy = event.why


def question(messages: Sequence[Message], typed: str) -> tuple[str, Sequence[Message]]:
    """The prompt (the typed one, else the last question), and the messages before it.

    Raises:
        UsageError: there is neither.
    """
    if typed.strip():
        return typed, messages
    users = [i for i, message in enumerate(messages) if message.role is Role.USER]
    if not users:
        raise UsageError("there is no prompt to answer twice", "Type one first.")
    return messages[users[-1]].content, messages[: users[-1]]


def heading(side: AnswerSide) -> Content:
    """The heading of a side: what it is; below that, how much is written, and its speed."""
    name = "with drafting" if side.speculation else "without drafting"
    stats = side.stats or side.so_far
    said = f"{stats.generated_tokens:,} tokens"
    if stats.tokens_per_second is not None:
        said += f", {formats.speed(stats.tokens_per_second)} tokens/s"
    if side.stats is None:
        said = f"writing … {said}" if side.text else "waiting"
    elif stats.drafted_tokens:
        said += f", {guessed(stats.drafted_tokens, stats.accepted_tokens)}"
    return Content.assemble((name, "bold"), ("\n" + said, "$text-accent"))


def body(side: AnswerSide, other: AnswerSide, width: int, height: int) -> Content:
    """The text in lines; what the other side does not say stands out, once both have ended.

    Until then only the `height` lines of its end: drawing takes time from what is compared.
    """
    if side.stats is None or other.stats is None:
        return Content("\n").join(side.answer.lines(width)[-height - 1 : -1])
    shown, others = (Content("\n").join(each.answer.lines(width)) for each in (side, other))
    return shown.stylize("bold $text-warning", common_prefix(shown.plain, others.plain))


def verdict(
    off: AnswerSide, on: AnswerSide, parting: Parting | None = None, *, exact: bool = False
) -> str:
    """What drafting brought, and whether the texts are the same, or why they part.

    Until both have ended, that other programs take threads, if they do. `exact` is that of
    `why_parted`.
    """
    if off.stats is None or on.stats is None:
        return off.busy or on.busy
    brought = of_two(off.stats, on.stats, off.busy or on.busy)
    if off.text == on.text:
        return f"{brought}; the texts are the same"
    common = common_prefix(off.text, on.text)
    why = why_parted(parting, exact=exact)
    return f"{brought}; the texts part after {common:,} characters{why}"


class CompareScreen(Dialogue[None]):
    """Shows both sides while they are written; closes with Esc.

    Args:
        asked: the prompt.
        stop: asks the engine to end.
        dialect: how the model marks its thoughts, which are shown.
        exact: whether the answers are written in passes that give equal bits.
    """

    BINDINGS: ClassVar[list[BindingType]] = [("escape,q,Q", "leave", "Close")]

    def __init__(
        self, asked: str, stop: Callable[[], None], dialect: Dialect, *, exact: bool = False
    ) -> None:
        super().__init__()
        self._asked, self._exact = asked, exact
        off, on = (Answer(dialect=dialect) for _ in range(2))
        self._sides = sides = AnswerSide(False, off), AnswerSide(True, on)
        for side in sides:
            side.answer.show_thoughts(shown=True, headed=False)
        self._stop = stop
        self._heads = [Static("", markup=False, classes="side-head") for _ in sides]
        self._texts = [Static("", markup=False) for _ in sides]
        self._views = [VerticalScroll(text) for text in self._texts]
        self._foot = Static("", markup=False, id="compare-foot")
        self._timer: Timer | None = None
        self._changed = [True, True]
        self._pace = FramePacer()
        self._parting: Parting | None = None

    def compose(self) -> ComposeResult:
        """Two columns, and the result below."""
        with Vertical(id="compare") as box:
            box.border_title = Content(one_line(self._asked, 400))
            box.border_subtitle = "Esc closes"
            with Horizontal():
                for head, view in zip(self._heads, self._views, strict=True):
                    with Vertical(classes="side"):
                        yield head
                        yield view
            yield self._foot

    def hear(self, event: TurnEvent, *, speculation: bool) -> None:
        """Take an event of one of the answers, or where they part."""
        if isinstance(event, Parting):
            self._parting = event
        self._sides[speculation].hear(event)
        self._changed[speculation] = True
        if isinstance(event, Parting | Disturbed):  # nothing may draw any more
            self._draw()

    def on_mount(self) -> None:
        """Draw now and then until both answers have ended."""
        self._draw_all()
        self._pace.start()
        self._timer = self.set_interval(_EVERY_S, self._draw_in_time)

    def on_resize(self) -> None:
        """Lay the texts out for the new width."""
        self.call_after_refresh(self._draw_all)

    def _draw_all(self) -> None:
        self._changed = [True, True]
        self._draw()

    def _draw_in_time(self) -> None:
        """Draw what has changed, as seldom as the cost of drawing asks for."""
        if self._pace.delay() <= 0:
            self._draw()
            self._pace.drawn()

    def _draw(self) -> None:
        off, on = self._sides
        if ended := off.stats is not None and on.stats is not None:
            self._changed = [True, True]  # each side shows now where it differs
        headings = [heading(side) for side in self._sides]
        width = max(1, self._heads[0].size.width)
        tallest = max(len(one.wrap(width)) for one in headings)
        room = max(1, min(text.size.width for text in self._texts))  # lines break alike
        seen = self._views[0].size.height
        for index, (side, other) in enumerate(((off, on), (on, off))):
            self._heads[index].styles.height = tallest  # both texts begin on the same line
            if self._changed[index]:
                self._heads[index].update(headings[index])
                self._texts[index].update(body(side, other, room, seen))
        if any(self._changed):
            self._foot.update(verdict(off, on, self._parting, exact=self._exact))
        self._changed = [False, False]
        if self._timer is not None and ended:
            self._timer.stop()

    def action_leave(self) -> None:
        """Stop the answers that are still being written, and close."""
        self._stop()
        self.dismiss(None)
