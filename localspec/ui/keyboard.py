"""What a terminal sends, made safe to read: bytes that are no UTF-8, and escapes inside a paste.

Textual's own reading ends with an error at the first such byte, and takes what follows an escape in
a paste for keys: a line break there would send half of it.
"""

from __future__ import annotations

import sys
from codecs import getincrementaldecoder
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_BEGIN, _END = "\x1b[200~", "\x1b[201~"
_MAKER = "getincrementaldecoder"
_ESCAPE, _PICTURE = "\x1b", "␛"


class TerminalText:
    """Bytes from the terminal as text, piece by piece.

    Outside of a paste nothing is held back or changed but bytes that are no UTF-8, which become
    U+FFFD. Inside of one an escape becomes its picture, and the beginning of what may be the
    paste's end waits for the rest.
    """

    def __init__(self) -> None:
        self._decode = getincrementaldecoder("utf-8")(errors="replace").decode
        self._pasting = False
        self._before = ""  # the last characters, in which the mark of a paste may have begun
        self._held = ""

    def decode(self, data: bytes, final: bool = False) -> str:
        """The text that `data` completes."""
        text, self._held = self._held + self._decode(data, final), ""
        out = []
        while text:
            piece, text = self._pasted(text) if self._pasting else self._typed(text)
            out.append(piece)
        return "".join(out)

    def _typed(self, text: str) -> tuple[str, str]:
        """What comes as it is, up to where a paste begins, and what follows."""
        whole = self._before + text
        at = whole.find(_BEGIN)
        if at < 0:
            self._before = whole[-(len(_BEGIN) - 1) :]
            return text, ""
        self._pasting, self._before = True, ""
        end = at + len(_BEGIN) - (len(whole) - len(text))
        return text[:end], text[end:]

    def _pasted(self, text: str) -> tuple[str, str]:
        """What is pasted, up to the paste's end, and what follows."""
        pasted, end, rest = text.partition(_END)
        if end:
            self._pasting = False
        else:
            known = next(n for n in range(len(_END) - 1, -1, -1) if text.endswith(_END[:n]))
            pasted, self._held = text[: len(text) - known], text[len(text) - known :]
        return pasted.replace(_ESCAPE, _PICTURE) + end, rest


@contextmanager
def reading_anything() -> Iterator[None]:
    """Let Textual read the terminal through `TerminalText`; on Windows it gets no bytes at all."""
    if sys.platform == "win32":
        yield
        return
    from textual.drivers import linux_driver  # noqa: PLC0415 - there is none on Windows

    # Textual's driver calls this to make its decoder; there is no setting (see `localspec.ui`).
    usual = getattr(linux_driver, _MAKER)
    setattr(linux_driver, _MAKER, lambda _encoding: TerminalText)
    try:
        yield
    finally:
        setattr(linux_driver, _MAKER, usual)
