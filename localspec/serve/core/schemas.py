"""Limits on clients' JSON schemas; the engine decides whether it can enforce them."""

from __future__ import annotations

from typing import Any

import msgspec

from localspec.limits import MAX_NESTING, depth
from localspec.serve.refusals import Refusal

_LARGEST = 64 << 10  # bytes of JSON


def require_bounded(schema: dict[str, Any], place: str) -> None:
    """Refuse a schema that would take long to process.

    Raises:
        Refusal: the schema is too large or too deep.
    """
    if len(msgspec.json.encode(schema)) > _LARGEST:
        raise Refusal(400, f"the JSON schema is larger than {_LARGEST >> 10} KB", param=place)
    require_shallow(schema, place)


def require_shallow(value: dict[str, Any], place: str) -> None:
    """Refuse an object that is nested too deep.

    Raises:
        Refusal: it is.
    """
    if depth(value) > MAX_NESTING:
        raise Refusal(400, f"{place} is nested deeper than {MAX_NESTING} levels", param=place)
