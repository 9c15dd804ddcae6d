"""The options that `run` and `chat` share: llama.cpp's names, and its defaults for sampling."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import click
from click.core import ParameterSource

from localspec.cli import option_types as types
from localspec.loading.request import LoadRequest
from localspec.pairs.memory.need import CACHE_TYPES

MAX_THREADS = 512  # ggml's own limit
CONSTRAINTS = ("grammar", "grammar_file", "json_schema", "json_schema_file")
_DEFAULTS = LoadRequest()

Option = Callable[[Callable[..., Any]], Callable[..., Any]]
"""What click makes of an option: it decorates a command."""


def _set(names: str, kind: Any, text: str, *, metavar: str = "N") -> Option:
    """An option with the default of `LoadRequest`, which the help shows."""
    parts = names.split()
    name = max(parts, key=len).lstrip("-").replace("-", "_")
    default = getattr(_DEFAULTS, name)
    return click.option(
        *parts, type=kind, default=default, metavar=metavar, help=text, show_default=True
    )


def _choose(names: str, kind: Any, text: str, *, metavar: str = "N", **how: Any) -> Option:
    """An option whose absence leaves the choice to localspec."""
    return click.option(*names.split(), type=kind, metavar=metavar, help=text, **how)


def _threads(names: str, text: str) -> Option:
    return _choose(names, click.IntRange(-1, MAX_THREADS), text, callback=types.above_zero)


PAIR: tuple[Option, ...] = (
    click.argument("pair", required=False, type=types.plain_text, metavar="[PAIR]"),
    click.option("--target", type=types.plain_text, metavar="MODEL", help="The same as PAIR."),
    click.option(
        "--draft",
        type=types.plain_text,
        metavar="MODEL",
        help="Draft model: a file, a reference, or 'none' for none.",
    ),
)

THREADS = _threads("-t --threads", "CPU threads.  [default: as tuned, else the physical cores]")

GPU_LAYERS = _choose(
    "-ngl --n-gpu-layers",
    types.layers,
    "Layers on the GPU, if there is one.  [default: as many as fit]",
    metavar="N|auto|all",
)

CTX_SIZE = _choose("-c --ctx-size", click.IntRange(0), "Context size in tokens.")

BUT_THREADS: tuple[Option, ...] = (
    _threads(
        "-tb --threads-batch",
        "CPU threads for batches: prompts and checking.  [default: --threads]",
    ),
    _threads("-td --draft-threads", "The same for the draft."),
    GPU_LAYERS,
    _choose(
        "-ngld --draft-n-gpu-layers",
        types.layers,
        "The same for the draft.",
        metavar="N|auto|all",
    ),
    click.option(
        *("-dev", "--device"),
        type=types.plain_text,
        metavar="NAMES",
        callback=types.devices,
        help="Devices to use, with commas between, or none; `localspec doctor` names them.",
    ),
    click.option(
        *("-devd", "--draft-device"),
        type=types.plain_text,
        metavar="NAMES",
        callback=types.devices,
        help="The same for the draft.  [default: --device]",
    ),
    click.option(
        "--rpc",
        type=types.plain_text,
        metavar="HOST:PORT,...",
        callback=types.listed,
        help="Use the devices of these llama.cpp RPC servers for the target as well.",
    ),
    click.option(
        *("-fa", "--flash-attn"),
        type=click.Choice(["on", "off", "auto"]),
        default=_DEFAULTS.flash_attn,
        show_default=True,
        help="Flash attention; auto: what is measured to be faster.",
    ),
    click.option(
        *("-ctk", "--cache-type-k"),
        type=click.Choice(CACHE_TYPES),
        help="Type of the cached keys.  [default: f16]",
    ),
    click.option(
        *("-ctv", "--cache-type-v"),
        type=click.Choice(CACHE_TYPES),
        help="Type of the cached values.  [default: f16]",
    ),
    click.option(
        "--mmap/--no-mmap",
        default=_DEFAULTS.mmap,
        show_default=True,
        help="Map the weights, so that they may be larger than the memory.",
    ),
    click.option("--mlock", is_flag=True, help="Keep the weights in memory, never in swap."),
)
"""Where the models lie and how they run, all but `THREADS`."""

_CONVERSATION: tuple[Option, ...] = (
    _choose(
        "-c --ctx-size",
        types.whole(0),
        "Context size in tokens; 0 for all that the target was trained for."
        "  [default: that, but 8192 at most]",
    ),
    _set("--temp", float, "Temperature; 0 is greedy.", metavar="X"),
    _set("--top-k", types.whole(-1), "Keep the N most probable tokens; 0 keeps all."),
    _set(
        "--top-p",
        float,
        "Keep the most probable tokens up to this share; 1 keeps all.",
        metavar="X",
    ),
    _set(
        "--min-p",
        float,
        "Keep tokens with at least this share of the best one's probability; 0 keeps all.",
        metavar="X",
    ),
    _choose(
        "-s --seed",
        types.seed,
        "Seed of the random draws; the same seed gives the same text.  [default: a new one]",
    ),
    _set("-n --n-predict", types.whole(-1), "Tokens to generate at most; -1 for no limit."),
    _set(
        "--gamma",
        types.gamma,
        "Tokens drafted per round; 0 is plain decoding.",
        metavar="N|auto",
    ),
    click.option(
        *("-sys", "--system-prompt"),
        type=types.plain_text,
        default=_DEFAULTS.system_prompt,
        metavar="TEXT",
        help="What the model is told before anything else.",
    ),
    click.option(
        "--stop",
        type=types.plain_text,
        multiple=True,
        metavar="TEXT",
        help="End the answer where this text begins; may be repeated.",
    ),
)

_SAMPLING: tuple[Option, ...] = (
    _set(
        "--typical-p --typical",
        float,
        "Keep the tokens nearest to the entropy up to this share; 1 keeps all.",
        metavar="X",
    ),
    _set(
        "--repeat-penalty",
        float,
        "Divide the logits of recent tokens by this; 1 is off.",
        metavar="X",
    ),
    _set(
        "--presence-penalty",
        float,
        "Subtract this from the logits of recent tokens.",
        metavar="X",
    ),
    _set("--frequency-penalty", float, "Subtract this for every recent occurrence.", metavar="X"),
    _set(
        "--repeat-last-n",
        click.IntRange(0, 2**31 - 1),
        "How many tokens are recent, the prompt's included; 0 switches penalties off.",
    ),
    click.option(
        *("-l", "--logit-bias"),
        type=types.bias,
        multiple=True,
        metavar="ID(+/-)BIAS",
        help="Add to a token's logit, as 15043+1 or 15043-inf; may be repeated.",
    ),
    _choose(
        "--grammar",
        types.plain_text,
        "The answer conforms to this grammar (llama.cpp's GBNF).",
        metavar="GBNF",
    ),
    _choose("--grammar-file", types.file_text, "The same, from a file.", metavar="FILE"),
    _choose(
        "-j --json-schema", types.plain_text, "The answer is JSON of this schema.", metavar="SCHEMA"
    ),
    _choose("-jf --json-schema-file", types.file_text, "The same, from a file.", metavar="FILE"),
    click.option(
        "--accept",
        type=click.Choice(["match", "coupled", "token", "block"]),
        help="The acceptance rule; all of them keep the target's distribution. 'coupled': the"
        " same seed gives the same text with speculation on or off.  [default: match at"
        " temperature 0, coupled with --seed, else block]",
    ),
    _choose(
        "--lossy",
        click.FloatRange(0, 1, min_open=True),
        "Accept more drafted tokens than the target's distribution allows: up to 1/LENIENCE"
        " times its probability. Faster, and other text.  [default: lossless]",
        metavar="LENIENCE",
        callback=types.no_nan,
    ),
)


def with_options(*options: Option) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a command these options, in this order."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        return functools.reduce(lambda done, option: option(done), reversed(options), command)

    return decorate


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
        if sum(given[name] is not None for name in CONSTRAINTS) > 1:
            raise click.UsageError("Give one grammar or one JSON schema.")
        for name in ("grammar", "json_schema"):
            text = given.pop(f"{name}_file")
            given[name] = given[name] if text is None else text
        shared = {name: given.pop(name) for name in names}
        options = LoadRequest(pair=target if pair is None else pair, **shared)
        return command(options=options, **given)

    return with_options(*PAIR, *_CONVERSATION, THREADS, *BUT_THREADS, *_SAMPLING)(call)
