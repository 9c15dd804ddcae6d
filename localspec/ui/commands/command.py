"""A command of the chat: what it is called, when it can run, and what it does."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

from localspec.ui.conversation.engine_phase import ANY_TIME, EnginePhase

Context = TypeVar("Context")

_SLASHED = re.compile(r"/(\S*)(.*)", re.DOTALL)


def always(_context: object) -> bool:
    """True: a command that needs nothing can run."""
    return True


def nothing(_context: object) -> Sequence[str]:
    """No further words: a command takes only those of its own line."""
    return ()


@dataclass(frozen=True, slots=True)
class Command(Generic[Context]):
    """A command of the chat.

    Attributes:
        name: what follows the slash; also names the key binding.
        argument: what may follow the name, as the help shows it; empty where nothing may.
        meaning: one line for the help; what an argument changes stands after a semicolon.
        run: does it; gets the app's parts and the text after the name.
        also: other programs' names for it, separated by spaces; they work after the slash too.
        keys: key names as Textual spells them, separated by commas; empty for none.
        footer: label in the footer; empty to leave it out.
        when: the phases of the engine in which it may run.
        bare: whether it can run at any time without its argument.
        able: whether it would have anything to do now.
        words: gives further words that may follow the name; called for every typed letter, so it
            must not wait.
    """

    name: str
    argument: str
    meaning: str
    run: Callable[[Context, str], None]
    also: str = ""
    keys: str = ""
    footer: str = ""
    when: frozenset[EnginePhase] = ANY_TIME
    bare: bool = False
    able: Callable[[Context], bool] = always
    words: Callable[[Context], Sequence[str]] = nothing

    @property
    def names(self) -> tuple[str, ...]:
        """Its own name, then the others."""
        return (self.name, *self.also.split())

    @property
    def waits(self) -> bool:
        """Whether it can do nothing without an argument."""
        return bool(self.argument) and not self.argument.startswith("[")

    @property
    def alone(self) -> str:
        """What it does without an argument: its meaning before a semicolon, if one may follow."""
        return self.meaning.partition(";")[0] if self.argument else self.meaning

    @property
    def explained(self) -> str:
        """Its meaning, and its other names."""
        others = ", ".join(f"/{name}" for name in self.also.split())
        return f"{self.meaning}; also {others}" if others else self.meaning

    @property
    def shown(self) -> str:
        """The keys as people spell them."""
        return ", ".join(
            "+".join(part.capitalize() for part in key.split("+")) for key in self.keys.split(",")
        )


AnyCommand: TypeAlias = "Command[Any]"


def named(name: str, commands: Sequence[AnyCommand]) -> AnyCommand | None:
    """The command with exactly this name, its own or another one; None for none."""
    return next((command for command in commands if name in command.names), None)


def parse(text: str, commands: Sequence[AnyCommand]) -> tuple[str, str] | None:
    """Command name and argument when `text` is a slash command; None when it is for the model.

    A name with another slash, or with a star, is a path or begins a comment. Before further lines
    only a command's name counts: a file or code that was put in may begin with any other word.
    """
    found = _SLASHED.match(text)
    if found is None:
        return None
    name, argument = found[1].lower(), found[2].strip()
    begins = named(name, commands) if "\n" in text else not re.search("[/*]", name)
    return (name, argument) if begins else None


def message_text(text: str, commands: Sequence[AnyCommand]) -> str:
    """The message for the model: `text`, without the slash that `as_typed` adds."""
    return text[1:] if text.startswith("//") and _like_command(text, commands) else text


def as_typed(message: str, commands: Sequence[AnyCommand]) -> str:
    """A message as the user would type it: a slash is doubled where a command would begin."""
    text = message.strip()  # as it is read when it is entered
    begins = text.startswith("/") and _like_command(text, commands)
    return f"/{text}" if begins else message


def _like_command(text: str, commands: Sequence[AnyCommand]) -> bool:
    """Whether a text would be a command if it began with one slash."""
    return parse(f"/{text.lstrip('/')}", commands) is not None
