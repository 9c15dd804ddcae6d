"""JSON schemas of clients: within limits, as grammars, and where one of them is wrong."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import msgspec

from localspec.engine.schema.json_schema import enforced, schema_to_gbnf
from localspec.errors import UsageError
from localspec.serve.errors import Refusal

DEEPEST = 32
_LARGEST = 64 << 10  # characters of JSON
_REMEMBERED = 256 << 10  # the same; what is larger is converted each time
_SHARED = ("$defs", "definitions")
_PARTS = ("properties", *_SHARED)
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_SINGLE = ("items", "additionalProperties")


def response_grammar(schema: dict[str, Any], place: str) -> str:
    """The GBNF of a schema that is within bounds.

    Args:
        schema: as it came.
        place: where in the request.

    Raises:
        Refusal: it makes no sense or cannot be enforced; names the place.
    """
    try:
        return _grammar(schema)
    except UsageError as error:
        shared = {name: schema[name] for name in _SHARED if name in schema}
        where = ".".join([place, *_wrong(schema, shared)])
        raise Refusal(
            400, f"{error.message} (at {where}). {error.remedy}", param=where, code="invalid_schema"
        ) from None


def require_bounded(schema: dict[str, Any], place: str) -> None:
    """Refuse what would take long to look at.

    Raises:
        Refusal: the schema is too large or too deep.
    """
    if len(msgspec.json.encode(schema)) > _LARGEST:
        raise Refusal(400, f"the JSON schema is larger than {_LARGEST >> 10} KB", param=place)
    if depth(schema) > DEEPEST:
        raise Refusal(400, f"the JSON schema is nested deeper than {DEEPEST} levels", param=place)


def _grammar(schema: object) -> str:
    text = msgspec.json.encode(schema).decode()
    return _converted(text) if len(text) <= _REMEMBERED else schema_to_gbnf(text)


@lru_cache(maxsize=64)
def _converted(schema: str) -> str:
    """An editor sends the same tools with every request."""
    return schema_to_gbnf(schema)


def depth(value: object) -> int:
    """How deep objects and lists lie within each other."""
    level: list[Any] = [value]
    depth = 0
    while level := [one for one in level if isinstance(one, dict | list)]:
        depth += 1
        level = [part for one in level for part in (one.values() if isinstance(one, dict) else one)]
    return depth


def _wrong(schema: dict[str, Any], shared: dict[str, Any]) -> list[str]:
    """The path to the innermost part that is wrong by itself; empty where no part is."""
    for path, part in _parts(schema):
        try:
            _grammar({**part, **shared})
        except UsageError:
            return [*path, *_wrong(part, shared)]
    return []


def loosened(schema: Any) -> Any:
    """A schema without the keywords that cannot be enforced, which lets more through."""
    if not isinstance(schema, dict):
        return schema
    found = enforced(schema)
    for name in _PARTS:
        if isinstance(found.get(name), dict):
            found[name] = {key: loosened(part) for key, part in found[name].items()}
    for name in (*_LISTS, *_SINGLE):
        part = found.get(name)
        if isinstance(part, list | dict):
            found[name] = [*map(loosened, part)] if isinstance(part, list) else loosened(part)
    return found


def _parts(schema: dict[str, Any]) -> Iterator[tuple[list[str], dict[str, Any]]]:
    """The schemas within a schema."""
    found: list[tuple[list[str], object]] = [([name], schema.get(name)) for name in _SINGLE]
    for name in _PARTS:
        if isinstance(schema.get(name), dict):
            found += [([name, key], part) for key, part in schema[name].items()]
    for name in _LISTS:
        if isinstance(schema.get(name), list):
            found += [([name, str(i)], part) for i, part in enumerate(schema[name])]
    for path, part in found:
        if isinstance(part, dict):
            yield path, part
