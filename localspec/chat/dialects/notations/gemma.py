"""Gemma 4's notation of calls: ``call:name{key:<|"|>text<|"|>,other:3}``, and variants of it."""

from __future__ import annotations

import re
from typing import Any

from localspec.chat.dialects.marks import may_begin, skip_blanks
from localspec.chat.dialects.notations.values import NOTHING, UnfinishedText, begun, literal
from localspec.chat.dialects.reading.answer_parts import Call
from localspec.chat.dialects.reading.known_tools import KnownTools, NoCall

QUOTE = '<|"|>'
"""The mark before and after a text."""

_CLOSE = {"{": "}", "(": ")", "[": "]"}
_NAME = re.compile(r"[:\-\s]*([^\s<>\"'`{}()\[\]=|,;]+)\s*")
_KEY = re.compile(r"[^\s<>\"'`{}()\[\],:=]+")
_BARE = re.compile(r"[^,{}()\[\]<]*")
_DEEPEST = 64


def read(
    text: str, at: int, *, final: bool, cut: bool, tools: KnownTools
) -> tuple[tuple[Call, ...], int]:
    """The call whose name begins at `at`, and where it ends.

    Raises:
        UnfinishedText: more text is needed.
        NoCall: it is text.
    """
    named = _NAME.match(text, at)
    if named is None:
        if at + 1 >= len(text) and not final:
            raise UnfinishedText
        raise NoCall
    if named.end() >= len(text):
        raise UnfinishedText if not final else NoCall
    name = tools.declared(named[1])
    if text[named.end()] not in "{(" or (name is None and tools.known is not None):
        raise NoCall
    values = _GemmaValues(text, closed=final and not cut)
    try:
        given, end = values.at(named.end(), 0)
    except UnfinishedText:
        raise UnfinishedText(((name, begun(values.given)),) if name else ()) from None
    while isinstance(given, list) and len(given) == 1:  # ({…})
        given = given[0]
    if given == []:
        given = {}
    if not isinstance(given, dict):
        raise NoCall
    return (Call(name or named[1], given),), end


class _GemmaValues:
    """Reads values; at the end of an answer, everything left open counts as closed."""

    def __init__(self, text: str, *, closed: bool) -> None:
        self._text, self._closed = text, closed
        self.given: dict[str, Any] = {}

    def at(self, at: int, depth: int) -> tuple[Any, int]:
        """The value at `at`, and where it ends."""
        text = self._text
        if depth > _DEEPEST:
            raise NoCall
        at = skip_blanks(text, at)
        if at >= len(text) or may_begin(text, at, QUOTE):
            raise UnfinishedText
        if text.startswith(QUOTE, at):
            return self._quoted(at + len(QUOTE), QUOTE)
        if text[at] in _CLOSE:
            return self._container(at, depth)
        if text[at] in "\"'":
            return self._plainly_quoted(at)
        bare = _BARE.match(text, at)
        end = bare.end() if bare else at
        if end >= len(text) and not self._closed:
            raise UnfinishedText
        word = text[at:end].strip()
        value = literal(word)
        return (word if value is NOTHING else value), end

    def _quoted(self, at: int, quote: str) -> tuple[str, int]:
        end = self._text.find(quote, at)
        if end < 0:
            raise UnfinishedText
        return self._text[at:end], end + len(quote)

    def _plainly_quoted(self, at: int) -> tuple[str, int]:
        """A text between plain quotes; it ends at a quote that is followed by a delimiter."""
        text, quote, end = self._text, self._text[at], at + 1
        while (end := text.find(quote, end)) >= 0:
            follows = skip_blanks(text, end + 1)
            if follows >= len(text) and not self._closed:
                raise UnfinishedText
            if text[end - 1] != "\\" and text[follows : follows + 1] in (
                ",",
                "}",
                "]",
                ")",
                ":",
                "",
            ):
                value = literal(text[at : end + 1])
                return (text[at + 1 : end] if value is NOTHING else str(value)), end + 1
            end += 1
        raise UnfinishedText

    def _container(self, at: int, depth: int) -> tuple[Any, int]:
        """An object if names precede the values, else a list."""
        text, close = self._text, _CLOSE[self._text[at]]
        named: dict[str, Any] = {} if depth else self.given
        listed: list[Any] = []
        at += 1
        while True:
            at = skip_blanks(text, at)
            if at >= len(text):
                if self._closed:
                    break
                raise UnfinishedText
            if text[at] in close + ",":
                at += 1
                if text[at - 1] == close:
                    break
                continue
            if text[at] in "}])":
                raise NoCall
            key, after = self._key(at) if close != "]" else (None, at)
            value, end = self.at(after, depth + 1)
            if end == at:
                raise NoCall
            at = end
            if key is None:
                listed.append(value)
            else:
                named.setdefault(key, value)  # a stream may have told the first one
        return (named if named or (close == "}" and not listed) else listed), at

    def _key(self, at: int) -> tuple[str | None, int]:
        """The name before a value, and where the value begins; None for no name."""
        text = self._text
        if may_begin(text, at, QUOTE):
            raise UnfinishedText
        if text.startswith(QUOTE, at):
            key, end = self._quoted(at + len(QUOTE), QUOTE)
        elif text[at] in "\"'":
            key, end = self._quoted(at + 1, text[at])
        else:
            bare = _KEY.match(text, at)
            if bare is None:
                return None, at
            key, end = bare[0], bare.end()
        end = skip_blanks(text, end)
        if end >= len(text) and not self._closed:
            raise UnfinishedText
        return (key, end + 1) if text[end : end + 1] in (":", "=") else (None, at)
