"""Figures as people read them, one way each everywhere: sizes, durations, shares, counts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

UNKNOWN: Final = "–"
_SWAP_WORTH_MENTIONING: Final = 200_000_000  # bytes
_SLOW_CLOCK: Final = 0.6


def columns(rows: Sequence[Sequence[str]], *, figures: bool = False) -> list[str]:
    """Lines in which the cells of `rows` stand below each other.

    They begin on one line; with `figures` all but the first column's end on one.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if figures and i else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def count(value: int | None) -> str:
    """A whole number with its thousands apart: ``12,345``; a dash where it is not known."""
    return UNKNOWN if value is None else f"{value:,}"


def size(n_bytes: int) -> str:
    """`n_bytes` in decimal units, as disks and the Hub count: ``4.68 GB``, ``512 bytes``."""
    if n_bytes < 1000:
        return f"{n_bytes} bytes"
    value = float(n_bytes)
    for unit in ("kB", "MB", "GB"):
        value /= 1000
        if value < 999.5:
            return f"{value:.3g} {unit}"
    return f"{value / 1000:.3g} TB"


def percent(share: float | None, digits: int = 0) -> str:
    """A share of 1: ``82 %``; a dash where it is not known."""
    return UNKNOWN if share is None else f"{100 * share:.{digits}f} %"


def speed(tokens_per_second: float | None) -> str:
    """Tokens per second with the figures that matter: ``9.4``, ``1,234``; a dash for unknown."""
    if tokens_per_second is None:
        return UNKNOWN
    return f"{tokens_per_second:.1f}" if tokens_per_second < 100 else f"{tokens_per_second:,.0f}"


def known(value: object) -> str:
    """`value` as text; a dash where it is not known."""
    return UNKNOWN if value is None else str(value)


def busy(taken: float, threads: int) -> str:
    """A clause: other programs take `taken` of the machine's threads."""
    return f"other programs keep {min(taken, threads):.1f} of {threads} threads busy"


ON_BATTERY: Final = "the machine runs on its battery, most are slower then"


def swapped(used: int, free: int, total: int) -> list[str]:
    """A clause where memory was swapped out and may be missed, none while there is room. Bytes."""
    if used <= _SWAP_WORTH_MENTIONING or free >= total // 4:
        return []
    return [f"{used / 1e9:.1f} GB are swapped out: what is swapped in again stops everything"]


def throttled(clock: float | None, most: float | None) -> list[str]:
    """A clause where a processor at work runs far below its most. MHz; None where not known."""
    if not clock or not most or clock >= _SLOW_CLOCK * most:
        return []
    return [f"the processor works at {clock:,.0f} of {most:,.0f} MHz: hot, or saving power"]


def number(value: float | None, digits: int = 1) -> str:
    """A number with so many decimals: ``1.6``; a dash where it is not known."""
    return UNKNOWN if value is None else f"{value:.{digits}f}"


def times(ratio: float) -> str:
    """A speed-up: ``1.62x``."""
    return f"{ratio:.2f}x"


def milliseconds(seconds: float | None) -> str:
    """``12.3``, for a column that names the unit; a dash where it is not known."""
    return UNKNOWN if seconds is None else f"{1e3 * seconds:.3g}"


def seconds(value: float | None) -> str:
    """What something took: ``45 ms``, ``3.2 s``, ``3 min 20 s``; a dash where it is not known."""
    if value is None:
        return UNKNOWN
    if value < 1:
        return f"{1000 * value:.0f} ms"
    return f"{value:.1f} s" if value < 60 else duration(value)


def duration(seconds: float) -> str:
    """How long something will take: ``45 s``, ``3 min 20 s`` or ``2 h 05 min``."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02} min"
