"""The meaning of ``--draft``: models by name, and words for other drafters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from localspec.drafter_names import AUTO, DFLASH, DSPARK, EAGLE3, LOOKUP, MTP, NONE
from localspec.errors import UsageError
from localspec.pairs.disk import folders
from localspec.pairs.names import references

HEADS: Final = (MTP, DSPARK, DFLASH, EAGLE3)
"""Kinds of draft heads, in the order in which llama.cpp prefers them."""

WORDS: Final = (AUTO, LOOKUP, *HEADS, NONE)
"""The words; all else is a model's name."""

_MOST_PARTS: Final = 16  # between the commas of one file's path


@dataclass(frozen=True, slots=True)
class AllowedDrafters:
    """What may draft; by default nothing.

    Attributes:
        own: the pair's own draft or one known for its target, and a head inside the target.
        heads: kinds of heads that must be there and draft: in the target's file, or next to it.
        named: files, references and pairs' names of draft models.
    """

    own: bool = False
    lookup: bool = False
    heads: tuple[str, ...] = ()
    named: tuple[str, ...] = ()

    @property
    def why_no_model(self) -> str:
        """Why no file drafts, if neither the pair's own drafters nor others were asked for."""
        if self.heads:
            return f"the target's own head was named ({', '.join(self.heads)})"
        return "what repeats is copied (lookup)" if self.lookup else "none was wanted"


def parse(text: str | None) -> AllowedDrafters:
    """The meaning of a value of ``--draft``; None means ``auto``.

    Raises:
        UsageError: it has none.
    """
    text = AUTO if text is None else text
    words = names_in(text)
    known = [word.lower() for word in words]
    for word, lower in zip(words, known, strict=True):
        if word and known.count(lower) > 1:
            raise UsageError(f"--draft names {word} twice", "Name each drafter once.")
        if not word or (lower == NONE and len(words) > 1):
            why = "an empty name in it" if not word else f"{word} together with others"
            raise UsageError(
                f"--draft {text or repr(text)} has {why}", "Name each drafter once, or none at all."
            )
    return AllowedDrafters(
        own=AUTO in known,
        lookup=not {AUTO, LOOKUP}.isdisjoint(known),
        heads=tuple(kind for kind in known if kind in HEADS),
        named=tuple(word for word, lower in zip(words, known, strict=True) if lower not in WORDS),
    )


def names_in(text: str) -> list[str]:
    """The names that commas separate in a value of ``--draft``; a file's own commas stay in it."""
    parts, names = text.split(","), list[str]()
    while parts:
        lengths = range(min(len(parts), _MOST_PARTS), 1, -1)
        taken = next((n for n in lengths if _is_file(",".join(parts[:n]))), 1)
        names.append(",".join(parts[:taken]).strip())
        parts = parts[taken:]
    return names


def _is_file(text: str) -> bool:
    text = text.strip()
    return references.means_local(text) and folders.is_file(folders.user_path(text))
