"""What a conversation consists of on the screen; each item knows its lines for a given width."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from itertools import takewhile
from typing import TYPE_CHECKING, Any, TypeAlias

from textual.content import Content

from localspec.chat.events import Origin, Span
from localspec.chat.thinking import Thinking
from localspec.engine.stats import FinishReason
from localspec.safe_text import one_line, safe
from localspec.ui import numbers
from localspec.ui.conversation.blocks import Block, Frame, Paragraph, lay_out
from localspec.ui.conversation.growing import Growing, GrowingMarkdown, GrowingOrigins
from localspec.ui.conversation.thought import Thought

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from textual.strip import Strip

    from localspec.chat.history.record import Place
    from localspec.engine.stats import GenerationStats
    from localspec.ui.contract import ChatSession

Figures: TypeAlias = "Mapping[str, Any]"
"""How an answer was made, by name; `figures_of` says what there can be."""

# Text parsed block by block comes out as text parsed at once, with one exception: links whose
# address is defined further down. Only with those is the whole text parsed again at the end.
_LATE_DEFINITION = re.compile(r"^ {0,3}\[[^\]\n]+\]:", re.MULTILINE)
_SHOWN_OF_QUESTION = 20_000
_MUTED = "$foreground 65%"
_FAINT = "$foreground 65%"
_INDENT = Content("  ")
_ENDINGS = {
    FinishReason.STOP: "",
    FinishReason.LENGTH: "length limit reached",
    FinishReason.CONTEXT: "the context is full",
    FinishReason.CANCELLED: "stopped",
}


class Item(ABC):
    """Something in the conversation. Lines are kept until the width or the item changes.

    Attributes:
        place: which message of the conversation it shows, None for what is no message.
        strips: what the transcript has drawn, by line, with the line's place in the whole.
    """

    def __init__(self, place: Place | None = None) -> None:
        self.place = place
        self.strips: dict[int, tuple[int, Strip]] = {}
        self._lines: list[Content] = []
        self._width = 0

    def lines(self, width: int) -> list[Content]:
        """All lines, the empty one below included."""
        if width != self._width:
            self._width = width
            self.strips.clear()
            self._lines = [*self._lay_out(width), Content("")]
        return self._lines

    def forget(self) -> None:
        """What was laid out or drawn is no longer right."""
        self._width = 0
        self.strips.clear()

    @abstractmethod
    def _lay_out(self, width: int) -> list[Content]:
        """All lines but the empty one below."""


def _wrapped(text: Content, first: Content, rest: Content, width: int) -> list[Content]:
    return lay_out([Block(Frame(first, rest), Paragraph(text))], width)


class Question(Item):
    """What the user said, exactly as typed."""

    def __init__(self, text: str, place: Place | None = None) -> None:
        super().__init__(place)
        shown = safe(text)
        if len(shown) > _SHOWN_OF_QUESTION:
            more = len(shown) - _SHOWN_OF_QUESTION
            shown = f"{shown[:_SHOWN_OF_QUESTION]}\n… and {more:,} more characters"
        self._text = Content(shown)

    def _lay_out(self, width: int) -> list[Content]:
        bar = Content.styled("▌ ", "$primary")
        lines = _wrapped(self._text, bar, bar, width)
        if versions := version_mark(self.place):
            lines += _wrapped(versions, bar, bar, width)
        return [
            line.pad_right(max(0, width - line.cell_length)).stylize_before("on $foreground 6%")
            for line in lines
        ]


class Notice(Item):
    """A message of the app itself, in place; an error looks like one also without colour."""

    def __init__(self, text: str, remedy: str = "", *, error: bool = False) -> None:
        super().__init__()
        self._mark = ("✗ ", "bold $text-error") if error else ("• ", _MUTED)
        self._text = Content.styled(safe(text), "$text-error" if error else _MUTED)
        self._remedy = Content.styled(safe(remedy), _MUTED)

    def _lay_out(self, width: int) -> list[Content]:
        lines = _wrapped(self._text, Content.styled(*self._mark), _INDENT, width)
        if self._remedy:
            lines += _wrapped(self._remedy, _INDENT, _INDENT, width)
        return lines


class Welcome(Item):
    """What an empty conversation shows: which pair is loaded and how to begin."""

    def __init__(self, session: ChatSession) -> None:
        super().__init__()
        self._session = session

    def _lay_out(self, width: int) -> list[Content]:
        return [line for part in welcome(self._session) for line in part.wrap(width)]


def welcome(session: ChatSession) -> list[Content]:
    """The pair, what the two models do, and the first keys to know."""
    draft = session.draft_name
    how = (
        "The draft guesses, the target checks and decides."
        if draft
        else "No draft is loaded: every token is the target's own work."
    )
    keys = {
        "Enter": "send",
        "Ctrl+J": "break the line",
        "Esc": "stop an answer",
        "F1": "all keys and commands",
    }
    return [
        Content.styled(one_line(session.pair_name, 60), "bold $text-primary"),
        Content.assemble(("target  ", _MUTED), one_line(session.target_name, 60)),
        Content.assemble(("draft   ", _MUTED), one_line(draft, 60) if draft else "none"),
        Content.styled(how, f"{_MUTED} italic"),
        Content(""),
        *(
            Content.assemble((f"{key:<7}", "bold $text-accent"), (meaning, _MUTED))
            for key, meaning in keys.items()
        ),
    ]


class Answer(Item):
    """One answer: Markdown that grows while the model writes, or the same text by origin.

    Args:
        spans: text that is already there (a conversation opened again).
        by_origin: show who proposed what instead of Markdown; thoughts are not folded then.
        thinking: how the model marks its thoughts.

    Attributes:
        thought: what the model thought before.
    """

    def __init__(
        self,
        spans: Iterable[Span] = (),
        *,
        by_origin: bool = False,
        thinking: Thinking | None = None,
    ) -> None:
        super().__init__()
        self._thinking = thinking or Thinking()
        self.thought = Thought(self._thinking)
        self._spans: list[Span] = []
        self._live: list[Block] = []
        self._by_origin = by_origin
        self._footnote = Content("")
        self._start()
        self.write(spans)

    @property
    def text(self) -> str:
        """The text so far, as it is shown."""
        return "".join(span.text for span in self._spans)

    @property
    def said(self) -> str:
        """The text without the thoughts, for copying."""
        spans, _ = Thought(self._thinking).take(self._spans, 0)
        return "".join(span.text for span in spans)

    def write(self, spans: Iterable[Span], tokens: int = 0) -> int:
        """Append what one or several rounds released, `tokens` in all; the first line changed."""
        new = [Span(safe(span.text), span.origin) for span in spans if span.text]
        self._spans.extend(new)
        return self._grow(new, tokens) if new else len(self._lines)

    def show_thoughts(self, shown: bool) -> None:
        """Open or fold the thoughts."""
        self.thought.show(shown)
        self.forget()

    def finish(self, figures: Figures, reason: FinishReason | None) -> None:
        """No more text comes: say how it went."""
        if not self._by_origin and (held := self.thought.flush()):
            self._final_add(held)
        self.thought.recall(figures)
        if _LATE_DEFINITION.search(self.text):
            self._start()
            self._grow(self._spans)
        note = footnote(figures, reason, empty=not self._spans)
        self._footnote = Content("  ").join(
            part for part in (version_mark(self.place), Content.styled(note, _FAINT)) if part
        )
        self.forget()

    def _final_add(self, text: str) -> None:
        """Show text that was held back until it was clear that no mark comes."""
        final, live = self._growing.add([Span(text, Origin.TARGET)])
        self._final.extend(final)
        self._live = live

    def show_origins(self, by_origin: bool) -> None:
        """Switch between Markdown and the text by origin; also while it grows."""
        if by_origin != self._by_origin:
            self._by_origin = by_origin
            self._start()
            self._grow(self._spans)

    def _start(self) -> None:
        self._growing: Growing = GrowingOrigins() if self._by_origin else GrowingMarkdown()
        self._final: list[Block] = []
        self._live = []
        self._final_lines = 0
        self.thought.restart()
        self.forget()

    def _grow(self, spans: Sequence[Span], tokens: int = 0) -> int:
        """Lay out what is new; lines above the first one changed, which is told, stay."""
        said, thought = self.thought.take(spans, tokens)
        if thought and not self._by_origin:
            self.forget()
        final, self._live = self._growing.add(spans if self._by_origin else said)
        self._final += final
        if not self._width:
            return 0
        room = self._room(self._width)
        start = self._final_lines
        new = self._indented(lay_out(final, room))
        self._final_lines = start + len(new)
        new += [*self._indented(lay_out(self._live, room)), Content("")]
        # Most lines of a growing paragraph stay what they are: keep what was drawn of them.
        old = self._lines[start:]
        same = sum(1 for _ in takewhile(lambda pair: pair[0].is_same(pair[1]), zip(old, new)))  # noqa: B905
        self._lines[start + same :] = new[same:]
        for y in [y for y in self.strips if y >= start + same]:
            del self.strips[y]
        return start + same

    def _lay_out(self, width: int) -> list[Content]:
        room = self._room(width)
        head = [] if self._by_origin else self.thought.lines(room)
        lines = self._indented([*head, *lay_out(self._final, room)])
        self._final_lines = len(lines)
        lines += self._indented(lay_out(self._live, room))
        if self._footnote:
            lines += _wrapped(self._footnote, _INDENT, _INDENT, width)
        return lines

    def _room(self, width: int) -> int:
        return width - _INDENT.cell_length

    def _indented(self, lines: list[Content]) -> list[Content]:
        return [_INDENT + line for line in lines]


def version_mark(place: Place | None) -> Content:
    """Which of several versions a message is, with arrows to click; nothing for a single one."""
    if place is None or place.versions < 2:
        return Content("")
    earlier, later = (
        f"[@click=app.version('{place.node}',{by})]" for by in ("'earlier'", "'later'")
    )
    return Content.from_markup(
        f"{earlier}[bold $text-accent]‹[/][/] {place.version}/{place.versions}"
        f" {later}[bold $text-accent]›[/][/]"
    )


def figures_of(stats: GenerationStats | None) -> dict[str, float]:
    """What is worth keeping about how an answer was made."""
    if stats is None or not stats.generated_tokens:
        return {}
    found = {
        "generated_tokens": stats.generated_tokens,
        "tokens_per_second": stats.tokens_per_second,
        "acceptance_rate": stats.acceptance_rate,
        "lossy": stats.lenience if stats.drafted_tokens else None,
    }
    return {name: value for name, value in found.items() if value is not None}


def footnote(figures: Figures, reason: FinishReason | None, *, empty: bool) -> str:
    """One line about a finished answer: length, speed, acceptance, and how it ended."""
    known = {name: value for name, value in figures.items() if isinstance(value, int | float)}
    parts = []
    if "generated_tokens" in known:
        tokens = int(known["generated_tokens"])
        parts.append(f"{numbers.count(tokens)} token{'s' if tokens != 1 else ''}")
    if "tokens_per_second" in known:
        parts.append(f"{numbers.speed(known['tokens_per_second'])} tokens/s")
    if "acceptance_rate" in known:
        parts.append(f"{numbers.percent(known['acceptance_rate'])} accepted")
    if "lossy" in known:
        parts.append(f"lossy {known['lossy']:g}")
    ending = _ENDINGS[reason] if reason is not None else "broken off"
    if empty:
        ending = ending or "an empty answer"
    return " · ".join([*parts, ending] if ending else parts)
