"""Grammars of calls with arguments in tags: plain text for strings, else JSON or Python's words."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from localspec.chat.dialects.enforcement.value_rules import (
    CallableTool,
    PythonRules,
    given_values,
)
from localspec.chat.dialects.marks import blanks, shared_ends
from localspec.chat.dialects.notations.values import kinds_of
from localspec.chat.dialects.shapes import CallShape
from localspec.engine.grammars import lark

_KINDS = ("integer", "number", "boolean", "null", "array", "object")
_WAYS = ("anyOf", "oneOf")
# Keywords that cannot be enforced for text between tags.
_TEXT_WORDS = ("pattern", "format", "minLength", "maxLength")


def tagged(shape: CallShape, tool: CallableTool, of: str) -> tuple[str, dict[str, str]]:
    """The rule of a tool's call with the mark of its end, and the rules that it refers to.

    Raises:
        SchemaError: a keyword must be enforced, but cannot be.
    """
    tool.require_enforceable(tool.schema, tool.place)
    values = _TagValues(shape, tool, of)
    # If several calls are numbered, the number is part of the mark.
    ends = [
        "NUMBER" if one.isdigit() else lark.mark(one)
        for one in re.split(r"(\d+)", shape.name_end)
        if one
    ]
    head = " ".join([lark.literal(tool.name), *ends])
    return f"{head} blank {values.arguments()}", values.rules


class _TagValues:
    """Makes the rules of arguments between tags.

    The rule of a value includes what follows it: `more`, the rule of further arguments from their
    name on, or the call's end, if that `may_end` there.
    """

    def __init__(self, shape: CallShape, tool: CallableTool, of: str) -> None:
        self.rules: dict[str, str] = {}
        self._shape, self._tool, self._of = shape, tool, of
        self._python = PythonRules(tool, f"{of}p")
        self._told = shape.other_open not in ("", shape.value_open)  # text has its own tag
        self._close = lark.mark(shape.value_close.rstrip())
        self._end = next(iter(shape.after), "")

    def arguments(self) -> str:
        """The rule of the arguments in the given order, and of what follows them."""
        more, may_end = self._unnamed(), True
        for name, schema, needed in reversed(self._tool.properties()):
            value = self._argument(name, schema, more, may_end=may_end)
            one = self._rule(f"{lark.literal(name)} {value}")
            more = self._rule(f"{one} | {more}") if more and not needed else one
            may_end = may_end and not needed
        return self._next(more, may_end=may_end)

    def _unnamed(self) -> str:
        """The rule of arguments that the schema does not name; empty if there are none."""
        if self._tool.other_properties() is False:
            return ""
        rule, known = f"{self._of}other", (name for name, _, _ in self._tool.properties())
        self.rules[rule.upper()] = lark.other_than(r"[A-Za-z_][\w.\-]*", known)
        ways = " | ".join(self._any_text(rule, may_end=True))
        self.rules[rule] = f"{rule.upper()} {lark.mark(self._shape.value_open)} ({ways})"
        return rule

    def _argument(self, name: str, schema: Any, more: str, *, may_end: bool) -> str:
        """The rule of a value with its tags."""
        place = f"{self._tool.place}.properties.{name}"
        kinds = kinds_of(_typed(schema), self._tool.schema)
        ways = []
        texts: list[str | None] = []
        if not kinds or "string" in kinds:
            texts = self._texts(schema, place)
            opened = lark.mark(self._shape.value_open)
            ways += [f"{opened} {one}" for one in self._text(texts, more, may_end=may_end)]
        if self._told or (kinds and None not in texts):
            # If the tag does not tell text from other values, any text is allowed.
            others = self._others(schema, kinds or set(_KINDS), place)
            ways += [f"{one} blank {self._next(more, may_end=may_end)}" for one in others]
        return f"({' | '.join(dict.fromkeys(ways))})"

    def _next(self, more: str, *, may_end: bool) -> str:
        """The rule of what follows a closed value."""
        ways = [f"{lark.mark(self._shape.key_open)} {more}"] if more else []
        if may_end:
            ways.append(lark.mark(self._end) if self._end else '""')
        return self._rule(" | ".join(ways))

    def _text(self, texts: list[str | None], more: str, *, may_end: bool) -> list[str]:
        if None in texts:
            return self._any_text(more, may_end=may_end)
        known = [one for one in dict.fromkeys(texts) if one is not None]
        ways = " | ".join(lark.literal(one) for one in known)
        return [f"({ways}) {self._close} blank {self._next(more, may_end=may_end)}"]

    def _any_text(self, more: str, *, may_end: bool) -> list[str]:
        """The rules of any text.

        As for the reader, the closing mark counts only where an argument or the call's end follows.
        With the line break of the layout before it, it counts at once: so a model that would go on
        with a wrong mark is led to the right one. So does one with the break after it where another
        argument is required.
        """
        shape, end, led = self._shape, self._end, f"blank {self._next(more, may_end=may_end)}"
        close, name = shape.value_close.strip(), shape.key_open
        broken = blanks(shape.value_close, at_end=False)
        if not end:
            return [f"{lark.until(close)} {led}"]
        never = close, [*([] if more else [name]), *filter(None, shape.after[may_end:])]
        ways = [f"{lark.until(close, name, never)} {more}"] if more else []
        ways += [lark.until(close, end, never)] if may_end else []
        sure = shape.value_close.rstrip() if broken else shape.value_close
        if broken or (sure != close and not may_end):
            ways.append(f"{lark.until(sure, never=never)} {led}")
        return ways

    def _rule(self, rule: str) -> str:
        """Add a rule, and return its name."""
        name = next((name for name, one in self.rules.items() if one == rule), "")
        name = name or f"{self._of}v{len(self.rules)}"
        self.rules[name] = rule
        return name

    def _texts(self, schema: Any, place: str) -> list[str | None]:
        """The texts that a value may be; None stands for any text."""
        found: list[str | None] = []
        followed: set[str] = set()  # references, which may lead back to themselves
        waiting = [schema]
        while waiting:
            one = waiting.pop(0)
            if not isinstance(one, Mapping):
                found.append(None)
                continue
            if isinstance(reference := one.get("$ref"), str):
                if reference not in followed:
                    followed.add(reference)
                    waiting.append(lark.referred(self._tool.schema, reference))
                continue
            plain = {word: value for word, value in one.items() if word not in _WAYS}
            kinds = kinds_of(_typed(plain), self._tool.schema)
            if kinds and "string" not in kinds:
                continue
            ways = one.get("anyOf", one.get("oneOf"))
            if isinstance(ways, list) and ways:
                self._tool.require_enforceable(one, place)
                waiting += ways
            else:
                found += self._given_texts(one, place)
        return found or [None]

    def _given_texts(self, schema: Mapping[str, Any], place: str) -> list[str | None]:
        """The texts that a schema lists; None for any text."""
        known = [one for one in given_values(schema) or () if isinstance(one, str)]
        if not known:
            self._tool.require_enforceable(schema, place, _TEXT_WORDS)
        return [*known] or [None]

    def _others(self, schema: Any, kinds: set[str], place: str) -> list[str]:
        """The rules of values that are not text, one per tag that announces them."""
        opened: dict[str, list[str]] = {}
        for kind in _KINDS:
            if kind in kinds and not (kind == "integer" and "number" in kinds):
                opened.setdefault(self._opened(kind), []).append(kind)
        return [
            f"{lark.mark(mark)} {self._value(schema, some, place)} {self._close}"
            for mark, some in opened.items()
        ]

    def _opened(self, kind: str) -> str:
        """The mark before a value, which may name its kind."""
        text, other = self._shape.value_open, self._shape.other_open or self._shape.value_open
        same, ends = shared_ends(text, other)
        said = (text[same : len(text) - ends], other[same : len(other) - ends])
        if said != ("string", "number"):
            return other
        word = "number" if kind == "integer" else kind
        return f"{text[:same]}{word}{text[len(text) - ends :]}"

    def _value(self, schema: Any, kinds: list[str], place: str) -> str:
        """JSON, or Python literals if the template writes those."""
        whole = self._tool.schema
        wanted: dict[str, Any] = {**schema} if isinstance(schema, Mapping) else {}
        if set(kinds) != kinds_of(_typed(schema), whole):
            if "type" in wanted or not wanted:
                wanted["type"] = kinds
            else:
                wanted = {"allOf": [wanted, {"type": kinds}]}
        value = lark.json_value(lark.alone(wanted, whole), place, strict=self._tool.strict)
        rule = f"{self._of}j{len(self.rules)}"
        self.rules[rule] = value
        more = self._pythonic(schema, kinds, place)
        return f"({' | '.join([rule, *more])})"

    def _pythonic(self, schema: Any, kinds: list[str], place: str) -> list[str]:
        known = isinstance(schema, Mapping) and schema.keys() & {"enum", "const"}
        if not self._shape.pythonic or known:
            return []
        found = ['"True"', '"False"'] if "boolean" in kinds else []
        if self._shape.pythonic == "all" and {"array", "object"} & set(kinds):
            found.append(self._python.value(schema, place))
            self.rules |= self._python.rules
        return found


def _typed(schema: Any) -> Any:
    """A schema with a ``type``, which may follow from its other keywords."""
    return lark.typed(schema) if isinstance(schema, Mapping) else schema
