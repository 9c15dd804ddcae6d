"""The report as Markdown, to paste into an issue."""

from __future__ import annotations

from localspec.bench.report import Report
from localspec.bench.table import (
    Table,
    curve_table,
    facts,
    off_table,
    share_table,
    speed_table,
    sweep_table,
)
from localspec.bench.wording import number


def markdown(report: Report) -> str:
    """Verdict, tables, settings."""
    parts = ["## localspec bench", "\n".join(f"- {_cell(line)}" for line in report.verdict)]
    parts += [_table(table) for table in tables(report)]
    parts += [_partings(report)] if report.agreement.partings else []
    parts.append("\n".join(f"- {name}: {_cell(text)}" for name, text in facts(report)))
    return "\n\n".join(part for part in parts if part) + "\n"


def tables(report: Report) -> list[Table]:
    """Those that have something to say, in the order in which they are read."""
    found = [speed_table(report.off, arm) for arm in report.on] or [off_table(report.off)]
    found += [share_table(report), sweep_table(report), curve_table(report)]
    return [table for table in found if table.rows]


def _table(table: Table) -> str:
    rule = ["---", *["---:"] * (len(table.headers) - 1)]
    lines = [f"| {' | '.join(map(_cell, row))} |" for row in (table.headers, rule, *table.rows)]
    return f"### {_cell(table.title)}\n\n" + "\n".join(lines)


def _partings(report: Report) -> str:
    lines = [
        f"- {each.prompt}, {each.arm}: after {each.at} tokens, margin {number(each.margin, 3)}"
        for each in report.agreement.partings
    ]
    return "### Where answers part\n\n" + "\n".join(map(_cell, lines))


def _cell(text: str) -> str:
    """`text` in a table or a list: no bar, mark-up or line break of its own."""
    flat = " ".join(text.split())
    for mark in "\\`*_|<>[]":
        flat = flat.replace(mark, f"\\{mark}")
    return flat
