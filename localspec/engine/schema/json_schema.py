"""From a JSON schema to a grammar (GBNF) that writes nothing but what the schema allows. Pure.

A keyword that cannot be enforced is refused, never passed over. The grammar may be narrower than
the schema: required properties come first, in the schema's order; white space is a single space.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import permutations
from typing import Any
from urllib.parse import unquote

from localspec.engine.schema import numbers, strings
from localspec.errors import UsageError

Schema = Mapping[str, Any]

_NOTES = frozenset(
    {"$schema", "$id", "$comment", "$defs", "definitions", "title", "description"}
    | {"default", "examples", "deprecated", "readOnly", "writeOnly"}
)
_READ: dict[str, frozenset[str]] = {
    "object": frozenset({"properties", "required", "additionalProperties"}),
    "array": frozenset({"items", "prefixItems", "minItems", "maxItems"}),
    "string": frozenset({"pattern", "format", "minLength", "maxLength"}),
    **dict.fromkeys(
        ("number", "integer"),
        frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}),
    ),
    **dict.fromkeys(("boolean", "null"), frozenset()),
}
_ALTERNATIVES = ("anyOf", "oneOf")
_MOST_LOOKED_AT = 60_000  # parts; references and oneOf can make them a power of their number
_HALF = re.compile("[\ud800-\udfff]")

_BASIC = {
    "space": '" "?',
    "hex": strings.HEX,
    "char": strings.CHAR,
    "plain": strings.one_of(strings.all_but(())),
    "integral": '"0" | [1-9] [0-9]{0,15}',
    "value": "object | array | string | number | boolean | null",
    "member": 'string ":" space value',
    "object": '"{" space (member ("," space member)*)? "}" space',
    "array": '"[" space (value ("," space value)*)? "]" space',
    "string": r'"\"" char* "\"" space',
    "number": '"-"? integral ("." [0-9]{1,16})? ([eE] [-+]? [0-9]{1,2})? space',
    "integer": '"-"? integral space',
    "boolean": '("true" | "false") space',
    "null": '"null" space',
    "date": strings.DATE,
    "time": strings.TIME,
}


def schema_to_gbnf(schema: str) -> str:
    """The GBNF of a JSON schema, given as JSON text.

    Raises:
        UsageError: not JSON, no schema, or one that cannot be enforced; names the keyword.
    """
    try:
        parsed = json.loads(schema)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"the JSON schema is not JSON: {error}", "Check the schema.") from error
    if not isinstance(parsed, dict):
        raise UsageError("the JSON schema is not a JSON object", "Check the schema.")
    try:
        return _GrammarWriter(parsed).grammar()
    except RecursionError as error:
        raise UsageError("the JSON schema is nested too deep", "Simplify it.") from error
    except (AttributeError, TypeError) as error:  # a keyword's value is of another type
        raise UsageError(f"the JSON schema makes no sense: {error}", "Check it.") from error


def enforced(schema: Schema) -> dict[str, Any]:
    """A schema without the keywords of its first level that cannot be enforced.

    It allows more, if not the same.
    """
    notes = {name: value for name, value in schema.items() if name in _NOTES}
    for keyword in ("$ref", *_ALTERNATIVES):
        if keyword in schema and not {"type", "properties"} & schema.keys():
            return notes | {"anyOf" if keyword == "oneOf" else keyword: schema[keyword]}
    given = schema.get("type", ["object", "array", "string"])
    kinds = [kind for kind in _READ if kind in (given if isinstance(given, list) else [given])]
    spoken = {"allOf"}.union(*(_READ[kind] for kind in kinds))
    known = {"const"} & schema.keys() or {"enum"} & schema.keys() or spoken
    found = {name: value for name, value in schema.items() if name in known or name == "type"}
    for kind in _WRITERS.keys() & kinds:
        kept: dict[str, Any] = {}
        for name in [name for name in found if name in _READ[kind]]:
            with suppress(UsageError, AttributeError, TypeError):
                _WRITERS[kind](kept | {name: found[name]})
                kept[name] = found[name]
        found = {name: value for name, value in found.items() if name not in _READ[kind]} | kept
    if isinstance(found.get("required"), list):
        properties = found.get("properties", ())
        found["required"] = [name for name in found["required"] if name in list(properties)]
    return notes | found


class _GrammarWriter:
    """Turns the parts of one schema into rules. What a part writes ends in ``space``."""

    def __init__(self, document: Schema) -> None:
        self._document = document
        self._rules: dict[str, str] = {}  # from what they say to their names
        self._referred: dict[str, str] = {}  # from references to what their rules say
        self._looked_at = 0

    def grammar(self) -> str:
        """All rules, a line for each."""
        # As in llama.cpp, a schema that says nothing stands for an object.
        says = set(self._document) - _NOTES
        root = self._any(self._document if says else {"type": "object"})
        lines = [("root", root), *_BASIC.items()]
        lines += [(name, text) for text, name in self._rules.items()]
        lines += [(f"ref{i}", text) for i, text in enumerate(self._referred.values())]
        return "\n".join(f"{name} ::= {text}" for name, text in lines)

    def _rule(self, text: str) -> str:
        """The name of a rule that says `text`. No name depends on those in the schema."""
        return self._rules.setdefault(text, f"part{len(self._rules)}")

    def _any(self, schema: object) -> str:
        """What one part of the schema lets through, as a single symbol."""
        given = self._keywords(schema)
        if not given:
            return "value"
        if "$ref" in given:
            return self._reference(_alone(given, "$ref"))
        for keyword in _ALTERNATIVES:
            if keyword in given:
                return self._alternatives(keyword, _alone(given, keyword))
        if "allOf" in given:
            return self._any(self._merged(given))
        if "const" in given or "enum" in given:
            return self._rule(" | ".join(self._constants(given)))
        kinds = _kinds(given)
        _only(given, {"type"}.union(*(_READ[kind] for kind in kinds)))
        return self._one_of(self._typed(kind, given) for kind in kinds)

    def _keywords(self, schema: object) -> dict[str, Any]:
        """The keywords of one level that say something."""
        self._looked_at += 1
        if self._looked_at > _MOST_LOOKED_AT:
            raise UsageError(
                "the JSON schema takes too long to read",
                "Simplify it: anyOf takes less than oneOf, and properties less than allOf.",
            )
        if isinstance(schema, bool):
            schema = {} if schema else {"not": {}}
        if not isinstance(schema, dict):
            raise UsageError(f"the JSON schema has {schema!r} for a schema", "Check the schema.")
        return {keyword: value for keyword, value in schema.items() if keyword not in _NOTES}

    def _one_of(self, symbols: Iterable[str]) -> str:
        different = list(dict.fromkeys(symbols))
        return different[0] if len(different) == 1 else self._rule(" | ".join(different))

    # ------------------------------------------------------------ combinations

    def _reference(self, ref: object) -> str:
        target, name = self._follow(ref), str(ref)
        if name not in self._referred:
            self._referred[name] = ""  # it may refer to itself
            self._referred[name] = self._any(target)
        return f"ref{list(self._referred).index(name)}"

    def _follow(self, ref: object) -> Any:
        """What `ref`, a JSON pointer (RFC 6901) into this document, points to."""
        if not (isinstance(ref, str) and (ref == "#" or ref.startswith("#/"))):
            raise UsageError(
                f"the JSON schema's $ref {ref!r} is remote or none", "Refer to #/$defs/NAME."
            )
        target: Any = self._document
        for step in unquote(ref).split("/")[1:]:
            name = step.replace("~1", "/").replace("~0", "~")
            try:
                target = target[int(name) if isinstance(target, list) else name]
            except (KeyError, IndexError, TypeError, ValueError):
                raise UsageError(
                    f"the JSON schema's $ref {ref!r} leads nowhere", "Check the schema."
                ) from None
        return target

    def _alternatives(self, keyword: str, parts: object) -> str:
        found = _some(keyword, parts)
        if keyword == "oneOf" and not all(self._never(a, b) for a, b in permutations(found, 2)):
            raise _refused("oneOf", "Use anyOf where an answer may fit several alternatives.")
        return self._one_of(self._any(part) for part in found)

    def _merged(self, given: dict[str, Any]) -> Any:
        """``allOf`` and what stands beside it: one part, or objects of different properties."""
        if len(given) == len(_some("allOf", given["allOf"])) == 1:
            return given["allOf"][0]
        beside = {keyword: value for keyword, value in given.items() if keyword != "allOf"}
        parts = [self._plain(part) for part in given["allOf"]]
        parts = [part for part in (*parts, beside) if part]
        if len(parts) < 2:
            return parts[0] if parts else {}
        merged: dict[str, Any] = {"properties": {}, "required": []}
        for part in parts:
            properties = part.get("properties", {})
            known = not part.keys() - {"type", *merged} and _kinds(part) == ["object"]
            if not known or properties.keys() & merged["properties"].keys():
                raise _refused("allOf")
            merged |= {"type": "object"} if "type" in part else {}
            merged["properties"].update(properties)
            merged["required"] += part.get("required", ())
        return merged

    def _plain(self, schema: object) -> dict[str, Any]:
        """The keywords of a part, references followed and ``allOf`` merged."""
        given = self._keywords(schema)
        if "$ref" in given:
            return self._plain(self._follow(_alone(given, "$ref")))
        return self._plain(self._merged(given)) if "allOf" in given else given

    def _never(self, one: object, other: object) -> bool:
        """Whether it is plain that nothing written for `one` is valid under `other`."""
        a, b = self._plain(one), self._plain(other)
        for keyword in _ALTERNATIVES:
            if keyword in a:
                return all(self._never(part, b) for part in _some(keyword, a[keyword]))
            if keyword in b:
                return all(self._never(a, part) for part in _some(keyword, b[keyword]))
        values, others = _values(a), _values(b)
        if values is not None and others is not None:
            return not {_canonical(value) for value in values} & set(map(_canonical, others))
        kinds = _number_is_number(_kinds(a) if values is None else map(_kind, values))
        # Without a type all are valid, also where only those of one type are ever written.
        typed = _kinds(b) if "type" in b else _READ
        if not kinds & _number_is_number(typed if others is None else map(_kind, others)):
            return True
        constant = values is not None or others is not None
        return kinds == {"object"} and not constant and self._objects_apart(a, b)

    def _objects_apart(self, a: Schema, b: Schema) -> bool:
        """Whether no object fits both parts, by the properties that these demand or forbid."""
        has, may = a.get("properties", {}), b.get("properties", {})
        sure = has.keys() & set(a.get("required", ()))
        closed = a.get("additionalProperties", "properties" not in a) is False
        return (
            (closed and bool(set(b.get("required", ())) - has.keys()))
            or (b.get("additionalProperties") is False and bool(sure - may.keys()))
            or any(self._never(has[name], may[name]) for name in sure & may.keys())
        )

    # ------------------------------------------------------------ constants and types

    def _constants(self, given: Schema) -> list[str]:
        keyword = "const" if "const" in given else "enum"
        _only(given, {"type", keyword})
        kinds = {*_kinds(given)}
        kinds |= {"integer"} if "number" in kinds else set()
        values = [value for value in _values(given) or () if _kind(value) in kinds]
        if not values:
            raise _refused(keyword)
        try:
            texts = [_written(value) for value in values]
            "".join(texts).encode()
        except ValueError as error:  # NaN, or half a pair of surrogates
            raise _refused(keyword) from error
        return [f"{text} space" for text in dict.fromkeys(texts)]

    def _typed(self, kind: str, given: Schema) -> str:
        here = {keyword: value for keyword, value in given.items() if keyword in _READ[kind]}
        if not here:
            return kind
        write = {"object": self._object, "array": self._array, **_WRITERS}[kind]
        return self._rule(write(here))

    def _object(self, given: Schema) -> str:
        properties, required = given.get("properties", {}), given.get("required", [])
        # Half a pair of surrogates is no text.
        if not isinstance(properties, dict) or any(map(_HALF.search, properties)):
            raise _refused("properties")
        if not isinstance(required, list) or not all(name in properties for name in required):
            raise _refused("required")
        more = given.get("additionalProperties", "properties" not in given)
        members = {
            name: self._rule(f'{_written(name)} space ":" space {self._any(part)}')
            for name, part in properties.items()
        }
        first = [members[name] for name in properties if name in required]
        free = [members[name] for name in properties if name not in required]
        extra = ""
        if more is not False:
            key = strings.key_but(properties) if properties else "string"
            extra = self._rule(f'{key} ":" space {self._any(more)}')
        return f'"{{" space {self._members(first, free, extra)} "}}" space'

    def _members(self, first: Sequence[str], free: Sequence[str], extra: str) -> str:
        """`first`, then any of `free` in their order, then `extra` again and again."""
        # What may come once there is something to put a comma after, from the last one on.
        tails = [f'("," space {extra})*' if extra else ""]
        for member in reversed(free):
            tails.append(self._rule(f'("," space {member})? {tails[-1]}'))
        if first:
            return ' "," space '.join(first) + " " + tails[-1]
        starts = zip((*free, extra) if extra else free, [*tails[-2::-1], tails[0]], strict=False)
        ways = " | ".join(f"{member} {tail}" for member, tail in starts)
        return f"({ways})?" if ways else ""

    def _array(self, given: Schema) -> str:
        least, most = _bounds(given, "minItems", "maxItems")
        items, each = given.get("prefixItems"), given.get("items", True)
        if isinstance(each, list) and items is None:  # as it was spelled before 2020
            items, each = each, False
        if items is None:
            return f'"[" space {_repeated(self._any(each), least, most)} "]" space'
        if not isinstance(items, list) or ("items" in given and each is not False):
            raise _refused("prefixItems")
        if len(items) < least or (most is not None and len(items) > most):
            raise _refused("maxItems" if len(items) > least else "minItems")
        return '"[" space ' + ' "," space '.join(map(self._any, items)) + ' "]" space'


def _string(given: Schema) -> str:
    least, most = _bounds(given, "minLength", "maxLength")
    if "pattern" in given:
        _only(given, {"pattern"})
        try:
            return rf'"\"" {strings.pattern_to_gbnf(given["pattern"])} "\"" space'
        except ValueError as error:
            raise UsageError(
                f"the JSON schema's 'pattern' cannot be enforced: {error}",
                "Simplify it, or write a grammar (GBNF) instead.",
            ) from error
    if "format" in given:
        _only(given, {"format"})
        if given["format"] not in strings.FORMATS:
            raise _refused("format")
        return rf'"\"" {strings.FORMATS[given["format"]]} "\"" space'
    return rf'"\"" char{strings.times(least, most)} "\"" space'


def _number(given: Schema) -> str:
    """Between bounds that are whole numbers."""
    least, most = given.get("minimum"), given.get("maximum")
    for keyword, bound in given.items():
        if keyword not in ("minimum", "maximum") or not _is_number(bound) or bound % 1:
            raise _refused(keyword)
    return _between(least, most, fractions=True)


def _integer(given: Schema) -> str:
    """Between bounds, which may themselves be none of its values."""
    for keyword, bound in given.items():
        if not _is_number(bound):
            raise _refused(keyword)
    least = [math.ceil(given["minimum"])] if "minimum" in given else []
    least += [math.floor(given["exclusiveMinimum"]) + 1] if "exclusiveMinimum" in given else []
    most = [math.floor(given["maximum"])] if "maximum" in given else []
    most += [math.ceil(given["exclusiveMaximum"]) - 1] if "exclusiveMaximum" in given else []
    return _between(max(least, default=None), min(most, default=None), fractions=False)


def _is_number(value: object) -> bool:
    return type(value) is int or (isinstance(value, float) and math.isfinite(value))


def _between(least: float | None, most: float | None, *, fractions: bool) -> str:
    low, high = (None if bound is None else int(bound) for bound in (least, most))
    try:
        return f"{numbers.between(low, high, fractions=fractions)} space"
    except ValueError:
        raise _refused("maximum", "Give a maximum that is not below the minimum.") from None


_WRITERS: dict[str, Callable[[Schema], str]] = {
    "string": _string,
    "integer": _integer,
    "number": _number,
}


def _repeated(item: str, least: int, most: int | None) -> str:
    """`item`s between commas."""
    if most == 0:
        return ""
    more = f'{item} ("," space {item}){strings.times(max(0, least - 1), most and most - 1)}'
    return more if least else f"({more})?"


def _bounds(given: Schema, lower: str, upper: str) -> tuple[int, int | None]:
    least, most = given.get(lower, 0), given.get(upper)
    for keyword, bound in ((lower, least), (upper, most)):
        if bound is not None and (type(bound) is not int or bound < 0):
            raise _refused(keyword)
    if most is not None and least > most:
        raise _refused(upper)
    return least, most


def _kinds(given: Schema) -> list[str]:
    """The types, or the one that the keywords speak of."""
    if "type" not in given:
        for kind in ("object", "array", "string"):
            if _READ[kind] & given.keys():
                return [kind]
        _only(given, {"const", "enum"})
        return list(_READ)
    kinds = given["type"] if isinstance(given["type"], list) else [given["type"]]
    for kind in kinds:
        if kind not in _READ:
            raise UsageError(f"the JSON schema has no type {kind!r}", "Check the schema.")
    return _some("type", kinds)


def _kind(value: object) -> str:
    """The JSON type of `value`."""
    if isinstance(value, bool) or value is None:
        return "null" if value is None else "boolean"
    if isinstance(value, int | float):
        return "integer" if value == value // 1 else "number"
    if isinstance(value, str):
        return "string"
    return "array" if isinstance(value, list) else "object"


def _number_is_number(kinds: Iterable[str]) -> set[str]:
    return {"number" if kind == "integer" else kind for kind in kinds}


def _values(given: Schema) -> list[Any] | None:
    """The constants that are all a part may be, None where it is none of constants."""
    if "const" in given:
        return [given["const"]]
    return _some("enum", given["enum"]) if "enum" in given else None


def _canonical(value: object) -> str:
    """A text that equal JSON values share: 1 and 1.0 are equal, 1 and true are not."""
    if isinstance(value, list):
        return f"[{','.join(map(_canonical, value))}]"
    if isinstance(value, dict):
        return f"{{{','.join(f'{name!r}:{_canonical(value[name])}' for name in sorted(value))}}}"
    return repr(int(value) if isinstance(value, float) and value.is_integer() else value)


def _written(value: object) -> str:
    """A terminal that is `value` as JSON."""
    return strings.literal(json.dumps(value, ensure_ascii=False, allow_nan=False))


def _some(keyword: str, parts: object) -> list[Any]:
    if not isinstance(parts, list) or not parts:
        raise _refused(keyword)
    return parts


def _alone(given: Schema, keyword: str) -> Any:
    _only(given, {keyword})
    return given[keyword]


def _only(given: Schema, keywords: Iterable[str]) -> None:
    """Refuse all other keywords."""
    for keyword in sorted(given.keys() - set(keywords)):
        raise _refused(keyword)


def _refused(keyword: str, remedy: str = "") -> UsageError:
    return UsageError(
        f"the JSON schema's {keyword!r} cannot be enforced there",
        remedy or "Leave it out, or write a grammar (GBNF) instead.",
    )
