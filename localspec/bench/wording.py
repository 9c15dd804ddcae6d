"""Figures as people read them; the same words in every output."""

from __future__ import annotations

from localspec.bench.statistics import Interval

NOTHING = "-"


def times(value: float) -> str:
    """A speed-up: ``1.62x``."""
    return f"{value:.2f}x"


def share(value: float | None) -> str:
    """``82 %``."""
    return NOTHING if value is None else f"{100 * value:.0f} %"


def number(value: float | None, digits: int = 1) -> str:
    """With so many digits after the point."""
    return NOTHING if value is None else f"{value:.{digits}f}"


def milliseconds(seconds: float | None) -> str:
    """``12.3``; the unit stands above the column."""
    return NOTHING if seconds is None else f"{1e3 * seconds:.3g}"


def speedup(found: Interval | None) -> str:
    """``1.62x (1.50 to 1.75)``."""
    if found is None:
        return NOTHING
    if found.low is None or found.high is None:
        return times(found.value)
    return f"{times(found.value)} ({found.low:.2f} to {found.high:.2f})"


def interval_words(found: Interval) -> str:
    """``1.62x as fast over all (95 % interval 1.50 to 1.75)``."""
    said = f"{times(found.value)} as fast over all"
    if found.low is None or found.high is None:
        return said
    return f"{said} (95 % interval {found.low:.2f} to {found.high:.2f})"
