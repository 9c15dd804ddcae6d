"""The report as a picture: speed-ups by kind, T(n), and predicted against measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from localspec.bench.output.drawing import Drawing, PlotLine, Rect, Text
from localspec.bench.result import ArmReport, Interval, Report, SweepPoint
from localspec.formats import known

_WIDTH, _LEFT, _RIGHT = 900.0, 150.0, 860.0
_ROW, _PLOT = 26.0, 190.0
_INK, _GREY, _GREEN, _RED, _BLUE = "#222222", "#999999", "#2e8b57", "#c0392b", "#2a6fb0"
_SMALL, _BIG = 12.0, 16.0
_MOST_TEXT = 106  # characters to a line

Shapes = list[Rect | PlotLine | Text]


def draw(report: Report) -> Drawing:
    """Everything from the top down."""
    shapes: Shapes = []
    y = _heading(report, shapes)
    for arm in report.on:
        if arm.overall.speedup is not None:
            y = _bars(arm, shapes, y)
    if not report.on:
        y = _speeds(report.off, shapes, y)
    if report.step is not None:
        y = _curve(report, shapes, y)
    if len(report.sweep) > 1:
        y = _sweep(report.sweep, shapes, y)
    return Drawing(_WIDTH, y + 10, tuple(shapes))


def _heading(report: Report, shapes: Shapes) -> float:
    where = report.environment
    drafts = ", ".join(str(draft["name"]) for draft in where["drafts"]) or "no draft"
    shapes.append(Text(20, 30, f"{where['target']['name']} with {drafts}"[:80], _BIG, _INK))
    lines = [str(where["machine"]), *report.verdict]
    y = 52.0
    for line in lines:
        for part in _wrapped(line):
            shapes.append(Text(20, y, part, _SMALL, _GREY if line is lines[0] else _INK))
            y += 17
    return y + 8


def _wrapped(line: str) -> list[str]:
    """`line` in pieces that fit."""
    pieces = [""]
    for word in line.split():
        if pieces[-1] and len(pieces[-1]) + 1 + len(word) > _MOST_TEXT:
            pieces.append(word)
        else:
            pieces[-1] = f"{pieces[-1]} {word}".strip()
    return [piece[:_MOST_TEXT] for piece in pieces]


def _bars(arm: ArmReport, shapes: Shapes, y: float) -> float:
    """A bar for every kind, with its interval; a line where plain decoding is."""
    rows = [(row.kind, row.speedup) for row in arm.rows if row.speedup]
    ends = [found.high or found.value for _, found in rows]
    scale = (_RIGHT - 170 - _LEFT) / max(*ends, 1.0)
    shapes.append(Text(20, y + 12, f"Speed-up: {arm.name}, gamma {arm.gamma}"[:90], _BIG, _INK))
    top = y + 24
    for index, (kind, found) in enumerate(rows):
        shapes.append(Text(20, top + index * _ROW + 14, kind[:18], _SMALL, _INK))
        _one_bar(found, shapes, top + index * _ROW, scale)
    bottom = top + len(rows) * _ROW
    shapes.append(PlotLine(((_LEFT + scale, top - 2), (_LEFT + scale, bottom)), _INK, 1.5))
    return bottom + 20


def _one_bar(found: Interval, shapes: Shapes, y: float, scale: float) -> None:
    colour = _GREEN if found.above_one else _RED if found.below_one else _GREY
    shapes.append(Rect(_LEFT, y + 2, scale * found.value, _ROW - 8, colour))
    if found.low is not None and found.high is not None:
        middle = y + _ROW / 2 - 2
        ends = ((_LEFT + scale * found.low, middle), (_LEFT + scale * found.high, middle))
        shapes.append(PlotLine(ends, _INK, 2))
    shapes.append(Text(_RIGHT - 150, y + 14, known(found), _SMALL, _INK))


def _speeds(off: ArmReport, shapes: Shapes, y: float) -> float:
    """Bars of plain decoding's speed, where there is nothing to compare it with."""
    known = [
        (row.kind, row.tokens_per_second) for row in off.rows if row.tokens_per_second is not None
    ]
    shapes.append(Text(20, y + 12, "Plain decoding, tokens/s", _BIG, _INK))
    top = max((speed for _, speed in known), default=1.0)
    y += 24
    for kind, speed in known:
        shapes.append(Text(20, y + 14, kind[:18], _SMALL, _INK))
        width = (_RIGHT - 170 - _LEFT) * speed / top
        shapes.append(Rect(_LEFT, y + 2, width, _ROW - 8, _BLUE))
        shapes.append(Text(_RIGHT - 150, y + 14, f"{speed:.1f}", _SMALL, _INK))
        y += _ROW
    return y + 20


def _curve(report: Report, shapes: Shapes, y: float) -> float:
    known = [(float(p.n), 1e3 * p.seconds) for p in report.curve if p.seconds is not None]
    seen = [(float(p.n), 1e3 * p.in_runs) for p in report.curve if p.in_runs is not None]
    title = "T(n), milliseconds: measured beforehand (blue), in the runs (grey)"
    return _plot(title, [(known, _BLUE), (seen, _GREY)], shapes, y)


def _sweep(points: Sequence[SweepPoint], shapes: Shapes, y: float) -> float:
    expected = [(float(p.predicted.gamma), p.predicted.tokens_per_second) for p in points]
    measured = [
        (float(p.predicted.gamma), p.tokens_per_second)
        for p in points
        if p.tokens_per_second is not None
    ]
    title = "Tokens/s by draft length: predicted (blue), measured (green)"
    return _plot(title, [(expected, _BLUE), (measured, _GREEN)], shapes, y)


Series = tuple[list[tuple[float, float]], str]


def _plot(title: str, series: Sequence[Series], shapes: Shapes, y: float) -> float:
    """Lines over axes that begin at zero."""
    shapes.append(Text(20, y + 12, title, _BIG, _INK))
    top, bottom = y + 28, y + 28 + _PLOT
    most_x = max(point[0] for points, _ in series for point in points)
    most_y = max(point[1] for points, _ in series for point in points)

    def at(point: tuple[float, float]) -> tuple[float, float]:
        across = _LEFT + (_RIGHT - _LEFT) * point[0] / (most_x or 1.0)
        return across, bottom - (bottom - top) * point[1] / most_y

    _axes(shapes, at, most_x, most_y)
    for points, colour in series:
        placed = tuple(at(point) for point in points)
        if len(placed) > 1:
            shapes.append(PlotLine(placed, colour, 2))
        shapes += [Rect(across - 3, down - 3, 6, 6, colour) for across, down in placed]
    return bottom + 44


def _axes(
    shapes: Shapes,
    at: Callable[[tuple[float, float]], tuple[float, float]],
    most_x: float,
    most_y: float,
) -> None:
    shapes.append(PlotLine((at((0, most_y)), at((0, 0)), at((most_x, 0))), _GREY, 1))
    for quarter in range(5):
        value = most_y * quarter / 4
        _, down = at((0, value))
        shapes.append(Text(_LEFT - 60, down + 4, f"{value:.4g}", _SMALL, _INK))
    for n in range(int(most_x) + 1):
        across, down = at((n, 0))
        shapes.append(Text(across - 4, down + 18, str(n), _SMALL, _INK))
