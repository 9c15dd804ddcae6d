"""Limits on clients' JSON schemas; the engine decides whether it can enforce them."""

from __future__ import annotations

from typing import Any

import msgspec

from localspec.serve.refusals import Refusal

DEEPEST = 32
_LARGEST = 64 << 10  # characters of JSON


def require_bounded(schema: dict[str, Any], place: str) -> None:
    """Refuse a schema that would take long to process.

    Raises:
        Refusal: the schema is too large or too deep.
    """
    if len(msgspec.json.encode(schema)) > _LARGEST:
        raise Refusal(400, f"the JSON schema is larger than {_LARGEST >> 10} KB", param=place)
    if depth(schema) > DEEPEST:
        raise Refusal(400, f"the JSON schema is nested deeper than {DEEPEST} levels", param=place)


def depth(value: object) -> int:
    """The nesting depth of objects and lists."""
    level: list[Any] = [value]
    depth = 0
    while level := [one for one in level if isinstance(one, dict | list)]:
        depth += 1
        level = [part for one in level for part in (one.values() if isinstance(one, dict) else one)]
    return depth
