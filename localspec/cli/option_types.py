"""Types of the options' values: functions from text, whose errors say what is wrong."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import click

from localspec import formats
from localspec.limits import MAX_GAMMA
from localspec.pairs.disk import folders
from localspec.safe_text import decoded_without_zeros, unbroken

# The largest grammar or schema, in bytes; a device or a pipe may never end.
LARGEST_TEXT = 16_000_000


def gamma(value: Any) -> int | str:
    """A draft length, or ``auto``."""
    text = str(value)
    try:
        return text if text == "auto" else _length(text)
    except ValueError:
        wrong = f"{text!r} is neither auto nor a number from 0 to {MAX_GAMMA}."
        raise click.BadParameter(wrong) from None


def gammas(value: Any) -> tuple[int, ...]:
    """Draft lengths: ``0..12``, or ``1,2,4``."""
    if isinstance(value, tuple):
        return value
    text = str(value)
    first, dots, last = text.partition("..")
    try:
        if dots:
            numbers = set(range(_length(first), _length(last) + 1))
        else:
            numbers = {_length(each) for each in text.split(",")}
    except ValueError:
        numbers = set()
    if not numbers:
        raise click.BadParameter(f"{text!r} is neither 0..12 nor 1,2,4 (up to {MAX_GAMMA}).")
    return tuple(sorted(numbers))


def _length(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 9) or int(text) > MAX_GAMMA:
        raise ValueError(text)
    return int(text)


def whole(least: int, most: int = 2**31 - 1) -> Callable[[Any], int]:
    """A whole number within bounds that the help text need not spell out."""

    def integer(value: Any) -> int:
        number: int = click.INT.convert(value, None, None)
        if not least <= number <= most:
            raise click.BadParameter(f"{number} is not between {least} and {most}.")
        return number

    return integer


def seed(value: Any) -> int | None:
    """A seed; None for a number below 0."""
    number = whole(-1, 2**63 - 1)(value)
    return number if number >= 0 else None


_DURATION = re.compile(r"(\d{1,8}(?:\.\d{1,3})?)(s|m|h)?", re.ASCII)


def duration(value: Any) -> float:
    """A time in seconds: ``90``, ``90s``, ``30m`` or ``2h``."""
    found = _DURATION.fullmatch(str(value).strip())
    if found is None:
        raise click.BadParameter(f"{str(value)!r} is not a time, such as 90, 30m or 2h.")
    return float(found[1]) * {"m": 60, "h": 3600}.get(found[2], 1)


def plain_text(value: Any) -> str:
    """Text that is valid UTF-8: other bytes on the command line arrive as lone surrogates."""
    text = str(value)
    try:
        text.encode()
    except UnicodeEncodeError:
        raise click.BadParameter("it is not valid UTF-8.") from None
    return text


def plain_path(_ctx: click.Context, _param: click.Parameter, value: Path | None) -> Path | None:
    """A path that can be sent to another process."""
    return None if value is None else Path(plain_text(value))


class UserFile(click.Path):
    """A file's path, with ``~`` expanded: no shell has read what stands in the settings file."""

    def __init__(self, *, exists: bool = False) -> None:
        super().__init__(exists=exists, dir_okay=False, path_type=Path)

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> str | bytes | os.PathLike[str]:
        """The path of `value`, as click checks it."""
        return super().convert(folders.user_path(str(value)), param, ctx)


def file_text(value: Any) -> str:
    """The text of a UTF-8 file."""
    name = unbroken(str(value))
    try:
        with folders.user_path(str(value)).open("rb") as file:
            raw = file.read(LARGEST_TEXT + 1)
    except OSError as error:
        raise click.BadParameter(f"cannot read {name}: {error.strerror}.") from None
    if len(raw) > LARGEST_TEXT:
        raise click.BadParameter(f"{name} is too large: {formats.size(LARGEST_TEXT)} are allowed.")
    try:
        return decoded_without_zeros(raw).replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError:
        raise click.BadParameter(f"{name} is not UTF-8.") from None


def bias(value: Any) -> tuple[int, float]:
    """llama.cpp's ``TOKEN_ID(+/-)BIAS``, such as ``15043+1``; ``15043-inf`` forbids the token."""
    if isinstance(value, tuple):
        return value
    match = re.fullmatch(r"([0-9]{1,18})([+-])([0-9.eE]+|inf)", str(value))
    try:
        if match is None:
            raise ValueError
        size = float(match[3])
    except ValueError:
        wrong = f"{value!r} is not of the form 15043+1 or 15043-inf."
        raise click.BadParameter(wrong) from None
    if not math.isfinite(size) and match[2] == "+":
        raise click.BadParameter("a bias may be -inf, not +inf.")
    return int(match[1]), size if match[2] == "+" else -size


def layers(value: Any) -> int | None:
    """A number of layers; -1 for ``all``, None for ``auto``."""
    if value in ("auto", "all"):
        return None if value == "auto" else -1
    try:
        number = int(value)
    except ValueError:
        number = -2
    if not -1 <= number < 2**31:
        raise click.BadParameter(f"{value!r} is neither a number of layers nor auto or all.")
    return number


def listed(value: Any) -> tuple[str, ...]:
    """Entries with commas between; empty where there are none."""
    if isinstance(value, tuple):
        return value
    names = (each.strip() for each in plain_text(value).split(","))
    return tuple(name for name in names if name)


def adapters(value: Any) -> tuple[tuple[str, float], ...]:
    """Files of adapters with commas between, each with the scale 1."""
    return value if isinstance(value, tuple) else tuple((name, 1.0) for name in listed(value))


def scaled_adapters(value: Any) -> tuple[tuple[str, float], ...]:
    """Files of adapters and their scales: ``FILE:SCALE``, with commas between."""
    return value if isinstance(value, tuple) else tuple(map(_scaled, listed(value)))


def _scaled(text: str) -> tuple[str, float]:
    name, _, scale = text.rpartition(":")
    try:
        found = float(scale)
    except ValueError:
        found = math.nan
    if not name or not math.isfinite(found):
        raise click.BadParameter(f"{text!r} is not of the form FILE:SCALE.")
    return name, found


def joined(_ctx: click.Context, _param: click.Parameter, value: Any) -> tuple[Any, ...]:
    """The entries of an option that may be repeated and takes several each time."""
    return tuple(chain.from_iterable(value))


def devices(value: Any) -> tuple[str, ...]:
    """Names of devices; empty for ``none``."""
    names = listed(value)
    return () if names == ("none",) else names


def shares(value: Any) -> tuple[float, ...]:
    """Proportions with commas between, at least one of them above 0."""
    if isinstance(value, tuple):
        return value
    try:
        found = tuple(float(each) for each in listed(value))
    except ValueError:
        found = ()
    if not all(0 <= each < math.inf for each in found) or not 0 < sum(found) < math.inf:
        raise click.BadParameter(f"{value!r} is not of the form 3,1.")
    return found


def above_zero(_ctx: click.Context, _param: click.Parameter, value: int | None) -> int | None:
    """A number; None for one below 1."""
    return None if value is None or value < 1 else value


def no_nan(_ctx: click.Context, _param: click.Parameter, value: float | None) -> float | None:
    """Refuse nan, which click's ranges let through."""
    if value is not None and math.isnan(value):
        raise click.BadParameter("nan is not a number.")
    return value
