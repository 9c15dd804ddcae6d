"""How text stands in JSON, as pieces of a grammar (GBNF). Pure.

Whatever may be any character stands there as itself or as one of the short escapes; half a pair of
surrogates is no text, so no escape of one is ever written.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

Ranges = Sequence[tuple[int, int]]
"""Code points, the first and the last of every range."""

HEX = "[0-9a-fA-F]"
CHAR = (
    r'[^"\\\x7F\x00-\x1F] | "\\" (["\\/bfnrt]'
    r' | "u" ([0-9a-cA-CefEF] hex | [dD] [0-7]) hex hex)'
)
SHORT = {ord(char): mark for char, mark in zip('"\\\b\f\n\r\t', '"\\bfnrt', strict=True)}
"""The characters that have a short escape, and its letter."""

# Of every year: all but the 29th of February.
_DAY = (
    '("0" [13578] | "1" [02]) "-" ("0" [1-9] | [12] [0-9] | "3" [01])'
    ' | ("0" [469] | "11") "-" ("0" [1-9] | [12] [0-9] | "30")'
    ' | "02-" ("0" [1-9] | "1" [0-9] | "2" [0-8])'
)
_LEAP_YEAR = (
    '([0-9]{2} ("0" [48] | [2468] [048] | [13579] [26]) | ([02468] [048] | [13579] [26]) "00")'
)
DATE = f'[0-9]{{4}} "-" ({_DAY}) | {_LEAP_YEAR} "-02-29"'
TIME = (
    '([01] [0-9] | "2" [0-3]) ":" [0-5] [0-9] ":" [0-5] [0-9] ("." [0-9]{3})?'
    ' ("Z" | [-+] ([01] [0-9] | "2" [0-3]) ":" [0-5] [0-9])'
)
FORMATS = {"date": "date", "time": "time", "date-time": 'date "T" time'} | {
    f"uuid{version}": f'hex{{8}} "-" hex{{4}} "-" {third} "-" {fourth} "-" hex{{12}}'
    for version, third, fourth in (
        ("", "hex{4}", "hex{4}"),
        *((str(n), f'"{n}" hex{{3}}', "[89abAB] hex{3}") for n in range(1, 6)),
    )
}
"""What a string of a format looks like inside; ``date``, ``time`` and ``hex`` are rules."""

_APART: Ranges = ((0, 0x1F), (0x22, 0x22), (0x5C, 0x5C), (0x7F, 0x7F), (0xD800, 0xDFFF))
_LAST = 0x10FFFF


def literal(text: str) -> str:
    """`text`, which has no line ends, as a terminal of a grammar."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def times(least: int, most: int | None) -> str:
    """The operator for so many repetitions."""
    return f"{{{least},{most}}}" if most is not None else f"{{{least},}}" if least else "*"


def one_of(ranges: Ranges) -> str:
    """One character of `ranges` inside a JSON string.

    Raises:
        ValueError: none of them can stand there.
    """
    plain = "".join(
        f"{_code(a)}-{_code(b)}" if a < b else _code(a) for a, b in _without(ranges, _APART)
    )
    short = "".join(_code(ord(SHORT[c])) for c in SHORT if any(a <= c <= b for a, b in ranges))
    ways = [f"[{plain}]"] if plain else []
    ways += [rf'"\\" [{short}]'] if short else []
    if not ways:
        raise ValueError("a class has no character that can be written")
    return ways[0] if ways == [f"[{plain}]"] else f"({' | '.join(ways)})"


def all_but(ranges: Ranges) -> Ranges:
    """Every character but those of `ranges`."""
    return _without([(0, _LAST)], ranges)


def _without(ranges: Ranges, others: Ranges) -> Ranges:
    left = list(ranges)
    for low, high in others:
        left = [
            part
            for a, b in left
            for part in ((a, min(b, low - 1)), (max(a, high + 1), b))
            if part[0] <= part[1]
        ]
    return sorted(set(left))


def _code(point: int) -> str:
    char = chr(point)
    plain = char.isascii() and char.isprintable() and char not in '"\\[]^-'
    return char if plain else f"\\U{point:08X}"


def _spellable(char: str) -> bool:
    return ord(char) in SHORT or bool(_without([(ord(char), ord(char))], _APART))


def key_but(names: Iterable[str]) -> str:
    """A JSON string that is none of `names`.

    None of its characters has two spellings, so that no name comes in another one.
    """
    return rf'"\"" {_unlike(set(names))} "\"" space'


def _unlike(names: set[str]) -> str:
    """What makes none of `names`, up to the closing quote."""
    first = sorted({name[0] for name in names if name})
    ways = [f"{one_of(all_but([(ord(char), ord(char)) for char in first]))} plain*"]
    for char in first:
        if _spellable(char):
            rest = _unlike({name[1:] for name in names if name[:1] == char})
            ways.append(f"{one_of([(ord(char), ord(char))])} {rest}")
    return f"({' | '.join(ways)}){'' if '' in names else '?'}"
