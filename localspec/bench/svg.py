"""A drawing as SVG."""

from __future__ import annotations

from html import escape

from localspec.bench.drawing import Drawing, Line, Rect, Text


def svg(drawing: Drawing) -> str:
    """One SVG document; text is escaped."""
    size = f'width="{drawing.width:g}" height="{drawing.height:g}"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size}'
        f' viewBox="0 0 {drawing.width:g} {drawing.height:g}">',
        f'<rect {size} fill="#ffffff"/>',
        *map(_element, drawing.shapes),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _element(shape: Rect | Line | Text) -> str:
    if isinstance(shape, Rect):
        return (
            f'<rect x="{shape.x:.1f}" y="{shape.y:.1f}" width="{shape.width:.1f}"'
            f' height="{shape.height:.1f}" fill="{shape.colour}"/>'
        )
    if isinstance(shape, Line):
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in shape.points)
        return (
            f'<polyline points="{points}" fill="none" stroke="{shape.colour}"'
            f' stroke-width="{shape.width:g}"/>'
        )
    return (
        f'<text x="{shape.x:.1f}" y="{shape.y:.1f}" font-family="sans-serif"'
        f' font-size="{shape.size:g}" fill="{shape.colour}">{escape(shape.text)}</text>'
    )
