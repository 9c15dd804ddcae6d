"""`localspec run`: one prompt, one answer on standard output."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import click

from localspec.cli.interrupt import interruptible
from localspec.cli.options import TEXT, shared_options
from localspec.errors import Cancelled, LocalspecError
from localspec.loading.request import LoadRequest

LARGEST = 64 << 20  # bytes of a prompt: more than any model reads


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What to answer, and what to print besides: figures, or a JSON document in place of text.

    Attributes:
        trace: a file for what a replay needs, None for none.
    """

    text: str
    stats: bool
    as_json: bool
    trace: Path | None = None


@click.command(name="run")
@shared_options
@click.option(
    *("-p", "--prompt"),
    type=TEXT,
    metavar="TEXT",
    help="What to answer; '-' reads it from standard input, as does leaving this out.",
)
@click.option("--stats", is_flag=True, help="Print the figures to standard error afterwards.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of text.")
@click.option(
    "--trace",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write to this file what a replay of the run needs.",
)
def command(
    options: LoadRequest, prompt: str | None, stats: bool, as_json: bool, trace: Path | None
) -> None:
    """Answer one prompt on standard output.

    PAIR is a short name, a GGUF file or a reference `user/repo[:QUANT]`; without it the pair that
    ships with localspec answers.
    """
    text = read_prompt() if prompt in (None, "-") else str(prompt)
    if not text.strip():
        raise LocalspecError("the prompt is empty", "Say what to answer: -p TEXT.")
    wanted = Wanted(text=text, stats=stats, as_json=as_json, trace=trace)
    if _answer(options, wanted):
        raise Cancelled


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


def _answer(options: LoadRequest, wanted: Wanted) -> bool:
    """Load and answer where Ctrl+C can interrupt it; whether it did."""
    # Late: `run --help` needs neither numpy nor llama.cpp.
    from localspec.cli.answering import answer  # noqa: PLC0415

    return interruptible(lambda cancel: answer(options, wanted, cancel))
