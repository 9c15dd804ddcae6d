"""The options that `run` and `chat` share: llama.cpp's names, and its defaults for sampling."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from typing import Any

import click
from click.core import ParameterSource

from localspec.cli import option_types as types
from localspec.engine.round.params import CHAIN, Accept, SamplingOption
from localspec.errors import UsageError
from localspec.limits import CACHE_TYPES, FLASH_ATTENTION, SPLIT_MODES, UNQUANTISED
from localspec.loading.load_request import LoadRequest

MAX_THREADS = 512  # ggml's own limit
CONSTRAINTS = ("grammar", "grammar_file", "json_schema", "json_schema_file")
_DEFAULTS = LoadRequest()
# The fields of a conversation's settings that an option of another name gives, or several together.
_FIELDS: Mapping[str, tuple[str, ...]] = {
    **{one.key: (name,) for name, one in CHAIN.items()},
    **dict.fromkeys(CONSTRAINTS, ("grammar",)),
    **dict.fromkeys(("accept", "lossy"), ("accept", "lenience")),
    "seed": ("seed", "repeatable"),
}

Option = Callable[[Callable[..., Any]], Callable[..., Any]]
"""The decorator of a command that click makes for an option."""


def option(names: str, kind: Any, text: str, metavar: str | None = "N", **how: Any) -> Option:
    """An option whose help shows its default.

    Args:
        names: with spaces between.
        kind: what click makes a value with.
        text: for the help.
        metavar: the name of the value there; None for the name of `kind`.
        how: further arguments of `click.option`.
    """
    return click.option(
        *names.split(), type=kind, metavar=metavar, help=text, **{"show_default": True, **how}
    )


def _set(names: str, kind: Any, text: str, metavar: str | None = "N") -> Option:
    """An option with the default of `LoadRequest`."""
    name = max(names.split(), key=len).lstrip("-").replace("-", "_")
    return option(names, kind, text, metavar, default=getattr(_DEFAULTS, name))


def _advised(one: SamplingOption) -> Option:
    """An option of the sampler chain; unset, it takes the value advised for the model, if any."""
    kind: Any = types.whole(one.least) if one.least < 0 else click.IntRange(one.least, 2**31 - 1)
    kind, metavar = (float, "X") if one.kind is float else (kind, "N")
    text = f"{one.meaning}  [default: as advised, else {one.usual}]"
    return option(" ".join(one.flags), kind, text, metavar)


def _threads(names: str, text: str) -> Option:
    return option(names, click.IntRange(-1, MAX_THREADS), text, callback=types.above_zero)


SCAN: Option = click.option(
    "--scan/--no-scan",
    default=_DEFAULTS.scan,
    show_default=True,
    help="Find models of Ollama, LM Studio, llama.cpp and the Hub cache by name.",
)

LISTED_DRAFTERS: Option = click.option(
    "--draft",
    metavar="DRAFT",
    help="Drafters, with commas between: files, Hub references, pairs' names, `auto`, `lookup`,"
    " kinds of heads (`mtp`, `dspark`, `dflash`, `eagle3`); or `none`.",
)

PAIR: tuple[Option, ...] = (
    click.argument("pair", required=False, type=types.plain_text, metavar="[PAIR]"),
    option("--target", types.plain_text, "The same as PAIR.", "MODEL"),
    option(
        "--draft",
        types.plain_text,
        "What drafts: files of models or heads, references, 'lookup' (copies what repeats), 'mtp'"
        " (the head inside the target, or next to it; also 'dspark', 'dflash', 'eagle3'), 'auto'"
        " (all there is), 'none'.  [default: auto]",
        "A,B",
    ),
    option(
        "--lora",
        types.adapters,
        "A LoRA adapter (GGUF) of the target; may be repeated.",
        "FILE",
        multiple=True,
        callback=types.joined,
    ),
    option(
        "--lora-scaled",
        types.scaled_adapters,
        "The same with another scale than 1.",
        "FILE:SCALE",
        multiple=True,
        callback=types.joined,
    ),
    SCAN,
)

THREADS = _threads("-t --threads", "CPU threads.  [default: as tuned, else the physical cores]")

GPU_LAYERS = option(
    "-ngl --n-gpu-layers",
    types.layers,
    "Layers on the GPU, if there is one.  [default: as many as fit]",
    "N|auto|all",
)

EXACT: Option = click.option(
    "--exact/--no-exact",
    default=_DEFAULTS.exact,
    help="Give the same bits as without drafting, with one thread and shorter drafts."
    " Otherwise passes of different sizes round differently, which can change a token at a near"
    " tie."
    "  [default: where `tune` found that it costs next to nothing]",
)

CTX_SIZE = option("-c --ctx-size", click.IntRange(0, 2**31 - 1), "Context size in tokens.")

WORKERS = option(
    "--workers --rpc rpc",
    types.listed,
    "Other machines that run `localspec worker`: use their devices for the target as well.",
    "HOST:PORT,...",
    default=_DEFAULTS.rpc,
)

BUT_THREADS: tuple[Option, ...] = (
    _threads(
        "-tb --threads-batch",
        "CPU threads for batches: prompts and checking.  [default: --threads]",
    ),
    _threads(
        "-td --draft-threads", "The draft's CPU threads.  [default: --threads unless --exact]"
    ),
    GPU_LAYERS,
    option(
        "-ncmoe --n-cpu-moe",
        click.IntRange(0, 512),
        "Keep the experts of the first N layers in main memory.  [default: as many as do not fit]",
        "N",
        default=_DEFAULTS.n_cpu_moe,
    ),
    click.option("-cmoe", "--cpu-moe", is_flag=True, help="Keep the experts of all layers there."),
    option(
        "-ngld --draft-n-gpu-layers", types.layers, "The draft's layers on the GPU.", "N|auto|all"
    ),
    option(
        "-dev --device",
        types.devices,
        "Devices to use, with commas between, or none; `localspec doctor` names them.",
        "NAMES",
    ),
    _set(
        "-sm --split-mode",
        click.Choice(SPLIT_MODES),
        "How the target's devices share it: by layers, in parts of every matrix (row, tensor), or"
        " not (none: the first device alone).",
        None,
    ),
    option(
        "-ts --tensor-split",
        types.shares,
        "Share the target's layers among its devices in these proportions.  [default: by memory]",
        "N,N,...",
        default=_DEFAULTS.tensor_split,
        show_default=False,
    ),
    option(
        "-devd --draft-device",
        types.devices,
        "Devices for the draft.  [default: --device]",
        "NAMES",
    ),
    WORKERS,
    _set(
        "-fa --flash-attn",
        click.Choice([*FLASH_ATTENTION]),
        "Flash attention; auto: what is measured to be faster.",
        None,
    ),
    option(
        "-ctk --cache-type-k",
        click.Choice(CACHE_TYPES),
        "Type of the cached keys.  [default: f16]",
        None,
    ),
    option(
        "-ctv --cache-type-v",
        click.Choice(CACHE_TYPES),
        "Type of the cached values.  [default: f16]",
        None,
    ),
    click.option(
        "--mmap/--no-mmap",
        default=_DEFAULTS.mmap,
        help="Map the weights, so that they may be larger than the memory."
        "  [default: mapped, or copied where an accelerator needs that and they fit]",
    ),
    click.option("--mlock", is_flag=True, help="Keep the weights in memory, never in swap."),
    EXACT,
)
"""Where the models are and how they run, without `THREADS`."""

_ANSWER: tuple[Option, ...] = (
    option(
        "-c --ctx-size",
        types.whole(0),
        "Context size in tokens; 0 for all that the target was trained for."
        "  [default: up to 32768 of that, as memory allows]",
    ),
    _set("-n --n-predict", types.whole(-1), "Tokens to generate at most; -1 for no limit."),
    _set(
        "--reasoning",
        click.Choice(["on", "off", "auto"]),
        "Whether the model thinks before it answers, where its template has a switch for that.",
        None,
    ),
    option(
        "--reasoning-effort",
        click.Choice(["low", "medium", "high"]),
        "How much it thinks, where its template knows efforts.",
        None,
    ),
    _set(
        "--reasoning-budget",
        types.whole(-1),
        "Tokens that a thought may have, then it is closed; -1 for no limit.",
    ),
    _set(
        "--reasoning-format",
        click.Choice(["auto", "none"]),
        "none: leave thoughts and their marks in the answer.",
        None,
    ),
    option(
        "-sys --system-prompt",
        types.plain_text,
        "What the model is told before anything else.",
        "TEXT",
        default=_DEFAULTS.system_prompt,
        show_default=False,
    ),
    option(
        "--chat-template",
        types.file_text,
        "Use the chat template in this file in place of the model's own.",
        "FILE",
    ),
    option(
        "--stop",
        types.plain_text,
        "End the answer where this text begins, but not within a thought; may be repeated.",
        "TEXT",
        multiple=True,
    ),
    option(
        "--grammar",
        types.plain_text,
        "The answer conforms to this grammar: llama.cpp's GBNF, or llguidance's Lark, which begins"
        " with %llguidance.",
        "GBNF",
    ),
    option("--grammar-file", types.file_text, "The same, from a file.", "FILE"),
    option("-j --json-schema", types.plain_text, "The answer is JSON of this schema.", "SCHEMA"),
    option("-jf --json-schema-file", types.file_text, "The same, from a file.", "FILE"),
)

_DRAFTING: tuple[Option, ...] = (
    click.option(
        "--past/--no-past",
        default=_DEFAULTS.past,
        show_default=True,
        help="In the chat: lookup copies from earlier conversations, too; `/forget` deletes what"
        " it knows of them.",
    ),
    _set("--gamma", types.gamma, "Tokens drafted per round; 0 drafts nothing.", "N|auto"),
    click.option(
        "--draft-anyway",
        is_flag=True,
        help="Load a draft model although its steps are too slow to save time on this machine.",
    ),
    option(
        "--accept",
        click.Choice([rule.value for rule in Accept]),
        "The acceptance rule; all of them keep the target's distribution. 'coupled': the"
        " same seed gives the same text with speculation on or off, up to rounding (--exact)."
        "  [default: match at temperature 0, coupled with --seed, else block]",
        None,
    ),
    option(
        "--lossy",
        click.FloatRange(0, 1, min_open=True),
        "Accept more drafted tokens than the target's distribution allows: up to 1/LENIENCE"
        " times its probability. Faster, and other text.  [default: lossless]",
        "LENIENCE",
        callback=types.no_nan,
    ),
)

_CHAIN = tuple(map(_advised, CHAIN.values()))
_SAMPLING: tuple[Option, ...] = (
    *_CHAIN[:4],
    option(
        "-s --seed",
        types.seed,
        "Seed of the random draws; the same seed gives the same text.  [default: a new one]",
    ),
    *_CHAIN[4:],
    option(
        "-l --logit-bias",
        types.bias,
        "Add to a token's logit, as 15043+1 or 15043-inf; may be repeated.",
        "ID(+/-)BIAS",
        multiple=True,
    ),
)

_GROUPS = {
    "Models": PAIR,
    "Answer": _ANSWER,
    "Drafting": _DRAFTING,
    "Sampling": _SAMPLING,
    "Machine": (THREADS, *BUT_THREADS),
}


class GroupedCommand(click.Command):
    """A command whose help shows its own options first, then those that others share, in groups."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options."""
        left = [one for one in self.get_params(ctx) if isinstance(one, click.Option)]
        sections = {}
        for title, options in _GROUPS.items():
            group = click.command()(with_options(*options)(lambda: None))
            names = {one.name for one in group.params}
            sections[title] = [one for one in left if one.name in names]
            left = [one for one in left if one.name not in names]
        for title, parameters in {"Options": left, **sections}.items():
            records = [one.get_help_record(ctx) for one in parameters]
            if rows := [record for record in records if record is not None]:
                with formatter.section(title):
                    formatter.write_dl(rows)


REPEAT_STOP: Option = click.option(
    "--repeat-stop/--no-repeat-stop",
    default=True,
    show_default=True,
    help="Stop an answer that only repeats itself: a cycle of at most 1,024 tokens that came"
    " four more times, 256 tokens at least.",
)


IDLE_UNLOAD: Option = option(
    "--idle-unload",
    types.duration,
    "Free the memory after this time without a question (seconds, 30m or 2h); the next question"
    " loads the models again. 0 for never.",
    "TIME",
    default="30m",
)


def with_options(*options: Option) -> Option:
    """Give a command these options, in this order."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        return functools.reduce(lambda done, option: option(done), reversed(options), command)

    return decorate


def pair_of(pair: str | None, target: str | None) -> str | None:
    """The name given as PAIR or as --target.

    Raises:
        UsageError: both are given.
    """
    if pair is not None and target is not None:
        raise UsageError("PAIR and --target say the same", "Give one of them.")
    return target if pair is None else pair


def typed(name: str) -> bool:
    """Whether a parameter comes from the command line, and not from the settings file."""
    source = click.get_current_context().get_parameter_source(name)
    return source is ParameterSource.COMMANDLINE


def typed_settings() -> frozenset[str]:
    """The fields of `ChatSettings` and `SamplingParams` that come from the command line."""
    names = [str(one.name) for one in click.get_current_context().command.params]
    given = [_FIELDS.get(name, (name,)) for name in names if typed(name)]
    return frozenset(field for each in given for field in each)


def command_line_first(given: dict[str, Any], *names: str) -> None:
    """Of parameters that exclude each other, drop those of the settings file if one was typed.

    Args:
        given: the parameters of the command, where a dropped one is as if it was never given.
        names: those that exclude each other.
    """
    source = click.get_current_context().get_parameter_source
    if any(map(typed, names)):
        for name in names:
            if source(name) is ParameterSource.DEFAULT_MAP:
                default = {bool: False, tuple: ()}.get(type(given[name]))
                given[name] = getattr(_DEFAULTS, name, default)


def _excluding(given: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Pairs of shared parameters that exclude each other, some of them by their values."""
    yield "accept", "lossy"
    yield "cpu_moe", "n_cpu_moe"
    if given["flash_attn"] == "off":
        needing = {
            "exact": given["exact"],
            "cache_type_v": given["cache_type_v"] not in (None, *UNQUANTISED),
            "split_mode": given["split_mode"] == "tensor",
        }
        yield from (("flash_attn", name) for name, needs in needing.items() if needs)


def refuse_others(option: str, *fitting: str) -> None:
    """Refuse all that was typed together with `option`, except for the parameters `fitting`.

    Raises:
        UsageError: there is something.
    """
    for one in click.get_current_context().command.params:
        name = str(one.name)
        if name not in fitting and typed(name):
            said = name.upper() if isinstance(one, click.Argument) else max(one.opts, key=len)
            raise UsageError(f"{said} does not go with {option}", "Leave one of them out.")


def adapters_of(given: dict[str, Any]) -> tuple[tuple[str, float], ...]:
    """Take the adapters of both options out of a command's parameters, for `LoadRequest.lora`."""
    return (*given.pop("lora"), *given.pop("lora_scaled"))


def shared_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a click command the shared parameters; it gets them as one argument, `options`."""
    names = {field.name for field in fields(LoadRequest)} - {"pair", "repeat_stop"}

    @functools.wraps(command)
    def call(pair: str | None, target: str | None, **given: Any) -> Any:
        source = click.get_current_context().get_parameter_source
        if target is not None and source("pair") is ParameterSource.DEFAULT_MAP:
            pair = None
        for excluding in (CONSTRAINTS, *_excluding(given)):
            command_line_first(given, *excluding)
        pair = pair_of(pair, target)
        if sum(given[name] is not None for name in CONSTRAINTS) > 1:
            raise click.UsageError("Give one grammar or one JSON schema.")
        for name in ("grammar", "json_schema"):
            text = given.pop(f"{name}_file")
            given[name] = given[name] if text is None else text
        given["lora"] = adapters_of(given)
        shared = {name: given.pop(name) for name in names}
        options = LoadRequest(pair=pair, **shared)
        return command(options=options, **given)

    return with_options(*(one for group in _GROUPS.values() for one in group))(call)
