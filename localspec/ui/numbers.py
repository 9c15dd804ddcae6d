"""Figures as people read them: units, thousands, a dash for what is not known yet."""

from __future__ import annotations

UNKNOWN = "–"
_KIB = 1024.0


def count(value: int) -> str:
    """A whole number with thousands apart."""
    return f"{value:,}"


def speed(value: float | None) -> str:
    """Tokens per second with three figures that matter."""
    if value is None:
        return UNKNOWN
    return f"{value:.1f}" if value < 100 else f"{value:,.0f}"


def percent(share: float | None) -> str:
    """A share of 1 as a whole percentage."""
    return UNKNOWN if share is None else f"{100 * share:.0f} %"


def ratio(value: float | None) -> str:
    """A small number with two decimals."""
    return UNKNOWN if value is None else f"{value:.2f}"


def seconds(value: float | None) -> str:
    """A duration: milliseconds while it is short."""
    if value is None:
        return UNKNOWN
    if value < 1:
        return f"{1000 * value:.0f} ms"
    if value < 60:
        return f"{value:.1f} s"
    return f"{value // 60:.0f} min {value % 60:02.0f} s"


def size(octets: int) -> str:
    """Bytes in the largest binary unit that leaves at least 1."""
    value = float(octets)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < _KIB:
            return f"{value:.0f} {unit}" if unit == "B" or value >= 100 else f"{value:.1f} {unit}"
        value /= _KIB
    return f"{value:.2f} TiB"
