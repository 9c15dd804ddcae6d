"""The options that `run` and `chat` share: llama.cpp's names, and its defaults for sampling."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import click
from click.core import ParameterSource

from localspec.cli.placement_options import PLACEMENT
from localspec.cli.sampling_options import CONSTRAINTS, GRAMMAR, RULES, SAMPLING, one_constraint
from localspec.limits import MAX_GAMMA
from localspec.loading.request import LoadRequest


class _Gamma(click.ParamType["int | str"]):
    """A draft length, or ``auto``."""

    name = "N|auto"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> int | str:
        text = str(value)
        if text == "auto":
            return text
        if not (text.isascii() and text.isdecimal() and len(text) < 9) or int(text) > MAX_GAMMA:
            self.fail(f"{text!r} is neither auto nor a number from 0 to {MAX_GAMMA}.", param, ctx)
        return int(text)


class _Whole(click.ParamType[int]):
    """A whole number within bounds that the help text need not spell out."""

    name = "integer"

    def __init__(self, least: int, most: int = 2**31 - 1) -> None:
        self._least = least
        self._most = most

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        number = click.INT.convert(value, param, ctx)
        if not self._least <= number <= self._most:
            self.fail(f"{number} is not between {self._least} and {self._most}.", param, ctx)
        return number


class _Text(click.ParamType[str]):
    """Text that is valid UTF-8: other bytes on the command line arrive as lone surrogates."""

    name = "text"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text = str(value)
        try:
            text.encode()
        except UnicodeEncodeError:
            self.fail("it is not valid UTF-8.", param, ctx)
        return text


TEXT = _Text()


def _none_below_zero(_ctx: click.Context, _param: click.Parameter, value: int | None) -> int | None:
    return None if value is None or value < 0 else value


GAMMA = _Gamma()

_DEFAULTS = LoadRequest()

_PARAMETERS: tuple[Callable[[Callable[..., Any]], Callable[..., Any]], ...] = (
    click.argument("pair", required=False, metavar="[PAIR]"),
    click.option("--target", metavar="MODEL", help="The same as PAIR."),
    click.option(
        "--draft", metavar="MODEL", help="Draft model: a file, a reference, or 'none' for none."
    ),
    click.option(
        *("-c", "--ctx-size"),
        type=_Whole(0),
        metavar="N",
        help="Context size in tokens; 0 for all that the target was trained for."
        "  [default: that, but 8192 at most]",
    ),
    click.option(
        "--temp",
        type=float,
        default=_DEFAULTS.temp,
        metavar="X",
        help="Temperature; 0 is greedy.",
        show_default=True,
    ),
    click.option(
        "--top-k",
        type=_Whole(-1),
        default=_DEFAULTS.top_k,
        metavar="N",
        help="Keep the N most probable tokens; 0 keeps all.",
        show_default=True,
    ),
    click.option(
        "--top-p",
        type=float,
        default=_DEFAULTS.top_p,
        metavar="X",
        help="Keep the most probable tokens up to this share; 1 keeps all.",
        show_default=True,
    ),
    click.option(
        "--min-p",
        type=float,
        default=_DEFAULTS.min_p,
        metavar="X",
        help="Keep tokens with at least this share of the best one's probability; 0 keeps all.",
        show_default=True,
    ),
    click.option(
        *("-s", "--seed"),
        type=_Whole(-1, 2**63 - 1),
        metavar="N",
        callback=_none_below_zero,
        help="Seed of the random draws; the same seed gives the same text.  [default: a new one]",
    ),
    click.option(
        *("-n", "--n-predict"),
        type=_Whole(-1),
        default=_DEFAULTS.n_predict,
        metavar="N",
        help="Tokens to generate at most; -1 for no limit.",
        show_default=True,
    ),
    click.option(
        "--gamma",
        type=GAMMA,
        metavar="N|auto",
        default=_DEFAULTS.gamma,
        help="Tokens drafted per round; 0 is plain decoding.",
        show_default=True,
    ),
    click.option(
        *("-sys", "--system-prompt"),
        type=TEXT,
        default=_DEFAULTS.system_prompt,
        metavar="TEXT",
        help="What the model is told before anything else.",
    ),
    click.option(
        "--stop",
        type=TEXT,
        multiple=True,
        metavar="TEXT",
        help="End the answer where this text begins; may be repeated.",
    ),
    *PLACEMENT,
    *SAMPLING,
    *GRAMMAR,
    *RULES,
)


def _from_file(context: click.Context, name: str) -> bool:
    """Whether a parameter's value is that of the settings file."""
    return context.get_parameter_source(name) is ParameterSource.DEFAULT_MAP


def _named(context: click.Context) -> bool:
    """Whether the command line itself names a grammar or a schema."""
    return any(
        context.get_parameter_source(name) is ParameterSource.COMMANDLINE for name in CONSTRAINTS
    )


def shared_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a click command the shared parameters; it gets them as one argument, `options`."""
    names = {field.name for field in fields(LoadRequest)} - {"pair"}

    @functools.wraps(command)
    def call(pair: str | None, target: str | None, **given: Any) -> Any:
        context = click.get_current_context()
        if target is not None and _from_file(context, "pair"):
            pair = None
        for name in CONSTRAINTS:  # one of the command line comes before one of the file
            if given[name] is not None and _from_file(context, name) and _named(context):
                given[name] = None
        if pair is not None and target is not None:
            raise click.UsageError("PAIR and --target say the same: give one of them.")
        one_constraint(given)
        shared = {name: given.pop(name) for name in names}
        options = LoadRequest(pair=target if pair is None else pair, **shared)
        return command(options=options, **given)

    for parameter in reversed(_PARAMETERS):
        call = parameter(call)
    return call
