"""Standard input, output and error: closed, broken, of another encoding, a terminal or none."""

from __future__ import annotations

import codecs
import io
import os
import select
import shutil
import stat
import sys
import time
from contextlib import suppress

import click

from localspec import formats
from localspec.errors import LocalspecError
from localspec.safe_text import decoded, one_line, safe, save_as_utf8, shortened

_EVERY_S = 10.0  # between two lines of progress without a terminal
_LONGEST = 200  # characters of such a line
_SILENCE_S = 5.0  # of a pipe given with a prompt, before a notice says that it is awaited
LARGEST = 64_000_000  # bytes of a prompt: more than any model reads


def with_input(prompt: str) -> str:
    """`prompt`, followed by all of standard input if it is a pipe or a file.

    Raises:
        LocalspecError: as `read_prompt`.
    """
    if not _is_given():
        return prompt
    return "\n\n".join(part for part in (prompt, read_prompt()) if part.strip())


def _is_given() -> bool:
    """Whether standard input is a file or a pipe.

    The program that writes into it may take long (a test run, a build), and an answer without its
    output would be wrong. An inherited pipe may be silent for ever, so a notice says what helps.
    """
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (AttributeError, OSError, ValueError):  # missing or closed
        return False
    if os.name == "nt" or not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)):
        return stat.S_ISREG(mode) or stat.S_ISFIFO(mode)
    heard, _, _ = select.select([sys.stdin], [], [], _SILENCE_S)
    if not heard:
        warn("waiting for standard input to end; `< /dev/null` sends the prompt alone")
    return True


def read_prompt() -> str:
    """The prompt from standard input.

    Raises:
        LocalspecError: standard input is missing, too large, or not UTF-8.
    """
    if sys.stdin is None:
        raise LocalspecError("there is no prompt", "Say what to answer: -p TEXT.")
    if sys.stdin.isatty():
        click.echo("Type the prompt, then end it with Ctrl+D (Ctrl+Z, Enter on Windows).", err=True)
        click.echo("For a conversation: localspec chat", err=True)
    try:
        raw = sys.stdin.buffer.read(LARGEST + 1)
    except OSError as error:
        raise LocalspecError(
            f"standard input cannot be read: {error.strerror}", "Say what to answer: -p TEXT."
        ) from None
    if len(raw) > LARGEST:
        raise LocalspecError(
            f"standard input is too large for a prompt: {formats.size(LARGEST)} are allowed",
            "Give it less.",
        )
    try:
        return decoded(raw).rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise LocalspecError(
            f"standard input is not UTF-8 (byte {error.start} is 0x{raw[error.start]:02x})",
            save_as_utf8(),
        ) from None


def refuse_nothing() -> None:
    """Make standard output and error take every character.

    On Windows files have the encoding of older programs, which lacks most letters: they get UTF-8,
    unless ``PYTHONIOENCODING`` asks for another. Elsewhere what an encoding lacks is replaced; the
    programs at the other end of a pipe expect that encoding.
    """
    for stream in (sys.stdout, sys.stderr):
        if not isinstance(stream, io.TextIOWrapper):  # missing, or another program's
            continue
        asked = "PYTHONIOENCODING" in os.environ
        if sys.platform == "win32" and not asked and _is_file(stream):
            stream.reconfigure(encoding="utf-8")
        if stream.errors == "strict":
            stream.reconfigure(errors="replace")


def _is_file(stream: io.TextIOWrapper) -> bool:
    try:
        return stat.S_ISREG(os.fstat(stream.fileno()).st_mode)
    except OSError:  # it is closed, or has no descriptor
        return False


def takes_all() -> bool:
    """Whether standard output can take every character as it is, and as UTF-8."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    return codecs.lookup(encoding).name == "utf-8"


def write_said(text: str) -> None:
    """Write what a model said: a terminal gets it harmless, a file or a pipe as it is.

    Raises:
        BrokenPipeError, LocalspecError: as `write`.
    """
    write(safe(text) if sys.stdout is not None and sys.stdout.isatty() else text)


def write(text: str) -> None:
    """Write to standard output now; characters that its encoding lacks are replaced.

    Raises:
        BrokenPipeError: the reader has gone.
        LocalspecError: it cannot be written, for example because the disk is full.
    """
    out = sys.stdout
    if out is None:
        return
    try:
        out.write(text.encode(out.encoding, "replace").decode(out.encoding))
        out.flush()
    except OSError as error:
        # Python's buffer must go somewhere, or Python tries again when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), out.fileno())
        if isinstance(error, BrokenPipeError):
            raise
        raise LocalspecError(f"cannot write to standard output: {error.strerror}") from None


def warn(notice: str) -> None:
    """Write a notice to standard error."""
    aside(f"warning: {one_line(notice, 400)}")


def aside(text: str, *, nl: bool = True) -> None:
    """Write to standard error; that it cannot be written ends no work."""
    with suppress(OSError):
        click.echo(text, nl=nl, err=True)


class ProgressLine:
    """Progress on standard error: one line redrawn on a terminal, plain lines elsewhere."""

    def __init__(self) -> None:
        self._is_terminal = sys.stderr is not None and sys.stderr.isatty()
        self._drawn = False
        self._said = ""
        self._state: object = None
        self._next = 0.0

    @property
    def is_terminal(self) -> bool:
        """Whether a line can be redrawn."""
        return self._is_terminal

    def step(self, step: str) -> None:
        """Name the work that begins; printed once."""
        if step != self._said:
            self._said = step
            self.show(f"{one_line(step, 80)} ...")

    def update(self, text: str, state: object = None) -> None:
        """Show a changing text; without a terminal now and then, and when `state` changes."""
        now = time.monotonic()
        if self._is_terminal or state != self._state or now >= self._next:
            self._state, self._next = state, now + _EVERY_S
            self.show(text)

    def show(self, text: str) -> None:
        """Draw or print a line, without its middle if it is too long."""
        if self._is_terminal:
            columns = shutil.get_terminal_size().columns
            aside(f"\r\x1b[K{shortened(text, max(1, columns - 1))}", nl=False)
            self._drawn = True
        else:
            aside(shortened(text, _LONGEST))

    def clear(self) -> None:
        """Erase the drawn line."""
        if self._drawn:
            aside("\r\x1b[K", nl=False)
            self._drawn = False
