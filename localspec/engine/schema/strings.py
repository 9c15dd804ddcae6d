r"""How text stands in JSON, and regular expressions of it, as pieces of a grammar (GBNF). Pure.

Whatever may be any character stands there as itself or as one of the short escapes; half a pair of
surrogates is no text, so no escape of one is ever written.

Of regular expressions these are read: alternatives, groups, classes, ``.``, ``\d``, ``\s``, ``\w``,
escaped punctuation and the quantifiers.
"""

from __future__ import annotations

import re
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
_QUANTIFIER = re.compile(r"([*+?]|\{([0-9]+)(?:,([0-9]*))?\})\??")
_STARTS = "*+?{"
_ONE = re.compile(r"\\(.)|[^\\]", re.DOTALL)


def _points(*points: int) -> Ranges:
    return tuple((point, point) for point in points)


def literal(text: str) -> str:
    """`text`, which has no line ends, as a terminal of a grammar."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def times(least: int, most: int | None) -> str:
    """GBNF's operator for so many repetitions."""
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
    if not plain and not short:
        raise ValueError("a class has no character that can be written")
    ways = ([f"[{plain}]"] if plain else []) + ([rf'"\\" [{short}]'] if short else [])
    return f"({' | '.join(ways)})" if short else ways[0]


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
    return ord(char) in SHORT or bool(_without(_points(ord(char)), _APART))


def key_but(names: Iterable[str]) -> str:
    """A JSON string that is none of `names`.

    None of its characters has two spellings, so that no name comes in another one.
    """
    return rf'"\"" {_unlike(set(names))} "\"" space'


def _unlike(names: set[str]) -> str:
    """What makes none of `names`, up to the closing quote."""
    first = sorted({name[0] for name in names if name})
    ways = [f"{one_of(all_but(_points(*map(ord, first))))} plain*"]
    for char in first:
        if _spellable(char):
            rest = _unlike({name[1:] for name in names if name[:1] == char})
            ways.append(f"{one_of(_points(ord(char)))} {rest}")
    return f"({' | '.join(ways)}){'' if '' in names else '?'}"


_LINE_ENDS = _points(0x0A, 0x0D, 0x2028, 0x2029)
_DIGITS: Ranges = ((ord("0"), ord("9")),)
_LETTERS: Ranges = ((ord("A"), ord("Z")), (ord("a"), ord("z")))
_SETS: dict[str, Ranges] = {
    "d": _DIGITS,
    "s": (
        *((0x09, 0x0D), (0x2000, 0x200A), (0x2028, 0x2029)),
        *_points(0x20, 0xA0, 0x1680, 0x202F, 0x205F, 0x3000, 0xFEFF),
    ),
    "w": (*_DIGITS, *_LETTERS, *_points(ord("_"))),
}
_ESCAPED: dict[str, Ranges] = {
    **_SETS,
    **{name.upper(): all_but(inside) for name, inside in _SETS.items()},
    **{mark: _points(ord(char)) for mark, char in zip("nrtf", "\n\r\t\f", strict=True)},
}


def pattern_to_gbnf(pattern: str) -> str:
    """The text that matches `pattern`, which is searched for unless it has ``^`` and ``$``.

    Raises:
        ValueError: it is none, or says something that is not read here.
    """
    reader = _Reader(pattern)
    begins = reader.skip("^")
    ways = reader.alternatives()
    ends = reader.skip("$")
    if reader.rest:
        raise ValueError(f"{reader.rest!r} cannot stand there")
    if len(ways) > 1 and (begins or ends):
        raise ValueError("its alternatives must stand in brackets: ^(a|b)$")
    before, after = "" if begins else "char*", "" if ends else "char*"
    return f"{before} ({' | '.join(ways)}) {after}".strip()


class _Reader:
    """Reads a pattern from left to right."""

    def __init__(self, pattern: str) -> None:
        self.rest = pattern

    def skip(self, text: str) -> bool:
        """Pass over `text` if it comes next."""
        found = self.rest.startswith(text)
        self.rest = self.rest.removeprefix(text)
        return found

    def alternatives(self) -> list[str]:
        """Sequences between bars."""
        ways = [self._sequence()]
        while self.skip("|"):
            ways.append(self._sequence())
        return ways

    def _sequence(self) -> str:
        items = []
        while self.rest and self.rest[0] not in "|)$":
            items.append(self._item() + self._quantifier())
        return " ".join(items) or '""'

    def _quantifier(self) -> str:
        found = _QUANTIFIER.match(self.rest)
        if found is None:
            return ""
        self.rest = self.rest[found.end() :]
        if self.rest.startswith(tuple(_STARTS)):
            raise ValueError(f"{self.rest!r} cannot follow a quantifier")
        if found[3] and int(found[2]) > int(found[3]):
            raise ValueError(f"{found[1]!r} ends below where it begins")
        return found[1]

    def _item(self) -> str:
        if self.skip("("):
            if self.rest.startswith("?") and not self.skip("?:"):
                raise ValueError(f"'({self.rest[:3]}' is not read here")
            ways = self.alternatives()
            if not self.skip(")"):
                raise ValueError("a bracket is not closed")
            return f"({' | '.join(ways)})"
        if self.skip("["):
            return one_of(self._class())
        if self.skip("."):
            return one_of(all_but(_LINE_ENDS))
        if self.rest[0] in _STARTS + "^":
            raise ValueError(f"{self.rest[0]!r} cannot stand there")
        return one_of(self._one())

    def _class(self) -> Ranges:
        negated = self.skip("^")
        ranges: list[tuple[int, int]] = []
        while not self.skip("]"):
            low = self._one()
            if self.rest.startswith("-]") or not self.skip("-"):
                ranges += low
                continue
            high = self._one()
            if len({*low, *high}) > 2 or low[0][0] != low[-1][1] or high[0][0] != high[-1][1]:
                raise ValueError("a class has a range between sets")
            if low[0][0] > high[0][0]:
                raise ValueError("a class has a range that ends below where it begins")
            ranges.append((low[0][0], high[0][0]))
        return all_but(ranges) if negated else ranges

    def _one(self) -> Ranges:
        """The next character, or the set that an escape stands for."""
        found = _ONE.match(self.rest)
        if found is None:
            raise ValueError("it ends too soon")
        self.rest = self.rest[found.end() :]
        escaped = found[1]
        if escaped in _ESCAPED:
            return _ESCAPED[escaped]
        if escaped and (escaped.isalnum() or escaped == "_"):
            raise ValueError(f"'\\{escaped}' is not read here")
        return _points(ord(escaped or found[0]))
