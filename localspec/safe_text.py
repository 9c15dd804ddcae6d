"""Text from outside (models, files, servers, options, the environment) made safe to print; words.

The result cannot control a terminal, and it is no longer than each function says. Errors pass their
text through here when they are made, and commands do before they print.
"""

from __future__ import annotations

import codecs
import os
import re

# Line separators other than a line feed. Textual counts lines with `str.splitlines`, the Markdown
# parser only at line feeds: left as they are, the two would disagree while a text streams in.
_LINE_BREAKS = re.compile("\r\n|[\u2028\u2029\x85\x0b\x0c]")
# Control characters, halves of surrogate pairs (the terminal cannot encode them), and direction
# overrides (they make text read differently from what it is).
_HARMFUL = re.compile("[\x00-\x08\x0d-\x1f\x7f-\x9f\ud800-\udfff\u202a-\u202e\u2066-\u2069\ufeff]")
# Byte-order marks of encodings with more than one byte per letter. UTF-32's begins with UTF-16's.
_WIDE = (
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_PICTURES = 0x2400
_DELETE_PICTURE = "\u2421"
_REPLACEMENT = "\ufffd"


def safe(text: str) -> str:
    """`text` without anything that a terminal would obey; control characters become pictures.

    Text can be passed in pieces: the results joined equal the result of the whole, except that a
    carriage return at the end of a piece stays visible.
    """
    if text.isascii() and text.isprintable():
        return text
    return _HARMFUL.sub(_picture, _LINE_BREAKS.sub("\n", text))


def encodable(text: str) -> str:
    """`text` with ``?`` for each half of a surrogate pair, which UTF-8 cannot encode."""
    return text.encode("utf-8", "replace").decode()


def words(text: str) -> list[str]:
    r"""The words of `text`, composed (NFC): letters, digits and underscores, with their signs.

    To ``\w``, a vowel sign of Thai or Hindi and an accent in a character by itself end a word.
    """
    from unicodedata import category, normalize  # noqa: PLC0415 - only searches need it

    apart = (
        one if re.match(r"\w", one) or category(one).startswith("M") else " "
        for one in normalize("NFC", text)
    )
    return [word for word in re.findall(r"\w\S*", "".join(apart)) if word.strip("_")]


def folded(text: str) -> str:
    """`text` composed (NFC), and without differences of case."""
    from unicodedata import normalize  # noqa: PLC0415 - only searches need it

    return normalize("NFC", text.casefold())


def _picture(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code < 0x20:
        return chr(_PICTURES + code)
    return _DELETE_PICTURE if code == 0x7F else _REPLACEMENT


def unbroken(text: str) -> str:
    """`text` made safe, with a space for every line break and tab."""
    return re.sub(r"[\n\t]", " ", safe(text))


def one_line(text: str, limit: int = 200) -> str:
    """`text` made safe, on one line without runs of spaces, cut to `limit` characters."""
    line = " ".join(safe(text).split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def shortened(text: str, limit: int, *, end: int | None = None) -> str:
    """`text` made safe, on one line of at most `limit` cells: its middle is left out.

    Args:
        text: any text.
        limit: the most cells.
        end: how many of them its end takes; None for a third.
    """
    if len(text) > 8 * limit:  # the middle is never shown
        text = text[: 4 * limit] + text[-4 * limit :]
    line = unbroken(text)
    if line.isascii() and len(line) <= limit:
        return line
    from rich.cells import cell_len, split_text  # noqa: PLC0415 - most texts do without

    if (width := cell_len(line)) <= limit:
        return line
    end = limit // 3 if end is None else end
    return f"{split_text(line, limit - end - 1)[0]}…{split_text(line, width - end)[1]}"


def beginning(text: str, limit: int) -> str:
    """The first `limit` characters of `text`, made safe; a line below tells how many follow."""
    more = len(text) - limit
    return safe(text[:limit]) + (f"\n… and {more:,} more characters" if more > 0 else "")


def decoded(raw: bytes) -> str:
    """The text of a file that any editor wrote: UTF-8, or UTF-16 or UTF-32 with a byte-order mark.

    The mark is not part of the text.

    Raises:
        UnicodeDecodeError: the bytes are in another encoding.
    """
    encoding = next((name for mark, name in _WIDE if raw.startswith(mark)), "utf-8-sig")
    return raw.decode(encoding)


def save_as_utf8() -> str:
    """The sentence on text in another encoding; Windows has no program that converts it."""
    if os.name == "nt":
        return "Save it as UTF-8."
    return "Save it as UTF-8, or convert it, from Latin-1 for example: iconv -f LATIN1 -t UTF-8"


def decoded_without_zeros(raw: bytes) -> str:
    """`decoded` for text that a program or a model reads, in which a zero byte has no place.

    UTF-16 without its mark would pass as UTF-8 with a zero byte next to every letter.

    Raises:
        UnicodeDecodeError: the bytes are in another encoding, or one of them is zero.
    """
    text = decoded(raw)
    if "\0" in text:
        at = raw.index(0)
        raise UnicodeDecodeError("utf-8", raw, at, at + 1, "a zero byte")
    return text


def reason(error: BaseException) -> str:
    """The first line of another library's error, without its errno, safe to show."""
    lines = re.sub(r"^\[Errno -?\d+\] ", "", str(error).strip()).splitlines()
    return one_line(lines[0], 160) if lines else type(error).__name__


def without_middle(text: str, limit: int) -> str:
    """`text` with at most about `limit` characters: a line in place of its middle tells how many.

    Three quarters of what stays are the beginning.
    """
    left_out = len(text) - limit
    if left_out <= 0:
        return text
    end = limit // 4
    return (
        f"{text[: limit - end]}\n[… {left_out:,} characters left out …]\n{text[len(text) - end :]}"
    )
