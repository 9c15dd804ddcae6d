"""Muse: ``to=self<|message|>…<|eom|>`` is a thought, ``to=user`` an answer, else it is a call."""

from __future__ import annotations

import re
from functools import partial

from localspec.chat.dialects.reading.headers import (
    HeaderNotation,
    MessageHeader,
    begun_message,
    closing,
)
from localspec.chat.dialects.reading.known_tools import KnownTools
from localspec.chat.dialects.shapes import CallShape

_START, _MESSAGE = "<|start|>", "<|message|>"
_ENDS = ("<|eom|>", "<|eot|>")
_WHOLE = re.compile(
    rf"\s*(?:{re.escape(_START)})?\s*(?:assistant)?\s*(?:to=(?P<to>[^\s<]+))?\s*(?P<message>{re.escape(_MESSAGE)})?"
)
_LONGEST = 300
CALLS = CallShape(
    style="tags",
    before=("<atem:function_calls>", '<atem:invoke name="'),
    after=("</atem:invoke>", "</atem:function_calls>"),
    name_end='">',
    key_open='<atem:parameter name="',
    value_open='">',
    other_open='">',
    value_close="</atem:parameter>\n",
)


def matches(template: str) -> bool:
    """Whether a template uses this notation."""
    return all(mark in template for mark in ("to=self", _MESSAGE, "<|eom|>", "<|start|>assistant"))


def _read(
    text: str, tools: KnownTools, begun: bool, final: bool
) -> tuple[MessageHeader, int] | None:
    found = _WHOLE.match(text)
    if found is None:  # impossible: every part is optional
        return MessageHeader("content"), 0
    rest = text[found.end() :]
    if not found["message"] and not final and len(text) < _LONGEST:
        marks = (_START, _MESSAGE, *_ENDS, "assistant", "to=")
        if not rest or any(mark.startswith(rest) for mark in marks):
            return None
    to = found["to"]
    if to == "self":
        return MessageHeader("thought"), found.end()
    if to is None or to == "user":
        return MessageHeader("content"), found.end() if to or found["message"] or begun else 0
    return MessageHeader("call", tools.declared(to) or to), found.end()


HEADERS = HeaderNotation(
    stops=(*_ENDS, _START),
    read=_read,
    stop_at=partial(closing, _ENDS),
    open=partial(begun_message, _START, _MESSAGE, "to=self"),
    own=(_START,),
    message=_MESSAGE,
    texts=(*_ENDS, _START, _MESSAGE),
)
