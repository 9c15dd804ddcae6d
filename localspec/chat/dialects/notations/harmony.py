"""gpt-oss: ``<|channel|>analysis<|message|>…<|end|>``; a call's header has ``to=functions.name``.

The recipient may be named before or after the channel, and on any channel. Marks of a header may be
missing. Text without a header is for the user. A mark where none belongs is only named.
"""

from __future__ import annotations

import re
from functools import partial

from localspec.chat.dialects.marks import only_named
from localspec.chat.dialects.reading.headers import (
    HeaderNotation,
    MessageHeader,
    begun_message,
    closing,
)
from localspec.chat.dialects.reading.known_tools import KnownTools

_START, _CHANNEL, _MESSAGE, _CONSTRAIN = "<|start|>", "<|channel|>", "<|message|>", "<|constrain|>"
_ENDS = ("<|end|>", "<|return|>", "<|call|>")
# What follows a mark that begins a header.
_FOLLOWING = {
    _START: ("assistant", "to=", _CHANNEL, _MESSAGE),
    _CHANNEL: ("analysis", "commentary", "final"),
}
# What follows one that ends a message.
_HEADER = (*_FOLLOWING, _MESSAGE, "to=", "assistant<", "assistant to=")
_TO = r"to=(?P<{}>[^\s<]+)"
# A header, perhaps incomplete: role, recipient, channel, recipient, content type of the body. Some
# headers repeat the channel after the recipient, or name the tool as the content type.
_WHOLE = re.compile(
    rf"\s*(?:{re.escape(_START)})?\s*(?:assistant)?\s*(?:{_TO.format('before')})?\s*"
    rf"(?:{re.escape(_CHANNEL)}\s*(?P<channel>\w*)|(?P<bare>analysis|commentary|final)(?=\s*<))?"
    rf"\s*(?:{_TO.format('after')}\s*(?:{re.escape(_CHANNEL)}\s*\w*)?)?\s*"
    rf"(?:{re.escape(_CONSTRAIN)}\s*[\w.\-]*)?\s*(?:(?:json|code)\b)?\s*"
    rf"(?P<message>{re.escape(_MESSAGE)})?"
)
_LONGEST = 300
_WORDS = ("assistant", "to=", "json", "code", "analysis<", "commentary<", "final<")


def matches(template: str) -> bool:
    """Whether a template uses this notation."""
    return all(mark in template for mark in (_CHANNEL, _MESSAGE, _START, "analysis"))


def _read(
    text: str, tools: KnownTools, begun: bool, final: bool
) -> tuple[MessageHeader, int] | None:
    found = _WHOLE.match(text)
    if found is None:  # impossible: every part is optional
        return MessageHeader("content"), 0
    rest = text[found.end() :].rstrip()
    if not found["message"] and not final and len(text) < _LONGEST:
        marks = (_START, _CHANNEL, _MESSAGE, _CONSTRAIN, *_ENDS, *_WORDS)
        if not rest or any(mark.startswith(rest) for mark in marks):
            return None
    header = _sorted(found, tools)
    if header is None:  # without a header, the text is for the user
        if begun and not rest:
            return None
        blank = len(text) - len(text.lstrip())
        return MessageHeader("content"), blank if not begun else found.end()
    return header, found.end()


def _sorted(found: re.Match[str], tools: KnownTools) -> MessageHeader | None:
    channel = found["channel"]
    if channel is None and found["message"]:
        channel = found["bare"]
    recipient = found["before"] or found["after"] or ""
    inward = channel == "analysis"
    if recipient and recipient not in ("user", "all", "assistant"):
        name = tools.declared(recipient)
        if name is None and tools.known is not None and not recipient.startswith("functions"):
            return MessageHeader("thought" if inward else "content")
        plain = re.sub(r"\Afunctions?[.:]", "", recipient)
        return MessageHeader("call", (name if tools.known else None) or plain, inward)
    if channel is None and not found["message"] and not recipient:
        return None
    return MessageHeader("thought" if inward else "content")


def _named(text: str, final: bool) -> bool | None:
    mark = next(one for one in (*_ENDS, *_FOLLOWING) if text.startswith(one))
    after, begins = text[len(mark) :], mark in _FOLLOWING
    rest, following = after.lstrip(), _FOLLOWING.get(mark, _HEADER)
    if rest.startswith(following):
        header = not begins and rest.startswith(tuple(_FOLLOWING))
        return _named(rest, final) if header else False
    if any(one.startswith(rest) for one in following):
        return False if final else None
    # Where a header is missing, its text follows at once, or on another line.
    return begins or only_named(after)


HEADERS = HeaderNotation(
    stops=(*_ENDS, _START, _CHANNEL),
    read=_read,
    stop_at=partial(closing, _ENDS),
    open=partial(begun_message, _START, _MESSAGE, "analysis"),
    own=(_START, _CHANNEL),
    message=_MESSAGE,
    named=_named,
    texts=(*_ENDS, _START, _CHANNEL, _MESSAGE, _CONSTRAIN),
)
