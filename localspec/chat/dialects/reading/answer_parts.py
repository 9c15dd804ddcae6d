"""The parts of an answer, whole or in pieces."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from localspec.safe_text import encodable


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a tool: its name, and its arguments as an object.

    Attributes:
        written: the JSON of the arguments as the model wrote it; empty if it was another notation,
            or not strict JSON.
    """

    name: str
    arguments: dict[str, Any]
    written: str = field(default="", compare=False)

    def texts(self) -> tuple[str, str]:
        """The name, and the arguments as JSON; escapes that mean half a letter are replaced."""
        arguments = json.dumps(self.arguments, ensure_ascii=False)
        return encodable(self.name), encodable(arguments)


Underway: TypeAlias = tuple[tuple[str, str], ...]
"""Incomplete calls: each one's name, and the JSON of its arguments so far."""


@dataclass(frozen=True, slots=True)
class ThoughtPiece:
    """A piece of a thought."""

    text: str


@dataclass(frozen=True, slots=True)
class ContentPiece:
    """A piece of the text for the user."""

    text: str


ReadPiece: TypeAlias = ThoughtPiece | ContentPiece | Call
"""What a reader yields, in the order of the answer."""


@dataclass(slots=True)
class AnswerReading:
    """The parts of a whole answer.

    Attributes:
        content: the text for the user; None for none.
        calls: in the order in which they were written.
    """

    thought: str | None = None
    content: str | None = None
    calls: list[Call] = field(default_factory=list)
