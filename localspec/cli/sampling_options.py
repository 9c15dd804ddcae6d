"""The less common options of `run` and `chat`: the rest of the sampler chain, grammars, rules."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click


class _Bias(click.ParamType[tuple[int, float]]):
    """llama.cpp's ``TOKEN_ID(+/-)BIAS``, such as ``15043+1``; ``15043-inf`` forbids the token."""

    name = "ID(+/-)BIAS"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, float]:
        if isinstance(value, tuple):
            return value
        match = re.fullmatch(r"([0-9]{1,18})([+-])([0-9.eE]+|inf)", str(value))
        try:
            if match is None:
                raise ValueError
            size = float(match[3])
        except ValueError:
            self.fail(f"{value!r} is not of the form 15043+1 or 15043-inf.", param, ctx)
        if not math.isfinite(size) and match[2] == "+":
            self.fail("a bias may be -inf, not +inf.", param, ctx)
        return int(match[1]), size if match[2] == "+" else -size


# Of a grammar or a schema, in bytes; a device or a pipe may never end.
LARGEST_TEXT = 16 << 20


class _FileText(click.ParamType[str]):
    """The text of a UTF-8 file."""

    name = "FILE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            with Path(str(value)).open("rb") as file:
                raw = file.read(LARGEST_TEXT + 1)
            if len(raw) > LARGEST_TEXT:
                self.fail(f"{value} is too large: {LARGEST_TEXT >> 20} MB are allowed.", param, ctx)
            return raw.decode("utf-8").replace("\r\n", "\n").replace("\r", "\n")
        except OSError as error:
            self.fail(f"cannot read {value}: {error.strerror}.", param, ctx)
        except UnicodeDecodeError:
            self.fail(f"{value} is not UTF-8.", param, ctx)


CONSTRAINTS = ("grammar", "grammar_file", "json_schema", "json_schema_file")


def one_constraint(given: dict[str, Any]) -> None:
    """Put the text of the files where that of the command line goes.

    Raises:
        click.UsageError: more than one grammar or schema.
    """
    if sum(given[name] is not None for name in CONSTRAINTS) > 1:
        raise click.UsageError("Give one grammar or one JSON schema.")
    for name in ("grammar", "json_schema"):
        text = given.pop(f"{name}_file")
        given[name] = given[name] if text is None else text


def _no_nan(_ctx: click.Context, _param: click.Parameter, value: float | None) -> float | None:
    if value is not None and math.isnan(value):
        raise click.BadParameter("nan is no number.")
    return value


def _number(name: str, default: float, text: str, *more: str) -> Callable[..., Any]:
    return click.option(
        *(name, *more), type=float, default=default, metavar="X", help=text, show_default=True
    )


SAMPLING = (
    _number(
        "--typical-p",
        1.0,
        "Keep the tokens nearest to the entropy up to this share; 1 keeps all.",
        "--typical",
    ),
    _number("--repeat-penalty", 1.0, "Divide the logits of recent tokens by this; 1 is off."),
    _number("--presence-penalty", 0.0, "Subtract this from the logits of recent tokens."),
    _number("--frequency-penalty", 0.0, "Subtract this for every recent occurrence."),
    click.option(
        "--repeat-last-n",
        type=click.IntRange(0, 2**31 - 1),
        default=64,
        metavar="N",
        help="How many tokens are recent, the prompt's included; 0 switches penalties off.",
        show_default=True,
    ),
    click.option(
        *("-l", "--logit-bias"),
        type=_Bias(),
        multiple=True,
        help="Add to a token's logit, as 15043+1 or 15043-inf; may be repeated.",
    ),
)

GRAMMAR = (
    click.option(
        "--grammar", metavar="GBNF", help="The answer conforms to this grammar (llama.cpp's GBNF)."
    ),
    click.option(
        "--grammar-file",
        type=_FileText(),
        help="The same, from a file.",
    ),
    click.option(
        *("-j", "--json-schema"), metavar="SCHEMA", help="The answer is JSON of this schema."
    ),
    click.option(
        *("-jf", "--json-schema-file"),
        type=_FileText(),
        help="The same, from a file.",
    ),
)

RULES = (
    click.option(
        "--accept",
        type=click.Choice(["match", "coupled", "token", "block"]),
        help="The acceptance rule; all of them keep the target's distribution. 'coupled': the"
        " same seed gives the same text with speculation on or off.  [default: match at"
        " temperature 0, coupled with --seed, else block]",
    ),
    click.option(
        "--lossy",
        type=click.FloatRange(0, 1, min_open=True),
        callback=_no_nan,
        metavar="LENIENCE",
        help="Accept more drafted tokens than the target's distribution allows: up to 1/LENIENCE"
        " times its probability. Faster, and other text.  [default: lossless]",
    ),
)
