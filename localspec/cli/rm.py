"""`localspec rm`: remove a pair and what only it uses."""

from __future__ import annotations

import click

from localspec.pairs import units
from localspec.pairs.hub.patience import Patience
from localspec.pairs.remove import remove


@click.command("rm")
@click.argument("pair")
def command(pair: str) -> None:
    """Remove a pair and those of its files that no other pair uses."""
    removal = remove(pair, Patience())
    for line in removal.kept:
        click.echo(f"kept {line}")
    click.echo(f"removed {removal.name}: {units.size(removal.freed)} freed")
