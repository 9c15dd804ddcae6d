"""`localspec train`: train a head for a target on this machine."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, Final

import click

from localspec import formats
from localspec.cli.interrupt import asking
from localspec.cli.option_types import UserFile, no_nan, plain_text
from localspec.cli.shared_options import (
    MAX_THREADS,
    SCAN,
    GroupedCommand,
    command_line_first,
    option,
    pair_of,
    refuse_others,
)
from localspec.cli.standard_streams import ProgressLine, aside
from localspec.errors import UsageError
from localspec.loading.measurements.head_promise import USUAL_TOKENS
from localspec.safe_text import unbroken
from localspec.train.train_request import USUAL_PASSES, TrainRequest

_FILE: Final = UserFile(exists=True)
_OUT: Final = UserFile()
_MOST: Final = 10**9


@click.command(name="train", cls=GroupedCommand)
@click.argument("pair", required=False, type=plain_text, metavar="[PAIR|FILE]")
@option("--target", plain_text, "The same as PAIR.", "MODEL")
@SCAN
@option(
    "--prompts",
    _FILE,
    "Your own prompts: JSON lines with 'prompt'; may be repeated.  [default: a set of localspec's]",
    "FILE",
    multiple=True,
    show_default=False,
)
@click.option(
    "--from-history",
    is_flag=True,
    help="Train on your own conversations. The head can leak them, as its file says.",
)
@option(
    "--answers",
    _FILE,
    "Conversations that this target wrote: JSON lines with 'messages'; may be repeated.",
    "FILE",
    multiple=True,
    show_default=False,
)
@option(
    "--tokens",
    click.IntRange(1, _MOST),
    f"Tokens of answers to learn from.  [default: {USUAL_TOKENS:,}]",
)
@option(
    "--hours",
    click.FloatRange(0.001, 1000),
    "As many tokens as this time allows.",
    "X",
    callback=no_nan,
)
@option("--passes", click.IntRange(1, 1000), "How often to learn from them.", default=USUAL_PASSES)
@option("--init", _FILE, "Begin with this head.", "HEAD")
@click.option("--resume", is_flag=True, help="Go on with a training that was stopped.")
@click.option("--anew", is_flag=True, help="Begin anew, in place of a training that was stopped.")
@click.option("--force", is_flag=True, help="Train even where no head can pay, and keep any.")
@option("-t --threads", click.IntRange(1, MAX_THREADS), "CPU threads.")
@option("-o --output out", _OUT, "Where to write the head.  [default: localspec's folder]", "FILE")
@option(
    "--check head",
    _FILE,
    "Train nothing: measure what this head is worth for PAIR.",
    "HEAD",
)
def command(pair: str | None, target: str | None, head: Path | None, **given: Any) -> None:
    """Train a head that drafts for PAIR, with llama.cpp's own states of that very file.

    First it says how long that takes here, what it needs and what to expect. Ctrl+C stops it;
    --resume goes on. In the end it measures what the head brings, and PAIR drafts with it.
    """
    if head is not None:
        refuse_others("--check", "head", "pair", "target", "scan", "threads")
    pair = pair_of(pair, target)
    if pair is None:
        raise UsageError("there is no target to train for", "Name a pair, a file or a reference.")
    if head is None:
        _check_together(given)
    from localspec.engine.cancel import Cancel  # noqa: PLC0415 - not for `train --help`
    from localspec.train.pipeline import train  # noqa: PLC0415
    from localspec.train.training_listener import TrainingListener  # noqa: PLC0415
    from localspec.train.verdict.check_head import check  # noqa: PLC0415

    line, cancel = ProgressLine(), Cancel()
    listener = TrainingListener(partial(_tell, line), partial(_show, line), cancel)
    with asking(lambda _: cancel.set()):
        try:
            if head is not None:
                lines = check(pair, head, listener, scan=given["scan"], threads=given["threads"])
            else:
                history = given.pop("from_history")
                lines = train(TrainRequest(pair=pair, history=history, **given), listener).lines()
        finally:
            line.clear()
    for each in lines:
        click.echo(unbroken(each))


def _check_together(given: dict[str, Any]) -> None:
    """Put the command line before the settings file, and refuse what does not go together.

    Raises:
        UsageError: there is such.
    """
    command_line_first(given, "tokens", "hours")
    command_line_first(given, "resume", "anew")
    if given["tokens"] and given["hours"]:
        raise UsageError("--tokens and --hours say the same", "Give one of them.")
    if given["resume"] and given["anew"]:
        raise UsageError(
            "--resume goes on with a training, --anew begins another", "Give one of them."
        )


def _tell(line: ProgressLine, text: str) -> None:
    line.clear()
    aside(unbroken(text))


def _show(line: ProgressLine, text: str, share: float | None) -> None:
    if share is None:
        line.step(text)
    else:
        line.update(f"{text}  {formats.percent(share, 1)}", text.partition(":")[0])
