"""The keys of Windows: no half of a character reaches Textual, wherever a read ends."""

from __future__ import annotations

import ctypes
import struct
from ctypes import Structure, Union, wintypes
from typing import Any

import pytest

from localspec.ui.input.windows_keys import WholeCharacters

MOST = 4


class Character(Union):
    _fields_ = [("AsciiChar", wintypes.CHAR), ("UnicodeChar", wintypes.WCHAR)]


class KeyEvent(Structure):
    _fields_ = [
        ("bKeyDown", wintypes.BOOL),
        ("wRepeatCount", wintypes.WORD),
        ("wVirtualKeyCode", wintypes.WORD),
        ("wVirtualScanCode", wintypes.WORD),
        ("uChar", Character),
        ("dwControlKeyState", wintypes.DWORD),
    ]


class Events(Union):
    _fields_ = [("KeyEvent", KeyEvent), ("Other", wintypes.SHORT * 2)]


class Record(Structure):
    _fields_ = [("EventType", wintypes.WORD), ("Event", Events)]


class Console:
    """In place of Windows: gives what was typed, each key with its release if wanted."""

    def __init__(self, typed: str, *, released: bool) -> None:
        encoded = typed.encode("utf-16-le", "surrogatepass")
        units = map(chr, struct.unpack(f"<{len(encoded) // 2}H", encoded))
        self.left = [(one, down) for one in units for down in (True, False)[: 1 + released]]

    def ReadConsoleInputW(  # noqa: N802 - Windows calls it so
        self, _: int, records: Any, most: int, count: Any
    ) -> int:
        given, self.left = self.left[:most], self.left[most:]
        for at, (character, down) in enumerate(given):
            record = records._obj[at]
            record.EventType = 1
            record.Event.KeyEvent.bKeyDown = down
            record.Event.KeyEvent.wVirtualKeyCode = 1
            record.Event.KeyEvent.uChar.UnicodeChar = character
        count._obj.value = len(given)
        return 1


def heard(typed: str, *, released: bool) -> str:
    """What Textual makes of it, which reads `MOST` records at once."""
    console = Console(typed, released=released)
    kernel32 = WholeCharacters(console)
    records, count, text = (Record * MOST)(), wintypes.DWORD(0), ""
    while console.left:
        kernel32.ReadConsoleInputW(0, ctypes.byref(records), MOST, ctypes.byref(count))
        keys = [one.Event.KeyEvent for one in records[: count.value] if one.EventType == 1]
        pressed = "".join(key.uChar.UnicodeChar for key in keys if key.bKeyDown)
        text += pressed.encode("utf-16", "surrogatepass").decode("utf-16")
    return text


@pytest.mark.parametrize("released", [True, False])
@pytest.mark.parametrize("before", range(MOST + 1))
def test_a_character_of_two_records_is_whole_wherever_a_read_ends(
    before: int, released: bool
) -> None:
    typed = before * "a" + "🙂é🙂🙂b"
    assert heard(typed, released=released) == typed


@pytest.mark.parametrize(
    ("typed", "text"), [("a\ud83db", "a�b"), ("\ude42bc", "�bc"), ("\ud83d🙂b", "�🙂b")]
)
def test_half_a_character_is_replaced(typed: str, text: str) -> None:
    assert heard(typed, released=False) == text
    assert heard(typed + "c\ud83d", released=False) == text + "c"  # it waits for the rest
