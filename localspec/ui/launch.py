"""Run the app in a terminal that may send anything, and end the engine when it is over.

The terminal's input is made safe to read: bytes that are not UTF-8, and escapes inside a paste.
Textual's own reader fails at the first such byte, and takes the text after an escape in a paste for
keys: a line break there would send half of the paste. Enter pressed before the app reads the keys
comes as a line break, too: the terminal then gives whole lines. It is made Enter again.
In a layout without Latin letters, Ctrl and Alt go with the key's place, if the terminal tells it.
"""

from __future__ import annotations

import gc
import io
import os
import re
import subprocess
import sys
import threading
from codecs import getincrementaldecoder
from collections.abc import Callable, Iterable, Iterator, Set
from contextlib import contextmanager, suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from textual import events
from textual._xterm_parser import XTermParser
from textual.driver import Driver

from localspec import private
from localspec.chat.dialects.marks import overlap
from localspec.errors import ConversationError, LocalspecError, UsageError
from localspec.pairs.disk.folders import data_folder
from localspec.process.engine_client import EngineClient
from localspec.safe_text import reason
from localspec.signals import leaving
from localspec.ui.chat_app import Appearance, ChatApp
from localspec.ui.input.windows_keys import WholeCharacters

# A round lasts milliseconds to a second; a load that cannot be interrupted may take longer.
_PATIENCE_S = 10.0
_BEGIN, _END = "\x1b[200~", "\x1b[201~"
# A key in kitty's protocol: its code, the one with Shift, the one of its place in a Latin layout.
_ALTERNATES = re.compile(r"\x1b\[(\d+):\d*:?(\d*)((?:;(\d*)[\d:;]*)?[u~ABCDEFHPQRS])")
_LAST_LATIN, _CTRL_ALT_SUPER_META = 0x7F, 0b101110
_ESCAPE, _PICTURE = "\x1b", "␛"


def recall(settings: Path | None) -> dict[str, str]:
    """The choices about the screen last made in the app, unless `settings` was written since."""
    with suppress(OSError):
        if settings and settings.stat().st_mtime > _choices().stat().st_mtime:
            return {}
    return private.read_json(_choices(), dict[str, str]) or {}


def remember(settings: Path | None, chosen: dict[str, str]) -> None:
    """Store the choices; if the folder cannot be written, they are only forgotten."""
    if chosen:
        with suppress(OSError):
            private.write_json(_choices(), recall(settings) | chosen)


def _choices() -> Path:
    return data_folder() / "screen.json"


class _App(ChatApp):
    """Leaves an unforeseen error to the command line, which reports it in one line."""

    fault: Exception | None = None
    typed_before = 0  # bytes of whole lines that waited when the app began to read the keys

    def on_mount(self) -> None:
        """Import the rest once the first frame is drawn."""
        rest = threading.Thread(target=_import_the_rest, name="imports", daemon=True)
        self.call_after_refresh(rest.start)

    def get_driver_class(self) -> type[Driver]:
        """The platform's driver, with a single reader of keys after a stop from outside."""
        app = self

        class Woken(super().get_driver_class()):  # type: ignore[misc]
            _began = False

            def start_application_mode(self) -> None:
                # At SIGCONT, without a suspension before it (SIGSTOP): a second thread that reads
                # the keys would wait for ever for keys that the first one took.
                if self._began:
                    self.suspend_application_mode()
                self._began = True
                app.typed_before = _lines_waiting()
                super().start_application_mode()

            def stop_application_mode(self) -> None:
                self._began = False
                super().stop_application_mode()

        return Woken

    def _handle_exception(self, error: Exception) -> None:
        self.fault = self.fault or error
        super()._handle_exception(error)

    def _print_error_renderables(self) -> None:
        self._exit_renderables.clear()


def _import_the_rest() -> None:
    """Import what answers and pairs need, and collect garbage from now on."""
    for name in ("markdown_it", "textual.highlight", "localspec.ui.pairs.pair_manager"):
        import_module(name)
    gc.freeze()  # imports stay: no later collection has to look through them
    gc.enable()


def run_app(
    engine: EngineClient,
    *,
    archive: Path | None = None,
    resume: str | None = None,
    typed: Set[str] = frozenset(),
    appearance: Appearance | None = None,
) -> str:
    """Run the chat app until the user leaves.

    Returns:
        The id of the conversation on the screen; empty if it has no messages, or is not stored.

    Args:
        engine: the engine's process; it has ended when this returns.
        archive: the file of the stored conversations; None to keep none.
        resume: the id of the stored conversation to begin with.
        typed: fields of its settings that the command line gives in place of the stored ones.
        appearance: what the user has chosen about the screen.

    Raises:
        LocalspecError: what kept the models from being loaded, if that is how it ended.
        ConversationError: the conversation is not kept to its end.
        UsageError: the screen failed, and variables of Textual are set.
        Ended: a signal asked for the end, or the terminal is gone; the conversation is kept.
        Exception: an unforeseen one that ended the app; the terminal is what it was.
    """
    try:
        app = _App(engine, archive=archive, resume=resume, typed=typed, appearance=appearance)
    except Exception as error:
        raise _explained(error) from None
    with leaving(app.exit):
        try:
            with reading_anything(lambda: app.typed_before), writing_anything():
                app.run()
        finally:
            app.shut_down()
            if appearance is not None:
                remember(appearance.settings, app.chosen())
            with suppress(subprocess.TimeoutExpired):  # a process that nothing can end, as yet
                app.join(_PATIENCE_S)
            kept = app.library.shut_down()
    if app.fault is not None:
        raise _explained(app.fault)
    if app.pair_loader.load_error is not None:
        raise app.pair_loader.load_error
    if not kept:
        raise ConversationError(
            f"the last messages could not be written to {archive}",
            "Look for another program that holds the file, and for room on the disk.",
        )
    record = app.library.record
    return record.header.id if archive is not None and record.nodes() else ""


def _explained(error: Exception) -> Exception:
    """`error`; if variables of Textual are set, the likely cause, an error that names them."""
    named = " and ".join(sorted(name for name in os.environ if name.startswith("TEXTUAL_")))
    if not named or isinstance(error, LocalspecError):
        return error
    what = f"the screen failed with {named} set: {type(error).__name__}: {reason(error)}"
    return UsageError(what, f"Unset {named}.")


class TerminalText:
    """Bytes from the terminal as text, piece by piece.

    Outside of a paste only bytes that are not UTF-8 change, to U+FFFD, and nothing is held back.
    Inside of a paste an escape becomes its picture, and a possible beginning of the paste's end
    waits for the rest.

    Args:
        lines: bytes of whole lines that wait in the terminal, as `_lines_waiting` counts them.
    """

    def __init__(self, lines: int = 0) -> None:
        self._lines = lines
        self._decode = getincrementaldecoder("utf-8")(errors="replace").decode
        self._pasting = False
        self._before = ""  # the last characters, where a paste's mark may have begun
        self._held = ""

    def decode(self, data: bytes, final: bool = False) -> str:
        """The text that `data` completes."""
        data, self._lines = _entered(data, self._lines), 0
        text, self._held = self._held + self._decode(data, final), ""
        out = []
        while text:
            piece, text = self._pasted(text) if self._pasting else self._typed(text)
            out.append(piece)
        return "".join(out)

    def _typed(self, text: str) -> tuple[str, str]:
        """Split the text where a paste begins: what comes as it is, and what follows."""
        whole = self._before + text
        at = whole.find(_BEGIN)
        if at < 0:
            self._before = whole[-(len(_BEGIN) - 1) :]
            return text, ""
        self._pasting, self._before = True, ""
        end = at + len(_BEGIN) - (len(whole) - len(text))
        return text[:end], text[end:]

    def _pasted(self, text: str) -> tuple[str, str]:
        """Split the text where the paste ends: what is pasted, and what follows."""
        pasted, end, rest = text.partition(_END)
        if end:
            self._pasting = False
        else:
            sure = len(text) - overlap(text, _END)
            pasted, self._held = text[:sure], text[sure:]
        return pasted.replace(_ESCAPE, _PICTURE) + end, rest


def without_alternates(key: str) -> str:
    """A key in kitty's protocol with one code, as Textual can read it.

    With Ctrl or Alt, a letter that is not in ASCII becomes that of its place in a Latin layout:
    bindings have no other. Punctuation stays, as it may be what a Latin layout has there: so Q and
    W of Hebrew, and Q of Greek, are reached in another layout alone.

    Args:
        key: an escape sequence; one that names no alternates comes back as it is.
    """
    if (found := _ALTERNATES.fullmatch(key)) is None:
        return key
    code, place, rest, modifiers = found.groups()
    if place and int(code) > _LAST_LATIN and int(modifiers or 1) - 1 & _CTRL_ALT_SUPER_META:
        code = place
    return f"\x1b[{code}{rest}"


class _KeyParser(XTermParser):
    def _sequence_to_key_events(self, sequence: str, alt: bool = False) -> Iterable[events.Key]:
        return super()._sequence_to_key_events(without_alternates(sequence), alt)


def _lines_waiting() -> int:
    """How many bytes of whole lines wait in the terminal, as long as it gives whole lines."""
    if sys.platform == "win32":
        return 0
    import fcntl  # noqa: PLC0415 - there is none on Windows
    import termios  # noqa: PLC0415

    with suppress(OSError, termios.error):
        if termios.tcgetattr(0)[3] & termios.ICANON:
            return int.from_bytes(fcntl.ioctl(0, termios.FIONREAD, bytes(4)), sys.byteorder)
    return 0


def _entered(data: bytes, lines: int) -> bytes:
    """`data` with Enter at the end of its whole lines, which take `lines` bytes.

    It stays a line break where text follows: that may be a paste, of which a half would be sent.
    """
    before, rest = data[:lines], data[lines:]
    typed_on = rest and not rest.startswith(_ESCAPE.encode())  # an escape: the terminal's reply
    return data if typed_on or not before.endswith(b"\n") else before[:-1] + b"\r" + rest


@contextmanager
def reading_anything(lines: Callable[[], int] = lambda: 0) -> Iterator[None]:
    """Let Textual read the terminal through `TerminalText`, and the keys of every layout.

    On Windows it gets no bytes, but keys, and no half characters.

    Args:
        lines: the argument of `TerminalText`, asked when Textual begins to read.
    """
    # Textual's drivers have no settings for these (see `localspec.ui`).
    if sys.platform == "win32":
        from textual.drivers import win32 as driver  # noqa: PLC0415 - only there

        ours: dict[str, Any] = {"KERNEL32": WholeCharacters(driver.KERNEL32)}
    else:
        from textual.drivers import linux_driver as driver  # noqa: PLC0415 - not on Windows

        ours = {
            "getincrementaldecoder": lambda _encoding: partial(TerminalText, lines()),
            "XTermParser": _KeyParser,
            "KITTY_REPORT_ALL_KEYS": driver.KITTY_REPORT_ALL_KEYS
            | driver.KITTY_REPORT_ALTERNATE_KEYS,
        }
    usual = {name: getattr(driver, name) for name in ours}
    for name, value in ours.items():
        setattr(driver, name, value)
    try:
        yield
    finally:
        for name, value in usual.items():
            setattr(driver, name, value)


@contextmanager
def writing_anything() -> Iterator[None]:
    """Let Textual write UTF-8, as it reads it, whatever the locale says.

    A terminal of today takes it, also where a locale of yesterday (``C``, ``en_US``) was inherited:
    there, Python wrote a backslash and ``u2502`` in place of a line of a frame.
    """
    terminal = sys.__stderr__  # on which Textual draws
    if sys.platform == "win32" or not isinstance(terminal, io.TextIOWrapper):
        yield
        return
    usual, errors = terminal.encoding, terminal.errors
    terminal.reconfigure(encoding="utf-8", errors=errors)
    try:
        yield
    finally:
        terminal.reconfigure(encoding=usual, errors=errors)
