"""Tools as their servers define them, made safe and bounded."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeAlias

import msgspec
from msgspec import Struct

from localspec.limits import MAX_NESTING, depth
from localspec.safe_text import one_line, safe

MOST_TOOLS = 256
"""Tools that one server may offer."""

_LONGEST_NAME = 128
_LONGEST_DESCRIPTION = 4000
_LARGEST_SCHEMA = 64 << 10  # bytes
# What a model reads and a person does not see: characters that Unicode calls default ignorable, and
# marks between lines and for hieroglyphs, as far as `safe` leaves them. The joiners U+200C and
# U+200D and the selector U+FE0F stay, which several scripts and many emoji need.
_UNSEEN = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b\u200e\u200f\u2060-\u206f"
    "\u3164\ufe00-\ufe0e\uffa0\ufff0-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    "\U00013430-\U0001343f\U000e0000-\U000e0fff]"
)

_Nested: TypeAlias = dict[Any, Any] | list[Any]
_text = json.JSONEncoder(ensure_ascii=False).encode


class ToolDefinition(Struct, frozen=True):
    """A tool.

    Attributes:
        name: as the server calls it.
        parameters: the JSON schema of its arguments.
        output: the JSON schema of its structured results; None for none.
        annotations: hints of the server, which prove nothing.
    """

    server: str
    name: str
    title: str = ""
    description: str = ""
    parameters: dict[str, Any] = {}
    output: dict[str, Any] | None = None
    annotations: dict[str, Any] | None = None

    @property
    def shown(self) -> str:
        """The server's name and the tool's own."""
        return f"{self.server}: {self.name}"

    def identity(self) -> dict[str, Any]:
        """What a permission is bound to: the whole definition."""
        found: dict[str, Any] = msgspec.to_builtins(self)
        del found["server"]
        return found


def checked(
    server: str, offered: Iterable[Mapping[str, Any]]
) -> tuple[tuple[ToolDefinition, ...], tuple[str, ...]]:
    """The usable tools among those that a server offers, and a sentence for each that is left out.

    Args:
        server: its name.
        offered: the fields of `ToolDefinition` but the first; the values may be anything that JSON
            can hold. A tool may have a `fault` as well: why it cannot be used.
    """
    found: dict[str, ToolDefinition] = {}
    problems = []
    for tool in offered:
        name = str(tool["name"])
        if why := tool.get("fault") or _fault(name, tool, found):
            said = one_line(str(why))
            problems.append(f"{server}: the tool {one_line(name, 60)!r} is left out: {said}")
            continue
        found[name] = ToolDefinition(
            server,
            name,
            one_line(_visible(str(tool.get("title") or ""))),
            _visible(str(tool.get("description") or ""))[:_LONGEST_DESCRIPTION],
            _safe_value(tool.get("parameters") or {"type": "object", "properties": {}}),
            _safe_value(tool.get("output")),
            _safe_value(tool.get("annotations")),
        )
        if len(found) == MOST_TOOLS:
            problems.append(f"{server}: it offers more than {MOST_TOOLS} tools: the first are used")
            break
    return tuple(found.values()), tuple(problems[:4])


def _fault(name: str, tool: Mapping[str, Any], known: Mapping[str, ToolDefinition]) -> str:
    """Why a tool cannot be used; empty if it can."""
    if not name or len(name) > _LONGEST_NAME or not name.isprintable() or _visible(name) != name:
        return "its name is empty, too long or has characters that are not seen"
    if name in known:
        return "its name stands twice"
    for schema in (tool.get("parameters"), tool.get("output"), tool.get("annotations")):
        if depth(schema) > MAX_NESTING:
            return f"its schema is nested deeper than {MAX_NESTING} levels"
        try:
            size = len(msgspec.msgpack.encode(_safe_value(schema)))
        except OverflowError:
            return "its schema has a number of more than 64 bits"
        if size > _LARGEST_SCHEMA:
            return f"its schema is larger than {_LARGEST_SCHEMA >> 10} KB"
    return ""


def _visible(text: str) -> str:
    """A text made safe, with a sign for each character that its reader would not see."""
    return _UNSEEN.sub("\ufffd", safe(text))


def _safe_value(value: Any) -> Any:
    """A JSON value with every text in it made safe."""
    if isinstance(value, str):
        return _visible(value)
    if isinstance(value, dict):
        return {_visible(str(key)): _safe_value(one) for key, one in value.items()}
    return [_safe_value(one) for one in value] if isinstance(value, list) else value


def difference(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """What has changed between two JSON objects: lines with + and -, and the keys that lead there.

    It is empty if nothing has: the order of keys does not count, and 1 is not true. Lists are not
    aligned: with those of a hostile server that could take minutes.
    """
    return "\n".join(_lines(dict(before), dict(now), ""))


def _lines(before: _Nested, now: _Nested, indent: str) -> Iterator[str]:
    old, new = (dict(enumerate(one)) if isinstance(one, list) else one for one in (before, now))
    for key in old | new:
        place = f"{indent}{_text(key)}:"
        match old.get(key), new.get(key):
            case (dict(was), dict(then)) | (list(was), list(then)):
                if inner := list(_lines(was, then, f"{indent} ")):
                    yield f"  {place}"
                    yield from inner
            case _:
                texts = [_text(one[key]) if key in one else "" for one in (old, new)]
                if texts[0] != texts[1]:
                    signed = zip("-+", texts, strict=True)
                    yield from (f"{sign} {place} {text}" for sign, text in signed if text)
