"""Values as files hold them, and back: what is damaged in one never hides the rest."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from localspec.chat.conversation import Message, Role
from localspec.chat.events import Origin, Span
from localspec.chat.history.tree import Header, Node, PairReference
from localspec.engine.stats import FinishReason

_IMPOSSIBLE = 1e12
_LAST_MOMENT = 1e11  # thousands of years from now
_RUN = re.compile(r"([dt])([0-9]{1,15})")
_LETTERS = {Origin.DRAFT: "d", Origin.TARGET: "t"}
_ORIGINS = {letter: origin for origin, letter in _LETTERS.items()}


def storable(text: str) -> str:
    """`text` without lone surrogates, which no file can hold; of the same length."""
    return text.encode("utf-8", "replace").decode()


def sound_figures(figures: Any) -> dict[str, Any]:
    """Figures out of a file, without what no answer ever had: nan, infinity, absurd sizes."""
    return {
        name: value
        for name, value in (figures.items() if isinstance(figures, Mapping) else ())
        if isinstance(value, str) or (isinstance(value, int | float) and 0 <= value < _IMPOSSIBLE)
    }


def is_moment(value: Any) -> bool:
    """Whether this is a time, in seconds since 1970, that a clock could show."""
    return isinstance(value, int | float) and 0 <= value < _LAST_MOMENT


def pack(spans: Iterable[Span]) -> str:
    """Who wrote how many characters, such as ``t5d12t4``."""
    runs: list[tuple[str, int]] = []
    for span in spans:
        letter = _LETTERS[span.origin]
        if runs and runs[-1][0] == letter:
            runs[-1] = (letter, runs[-1][1] + len(span.text))
        else:
            runs.append((letter, len(span.text)))
    return "".join(f"{letter}{count}" for letter, count in runs if count)


def unpack(content: str, origins: str) -> tuple[Span, ...]:
    """The spans of `content`; none where `origins` does not fit it."""
    spans = []
    at = 0
    for letter, count in _RUN.findall(origins):
        spans.append(Span(content[at : at + int(count)], _ORIGINS[letter]))
        at += int(count)
    return tuple(spans) if at == len(content) else ()


def readable(raw: bytes) -> str:
    """Text of a file, also where it is not UTF-8."""
    return raw.decode("utf-8", "replace")


def text(value: Any) -> str:
    """A value as text, whatever the file holds in its place."""
    if isinstance(value, bytes):
        return readable(value)
    return "" if value is None else str(value)


def header_of(row: Sequence[Any], wrong: set[str]) -> Header:
    """A conversation out of its id, title, pair, parameters and two times.

    Args:
        row: these values.
        wrong: gets the names of those that cannot be read.
    """
    return Header(
        text(row[0]),
        _text(row[1], "title", wrong),
        PairReference.of(_mapping(row[2], "pair", wrong)),
        _mapping(row[3], "settings", wrong),
        *(_moment(value, wrong) for value in row[4:6]),
    )


def node_of(row: Sequence[Any], wrong: set[str]) -> Node:
    """A message out of its id, parent, role, content, finish, origins and figures.

    Args:
        row: these values.
        wrong: gets the names of those that cannot be read.
    """
    node_id, parent, role, content, finish, origins, figures = row
    said = _text(content, "message", wrong)
    reason = FinishReason(finish) if finish in set(FinishReason) else None
    message = Message(_role(role, finish, wrong), said, reason, unpack(said, text(origins)))
    return Node(
        text(node_id),
        None if parent is None else text(parent),
        message,
        sound_figures(_mapping(figures, "figures", wrong)),
    )


def _role(value: Any, finish: Any, wrong: set[str]) -> Role:
    """Who spoke; where that is damaged, whoever's messages end for a reason."""
    if value in set(Role):
        return Role(value)
    wrong.add("speaker")
    return Role.USER if finish is None else Role.ASSISTANT


def _text(value: Any, name: str, wrong: set[str]) -> str:
    if not isinstance(value, str):
        wrong.add(name)
    return text(value)


def _moment(value: Any, wrong: set[str]) -> float:
    if is_moment(value):
        return float(value)
    wrong.add("time")
    return 0.0


def _mapping(value: Any, name: str, wrong: set[str]) -> Mapping[str, Any]:
    try:
        found = json.loads(value)
    except (ValueError, TypeError, RecursionError):
        found = None
    if isinstance(found, dict):
        return found
    wrong.add(name)
    return {}
