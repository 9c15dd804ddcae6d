"""`localspec list`: the curated pairs, the installed ones, and other programs' models."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

import click

from localspec import formats
from localspec.cli.models import proposed
from localspec.cli.shared_options import SCAN
from localspec.loading.measurements import ranking
from localspec.loading.measurements.ranking import RankedPair
from localspec.pairs.disk import installed, other_programs
from localspec.pairs.disk.other_programs import FoundModel, FoundModels
from localspec.pairs.disk.remove import used_bytes
from localspec.pairs.memory.outlook import MemoryFit, unread
from localspec.pairs.names import catalogue
from localspec.pairs.report import describe, nearby_heads
from localspec.pairs.report.nearby_heads import HeadOffer
from localspec.safe_text import one_line, unbroken

_HEADINGS = ("NAME", "FOR", "SIZE", "MEMORY", "TOKENS/S", "LICENCE", "STATE")
_FOUND_HEADINGS = ("NAME", "FROM", "QUANT", "SIZE", "MEMORY", "LICENCE")
_MOST_FOUND = 40
_MEANING = (
    "MEMORY is what a pair takes in main memory, with its drafts and the context chosen for it;"
    " `localspec show NAME` counts a graphics card, too. ~ goes by the size of its files alone."
)


@click.command("list")
@SCAN
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(scan: bool, as_json: bool) -> None:
    """List the curated pairs, the installed ones, and what other programs have on this disk."""
    used, damaged = used_bytes(), installed.damaged()
    speed = ranking.recall()
    pairs = ranking.ranked(catalogue.rows(), speed)
    heads = nearby_heads.of_installed()
    others = other_programs.scan() if scan else FoundModels(())
    if as_json:
        data = {
            "pairs": [_data(pair, heads.get(pair.row.name)) for pair in pairs],
            "proposed": [one.row.name for one in ranking.proposed(pairs)],
            "expectation": speed.basis(pairs) if speed else "",
            "found": [_found_data(model) for model in others.models],
            "used_bytes": used,
            "damaged": damaged,
        }
        click.echo(json.dumps(data, indent=2))
        return
    _print_table(_HEADINGS, map(_cells, pairs))
    _print_heads(heads)
    room = (speed and speed.room) or 0
    _print_found(others, room)
    click.echo("\n".join(proposed.lines(pairs, speed)))
    machine, card = pairs[0].row.fit, f", {formats.size(room)} of it on a graphics card"
    click.echo(
        f"\nMemory: {formats.size(machine.available)} available of {formats.size(machine.total)}"
        f"{card if room else ''}. Disk: {formats.size(used)} used by installed pairs."
    )
    click.echo(_MEANING)
    for name in damaged:
        safe_name = one_line(name)
        click.echo(
            f"warning: the record of {safe_name} is damaged; `localspec rm {safe_name}`", err=True
        )


def _print_heads(heads: Mapping[str, HeadOffer]) -> None:
    """Print the heads that lie next to installed targets, by the names of their pairs."""
    if heads:
        click.echo("\nHeads next to a target, not used yet:\n")
    for name, offer in heads.items():
        click.echo(unbroken(f"{name}: {describe.offer_line(offer)}"))


def _print_found(others: FoundModels, room: int) -> None:
    """Print other programs' models; `room` as in `MemoryFit.with_room`."""
    if others.models:
        click.echo("\nOf other programs, used where they are by these names:\n")
        shown = others.models[:_MOST_FOUND]
        _print_table(_FOUND_HEADINGS, (_found_cells(model, room) for model in shown))
        if len(others.models) > _MOST_FOUND:
            click.echo(f"and {len(others.models) - _MOST_FOUND:,} more, which --json shows")
    if not others.complete:
        click.echo(f"warning: looking for models ended after {other_programs.WITHIN_S} s", err=True)


def _print_table(headings: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> None:
    safe = [tuple(one_line(cell, 80) for cell in row) for row in rows]
    click.echo("\n".join(formats.columns([headings, *safe])))


def _cells(pair: RankedPair) -> tuple[str, ...]:
    row = pair.row
    return (
        row.name,
        row.kind,
        formats.size(row.n_bytes),
        _memory(row.fit),
        f"{pair.speeds or '-'}{', slow' if pair.verdict == 'slow' else ''}",
        row.licence or "not stated",
        row.state,
    )


def _found_cells(model: FoundModel, room: int) -> tuple[str, ...]:
    return (
        model.name,
        model.store,
        model.quant or "-",
        formats.size(model.n_bytes),
        _memory(unread(model.n_bytes).with_room(room)),
        model.licence or "not stated",
    )


def _memory(fit: MemoryFit) -> str:
    return f"{fit.size}: {fit.verdict}"


def _data(pair: RankedPair, head: HeadOffer | None) -> dict[str, Any]:
    data = asdict(pair.row)
    del data["fit"]
    return data | {
        "bytes": data.pop("n_bytes"),
        "memory": describe.fit_data(pair.row.fit),
        "tokens_per_second": pair.data,
        "offered_head": describe.offer_data(head),
    }


def _found_data(model: FoundModel) -> dict[str, Any]:
    data = asdict(model)
    template = other_programs.has_template(model.path)
    return data | {"path": str(model.path), "bytes": data.pop("n_bytes"), "template": template}
