"""The items of a conversation on the screen; each knows its lines for a given width."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Any

from textual.content import Content

from localspec import formats
from localspec.chat.conversation import Message
from localspec.chat.dialects import Dialect
from localspec.chat.events import Span
from localspec.chat.figures.benefit import guessed
from localspec.chat.figures.figures import AnswerFigures
from localspec.chat.history.conversation_record import MessageVersion
from localspec.chat.history.tree import FOLDED, folded
from localspec.engine.record.stats import FinishReason
from localspec.pairs.names.reserved_names import STARTER
from localspec.process.messages import SessionInfo
from localspec.safe_text import beginning, one_line, safe
from localspec.ui.transcript.blocks import Block, Paragraph, divided, lay_out
from localspec.ui.transcript.growing import (
    LONGEST_PIECE,
    GrowingMarkdown,
    GrowingOrigins,
    Thought,
)
from localspec.ui.transcript.markdown_blocks import definitions
from localspec.ui.widgets import HEAD, KEY, MUTED

_SHOWN_OF_QUESTION, _SHOWN_OF_NOTICE = 20_000, 5000
_SHOWN_OF_FILE = 5  # lines of an attached one
_SHOWN_OF_BEGINNING, _SHOWN_OF_END = 10, 4  # lines of a long question
_FIRST_KEYS = (
    ("Enter", "send"),
    ("Ctrl+J", "break the line"),
    ("Esc", "stop an answer"),
    ("F1", "all keys"),
)
_STARTER_CAN = (
    "135 million parameters: corrects and rewrites short texts, writes small functions, makes"
    " facts up."
)
_CAN = "It makes mistakes: check what matters."
_TRY = "To try (Enter writes one, Enter again sends it):"
PROMPTS = (
    "Copy this text and correct the spelling: Last week I went to the libary to borow a book on"
    " gardning. The book was very good, and I read it in one day.",
    "Rewrite in the past tense: She walks to the market and buys some bread.",
    "Write a Python function that reverses a string.",
)
"""Prompts to try; the first copies text, which shows drafting at work."""
_INDENT = Content("  ")
_ENDINGS = {
    FinishReason.STOP: "",
    FinishReason.LENGTH: "length limit reached",
    FinishReason.CONTEXT: "the context is full",
    FinishReason.CANCELLED: "stopped",
    FinishReason.REPETITION: "stopped, since it only repeated itself: F5 asks again, a higher"
    " /temp helps",
}


class ConversationItem:
    """Something in the conversation. Lines are kept until the width or the item changes.

    An item is laid out step by step, so that a long one does not hold up the screen.

    Attributes:
        place: which message of the conversation it shows; None for a notice or the welcome.
    """

    def __init__(self, place: MessageVersion | None = None) -> None:
        self.place = place
        self._lines: list[Content] = []
        self._width = 0
        self._parts: Iterator[list[Content]] = iter(())

    @property
    def shown(self) -> Sequence[Content]:
        """The lines that are laid out, for the width they were last asked for."""
        return self._lines

    def lines(self, width: int) -> list[Content]:
        """All lines, the empty one below included, however long that takes."""
        while self.advance(width):
            pass
        return self._lines

    def lines_so_far(self, width: int) -> list[Content]:
        """The lines that are laid out, the empty one below included."""
        if width != self._width:
            self._width = width
            self._lines = [Content("")]
            self._begin()
        return self._lines

    def advance(self, width: int) -> bool:
        """Lay out a little more, some milliseconds' worth; return whether there was any left."""
        self.lines_so_far(width)
        return self._step()

    def forget(self) -> None:
        """Lay everything out anew."""
        self._width = 0

    def _begin(self) -> None:
        """Take another width, for which nothing is laid out yet."""
        self._parts = self._lay_out(self._width)

    def _step(self) -> bool:
        """Lay out a little more; whether there was any left."""
        part = next(self._parts, None)
        if part is None:
            return False
        self._lines[-1:] = [*part, Content("")]
        return True

    def _lay_out(self, width: int) -> Iterator[list[Content]]:
        """All lines but the empty one below, one step at a time; for items that do not grow."""
        raise NotImplementedError


def _middle_folded(text: str) -> str:
    """A long `text` with a line in place of its middle; the question is at one of its ends."""
    lines = text.split("\n")
    left_out = len(lines) - _SHOWN_OF_BEGINNING - _SHOWN_OF_END
    if left_out < _SHOWN_OF_BEGINNING:
        return text
    between = f"{FOLDED}{left_out:,} more lines: F11 opens them"
    return "\n".join([*lines[:_SHOWN_OF_BEGINNING], between, *lines[-_SHOWN_OF_END:]])


def _wrapped(text: Content, first: Content, rest: Content, width: int) -> list[Content]:
    return lay_out([Block(Paragraph(text), first, rest)], width)


class FoldedItem(ConversationItem):
    """An item of which a part opens and folds together with the thoughts of answers.

    Args:
        opened: show that part from the beginning.
    """

    def __init__(self, place: MessageVersion | None, *, opened: bool) -> None:
        super().__init__(place)
        self._opened = opened

    def show_thoughts(self, shown: bool) -> None:
        """Open or fold that part."""
        self._opened = shown
        self.forget()


class Question(FoldedItem):
    """A user's message as typed, except for folded files and long texts."""

    def __init__(
        self, text: str, place: MessageVersion | None = None, *, opened: bool = False
    ) -> None:
        super().__init__(place, opened=opened)
        self._said = text

    def _lay_out(self, width: int) -> Iterator[list[Content]]:
        bar = Content.styled("▌ ", "$primary")
        shown = self._said if self._opened else _middle_folded(folded(self._said, _SHOWN_OF_FILE))
        parts = [Content(part) for part in divided(beginning(shown, _SHOWN_OF_QUESTION))]
        if versions := version_mark(self.place):
            parts.append(versions)
        for part in parts:
            yield [
                line.truncate(width, pad=True).stylize_before("on $foreground 6%")
                for line in _wrapped(part, bar, bar, width)
            ]


class ToolReturn(FoldedItem):
    """A call of a tool and its result, folded to one line.

    Args:
        result: made by `tool_result`.
        opened: show the result.
    """

    def __init__(self, result: Message, place: MessageVersion | None, *, opened: bool) -> None:
        super().__init__(place, opened=opened)
        self._result = result

    def _lay_out(self, width: int) -> Iterator[list[Content]]:
        more, text = self._result.more, self._result.content
        call = one_line(f"{more.get('name', 'tool')} {more.get('arguments', '')}", 160)
        lines = text.count("\n") + 1
        size = f"{lines:,} lines" if lines > 1 else one_line(text, 60)
        sign = "▾" if self._opened else "▸"
        head = Content.assemble((f"{sign} ", "bold $text-accent"), call, (f"  {size}", MUTED))
        yield _wrapped(head, Content(""), _INDENT, width)
        if self._opened:
            bar = Content.styled("┊ ", MUTED)
            for part in divided(beginning(text, _SHOWN_OF_QUESTION)):
                yield _wrapped(Content.styled(part, MUTED), bar, bar, width)


class Notice(ConversationItem):
    """A message of the app itself, in place; an error looks like one also without colour."""

    def __init__(self, text: str, remedy: str = "", *, error: bool = False) -> None:
        super().__init__()
        self._mark = ("✗ ", "bold $text-error") if error else ("• ", MUTED)
        self._text = Content.styled(
            beginning(text, _SHOWN_OF_NOTICE), "$text-error" if error else MUTED
        )
        self._remedy = Content.styled(beginning(remedy, _SHOWN_OF_NOTICE), MUTED)

    def _lay_out(self, width: int) -> Iterator[list[Content]]:
        yield _wrapped(self._text, Content.styled(*self._mark), _INDENT, width)
        if self._remedy:
            yield _wrapped(self._remedy, _INDENT, _INDENT, width)


class Welcome(ConversationItem):
    """The welcome in an empty conversation: the loaded pair, its uses, and how to begin."""

    def __init__(self, session: SessionInfo) -> None:
        super().__init__()
        self._session = session

    def _lay_out(self, width: int) -> Iterator[list[Content]]:
        session = self._session
        target = "" if session.target_name == session.pair_name else session.target_name
        models = (("target  ", target), ("draft   ", session.draft_name or ""))
        text = [
            Content.styled(one_line(session.pair_name, 60), HEAD),
            *(Content.assemble((role, MUTED), one_line(name, 60)) for role, name in models if name),
            Content.styled(self._how(), f"{MUTED} italic"),
            Content(""),
        ]
        starts = session.pair_name == STARTER
        can = _STARTER_CAN if starts else f"{one_line(session.about, 80)}. {_CAN}"
        text += [Content(can), Content.styled(_TRY, MUTED)]
        text += [Content.assemble(("› ", KEY), prompt) for prompt in PROMPTS]
        keys = (Content.assemble((key, KEY), (f" {what}", MUTED)) for key, what in _FIRST_KEYS)
        text.append(Content("  ").join(keys))
        yield [line for part in text for line in part.wrap(width)]

    def _how(self) -> str:
        if self._session.draft_name:
            return "The draft guesses, the target checks and decides."
        if self._session.speculation_note:
            return "Nothing drafts: every token is the model's own work."
        return "Text that repeats is copied as a guess, the model checks and decides."


class Answer(ConversationItem):
    """One answer: Markdown that grows while the model writes, or the same text by origin.

    Args:
        spans: text that is already there (a conversation opened again).
        by_origin: show who proposed what instead of Markdown; thoughts are not folded then.
        dialect: how the model marks its thoughts.
        tools: those that the model may call, as for `Dialect.reader`; calls are left out.

    Attributes:
        thought: what the model thought before.
    """

    def __init__(
        self,
        spans: Iterable[Span] = (),
        *,
        by_origin: bool = False,
        dialect: Dialect | None = None,
        tools: Sequence[Any] | None = (),
    ) -> None:
        super().__init__()
        self._dialect, self._tools = dialect or Dialect(), tools
        self.thought = Thought(self._dialect, tools)
        self._spans: list[Span] = [span for span in spans if span.text]
        self._by_origin = by_origin
        self._ended = False
        self._references: Mapping[str, Any] = {}
        self._footnote = Content("")
        self._thought_grew = False
        self._queue: deque[Block] = deque()  # blocks to be laid out
        self._end_due = True  # whether the unfinished end is to be laid out
        self._final_lines = 0
        self._start()

    @property
    def text(self) -> str:
        """The text so far, as it is shown."""
        return safe("".join(span.text for span in self._spans))

    @property
    def said(self) -> str:
        """The text without the thoughts, for copying."""
        thought = Thought(self._dialect, self._tools)
        spans, _ = thought.take(self._spans)
        return safe("".join(span.text for span in (*spans, *thought.flush())))

    def write(self, spans: Iterable[Span], tokens: int = 0) -> int:
        """Append what one or several rounds released, `tokens` in all; the first line changed.

        Lines above the first one changed stay. Text of more than a piece, or for an answer that is
        not laid out yet, waits for `advance`.
        """
        new = [span for span in spans if span.text]
        late = not self._width or bool(self._queue) or self._end_due or self._left()
        self._spans.extend(new)
        if not new:
            return len(self._lines)
        text = "".join(span.text for span in new)
        self.thought.count(text, tokens)
        if late or len(text) > LONGEST_PIECE:
            self._end_due = True
            return 0
        self._take(self._piece())
        if self._show_grown_thought():
            return 0
        blocks = [*self._queue]
        self._queue.clear()
        return self._put(blocks, end=True)

    def show_thoughts(self, shown: bool, *, headed: bool = True) -> None:
        """Open or fold the thoughts, below a line with their length, or without one."""
        self.thought.show(shown, headed=headed)
        self.forget()

    def finish(self, figures: AnswerFigures, reason: FinishReason | None) -> None:
        """End the answer with a line about how it went."""
        self._ended = True
        self.thought.recall(figures)
        self._references = definitions("".join(span.text for span in self._spans))
        if self._references:
            self._start()
        note = footnote(figures, reason, empty=not self._spans)
        self._footnote = Content("  ").join(
            part for part in (version_mark(self.place), Content.styled(note, MUTED)) if part
        )
        if self.thought.blocks():
            self.forget()
        self._end_due = True  # keep what is laid out: a long answer would vanish for a moment

    def show_origins(self, by_origin: bool) -> None:
        """Switch between Markdown and the text by origin; also while it grows."""
        if by_origin != self._by_origin:
            self._by_origin = by_origin
            self._start()

    def _start(self) -> None:
        """Begin with the first span again."""
        self._growing: GrowingMarkdown | GrowingOrigins = (
            GrowingOrigins() if self._by_origin else GrowingMarkdown(self._references)
        )
        self._final: list[Block] = []
        self._live: list[Block] = []
        self._next = (0, 0)  # the next span and character to take
        self.thought.restart()
        self.forget()
        self._begin()

    def _begin(self) -> None:
        head = [] if self._by_origin else self.thought.blocks()
        self._queue = deque([*head, *self._final])
        self._final_lines = 0
        self._end_due = True

    def _step(self) -> bool:
        if self._queue:
            self._put([self._queue.popleft()])
        elif self._left():
            self._take(self._piece())
        elif self._ended and not self._by_origin and (held := self.thought.flush()):
            self._grow([Span(safe(span.text), span.origin) for span in held])
        elif self._show_grown_thought():
            pass
        elif self._end_due:
            self._put([], end=True)
        else:
            return False
        return True

    def _left(self) -> bool:
        """Whether there is text that has not been taken yet."""
        return self._next[0] < len(self._spans)

    def _piece(self) -> list[Span]:
        """The next spans, of which a long one is cut to a piece."""
        piece: list[Span] = []
        room = LONGEST_PIECE
        while room and self._left():
            index, start = self._next
            span = self._spans[index]
            text = span.text[start : start + room]
            room -= len(text)
            at_end = start + len(text) == len(span.text)
            self._next = (index + 1, 0) if at_end else (index, start + len(text))
            piece.append(Span(safe(text), span.origin))
        return piece

    def _take(self, spans: Sequence[Span]) -> None:
        """Divide text into thoughts, whose length stands above the answer, and the answer."""
        said, thought = self.thought.take(spans)
        self._grow(spans if self._by_origin else said)
        self._thought_grew = self._thought_grew or (thought and not self._by_origin)

    def _show_grown_thought(self) -> bool:
        """Lay everything out anew if the thought above has grown; return whether it has."""
        grew, self._thought_grew = self._thought_grew, False
        if grew:
            self.forget()
        return grew

    def _grow(self, spans: Iterable[Span]) -> None:
        final, self._live = self._growing.add(spans)
        self._final += final
        self._queue.extend(final)
        self._end_due = True

    def _put(self, blocks: Sequence[Block], *, end: bool = False) -> int:
        """Lay out blocks that are final, and the unfinished end; the first line changed."""
        room = self._width - _INDENT.cell_length
        start = self._final_lines
        new = [_INDENT + line for line in lay_out(blocks, room)]
        self._final_lines += len(new)
        if end:
            new += [_INDENT + line for line in lay_out(self._live, room)]
            if self._footnote:
                new += _wrapped(self._footnote, _INDENT, _INDENT, self._width)
            self._end_due = False
        new.append(Content(""))
        # Most lines of a growing paragraph stay the same: keep the objects, which are drawn once.
        old = self._lines[start:]
        same = sum(1 for _ in takewhile(lambda pair: pair[0].is_same(pair[1]), zip(old, new)))  # noqa: B905
        self._lines[start + same :] = new[same:]
        return start + same


def version_mark(place: MessageVersion | None) -> Content:
    """Which version a message is, with arrows to click; empty if it has only one."""
    if place is None or place.versions < 2:
        return Content("")
    earlier, later = (f"[@click=\"app.version('{place.node}',{by})\"]" for by in (-1, 1))
    return Content.from_markup(
        f"{earlier}[bold $text-accent]‹[/][/] {place.version}/{place.versions}"
        f" {later}[bold $text-accent]›[/][/]"
    )


def footnote(figures: AnswerFigures, reason: FinishReason | None, *, empty: bool) -> str:
    """One line about a finished answer: length, speed, guesses, and how it ended."""
    known = {name: value for name, value in figures.items() if isinstance(value, int | float)}
    parts = []
    tokens, drafted, accepted = (
        int(known.get(f"{name}_tokens", 0)) for name in ("generated", "drafted", "accepted")
    )
    if tokens:
        parts.append(formats.counted(tokens, "token"))
    if (speed := known.get("tokens_per_second")) is not None:
        parts.append(f"{formats.speed(speed)} tokens/s")
    if drafted:
        parts.append(guessed(drafted, accepted))
    elif (rate := known.get("acceptance_rate")) is not None:  # kept before the counts were
        parts.append(f"{formats.percent(rate)} accepted")
    if (lossy := known.get("lossy")) is not None:
        parts.append(f"lossy {lossy:g}")
    ending = _ENDINGS[reason] if reason is not None else "broken off"
    return " · ".join(filter(None, [*parts, ending or ("an empty answer" if empty else "")]))
