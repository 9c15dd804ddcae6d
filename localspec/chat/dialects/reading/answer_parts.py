"""What an answer says, whole or in pieces."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeAlias


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a tool: its name, and its arguments as an object.

    Attributes:
        written: the JSON of the arguments as the model wrote it; empty where it wrote another
            notation, or no strict JSON.
    """

    name: str
    arguments: dict[str, Any]
    written: str = field(default="", compare=False)


Underway: TypeAlias = tuple[tuple[str, str], ...]
"""Calls that are being written: each one's name, and the JSON of its arguments so far."""


@dataclass(frozen=True, slots=True)
class ThoughtPiece:
    """A piece of a thought."""

    text: str


@dataclass(frozen=True, slots=True)
class ContentPiece:
    """A piece of what is said to the user."""

    text: str


ReadPiece: TypeAlias = ThoughtPiece | ContentPiece | Call
"""What a reader tells, in the order of the answer."""


@dataclass(slots=True)
class AnswerReading:
    """What an answer says.

    Attributes:
        thought: what the model thought, None for nothing.
        content: what it said, None for nothing.
        calls: the tools that it called.
    """

    thought: str | None = None
    content: str | None = None
    calls: list[Call] = field(default_factory=list)
