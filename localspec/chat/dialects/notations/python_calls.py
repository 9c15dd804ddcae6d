"""Calls in Python's syntax: ``[name(key='text', other=3)]``."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping
from typing import Any

from localspec.chat.dialects.marks import skip_blanks
from localspec.chat.dialects.notations.values import (
    NOTHING,
    UnfinishedText,
    balanced,
    begun,
    expression,
    json_at,
    literal,
    plain,
)
from localspec.chat.dialects.reading.answer_parts import Call
from localspec.chat.dialects.reading.known_tools import KnownTools, NoCall

_HEAD = re.compile(r"([A-Za-z_][\w.\-]*)\s*\(")
_BEGINS = re.compile(r"[A-Za-z_][\w.\-]*\s*\Z")
_KEY = re.compile(r"\s*,?\s*([A-Za-z_]\w*)\s*=\s*")
_WORD = re.compile(r"[^,()\[\]{}'\"]+")


def read(
    text: str, at: int, *, raw: bool, final: bool, tools: KnownTools
) -> tuple[tuple[Call, ...], int]:
    """The calls that begin at `at`, and where they end.

    Args:
        text: the text so far.
        at: the position of a ``[``, or of a name.
        raw: text between quotes is not escaped.
        final: no text will follow.
        tools: which calls are possible.

    Raises:
        UnfinishedText: more text is needed.
        NoCall: it is text.
    """
    listed = text.startswith("[", at)
    start = skip_blanks(text, at + listed)
    if _HEAD.match(text, start) is None:
        if not final and (start >= len(text) or _BEGINS.match(text, start)):
            raise UnfinishedText
        raise NoCall
    found = None
    given: list[Call] = []
    for attempt in (_raw, _parsed) if raw else (_parsed, _raw):
        try:
            found = attempt(text, at, tools, given)
        except UnfinishedText:
            if not final:
                whole = [(one.name, begun(one.arguments) + "}") for one in given[:-1]]
                last = [(one.name, begun(one.arguments)) for one in given[-1:]]
                raise UnfinishedText((*whole, *last)) from None
            continue
        if found is not None:
            return found
    if final:
        raise UnfinishedText
    raise NoCall


def written(name: str, arguments: Mapping[str, Any]) -> str:
    """A call as `read` reads it."""
    given = (
        f"{key}={json.dumps(one, ensure_ascii=False) if isinstance(one, str) else repr(one)}"
        for key, one in arguments.items()
    )
    return f"{name}({', '.join(given)})"


def _parsed(
    text: str, at: int, tools: KnownTools, _begun: list[Call]
) -> tuple[tuple[Call, ...], int] | None:
    """The calls, parsed by Python's own grammar."""
    end = balanced(text, at if text[at] == "[" else text.index("(", at), "\"'")
    if end < 0:
        raise UnfinishedText
    try:
        body = expression(text[at:end])
        parts = body.elts if isinstance(body, ast.List) else [body]
        calls = tuple(_call(part, tools) for part in parts)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return None
    return calls, end


def _call(node: ast.expr, tools: KnownTools) -> Call:
    if not isinstance(node, ast.Call):
        raise ValueError("no call")  # noqa: TRY004 - a fault of the text, not of a type
    written = ast.unparse(node.func)
    name = tools.declared(written) or written
    names = tools.properties(name)
    given: dict[str, Any] = {
        key: plain(value) for key, value in zip(names, node.args, strict=False)
    }
    if len(node.args) > len(given):
        raise ValueError("arguments without names")
    for keyword in node.keywords:
        if keyword.arg is None:
            raise ValueError("arguments without names")
        given.setdefault(keyword.arg, plain(keyword.value))
    return Call(name, given)


def _raw(
    text: str, at: int, tools: KnownTools, calls: list[Call]
) -> tuple[tuple[Call, ...], int] | None:
    """The calls, if a quote ends a text only before an argument or the end.

    They are added to `calls` as they begin, so that incomplete calls are known.
    """
    listed = text.startswith("[", at)
    at += listed
    calls.clear()
    while head := _HEAD.match(text, skip_blanks(text, at)):
        at = head.end()
        given: dict[str, Any] = {}
        calls.append(Call(tools.declared(head[1]) or head[1], given))
        while key := _KEY.match(text, at):
            value, at = _value(text, key.end())
            if value is NOTHING:
                return None
            given.setdefault(key[1], value)  # a stream may have told the first one
        at = skip_blanks(text, at)
        if at >= len(text):
            raise UnfinishedText
        if text[at] != ")":
            return None
        at = skip_blanks(text, at + 1)
        if at < len(text) and text[at] == "," and listed:
            at += 1
    if not calls:
        return None
    if not listed:
        return tuple(calls), at
    if at >= len(text):
        raise UnfinishedText
    return (tuple(calls), at + 1) if text[at] == "]" else None


def _value(text: str, at: int) -> tuple[Any, int]:
    if at >= len(text):
        raise UnfinishedText
    if text[at] in "'\"":
        end = at + 1
        while (end := text.find(text[at], end)) >= 0:
            if re.compile(r"\s*(?:,\s*[A-Za-z_]\w*\s*=|\)\s*[\],]|\)\s*\Z)").match(text, end + 1):
                return text[at + 1 : end], end + 1
            end += 1
        raise UnfinishedText
    if text[at] in "[{":
        end = balanced(text, at, "\"'")
        value = literal(text[at:end]) if end > 0 else NOTHING
        return (
            (value, end)
            if value is not NOTHING
            else json_at(text, at, final=False) or (NOTHING, at)
        )
    word = _WORD.match(text, at)
    if word is None:
        return NOTHING, at
    if word.end() >= len(text):
        raise UnfinishedText
    return literal(word[0]), word.end()
