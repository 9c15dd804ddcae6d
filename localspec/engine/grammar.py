"""What constrained output asks of the sampler chain, and its states along a draft. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from math import inf
from typing import TYPE_CHECKING, Any, Protocol

from localspec.errors import UsageError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class Constraint(Protocol):
    """What may come next, in one state. States are never changed: `after` makes new ones."""

    def allowed(self, ids: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which of `ids` (k,) may come next: (k,)."""
        ...

    def after(self, token: int) -> Constraint:
        """The state once `token`, which is allowed, has come.

        Raises:
            EngineError: it is not allowed.
        """
        ...


class Course:
    """The states of a constraint along a sequence: each is worked out once.

    The target's rows and the draft's ask for the same states within a round, and the states of
    accepted tokens carry over to the next one.

    Attributes:
        state: after everything that was committed.
    """

    def __init__(self, state: Constraint) -> None:
        self.state = state
        self._drafted: list[int] = []
        self._states = [state]

    def after(self, drafted: Sequence[int]) -> Constraint:
        """The state after the committed tokens and `drafted`."""
        for i, token in enumerate(drafted):
            if i < len(self._drafted) and self._drafted[i] != token:
                del self._drafted[i:], self._states[i + 1 :]
            if i == len(self._drafted):
                self._states.append(self._states[i].after(token))
                self._drafted.append(token)
        return self._states[len(drafted)]

    def commit(self, tokens: Sequence[int]) -> None:
        """Go on from after `tokens`."""
        self.state = self.after(tokens)
        self._drafted, self._states = [], [self.state]


# The converter from JSON schema to a grammar reads one group of keywords and passes over the rest.
# What it would pass over is refused here, so that whatever comes out conforms.
_NOTES = frozenset(
    {"$schema", "$id", "$comment", "$defs", "definitions", "title", "description"}
    | {"default", "examples", "deprecated", "readOnly", "writeOnly"}
)
_READ = {
    "object": frozenset({"properties", "required", "additionalProperties"}),
    "array": frozenset({"items", "prefixItems", "minItems", "maxItems"}),
    "string": frozenset({"pattern", "format", "minLength", "maxLength"}),
}
_ALONE = ("$ref", "oneOf", "anyOf", "allOf")
_FORMATS = re.compile(r"date|time|date-time|uuid[1-5]?")
_BOUNDS = (("minItems", "maxItems"), ("minLength", "maxLength"))
# The converter copies a pattern into a JSON string as it stands. These are the patterns that can
# put neither a quote nor a backslash nor a control character there; what is in [] comes one by one.
_CLASS = r"\[(?:[a-z]-[a-z]|[A-Z]-[A-Z]|[0-9]-[0-9]|[^]\[^\\\"\x00-\x1f\x7f-])+\]"
_PATTERN = re.compile(
    rf"\^(?:{_CLASS}|\\[].^$|()\[{{}}*+?]|[^][\\\"$^\x00-\x1f\x7f])*\$", re.DOTALL
)


def require_enforceable(schema: Mapping[str, Any]) -> None:
    """Refuse a JSON schema with keywords that the converter to a grammar ignores.

    Raises:
        UsageError: names the keyword.
    """
    for keyword in _ignored(schema):
        raise UsageError(
            f"the JSON schema's {keyword!r} cannot be enforced there",
            "Leave it out, or write a grammar (GBNF) instead.",
        )
    for part in _parts(schema):
        require_enforceable(part)


def _ignored(schema: Mapping[str, Any]) -> Iterator[str]:
    """The keywords of one level that the converter would pass over."""
    given = set(schema) - _NOTES
    alone = next((keyword for keyword in _ALONE if keyword in schema), None)
    if alone is not None:
        yield from given - {alone, "type" if alone == "allOf" else alone}
        return
    kind = schema.get("type")
    if isinstance(kind, list) or "const" in schema or "enum" in schema:
        yield from given - {"type", "const", "enum"}
        yield from (name for name in ("const", "enum") if _escaped(schema.get(name)))
        return
    yield from given - {"type"} - _READ.get(_kind(schema), frozenset())
    yield from _ignored_together(schema)


def _kind(schema: Mapping[str, Any]) -> str:
    """The type, or the one that the converter takes the keywords to mean."""
    if isinstance(schema.get("type"), str):
        return str(schema["type"])
    for kind in ("object", "array", "string"):
        if _READ[kind] & set(schema):
            return kind
    return ""


def _ignored_together(schema: Mapping[str, Any]) -> Iterator[str]:
    """Keywords that the converter reads, but not in this company."""
    if _escaped(list(schema.get("properties", ()))):
        yield "properties"
    if "pattern" in schema and not _writable(schema["pattern"]):
        yield "pattern"
    if "format" in schema and not _FORMATS.fullmatch(schema["format"]):
        yield "format"
    yield from (most for least, most in _BOUNDS if schema.get(least, 0) > schema.get(most, inf))
    if set(schema.get("required", ())) - set(schema.get("properties", ())):
        yield "required"
    if not isinstance(schema.get("items"), dict) or "prefixItems" in schema:
        yield from {"minItems", "maxItems"} & set(schema)
    if "items" in schema and "prefixItems" in schema:
        yield "prefixItems"
    if "pattern" in schema or "format" in schema or schema.get("type") != "string":
        yield from {"minLength", "maxLength"} & set(schema)


def _escaped(value: object) -> bool:
    """Whether `value` in JSON has escapes, which the converter takes for those of a grammar.

    It writes what is not ASCII as escapes that mean the same there, but for pairs of surrogates.
    """
    plain = json.dumps(value, ensure_ascii=False, allow_nan=False)
    return "\\" in plain or any(ord(char) > 0xFFFF for char in plain)


def _writable(pattern: str) -> bool:
    """Whether all that matches `pattern` can stand in a JSON string, alternatives in brackets."""
    if not _PATTERN.fullmatch(pattern):
        return False
    depth = 0
    for part in re.findall(rf"{_CLASS}|\\.|[(|)]", pattern):
        depth += {"(": 1, ")": -1}.get(part, 0)
        if part == "|" and depth == 0:
            return False
    return True


def _parts(schema: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The schemas inside a schema."""
    for keyword in ("properties", "$defs", "definitions"):
        yield from schema.get(keyword, {}).values()
    for keyword in ("oneOf", "anyOf", "allOf", "prefixItems"):
        yield from schema.get(keyword, ())
    items = schema.get("items", ())
    yield from [items] if isinstance(items, dict) else items
    extra = schema.get("additionalProperties")
    if isinstance(extra, dict):
        yield extra
