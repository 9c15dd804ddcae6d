"""Limits on clients' JSON schemas; the engine decides whether it can enforce them."""

from __future__ import annotations

from typing import Any

import msgspec

from localspec.chat.dialects.notations.values import depth
from localspec.limits import MAX_NESTING
from localspec.serve.refusals import Refusal

_LARGEST = 64 << 10  # characters of JSON


def require_bounded(schema: dict[str, Any], place: str) -> None:
    """Refuse a schema that would take long to process.

    Raises:
        Refusal: the schema is too large or too deep.
    """
    if len(msgspec.json.encode(schema)) > _LARGEST:
        raise Refusal(400, f"the JSON schema is larger than {_LARGEST >> 10} KB", param=place)
    if depth(schema) > MAX_NESTING:
        raise Refusal(
            400, f"the JSON schema is nested deeper than {MAX_NESTING} levels", param=place
        )
