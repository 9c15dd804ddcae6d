"""Which keys a command of the chat may have: none that types or that the app needs for itself."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

ALLOWED = 'keys with Ctrl or Alt, or F1 to F24, such as "f5" or ["f5", "ctrl+r"]'
# Whatever else there is without Ctrl, Alt or F is for typing and moving about.
_KEY = re.compile(
    r"((ctrl|shift|alt|super|meta)\+)*(f([1-9]|1\d|2[0-4])"
    r"|(?<=ctrl\+)[a-z0-9_]+|(?<=alt\+)[a-z0-9_]+|(?<=super\+)[a-z0-9_]+|(?<=meta\+)[a-z0-9_]+)"
)
# What the terminal sends for Enter, Tab, Backspace and Esc among them.
TAKEN = {
    "ctrl+c": "stopping and quitting have",
    "ctrl+p": "the palette has",
    **dict.fromkeys(("ctrl+j", "alt+enter", "ctrl+enter"), "breaking the line has"),
    **dict.fromkeys(("ctrl+m", "ctrl+i", "ctrl+h"), "Enter, Tab and Backspace have"),
    **dict.fromkeys(("ctrl+v", "ctrl+z"), "editing the input has"),
}


def wrong(keys: Any) -> str:
    """Why a value cannot be the keys of a command; empty where it can."""
    if not isinstance(keys, list) or not keys:
        return ALLOWED
    if not all(isinstance(key, str) and _KEY.fullmatch(key) for key in keys):
        return ALLOWED
    taken = [f"{TAKEN[key]} {key}" for key in keys if key in TAKEN]
    return taken[0] if taken else ""


def clash(chosen: Mapping[str, str], usual: Mapping[str, str]) -> tuple[str, str] | None:
    """A choice that takes the key of another command, and how that one is called.

    Args:
        chosen: keys with commas, by command.
        usual: the same for all commands, while nobody chooses.
    """
    for name in reversed(list(chosen)):  # the later of two stands back
        mine = set(chosen[name].split(","))
        for other, default in usual.items():
            theirs = chosen.get(other, default)
            if other != name and theirs and mine & set(theirs.split(",")):
                return name, other
    return None
