"""Calls whose arguments are tags with their names; objects and lists are tags within tags."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from localspec.chat.dialects.marks import may_begin, skip_blanks
from localspec.chat.dialects.notations.values import UnfinishedText, begun, kinds_of, typed
from localspec.chat.dialects.reading.answer_parts import Call
from localspec.chat.dialects.reading.known_tools import KnownTools, NoCall
from localspec.chat.dialects.shapes import CallShape

NAME = re.compile(r"[^\s<>\"'`{}()\[\]=|,;]+")
_TAG = re.compile(r"<([^\s<>/]{1,200})>")
_DEEPEST = 32


def read(
    text: str, at: int, shape: CallShape, *, final: bool, tools: KnownTools
) -> tuple[tuple[Call, ...], int]:
    """The call whose name begins at `at`, and where its arguments end.

    Raises:
        UnfinishedText: more text is needed.
        NoCall: it is text.
    """
    named = NAME.match(text, at)
    if named is None:
        raise NoCall
    if named.end() >= len(text):
        raise UnfinishedText
    if may_begin(text, named.end(), shape.name_end):
        raise UnfinishedText
    if not text.startswith(shape.name_end, named.end()):
        raise NoCall
    name = tools.declared(named[0])
    if name is None and tools.known is not None:
        raise NoCall
    name = name or named[0]
    schema = tools.schema(name)
    tags = _TagReader(text, shape.key_open.removesuffix("<"), schema)
    try:
        given, end = tags.within(named.end() + len(shape.name_end), schema, 0)
    except UnfinishedText:
        raise UnfinishedText(((name, begun(dict(tags.given))),)) from None
    closed = skip_blanks(text, end)
    if any(text.startswith(one, closed) for one in shape.after):
        return (Call(name, given if isinstance(given, dict) else {}),), end
    if final or any(may_begin(text, closed, one) for one in shape.after):
        raise UnfinishedText(((name, begun(dict(tags.given))),))
    raise NoCall


class _TagReader:
    """Reads tags, each of which begins with the same mark."""

    def __init__(self, text: str, mark: str, whole: Any) -> None:
        self._text, self._mark, self._whole = text, mark, whole
        self.given: list[tuple[str, Any]] = []

    def within(self, at: int, schema: Any, depth: int) -> tuple[Any, int]:
        """The object, or the list of items, that begins at `at`, and where it ends."""
        if depth > _DEEPEST:
            raise NoCall
        found: list[tuple[str, Any]] = [] if depth else self.given
        properties = schema.get("properties") if isinstance(schema, Mapping) else None
        items = schema.get("items") if isinstance(schema, Mapping) else None
        while (key := self._key(at)) is not None:
            name, at = key
            of = properties.get(name) if isinstance(properties, Mapping) else None
            value, at = self._value(name, at, of if of is not None else items, depth)
            if depth or name not in dict(found):  # a stream may have told the first one
                found.append((name, value))
        repeated = len(found) > 1 and len(found) != len(dict(found))
        kinds = kinds_of(schema, self._whole)
        alone = bool(found) and all(name == "item" for name, _ in found)
        if "array" in kinds or (alone and (repeated or "object" not in kinds) and depth):
            return [value for _, value in found], at
        return dict(found), at

    def _key(self, at: int) -> tuple[str, int] | None:
        """The name in the tag at `at`, and where its value begins; None for no tag."""
        text, begun = self._text, self._mark + "<"
        at = skip_blanks(text, at) if not self._mark else at
        if may_begin(text, at, begun):
            raise UnfinishedText
        if not text.startswith(begun, at):
            return None
        at += len(self._mark)
        tag = _TAG.match(text, at)
        if tag is None:
            if ">" not in text[at:] and len(text) - at < 200:
                raise UnfinishedText
            return None
        return tag[1], tag.end()

    def _value(self, name: str, at: int, schema: Any, depth: int) -> tuple[Any, int]:
        text, close = self._text, f"{self._mark}</{name}>"
        if may_begin(text, at, self._mark + "<"):
            raise UnfinishedText
        if self._key(at) is not None:
            value, end = self.within(at, schema, depth + 1)
            if may_begin(text, end, close):
                raise UnfinishedText
            if text.startswith(close, end):
                return value, end + len(close)
        end = text.find(close, at)
        if end < 0:
            raise UnfinishedText
        part = text[at:end]
        kinds = kinds_of(schema, self._whole)
        if not part and kinds & {"array", "object"}:
            return ([] if "array" in kinds else {}), end + len(close)
        return typed(part, schema, self._whole), end + len(close)
