"""Writes grammars in llguidance's form of Lark. Pure; `engine.grammars.guidance` reads them.

As in llama.cpp, their first word distinguishes them from llama.cpp's own grammars (GBNF). There are
three extensions to llguidance's syntax: ``%mark "text"`` means the vocabulary's tokens for the
marks in the text; ``%until "text"`` means any text up to and including such marks, which in
``%until "text" & "next" ~ "other" & ("a" "b")`` end it only before others, while some others do not
follow each other within; and a schema after ``%json`` may have the key ``x-localspec``, which says
where the schema came from and whether all of it must be enforced.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import unquote

from localspec.errors import UsageError

HEAD = "%llguidance"
PLACE = "x-localspec"
SHARED = ("$defs", "definitions")
REST = "x-localspec-rest"  # the name of all but the definitions, as one of them
_NAMED = ("properties", "patternProperties", *SHARED)
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_DATA = ("const", "enum", "default", "examples")
_SINGLE = ("items", "additionalProperties")
_NOTES = frozenset(
    {"$schema", "$id", "$comment", "title", "description", "default", "examples", "deprecated"}
    | {"readOnly", "writeOnly", *SHARED}
)
# Integers without bounds get these, since a model that repeats a digit would never end one. They
# leave room for nearly all of 63 bits: identities, times in nanoseconds.
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_LARGEST = 9 * 10**18
_WHOLE = frozenset({"const"}) | frozenset(
    f"{bound}{what}" for bound in ("min", "max") for what in ("Length", "Items", "Properties")
)
_KINDS = {
    "object": ("properties", "required", "additionalProperties"),
    "array": ("items", "prefixItems", "minItems", "maxItems"),
    "string": ("pattern", "format", "minLength", "maxLength"),
}


def is_lark(grammar: str) -> bool:
    """Whether `grammar` is for llguidance, not for llama.cpp."""
    return grammar.lstrip().startswith(HEAD)


def grammar(start: str, **rules: str) -> str:
    """A grammar from its start symbol and further rules (lower case) or terminals (upper case)."""
    lines = [
        f"{HEAD} {{}}",
        f"start: {start}",
        *(f"{name}: {rule}" for name, rule in rules.items()),
    ]
    return "\n".join(lines)


def of_schema(text: str) -> str:
    """The grammar of JSON that conforms to a JSON schema.

    Raises:
        UsageError: it is not JSON, or too deep.
    """
    try:
        schema = json.loads(text)
        if isinstance(schema, dict):
            return grammar(json_value(schema))
    except ValueError as error:
        raise UsageError(f"the JSON schema is not JSON: {error}", "Check the schema.") from error
    except RecursionError as error:
        raise UsageError("the JSON schema is nested too deep", "Simplify it.") from error
    raise UsageError("the JSON schema is not a JSON object", "Check the schema.")


def literal(text: str) -> str:
    """A literal that matches exactly `text`."""
    return json.dumps(text, ensure_ascii=False)


def mark(text: str) -> str:
    """`text`, with the model's own tokens for the marks in it."""
    return f"%mark {literal(text)}"


def until(text: str, then: str = "", never: tuple[str, Sequence[str]] = ("", ())) -> str:
    """Any text up to and including the first `text`, whose marks are tokens as in `mark`.

    Args:
        text: what ends it.
        then: only a `text` before this ends it, but for white space between; it is included.
        never: a text, and others that do not follow it within, but for white space between.
    """
    no, more = never
    return (
        f"%until {literal(text)}"
        + (f" & {literal(then)}" if then else "")
        + (f" ~ {literal(no)} & ({' '.join(map(literal, more))})" if more else "")
    )


def other_than(pattern: str, texts: Iterable[str]) -> str:
    """The definition of a terminal: text that matches an expression and is none of `texts`."""
    return " ".join([f"/{pattern}/", *(f"& ~{literal(text)}" for text in texts)])


def json_value(
    schema: Mapping[str, Any],
    place: str = "",
    *,
    strict: bool = True,
    separators: tuple[str, str] | None = None,
) -> str:
    """JSON that conforms to a schema, narrowed by `narrowed`.

    Args:
        schema: the original schema.
        place: its place in the request, for messages.
        strict: refuse the grammar if a part of the schema cannot be enforced; otherwise such parts
            are left out.
        separators: the text between items, and between keys and values; None for any with a
            blank at most.
    """
    about: dict[str, Any] = {"place": place, "strict": strict}
    if separators is not None:
        about["separators"] = separators
    if any("oneOf" in part for part in parts(schema)):
        about["as_came"] = schema
    return f"%json {json.dumps({**narrowed(schema), PLACE: about})}"


def narrowed(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema as people mean it who write one for output.

    An empty schema means an object. Keywords for one type of value imply that type. Properties that
    are not named are not allowed, unless the schema allows them or combines several schemas.
    """
    if not schema.keys() - _NOTES:
        schema = {**schema, "type": "object"}
    found = typed(schema)
    return found if any(map(_combines, parts(schema))) else _closed(found)


def parts(schema: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """A schema and the schemas within it."""
    yield schema
    for _, part in inner(schema):
        yield from parts(part)


def inner(schema: Mapping[str, Any]) -> Iterator[tuple[list[str], Mapping[str, Any]]]:
    """The schemas directly within a schema, with their paths."""
    found: list[tuple[list[str], object]] = [([name], schema.get(name)) for name in _SINGLE]
    for name in _NAMED:
        if isinstance(named := schema.get(name), Mapping):
            found += [([name, key], part) for key, part in named.items()]
    for name in _LISTS:
        if isinstance(listed := schema.get(name), list):
            found += [([name, str(i)], part) for i, part in enumerate(listed)]
    for path, part in found:
        if isinstance(part, Mapping):
            yield path, part


def referred(schema: Any, reference: str) -> Any:
    """The part of a schema that a local reference names; None if there is none."""
    anchor, *steps = reference.removeprefix("#").split("/")
    if anchor:  # or another document
        return None
    for step in steps:
        name = unquote(step).replace("~1", "/").replace("~0", "~")
        schema = schema.get(name) if isinstance(schema, Mapping) else None
    return schema


def alone(part: Mapping[str, Any], whole: Mapping[str, Any]) -> dict[str, Any]:
    """A part of a schema as a whole one, with all that its references name."""
    shared = {name: whole[name] for name in SHARED if name in whole}
    found, rest = {**part, **shared}, {key: one for key, one in whole.items() if key not in shared}
    moved = _moved(found)
    if moved == found:
        return found
    named = moved.get("$defs")
    return {**moved, "$defs": {**(named if isinstance(named, dict) else {}), REST: _moved(rest)}}


def _moved(value: Any, *, named: bool = False) -> Any:
    """`value`, its references to anything but the definitions changed to `REST`, which is one.

    Args:
        value: a schema, or a part of one.
        named: its keys are names, no keywords.
    """
    if isinstance(value, list):
        return [_moved(one) for one in value]
    if not isinstance(value, Mapping):
        return value
    if named:
        return {name: _moved(one) for name, one in value.items()}
    found = {
        key: one if key in _DATA else _moved(one, named=key in _NAMED) for key, one in value.items()
    }
    if isinstance(reference := found.get("$ref"), str):
        anchor, *steps = reference.removeprefix("#").split("/")
        if not anchor and not (steps and unquote(steps[0]) in SHARED):
            found["$ref"] = "/".join([f"#/$defs/{REST}", *steps])
    return found


def replaced(schema: Mapping[str, Any], path: list[str], part: object) -> dict[str, Any]:
    """The schema with its part at `path`, as from `inner`, replaced."""
    name, *rest = path
    value: Any = schema[name]
    if not rest:
        return {**schema, name: part}
    if isinstance(value, list):
        return {**schema, name: [part if str(i) == rest[0] else x for i, x in enumerate(value)]}
    return {**schema, name: {**value, rest[0]: part}}


def _combines(part: Mapping[str, Any]) -> bool:
    """Whether a value must conform to several schemas at once, so that none may be closed."""
    several = len(part.keys() & {"$ref", "anyOf", "oneOf", "properties"}) > 1
    return "allOf" in part or several or "unevaluatedProperties" in part


def typed(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema with implied types, whole counts, and bounds for integers."""
    found = {word: whole_number(word, value) for word, value in schema.items()}
    for path, part in inner(schema):
        found = replaced(found, path, typed(part))
    kinds = [kind for kind, words in _KINDS.items() if found.keys() & set(words)]
    if len(kinds) == 1 and not found.keys() & {"type", "enum", "const", "$ref", "anyOf", "oneOf"}:
        found["type"] = kinds[0]
    named = found.get("type")
    types = named if isinstance(named, list) else [named]
    whole = "integer" in types and "number" not in types
    if whole and not found.keys() & {*_BOUNDS, "enum", "const"}:
        found |= {"minimum": -_LARGEST, "maximum": _LARGEST}
    return found


def whole_number(word: str, value: Any) -> Any:
    """A keyword's value; 3.0 becomes 3 in a count or a given value, as JSON has one number type."""
    if word == "enum" and isinstance(value, list):
        return [whole_number("const", one) for one in value]
    whole = word in _WHOLE and isinstance(value, float) and value.is_integer()
    return int(value) if whole else value


def _closed(schema: Mapping[str, Any]) -> dict[str, Any]:
    found = dict(schema)
    for path, part in inner(schema):
        found = replaced(found, path, _closed(part))
    if "properties" in found and "patternProperties" not in found:
        found.setdefault("additionalProperties", False)
    return found
