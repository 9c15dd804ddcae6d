"""Functionary 3.2: ``all`` or a tool's name, a line break or JSON, and ``>>>`` between messages."""

from __future__ import annotations

import re

from localspec.chat.dialects.reading.headers import HeaderNotation, MessageHeader
from localspec.chat.dialects.reading.known_tools import KnownTools

_NEXT = ">>>"
_ENDS = ("<|eot_id|>", "<|eom_id|>", "<|end_of_text|>")
_NAME = re.compile(r"(?:>>>)?([\w.\-]{1,200})\n")
_BEGINS = re.compile(r"(?:>{1,3})?[\w.\-]{0,200}\Z")


def matches(template: str) -> bool:
    """Whether a template uses this notation."""
    return _NEXT in template and "all\\n" in template


def _read(
    text: str, tools: KnownTools, _begun: bool, final: bool
) -> tuple[MessageHeader, int] | None:
    found = _NAME.match(text)
    if found is None:
        if not final and _BEGINS.match(text):
            return None
        return MessageHeader("content"), 0
    if found[1] == "all":
        return MessageHeader("content"), found.end()
    name = tools.declared(found[1])
    if name is None and tools.known is not None:
        return MessageHeader("content"), 0
    return MessageHeader("call", name or found[1]), found.end()


def _stop(text: str, at: int, tools: KnownTools, final: bool) -> int:
    if not text.startswith(_NEXT, at):
        return next(len(mark) for mark in _ENDS if text.startswith(mark, at))
    found = _NAME.match(text, at)
    if found is None:
        return -1 if not final and _BEGINS.match(text, at) else 0
    known = found[1] == "all" or tools.declared(found[1]) or tools.known is None
    return len(_NEXT) if known else 0


def _open(prompt: str) -> MessageHeader | None:
    return MessageHeader("content") if prompt.endswith("all\n") else None


HEADERS = HeaderNotation(stops=(_NEXT, *_ENDS), read=_read, stop_at=_stop, open=_open, message="\n")
