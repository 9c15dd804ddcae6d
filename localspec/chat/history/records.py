"""What is stored of a conversation, as plain values; texts by origin in a compact form."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from localspec.chat.conversation import Message
from localspec.chat.events import Origin, Span
from localspec.chat.history.tree import Tree

VERSION = 1
"""Of exported files."""

_TITLE_LENGTH = 60
_IMPOSSIBLE = 1e12
_LAST_MOMENT = 1e11  # thousands of years from now
_RUN = re.compile(r"([dt])([0-9]{1,15})")
_LETTERS = {Origin.DRAFT: "d", Origin.TARGET: "t"}
_ORIGINS = {letter: origin for origin, letter in _LETTERS.items()}


@dataclass(frozen=True, slots=True)
class PairReference:
    """How a pair is called, and what loads it again.

    Attributes:
        name: for people.
        target: what names the target on the command line; empty where that is not known.
        draft: the same for a draft that was named on its own; None for the pair's own.
    """

    name: str = ""
    target: str = ""
    draft: str | None = None


@dataclass(frozen=True, slots=True)
class Header:
    """A conversation without its messages.

    Attributes:
        id: unlike any other.
        title: one line.
        pair: what answered last.
        parameters: settings by name, see `parameters`.
        created, updated: seconds since 1970.
    """

    id: str
    title: str
    pair: PairReference
    parameters: Mapping[str, Any] = field(default_factory=dict)
    created: float = 0.0
    updated: float = 0.0


@dataclass(frozen=True, slots=True)
class Listed:
    """A conversation in a list.

    Attributes:
        header: what it is.
        messages: how many messages it has, all versions counted.
        found: where a search has hit, in a few words; empty without a search.
    """

    header: Header
    messages: int
    found: str = ""


@dataclass(slots=True)
class Stored:
    """A whole conversation."""

    header: Header
    tree: Tree


def title_of(message: Message) -> str:
    """A title made of the first question: its first words on one line."""
    line = " ".join(message.content.split())
    return line if len(line) <= _TITLE_LENGTH else line[: _TITLE_LENGTH - 1] + "…"


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
