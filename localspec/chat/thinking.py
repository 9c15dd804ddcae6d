"""What reasoning models write before they answer: where it begins and ends."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

# In the order in which a template is searched for them.
_KNOWN = (
    ("<think>", "</think>"),
    ("<thinking>", "</thinking>"),
    ("<seed:think>", "</seed:think>"),
    ("[THINK]", "[/THINK]"),
    ("◁think▷", "◁/think▷"),
)


@dataclass(frozen=True, slots=True)
class Thinking:
    """How a model marks its thoughts.

    Attributes:
        begin, end: the marks.
        at_once: the template has written the first mark already, so answers begin inside.
    """

    begin: str = "<think>"
    end: str = "</think>"
    at_once: bool = False


def thinking_of(template: str | None, prompt: str = "") -> Thinking:
    """The marks of a model.

    Args:
        template: its chat template, if it has one.
        prompt: what the template makes of a question.
    """
    begin, end = next(
        (marks for marks in _KNOWN if template and marks[1] in template and marks[0] in template),
        _KNOWN[0],
    )
    return Thinking(begin, end, prompt.rstrip().endswith(begin))


class ThoughtSplitter:
    """Tells thoughts from the answer while text arrives in pieces.

    A mark counts at the beginning of the answer only, or where the thoughts before it have just
    ended: further down it may be the subject.
    """

    def __init__(self, thinking: Thinking) -> None:
        self._marks = thinking
        self._inside = thinking.at_once
        self._may_begin = not thinking.at_once
        self._held = ""

    @property
    def inside(self) -> bool:
        """Whether the text stands in a thought now."""
        return self._inside

    def feed(self, text: str) -> Iterator[tuple[bool, str]]:
        """Pieces of `text` with what was held back, each with whether it is a thought."""
        text, self._held = self._held + text, ""
        while text:
            if not self._inside and not self._may_begin:
                yield False, text
                return
            mark = self._marks.end if self._inside else self._marks.begin
            before, found, after = text.partition(mark)
            if found and (self._inside or not before.strip()):
                if before:
                    yield self._inside, before
                text, self._inside = after, not self._inside
                continue
            sure = text[: len(text) - overlap(text, mark)]
            if not self._inside and sure.strip():
                self._may_begin = False  # the answer itself has begun
                continue
            self._held = text[len(sure) :]
            if sure:
                yield self._inside, sure
            return

    def flush(self) -> str:
        """What was held back as the beginning of a mark, and was none."""
        held, self._held = self._held, ""
        return held


def overlap(text: str, mark: str) -> int:
    """How many characters at the end of `text` may be the beginning of `mark`."""
    longest = min(len(text), len(mark) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(mark[:n])), 0)
