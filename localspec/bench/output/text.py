"""The report for a terminal, with colours and plots of characters or plain, and as Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from localspec.bench.output.tables import ReportTable, facts, partings, tables
from localspec.bench.result import ALL, ArmReport, Interval, Report

_GREEN, _RED, _BOLD, _DIM, _RESET = "\x1b[32m", "\x1b[31m", "\x1b[1m", "\x1b[2m", "\x1b[0m"
_WIDTH = 40  # characters of the longest bar
_MOST_PARTINGS = 8


def text(report: Report, *, colour: bool) -> str:
    """Settings, tables, plots, verdict; the verdict last, where the eye is."""
    parts = [_facts(report, colour=colour)]
    parts += [_table(table, colour=colour) for table in tables(report)]
    parts += [_speedups(arm, colour=colour) for arm in report.on if arm.overall.speedup]
    parts += [_curve(report)] if report.step else []
    parts += [_partings(report)] if report.agreement.partings else []
    verdict = "\n".join(report.verdict)
    parts.append(f"{_paint('Verdict', _BOLD, colour=colour)}\n{verdict}")
    return "\n\n".join(parts)


def _paint(said: str, style: str, *, colour: bool) -> str:
    return f"{style}{said}{_RESET}" if colour else said


def _facts(report: Report, *, colour: bool) -> str:
    lines = facts(report)
    width = max(len(name) for name, _ in lines)
    return "\n".join(
        f"{_paint(f'{name:<{width}}', _DIM, colour=colour)}  {said}" for name, said in lines
    )


def _table(table: ReportTable, *, colour: bool) -> str:
    cells = [table.headers, *table.rows]
    widths = [max(len(row[i]) for row in cells) for i in range(len(table.headers))]
    lines = [
        "  ".join(
            f"{cell:>{width}}" if i else f"{cell:<{width}}"
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in cells
    ]
    lines[0] = _paint(lines[0], _DIM, colour=colour)
    return "\n".join([_paint(table.title, _BOLD, colour=colour), *lines])


def _speedups(arm: ArmReport, *, colour: bool) -> str:
    """Bars of the speed-ups; the mark in each stands where plain decoding is."""
    rows = [(row.kind, row.speedup) for row in arm.rows if row.speedup]
    top = max(found.value for _, found in rows)
    scale = _WIDTH / max(top, 1.0)
    width = max(len(kind) for kind, _ in rows)
    lines = [f"{kind:<{width}}  {_bar(kind, found, scale, colour=colour)}" for kind, found in rows]
    title = f"Speed-up with {arm.name}; | is plain decoding"
    return "\n".join([_paint(title, _BOLD, colour=colour), *lines])


def _bar(kind: str, found: Interval, scale: float, *, colour: bool) -> str:
    one, length = round(scale), max(1, round(scale * found.value))
    marks = ["#" if i < length else " " for i in range(max(length, one))]
    marks[one - 1] = "|"
    bar = "".join(marks).ljust(_WIDTH)
    style = _GREEN if found.above_one else _RED if found.below_one else ""
    mark = "*" if kind == ALL else " "
    return f"{_paint(bar, style, colour=colour and bool(style))} {mark}{found}"


def _curve(report: Report) -> str:
    """T(n) as bars."""
    known = [(point.n, point.seconds) for point in report.curve if point.seconds is not None]
    longest = max(seconds for _, seconds in known)
    lines = [
        f"{n:>4}  {'#' * max(1, round(_WIDTH * seconds / longest))} {1e3 * seconds:.3g} ms"
        for n, seconds in known
    ]
    return "\n".join(["T(n)", *lines])


def _partings(report: Report) -> str:
    found = partings(report)
    lines = [f"  {line}" for line in found[:_MOST_PARTINGS]]
    if len(found) > _MOST_PARTINGS:
        lines.append(f"  and {len(found) - _MOST_PARTINGS} more, see --json")
    return "\n".join(["Where answers part", *lines])


def markdown(report: Report) -> str:
    """Verdict, tables, settings."""
    parts = ["## localspec bench", _list(report.verdict), *map(_markdown_table, tables(report))]
    if report.agreement.partings:
        parts.append(f"### Where answers part\n\n{_list(partings(report))}")
    parts.append(_list([f"{name}: {text}" for name, text in facts(report)]))
    return "\n\n".join(part for part in parts if part) + "\n"


def _list(lines: Sequence[str]) -> str:
    return "\n".join(f"- {_cell(line)}" for line in lines)


def _markdown_table(table: ReportTable) -> str:
    rule = ["---", *["---:"] * (len(table.headers) - 1)]
    lines = [f"| {' | '.join(map(_cell, row))} |" for row in (table.headers, rule, *table.rows)]
    return f"### {_cell(table.title)}\n\n" + "\n".join(lines)


def _cell(text: str) -> str:
    """`text` in a table or a list: no bar, mark-up or line break of its own."""
    flat = " ".join(text.split())
    for mark in "\\`*_|<>[]":
        flat = flat.replace(mark, f"\\{mark}")
    return flat
