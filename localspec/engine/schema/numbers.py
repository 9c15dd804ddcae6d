"""Numbers between two bounds, as GBNF that writes each of them and nothing else. Pure."""

from __future__ import annotations

from collections.abc import Iterator

LARGEST = 10**16 - 1
"""No number of more digits is written, with bounds or without."""


def between(least: int | None, most: int | None, *, fractions: bool) -> str:
    """The JSON numbers from `least` to `most`, without exponents.

    Args:
        least: None for as far down as numbers are written.
        most: None for as far up.
        fractions: whether other than whole ones are written, too.

    Raises:
        ValueError: there is none.
    """
    low = -LARGEST if least is None else max(-LARGEST, least)
    high = LARGEST if most is None else min(LARGEST, most)
    if low > high:
        raise ValueError("no number lies between these bounds")
    ways = []
    if low < 0:
        ways.append(f'"-" ({_sizes(max(0, -high), -low, fractions=fractions)})')
    if high >= 0:
        ways.append(_sizes(max(0, low), high, fractions=fractions))
    return f"({' | '.join(ways)})"


def _sizes(low: int, high: int, *, fractions: bool) -> str:
    if not fractions:
        return _whole(low, high)
    top = f'"{high}" ("." "0"{{1,16}})?'
    return f'({_whole(low, high - 1)}) ("." [0-9]{{1,16}})? | {top}' if low < high else top


def _whole(low: int, high: int) -> str:
    """The whole numbers from `low` to `high`, none below 0: those of each length by themselves."""
    ways: list[str] = []
    for length in range(len(str(low)), len(str(high)) + 1):
        first = 10 ** (length - 1) if length > 1 else 0
        ways += _digits(str(max(low, first)), str(min(high, 10**length - 1)))
    return " | ".join(ways)


def _digits(low: str, high: str) -> Iterator[str]:
    """The numbers between two of as many digits: by their first digit, then by what follows."""
    if not low:
        yield '""'
        return
    rest = len(low) - 1
    nines, zeros = "9" * rest, "0" * rest
    first, last = int(low[0]), int(high[0])
    if first == last:
        yield f'"{first}" ({" | ".join(_digits(low[1:], high[1:]))})'
        return
    if low[1:] != zeros:
        yield f'"{first}" ({" | ".join(_digits(low[1:], nines))})'
        first += 1
    if high[1:] != nines:
        yield f'"{last}" ({" | ".join(_digits(zeros, high[1:]))})'
        last -= 1
    if first <= last:
        yield f"[{first}-{last}]" + (f" [0-9]{{{rest}}}" if rest else "")
