"""Sizes, durations and errors as people read them."""

from __future__ import annotations

import re


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


def duration(seconds: float) -> str:
    """`seconds` as ``45 s``, ``3 min 20 s`` or ``2 h 05 min``."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02} min"


def plain(text: str, limit: int = 80) -> str:
    """Give `text`, which strangers wrote, as one harmless line of at most `limit` characters."""
    line = "".join(char if char.isprintable() else "?" for char in text[: limit + 1])
    return line if len(line) <= limit else line[: limit - 3] + "..."


def reason(error: BaseException) -> str:
    """Give the first line of an error without its number, safe to show."""
    lines = re.sub(r"^\[Errno -?\d+\] ", "", str(error).strip()).splitlines()
    return plain(lines[0], 160) if lines else type(error).__name__
