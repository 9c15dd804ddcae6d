"""Whether a word of the command line is a question; it imports next to nothing."""

from __future__ import annotations

import os


def is_question(text: str) -> bool:
    """Whether `text` is a question, and not the name of a command, a pair or a file.

    A question has white space in it, which no pair has. It is not a file, nor spelled like a model.
    """
    spaced = any(character.isspace() for character in text)
    option, file = text.startswith("-"), text.lower().endswith(".gguf")
    return spaced and not (option or file or os.path.isfile(text))  # noqa: PTH113 - pathlib is slow
