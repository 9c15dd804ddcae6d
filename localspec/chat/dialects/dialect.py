"""`Dialect`: all that is known of how a model writes, and the readers of its answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Struct, field

from localspec.chat.dialects.channels import ChannelReader
from localspec.chat.dialects.reader import MarkReader
from localspec.chat.dialects.reading import Call, Reading, Says, Thinks
from localspec.chat.dialects.shapes import AnswerMarks, ThinkingOptions


class Dialect(Struct, frozen=True):
    """How a model marks thoughts, content and calls, and what can be asked of its thoughts.

    Attributes:
        known: it was learnt from the model's template; otherwise it is what most models write.
        marks: how answers are divided.
        thinking: what may be asked for.
    """

    known: bool = False
    marks: AnswerMarks = field(default_factory=AnswerMarks)
    thinking: ThinkingOptions = field(default_factory=ThinkingOptions)

    def reader(
        self, tools: Sequence[Any] | None = None, *, prompt: str = ""
    ) -> MarkReader | ChannelReader:
        """A reader that is fed an answer in pieces.

        Args:
            tools: those that the model was told of, as OpenAI's requests have them; an empty list
                for none, so that nothing is a call; None where they are not known.
            prompt: the end of the rendered prompt, from which follows whether a thought is open.
        """
        kind = MarkReader if self.marks.speech == "marks" else ChannelReader
        return kind(self.marks, tools, prompt)

    def read(
        self, raw: str, tools: Sequence[Any] | None = None, *, prompt: str = "", cut: bool = False
    ) -> Reading:
        """What a whole answer says.

        Args:
            raw: the text of the answer, marks included.
            tools: as for `reader`.
            prompt: as for `reader`.
            cut: it was ended by a limit, so that what is not complete may be missing its end.
        """
        reader = self.reader(tools, prompt=prompt)
        thought, content, calls = "", "", []
        for piece in (*reader.feed(raw), *reader.end(cut=cut)):
            match piece:
                case Thinks(text):
                    thought += text
                case Says(text):
                    content += text
                case Call():
                    calls.append(piece)
        return Reading(thought or None, content or None, calls)

    def opened(self, prompt: str) -> bool:
        """Whether the end of a prompt has begun a thought already."""
        return any(opens(prompt, begin) for begin, _ in self.marks.thoughts)


def opens(prompt: str, begin: str) -> bool:
    """Whether a prompt ends with the mark that begins a thought."""
    return bool(begin) and prompt.rstrip().endswith(begin)
