"""A small JSON schema validator: what `engine.grammars.guidance` can enforce, and a little less.

It judges text, so that a property that comes twice is seen: both values count.
"""

from __future__ import annotations

import datetime
import json
import math
import re
from typing import Any
from urllib.parse import unquote

KINDS: dict[str, Any] = {"object": tuple, "array": list, "string": str, "null": type(None)}


def valid(text: str, schema: Any) -> bool:
    """Whether `text` is JSON that `schema` allows."""

    def no_constant(name: str) -> None:
        raise ValueError(name)

    def number(text: str) -> float:
        return min(max(float(text), -1e308), 1e308)  # JSON knows no largest one

    value = json.loads(
        text, object_pairs_hook=tuple, parse_constant=no_constant, parse_float=number
    )
    return _fits(value, schema, schema)


def _fits(value: Any, schema: Any, root: Any) -> bool:
    if isinstance(schema, bool):
        return schema
    if "$ref" in schema:
        target = root
        for step in schema["$ref"].split("/")[1:]:
            target = target[unquote(step).replace("~1", "/")]
        return _fits(value, target, root)
    return (
        all(_fits(value, part, root) for part in schema.get("allOf", ()))
        and ("anyOf" not in schema or any(_fits(value, part, root) for part in schema["anyOf"]))
        and ("oneOf" not in schema or sum(_fits(value, x, root) for x in schema["oneOf"]) == 1)
        and ("const" not in schema or _same(value, schema["const"]))
        and ("enum" not in schema or any(_same(value, one) for one in schema["enum"]))
        and ("type" not in schema or _typed(value, schema["type"]))
        and _contents(value, schema, root)
    )


def _contents(value: Any, schema: Any, root: Any) -> bool:
    if isinstance(value, tuple):
        return _members(value, schema, root)
    if isinstance(value, list):
        first = schema.get("prefixItems", [])
        parts = [*first, *[schema.get("items", True)] * (len(value) - len(first))]
        inside = schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", 1e9)
        return inside and all(_fits(v, part, root) for v, part in zip(value, parts, strict=False))
    if isinstance(value, str):
        inside = schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", 1e9)
        pattern = re.sub(r"(?<!\\)\$$", r"\\Z", schema.get("pattern", ""))
        found = re.search(pattern, value, re.ASCII) is not None
        return bool(inside) and found and _formatted(value, schema)
    if isinstance(value, int | float) and not isinstance(value, bool):
        above = schema.get("exclusiveMinimum", -math.inf) < value >= schema.get("minimum", value)
        below = schema.get("exclusiveMaximum", math.inf) > value <= schema.get("maximum", value)
        return bool(above and below)
    return True


def _members(value: tuple[Any, ...], schema: Any, root: Any) -> bool:
    names = [name for name, _ in value]
    named = schema.get("properties", {})
    more = schema.get("additionalProperties", True)
    return (
        set(schema.get("required", ())) <= set(names)
        and all(names.count(name) <= 1 for name in named)
        and all(_fits(part, named.get(name, more), root) for name, part in value)
    )


def _typed(value: Any, kinds: Any) -> bool:
    def one(kind: str) -> bool:
        if kind == "boolean":
            return isinstance(value, bool)
        if kind in ("number", "integer"):
            number = isinstance(value, int | float) and not isinstance(value, bool)
            return number and (kind == "number" or value == value // 1)
        return isinstance(value, KINDS[kind])

    return any(one(kind) for kind in ([kinds] if isinstance(kinds, str) else kinds))


def _formatted(value: str, schema: Any) -> bool:
    if schema.get("format") != "date":
        return True
    try:  # every year is taken for a leap year
        return bool(datetime.date.fromisoformat("2000" + value[4:]))
    except ValueError:
        return False


def _same(value: Any, other: Any) -> bool:
    if isinstance(value, tuple):
        pairs = dict(value)
        return (
            isinstance(other, dict)
            and pairs.keys() == other.keys()
            and all(_same(pairs[name], other[name]) for name in other)
        )
    if isinstance(value, list):
        return (
            isinstance(other, list) and len(value) == len(other) and all(map(_same, value, other))
        )
    return isinstance(value, bool) == isinstance(other, bool) and value == other
