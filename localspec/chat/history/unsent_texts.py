"""The unsent texts of several windows in one: each has lines, and replaces only its own."""

from __future__ import annotations

from localspec.safe_text import encodable


def replaced(stored: str, before: str, text: str) -> str:
    """What is stored once `text` is in place of the lines `before`.

    Args:
        stored: the lines of all windows.
        before: what one window last read or wrote; where that is not stored, `text` comes last.
        text: what this window holds now; empty to take its lines away.
    """
    whole, old, new = map(_lines, (stored, encodable(before), encodable(text)))
    if old not in whole:
        old = _lines("")
    head, _, tail = whole.rpartition(old)
    return (head + new + tail)[1:-1]


def _lines(text: str) -> str:
    """`text` with the ends of lines on both sides, where nothing is a single one."""
    return f"\n{text}\n" if text else "\n"
