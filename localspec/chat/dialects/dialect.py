"""`Dialect` describes how a model writes, and makes the readers of its answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

from msgspec import Struct, field, structs

from localspec.chat.dialects.notations import gemma
from localspec.chat.dialects.reading.answer_parts import (
    AnswerReading,
    Call,
    ContentPiece,
    ThoughtPiece,
)
from localspec.chat.dialects.reading.channels import HEADERS, ChannelReader
from localspec.chat.dialects.reading.reader import MarkReader
from localspec.chat.dialects.shapes import AnswerMarks, ThinkingOptions

AnswerReader: TypeAlias = MarkReader | ChannelReader


class Dialect(Struct, frozen=True):
    """How a model marks thoughts, content and calls, and which options its thoughts have.

    Attributes:
        known: it was learnt from the model's template; if not, it is what most models write.
        openings: the mark of a thought that prompts end with, as (reasoning, effort, mark) with the
            arguments of `ThinkingOptions.variables`. Without an entry, the prompt opens no thought.
        opening: that mark for the prompts of one conversation; empty for none.
    """

    known: bool = False
    marks: AnswerMarks = field(default_factory=AnswerMarks)
    thinking: ThinkingOptions = field(default_factory=ThinkingOptions)
    openings: tuple[tuple[str, str, str], ...] = ()
    opening: str = ""

    def asked(self, reasoning: str = "auto", effort: str = "") -> Dialect:
        """The dialect of a conversation with these options for thoughts.

        Args:
            reasoning: ``on``, ``off``, or ``auto``, which leaves it to the template.
            effort: one that the template knows; any other has no effect.
        """
        variables = self.thinking.variables(reasoning, effort)
        opening = next(
            (
                mark
                for *asked, mark in self.openings
                if self.thinking.variables(*asked) == variables
            ),
            "",
        )
        return structs.replace(self, opening=opening)

    def raw(self) -> Dialect:
        """This dialect, but thoughts and their marks stay in the content; calls are still read."""
        none: Any = dict.fromkeys(("content", "closers", "fillers", "ends"), ())
        return structs.replace(self, marks=structs.replace(self.marks, raw=True, **none))

    def without_ends(self, spelled: Callable[[str], bool]) -> Dialect:
        """This dialect, but some texts that end answers are text.

        Args:
            spelled: whether an end can only be in an answer where that spells it: the tokens of
                the model that mean it end generation before they become text.
        """
        ends = tuple(one for one in self.marks.ends if not spelled(one))
        return structs.replace(self, marks=structs.replace(self.marks, ends=ends))

    def reader(
        self, tools: Sequence[Any] | None = None, *, prompt: str = "", exact: bool = False
    ) -> AnswerReader:
        """A reader of one answer, which is fed in pieces.

        Args:
            tools: those in the request, in OpenAI's form; an empty list for none, so that nothing
                is read as a call; None if they are not known.
            prompt: the end of the rendered prompt, which shows whether a thought is open.
            exact: keep the surrounding white space of an answer without marks.
        """
        kind = MarkReader if self.marks.speech == "marks" else ChannelReader
        return kind(self.marks, tools, prompt, exact=exact)

    def read(
        self, raw: str, tools: Sequence[Any] | None = None, *, prompt: str = "", cut: bool = False
    ) -> AnswerReading:
        """Read a whole answer.

        Args:
            raw: the text of the answer, including marks.
            tools: as for `reader`.
            prompt: as for `reader`.
            cut: a limit ended the answer, so that its last part may be incomplete.
        """
        return _whole(self.reader(tools, prompt=prompt), raw, cut=cut)

    def calls(self, raw: str, tools: Sequence[Any]) -> list[Call]:
        """The calls that an answer has, those of tools that do not exist too.

        Args:
            raw: the text of the answer, including marks.
            tools: those that may be called, in OpenAI's form.
        """
        known = self.read(raw, tools, prompt=self.opening).calls
        return known or self.read(raw, None, prompt=self.opening).calls

    def said(self, raw: str, *, cut: bool = False) -> AnswerReading:
        """Read a stored answer, in which nothing counts as a call.

        Args:
            raw: its text, including the mark of a thought that the prompt opened; text without any
                mark is content, unchanged.
            cut: a limit ended it.
        """
        return _whole(self.reader((), exact=True), raw, cut=cut)

    def opened(self, prompt: str, answer: str = "") -> str:
        """The mark of a thought that is open where a prompt ends; empty for none.

        Args:
            prompt: ends with the mark, or with an answer that is to be continued.
            answer: that answer; empty for none.
        """
        if answer:
            pairs = [pair for pair in self.marks.thoughts if all(pair)]
            ends = (begin for begin, close in pairs if answer.rfind(begin) > answer.rfind(close))
        else:
            begins = [begin for begin, _ in self.marks.thoughts if begin]
            ends = (begin for begin in begins if prompt.rstrip().endswith(begin))
        return next(ends, "")

    def speaks(self, mark: str) -> bool:
        """Whether a control token's text is part of the marks that divide answers."""
        return any(mark in one for one in self._texts())

    def _texts(self) -> Iterator[str]:
        marks = self.marks
        if marks.speech != "marks":
            yield from HEADERS[marks.speech].texts
        for begin, close in marks.thoughts:
            yield from (begin, close)
        yield from (*marks.content, *marks.closers, *marks.fillers, *marks.ends)
        for shape in marks.calls:
            yield from (*shape.before, *shape.after, shape.name_end, shape.key_open)
            yield from (shape.value_open, shape.other_open, shape.value_close)
            yield from (gemma.QUOTE,) if shape.style == "gemma" else ()


def _whole(reader: AnswerReader, raw: str, *, cut: bool) -> AnswerReading:
    thought, content = "", ""
    calls: list[Call] = []
    for piece in (*reader.feed(raw), *reader.end(cut=cut)):
        match piece:
            case ThoughtPiece(text):
                thought += text
            case ContentPiece(text):
                content += text
            case Call():
                calls.append(piece)
    return AnswerReading(thought or None, content or None, calls)
