"""Reads an answer that consists of messages, whose headers name their recipients."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Literal

from localspec.chat.dialects.marks import may_begin, overlap, skip_blanks
from localspec.chat.dialects.notations import functionary, harmony, muse
from localspec.chat.dialects.notations.values import (
    UnfinishedText,
    arguments_of,
    begun,
    json_at,
    so_far,
    strict,
)
from localspec.chat.dialects.reading.answer_parts import (
    Call,
    ContentPiece,
    ThoughtPiece,
)
from localspec.chat.dialects.reading.calls import CallReader
from localspec.chat.dialects.reading.code_quotes import CodeQuotes
from localspec.chat.dialects.reading.headers import HeaderNotation, MessageHeader
from localspec.chat.dialects.reading.known_tools import KnownTools, NoCall
from localspec.chat.dialects.reading.piece_reader import PieceReader
from localspec.chat.dialects.shapes import AnswerMarks

HEADERS: dict[str, HeaderNotation] = {
    "harmony": harmony.HEADERS,
    "muse": muse.HEADERS,
    "functionary": functionary.HEADERS,
}


class ChannelReader(PieceReader):
    """Reads an answer in pieces; the result does not depend on how it is cut.

    Args:
        marks: how the model divides its answers; `speech` names the notation of headers.
        tools: those in the request; None if they are not known.
        prompt: the end of the rendered prompt; the answer continues the message begun there.
        exact: keep the surrounding white space of an answer without marks.
    """

    def __init__(
        self,
        marks: AnswerMarks,
        tools: Sequence[Any] | None,
        prompt: str = "",
        *,
        exact: bool = False,
    ) -> None:
        super().__init__(exact=exact)
        self._how = HEADERS[marks.speech]
        self._tools = KnownTools(tools)
        self._calls = CallReader(marks.calls, self._tools)
        self._code = CodeQuotes(re.compile("|".join(map(re.escape, self._how.stops))))
        self._raw = marks.raw
        self._begun = False  # a header has been read
        self._mark = ""  # the header of a call, which is content if it turns out to be none
        self._header: MessageHeader | None = self._how.open(prompt)  # None while a header is read

    @property
    def thinking(self) -> bool:
        """Whether the position is inside a thought."""
        return not self._raw and self._header is not None and self._header.kind == "thought"

    def _step(self, *, final: bool, cut: bool) -> bool:
        if self._header is None:
            return self._head(final=final, cut=cut)
        return self._body(self._header, final=final, cut=cut)

    def _head(self, *, final: bool, cut: bool) -> bool:
        """Read a header; return whether there is more. One that was cut off is lost."""
        whole = final and not (cut and self._begun)
        found = self._how.read(self._text, self._tools, self._begun, whole)
        if found is None:
            if final:
                self._pass(0 if cut else len(self._text))
                self._text = ""
            return False
        header, end = found
        bare = not self._begun and not self._text[:end].strip()  # no header: all is content
        end = 0 if bare else end
        if self._raw and self._tools.known == {}:
            header = MessageHeader("content")
        self._header, self._begun = header, True
        if self._raw and header.kind == "call":
            self._mark, self._text = self._text[:end], self._text[end:]
            return True
        self._pass(end)
        self._code.restart()
        if not self._raw and not bare:
            self._out.append((ThoughtPiece if header.kind == "thought" else ContentPiece)(""))
        return True

    def _body(self, header: MessageHeader, *, final: bool, cut: bool) -> bool:
        """Read a message's body; return whether there is more to read."""
        if header.kind == "call":
            return self._called(header, final=final, cut=cut)
        kind = ThoughtPiece if header.kind == "thought" else ContentPiece
        found = self._how.end_of_body(self._text, 0, self._tools, final=final)
        if found is None:
            held = 0 if final else max(overlap(self._text, mark) for mark in self._how.stops)
            self._emit(kind, len(self._text) - held)
            return False
        start, end = found
        self._emit(kind, start)
        if end < 0:
            return False
        mark = next(one for one in self._how.stops if self._text.startswith(one))
        named = self._named(mark, final=final)
        if named:
            self._emit(kind, len(mark))
        elif named is False:
            self._pass(end - start)
            self._header, self._fresh = None, True
        return named is not None

    def _named(self, mark: str, *, final: bool) -> bool | None:
        """Whether the mark at the beginning is only text; None if that is not known yet."""
        named = self._how.named(self._text, final)
        if named is not False:
            return named
        after, message = self._text[len(mark) :], self._how.message
        if message:  # a whole header ends code that a message has left open
            text = self._text if mark in self._how.own else after
            found = self._how.read(text, self._tools, True, final)
            if found is None:
                return False if final else None
            if text[: found[1]].endswith(message):
                return False
        return self._code.quoted(after, block=True, final=final)

    def _emit(self, kind: type[ThoughtPiece] | type[ContentPiece], n: int) -> None:
        if n > 0:
            text, self._text = self._text[:n], self._text[n:]
            self._out.append((ContentPiece if self._raw else kind)(text))
            self._code.add(text)
            self._fresh = self._fresh and text.isspace()

    def _pass(self, n: int) -> None:
        """Pass over a mark, which is content if marks stay there."""
        if self._raw:
            self._emit(ContentPiece, n)
        else:
            self._text = self._text[n:]

    def _uncalled(self, kind: Literal["thought", "content"]) -> None:
        """Read a message on as text, as its header turned out not to be that of a call."""
        self._header = MessageHeader(kind)
        self._code.restart()
        self._out += [ContentPiece(self._mark)] if self._mark else []
        self._mark = ""

    def _called(self, header: MessageHeader, *, final: bool, cut: bool) -> bool:
        """Read a call's arguments, and the rest of its message up to the closing mark."""
        self._fresh = False
        try:
            calls, end = self._arguments(header, final=final, cut=cut)
        except UnfinishedText as error:
            self._underway = error.underway
            if final and cut:
                self._text = ""
            elif final:
                self._uncalled("content")
            return final
        except NoCall:
            self._uncalled("thought" if header.inward else "content")
            return True
        found = self._how.end_of_body(self._text, end, self._tools, final=final)
        if not final and (found is None or found[1] < 0):
            self._underway = tuple(
                (call.name, call.written or begun(call.arguments)) for call in calls
            )
            return False
        self._out += [ContentPiece(""), *calls] if self._raw else calls
        self._text = self._text[found[1] :] if found and found[1] >= 0 else ""
        self._header, self._fresh = None, True
        return True

    def _arguments(
        self, header: MessageHeader, *, final: bool, cut: bool
    ) -> tuple[Sequence[Call], int]:
        place = skip_blanks(self._text, 0)
        if place >= len(self._text) and not final:
            raise UnfinishedText
        if any(self._text.startswith(mark, place) for mark in self._calls.triggers):
            found = self._calls.at(self._text, place, final=final, cut=cut)
            return found.calls, found.end
        if not final and any(mark.startswith(self._text[place:]) for mark in self._calls.triggers):
            raise UnfinishedText
        name = self._tools.declared(header.recipient) or header.recipient
        stop = re.match(r"\s*(?:```\w*\s*)?", self._text)
        place = stop.end() if stop else place
        if place >= len(self._text) and not final:
            raise UnfinishedText
        if not self._text.startswith("{", place):
            marks = ("```", *self._how.stops)
            if not final and any(may_begin(self._text, place, mark) for mark in marks):
                raise UnfinishedText
            ended = self._how.end_of_body(self._text, place, self._tools, final=final)
            if ended is not None and ended[0] == place:
                return [Call(name, {})], place
            raise NoCall
        try:
            value = json_at(self._text, place, final=final and not cut)
        except UnfinishedText:
            raise UnfinishedText(((name, so_far(self._text, place)),)) from None
        arguments = arguments_of(value[0]) if value else None
        if value is None or arguments is None:
            raise NoCall
        return [Call(name, arguments, strict(self._text[place : value[1]]))], value[1]
