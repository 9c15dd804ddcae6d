"""Marks as text: how text is split into marks, and what may become one."""

from __future__ import annotations

from localspec.engine.common_prefix import common_prefix

# What follows a mark that is only named: text that a mark divides off begins otherwise.
_AFTER_NAME = " \t.,;:!?)'\"`”’»…–—/]}|，。、；：！？）」"
_OPENING, _CLOSING = "<[◁⟨«⟦【《〈", ">]▷⟩»⟧】》〉"
_SMALL = "_.,-'\""


def split_marks(text: str) -> list[str]:
    """The marks in a text: split at white space, and between two adjacent brackets."""
    found: list[str] = []
    begun, depth = "", 0
    for char in text:
        if char.isspace() and depth <= 0:
            found.append(begun)
            begun = ""
            continue
        opens = char in _OPENING
        if (
            depth <= 0
            and begun
            and (opens or begun[-1] in _CLOSING)
            and not (opens and begun[-1] in _OPENING)
        ):
            found.append(begun)
            begun = ""
        begun += char
        if opens:
            depth += 1
        elif char in _CLOSING and depth:
            depth -= 1
    return [one for one in (*found, begun) if one.strip()]


def is_mark(text: str) -> bool:
    """Whether a text can be a mark: long enough, and not just words."""
    return len(text) >= 3 and any(
        not char.isalnum() and not char.isspace() and char not in _SMALL for char in text
    )


def only_named(after: str) -> bool:
    """Whether what follows a mark goes on with its line, as after a name in a sentence."""
    return bool(after.partition("\n")[0].strip()) and after[0] in _AFTER_NAME


def may_begin(text: str, at: int, mark: str) -> bool:
    """Whether `text` from `at` to its end is a prefix of `mark`; an empty rest counts."""
    rest = text[at:]
    return len(rest) < len(mark) and mark.startswith(rest)


def overlap(text: str, mark: str) -> int:
    """How many characters at the end of `text` may be the beginning of `mark`."""
    longest = min(len(text), len(mark) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(mark[:n])), 0)


def skip_blanks(text: str, at: int) -> int:
    """The position of the next character from `at` on that is not white space."""
    while at < len(text) and text[at].isspace():
        at += 1
    return at


def blanks(mark: str, *, at_end: bool) -> str:
    """The white space at the beginning or the end of a mark."""
    return mark[len(mark.rstrip()) :] if at_end else mark[: len(mark) - len(mark.lstrip())]


def trimmed_end(text: str) -> str:
    """`text` without the beginning of an incomplete mark at its end."""
    return text[: len(text) - _left_over(text[::-1], _CLOSING, _OPENING)]


def trimmed_start(text: str) -> str:
    """`text` without the end of an incomplete mark at its start."""
    return text[_left_over(text, _OPENING, _CLOSING) :]


def _left_over(text: str, opening: str, closing: str) -> int:
    """Where the last bracket ends that is closed, but was not opened; 0 if there is none."""
    end = depth = 0
    for i, char in enumerate(text):
        if char in opening:
            depth += 1
        elif char in closing and depth:
            depth -= 1
        elif char in closing:
            end = i + 1
    return end


def common_end(one: str, other: str) -> int:
    """The length of the common suffix of two texts."""
    return common_prefix(one[::-1], other[::-1])


def shared_ends(one: str, other: str) -> tuple[int, int]:
    """How many characters two texts share at the beginning, and at the end of what then remains."""
    same = common_prefix(one, other)
    return same, common_end(one[same:], other[same:])
