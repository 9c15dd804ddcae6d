r"""Regular expressions, as JSON schemas use them, as pieces of a grammar (GBNF). Pure.

What is read: alternatives, groups, classes, ``.``, ``\d``, ``\s``, ``\w``, escaped
punctuation and the quantifiers. What comes out stands between the quotes of a JSON string.
"""

from __future__ import annotations

import re

from localspec.engine.schema.text import Ranges, all_but, one_of

_DIGITS: Ranges = ((ord("0"), ord("9")),)
_SPACES: Ranges = (
    *((0x09, 0x0D), (0x2000, 0x200A), (0x2028, 0x2029)),
    *((point, point) for point in (0x20, 0xA0, 0x1680, 0x202F, 0x205F, 0x3000, 0xFEFF)),
)
_SETS: dict[str, Ranges] = {
    "d": _DIGITS,
    "s": _SPACES,
    "w": (*_DIGITS, (ord("A"), ord("Z")), (ord("a"), ord("z")), (ord("_"), ord("_"))),
}
_CONTROLS = {"n": "\n", "r": "\r", "t": "\t", "f": "\f"}
_LINE_ENDS: Ranges = tuple((point, point) for point in (0x0A, 0x0D, 0x2028, 0x2029))
_QUANTIFIER = re.compile(r"([*+?]|\{([0-9]+)(?:,([0-9]*))?\})\??")
_STARTS = "*+?{"


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
        if not self.rest.startswith(text):
            return False
        self.rest = self.rest[len(text) :]
        return True

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
        if self.rest[:1] and self.rest[0] in _STARTS:
            raise ValueError(f"{self.rest!r} cannot follow a quantifier")
        least, most = found[2], found[3]
        if most and int(least) > int(most):
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
            if not (self.rest.startswith("-") and not self.rest.startswith("-]")):
                ranges += low
                continue
            self.skip("-")
            high = self._one()
            if len({*low, *high}) > 2 or low[0][0] != low[-1][1] or high[0][0] != high[-1][1]:
                raise ValueError("a class has a range between sets")
            if low[0][0] > high[0][0]:
                raise ValueError("a class has a range that ends below where it begins")
            ranges.append((low[0][0], high[0][0]))
        return all_but(ranges) if negated else ranges

    def _one(self) -> Ranges:
        """The next character, or the set that an escape stands for."""
        if not self.rest:
            raise ValueError("it ends too soon")
        char, escaped = self.rest[0], self.skip("\\")
        if escaped:
            if not self.rest:
                raise ValueError("it ends too soon")
            char = self.rest[0]
        self.rest = self.rest[1:]
        if escaped and char.lower() in _SETS:
            inside = _SETS[char.lower()]
            return inside if char.islower() else all_but(inside)
        if escaped and (char.isalnum() or char == "_"):
            if char not in _CONTROLS:
                raise ValueError(f"'\\{char}' is not read here")
            char = _CONTROLS[char]
        return ((ord(char), ord(char)),)
