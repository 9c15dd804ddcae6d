"""The messages of a conversation and their roles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from localspec.chat.events import Span
from localspec.engine.record.stats import FinishReason

RECALL = "What have we talked about so far?"
"""The question before a summary that takes the place of a conversation."""


class Role(StrEnum):
    """Who wrote a message."""

    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


@dataclass(frozen=True, slots=True)
class Message:
    """One message.

    Attributes:
        content: the text as it was typed or released.
        finish: why an answer ended; None for what the user wrote.
        spans: an answer's text by origin; empty if not known.
        more: further variables for the chat template, such as tool calls or a tool's role. Of a
            tool's result: the call that it answers (`tool_result`).
    """

    role: Role
    content: str
    finish: FinishReason | None = None
    spans: tuple[Span, ...] = ()
    more: Mapping[str, Any] = field(default_factory=dict, hash=False)


def tool_result(text: str, name: str, arguments: str) -> Message:
    """The result of a call that the answer before it ends with.

    Args:
        text: the result.
        name: the tool's, as the model called it.
        arguments: the call's, as JSON.
    """
    return Message(Role.TOOL, text, more={"name": name, "arguments": arguments})


def tools_called(results: Sequence[Message]) -> list[dict[str, Any]]:
    """The tools that gave these results, as definitions with nothing but a name."""
    return [{"name": one.more.get("name", "")} for one in results]


def with_system(messages: Sequence[Message], prompt: str) -> list[Message]:
    """Put the system prompt in front of `messages`, if there is one."""
    return [Message(Role.SYSTEM, prompt), *messages] if prompt.strip() else list(messages)


def fold_system(messages: Sequence[Message]) -> list[Message]:
    """Move the system prompt into the first user message, for templates without a system role."""
    system = "\n\n".join(m.content for m in messages if m.role is Role.SYSTEM)
    rest = [m for m in messages if m.role is not Role.SYSTEM]
    first = next((i for i, m in enumerate(rest) if m.role is Role.USER), None)
    if not system:
        return rest
    if first is None:  # a lone system prompt becomes the first message
        return [Message(Role.USER, system), *rest]
    rest[first] = replace(rest[first], content=f"{system}\n\n{rest[first].content}")
    return rest


def merge_neighbours(messages: Sequence[Message], *, results: bool = False) -> list[Message]:
    """Merge neighbours of one role, for templates that require alternating roles.

    A tool's result joins nothing before it, so that each stays the answer to its call. What the
    user says after a result becomes a part of it: such templates let no user follow a tool.

    Args:
        messages: the conversation.
        results: a tool's result becomes a part of what the user says next, where its call is gone.
    """
    merged: list[Message] = []
    for message in messages:
        last = merged[-1] if merged else None
        joins = results or message.more.get("role") != "tool"
        if last and last.role is message.role and joins:
            text = "\n\n".join(part for part in (last.content, message.content) if part)
            more = message.more if results else {**message.more, **last.more}
            merged[-1] = replace(message, content=text, more=more)
        else:
            merged.append(message)
    return merged


def in_parts(messages: Sequence[Message]) -> list[Message]:
    """Turn content into a list of parts, for templates that accept nothing else."""
    return [
        replace(m, more={"content": [{"type": "text", "text": m.content}], **m.more})
        for m in messages
    ]


def arrived(message: Message, text: str) -> bool:
    """Whether a rendered text contains a message of the user or the system.

    A template may remove words that it interprets, so half of the words are enough.
    """
    if message.role is Role.ASSISTANT or message.more.get("role") == "tool":
        return True
    content = message.content.strip()
    if content in text:
        return True
    words = content.split()
    return 2 * sum(word in text for word in words) > len(words)
