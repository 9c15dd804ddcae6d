"""Untrusted text made harmless: nothing that a model writes may steer the terminal."""

from __future__ import annotations

import re

# Line separators other than a line feed. Textual counts lines with `str.splitlines`, the Markdown
# parser only at line feeds: left as they are, the two would disagree while a text streams in.
_LINE_BREAKS = re.compile("\r\n|[\u2028\u2029\x85\x0b\x0c]")
# What has no picture of its own: control characters, halves of surrogate pairs (they cannot be
# encoded for the terminal), direction overrides (they make text read differently than it is).
_HARMFUL = re.compile("[\x00-\x08\x0d-\x1f\x7f-\x9f\ud800-\udfff\u202a-\u202e\u2066-\u2069\ufeff]")
_PICTURES = 0x2400
_DELETE_PICTURE = "\u2421"
_REPLACEMENT = "\ufffd"


def safe(text: str) -> str:
    """`text` without anything that a terminal would obey; control characters become pictures.

    Works piece by piece: the pieces' results joined equal the result of the whole, except that a
    carriage return at the very end of a piece stays visible.
    """
    if text.isascii() and text.isprintable():
        return text
    return _HARMFUL.sub(_picture, _LINE_BREAKS.sub("\n", text))


def _picture(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code < 0x20:
        return chr(_PICTURES + code)
    return _DELETE_PICTURE if code == 0x7F else _REPLACEMENT


def one_line(text: str, limit: int = 200) -> str:
    """`text` made safe, on one line, cut to `limit` characters."""
    line = " ".join(safe(text).split())
    return line if len(line) <= limit else line[: limit - 1] + "…"
