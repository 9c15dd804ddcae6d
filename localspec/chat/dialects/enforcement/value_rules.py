"""Grammars of arguments in notations other than JSON: Python's, Gemma's, and tags within tags.

llguidance enforces schemas only on JSON. This file translates a schema's types, values, items and
properties into rules of the other notations. Other keywords (a pattern, a length, several schemas
at once) cannot be translated: they stay a hint to the model, or the schema is refused if all of it
must be enforced.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

from localspec.chat.dialects.notations.gemma import QUOTE
from localspec.chat.dialects.notations.values import kinds_of
from localspec.engine.grammars import lark
from localspec.errors import SchemaError

_TYPES = ("string", "integer", "number", "boolean", "null", "array", "object")
_NUMBERS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
# Keywords that cannot be translated into rules.
_BEYOND = frozenset(
    {"pattern", "format", "minLength", "maxLength", "allOf", "not", "patternProperties"}
    | {"oneOf", "prefixItems", "uniqueItems", "contains", "if", "minProperties", "maxProperties"}
    | {"dependentRequired", "propertyNames", "unevaluatedProperties"}
)


@dataclass(frozen=True, slots=True)
class CallableTool:
    """A tool that may be called.

    Attributes:
        schema: of its arguments.
        place: of the schema in the request.
        strict: the whole schema is enforced, or the grammar is refused.
    """

    name: str
    schema: Mapping[str, Any]
    place: str
    strict: bool

    def properties(self) -> list[tuple[str, Any, bool]]:
        """The arguments: name, schema, whether it is required."""
        return _properties(self.schema)

    def other_properties(self) -> Any:
        """The schema of arguments that the tool does not name; False if there are none."""
        return _other_properties(self.schema)

    def require_enforceable(self, schema: Any, place: str, words: Sequence[str] = ()) -> None:
        """Refuse keywords that cannot be enforced, if the tool is strict.

        Args:
            schema: of a value.
            place: of the schema in the request.
            words: further keywords that cannot be enforced.

        Raises:
            SchemaError: the schema uses one of them.
        """
        if not self.strict or not isinstance(schema, Mapping):
            return
        for word in schema:
            if word == "oneOf" and word not in words and self._are_apart(schema[word]):
                continue
            if word in _BEYOND or word in words:
                raise SchemaError(
                    f"{word!r} cannot be enforced in the notation in which this model writes"
                    f" calls (at {place})",
                    "Leave it out, or leave out 'strict'.",
                    place,
                )

    def _are_apart(self, ways: Any) -> bool:
        """Whether no value can conform to two of the schemas: then one is as good as any."""
        return isinstance(ways, list) and all(
            _apart(one, other, self.schema) for one, other in combinations(ways, 2)
        )


class ValueRules(ABC):
    """Makes the rules of one tool's arguments in a notation.

    Args:
        tool: the tool.
        of: prefix of the rules' names.

    Attributes:
        tool: its schema, reduced to what a call can write.
    """

    words = ("true", "false", "null")
    between = '","'

    def __init__(self, tool: CallableTool, of: str) -> None:
        self.rules: dict[str, str] = {}
        self.tool = replace(tool, schema=lark.narrowed(tool.schema))
        self._of = of
        self._named: dict[str, str] = {}

    # Overridden by notations; `key` and `any_key` only where `members` writes keys

    @abstractmethod
    def text(self) -> str:
        """Any text."""

    @abstractmethod
    def known_text(self, text: str) -> str:
        """One given text."""

    def known(self, value: Any) -> str:
        """One given value."""
        if isinstance(value, str):
            return self.known_text(value)
        if isinstance(value, bool) or value is None:
            return lark.literal(self.words[2 if value is None else not value])
        if isinstance(value, list):
            return self.listed([self.known(one) for one in value])
        if isinstance(value, dict):
            return self.object([(name, self.known(one), True) for name, one in value.items()])
        return lark.literal(json.dumps(value))

    def key(self, name: str) -> str:
        """What precedes a value in an object; empty if the notation cannot write the name."""
        raise NotImplementedError

    def any_key(self, names: Sequence[str]) -> str:
        """What precedes a value whose name is none of `names`."""
        raise NotImplementedError

    def listed(self, items: Sequence[str]) -> str:
        """A list of exactly these items."""
        inside = f" {self.between} ".join(items)
        return f'"[" {inside} "]"'

    def items(self, item: str, least: int, most: int | None) -> str:
        """A list of `least` to `most` items of one kind; None for no upper limit."""
        if most == 0:
            return '"[" "]"'
        inside = item
        if most != 1:
            bounds = f"{{{max(0, least - 1)},{'' if most is None else most - 1}}}"
            inside = f"{item} ({self.between} {item}){bounds}"
        return f'"[" {inside} "]"' if least else f'"[" ({inside})? "]"'

    def object(self, parts: Sequence[tuple[str, str, bool]], *, rest: str = "") -> str:
        """An object of parts (name, value, whether it is required); `rest` allows other names."""
        return f"{lark.literal('{')} {self.members(parts, lark.literal('}'), rest=rest)}"

    # The same in all notations

    def arguments(self) -> tuple[list[tuple[str, str, bool]], str]:
        """The tool's arguments as in `object`: those that it names, and the rule of others.

        Raises:
            SchemaError: a keyword must be enforced, but cannot be.
        """
        self.tool.require_enforceable(self.tool.schema, self.tool.place)
        return self._parts(self.tool.schema, self.tool.place)

    def members(self, parts: Sequence[tuple[str, str, bool]], end: str, *, rest: str = "") -> str:
        """Names with values in the given order, then `end`; what is not required may be missing."""
        after, ways = end, [end]
        if rest:
            after = f"{self._of}m{len(self.rules)}"
            self.rules[after] = ""  # reserve the name: the rule refers to itself
            other = self.member(self.any_key([name for name, _, _ in parts]), rest, after)
            self.rules[after] = f"{self.between} {other} | {end}"
            ways = [other, end]
        for name, value, needed in reversed(parts):
            if key := self.key(name):
                one = self.member(key, value, after)
                ways = [one] if needed else [one, *ways]
                after = self._rule(f"{self.between} {one}" + ("" if needed else f" | {after}"))
        return f"({' | '.join(ways)})"

    def member(self, key: str, value: str, after: str) -> str:
        """One name with its value, and what follows."""
        return f"{key} {value} {after}"

    def value(self, schema: Any, place: str) -> str:
        """The rule of a value.

        Raises:
            SchemaError: a keyword must be enforced, but cannot be.
        """
        self.tool.require_enforceable(schema, place)
        if not isinstance(schema, Mapping):
            return self.anything()
        reference = schema.get("$ref")
        if isinstance(reference, str):
            return self._referred(reference, place)
        if (values := given_values(schema)) is not None:
            return self._one_of(map(self.known, values))
        for name in ("anyOf", "oneOf"):
            if isinstance(schema.get(name), list) and schema[name]:
                ways = (
                    self.value(one, f"{place}.{name}.{i}") for i, one in enumerate(schema[name])
                )
                return self._one_of(ways)
        kinds = kinds_of(schema, self.tool.schema)
        ways = (self.kind(kind, schema, place) for kind in _TYPES if kind in kinds)
        return self._one_of(ways) or self.anything()

    def anything(self) -> str:
        """The rule of a value of any type."""
        name = f"{self._of}any"
        if name not in self.rules:
            self.rules[name] = ""  # reserve the name: the rule refers to itself
            ways = [self.text(), self._number({"type": "number"}), *map(lark.literal, self.words)]
            ways += [self.items(name, 0, None), self.object((), rest=name)]
            self.rules[name] = " | ".join(ways)
        return name

    def kind(self, kind: str, schema: Mapping[str, Any], place: str) -> str:
        """The rule of a value of one JSON type; the schema is at `place` in the request."""
        match kind:
            case "string":
                return self.text()
            case "integer" | "number":
                return self._number({**schema, "type": kind})
            case "boolean":
                return self._one_of(map(lark.literal, self.words[:2]))
            case "null":
                return lark.literal(self.words[2])
            case "array":
                item = schema.get("items", True)
                least, most = (_count(schema.get(name)) for name in ("minItems", "maxItems"))
                least = least or 0
                if most is not None and most < least and not self.tool.strict:  # no list fits
                    most = None
                return self.items(self.value(item, f"{place}.items"), least, most)
        return self._object(schema, place)

    def _object(self, schema: Mapping[str, Any], place: str) -> str:
        parts, rest = self._parts(schema, place)
        return self.object(parts, rest=rest)

    def _parts(
        self, schema: Mapping[str, Any], place: str
    ) -> tuple[list[tuple[str, str, bool]], str]:
        parts = [
            (name, self.value(one, f"{place}.properties.{name}"), needed)
            for name, one, needed in _properties(schema)
        ]
        more = _other_properties(schema)
        return parts, "" if more is False else self.value(more, f"{place}.additionalProperties")

    def _number(self, schema: Mapping[str, Any]) -> str:
        kept = {name: schema[name] for name in ("type", *_NUMBERS) if name in schema}
        return self._rule(lark.json_value(kept, self.tool.place, strict=self.tool.strict))

    def _referred(self, reference: str, place: str) -> str:
        if reference not in self._named:
            name = self._named[reference] = f"{self._of}r{len(self._named)}"
            self.rules[name] = self.value(lark.referred(self.tool.schema, reference), place)
        return self._named[reference]

    def _one_of(self, ways: Any) -> str:
        found = list(dict.fromkeys(ways))
        return self._rule(" | ".join(found)) if len(found) > 1 else "".join(found)

    def _rule(self, rule: str, *, terminal: bool = False) -> str:
        """Add a rule, or a terminal, and return its name."""
        name = next((name for name, one in self.rules.items() if one == rule), "")
        if not name:
            name = f"{self._of}n{len(self.rules)}"
            name = name.upper() if terminal else name
            self.rules[name] = rule
        return name


class PythonRules(ValueRules):
    """Values as Python literals. A text ends at the first quote of its own kind."""

    words = ("True", "False", "None")
    between = '"," " "?'
    _TEXT = r"""/'([^'\\\n]|\\['"\\nrt])*'/ | /"([^"\\\n]|\\['"\\nrt])*"/"""

    def text(self) -> str:
        """Text between quotes, with Python's escapes."""
        return self._rule(self._TEXT)

    def known_text(self, text: str) -> str:
        """A given text as Python's `repr` writes it."""
        return lark.literal(repr(text))

    def key(self, name: str) -> str:
        """The quoted name and a colon."""
        return f'{lark.literal(repr(name) + ":")} " "?'

    def any_key(self, names: Sequence[str]) -> str:  # noqa: ARG002 - a known name is the longer text
        """Any quoted text and a colon."""
        return f'{self.text()} ":" " "?'


class PythonArguments(PythonRules):
    """The keyword arguments of a call in Python.

    Args:
        tool, of: as in `ValueRules`.
        raw: text is not escaped. Where its own quote occurs in it, only what follows tells whether
            it ends there, so the rest of the answer's calls is left to the model; if the tool is
            strict, a text ends at a quote before a comma, a bracket or a blank.
        close: the mark after the calls of an answer; empty for none.
    """

    _STRICT = r"""/'([^']|'[^,)\s'])*'/ | /"([^"]|"[^,)\s"])*"/"""
    _RAW = r"""/'[^']*'/ | /"[^"]*"/"""
    _OPEN = r"""(/'[^']*'[^,)]/ | /"[^"]*"[^,)]/)"""

    def __init__(self, tool: CallableTool, of: str, *, raw: bool, close: str) -> None:
        super().__init__(tool, of)
        self._raw, self._inside = raw, PythonRules(tool, f"{of}i")
        self._left = f"{self._OPEN} {lark.until(close) if close else '/(?s:.*)/'}"

    def text(self) -> str:
        """Text between quotes, with or without escapes."""
        if not self._raw:
            return super().text()
        return self._rule(self._STRICT if self.tool.strict else self._RAW)

    def member(self, key: str, value: str, after: str) -> str:
        """As in `ValueRules`; what follows a text with its own quote is left to the model."""
        held, ways = super().member(key, value, after), self.rules.get(value, "").split(" | ")
        if not self._raw or self.tool.strict or self.text() not in (value, *ways):
            return held
        return f"({held} | {key} {self._rule(self._left)})"

    def known_text(self, text: str) -> str:
        """A given text, between quotes that do not occur in it."""
        quote = '"' if "'" in text else "'"
        plain = self._raw and quote not in text
        return lark.literal(f"{quote}{text}{quote}") if plain else super().known_text(text)

    def key(self, name: str) -> str:
        """The name and `=`; empty if Python does not allow the name."""
        return lark.literal(f"{name}=") if re.fullmatch(r"[A-Za-z_]\w*", name) else ""

    def any_key(self, names: Sequence[str]) -> str:
        """Any other name and `=`."""
        key = lark.other_than(r"[A-Za-z_][A-Za-z0-9_]*=", (f"{name}=" for name in names))
        return self._rule(key, terminal=True)

    def anything(self) -> str:
        """A text, or another value as a Python literal."""
        found = f"{self.text()} | {self._inside.anything()}"
        self.rules |= self._inside.rules
        return self._rule(found)

    def known(self, value: Any) -> str:
        """One given value; texts inside lists and objects are escaped."""
        if not isinstance(value, list | dict):
            return super().known(value)
        found = self._inside.known(value)
        self.rules |= self._inside.rules
        return found

    def kind(self, kind: str, schema: Mapping[str, Any], place: str) -> str:
        """As in `ValueRules`; texts inside lists and objects are escaped."""
        if kind not in ("array", "object"):
            return super().kind(kind, schema, place)
        found = self._inside.kind(kind, schema, place)
        self.rules |= self._inside.rules
        return found


class GemmaRules(ValueRules):
    """Gemma's notation: texts between special marks, names without quotes."""

    def text(self) -> str:
        """Text between two marks."""
        return self._rule(f"{lark.mark(QUOTE)} {lark.until(QUOTE)}")

    def known_text(self, text: str) -> str:
        """A given text between two marks."""
        return " ".join([lark.mark(QUOTE), lark.literal(text), lark.mark(QUOTE)])

    def key(self, name: str) -> str:
        """The name and a colon."""
        plain = re.fullmatch(r"[^\s<>\"'`{}()\[\],:=|;]+", name)
        return f'{lark.literal(name) if plain else self.known_text(name)} ":"'

    def any_key(self, names: Sequence[str]) -> str:
        """Any other word and a colon."""
        key = lark.other_than(r"[A-Za-z_][\w.\-]*:", (f"{name}:" for name in names))
        return self._rule(key, terminal=True)


class NestedRules(ValueRules):
    """Tags named after the arguments; every tag begins with the same mark.

    Args:
        tool, of: as in `ValueRules`.
        mark: the beginning of every tag; texts cannot contain it.
    """

    def __init__(self, tool: CallableTool, of: str, mark: str) -> None:
        super().__init__(tool, of)
        self._mark = mark

    def text(self) -> str:
        """Text up to the mark of the closing tag, which `_closed` completes."""
        return lark.until(self._mark)

    def known_text(self, text: str) -> str:
        """A given text, and the mark of the closing tag."""
        return f"{lark.literal(text)} {lark.mark(self._mark)}"

    def known(self, value: Any) -> str:
        """One given value, and the mark of the closing tag."""
        if isinstance(value, str | list | dict):
            return super().known(value)
        return f"{super().known(value)} {lark.mark(self._mark)}"

    def tag(self, name: str, value: str) -> str:
        """A value between tags; its rule includes the mark of the closing tag.

        The mark is a terminal of its own, because llguidance takes the longest possible terminal.
        """
        begin, close = lark.literal(f"<{name}>"), lark.literal(f"</{name}>")
        return f"{lark.mark(self._mark)} {begin} {value} {close}"

    def listed(self, items: Sequence[str]) -> str:
        """The given items as tags."""
        return " ".join([*(self.tag("item", one) for one in items), lark.mark(self._mark)])

    def items(self, item: str, least: int, most: int | None) -> str:
        """Any items as tags."""
        if most == 0:
            return lark.mark(self._mark)
        bounds = f"{{{least},{'' if most is None else most}}}"
        return f"({self.tag('item', item)}){bounds} {lark.mark(self._mark)}"

    def members(
        self,
        parts: Sequence[tuple[str, str, bool]],
        end: str,
        *,
        rest: str = "",  # noqa: ARG002 - see below
    ) -> str:
        """Tags in the given order; `rest` is ignored, as other names look like closing tags."""
        tags = [(self.tag(name, value), needed) for name, value, needed in parts]
        return " ".join([*(one if needed else f"({one})?" for one, needed in tags), end])

    def object(self, parts: Sequence[tuple[str, str, bool]], *, rest: str = "") -> str:
        """The members as tags, then the mark of the closing tag."""
        return self.members(parts, lark.mark(self._mark), rest=rest)

    def anything(self) -> str:
        """Text; its meaning decides the type."""
        return self.text()

    def kind(self, kind: str, schema: Mapping[str, Any], place: str) -> str:
        """As in `ValueRules`, with the mark of the closing tag."""
        found = super().kind(kind, schema, place)
        ended = kind in ("string", "array", "object")
        return found if ended else f"({found}) {lark.mark(self._mark)}"


def _properties(schema: Mapping[str, Any]) -> list[tuple[str, Any, bool]]:
    found, needed = schema.get("properties"), schema.get("required")
    required = needed if isinstance(needed, list) else ()
    named = found.items() if isinstance(found, Mapping) else ()
    return [(name, one, name in required) for name, one in named]


def _other_properties(schema: Mapping[str, Any]) -> Any:
    """The schema of an object's properties that it does not name; False if there are none."""
    if schema.get("patternProperties"):  # rules cannot tell which of them a name means
        return True
    return schema.get("additionalProperties", not _properties(schema))


def _apart(one: Any, other: Any, whole: Any, compared: set[tuple[str, ...]] | None = None) -> bool:
    """Whether types, given values or a required property tell the values of two schemas apart.

    Pairs of references are remembered in `compared`, for they may lead back to themselves.
    """
    compared, ways = set() if compared is None else compared, (one, other)
    names = tuple(str(way["$ref"]) for way in ways if isinstance(way, Mapping) and "$ref" in way)
    if len(names) == len(ways):
        if names in compared:
            return False
        compared.add(names)
    one, other = (
        lark.referred(whole, str(way["$ref"]))
        if isinstance(way, Mapping) and "$ref" in way
        else way
        for way in ways
    )
    if not isinstance(one, Mapping) or not isinstance(other, Mapping):
        return False
    kinds, others = _plain_kinds(one, whole), _plain_kinds(other, whole)
    if kinds and others and not kinds & others:
        return True
    values, rest = given_values(one), given_values(other)
    if values is not None and rest is not None:
        return not any(value in rest for value in values)
    required = {name: way for name, way, needed in _properties(other) if needed}
    return kinds == others == {"object"} and any(
        needed and name in required and _apart(way, required[name], whole, compared)
        for name, way, needed in _properties(one)
    )


def _plain_kinds(schema: Mapping[str, Any], whole: Any) -> set[str]:
    """The types of a schema that names them itself; an integer counts as a number."""
    if schema.keys() & {"anyOf", "oneOf", "allOf"} and "type" not in schema:
        return set()
    return {"number" if kind == "integer" else kind for kind in kinds_of(schema, whole)}


def given_values(schema: Mapping[str, Any]) -> list[Any] | None:
    """The values that a schema lists; None if it lists none."""
    values = schema.get("enum", [schema["const"]] if "const" in schema else None)
    return values if isinstance(values, list) else None


def _count(value: Any) -> int | None:
    whole = isinstance(value, int) and not isinstance(value, bool)
    return value if whole and value >= 0 else None
