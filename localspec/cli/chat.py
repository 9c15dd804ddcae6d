"""`localspec chat`: the chat app in the terminal."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from localspec.cli.options import Options, shared_options
from localspec.errors import UsageError

if TYPE_CHECKING:
    from localspec.chat.session import Session
    from localspec.engine.cancel import Cancel
    from localspec.ui.contract import Progress


@click.command(name="chat")
@shared_options
def command(options: Options) -> None:
    """Chat in the terminal.

    PAIR is a short name, a GGUF file or a reference `user/repo[:QUANT]`; without it the pair that
    the chat used last answers, at first the one that ships with localspec.
    """
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError(
            "the chat needs a terminal",
            "Without one, use: localspec run -p TEXT, or localspec run < FILE.",
        )
    # Late, like everything heavy: `chat --help` needs neither Textual nor llama.cpp.
    from localspec.ui.launch import run_app  # noqa: PLC0415

    run_app(lambda progress, cancel: _load(options, progress, cancel))


def _load(options: Options, progress: Progress, cancel: Cancel) -> Session:
    """Load the pair; runs in the engine's thread while the app is on screen."""
    from localspec.cli.opening import open_session  # noqa: PLC0415

    return open_session(options, progress, cancel)
