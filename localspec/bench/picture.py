"""The report as a picture: speed-ups by kind, T(n), and predicted against measured."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Sequence
from html import escape
from textwrap import wrap
from typing import TYPE_CHECKING

from localspec.bench.result import ArmReport, BenchReport, MeanInterval, SweepPoint
from localspec.formats import known

if TYPE_CHECKING:
    from PIL import ImageDraw

# ruff: noqa: PLC0415 - Pillow is an extra, which only a PNG needs

_SCALE = 2  # pixels of the PNG for one of the drawing
_WIDTH, _LEFT, _RIGHT = 900.0, 150.0, 860.0
_ROW, _PLOT = 26.0, 190.0
_INK, _GREY, _GREEN, _RED, _BLUE = "#222222", "#999999", "#2e8b57", "#c0392b", "#2a6fb0"
_SMALL, _BIG = 12.0, 16.0
_MOST_TEXT = 106  # characters to a line

Point = tuple[float, float]
Series = tuple[list[Point], str]
"""Points and their colour."""


class Drawing:
    """Shapes on white, as SVG and as PNG; later ones cover earlier ones.

    Lengths are in pixels from the top left; colours are ``#rrggbb``. `height` is the end of the
    drawing so far, where the next part begins.
    """

    def __init__(self, width: float, height: float = 0.0) -> None:
        self.width, self.height = width, height
        self._elements: list[str] = []
        self._strokes: list[Callable[[ImageDraw.ImageDraw], object]] = []

    def rect(self, x: float, y: float, width: float, height: float, colour: str) -> None:
        """Draw a filled rectangle."""
        self._elements.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"'
            f' fill="{colour}"/>'
        )
        left, top = round(_SCALE * x), round(_SCALE * y)
        right = round(_SCALE * (x + width)) - 1  # Pillow paints the end pixels as well
        bottom = round(_SCALE * (y + height)) - 1
        if right >= left and bottom >= top:
            self._strokes.append(lambda pen: pen.rectangle((left, top, right, bottom), colour))

    def line(self, points: Sequence[Point], colour: str, width: float) -> None:
        """Draw a line through at least two points."""
        listed = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self._elements.append(
            f'<polyline points="{listed}" fill="none" stroke="{colour}" stroke-width="{width:g}"/>'
        )
        scaled, thick = [(_SCALE * x, _SCALE * y) for x, y in points], round(_SCALE * width)
        self._strokes.append(lambda pen: pen.line(scaled, colour, thick, joint="curve"))

    def text(self, x: float, y: float, text: str, size: float = _SMALL, colour: str = _INK) -> None:
        """Draw a line of text; its base line begins at `x`, `y`, and its height is `size`."""
        self._elements.append(
            f'<text x="{x:.1f}" y="{y:.1f}" font-family="sans-serif" font-size="{size:g}"'
            f' fill="{colour}">{escape(text)}</text>'
        )

        def stroke(pen: ImageDraw.ImageDraw) -> None:
            from PIL import ImageFont

            font = ImageFont.load_default(_SCALE * size)
            pen.text((_SCALE * x, _SCALE * y), text, colour, font, anchor="ls")

        self._strokes.append(stroke)

    def svg(self) -> bytes:
        """The drawing as an SVG document."""
        size = f'width="{self.width:g}" height="{self.height:g}"'
        lines = [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size}'
            f' viewBox="0 0 {self.width:g} {self.height:g}">',
            f'<rect {size} fill="#ffffff"/>',
            *self._elements,
            "</svg>\n",
        ]
        return "\n".join(lines).encode()

    def png(self) -> bytes:
        """The drawing as a PNG file of `_SCALE` times the size, in Pillow's own font."""
        from PIL import Image, ImageDraw

        size = math.ceil(_SCALE * self.width), math.ceil(_SCALE * self.height)
        image = Image.new("RGB", size, "white")
        pen = ImageDraw.Draw(image)
        for stroke in self._strokes:
            stroke(pen)
        out = io.BytesIO()
        image.save(out, "PNG")
        return out.getvalue()


def draw(report: BenchReport) -> Drawing:
    """Draw a report from the top down."""
    drawing = Drawing(_WIDTH)
    _heading(report, drawing)
    for arm in report.on:
        if arm.overall.speedup is not None:
            _speedups(arm, drawing)
    if not report.on:
        _speeds(report.off, drawing)
    if report.step is not None:
        _curve(report, drawing)
    if len(report.sweep) > 1:
        _sweep(report.sweep, drawing)
    drawing.height += 10
    return drawing


def _heading(report: BenchReport, drawing: Drawing) -> None:
    where = report.environment
    drafts = ", ".join(str(draft["name"]) for draft in where["drafts"]) or "no draft"
    drawing.text(20, 30, f"{where['target']['name']} with {drafts}"[:80], _BIG)
    y = 52.0
    for line, colour in [
        (str(where["machine"]), _GREY),
        *((said, _INK) for said in report.verdict),
    ]:
        for part in wrap(line, _MOST_TEXT, break_on_hyphens=False):
            drawing.text(20, y, part, colour=colour)
            y += 17
    drawing.height = y + 8


def _speedups(arm: ArmReport, drawing: Drawing) -> None:
    """Draw a bar and interval for every kind, and a line at 1, the speed without drafting."""
    rows = [(row.kind, row.speedup) for row in arm.rows if row.speedup]
    top = drawing.height + 24
    scale = _bars(f"Speed-up: {arm.name}, gamma {arm.gamma}"[:90], rows, drawing, least=1.0)
    bottom = top + len(rows) * _ROW
    drawing.line(((_LEFT + scale, top - 2), (_LEFT + scale, bottom)), _INK, 1.5)


def _speeds(off: ArmReport, drawing: Drawing) -> None:
    """Draw bars of the speed without drafting, for a report that has nothing else."""
    speeds = [(row.kind, row.tokens_per_second) for row in off.rows]
    rows = [(kind, MeanInterval(speed)) for kind, speed in speeds if speed is not None]
    _bars("Without drafting, tokens/s", rows, drawing)


def _bars(
    title: str,
    rows: Sequence[tuple[str, MeanInterval]],
    drawing: Drawing,
    least: float | None = None,
) -> float:
    """Draw a bar for every row; returns pixels per unit.

    `least` is a value that the width must include in any case: 1 for speed-ups.
    """
    drawing.text(20, drawing.height + 12, title, _BIG)
    y = drawing.height + 24
    values = [found.value for _, found in rows] + ([] if least is None else [least])
    most = 2 * max(values, default=0.5)  # the interval of two questions may be without bounds
    ends = [min(found.high, most) for _, found in rows if found.high is not None]
    width = _RIGHT - 170 - _LEFT
    scale = width / max((*values, *ends), default=1.0)
    for kind, found in rows:
        colour = _GREEN if found.above_one else _RED if found.below_one else _GREY
        drawing.text(20, y + 14, kind[:18])
        drawing.rect(
            _LEFT, y + 2, scale * found.value, _ROW - 8, _BLUE if least is None else colour
        )
        if found.low is not None and found.high is not None:
            middle = y + _ROW / 2 - 2
            right = _LEFT + min(width, scale * found.high)
            ends_at = (_LEFT + scale * found.low, middle), (right, middle)
            drawing.line(ends_at, _INK, 2)
        said = f"{found.value:.1f}" if least is None else known(found)
        drawing.text(_RIGHT - 150, y + 14, said)
        y += _ROW
    drawing.height = y + 20
    return scale


def _curve(report: BenchReport, drawing: Drawing) -> None:
    measured = [(float(p.n), 1e3 * p.seconds) for p in report.curve if p.seconds is not None]
    seen = [(float(p.n), 1e3 * p.in_runs) for p in report.curve if p.in_runs is not None]
    title = "T(n), milliseconds: measured beforehand (blue), in the runs (grey)"
    _plot(title, [(measured, _BLUE), (seen, _GREY)], drawing)


def _sweep(points: Sequence[SweepPoint], drawing: Drawing) -> None:
    expected = [(float(p.predicted.gamma), p.predicted.tokens_per_second) for p in points]
    measured = [
        (float(p.predicted.gamma), p.tokens_per_second)
        for p in points
        if p.tokens_per_second is not None
    ]
    title = "Tokens/s by draft length: predicted (blue), measured (green)"
    _plot(title, [(expected, _BLUE), (measured, _GREEN)], drawing)


def _plot(title: str, series: Sequence[Series], drawing: Drawing) -> None:
    """Draw lines over axes that begin at zero."""
    drawing.text(20, drawing.height + 12, title, _BIG)
    top, bottom = drawing.height + 28, drawing.height + 28 + _PLOT
    most_x = max(x for points, _ in series for x, _ in points)
    most_y = max(y for points, _ in series for _, y in points)

    def at(x: float, y: float) -> Point:
        across = _LEFT + (_RIGHT - _LEFT) * x / (most_x or 1.0)
        return across, bottom - (bottom - top) * y / most_y

    drawing.line((at(0, most_y), at(0, 0), at(most_x, 0)), _GREY, 1)
    for quarter in range(5):
        value = most_y * quarter / 4
        drawing.text(_LEFT - 60, at(0, value)[1] + 4, f"{value:.4g}")
    for n in range(int(most_x) + 1):
        drawing.text(at(n, 0)[0] - 4, bottom + 18, str(n))
    for points, colour in series:
        placed = [at(*point) for point in points]
        if len(placed) > 1:
            drawing.line(placed, colour, 2)
        for across, down in placed:
            drawing.rect(across - 3, down - 3, 6, 6, colour)
    drawing.height = bottom + 44
