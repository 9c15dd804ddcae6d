"""Python reads the command line, paths and variables by the locale; here they are UTF-8 first."""

from __future__ import annotations

import os
import sys
from contextlib import suppress

_VARIABLE = "PYTHONUTF8"


def ensure_utf8() -> None:
    """Begin this command again in Python's UTF-8 mode where the locale reads its words wrongly.

    A locale of yesterday (``en_US``, or ``C`` with Python's UTF-8 mode switched off) is often
    inherited by a terminal of today, which sends UTF-8: a typed letter would arrive as two wrong
    ones, or as bytes that are no text. The new mode is passed on to the processes that the command
    starts. Where the words are in the locale's own encoding, it is kept.
    """
    locale = sys.getfilesystemencoding()
    if locale == "utf-8" or os.environ.get(_VARIABLE) == "1":
        return
    # Where only ASCII is known, nothing else can be meant, and answers could not be written either.
    if locale == "ascii" or _is_utf8():
        os.environ[_VARIABLE] = "1"
        with suppress(OSError):  # it goes on as it is
            os.execv(sys.executable, sys.orig_argv)  # noqa: S606 - this very Python


def _is_utf8() -> bool:
    """Whether arguments and variables have letters beyond ASCII, all of them in UTF-8."""
    try:
        raw = b"\n".join(map(os.fsencode, [*sys.argv, *os.environ.values()]))
        return not raw.isascii() and bool(raw.decode())
    except UnicodeError:  # some locales read bytes as letters that they cannot write
        return False
