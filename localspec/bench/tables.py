"""The report's tables, for a terminal, as Markdown and as CSV."""

from __future__ import annotations

import csv as writer
import io
import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from localspec.bench.result import ALL, ArmReport, BenchReport, KindRow, MeanInterval
from localspec.formats import columns, known, milliseconds, number, percent, times

_GREEN, _RED, _BOLD, _DIM, _RESET = "\x1b[32m", "\x1b[31m", "\x1b[1m", "\x1b[2m", "\x1b[0m"
_WIDTH = 40  # characters of the longest bar
_MOST_PARTINGS = 8
_WIDE = ("tokens/round", "gamma", "first token off/on, ms")  # columns that `brief` leaves out

TitledRows: TypeAlias = tuple[str, list[dict[str, str]]]
"""A title, and rows: cells by the column's header, which are the same in every row."""


def tables(report: BenchReport) -> list[TitledRows]:
    """The tables of a report, without empty ones, in reading order."""
    found = [_speeds(report.off, arm) for arm in report.on] or [_baseline_speeds(report.off)]
    found += [_shares(report), _sweep(report), _curve(report)]
    return [(title, rows) for title, rows in found if rows]


def _baseline_speeds(off: ArmReport) -> TitledRows:
    """Speeds without drafting."""
    rows = [
        {
            "kind": row.kind,
            "prompts": str(row.prompts),
            "tokens/s": number(row.tokens_per_second),
            "first token, ms": milliseconds(row.time_to_first_token_s),
        }
        for row in off.rows
    ]
    return "Without drafting", rows


def _speeds(off: ArmReport, on: ArmReport) -> TitledRows:
    """Speeds without and with drafting."""
    rows = [
        {
            "kind": b.kind,
            "off, tokens/s": number(a.tokens_per_second),
            "on, tokens/s": number(b.tokens_per_second),
            "speed-up (95 %)": known(b.speedup),
            "accepted": percent(b.acceptance),
            "tokens/round": number(b.tokens_per_round, 2),
            "gamma": number(b.gamma),
            "first token off/on, ms": f"{milliseconds(a.time_to_first_token_s)}"
            f"/{milliseconds(b.time_to_first_token_s)}",
        }
        for a, b in zip(off.rows, on.rows, strict=True)
    ]
    return f"{on.name}: draft {on.draft}, gamma {on.gamma}", rows


def _shares(report: BenchReport) -> TitledRows:
    """Where the time goes, without the prompt."""
    rows = [
        {
            "": arm.name,
            "draft": percent(parts.draft),
            "verify": percent(parts.verify),
            "Python": percent(parts.python),
        }
        for arm in (report.off, *report.on)
        if (parts := arm.overall.shares) is not None
    ]
    return "Where the time goes", rows


def _sweep(report: BenchReport) -> TitledRows:
    """Predicted and measured speeds by draft length; measured ones alone where lookup drafts."""
    if not report.sweep and (swept := [arm for arm in report.arms if arm.swept]):
        rows = [
            {
                "gamma": arm.gamma,
                "tokens/round": number(arm.overall.tokens_per_round, 2),
                "measured, tokens/s": number(arm.overall.tokens_per_second),
                "speed-up (95 %)": known(arm.overall.speedup),
            }
            for arm in (report.off, *swept)
        ]
        return "Measured, by draft length", rows
    rows = [
        {
            "gamma": str(point.predicted.gamma),
            "tokens/round": number(point.predicted.tokens_per_round, 2),
            "predicted, tokens/s": number(point.predicted.tokens_per_second),
            "measured, tokens/s": number(point.tokens_per_second),
            "predicted/measured": _quotient(
                point.predicted.tokens_per_second, point.tokens_per_second
            ),
            "speed-up (95 %)": known(point.speedup),
            "perfect drafts": times(point.predicted.roofline),
        }
        for point in report.sweep
    ]
    return "Predicted against measured, by draft length", rows


def _curve(report: BenchReport) -> TitledRows:
    """T(n), measured before the runs and in them."""
    rows = [
        {
            "tokens": str(point.n),
            "ms": milliseconds(point.seconds),
            "of T(1)": _quotient(point.seconds, report.step),
            "in the runs, ms": milliseconds(point.in_runs),
        }
        for point in report.curve
    ]
    return "T(n): what one pass of the target costs", rows


def _quotient(above: float | None, below: float | None) -> str:
    return number(above / below if above and below else None, 2)


def _partings(report: BenchReport) -> list[str]:
    """Where answers differ, one line for each pair."""
    return [
        f"{each.prompt}, {each.arm}: after {each.at} tokens, margin {number(each.margin, 3)}"
        for each in report.agreement.partings
    ]


def _facts(report: BenchReport) -> list[tuple[str, str]]:
    """Machine, models, versions and settings, as names and values."""
    where = report.environment
    models = [("target", where["target"]), *(("draft", draft) for draft in where["drafts"])]
    return [
        ("pair", str(where["pair"])),
        *((role, _model(model)) for role, model in models),
        ("machine", str(where["machine"])),
        ("system", f"{where['system']}, Python {where['python']}, localspec {where['localspec']}"),
        ("llama-cpp-python", str(where["llama_cpp_python"]).strip()),
        ("loaded with", _listed(where["loaded_with"])),
        ("asked", _listed(report.settings)),
        ("peak memory", f"{report.peak_memory_bytes / 1e6:,.0f} MB"),
    ]


def _model(model: dict[str, Any]) -> str:
    digest = next((f"{key} {value}" for key, value in model.items() if key.startswith("sha")), "")
    return f"{model['name']}, {model['file_bytes']:,} bytes, {digest}"


def _listed(values: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{name} {('/'.join(map(str, value)) or 'none') if isinstance(value, list) else value}"
        for name, value in values.items()
    )


def text(report: BenchReport, *, colour: bool) -> str:
    """The report for a terminal; the verdict comes last, next to the prompt."""
    facts = _facts(report)
    width = max(len(name) for name, _ in facts)
    parts = ["\n".join(f"{_paint(f'{name:<{width}}', _DIM)}  {said}" for name, said in facts)]
    parts += map(_aligned, tables(report))
    parts += [_speedups(arm) for arm in report.on if arm.overall.speedup]
    parts += [_curve_bars(report)] if report.step else []
    if partings := _partings(report):
        more = [f"and {len(partings) - _MOST_PARTINGS} more, see --json"]
        shown = partings[:_MOST_PARTINGS] + (more if len(partings) > _MOST_PARTINGS else [])
        parts.append("\n  ".join(["Where answers part", *shown]))
    parts.append("\n".join([_paint("Verdict", _BOLD), *report.verdict]))
    said = "\n\n".join(parts)
    return said if colour else _plain(said)


def brief(report: BenchReport) -> str:
    """The verdict and the figures that it rests on, in lines of at most 80 cells."""
    found = [_speeds(report.off, arm) for arm in report.on] or [_baseline_speeds(report.off)]
    parts = ["\n".join(["Verdict", *report.verdict])]
    for title, rows in [*found, _shares(report)]:
        short = [{name: row[name] for name in row if name not in _WIDE} for row in rows]
        parts += [_plain(_aligned((title, short)))] if short else []
    return "\n\n".join(parts)


def _plain(said: str) -> str:
    return re.sub("\x1b\\[[0-9]+m", "", said)


def _paint(said: str, style: str) -> str:
    return f"{style}{said}{_RESET}" if style else said


def _aligned(table: TitledRows) -> str:
    title, rows = table
    cells = [[*rows[0]], *([*row.values()] for row in rows)]
    head, *lines = columns(cells, figures=True)
    return "\n".join([_paint(title, _BOLD), _paint(head, _DIM), *lines])


def _speedups(arm: ArmReport) -> str:
    """Bars of the speed-ups, each with a mark at 1, the speed without drafting."""
    rows = [(row.kind, row.speedup) for row in arm.rows if row.speedup]
    scale = _WIDTH / max(1.0, *(found.value for _, found in rows))
    width = max(len(kind) for kind, _ in rows)
    lines = [f"{kind:<{width}}  {_bar(kind, found, scale)}" for kind, found in rows]
    return "\n".join([_paint(f"Speed-up with {arm.name}; | is without drafting", _BOLD), *lines])


def _bar(kind: str, found: MeanInterval, scale: float) -> str:
    one, length = round(scale), max(1, round(scale * found.value))
    marks = ["#" if i < length else " " for i in range(max(length, one))]
    marks[one - 1] = "|"
    style = _GREEN if found.above_one else _RED if found.below_one else ""
    return f"{_paint(''.join(marks).ljust(_WIDTH), style)} {'*' if kind == ALL else ' '}{found}"


def _curve_bars(report: BenchReport) -> str:
    """T(n) as bars."""
    points = [(point.n, point.seconds) for point in report.curve if point.seconds is not None]
    longest = max(seconds for _, seconds in points)
    lines = [
        f"{n:>4}  {'#' * max(1, round(_WIDTH * seconds / longest))} {1e3 * seconds:.3g} ms"
        for n, seconds in points
    ]
    return "\n".join(["T(n)", *lines])


def markdown(report: BenchReport) -> str:
    """The report as Markdown: verdict, tables, settings."""
    parts = ["## localspec bench", _list(report.verdict), *map(_markdown_table, tables(report))]
    if report.agreement.partings:
        parts.append(f"### Where answers part\n\n{_list(_partings(report))}")
    parts.append(_list([f"{name}: {said}" for name, said in _facts(report)]))
    return "\n\n".join(part for part in parts if part) + "\n"


def _list(lines: Sequence[str]) -> str:
    return "\n".join(f"- {_cell(line)}" for line in lines)


def _markdown_table(table: TitledRows) -> str:
    title, rows = table
    rule = ["---", *["---:"] * (len(rows[0]) - 1)]
    cells = [map(_cell, rows[0]), rule, *(map(_cell, row.values()) for row in rows)]
    return "\n".join([f"### {_cell(title)}\n", *(f"| {' | '.join(row)} |" for row in cells)])


def _cell(said: str) -> str:
    """Escape `said` for a cell or a list item, and join its lines."""
    return re.sub(r"([\\`*_|<>\[\]])", r"\\\1", " ".join(said.split()))


def csv(report: BenchReport) -> str:
    """The report as CSV: one line for every setting and kind, figures unrounded."""
    names = (
        *("arm", "draft", "gamma_setting", "kind", "prompts", "tokens_per_second", "speedup"),
        *("speedup_low", "speedup_high", "acceptance_rate", "tokens_per_round", "gamma"),
        *("drafting_share", "time_to_first_token_s", "draft_share", "verify_share", "python_share"),
    )
    out = io.StringIO()
    lines = writer.writer(out, lineterminator="\n")
    lines.writerow(names)
    for arm in report.arms:
        lines.writerows(_csv_row(arm, row) for row in arm.rows)
    return out.getvalue()


def _csv_row(arm: ArmReport, row: KindRow) -> Sequence[object]:
    found, parts = row.speedup, row.shares
    return (
        *(arm.name, arm.draft, arm.gamma, row.kind, row.prompts, row.tokens_per_second),
        *((found.value, found.low, found.high) if found else (None, None, None)),
        *(row.acceptance, row.tokens_per_round, row.gamma, row.drafting),
        row.time_to_first_token_s,
        *((parts.draft, parts.verify, parts.python) if parts else (None, None, None)),
    )
