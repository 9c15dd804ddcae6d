"""A picture as plain values: rectangles, lines and text. Lengths in pixels, from the top left."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rect:
    """A filled rectangle; colours are ``#rrggbb``."""

    x: float
    y: float
    width: float
    height: float
    colour: str


@dataclass(frozen=True, slots=True)
class Line:
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
    shapes: tuple[Rect | Line | Text, ...]
