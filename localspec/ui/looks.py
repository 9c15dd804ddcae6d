"""What the user has chosen about the screen: keys, colours, the panel's form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Looks:
    """Choices that the app begins with.

    Attributes:
        keys: key names with commas, by command; they replace the command's own.
        theme: one of `themes`; None for Textual's default.
        panel: a form of the panel; None for what suits the terminal's size.
        problems: what is wrong with the choices that were left out, to be shown.
    """

    keys: Mapping[str, str] = field(default_factory=dict)
    theme: str | None = None
    panel: str | None = None
    problems: tuple[str, ...] = ()


def themes() -> list[str]:
    """The themes by name."""
    from textual.theme import BUILTIN_THEMES  # noqa: PLC0415 - takes time

    return sorted(BUILTIN_THEMES)
