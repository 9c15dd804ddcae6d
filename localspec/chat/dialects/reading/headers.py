"""What the kinds of messages with headers have in common."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from localspec.chat.dialects.reading.known_tools import KnownTools


@dataclass(frozen=True, slots=True)
class MessageHeader:
    """For whom a message is.

    Attributes:
        kind: whether it is a thought, for the user, or the call of a tool.
        recipient: the tool.
        inward: what turns out to be no call is a thought.
    """

    kind: Literal["thought", "content", "call"]
    recipient: str = ""
    inward: bool = False


@dataclass(frozen=True, slots=True)
class HeaderNotation:
    """How headers are written.

    Attributes:
        stops: the marks with which a body may end.
        read_header: of a text, the tools, whether it is not the first, whether it is whole:
            the header with which it begins, and where the body does; None where more is needed.
        stop_at: of a text and a place, whether a body may end there, and with which mark: its
            length, 0 for none, -1 where more text is needed.
        open_in: which message the end of a prompt has begun, if any.
        own: marks that end a body and belong to the next header.
        texts: all marks of headers and bodies.
        ignores_rest: what follows a call's arguments in its message means nothing.
    """

    stops: tuple[str, ...]
    read_header: Callable[[str, KnownTools, bool, bool], tuple[MessageHeader, int] | None]
    stop_at: Callable[[str, int, KnownTools, bool], int]
    open_in: Callable[[str], MessageHeader | None]
    ignores_rest: bool = True
    texts: tuple[str, ...] = ()
    own: tuple[str, ...] = ()

    def read(
        self, text: str, tools: KnownTools, *, begun: bool, final: bool
    ) -> tuple[MessageHeader, int] | None:
        """The header with which `text` begins, and its length; None where more is needed."""
        return self.read_header(text, tools, begun, final)

    def open(self, prompt: str) -> MessageHeader | None:
        """The message that the end of a prompt has begun, if any."""
        return self.open_in(prompt)

    def end_of_body(
        self, text: str, at: int, tools: KnownTools, *, final: bool
    ) -> tuple[int, int] | None:
        """Where a body ends, and where the mark that ends it does; -1 where that is open."""
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
            if self._stands_for_itself(text, at):
                return at, at
            at += 1
        return None

    def _stands_for_itself(self, text: str, at: int) -> bool:
        """Whether a mark ends a body and belongs to the next header."""
        return any(text.startswith(mark, at) for mark in self.own)
