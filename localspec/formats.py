"""Figures as text: sizes, durations, shares and counts look the same everywhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

UNKNOWN: Final = "–"
_SWAP_WORTH_MENTIONING: Final = 200_000_000  # bytes
_SLOW_CLOCK: Final = 0.6
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def columns(rows: Sequence[Sequence[str]], *, figures: bool = False) -> list[str]:
    """Lines in which the cells of `rows` form columns, left-aligned.

    With `figures`, all columns but the first are right-aligned.
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
    """A whole number with separated thousands: ``12,345``; a dash for None."""
    return UNKNOWN if value is None else f"{value:,}"


def counted(n: int, noun: str) -> str:
    """A number of things: ``1 layer``, ``12,345 layers``."""
    return f"{n:,} {noun}{'' if n == 1 else 's'}"


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
    """A share of 1 as ``82 %``; a dash for None."""
    return UNKNOWN if share is None else f"{100 * share:.{digits}f} %"


def speed(tokens_per_second: float | None) -> str:
    """Tokens per second: ``9.4``, ``1,234``; a dash for None."""
    if tokens_per_second is None:
        return UNKNOWN
    return f"{tokens_per_second:.1f}" if tokens_per_second < 100 else f"{tokens_per_second:,.0f}"


def many(value: float) -> str:
    """A large number in words: ``135 million``, ``1.54 billion``."""
    value /= 1000
    for unit in ("million", "billion"):
        value /= 1000
        if value < 999.5:
            return f"{value:.3g} {unit}"
    return f"{value / 1000:.3g} trillion"


def known(value: object) -> str:
    """`value` as text; a dash for None."""
    return UNKNOWN if value is None else str(value)


def busy(taken: float, threads: int) -> str:
    """A clause: other programs take `taken` of the machine's threads."""
    return f"other programs keep {min(taken, threads):.1f} of {threads} threads busy"


ON_BATTERY: Final = "the machine runs on its battery, most are slower then"


def swapped(used: int, free: int, total: int) -> list[str]:
    """A clause if memory was swapped out (`used` bytes) and less than a quarter is free."""
    if used <= _SWAP_WORTH_MENTIONING or free >= total // 4:
        return []
    return [f"{used / 1e9:.1f} GB are swapped out, and reading them back stops everything"]


def throttled(clock: float | None, most: float | None) -> list[str]:
    """A clause if a working processor runs far below its highest clock. MHz; None if unknown."""
    if not clock or not most or clock >= _SLOW_CLOCK * most:
        return []
    return [f"the processor works at {clock:,.0f} of {most:,.0f} MHz: hot, or saving power"]


def number(value: float | None, digits: int = 1) -> str:
    """A number with `digits` decimals: ``1.6``; a dash for None."""
    return UNKNOWN if value is None else f"{value:.{digits}f}"


def times(ratio: float) -> str:
    """A speed-up: ``1.62×``."""
    return f"{ratio:.2f}×"


def milliseconds(seconds: float | None) -> str:
    """Milliseconds as ``12.3`` or ``1,230``, where the unit is named; a dash for None."""
    if seconds is None:
        return UNKNOWN
    value = 1e3 * seconds
    return f"{value:.3g}" if 1e-3 <= value < 999.5 else f"{value:,.0f}"


def seconds(value: float | None) -> str:
    """A measured time: ``45 ms``, ``3.2 s``, ``3 min 20 s``; a dash for None."""
    if value is None:
        return UNKNOWN
    if value < 1:
        return f"{1000 * value:.0f} ms"
    return f"{value:.1f} s" if value < 60 else duration(value)


def duration(seconds: float) -> str:
    """An expected time: ``45 s``, ``3 min 20 s`` or ``2 h 05 min``."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02} min"


def moment(seconds: float, show: Callable[[datetime], str]) -> str:
    """What `show` makes of a time here, given as seconds since 1970.

    A question mark stands for what the platform cannot show: Windows knows no time after 3000.
    """
    try:
        return show((_EPOCH + timedelta(seconds=seconds)).astimezone())
    except (OSError, OverflowError, ValueError):
        return "?"
