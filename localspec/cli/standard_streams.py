"""Standard input and output: closed, broken, or of another encoding."""

from __future__ import annotations

import os
import sys

import click

from localspec.errors import LocalspecError

LARGEST = 64 << 20  # bytes of a prompt: more than any model reads


def read_prompt() -> str:
    """The prompt from standard input.

    Raises:
        LocalspecError: there is no standard input, it is too large, or not UTF-8.
    """
    if sys.stdin is None:
        raise LocalspecError("there is no prompt", "Say what to answer: -p TEXT.")
    if sys.stdin.isatty():
        click.echo("Type the prompt, then end it with Ctrl+D (Ctrl+Z, Enter on Windows).", err=True)
    try:
        raw = sys.stdin.buffer.read(LARGEST + 1)
    except OSError as error:
        raise LocalspecError(
            f"standard input cannot be read: {error.strerror}", "Say what to answer: -p TEXT."
        ) from None
    if len(raw) > LARGEST:
        raise LocalspecError(
            f"standard input is too large for a prompt: {LARGEST >> 20} MB are allowed",
            "Give it less.",
        )
    try:
        return raw.decode("utf-8-sig").rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise LocalspecError(
            f"standard input is not UTF-8 (byte {error.start} is 0x{raw[error.start]:02x})",
            "Convert it first, for example with iconv -t UTF-8.",
        ) from None


def write(text: str) -> None:
    """Write to standard output now; what its encoding lacks is replaced.

    Raises:
        BrokenPipeError: the reader has gone.
        LocalspecError: it cannot be written to, the disk being full for example.
    """
    out = sys.stdout
    if out is None:
        return
    try:
        out.write(text.encode(out.encoding, "replace").decode(out.encoding))
        out.flush()
    except OSError as error:
        # What Python still holds must go somewhere, or it tries again when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), out.fileno())
        if isinstance(error, BrokenPipeError):
            raise
        raise LocalspecError(f"cannot write to standard output: {error.strerror}") from None
