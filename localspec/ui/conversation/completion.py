"""What may follow in the input: commands, their words, file names."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.cells import cell_len, set_cell_size
from textual.content import Content
from textual.widgets import Static

from localspec.pairs.folders import user_path
from localspec.safe_text import one_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from localspec.ui.commands import Command

MOST = 6
_PATH_COMMANDS = ("read", "import")
_MENTION = re.compile(r"(?:^|.*\s)@(\S*)$", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way to go on.

    Attributes:
        text: the whole input then.
        shown: what is completed.
        meaning: what it does; may be empty.
    """

    text: str
    shown: str
    meaning: str = ""


def candidates(text: str, commands: Sequence[Command]) -> list[Candidate]:
    """How `text`, with the cursor at its end, may go on."""
    if mention := _MENTION.match(text):
        start = text[: len(text) - len(mention[1])]
        return [Candidate(start + path, path) for path in paths(mention[1])]
    if not text.startswith("/") or text.startswith("//") or "\n" in text:
        return []
    name, space, argument = text[1:].partition(" ")
    if not space:
        return [
            Candidate(
                f"/{one.name} " if one.argument else f"/{one.name}",
                f"/{one.name} {one.argument}".rstrip(),
                one.meaning,
            )
            for one in commands
            if one.name.startswith(name.lower()) and one.name != name
        ]
    if name in _PATH_COMMANDS:
        return [Candidate(f"/{name} {path}", path) for path in paths(argument)]
    known = next((one for one in commands if one.name == name), None)
    words = re.findall(r"[a-z][a-z-]*", known.argument) if known is not None else []
    return [
        Candidate(f"/{name} {word}", word)
        for word in words
        if word.startswith(argument) and word != argument
    ]


def paths(begun: str) -> list[str]:
    """Files and folders whose path begins with `begun`; folders end in a separator."""
    folder, name = os.path.split(begun)
    try:
        with os.scandir(user_path(folder or ".")) as entries:
            found = [
                os.path.join(folder, one.name) + (os.sep if one.is_dir() else "")  # noqa: PTH118
                for one in entries
                if one.name.startswith(name) and (name.startswith(".") or one.name[0] != ".")
            ]
    except (OSError, ValueError):
        return []
    return sorted(one for one in found if one != begun)[:50]


class Completion(Static):
    """A short list above the input; Tab goes through it.

    Args:
        commands: the table.
    """

    def __init__(self, commands: Sequence[Command], *, id: str | None = None) -> None:  # noqa: A002
        super().__init__("", markup=False, id=id)
        self._commands = commands
        self._found: list[Candidate] = []
        self._at = -1
        self.display = False

    def look(self, text: str) -> None:
        """The input has changed."""
        if 0 <= self._at < len(self._found) and text == self._found[self._at].text:
            return  # a completion itself
        self._found, self._at = candidates(text, self._commands), -1
        self._draw()

    def next(self) -> str | None:
        """The input with the next candidate; None where there is none."""
        if not self._found:
            return None
        self._at = (self._at + 1) % len(self._found)
        chosen = self._found[self._at].text
        if len(self._found) == 1:
            self._found, self._at = candidates(chosen, self._commands), -1
        self._draw()
        return chosen

    def _draw(self) -> None:
        self.display = bool(self._found)
        first = max(0, self._at - MOST + 1)
        listed = self._found[first : first + MOST]
        widest = max((cell_len(one_line(one.shown, 40)) for one in listed), default=0)
        lines = []
        for index, one in enumerate(listed, first):
            mark = "▸ " if index == self._at else "  "
            style = "bold $text-accent" if index == self._at else "bold"
            line = Content.assemble(
                mark, (set_cell_size(one_line(one.shown, 40), widest), style),
                (f"  {one.meaning}" if one.meaning else "", "$foreground 65%"),
            )  # fmt: skip
            lines.append(line)
        more = len(self._found) - MOST
        if more > 0:
            lines.append(Content.styled(f"  and {more} more; Tab goes on", "$foreground 65%"))
        self.update(Content("\n").join(lines))
