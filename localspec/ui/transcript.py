"""The conversation on the screen: questions, answers, notices, and a welcome while it is empty."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import Static

from localspec.chat.events import Origin, Span
from localspec.ui.answer import Answer
from localspec.ui.safe_text import one_line, safe

if TYPE_CHECKING:
    from collections.abc import Iterable

    from textual.widget import Widget

    from localspec.ui.contract import ChatMessage, ChatSession

# Widgets cost layout time in every frame, seen or not: the oldest messages leave the screen
# (not the conversation) once there are more than this.
LONGEST = 120
_SHOWN_OF_QUESTION = 20_000


class Question(Static):
    """What the user said, exactly as typed."""

    def __init__(self, text: str) -> None:
        shown = safe(text)
        if len(shown) > _SHOWN_OF_QUESTION:
            more = len(shown) - _SHOWN_OF_QUESTION
            shown = f"{shown[:_SHOWN_OF_QUESTION]}\n… and {more:,} more characters"
        super().__init__(Content(shown), markup=False, classes="question")


class Notice(Static):
    """A message of the app itself, in place; errors look like errors also without colour."""

    def __init__(self, text: str, remedy: str = "", *, error: bool = False) -> None:
        mark = ("✗ ", "bold $text-error") if error else ("• ", "$foreground 65%")
        pieces: list[tuple[str, str]] = [mark, (safe(text), "" if error else "$foreground 65%")]
        if remedy:
            pieces.append((f"\n  {safe(remedy)}", "$foreground 65%"))
        super().__init__(
            Content.assemble(*pieces), markup=False, classes="notice -error" if error else "notice"
        )


class Welcome(Static):
    """What an empty conversation shows: which pair is loaded and how to begin."""

    def __init__(self, session: ChatSession) -> None:
        super().__init__(welcome(session), markup=False, classes="welcome")


def welcome(session: ChatSession) -> Content:
    """The pair and the first keys to know."""
    draft = session.draft_name
    how = (
        "The draft guesses, the target checks; the text is the target's own."
        if draft
        else "No draft is loaded: every token is the target's own work."
    )
    keys = [
        ("Enter", "send"),
        ("Ctrl+J", "break the line"),
        ("Esc", "stop an answer"),
        ("F1", "all keys and commands"),
    ]
    rows: list[tuple[str, str]] = []
    for key, meaning in keys:
        rows += [(f"{key:>8}", "bold $text-accent"), (f"  {meaning}\n", "$foreground 65%")]
    return Content.assemble(
        (f"{one_line(session.pair_name, 60)}\n", "bold $text-primary"),
        ("target  ", "$foreground 65%"),
        f"{one_line(session.target_name, 60)}\n",
        ("draft   ", "$foreground 65%"),
        f"{one_line(draft, 60) if draft else 'none'}\n",
        (f"{how}\n\n", "$foreground 65% italic"),
        *rows,
    )


class Transcript(VerticalScroll):
    """The scrolling conversation; stays at the newest line until the user scrolls away."""

    can_focus = False

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002 - Textual's name for it
        super().__init__(id=id)
        self.by_origin = False

    def on_mount(self) -> None:
        """Follow the newest line."""
        self.anchor()

    async def open(self, session: ChatSession) -> None:
        """Show a session's messages, or the welcome."""
        await self.clear()
        widgets: list[Widget] = [Notice(notice) for notice in session.notices]
        for message in session.messages[-LONGEST:]:
            if message.role == "user":
                widgets.append(Question(message.content))
            elif message.role == "assistant":
                widgets.append(Answer(_spans(message), by_origin=self.by_origin))
        if not session.messages:
            widgets.insert(0, Welcome(session))
        await self.mount_all(widgets)

    async def clear(self) -> None:
        """Empty the screen."""
        await self.remove_children()

    async def ask(self, text: str) -> tuple[Question, Answer]:
        """Show a question and the answer that is to come."""
        question = Question(text)
        return question, (await self._append(question, self._new_answer()))

    async def answer_again(self) -> Answer | None:
        """Put a fresh answer in place of the last one; None where there is none."""
        answers = list(self.query_children(Answer))
        if not answers:
            return None
        fresh = self._new_answer()
        await self.mount(fresh, after=answers[-1])
        await answers[-1].remove()
        self._follow()
        return fresh

    async def say(self, text: str, remedy: str = "", *, error: bool = False) -> None:
        """Show a notice below everything else."""
        await self.mount(Notice(text, remedy, error=error))
        self._follow()

    async def show_origins(self, by_origin: bool) -> None:
        """Switch all answers, and those to come."""
        self.by_origin = by_origin
        for answer in self.query_children(Answer):
            await answer.show_origins(by_origin)

    def last_answer(self) -> str:
        """The text of the newest answer, or nothing."""
        answers = list(self.query_children(Answer))
        return answers[-1].text if answers else ""

    def _new_answer(self) -> Answer:
        return Answer(by_origin=self.by_origin)

    async def _append(self, question: Question, answer: Answer) -> Answer:
        for welcome_text in self.query_children(Welcome):
            await welcome_text.remove()
        excess = len(self.children) + 2 - LONGEST
        for old in list(self.children)[: max(0, excess)]:
            await old.remove()
        await self.mount_all([question, answer])
        self._follow()
        return answer

    def _follow(self) -> None:
        """Sending moves back to the newest line, wherever the user had scrolled."""
        self.anchor()


def _spans(message: ChatMessage) -> Iterable[Span]:
    return message.spans or (Span(message.content, Origin.TARGET),)
