"""Grammars of arguments in notations that are not JSON: Python's, Gemma's, and tags within tags.

llguidance enforces schemas on JSON alone. Here a schema becomes rules of the other notations, as
far as its types, values, items and properties go. What else it asks for (a pattern, a length,
several schemas at once) cannot be written as such a rule: it is a hint to the model, or refused
where all of the schema has to hold.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from localspec.chat.dialects.notations.values import kinds_of, referred
from localspec.engine.grammars import lark
from localspec.errors import SchemaError

_TYPES = ("string", "integer", "number", "boolean", "null", "array", "object")
_NUMBERS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
# What a rule cannot hold a value to.
_BEYOND = frozenset(
    {"pattern", "format", "minLength", "maxLength", "allOf", "not", "patternProperties"}
    | {"oneOf", "prefixItems", "uniqueItems", "contains", "if", "minProperties", "maxProperties"}
    | {"dependentRequired", "propertyNames", "unevaluatedProperties"}
)


@dataclass(frozen=True, slots=True)
class CallableTool:
    """A tool that may be called.

    Attributes:
        name: of the function.
        schema: of its arguments.
        place: where in a request the schema stands.
        strict: all of the schema holds, or the grammar is refused.
    """

    name: str
    schema: Mapping[str, Any]
    place: str
    strict: bool

    def properties(self) -> list[tuple[str, Any, bool]]:
        """The arguments: their names, their schemas, whether they are required."""
        return _properties(self.schema)

    def require_enforceable(self, schema: Any, place: str, words: Sequence[str] = ()) -> None:
        """Refuse what rules cannot hold a value to, if all of the schema has to hold.

        Args:
            schema: of a value.
            place: where it stands.
            words: what cannot be enforced besides.

        Raises:
            SchemaError: a keyword of it cannot be enforced.
        """
        if not self.strict or not isinstance(schema, Mapping):
            return
        for word in schema:
            if word in _BEYOND or word in words:
                raise SchemaError(
                    f"{word!r} cannot be enforced in the notation in which this model writes"
                    f" calls (at {place})",
                    "Leave it out, or leave out 'strict'.",
                    place,
                )


class ValueRules:
    """Rules of one tool's arguments in a notation.

    Args:
        tool: whose arguments they are.
        of: with what the rules' names begin.

    Attributes:
        tool: its schema narrowed to what is there for writing.
        rules: those that were made, by name.
    """

    words = ("true", "false", "null")
    equals = ":"
    between = '","'

    def __init__(self, tool: CallableTool, of: str) -> None:
        self.rules: dict[str, str] = {}
        self.tool = replace(tool, schema=lark.narrowed(tool.schema))
        self._of = of
        self._named: dict[str, str] = {}

    # What the notations differ in

    def text(self) -> str:
        """Any text."""
        raise NotImplementedError

    def known_text(self, text: str) -> str:
        """A text that is known."""
        raise NotImplementedError

    def known(self, value: Any) -> str:
        """A value that is known."""
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
        """What stands before a value in an object; empty where it cannot be written."""
        raise NotImplementedError

    def any_key(self) -> str:
        """The same, of a name that is not known."""
        raise NotImplementedError

    def listed(self, items: Sequence[str]) -> str:
        """A list of items that are all there."""
        inside = f" {self.between} ".join(items)
        return f'"[" {inside} "]"'

    def items(self, item: str, least: int, most: int | None) -> str:
        """A list of any items of a kind."""
        if most == 0:
            return '"[" "]"'
        more = f"({self.between} {item}){{{max(0, least - 1)},{'' if most is None else most - 1}}}"
        inside = f"{item} {more}"
        return f'"[" {inside} "]"' if least else f'"[" ({inside})? "]"'

    def object(self, parts: Sequence[tuple[str, str, bool]], *, rest: str = "") -> str:
        """An object: names, values and whether they are required; `rest` of names not known."""
        return f'"{{" {self.members(parts, rest=rest)} "}}"'

    # What they have in common

    def members(self, parts: Sequence[tuple[str, str, bool]], *, rest: str = "") -> str:
        """Names with values in their order, those that are not required perhaps left out."""
        named = [
            (f"{key} {value}", needed) for name, value, needed in parts if (key := self.key(name))
        ]
        other = f"{self.any_key()} {rest}" if rest else ""
        tail = f"({self.between} {other})*" if rest else ""
        ways, after = [f"{other} {tail}"] if rest else [], tail
        if rest:
            after = self._rule(after)
        for written, needed in reversed(named):
            ways = [f"{written} {after}"] + ([] if needed else ways)
            follows = f"{self.between} {written}"
            after = self._rule(f"{follows if needed else f'({follows})?'} {after}")
        empty = not any(needed for _, needed in named)
        return f"({' | '.join(ways)}){'?' if empty else ''}" if ways else ""

    def value(self, schema: Any, place: str) -> str:
        """The rule of a value.

        Raises:
            SchemaError: a keyword cannot be enforced, and has to be.
        """
        self.tool.require_enforceable(schema, place)
        if not isinstance(schema, Mapping):
            return self.anything()
        reference = schema.get("$ref")
        if isinstance(reference, str):
            return self._referred(reference, place)
        if "const" in schema or isinstance(schema.get("enum"), list):
            values = schema["enum"] if "enum" in schema else [schema["const"]]
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
        """The rule of a value of any kind."""
        name = f"{self._of}any"
        if name not in self.rules:
            self.rules[name] = ""  # it refers to itself
            ways = [self.text(), self._number({"type": "number"}), *map(lark.literal, self.words)]
            ways += [self.items(name, 0, None), self.object((), rest=name)]
            self.rules[name] = " | ".join(ways)
        return name

    def kind(self, kind: str, schema: Mapping[str, Any], place: str) -> str:
        """The rule of a value of one of JSON's types, under a schema that stands at `place`."""
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
                return self.items(self.value(item, f"{place}.items"), least or 0, most)
        return self._object(schema, place)

    def _object(self, schema: Mapping[str, Any], place: str) -> str:
        parts = [
            (name, self.value(one, f"{place}.properties.{name}"), needed)
            for name, one, needed in _properties(schema)
        ]
        more = schema.get("additionalProperties", not parts)
        rest = self.value(more, f"{place}.additionalProperties") if more else ""
        return self.object(parts, rest=rest)

    def _number(self, schema: Mapping[str, Any]) -> str:
        kept = {name: schema[name] for name in ("type", *_NUMBERS) if name in schema}
        return self._rule(lark.json_value(kept, self.tool.place, strict=self.tool.strict))

    def _referred(self, reference: str, place: str) -> str:
        if reference not in self._named:
            name = self._named[reference] = f"{self._of}r{len(self._named)}"
            self.rules[name] = self.value(referred(reference, self.tool.schema), place)
        return self._named[reference]

    def _one_of(self, ways: Any) -> str:
        found = list(dict.fromkeys(ways))
        return self._rule(" | ".join(found)) if len(found) > 1 else "".join(found)

    def _rule(self, rule: str) -> str:
        """The name of a rule."""
        name = next((name for name, one in self.rules.items() if one == rule), "")
        if not name:
            name = f"{self._of}n{len(self.rules)}"
            self.rules[name] = rule
        return name


class PythonRules(ValueRules):
    """As Python writes values. A text ends at the first quote of its own kind."""

    words = ("True", "False", "None")
    between = '"," " "?'
    _TEXT = r"""/'([^'\\\n]|\\['"\\nrt])*'/ | /"([^"\\\n]|\\['"\\nrt])*"/"""

    def text(self) -> str:
        """Between quotes, with Python's escapes."""
        return self._rule(self._TEXT)

    def known_text(self, text: str) -> str:
        """As Python's `repr` has it."""
        return lark.literal(repr(text))

    def key(self, name: str) -> str:
        """A text and a colon."""
        return f'{lark.literal(repr(name) + ":")} " "?'

    def any_key(self) -> str:
        """Any text and a colon."""
        return f'{self.text()} ":" " "?'


class PythonArguments(PythonRules):
    """The arguments of a call in Python, by their names.

    Args:
        tool, of: as of `ValueRules`.
        raw: a text is written as it is, and ends at a quote that a comma or a bracket follows.
    """

    _RAW = r"""/'([^']|'[^,)\s'])*'/ | /"([^"]|"[^,)\s"])*"/"""

    def __init__(self, tool: CallableTool, of: str, *, raw: bool) -> None:
        super().__init__(tool, of)
        self._raw, self._inside = raw, PythonRules(tool, f"{of}i")

    def text(self) -> str:
        """Between quotes, with escapes or without."""
        return self._rule(self._RAW) if self._raw else super().text()

    def known_text(self, text: str) -> str:
        """The text between quotes that it does not have."""
        quote = '"' if "'" in text else "'"
        plain = self._raw and quote not in text
        return lark.literal(f"{quote}{text}{quote}") if plain else super().known_text(text)

    def key(self, name: str) -> str:
        """The name and `=`; empty where Python does not allow the name."""
        return lark.literal(f"{name}=") if re.fullmatch(r"[A-Za-z_]\w*", name) else ""

    def any_key(self) -> str:
        """Any name and a sign."""
        return r"/[A-Za-z_][A-Za-z0-9_]*=/"

    def anything(self) -> str:
        """A text, or what Python writes for other values."""
        found = f"{self.text()} | {self._inside.anything()}"
        self.rules |= self._inside.rules
        return self._rule(found)

    def known(self, value: Any) -> str:
        """A value that is known; lists and objects have escapes in them."""
        inside = isinstance(value, list | dict)
        return self._inside.known(value) if inside else super().known(value)

    def kind(self, kind: str, schema: Mapping[str, Any], place: str) -> str:
        """As of `ValueRules`; lists and objects have escapes in them."""
        if kind not in ("array", "object"):
            return super().kind(kind, schema, place)
        found = self._inside.kind(kind, schema, place)
        self.rules |= self._inside.rules
        return found


class GemmaRules(ValueRules):
    """Gemma's notation: texts between marks of their own, names as they are."""

    QUOTE = '<|"|>'

    def text(self) -> str:
        """Between two marks."""
        return self._rule(f"{lark.mark(self.QUOTE)} {lark.until(self.QUOTE)}")

    def known_text(self, text: str) -> str:
        """The text between two marks."""
        return " ".join([lark.mark(self.QUOTE), _letters(text), lark.mark(self.QUOTE)])

    def key(self, name: str) -> str:
        """The name and a colon."""
        plain = re.fullmatch(r"[^\s<>\"'`{}()\[\],:=|;]+", name)
        return f'{_letters(name) if plain else self.known_text(name)} ":"'

    def any_key(self) -> str:
        """A word and a colon."""
        return r"/[A-Za-z_][\w.\-]*:/"


class NestedRules(ValueRules):
    """Tags named after the arguments, each with one and the same mark ahead of it.

    Args:
        tool, of: as of `ValueRules`.
        mark: what stands ahead of every tag; no text may hold it.
    """

    def __init__(self, tool: CallableTool, of: str, mark: str) -> None:
        super().__init__(tool, of)
        self._mark = mark

    def text(self) -> str:
        """Up to the mark of the closing tag, which `_closed` completes."""
        return lark.until(self._mark)

    def known_text(self, text: str) -> str:
        """The text, and the mark of the closing tag."""
        return f"{_letters(text)} {lark.mark(self._mark)}"

    def known(self, value: Any) -> str:
        """A value that is known, and the mark of the closing tag."""
        if isinstance(value, str | list | dict):
            return super().known(value)
        return f"{super().known(value)} {lark.mark(self._mark)}"

    def tag(self, name: str, value: str) -> str:
        """A value between tags; it ends with the mark of the closing one.

        The mark is a word of its own for llguidance, which takes the longest one that may come.
        """
        begin, close = lark.literal(f"<{name}>"), lark.literal(f"</{name}>")
        return f"{lark.mark(self._mark)} {begin} {value} {close}"

    def listed(self, items: Sequence[str]) -> str:
        """Items as tags."""
        return " ".join([*(self.tag("item", one) for one in items), lark.mark(self._mark)])

    def items(self, item: str, least: int, most: int | None) -> str:
        """Any items as tags."""
        bounds = f"{{{least},{'' if most is None else most}}}"
        return f"({self.tag('item', item)}){bounds} {lark.mark(self._mark)}"

    def members(
        self,
        parts: Sequence[tuple[str, str, bool]],
        *,
        rest: str = "",  # noqa: ARG002 - see below
    ) -> str:
        """Tags in their order; names that are not known cannot be told from their closing tags."""
        tags = [(self.tag(name, value), needed) for name, value, needed in parts]
        return " ".join(one if needed else f"({one})?" for one, needed in tags)

    def object(self, parts: Sequence[tuple[str, str, bool]], *, rest: str = "") -> str:
        """Tags, and the mark of the closing one."""
        return f"{self.members(parts, rest=rest)} {lark.mark(self._mark)}".strip()

    def anything(self) -> str:
        """A text: what kind of value it is, follows from it."""
        return self.text()

    def kind(self, kind: str, schema: Mapping[str, Any], place: str) -> str:
        """As of `ValueRules`, with the mark of the closing tag."""
        found = super().kind(kind, schema, place)
        ended = kind in ("string", "array", "object")
        return found if ended else f"({found}) {lark.mark(self._mark)}"


def _properties(schema: Mapping[str, Any]) -> list[tuple[str, Any, bool]]:
    found, needed = schema.get("properties"), schema.get("required")
    required = needed if isinstance(needed, list) else ()
    named = found.items() if isinstance(found, Mapping) else ()
    return [(name, one, name in required) for name, one in named]


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and value >= 0 else None


def _letters(text: str) -> str:
    """A text as it is; nothing for an empty one, which llguidance knows no literal of."""
    return lark.literal(text) if text else ""
