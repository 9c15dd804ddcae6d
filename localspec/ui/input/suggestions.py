"""Completions of the input (commands, their words, files), and the list that shows them."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from rich.cells import cell_len, set_cell_size
from textual.content import Content
from textual.widgets import Static

from localspec.pairs.disk.folders import user_path
from localspec.safe_text import shortened
from localspec.ui.commands.command import AnyCommand, named, parse
from localspec.ui.widgets import KEY, MUTED

MOST = 6
_WIDEST = 48  # characters of a completion; a longer path loses its middle
_ALWAYS_PATHS = ("read", "import")  # others also take a name: files once a path is begun
_PATH_COMMANDS = (*_ALWAYS_PATHS, "history", "export", "draft", "pairs", "bench")
_MENTION = re.compile(r"(?:^|.*\s)@(\"[^\"\n]*|\S*)$", re.DOTALL)

Words: TypeAlias = Callable[[AnyCommand], Sequence[str]]
"""Further words that may follow a command; a word that ends in a space needs a value."""


@dataclass(frozen=True, slots=True)
class Suggestion:
    """One way to go on.

    Attributes:
        text: the whole input then.
        shown: the completed word.
        meaning: what it does; may be empty.
        waits: whether more has to follow before it can be sent.
    """

    text: str
    shown: str
    meaning: str = ""
    waits: bool = False


def candidates(
    text: str, commands: Sequence[AnyCommand], words: Words = lambda _: ()
) -> list[Suggestion]:
    """The completions of `text`, with the cursor at its end.

    Args:
        text: all that is typed.
        commands: the table.
        words: gives further words that may follow a command; one that ends in a space needs a
            value.
    """
    if mention := _MENTION.match(text):
        start, begun = text[: len(text) - len(mention[1])], mention[1].removeprefix('"')
        return [_path(start, path, waits=True) for path in paths(begun)]
    if "\n" in text or parse(text, commands) is None:
        return []
    name, space, argument = text[1:].partition(" ")
    if not space:
        return _commands(name.lower(), commands)
    if (command := named(name, commands)) is None:
        return []
    own = re.findall(r"[a-z][a-z-]*", command.argument)
    found = [
        Suggestion(f"/{name} {word}", word.strip(), waits=word.endswith(" "))
        for word in dict.fromkeys([*own, *words(command)])
        if word.startswith(argument) and word.strip() != argument
    ]
    begun = argument or ("" if command.name in _ALWAYS_PATHS else None)
    if command.name in _PATH_COMMANDS and begun is not None:
        found += [_path(f"/{name} ", path) for path in paths(begun)]
    return found


def _commands(begun: str, commands: Sequence[AnyCommand]) -> list[Suggestion]:
    """The commands whose name begins with it, each by its own name or else by another one.

    The one that is called so comes first; alone it needs no list.
    """
    found = []
    for one in commands:
        names = [each for each in one.names if each.startswith(begun)]
        if not names or (not begun and names[0] != one.name):
            continue
        name = begun if begun in names else names[0]
        meaning = one.meaning if name == one.name else f"/{one.name}: {one.meaning}"
        shown = f"/{name} {one.argument}".rstrip()
        found.append(
            Suggestion(f"/{name} " if one.argument else f"/{name}", shown, meaning, one.waits)
        )
    exact = f"/{begun}"
    found.sort(key=lambda one: (one.text.strip() != exact, one.meaning.startswith("/")))
    return [] if [one.text.strip() for one in found] == [exact] else found


def _path(before: str, path: str, *, waits: bool = False) -> Suggestion:
    """Complete `before` with a file; a folder, or a file in a message, waits for more."""
    folder = path.endswith(os.sep)
    written = path
    if waits and any(map(str.isspace, path)):  # a file that a message mentions
        written = f'"{path}' if folder else f'"{path}"'
    return Suggestion(f"{before}{written}", path, waits=waits or folder)


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


class CompletionList(Static):
    """A short list above the input; Tab and the arrows go through it.

    Args:
        commands: the table.
        words: as for `candidates`.

    Attributes:
        commands: the table.
    """

    def __init__(self, commands: Sequence[AnyCommand], words: Words) -> None:
        super().__init__("", markup=False, id="completion")
        self.commands = commands
        self._words = words
        self._found: list[Suggestion] = []
        self._at = -1
        self._left = ""  # the text for which the user closed the list
        self.display = False

    def suggest(self, text: str) -> None:
        """List what completes `text`, the new input."""
        if 0 <= self._at < len(self._found) and text == self._found[self._at].text:
            return  # a completion itself
        self._find("" if text == self._left else text)

    def leave(self, text: str) -> None:
        """Close the list until the input is another than `text`."""
        self._left = text
        self._find("")

    def move(self, by: int) -> str | None:
        """The input with the candidate `by` places further on; None without candidates."""
        if not self._found:
            return None
        start = self._at if self._at >= 0 or by > 0 else 0
        self._at = (start + by) % len(self._found)
        self._draw()
        return self._found[self._at].text

    def next(self) -> str | None:
        """As `move` by one; a single candidate is taken at once."""
        chosen = self.move(1)
        if chosen is not None and len(self._found) == 1:
            self._find(chosen)
        return chosen

    def take(self) -> bool:
        """Go on from the chosen candidate if more has to follow it; return whether it has."""
        if not (0 <= self._at < len(self._found) and self._found[self._at].waits):
            return False
        self._find(self._found[self._at].text)
        return True

    def _find(self, text: str) -> None:
        self._found, self._at = candidates(text, self.commands, self._words), -1
        self._draw()

    def _draw(self) -> None:
        self.display = bool(self._found)
        first = max(0, self._at - MOST + 1)
        listed = self._found[first : first + MOST]
        widest = max((cell_len(shortened(one.shown, _WIDEST)) for one in listed), default=0)
        lines = []
        for index, one in enumerate(listed, first):
            mark = "▸ " if index == self._at else "  "
            style = KEY if index == self._at else "bold"
            line = Content.assemble(
                mark, (set_cell_size(shortened(one.shown, _WIDEST), widest), style),
                (f"  {one.meaning}" if one.meaning else "", MUTED),
            )  # fmt: skip
            lines.append(line)
        more = len(self._found) - MOST
        if more > 0:
            lines.append(Content.styled(f"  and {more} more; the arrows go on", MUTED))
        self.update(Content("\n").join(lines))
