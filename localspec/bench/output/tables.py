"""The report's tables as cells, for the terminal and for Markdown, and as CSV."""

from __future__ import annotations

import csv as writer
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from localspec.bench.result import ArmReport, KindRow, Report
from localspec.formats import known, milliseconds, number, percent, times


@dataclass(frozen=True, slots=True)
class ReportTable:
    """Cells as text; the first column is to the left, the others are to the right.

    Attributes:
        title: what stands above it; empty for none.
        headers: the columns.
        rows: as many cells as there are headers.
    """

    title: str
    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def tables(report: Report) -> list[ReportTable]:
    """Those that have something to say, in the order in which they are read."""
    found = [_speeds(report.off, arm) for arm in report.on] or [_plain_speeds(report.off)]
    found += [_shares(report), _sweep(report), _curve(report)]
    return [table for table in found if table.rows]


def _plain_speeds(off: ArmReport) -> ReportTable:
    """Plain decoding alone."""
    headers = ("kind", "prompts", "tokens/s", "first token, ms")
    rows = [
        (
            row.kind,
            str(row.prompts),
            number(row.tokens_per_second),
            milliseconds(row.time_to_first_token_s),
        )
        for row in off.rows
    ]
    return ReportTable("Plain decoding", headers, tuple(rows))


def _speeds(off: ArmReport, on: ArmReport) -> ReportTable:
    """Off against on."""
    headers = (
        *("kind", "off, tokens/s", "on, tokens/s", "speed-up (95 %)", "accepted"),
        *("tokens/round", "gamma", "first token off/on, ms"),
    )
    rows = [_speed_row(a, b) for a, b in zip(off.rows, on.rows, strict=True)]
    title = f"{on.name}: draft {on.draft}, gamma {on.gamma}"
    return ReportTable(title, headers, tuple(rows))


def _speed_row(off: KindRow, on: KindRow) -> tuple[str, ...]:
    return (
        on.kind,
        number(off.tokens_per_second),
        number(on.tokens_per_second),
        known(on.speedup),
        percent(on.acceptance),
        number(on.tokens_per_round, 2),
        number(on.gamma),
        f"{milliseconds(off.time_to_first_token_s)}/{milliseconds(on.time_to_first_token_s)}",
    )


def _shares(report: Report) -> ReportTable:
    """Where the time goes, the prompt left out."""
    rows = [
        (arm.name, percent(parts.draft), percent(parts.verify), percent(parts.python))
        for arm in (report.off, *report.on)
        if (parts := arm.overall.shares) is not None
    ]
    return ReportTable("Where the time goes", ("", "draft", "verify", "Python"), tuple(rows))


def _sweep(report: Report) -> ReportTable:
    """Predicted against measured."""
    headers = (
        *("gamma", "tokens/round", "predicted, tokens/s", "measured, tokens/s"),
        *("predicted/measured", "speed-up (95 %)", "perfect drafts"),
    )
    rows = [
        (
            str(point.predicted.gamma),
            number(point.predicted.tokens_per_round, 2),
            number(point.predicted.tokens_per_second),
            number(point.tokens_per_second),
            number(
                point.predicted.tokens_per_second / point.tokens_per_second
                if point.tokens_per_second
                else None,
                2,
            ),
            known(point.speedup),
            times(point.predicted.roofline),
        )
        for point in report.sweep
    ]
    return ReportTable("Predicted against measured, by draft length", headers, tuple(rows))


def _curve(report: Report) -> ReportTable:
    """T(n)."""
    alone = report.step
    rows = [
        (
            str(point.n),
            milliseconds(point.seconds),
            number(point.seconds / alone if point.seconds and alone else None, 2),
            milliseconds(point.in_runs),
        )
        for point in report.curve
    ]
    headers = ("tokens", "ms", "of T(1)", "in the runs, ms")
    return ReportTable("T(n): what one pass of the target costs", headers, tuple(rows))


def partings(report: Report) -> list[str]:
    """Where answers part, a line each."""
    return [
        f"{each.prompt}, {each.arm}: after {each.at} tokens, margin {number(each.margin, 3)}"
        for each in report.agreement.partings
    ]


def facts(report: Report) -> list[tuple[str, str]]:
    """Machine, models, versions and settings, a line each."""
    where, asked = report.environment, report.settings
    models = [("target", where["target"]), *(("draft", draft) for draft in where["drafts"])]
    lines = [("pair", str(where["pair"]))]
    lines += [(role, _model(model)) for role, model in models]
    lines += [
        ("machine", str(where["machine"])),
        ("system", f"{where['system']}, Python {where['python']}, localspec {where['localspec']}"),
        ("llama-cpp-python", str(where["llama_cpp_python"]).strip()),
        ("loaded with", _listed(where["loaded_with"])),
        ("asked", _listed(asked)),
        ("peak memory", f"{report.peak_memory_bytes / 1e6:,.0f} MB"),
    ]
    return lines


def _model(model: dict[str, Any]) -> str:
    digest = next((f"{key} {value}" for key, value in model.items() if key.startswith("sha")), "")
    return f"{model['name']}, {model['file_bytes']:,} bytes, {digest}"


def _listed(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {_value(value)}" for name, value in values.items())


def _value(value: object) -> str:
    if isinstance(value, list):
        return "/".join(map(str, value)) or "none"
    return str(value)


def csv(report: Report) -> str:
    """One line for every setting and kind, figures unrounded."""
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
