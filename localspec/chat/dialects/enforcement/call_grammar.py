"""Grammars that restrict calls to a model's own notation, and their arguments to schemas."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from localspec.chat.dialects.enforcement.tag_rules import tagged
from localspec.chat.dialects.enforcement.value_rules import (
    CallableTool,
    GemmaRules,
    NestedRules,
    PythonArguments,
)
from localspec.chat.dialects.marks import is_mark, split_marks
from localspec.chat.dialects.shapes import HERMES, AnswerMarks, CallLayout, CallShape
from localspec.engine.grammars import lark

_BASE = {
    "blank": "BLANK?",
    "BLANK": r"/[ \n]{1,2}/",
    "wide": "WIDE?",
    "WIDE": r"/[ \n]{1,6}/",
    "NUMBER": "/[0-9]{1,4}/",
    "ID": r"/[A-Za-z0-9_\-]{1,64}/",
}
_ENDED = ("tags", "python")  # styles in which a call's rule includes the first mark after it
Ways = dict[str, str]
"""The call rule of each tool, by tool name."""


@dataclass(frozen=True, slots=True)
class CallGrammar:
    """The grammar of one or several calls, in parts.

    Attributes:
        begin: the mark before calls; empty if they have none, or if it is a word of any text.
        rest: what follows that mark.
        whole: an answer that consists of calls.
        lead: what may precede such an answer.
        rules: all rules that these refer to.
    """

    begin: str
    rest: str
    whole: str
    lead: str
    rules: Mapping[str, str]

    def required(self) -> str:
        """A grammar of answers that must be calls."""
        return lark.grammar(f"{self.lead} {self.whole}", **self.rules)

    def awaited(self) -> str:
        """A grammar of the text after the first mark of a call."""
        return lark.grammar(self.rest, **self.rules)

    def or_else(self, answer: str) -> str:
        """A grammar of answers that are calls, or follow the rule `answer`."""
        start = f"{self.lead} (calls | {answer})"
        return lark.grammar(start, calls=self.whole, **self.rules)


def call_grammar(
    marks: AnswerMarks, tools: Sequence[CallableTool], *, several: bool, thinks: bool = False
) -> CallGrammar:
    """The grammar of calls in a model's own notation.

    Args:
        marks: how the model writes calls.
        tools: those that may be called.
        several: an answer may have more than one call.
        thinks: a thought may precede the calls.

    Raises:
        SchemaError: a keyword must be enforced, but cannot be in this notation.
    """
    rules = dict(_BASE)
    if marks.speech in ("harmony", "functionary"):
        return _CHANNELS[marks.speech](_arguments(tools, rules), rules, several, thinks)
    shape = next(iter(marks.calls), HERMES)
    ways = _ways(shape, tools, rules)
    if marks.speech == "muse":
        return _muse(shape, ways, rules, several, thinks)
    rules["one"] = " | ".join(dict.fromkeys(ways.values()))
    if shape.style == "python":
        rules["ended"] = _python_ended(shape, several=several)
    if shape.layout is not None:
        begin, rest = _laid_out(shape, shape.layout, several=several)
    else:
        begin, rest = _divided(shape, rules, several=several)
    lead = _lead(marks, shape.layout, thinks=thinks)
    whole = f"{_mark(shape, begin)} {rest}" if begin else rest
    return CallGrammar(begin if is_mark(begin) else "", rest, whole, lead, rules)


def _lead(marks: AnswerMarks, layout: CallLayout | None, *, thinks: bool) -> str:
    """What may precede calls: white space, a thought, an empty answer."""
    if thinks:
        lead = f"wide {_thought(marks)}"
    elif layout is not None and layout.lead is not None:
        lead = _text(layout.lead)
    else:
        lead = "wide"
    if marks.content and marks.closers:
        lead += f" ({lark.mark(marks.content[0])} {lark.mark(marks.closers[0])} blank)?"
    return lead


def _laid_out(shape: CallShape, layout: CallLayout, *, several: bool) -> tuple[str, str]:
    """The first mark, and the rest: one or several calls exactly as the template writes them."""
    begin = shape.before[0] if shape.before else ""
    after, more = _text(layout.after), ""
    if several and layout.joint:
        # The closing marks of a call are one rule, whether another call follows or not.
        closed = layout.joint.startswith(layout.after)
        rest = layout.joint.removeprefix(layout.after) if closed else layout.joint
        more = f"({after if closed else ''} {_text(rest)} one)*"
    return begin, f"{_text(layout.before.removeprefix(begin))} one {more} {after}"


def _text(text: str) -> str:
    """A text with its marks; empty for an empty text."""
    return lark.mark(text) if text else ""


def _mark(shape: CallShape, text: str) -> str:
    """The terminal of a mark.

    llguidance takes the longest possible terminal, and never goes back. So the mark before every
    tag of a nested notation is a terminal of its own.
    """
    ahead = shape.key_open.removesuffix("<") if shape.style == "nested" else ""
    if not ahead or not text.startswith(ahead):
        return lark.mark(text)
    return f"{lark.mark(ahead)} {lark.mark(text.removeprefix(ahead))}"


def _thought(marks: AnswerMarks) -> str:
    """A thought that the model itself opens."""
    begin, close = next(iter(marks.thoughts), ("", ""))
    return f"({lark.mark(begin)} {lark.until(close)} wide)?" if begin else ""


def _ways(shape: CallShape, tools: Sequence[CallableTool], rules: dict[str, str]) -> Ways:
    """The call rule of each tool; further rules are added to `rules`."""
    ways = {}
    for i, tool in enumerate(tools):
        body, own = _BODIES[shape.style](shape, tool, f"t{i}")
        rules |= {f"t{i}": body, **own}
        ways[tool.name] = f"t{i}"
    return ways


def _divided(shape: CallShape, rules: dict[str, str], *, several: bool) -> tuple[str, str]:
    """The first mark, and the rest: one or several calls with their marks."""
    begin, *lead = shape.before or ("",)
    # With two marks, the outer pair encloses all calls, and the inner pair each call.
    wrapped = len(shape.before) > 1 and shape.style != "gemma"
    close = [_mark(shape, one) for one in shape.after[: 1 + wrapped]]
    opened = [_mark(shape, one) for one in lead]
    if shape.style == "named" and shape.name_at and opened:
        opened[-1] = f"ID? {opened[-1]}"
    ends = close[:1] if shape.style not in _ENDED else []
    unit = " blank ".join([*opened, _body(shape, several=several), *ends])
    rules["unit"] = unit
    outer = "".join(f" blank {one}" for one in close[1:])
    return begin, f"blank unit{_repeated(shape, close, several=several)}{outer} blank"


def _body(shape: CallShape, *, several: bool) -> str:
    if shape.style == "python":
        return '"[" one'
    if shape.style != "json":
        return "one"
    lines = " (blank one)*" if several and shape.before else ""
    more = ' (blank "," wide one)*' if several else ""
    return f'(one{lines} | "[" wide one{more} wide "]")'


def _python_ended(shape: CallShape, *, several: bool) -> str:
    """What follows the arguments of a call: another call, or the mark after all of them."""
    more = ' | ")" "," " "? one' if several else ""
    return f'")" "]" {" ".join(["blank", *map(lark.mark, shape.after[:1])])}{more}'


def _repeated(shape: CallShape, close: Sequence[str], *, several: bool) -> str:
    """What follows a call if there are more: either all marks again, or those around one call."""
    if not several or not shape.before or shape.style == "python":
        return ""
    begin = _mark(shape, shape.before[0])
    if len(shape.before) == 1 or shape.style == "gemma":
        return f" (blank {begin} blank unit)*"
    ends = "".join(f"{one} blank " for one in close[1:2])
    return f" (blank ({ends}{begin} blank)? unit)*"


# The text between the marks, by notation


def _json(shape: CallShape, tool: CallableTool, of: str) -> tuple[str, dict[str, str]]:
    if shape.layout is not None:
        return _placed(shape.layout, json.dumps(tool.name, ensure_ascii=False)[1:-1], tool, of)
    name_key, args_key = shape.keys
    rules = {f"{of}a": lark.json_value(tool.schema, tool.place, strict=tool.strict)}
    if not name_key:
        return f'"{{" blank {_quoted(tool.name)} blank ":" blank {of}a blank "}}"', rules
    members = [
        _identity(shape.id_before, first=True),
        f'{_quoted(name_key)} blank ":" blank {_quoted(tool.name)} blank ","'
        f' blank {_quoted(args_key)} blank ":" blank {of}a',
        _identity(shape.id_after, first=False),
    ]
    return f'"{{" blank {" ".join(filter(None, members))} blank "}}"', rules


def _placed(
    layout: CallLayout, name: str, tool: CallableTool, of: str
) -> tuple[str, dict[str, str]]:
    """A name and arguments as a template writes them."""
    value = lark.json_value(
        tool.schema, tool.place, strict=tool.strict, separators=layout.separators
    )
    return f"{lark.literal(name)} {_text(layout.between)} {of}a", {f"{of}a": value}


def _identity(key: str, *, first: bool) -> str:
    """A call's id, if the template writes one."""
    if not key:
        return ""
    member = f'{_quoted(key)} blank ":" blank "\\"" ID "\\""'
    return f'({member} blank "," blank)?' if first else f'(blank "," blank {member})?'


def _named(shape: CallShape, tool: CallableTool, of: str) -> tuple[str, dict[str, str]]:
    if shape.layout is not None:
        return _placed(shape.layout, tool.name, tool, of)
    rules = {f"{of}a": lark.json_value(tool.schema, tool.place, strict=tool.strict)}
    first, *more = (lark.mark(one) for one in split_marks(shape.name_end) or [""])
    between = " ".join([first, *(f"ID? {one}" for one in more)]) if shape.name_end else ""
    number = '(":" NUMBER)?' if shape.before[-1:] == ("functions.",) else ""
    return f"{lark.literal(tool.name)} {number} {between} blank {of}a", rules


def _python(shape: CallShape, tool: CallableTool, of: str) -> tuple[str, dict[str, str]]:
    values = PythonArguments(tool, of, raw=shape.raw, close="".join(shape.after[:1]))
    parts, rest = values.arguments()
    inside = values.members(parts, "ended", rest=rest)
    return f"{lark.literal(tool.name + '(')} {inside}", values.rules


def _gemma(_shape: CallShape, tool: CallableTool, of: str) -> tuple[str, dict[str, str]]:
    values = GemmaRules(tool, of)
    parts, rest = values.arguments()
    # This model's template sorts the arguments by name.
    parts.sort(key=lambda one: one[0].lower())
    return f"{lark.literal(tool.name)} {values.object(parts, rest=rest)}", values.rules


def _nested(shape: CallShape, tool: CallableTool, of: str) -> tuple[str, dict[str, str]]:
    values = NestedRules(tool, of, shape.key_open.removesuffix("<"))
    parts, _ = values.arguments()  # other names look like closing tags
    inside = values.members(parts, "")
    return f"{lark.literal(tool.name)} {lark.mark(shape.name_end)} {inside}", values.rules


def _quoted(text: str) -> str:
    """A text in JSON's quotes, as a literal."""
    return lark.literal(json.dumps(text, ensure_ascii=False))


_BODIES = {
    "json": _json,
    "named": _named,
    "tags": tagged,
    "python": _python,
    "gemma": _gemma,
    "nested": _nested,
}

# Answers that are messages with headers


def _arguments(tools: Sequence[CallableTool], rules: dict[str, str]) -> Ways:
    """The rule of each tool's JSON arguments; further rules are added to `rules`."""
    for i, tool in enumerate(tools):
        rules[f"t{i}"] = lark.json_value(tool.schema, tool.place, strict=tool.strict)
    return {tool.name: f"t{i}" for i, tool in enumerate(tools)}


def _harmony(ways: Ways, rules: dict[str, str], _several: bool, thinks: bool) -> CallGrammar:
    """gpt-oss: a call ends the answer; its recipient is named before or after the channel."""
    channel, message = lark.mark("<|channel|>"), lark.mark("<|message|>")
    rules["kind"] = f'" "? {lark.mark("<|constrain|>")}? "json"?'
    named = [
        (f"{lark.literal(name)} kind {message} {way}", lark.literal(name), way)
        for name, way in ways.items()
    ]
    rules["after"] = " | ".join(one for one, _, _ in named)
    rules["ahead"] = " | ".join(
        f'{name} {channel} "commentary" kind {message} {way}' for _, name, way in named
    )
    begin = "<|channel|>commentary to=functions."
    whole = f'({lark.mark(begin)} after | " to=functions." ahead)'
    lead = (
        f'({channel} "analysis" {message} {lark.until("<|end|>")}'
        f" {lark.mark('<|start|>assistant')})?"
    )
    return CallGrammar(begin, "after", whole, lead if thinks else "", rules)


def _functionary(ways: Ways, rules: dict[str, str], several: bool, _thinks: bool) -> CallGrammar:
    """A name, a line break and JSON; a first call has no mark that tells it from an answer."""
    one = " | ".join(f"{lark.literal(name + chr(10))} {way}" for name, way in ways.items())
    rules["one"] = one
    whole = f"one {'(' + lark.mark('>>>') + ' one)*' if several else ''}"
    return CallGrammar("", whole, whole, "", rules)


def _muse(
    shape: CallShape, ways: Ways, rules: dict[str, str], several: bool, thinks: bool
) -> CallGrammar:
    """Both the header of a call and the call itself name the tool."""
    message, start = lark.mark("<|message|>"), lark.mark("<|eom|><|start|>assistant")
    rules["one"] = " | ".join(ways.values())
    begin, rest = _divided(shape, rules, several=False)
    blocks = []
    for name, way in ways.items():
        block = f"{lark.mark(shape.before[0])} blank {lark.mark(shape.before[1])} {way}"
        ends = " blank ".join(lark.mark(one) for one in shape.after[1:])
        blocks.append(f"{lark.literal(f' to={name}')} {message} {block} blank {ends}")
    rules["message"] = " | ".join(blocks)
    lead = f'(" to=self" {message} {lark.until("<|eom|>")} {lark.mark("<|start|>assistant")})?'
    whole = f"message {f'({start} message)*' if several else ''}"
    return CallGrammar(begin, rest, whole, lead if thinks else "", rules)


_CHANNELS = {"harmony": _harmony, "functionary": _functionary}
