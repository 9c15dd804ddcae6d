"""`localspec list`: the curated pairs, the installed ones, and other programs' models."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

import click

from localspec import formats
from localspec.cli.options import SCAN
from localspec.pairs import catalogue, describe, found, installed
from localspec.pairs.catalogue import ListedPair
from localspec.pairs.found import FoundModel, Scan
from localspec.pairs.memory import placement
from localspec.pairs.memory.placement import Fit
from localspec.pairs.remove import used_bytes
from localspec.safe_text import one_line

_HEADINGS = ("NAME", "FOR", "CLASS", "SIZE", "MEMORY", "LICENCE", "STATE")
_FOUND_HEADINGS = ("NAME", "FROM", "QUANT", "SIZE", "MEMORY", "LICENCE")
_MOST_FOUND = 40


@click.command("list")
@SCAN
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(scan: bool, as_json: bool) -> None:
    """List the curated pairs, the installed ones, and what other programs have on this disk."""
    rows, used, damaged = catalogue.rows(), used_bytes(installed.all_pairs()), installed.damaged()
    others = found.scan() if scan else Scan(())
    if as_json:
        data = {
            "pairs": [_data(row) for row in rows],
            "found": [_found_data(model) for model in others.models],
            "used_bytes": used,
            "damaged": damaged,
        }
        click.echo(json.dumps(data, indent=2))
        return
    _print_table(_HEADINGS, map(_cells, rows))
    _print_found(others)
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


def _print_found(others: Scan) -> None:
    """What other programs have, and whether there is more."""
    if others.models:
        click.echo("\nOf other programs, used where they are by these names:\n")
        _print_table(_FOUND_HEADINGS, map(_found_cells, others.models[:_MOST_FOUND]))
        if len(others.models) > _MOST_FOUND:
            click.echo(f"and {len(others.models) - _MOST_FOUND:,} more, which --json shows")
    if not others.complete:
        click.echo(f"warning: looking for models ended after {found.WITHIN_S} s", err=True)


def _print_table(headings: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> None:
    safe = [tuple(one_line(cell, 80) for cell in row) for row in rows]
    click.echo("\n".join(formats.columns([headings, *safe])))


def _cells(row: ListedPair) -> tuple[str, ...]:
    return (
        row.name,
        row.kind,
        f"{row.memory_gb} GB" if row.memory_gb else "-",
        formats.size(row.n_bytes),
        _memory(row.fit),
        row.licence or "not stated",
        row.state,
    )


def _found_cells(model: FoundModel) -> tuple[str, ...]:
    return (
        model.name,
        model.store,
        model.quant or "-",
        formats.size(model.n_bytes),
        _memory(placement.unread(model.n_bytes)),
        model.licence or "not stated",
    )


def _memory(fit: Fit) -> str:
    return f"{formats.size(fit.needed)}: {fit.verdict}"


def _data(row: ListedPair) -> dict[str, Any]:
    data = asdict(row)
    del data["fit"]
    return data | {"bytes": data.pop("n_bytes"), "memory": describe.fit_data(row.fit)}


def _found_data(model: FoundModel) -> dict[str, Any]:
    data = asdict(model)
    return data | {"path": str(model.path), "bytes": data.pop("n_bytes")}
