"""The report as Markdown, to paste into an issue."""

from __future__ import annotations

from collections.abc import Sequence

from localspec.bench.output.tables import Table, facts, partings, tables
from localspec.bench.result import Report


def markdown(report: Report) -> str:
    """Verdict, tables, settings."""
    parts = ["## localspec bench", _list(report.verdict), *map(_table, tables(report))]
    if report.agreement.partings:
        parts.append(f"### Where answers part\n\n{_list(partings(report))}")
    parts.append(_list([f"{name}: {text}" for name, text in facts(report)]))
    return "\n\n".join(part for part in parts if part) + "\n"


def _list(lines: Sequence[str]) -> str:
    return "\n".join(f"- {_cell(line)}" for line in lines)


def _table(table: Table) -> str:
    rule = ["---", *["---:"] * (len(table.headers) - 1)]
    lines = [f"| {' | '.join(map(_cell, row))} |" for row in (table.headers, rule, *table.rows)]
    return f"### {_cell(table.title)}\n\n" + "\n".join(lines)


def _cell(text: str) -> str:
    """`text` in a table or a list: no bar, mark-up or line break of its own."""
    flat = " ".join(text.split())
    for mark in "\\`*_|<>[]":
        flat = flat.replace(mark, f"\\{mark}")
    return flat
