"""Whether a word of the command line is a question; it imports next to nothing."""

from __future__ import annotations

import os


def is_question(text: str) -> bool:
    """Whether `text` asks something, in place of naming a command, a pair or a file.

    It has white space in it, as no pair has, and is no file, nor written like a model's.
    """
    spaced = any(character.isspace() for character in text)
    option, file = text.startswith("-"), text.lower().endswith(".gguf")
    return spaced and not (option or file or os.path.isfile(text))  # noqa: PTH113 - pathlib is slow
