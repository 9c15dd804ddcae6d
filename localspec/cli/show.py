"""`localspec show`: what is known about a pair before it is loaded."""

from __future__ import annotations

import json

import click

from localspec.pairs import report
from localspec.pairs.examine import examine
from localspec.pairs.fit import DEFAULT_CONTEXT
from localspec.pairs.patience import Patience


@click.command("show")
@click.argument("pair", default="demo")
@click.option("--draft", metavar="DRAFT", help="A file, a Hub reference, a pair's name or `none`.")
@click.option(
    "-c",
    "--ctx-size",
    type=click.IntRange(1, 1 << 24),
    default=DEFAULT_CONTEXT,
    show_default=True,
    help="Tokens of context to count memory for.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(pair: str, draft: str | None, ctx_size: int, as_json: bool) -> None:
    """Show a pair's vocabulary check, memory plan and licence.

    PAIR is a pair's name, a GGUF file or a Hub reference, of which only the headers are read.
    """
    found = examine(pair, draft, Patience(), n_ctx=ctx_size)
    if as_json:
        click.echo(json.dumps(report.as_data(found), indent=2))
        return
    if found.name:
        click.echo(f"pair        {found.name}")
    for line in report.lines(found):
        click.echo(line)
