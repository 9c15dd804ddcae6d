"""Keys as Windows gives them to Textual, where a character beyond U+FFFF takes two records.

Textual reads 1024 records at once, and its thread ends at a half of such a character. A long paste
with an emoji may be cut there, and the app would hear no key any more.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

_KEY_EVENT = 1
_UNKNOWN = "\ufffd"


def without_halves(records: Iterable[Any]) -> str:
    """Take half characters out of the pressed keys: one at the end, which is returned, waits.

    Others, whose second half never came, become U+FFFD.

    Args:
        records: structures ``INPUT_RECORD``, which change.
    """
    first = None
    for record in records:
        key = record.Event.KeyEvent
        if record.EventType != _KEY_EVENT or not key.bKeyDown:
            continue
        if key.dwControlKeyState and not key.wVirtualKeyCode:
            continue  # Textual passes over these
        half = key.uChar.UnicodeChar
        ends = "\udc00" <= half <= "\udfff"
        if ends and first is None:
            key.uChar.UnicodeChar = _UNKNOWN
        elif first is not None and not ends:
            first.uChar.UnicodeChar = _UNKNOWN
        first = key if "\ud800" <= half < "\udc00" else None
    if first is None:
        return ""
    first.bKeyDown = False  # a key that is released has no character
    return str(first.uChar.UnicodeChar)


class WholeCharacters:
    """In place of ``kernel32`` in Textual's driver: reads no half characters.

    Args:
        kernel32: what does the reading, and all else.
    """

    def __init__(self, kernel32: Any) -> None:
        self._kernel32 = kernel32
        self._held = ""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kernel32, name)

    def ReadConsoleInputW(  # noqa: N802 - the name that Textual calls
        self, console: int, records: Any, most: int, count: Any
    ) -> Any:
        """Read at most `most` records; the half character of the last call comes first."""
        array, read, held = records._obj, count._obj, bool(self._held)  # noqa: SLF001 - of `byref`
        done = self._kernel32.ReadConsoleInputW(console, records, most - held, count)
        if held:
            for at in range(read.value, 0, -1):
                array[at] = array[at - 1]
            array[0].EventType, key = _KEY_EVENT, array[0].Event.KeyEvent
            key.bKeyDown, key.dwControlKeyState, key.uChar.UnicodeChar = True, 0, self._held
            read.value += 1
        self._held = without_halves(array[: read.value])
        return done
