"""Learns from a template how its model writes calls."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

from msgspec import structs

from localspec.chat.dialects.learning.sample_turns import (
    FIRST,
    SECOND,
    SampleTurn,
    TurnWriter,
    calling_turn,
    numbered,
)
from localspec.chat.dialects.marks import (
    common_end,
    is_mark,
    split_marks,
    trimmed_end,
    trimmed_start,
)
from localspec.chat.dialects.notations import gemma
from localspec.chat.dialects.reading.known_tools import KnownTools
from localspec.chat.dialects.reading.notation_reader import envelope
from localspec.chat.dialects.shapes import HERMES, AnswerMarks, CallLayout, CallShape, Numbered
from localspec.engine.common_prefix import common_prefix

_NAME, _OTHER = FIRST.names
_KEYS = tuple(FIRST.arguments)

_SEPARATORS = ((", ", ": "), (",", ":"))  # that templates write JSON with

# What models write if their template does not write calls, or only describes them.
_QWEN = CallShape(
    style="tags",
    before=("<tool_call>", "<function="),
    after=("</function>", "</tool_call>"),
    name_end=">",
    key_open="<parameter=",
    value_open=">\n",
    other_open=">\n",
    value_close="\n</parameter>\n",
)
_ATTRIBUTES = CallShape(
    style="tags",
    before=("<tool_call>", '<function name="'),
    after=("</function>", "</tool_call>"),
    name_end='">',
    key_open='<parameter name="',
    value_open='">',
    other_open='" string="true">',
    value_close="</parameter>",
)
_LFM = CallShape("python", ("<|tool_call_start|>",), ("<|tool_call_end|>",))
_LFM_TOOLS = ("<|tool_list_start|>", "List of tools: [")
_PYTHON_TAG = CallShape("python", ("<|python_tag|>",))
_MISTRAL = CallShape("named", ("[TOOL_CALLS]",), name_end="[ARGS]")


_SPOKEN_OF = (
    _MISTRAL,
    CallShape("json", ("<|tool_call|>",)),
    CallShape("json", ("functools",)),
    CallShape(
        style="named",
        before=("<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>"),
        after=("<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>"),
        name_end="<｜tool▁sep｜>",
    ),
)


def usual_calls(template: str, learnt: CallShape | None = None) -> tuple[CallShape, ...]:
    """Notations that a model may use although its template does not write them, likely ones first.

    Args:
        template: notations whose last opening mark occurs in it are included.
        learnt: the notation that it writes; its first mark may precede other notations too.
    """
    shapes = [HERMES, _QWEN, _ATTRIBUTES, _LFM]
    spoken_of = [one for one in _SPOKEN_OF if one.before[-1] in template]
    if any(words in template for words in _LFM_TOOLS):
        spoken_of.append(_LFM)
    if learnt is not None and len(learnt.before) > 1:
        first, last = learnt.before[:1], learnt.after[-1:]
        shapes = [
            structs.replace(
                one, before=(*first, *one.before), after=(*one.after, *last), layout=None
            )
            for one in shapes
        ]
    if any(mark in template for mark in ("python_tag", "eom_id", "eot_id")):
        shapes.append(_PYTHON_TAG)
    if learnt is None:
        return tuple(dict.fromkeys((*spoken_of, *shapes)))
    return (learnt, *dict.fromkeys((*shapes, *spoken_of)))


def learnt_calls(write: TurnWriter, head: str, marks: AnswerMarks) -> AnswerMarks | None:
    """`marks` with the notation of calls, and with the form of calls that the template accepts.

    None if the template writes no calls, or if their notation is not understood.
    """
    sample = numbered(FIRST) if _named_by_id(write) else FIRST
    core = partial(_core, write, head, marks, sample=sample)
    for content in ("", None):
        for as_text in (False, True):
            turn = partial(core, as_text=as_text, content=content)
            one, two, none = turn(1), turn(2), turn(1, arguments={})
            if one is None or _OTHER in one:
                continue
            shape = _shape(one, none)
            if shape is not None and _marked(shape):
                if shape.style == "tags":
                    flags = turn(1, arguments={"zqflag": True, "zqlist": ["zqitem"]}) or ""
                    shape = structs.replace(shape, pythonic=_pythonic(flags))
                elif layout := _layout(shape, [one, two], [turn(n, sample=SECOND) for n in (1, 2)]):
                    lead = _lead_of(write, one, as_text=as_text, content=content)
                    shape = structs.replace(shape, layout=structs.replace(layout, lead=lead))
                return structs.replace(
                    marks,
                    calls=(shape,),
                    bare=not shape.before,
                    several=two is not None and _OTHER in two,
                    writes=True,
                    as_text=as_text,
                    numbered=_counted(write, shape, as_text=as_text, content=content),
                )
    return None


def _named_by_id(write: TurnWriter) -> bool:
    """Whether the template writes the id of a call, but not its name."""
    turn = write.turn(FIRST, calling_turn(FIRST, 1, as_text=False), tools=True) or ""
    return FIRST.ids[0] in turn and _NAME not in turn


def _counted(write: TurnWriter, shape: CallShape, **how: Any) -> Numbered:
    """What calls are counted over, if the template knows them by ``functions.<name>:<n>``."""
    if shape.before[-1:] != ("functions.",):
        return ""
    one, other = numbered(FIRST), numbered(replace(FIRST, names=FIRST.names[::-1]), 1)
    result = {"role": "tool", "tool_call_id": one.ids[0], "content": one.content}
    calls = calling_turn(one, 1, **how), result, calling_turn(other, 1, **how)
    turns = write.turn(one, *calls, tools=True) or ""
    return "turn" if f"functions.{_OTHER}:0" in turns else "conversation"


def _marked(shape: CallShape) -> bool:
    """Whether calls begin with a mark or with nothing, and not with a word of any text."""
    usual = any(shape.before == one.before for one in _SPOKEN_OF)
    return usual or not shape.before or any(map(is_mark, shape.before))


def _pythonic(flags: str) -> Literal["", "flags", "all"]:
    """Which values are written as Python literals."""
    if "['zqitem']" in flags:
        return "all"
    return "flags" if "True" in flags else ""


def _core(
    write: TurnWriter,
    head: str,
    marks: AnswerMarks,
    n: int,
    *,
    sample: SampleTurn = FIRST,
    **how: Any,
) -> str | None:
    """The text of `n` calls alone; None if the template writes none."""
    name, other = sample.names
    turn = write.turn(sample, calling_turn(sample, n, **how), tools=True)
    if turn is None or name not in turn or not turn.startswith(head[: len(turn)]):
        return None
    text = turn[len(head) :]
    start = text.index(name)
    for _, close in marks.thoughts:
        at = text.rfind(close, 0, start)
        if close and at >= 0:
            text, start = text[at + len(close) :], start - at - len(close)
    for mark in (*marks.content, *marks.closers):
        at = text.find(mark, 0, start)
        if at >= 0 and not text[:at].strip():
            text, start = text[at + len(mark) :], start - at - len(mark)
    for mark in marks.ends:
        at = text.rfind(mark)
        if at > text.rfind(other if n > 1 else name) and not text[at + len(mark) :].strip():
            text = text[:at]
    return text


def _layout(
    shape: CallShape, first: Sequence[str | None], second: Sequence[str | None]
) -> CallLayout | None:
    """The exact text around names and arguments; None unless it is the same for other values.

    Args:
        shape: how calls are written.
        first: the texts of one call and of two with the values of `FIRST`; None for none.
        second: the same for `SECOND`.
    """
    one, two = ((text or "").lstrip() for text in first)
    named = one.find(_NAME)
    if shape.style not in ("json", "named") or not one.startswith("".join(shape.before[:1])):
        return None
    for separators in _SEPARATORS:
        given = json.dumps(FIRST.arguments, ensure_ascii=False, separators=separators)
        at = one.find(given)
        if at < named or second[0] is None:
            continue
        after, rest = _closed(one[at + len(given) :], shape)
        joint = two.partition(given)[2].partition(_OTHER)[0] if _OTHER in two else ""
        if re.search(r"\d", joint):
            return None  # calls are numbered
        between = one[named + len(_NAME) : at]
        layout = CallLayout(one[:named], between, after, joint, separators)
        texts = [(FIRST, first), (SECOND, second)]
        if all(
            text is None or text.lstrip() == _written(layout, sample, n) + rest
            for sample, both in texts
            for n, text in enumerate(both, 1)
            if n == 1 or joint
        ):
            return layout
    return None


def _closed(text: str, shape: CallShape) -> tuple[str, str]:
    """What follows arguments: up to the last mark that closes calls, and other text after that."""
    end = len(text) - len(text.lstrip(" \n}]"))
    for mark in shape.after[: 1 + (len(shape.before) > 1)]:
        end = max(end, text.find(mark, end) + len(mark))
    end = len(text) if not text[end:].strip() else end if shape.after else len(text[:end].rstrip())
    return text[:end], text[end:]


def _written(layout: CallLayout, sample: SampleTurn, n: int) -> str:
    """The text of `n` calls with the values of a sample."""
    given = json.dumps(sample.arguments, ensure_ascii=False, separators=layout.separators)
    calls = layout.joint.join(f"{name}{layout.between}{given}" for name in sample.names[:n])
    return f"{layout.before}{calls}{layout.after}"


def _lead_of(write: TurnWriter, one: str, **how: Any) -> str | None:
    """The white space between the beginning of an answer and its calls; None if more precedes."""
    opening = write.opening(FIRST, tools=True)
    turn = write.turn(FIRST, calling_turn(FIRST, 1, **how), tools=True) or ""
    at = turn.find(one.lstrip())
    if opening is None or not turn.startswith(opening) or at < len(opening):
        return None
    lead = turn[len(opening) : at]
    return None if lead.strip() else lead


def _shape(one: str, none: str | None) -> CallShape | None:
    """The notation, from the text of one call and that of a call without arguments."""
    for attempt in (_gemma, _enveloped, _named, _python, _nested):
        shape = attempt(one)
        if shape is not None:
            return shape
    return _tagged(one, none)


def _around(one: str, start: int, end: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The marks before and after a call: those around all calls first, then those around each."""
    before, after = split_marks(_blank(one[:start])), split_marks(_blank(one[end:]))
    return tuple(dict.fromkeys(before)), tuple(one for one in dict.fromkeys(after) if is_mark(one))


def _blank(text: str) -> str:
    """`text` without the ids of calls."""
    for one in FIRST.ids:
        text = text.replace(one, " ")
    return text


def _json_values(text: str) -> list[tuple[int, int, Any]]:
    """The outermost JSON objects and lists in a text."""
    found, at = [], 0
    while (begun := re.compile(r"[\[{]").search(text, at)) is not None:
        try:
            value, end = json.JSONDecoder().raw_decode(text, begun.start())
        except (ValueError, RecursionError):
            at = begun.end()
            continue
        found.append((begun.start(), end, value))
        at = end
    return found


def _enveloped(one: str) -> CallShape | None:
    """JSON with a name and arguments."""
    for start, end, value in _json_values(one):
        keys = _keys_of(value)
        if keys is None:
            continue
        before, after = _around(one, start, end)
        first, last = _identities(value, keys[0])
        shape = CallShape("json", before, after, keys, id_before=first, id_after=last)
        calls = envelope(value, shape, KnownTools(FIRST.tools))
        if calls and calls[0].arguments == FIRST.arguments:
            return shape
    return None


def _identities(value: Any, name: str) -> tuple[str, str]:
    """The JSON key of a call's id if it precedes the name, and the key if it follows."""
    call = value[0] if isinstance(value, list) else value
    names = list(call) if isinstance(call, dict) else []
    ids = [key for key in names if call[key] in FIRST.ids or str(call[key]).isdigit()]
    if not ids or name not in names:
        return "", ""
    return (ids[0], "") if names.index(ids[0]) < names.index(name) else ("", ids[0])


def _keys_of(value: Any) -> tuple[str, str] | None:
    """The JSON keys of a call's name and its arguments."""
    if isinstance(value, list):
        return _keys_of(value[0]) if value else None
    if not isinstance(value, dict):
        return None
    if _NAME in value:
        return "", ""
    name = next((key for key, one in value.items() if one == _NAME), None)
    if name is None:
        return next((keys for one in value.values() if (keys := _keys_of(one))), None)
    given = (FIRST.arguments, json.dumps(FIRST.arguments, ensure_ascii=False))
    arguments = next((key for key, one in value.items() if one in given), None)
    return None if arguments is None else (name, arguments)


def _named(one: str) -> CallShape | None:
    """A name, then JSON."""
    named = one.find(_NAME)
    for start, end, value in _json_values(one):
        if value != FIRST.arguments or start < named:
            continue
        before, after = _around(one, named, end)
        between = _blank(one[named + len(_NAME) : start])
        marks = [
            mark for mark in split_marks(between) if not re.fullmatch(r"[:#]?\d+|```\w*|\w+", mark)
        ]
        words = [mark for mark in split_marks(one[:named]) if not is_mark(mark)]
        return CallShape(
            style="named",
            before=before,
            after=tuple(mark for mark in after if mark.strip("`")),
            name_at=len(words) if words and words[-1] in (*FIRST.ids, "function") else 0,
            name_end=" ".join(marks),
        )
    return None


def _gemma(one: str) -> CallShape | None:
    """Gemma's own notation."""
    text = f"{_KEYS[0]}:{gemma.QUOTE}{FIRST.arguments[_KEYS[0]]}{gemma.QUOTE}"
    named = one.find(_NAME + "{")
    if named < 0 or text not in one:
        return None
    end = one.rfind("}") + 1
    before, after = _around(one, named, end)
    return CallShape("gemma", before, after)


def _python(one: str) -> CallShape | None:
    """A call in Python's syntax."""
    found = re.search(rf"\[?{_NAME}\(\s*{_KEYS[0]}\s*=", one)
    if found is None:
        return None
    end = one.rfind(")") + 1
    end += one[end : end + 1] == "]"
    before, after = _around(one, found.start(), end)
    return CallShape("python", before, after, raw=True)


def _nested(one: str) -> CallShape | None:
    """Tags that are named after the arguments."""
    key, value = _KEYS[0], FIRST.arguments[_KEYS[0]]
    found = re.search(
        rf"{_NAME}(?P<end>\W{{0,60}}?)(?P<ns>[^\w\s]{{0,60}}\S{{0,60}}?)<{key}>{value}(?P=ns)</{key}>",
        one,
    )
    if found is None:
        return None
    last = f"</{_KEYS[-1]}>"
    end, ns = one.rfind(last) + len(last), found["ns"]
    before, after = (
        tuple(ns + part.strip() for part in text.split(ns or "\0") if part.strip())
        for text in (one[: found.start()], one[end:])
    )
    return CallShape(
        style="nested", before=before, after=after, name_end=found["end"] or '">', key_open=ns + "<"
    )


def _tagged(one: str, none: str | None) -> CallShape | None:
    """A name and values as tags."""
    named = one.find(_NAME)
    places = _places(one, named)
    if places is None or none is None or _NAME not in none:
        return None
    (k1, v1), (k2, _), (k3, v3), (_, v4) = places
    to_first = one[named + len(_NAME) : k1[0]]
    bare = none[none.index(_NAME) + len(_NAME) :]
    name_end = trimmed_end(to_first[: common_prefix(to_first, bare)])
    if name_end and not to_first[len(name_end) :].strip():
        name_end = ""
    between = one[v1[1] : k2[0]]
    key_open = to_first[len(name_end) :].strip()
    if not between.endswith(key_open) or not key_open:
        key_open = trimmed_start(to_first[len(to_first) - common_end(to_first, between) :]).strip()
    value_close = between[: len(between) - len(key_open)]
    tail = one[v4[1] :]
    closing = value_close.strip()
    if not key_open or not closing or not tail.lstrip().startswith(closing):
        return None
    end = v4[1] + tail.index(closing) + len(closing)
    before, after = _around(one, named, end)
    return CallShape(
        style="tags",
        before=before,
        after=after,
        name_end=name_end.strip(),
        key_open=key_open,
        value_open=one[k1[1] : v1[0]],
        other_open=one[k3[1] : v3[0]],
        value_close=value_close,
    )


def _places(one: str, at: int) -> list[tuple[tuple[int, int], tuple[int, int]]] | None:
    """The positions of the arguments' names and values, in order."""
    found = []
    for key, value in FIRST.arguments.items():
        start = one.find(key, at)
        if start < 0:
            return None
        end = start + len(key)
        written = (
            [str(value)]
            if not isinstance(value, dict)
            else [json.dumps(value), json.dumps(value, separators=(",", ":")), repr(value)]
        )
        ways = [(place, len(way)) for way in written if (place := one.find(way, end)) >= 0]
        if not ways:
            return None
        place, length = min(ways)
        found.append(((start, end), (place, place + length)))
        at = place + length
    return found
