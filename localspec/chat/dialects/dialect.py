"""`Dialect`: all that is known of how a model writes, and the readers of its answers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

from msgspec import Struct, field, structs

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
    """How a model marks thoughts, content and calls, and what can be asked of its thoughts.

    Attributes:
        known: it was learnt from the model's template; otherwise it is what most models write.
        marks: how answers are divided.
        thinking: what may be asked for.
        openings: the mark of a thought with which prompts end, by what is asked for: reasoning and
            effort as `ThinkingOptions.variables` takes them. What is not listed opens no thought.
        prefill: the same of the prompts of one conversation; empty for none.
    """

    known: bool = False
    marks: AnswerMarks = field(default_factory=AnswerMarks)
    thinking: ThinkingOptions = field(default_factory=ThinkingOptions)
    openings: tuple[tuple[str, str, str], ...] = ()
    prefill: str = ""

    def asked(self, reasoning: str = "auto", effort: str = "") -> Dialect:
        """The dialect of a conversation in which this is asked of thoughts.

        Args:
            reasoning: ``on``, ``off``, or ``auto``, which leaves it to the template.
            effort: how much it thinks; what the template does not know changes nothing.
        """
        variables = self.thinking.variables(reasoning, effort)
        prefill = next(
            (
                mark
                for *asked, mark in self.openings
                if self.thinking.variables(*asked) == variables
            ),
            "",
        )
        return structs.replace(self, prefill=prefill)

    def raw(self) -> Dialect:
        """The same, but thoughts stay where they are, marks and all; calls of tools are read."""
        known, plain = self.marks, AnswerMarks(thoughts=())
        if known.speech == "marks":
            plain = structs.replace(known, thoughts=(), content=(), closers=(), fillers=(), ends=())
        return structs.replace(self, marks=plain, openings=(), prefill="")

    def reader(
        self, tools: Sequence[Any] | None = None, *, prompt: str = "", exact: bool = False
    ) -> AnswerReader:
        """A reader that is fed an answer in pieces.

        Args:
            tools: those that the model was told of, as OpenAI's requests have them; an empty list
                for none, so that nothing is a call; None where they are not known.
            prompt: the end of the rendered prompt, from which follows whether a thought is open.
            exact: an answer without any mark is told with the blanks around it.
        """
        kind = MarkReader if self.marks.speech == "marks" else ChannelReader
        return kind(self.marks, tools, prompt, exact=exact)

    def read(
        self, raw: str, tools: Sequence[Any] | None = None, *, prompt: str = "", cut: bool = False
    ) -> AnswerReading:
        """What a whole answer says.

        Args:
            raw: the text of the answer, marks included.
            tools: as for `reader`.
            prompt: as for `reader`.
            cut: it was ended by a limit, so that what is not complete may be missing its end.
        """
        return _whole(self.reader(tools, prompt=prompt), raw, cut=cut)

    def said(self, raw: str, *, cut: bool = False) -> AnswerReading:
        """What a stored answer says, in which nothing is a call.

        Args:
            raw: its text, with the mark of a thought that the prompt opened; without any mark it is
                content as it is.
            cut: it was ended by a limit.
        """
        return _whole(self.reader((), exact=True), raw, cut=cut)

    def opened(self, prompt: str) -> str:
        """The mark of thoughts with which a prompt ends; empty for none."""
        begins = [begin for begin, _ in self.marks.thoughts if begin]
        return next((begin for begin in begins if prompt.rstrip().endswith(begin)), "")

    def speaks(self, mark: str) -> bool:
        """Whether a control token's text is part of what answers are divided by."""
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
            yield from ('<|"|>',) if shape.style == "gemma" else ()


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
