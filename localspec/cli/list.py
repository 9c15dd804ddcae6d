"""`localspec list`: the curated pairs and the installed ones."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import click

from localspec import formats
from localspec.pairs import catalogue, describe, installed
from localspec.pairs.catalogue import ListedPair
from localspec.pairs.remove import used_bytes
from localspec.safe_text import one_line

_HEADINGS = ("NAME", "FOR", "CLASS", "SIZE", "MEMORY", "LICENCE", "STATE")


@click.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(as_json: bool) -> None:
    """List the curated pairs and the installed ones, and what fits this machine."""
    rows, used, damaged = catalogue.rows(), used_bytes(installed.all_pairs()), installed.damaged()
    if as_json:
        data = {"pairs": [_data(row) for row in rows], "used_bytes": used, "damaged": damaged}
        click.echo(json.dumps(data, indent=2))
        return
    click.echo("\n".join(formats.columns([_HEADINGS, *map(_cells, rows)])))
    machine = rows[0].fit
    click.echo(
        f"\nMemory: {formats.size(machine.available)} available of {formats.size(machine.total)}."
        f" Disk: {formats.size(used)} used by installed pairs."
    )
    for name in damaged:
        safe_name = one_line(name)
        click.echo(
            f"warning: the record of {safe_name} is damaged; `localspec rm {safe_name}`", err=True
        )


def _cells(row: ListedPair) -> tuple[str, ...]:
    cells = (
        row.name,
        row.kind,
        f"{row.memory_gb} GB" if row.memory_gb else "-",
        formats.size(row.n_bytes),
        f"{formats.size(row.fit.needed)}: {row.fit.verdict}",
        row.licence or "not stated",
        row.state,
    )
    return tuple(one_line(cell, 80) for cell in cells)


def _data(row: ListedPair) -> dict[str, Any]:
    data = asdict(row)
    del data["fit"]
    return data | {"bytes": data.pop("n_bytes"), "memory": describe.fit_data(row.fit)}
