"""What an answer says, whole or in pieces."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeAlias


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a tool: its name, and its arguments as an object."""

    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Thinks:
    """A piece of a thought."""

    text: str


@dataclass(frozen=True, slots=True)
class Says:
    """A piece of what is said to the user."""

    text: str


ReadPiece: TypeAlias = Thinks | Says | Call
"""What a reader tells, in the order of the answer."""


@dataclass(slots=True)
class Reading:
    """What an answer says.

    Attributes:
        thought: what the model thought, None for nothing.
        content: what it said, None for nothing.
        calls: the tools that it called.
    """

    thought: str | None = None
    content: str | None = None
    calls: list[Call] = field(default_factory=list)
