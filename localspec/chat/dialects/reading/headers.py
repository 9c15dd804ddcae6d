"""What the notations of messages with headers share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from localspec.chat.dialects.reading.known_tools import KnownTools


@dataclass(frozen=True, slots=True)
class MessageHeader:
    """The recipient of a message.

    Attributes:
        kind: a thought, text for the user, or the call of a tool.
        recipient: the tool.
        inward: if the message turns out not to be a call, it is a thought.
    """

    kind: Literal["thought", "content", "call"]
    recipient: str = ""
    inward: bool = False


@dataclass(frozen=True, slots=True)
class HeaderNotation:
    """How headers are written.

    Attributes:
        stops: the marks that may end a body.
        read: takes a text, the tools, whether this is a later message, and whether the text
            is complete; returns the header at its beginning and where the body begins, or None if
            more text is needed.
        stop_at: takes a text, a position, the tools, and whether the text is complete; returns the
            length of the mark that ends a body there, 0 for none, -1 if more text is needed.
        open: returns the message that the end of a prompt has begun; None for none.
        own: marks that end a body and belong to the next header.
        named: takes a text that begins with a mark which may end a body, and whether it is
            complete; returns whether the mark is only named there, None if more text is needed.
        texts: all marks of headers and bodies.
        message: the mark that ends a header; empty for none.
    """

    stops: tuple[str, ...]
    read: Callable[[str, KnownTools, bool, bool], tuple[MessageHeader, int] | None]
    stop_at: Callable[[str, int, KnownTools, bool], int]
    open: Callable[[str], MessageHeader | None]
    texts: tuple[str, ...] = ()
    own: tuple[str, ...] = ()
    message: str = ""
    named: Callable[[str, bool], bool | None] = lambda _text, _final: False

    def end_of_body(
        self, text: str, at: int, tools: KnownTools, *, final: bool
    ) -> tuple[int, int] | None:
        """Where a body ends, and where its closing mark ends, or -1 if more text is needed.

        None if the text has no such end.
        """
        while at < len(text):
            places = [place for mark in self.stops if (place := text.find(mark, at)) >= 0]
            if not places:
                return None
            at = min(places)
            length = self.stop_at(text, at, tools, final)
            if length < 0:
                return at, -1
            if length > 0:
                return at, at + length
            if text.startswith(self.own, at):
                return at, at
            at += 1
        return None


def begun_message(start: str, message: str, inward: str, prompt: str) -> MessageHeader | None:
    """An `open` for notations that write the role of a message first.

    Args:
        start: the mark before a header.
        message: the mark after it.
        inward: what only the header of a thought has.
        prompt: the end of the prompt, which may lack `start` and the role.
    """
    _, started, rest = prompt.rpartition(start)
    header, found, body = rest.rpartition(message)
    if not found or body.strip() or (started and not header.startswith("assistant")):
        return None
    return MessageHeader("thought" if inward in header else "content")


def closing(ends: Sequence[str], text: str, at: int, _tools: KnownTools, _final: bool) -> int:
    """A `stop_at` for bodies that one of `ends` closes, whatever the tools."""
    return next((len(mark) for mark in ends if text.startswith(mark, at)), 0)
