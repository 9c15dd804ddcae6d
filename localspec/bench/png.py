"""A drawing as PNG: painted with numpy, packed with zlib. Text is drawn in strokes."""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from localspec.bench.drawing import Drawing, Line, Rect, Text
from localspec.bench.strokes import ADVANCE, HEIGHT, strokes

_SCALE = 2  # pixels of the picture to one of the drawing
_PEN = 0.11  # of the height of text

Canvas = NDArray[np.float32]
"""Shape (height, width, 3), 0 to 255."""


def png(drawing: Drawing) -> bytes:
    """The file's bytes."""
    shape = math.ceil(_SCALE * drawing.height), math.ceil(_SCALE * drawing.width), 3
    canvas: Canvas = np.full(shape, 255, dtype=np.float32)
    for each in drawing.shapes:
        if isinstance(each, Rect):
            _fill(canvas, each)
        elif isinstance(each, Line):
            for start, end in pairwise(each.points):
                _segment(canvas, start, end, each.width, each.colour)
        else:
            _write(canvas, each)
    return _pack(np.rint(canvas).astype(np.uint8))


def _colour(text: str) -> Canvas:
    return np.array([int(text[i : i + 2], 16) for i in (1, 3, 5)], dtype=np.float32)


def _fill(canvas: Canvas, rect: Rect) -> None:
    left, right = (max(0, round(_SCALE * x)) for x in (rect.x, rect.x + rect.width))
    top, bottom = (max(0, round(_SCALE * y)) for y in (rect.y, rect.y + rect.height))
    canvas[top:bottom, left:right] = _colour(rect.colour)


def _segment(
    canvas: Canvas,
    start: tuple[float, float],
    end: tuple[float, float],
    width: float,
    colour: str,
) -> None:
    """A stroke with round ends; a pixel is covered as far as it lies within half the width."""
    (x0, y0), (x1, y1) = ([_SCALE * value for value in point] for point in (start, end))
    half = _SCALE * width / 2
    rows, columns = canvas.shape[:2]
    top, bottom = max(0, int(min(y0, y1) - half - 1)), min(rows, int(max(y0, y1) + half + 2))
    left, right = max(0, int(min(x0, x1) - half - 1)), min(columns, int(max(x0, x1) + half + 2))
    if top >= bottom or left >= right:
        return
    y, x = np.mgrid[top:bottom, left:right] + 0.5
    dx, dy = x1 - x0, y1 - y0
    along = np.clip(((x - x0) * dx + (y - y0) * dy) / (dx * dx + dy * dy or 1.0), 0, 1)
    distance = np.hypot(x - x0 - along * dx, y - y0 - along * dy)
    cover = np.clip(half + 0.5 - distance, 0, 1)[..., None].astype(np.float32)
    part = canvas[top:bottom, left:right]
    part += cover * (_colour(colour) - part)


def _write(canvas: Canvas, text: Text) -> None:
    """Text, a letter of `strokes` after another."""
    unit = 0.72 * text.size / HEIGHT  # capitals are lower than the size of a font
    for index, character in enumerate(text.text):
        left = text.x + index * ADVANCE * unit
        for line in strokes(character):
            placed = [(left + x * unit, text.y - (HEIGHT - y) * unit) for x, y in line]
            for start, end in pairwise(placed):
                _segment(canvas, start, end, _PEN * text.size, text.colour)


def _pack(pixels: NDArray[np.uint8]) -> bytes:
    """The chunks of a PNG file: eight bits a channel, no filters."""
    height, width = pixels.shape[:2]
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    raw = np.zeros((height, 1 + 3 * width), dtype=np.uint8)
    raw[:, 1:] = pixels.reshape(height, -1)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(raw.tobytes(), 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunks(chunks))


def _chunks(chunks: tuple[tuple[bytes, bytes], ...]) -> Iterator[bytes]:
    for name, data in chunks:
        yield struct.pack(">I", len(data)) + name + data
        yield struct.pack(">I", zlib.crc32(name + data))
