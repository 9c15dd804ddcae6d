"""`localspec rm`: remove a pair and what only it uses, or all pairs."""

from __future__ import annotations

from pathlib import Path

import click

from localspec import formats
from localspec.cli.interrupt import stoppable
from localspec.cli.standard_streams import ProgressLine
from localspec.errors import UsageError
from localspec.pairs.disk import folders
from localspec.pairs.disk.remove import Removal, remove, remove_all
from localspec.pairs.hub.retries import RetryPolicy
from localspec.safe_text import unbroken


@click.command("rm")
@click.argument("pair", required=False)
@click.option(
    "--all", "every", is_flag=True, help="Remove all pairs; say where conversations stay."
)
def command(pair: str | None, every: bool) -> None:
    """Remove a pair and those of its files that no other pair uses."""
    if every == (pair is not None):
        raise UsageError("rm needs the name of a pair, or --all", "Run: localspec list")
    line = ProgressLine()
    retries = RetryPolicy(note=line.update)
    with stoppable(line, "stopped; the same command removes what is left"):
        _remove(pair, retries, line)
    if not every:
        return
    held: dict[Path, list[str]] = {}  # macOS and Windows have one folder for data and settings
    for path, holds in (
        (folders.data_folder(), "conversations, what was trained here"),
        (folders.config_folder(), "settings"),
        (folders.cache_folder(), "measurements"),
    ):
        held.setdefault(path, []).append(holds)
    for path in filter(Path.exists, held):
        click.echo(f"stays: {unbroken(str(path))} ({', '.join(held[path])})")


def _remove(pair: str | None, retries: RetryPolicy, line: ProgressLine) -> None:
    """Remove a pair, or all, and tell it."""
    if pair is not None:
        removal = remove(pair, retries)
        line.clear()
        _tell(removal)
        return
    removed = False
    for removal in remove_all(retries):
        removed = True
        line.clear()
        _tell(removal)
    if not removed:
        click.echo("no pair is installed")


def _tell(removal: Removal) -> None:
    for line in removal.kept:
        click.echo(f"kept {unbroken(line)}")
    click.echo(f"removed {removal.name}: {formats.size(removal.freed)} freed")
