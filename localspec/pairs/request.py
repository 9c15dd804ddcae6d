"""A pull as it is typed in one line: what `localspec pull` takes as arguments."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import Final

from localspec.errors import UsageError

_FORM: Final = (
    "Write PAIR or user/repo[:QUANT|:file.gguf][@rev], with --draft and --name if need be."
)
_COMMAND: Final = ["localspec", "pull"]


@dataclass(frozen=True, slots=True)
class PullRequest:
    """What is to be pulled; the meaning is that of `pull.plan`."""

    pair: str
    draft: str | None = None
    name: str | None = None


def parse(text: str) -> PullRequest:
    """Read ``user/repo --draft other/repo --name NAME``, also with the command's name before it.

    Raises:
        UsageError: there is nothing to pull in it, or something unknown.
    """
    words = _words(text)
    words = words[len(_COMMAND) :] if words[: len(_COMMAND)] == _COMMAND else words
    pairs: list[str] = []
    given: dict[str, str] = {}
    while words:
        word = words.pop(0)
        option, equals, value = word.partition("=")
        if not word.startswith("--"):
            pairs.append(word)
        elif option not in ("--draft", "--name"):
            raise UsageError(f"there is no option {option} here", _FORM)
        elif not equals and not words:
            raise UsageError(f"{option} says nothing", _FORM)
        else:
            given[option] = value if equals else words.pop(0)
    if len(pairs) != 1:
        what = "nothing to pull is named" if not pairs else f"{pairs[1]!r} is one model too many"
        raise UsageError(what, _FORM)
    return PullRequest(pairs[0], given.get("--draft"), given.get("--name"))


def _words(text: str) -> list[str]:
    """Split at spaces outside of quotes; a backslash belongs to a path and escapes nothing."""
    lexer = shlex.shlex(text, posix=True)
    lexer.whitespace_split, lexer.escape, lexer.commenters = True, "", ""
    try:
        return list(lexer)
    except ValueError:
        raise UsageError("a quotation mark is not closed", _FORM) from None
