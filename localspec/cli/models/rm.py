"""`localspec rm`: remove a pair and what only it uses."""

from __future__ import annotations

import click

from localspec import formats
from localspec.pairs.disk.remove import remove
from localspec.pairs.hub.retries import RetryPolicy
from localspec.safe_text import unbroken


@click.command("rm")
@click.argument("pair")
def command(pair: str) -> None:
    """Remove a pair and those of its files that no other pair uses."""
    removal = remove(pair, RetryPolicy())
    for line in removal.kept:
        click.echo(f"kept {unbroken(line)}")
    click.echo(f"removed {removal.name}: {formats.size(removal.freed)} freed")
