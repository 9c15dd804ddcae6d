"""Who said what: the messages of a conversation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from localspec.chat.events import Span
from localspec.engine.stats import FinishReason


class Role(StrEnum):
    """Who speaks."""

    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"


@dataclass(frozen=True, slots=True)
class Message:
    """One message.

    Attributes:
        role: who speaks.
        content: the text as it was typed or released.
        finish: why an answer ended; None for what the user wrote.
        spans: an answer's text by origin; empty where that is not known.
        more: what a chat template sees besides: tool calls, say, or the role of a tool.
    """

    role: Role
    content: str
    finish: FinishReason | None = None
    spans: tuple[Span, ...] = ()
    more: Mapping[str, Any] = field(default_factory=dict, hash=False)


def with_system(messages: Sequence[Message], prompt: str) -> list[Message]:
    """`messages` behind the system prompt, if there is one."""
    return [Message(Role.SYSTEM, prompt), *messages] if prompt.strip() else list(messages)


def fold_system(messages: Sequence[Message]) -> list[Message]:
    """For templates without a system role: its text goes in front of the first user message."""
    system = "\n\n".join(m.content for m in messages if m.role is Role.SYSTEM)
    rest = [m for m in messages if m.role is not Role.SYSTEM]
    first = next((i for i, m in enumerate(rest) if m.role is Role.USER), None)
    if not system or first is None:
        return rest
    rest[first] = replace(rest[first], content=f"{system}\n\n{rest[first].content}")
    return rest


def merge_neighbours(messages: Sequence[Message]) -> list[Message]:
    """For templates that want alternating roles: neighbours of one role become one message."""
    merged: list[Message] = []
    for message in messages:
        if merged and merged[-1].role is message.role:
            last = merged[-1]
            text = "\n\n".join(part for part in (last.content, message.content) if part)
            merged[-1] = replace(message, content=text)
        else:
            merged.append(message)
    return merged
