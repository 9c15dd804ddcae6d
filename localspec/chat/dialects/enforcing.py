"""Grammars that hold calls to a model's own notation, and their arguments to schemas."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from localspec.chat.dialects.shapes import AnswerMarks, CallShape
from localspec.engine import lark

_HERMES = CallShape("json", ("<tool_call>",), ("</tool_call>",))


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


@dataclass(frozen=True, slots=True)
class CallGrammar:
    """The grammar of one call or several.

    Attributes:
        begin: the mark with which calls begin; empty where they have none.
        rest: what follows that mark.
        rules: all that `rest` refers to.
    """

    begin: str
    rest: str
    rules: Mapping[str, str]

    def required(self) -> str:
        """A grammar of answers that are calls."""
        return lark.grammar(self._whole(), **self.rules)

    def awaited(self) -> str:
        """A grammar of what follows the first mark of a call."""
        return lark.grammar(self.rest, **self.rules)

    def or_else(self, answer: str) -> str:
        """A grammar of answers that are calls, or conform to a rule."""
        return lark.grammar(f"calls | {answer}", calls=self._whole(), **self.rules)

    def _whole(self) -> str:
        return f"blank {lark.mark(self.begin)} {self.rest}" if self.begin else self.rest


def enforceable(marks: AnswerMarks) -> bool:
    """Whether calls can be held to the model's own notation."""
    styles = ("json", "named", "tags")
    return marks.speech == "marks" and bool(marks.calls) and marks.calls[0].style in styles


def call_grammar(
    marks: AnswerMarks, tools: Sequence[CallableTool], *, several: bool
) -> CallGrammar:
    """The grammar of calls, in Hermes' notation where the model's own is not enforceable.

    Args:
        marks: how the model writes calls.
        tools: those that may be called.
        several: an answer may have more than one call.
    """
    shape = marks.calls[0] if enforceable(marks) else _HERMES
    rules = {"blank": "BLANK?", "BLANK": r"/[ \n]{1,2}/", "NUMBER": "/:[0-9]+/"}
    ways = []
    for i, tool in enumerate(tools):
        body, own = _BODIES[shape.style](shape, tool, f"t{i}")
        rules |= {f"t{i}": body, **own}
        ways.append(f"t{i}")
    rules["one"] = " | ".join(ways)
    begin, *lead = shape.before or ("",)
    close = [lark.mark(one) for one in shape.after[:2]]
    unit = " blank ".join([*(lark.mark(one) for one in lead), _body(shape, several=several)])
    unit += "".join(f" blank {one}" for one in close[:1])
    rules["unit"] = unit
    rest = f"blank unit{_repeated(shape, several=several)}"
    rest += "".join(f" blank {one}" for one in close[1:])
    return CallGrammar(begin, f"{rest} blank", rules)


def _body(shape: CallShape, *, several: bool) -> str:
    if shape.style != "json":
        return "one"
    more = ' (blank "," blank one)*' if several else ""
    return f'(one | "[" blank one{more} blank "]")'


def _repeated(shape: CallShape, *, several: bool) -> str:
    """What follows a call where there are more: its marks once more, all or those of one call."""
    if not several or not shape.before:
        return ""
    begin = lark.mark(shape.before[0])
    if len(shape.before) == 1:
        return f" (blank {begin} blank unit)*"
    close = "".join(f"{lark.mark(one)} blank " for one in shape.after[1:2])
    return f" (blank ({close}{begin} blank)? unit)*"


def _json(shape: CallShape, tool: CallableTool, of: str) -> tuple[str, dict[str, str]]:
    name_key, args_key = shape.keys
    rules = {f"{of}a": lark.json_value(tool.schema, tool.place, strict=tool.strict)}
    if not name_key:
        return f'"{{" blank {_quoted(tool.name)} blank ":" blank {of}a blank "}}"', rules
    head = f'{_quoted(name_key)} blank ":" blank {_quoted(tool.name)}'
    tail = f'{_quoted(args_key)} blank ":" blank {of}a'
    return f'"{{" blank {head} blank "," blank {tail} blank "}}"', rules


def _named(shape: CallShape, tool: CallableTool, of: str) -> tuple[str, dict[str, str]]:
    rules = {f"{of}a": lark.json_value(tool.schema, tool.place, strict=tool.strict)}
    marks = "".join(f" {lark.mark(one)}" for one in shape.name_end.split())
    return f"{lark.literal(tool.name)} NUMBER?{marks} blank {of}a", rules


def _tagged(shape: CallShape, tool: CallableTool, of: str) -> tuple[str, dict[str, str]]:
    rules: dict[str, str] = {}
    properties = tool.schema.get("properties")
    needed = tool.schema.get("required") or ()
    parts = []
    for j, (name, schema) in enumerate((properties or {}).items()):
        text = isinstance(schema, Mapping) and schema.get("type") == "string"
        opened = shape.value_open if text else shape.other_open or shape.value_open
        value = f"{of}v{j}"
        if text and "enum" not in schema:
            rules[f"{value}[suffix={lark.literal(shape.value_close)}]"] = r"/(?s:.*)/"
            closed = ""
        elif text:
            values = " | ".join(lark.literal(str(one)) for one in schema["enum"])
            rules[value], closed = values, f" {lark.literal(shape.value_close.rstrip())}"
        else:
            place = f"{tool.place}.properties.{name}"
            rules[value] = lark.json_value(
                {**schema, **_shared(tool.schema)}, place, strict=tool.strict
            )
            closed = f" {lark.literal(shape.value_close.rstrip())}"
        key = f"{lark.literal(shape.key_open + name + opened)} {value}{closed} blank"
        parts.append(key if name in needed else f"({key})?")
    head = (
        f"{lark.literal(tool.name)} {lark.literal(shape.name_end)}"
        if shape.name_end
        else lark.literal(tool.name)
    )
    return " blank ".join([head, *parts]), rules


def _shared(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {name: schema[name] for name in lark.SHARED if name in schema}


def _quoted(text: str) -> str:
    """A text as JSON has it, as a literal."""
    return lark.literal(json.dumps(text, ensure_ascii=False))


_BODIES = {"json": _json, "named": _named, "tags": _tagged}
