"""`localspec bench`: speculation off against on, paired, with a verdict."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import click
from click.core import ParameterSource

from localspec.bench import prompt_sets as prompts
from localspec.bench.prompt_sets import BenchRequest, PromptSet
from localspec.cli import option_types as types
from localspec.cli.shared_options import (
    CTX_SIZE,
    EXACT,
    GPU_LAYERS,
    MAX_THREADS,
    PAIR,
    GroupedCommand,
    adapters_of,
    command_line_first,
    option,
    pair_of,
    refuse_others,
    with_options,
)
from localspec.drafter_names import NONE
from localspec.errors import Cancelled, UsageError
from localspec.loading.load_request import LoadRequest

_MOST = 100_000
_FILE = types.UserFile()
_UNSHARED = {"prompts": "--prompts", "lora": "--lora", "lora_scaled": "--lora-scaled"}


def _listed(_ctx: click.Context, _param: click.Parameter, value: str | None) -> tuple[str, ...]:
    parts = tuple(part.strip() for part in (value or "").split(","))
    if value is not None and not all(parts):
        raise click.BadParameter("an entry of the list is empty.")
    return tuple(dict.fromkeys(part for part in parts if part))


@click.command(name="bench", cls=GroupedCommand)
@with_options(*PAIR)
@option(
    "--drafts",
    types.plain_text,
    "Drafters to compare: values of --draft, joined by + within one; 'none' is always included.",
    "A,B,none",
    callback=_listed,
)
@option("--kinds", None, "Only these kinds of prompts.", "A,B", callback=_listed)
@option("--prompts", _FILE, "Your own: JSON lines with 'prompt' and 'kind'.", None)
@option(
    "-n --n-predict",
    click.IntRange(1, _MOST),
    "Tokens of an answer at most.  [default: 128]",
)
@option(
    "--repeat",
    click.IntRange(1, 1000),
    "How often each prompt is asked.  [default: 2; 1 with --quick]",
)
@option("--temp", float, "Temperature; 0 is greedy.", "X", default=0.0)
@option(
    "-s --seed",
    click.IntRange(0, 2**62),
    "Seed of the first repeat; the same for off and on.",
    default=1,
)
@option("--gamma", types.gamma, "Tokens drafted per round.", "N|auto", default="auto")
@option(
    "--gamma-sweep sweep", types.gammas, "Also run these draft lengths: 0..12.", "A..B", default=()
)
@click.option(
    "--ignore-eos/--no-ignore-eos",
    "ignore_end",
    default=None,
    help="Let answers go on past their end.",
)
@click.option(
    "--quick",
    is_flag=True,
    help="Stop once it is clear for each kind of text whether drafting helps; after four minutes at"
    " most.",
)
@with_options(CTX_SIZE)
@option("-t --threads", click.IntRange(1, MAX_THREADS), "CPU threads.")
@GPU_LAYERS
@EXACT
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead.")
@option(
    "-o --output outputs",
    _FILE,
    "Write the report: .json, .csv, .md, .png or .svg; may be repeated.",
    None,
    multiple=True,
)
@option(
    "--share",
    _FILE,
    "Write a file to share: machine, models, T(n) and gains; nothing personal.",
    None,
)
@option(
    "--compare",
    _FILE,
    "Measure nothing: say what changed between two reports.",
    "OLD.json NEW.json",
    nargs=2,
)
def command(
    *,
    compare: tuple[Path, Path] | None,
    as_json: bool,
    outputs: tuple[Path, ...],
    share: Path | None,
    **given: Any,
) -> None:
    """Measure speculation off against on, and say whether it helps here.

    Loads once and asks every prompt both ways, in turns. Ctrl+C stops it and reports what is done.
    """
    started = perf_counter()
    if compare is not None:
        refuse_others("--compare", "compare", "as_json")
    pair = pair_of(given["pair"], given["target"])
    _check_together(given, share)
    # Late: `bench --help` needs none of this.
    from localspec.bench.report_files import check  # noqa: PLC0415
    from localspec.cli.interrupt import interruptible  # noqa: PLC0415
    from localspec.cli.machine import bench_output  # noqa: PLC0415
    from localspec.process.engine_client import JobClient  # noqa: PLC0415
    from localspec.process.jobs import BenchJob  # noqa: PLC0415

    if compare is not None:
        bench_output.compare_files(*compare, as_json=as_json)
        return
    check(outputs, share=share, read=given["prompts"])
    how = replace(_request(given, started), shared=share is not None)
    request = LoadRequest(
        pair=pair,
        draft=prompts.drafters_of(how.drafts[0]) if how.drafts else given["draft"],
        gamma=how.gamma,
        draft_anyway=bool(how.sweep or how.drafts),  # a comparison must show it
        temp=how.temperature,
        lora=adapters_of(given),
        **{name: given[name] for name in ("ctx_size", "threads", "n_gpu_layers", "exact", "scan")},
    )
    with closing(JobClient()) as worker:
        worker.begin(BenchJob(request, how))
        printed = partial(
            bench_output.print_bench, worker, as_json=as_json, outputs=outputs, share=share
        )
        if interruptible(printed, worker.stop, patient=True):
            raise Cancelled


def _check_together(given: dict[str, Any], share: Path | None) -> None:
    """Put the command line before the settings file, and refuse what does not go together.

    Raises:
        UsageError: there is such.
    """
    command_line_first(given, "draft", "drafts")
    for name in _UNSHARED:
        command_line_first(given, "share", name)
    source = click.get_current_context().get_parameter_source
    if given["drafts"] and source("draft") is ParameterSource.DEFAULT_MAP:
        given["draft"] = None  # both are from the settings file, and this one is for all commands
    if given["draft"] is not None and given["drafts"]:
        raise UsageError("--draft and --drafts say the same", "Give one of them.")
    if share is None:
        return
    for name, flag in _UNSHARED.items():
        if given[name]:
            raise UsageError(f"--share does not go with {flag}", "Leave one of them out.")
    undrafted = {
        "--gamma 0": given["gamma"] == 0,
        "--draft none": (given["draft"] or "").lower() == NONE,
        "--drafts none": {name.lower() for name in given["drafts"]} == {NONE},
    }
    for without, applies in undrafted.items():
        if applies:
            raise UsageError(
                f"--share needs something that drafts, and with {without} nothing does",
                "Choose another value, or leave --share out.",
            )


def _request(given: dict[str, Any], started: float) -> BenchRequest:
    """The request, with the defaults that depend on each other."""
    quick = given["quick"]
    drafts = tuple(name for name in given["drafts"] if name.lower() != NONE)
    return BenchRequest(
        prompts=_prompts(given),
        repeats=given["repeat"] or (1 if quick else 2),
        n_predict=given["n_predict"] or prompts.TOKENS,
        temperature=given["temp"],
        seed=given["seed"],
        gamma=given["gamma"],
        drafts=drafts or given["drafts"],
        sweep=given["sweep"],
        deadline=started + prompts.QUICK_S if quick else None,
    )


def _prompts(given: dict[str, Any]) -> PromptSet:
    """The prompts: those of a file, else of the quick bench or the general ones.

    Raises:
        LocalspecError: the file cannot be used, or a kind does not exist.
    """
    own, kinds = given["prompts"], given["kinds"]
    if own is None and given["quick"]:
        chosen = prompts.quick(kinds)
    else:
        chosen = prompts.shipped(prompts.GENERAL) if own is None else prompts.read(own)
        chosen = chosen.only(kinds) if kinds else chosen
    ignore_end = given["ignore_end"]
    return chosen if ignore_end is None else replace(chosen, ignore_end=ignore_end)
