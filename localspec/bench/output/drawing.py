"""A picture as plain values, and its two file formats. Lengths in pixels, from the top left."""

from __future__ import annotations

import io
import math
from dataclasses import dataclass
from html import escape

from PIL import Image, ImageDraw, ImageFont

_SCALE = 2  # pixels of a PNG to one of the drawing


@dataclass(frozen=True, slots=True)
class Rect:
    """A filled rectangle; colours are ``#rrggbb``."""

    x: float
    y: float
    width: float
    height: float
    colour: str


@dataclass(frozen=True, slots=True)
class PlotLine:
    """A line through at least two points."""

    points: tuple[tuple[float, float], ...]
    colour: str
    width: float


@dataclass(frozen=True, slots=True)
class Text:
    """One line of text; `x` and `y` are where its base line begins, `size` is its height."""

    x: float
    y: float
    text: str
    size: float
    colour: str


@dataclass(frozen=True, slots=True)
class Drawing:
    """Shapes on white, the later ones above the earlier ones."""

    width: float
    height: float
    shapes: tuple[Rect | PlotLine | Text, ...]

    def svg(self) -> str:
        """One SVG document; text is escaped."""
        size = f'width="{self.width:g}" height="{self.height:g}"'
        lines = [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size}'
            f' viewBox="0 0 {self.width:g} {self.height:g}">',
            f'<rect {size} fill="#ffffff"/>',
            *map(_element, self.shapes),
            "</svg>",
        ]
        return "\n".join(lines) + "\n"

    def png(self) -> bytes:
        """A PNG file of twice the size, with the font that comes with Pillow."""
        size = math.ceil(_SCALE * self.width), math.ceil(_SCALE * self.height)
        image = Image.new("RGB", size, "white")
        pen = ImageDraw.Draw(image)
        for shape in self.shapes:
            _paint(pen, shape)
        out = io.BytesIO()
        image.save(out, "PNG")
        return out.getvalue()


def _element(shape: Rect | PlotLine | Text) -> str:
    if isinstance(shape, Rect):
        return (
            f'<rect x="{shape.x:.1f}" y="{shape.y:.1f}" width="{shape.width:.1f}"'
            f' height="{shape.height:.1f}" fill="{shape.colour}"/>'
        )
    if isinstance(shape, PlotLine):
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in shape.points)
        return (
            f'<polyline points="{points}" fill="none" stroke="{shape.colour}"'
            f' stroke-width="{shape.width:g}"/>'
        )
    return (
        f'<text x="{shape.x:.1f}" y="{shape.y:.1f}" font-family="sans-serif"'
        f' font-size="{shape.size:g}" fill="{shape.colour}">{escape(shape.text)}</text>'
    )


def _paint(pen: ImageDraw.ImageDraw, shape: Rect | PlotLine | Text) -> None:
    if isinstance(shape, Rect):
        left, top = round(_SCALE * shape.x), round(_SCALE * shape.y)
        right = round(_SCALE * (shape.x + shape.width)) - 1  # Pillow's ends are painted as well
        bottom = round(_SCALE * (shape.y + shape.height)) - 1
        if right >= left and bottom >= top:
            pen.rectangle((left, top, right, bottom), fill=shape.colour)
    elif isinstance(shape, PlotLine):
        points = [(_SCALE * x, _SCALE * y) for x, y in shape.points]
        pen.line(points, fill=shape.colour, width=round(_SCALE * shape.width), joint="curve")
    else:
        font = ImageFont.load_default(_SCALE * shape.size)
        at = (_SCALE * shape.x, _SCALE * shape.y)
        pen.text(at, shape.text, fill=shape.colour, font=font, anchor="ls")
