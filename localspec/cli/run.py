"""`localspec run`: one prompt, one answer on standard output."""

from __future__ import annotations

from contextlib import closing
from functools import partial
from pathlib import Path

import click

from localspec.cli.interrupt import interruptible
from localspec.cli.option_types import plain_path, plain_text
from localspec.cli.options import Grouped, option, shared_options
from localspec.cli.standard_streams import read_prompt, with_input
from localspec.errors import Cancelled, LocalspecError
from localspec.loading.request import LoadRequest


@click.command(name="run", cls=Grouped)
@shared_options
@click.argument("question", required=False, type=plain_text, metavar="[PROMPT]")
@option(
    "-p --prompt",
    plain_text,
    "The same as PROMPT.",
    "TEXT",
)
@click.option("--stats", is_flag=True, help="Print the figures to standard error afterwards.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of text.")
@option(
    "--trace",
    click.Path(dir_okay=False, path_type=Path),
    "Write to this file what a replay of the run needs.",
    None,
    callback=plain_path,
)
def command(
    *,
    options: LoadRequest,
    question: str | None,
    prompt: str | None,
    stats: bool,
    as_json: bool,
    trace: Path | None,
) -> None:
    """Answer one prompt on standard output.

    PAIR is a short name, a GGUF file or a reference `user/repo[:QUANT]`; without it the pair that
    ships with localspec answers. Standard input is the prompt where there is none, or it is '-';
    else what is piped in stands below it, and is waited for to its end.
    """
    if question is not None and prompt is not None:
        raise click.UsageError("PROMPT and --prompt say the same: give one of them.")
    asked = prompt if question is None else question
    text = read_prompt() if asked in (None, "-") else with_input(str(asked))
    if not text.strip():
        raise LocalspecError("the prompt is empty", "Say what to answer: -p TEXT.")
    # Late: `run --help` needs no engine. It imports and loads while this process imports the rest.
    from localspec.process.client import Worker  # noqa: PLC0415

    with closing(Worker()) as worker:
        from localspec.process.jobs import AnswerJob  # noqa: PLC0415

        worker.begin(AnswerJob(options, text, None if trace is None else str(trace)))
        from localspec.cli.answering import print_answer  # noqa: PLC0415

        printed = partial(print_answer, worker, stats=stats, as_json=as_json)
        if interruptible(printed, worker.stop):
            raise Cancelled
