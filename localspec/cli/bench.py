"""`localspec bench`: speculation off against on, paired, with a verdict."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import click

from localspec.bench import request as prompts
from localspec.bench.request import BenchRequest, PromptSet
from localspec.cli import option_types as types
from localspec.cli.options import CTX_SIZE, GPU_LAYERS, MAX_THREADS, PAIR, with_options
from localspec.errors import Cancelled, UsageError
from localspec.loading.request import LoadRequest

QUICK_S = 45.0
_QUICK_REPEATS = 50  # as many as there is time for
_MOST = 100_000


def _listed(_ctx: click.Context, _param: click.Parameter, value: str | None) -> tuple[str, ...]:
    parts = tuple(part.strip() for part in (value or "").split(","))
    if value is not None and not all(parts):
        raise click.BadParameter("an entry of the list is empty.")
    return tuple(dict.fromkeys(part for part in parts if part))


_FILE = click.Path(dir_okay=False, path_type=Path)


@click.command(name="bench")
@with_options(*PAIR)
@click.option(
    "--drafts",
    type=types.plain_text,
    metavar="A,B,none",
    callback=_listed,
    help="Several drafts for one target, compared with each other; 'none' is there anyhow.",
)
@click.option("--kinds", metavar="A,B", callback=_listed, help="Only these kinds of prompts.")
@click.option("--prompts", type=_FILE, help="Your own: JSON lines with 'prompt' and 'kind'.")
@click.option(
    *("-n", "--n-predict"),
    type=click.IntRange(1, _MOST),
    metavar="N",
    help="Tokens of an answer at most.  [default: 128; 64 with --quick]",
)
@click.option(
    "--repeat",
    type=click.IntRange(1, 1000),
    metavar="N",
    help="How often each prompt is asked.  [default: 2; with --quick as often as time allows]",
)
@click.option(
    "--temp",
    type=float,
    default=0.0,
    metavar="X",
    help="Temperature; 0 is greedy.",
    show_default=True,
)
@click.option(
    *("-s", "--seed"),
    type=click.IntRange(0),
    default=1,
    metavar="N",
    help="Seed of the first repeat; the same for off and on.",
    show_default=True,
)
@click.option(
    "--gamma",
    type=types.gamma,
    metavar="N|auto",
    default="auto",
    help="Tokens drafted per round.",
    show_default=True,
)
@click.option(
    *("--gamma-sweep", "sweep"),
    type=types.gammas,
    default=(),
    metavar="A..B",
    help="Also run these draft lengths: 0..12.",
)
@click.option(
    "--ignore-eos/--no-ignore-eos",
    "ignore_end",
    default=None,
    help="Let answers go on past their end.  [default: only with the demo pair's prompts]",
)
@click.option("--quick", is_flag=True, help="Under one minute.")
@with_options(CTX_SIZE)
@click.option(
    *("-t", "--threads"), type=click.IntRange(1, MAX_THREADS), metavar="N", help="CPU threads."
)
@GPU_LAYERS
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead.")
@click.option(
    *("-o", "--output"),
    "outputs",
    type=_FILE,
    multiple=True,
    help="Write the report: .json, .csv, .md, .png or .svg; may be repeated.",
)
@click.option(
    "--compare",
    nargs=2,
    type=_FILE,
    metavar="OLD.json NEW.json",
    help="Measure nothing: say what changed between two reports.",
)
def command(
    pair: str | None,
    target: str | None,
    draft: str | None,
    *,
    ctx_size: int | None,
    threads: int | None,
    n_gpu_layers: int | None,
    compare: tuple[Path, Path] | None,
    as_json: bool,
    outputs: tuple[Path, ...],
    **given: Any,
) -> None:
    """Measure speculation off against on, and say whether it helps here.

    Loads once and asks every prompt both ways, in turns. Ctrl+C stops it and reports what is done.
    """
    started = perf_counter()
    if pair is not None and target is not None:
        raise UsageError("PAIR and --target say the same", "Give one of them.")
    if draft is not None and given["drafts"]:
        raise UsageError("--draft and --drafts say the same", "Give one of them.")
    # Late: `bench --help` needs none of this.
    if compare is not None:
        from localspec.cli.benching import compare_files  # noqa: PLC0415

        compare_files(*compare, as_json=as_json)
        return
    from localspec.bench.files import check  # noqa: PLC0415
    from localspec.cli.benching import print_bench  # noqa: PLC0415
    from localspec.cli.interrupt import interruptible  # noqa: PLC0415
    from localspec.process.client import Worker  # noqa: PLC0415
    from localspec.process.jobs import BenchJob  # noqa: PLC0415

    check(outputs)
    pair = target if pair is None else pair
    request = _request(pair, given, started)
    options = LoadRequest(
        pair=pair,
        draft=request.drafts[0] if request.drafts else draft,
        ctx_size=ctx_size,
        threads=threads,
        n_gpu_layers=n_gpu_layers,
        gamma=request.gamma,
        temp=request.temperature,
    )
    with closing(Worker()) as worker:
        worker.begin(BenchJob(options, request))
        printed = partial(print_bench, worker, as_json=as_json, outputs=outputs)
        if interruptible(printed, worker.stop):
            raise Cancelled


def _request(pair: str | None, given: dict[str, Any], started: float) -> BenchRequest:
    """What is asked for, with the defaults that depend on each other."""
    quick, repeat, n_predict = given["quick"], given["repeat"], given["n_predict"]
    drafts = tuple(name for name in given["drafts"] if name.lower() != "none")
    return BenchRequest(
        prompts=_prompts(pair, given["prompts"], given["kinds"], ignore_end=given["ignore_end"]),
        repeats=repeat or (_QUICK_REPEATS if quick else 2),
        n_predict=n_predict or (64 if quick else 128),
        temperature=given["temp"],
        seed=given["seed"],
        gamma=given["gamma"],
        drafts=drafts or given["drafts"],
        sweep=given["sweep"],
        deadline=started + QUICK_S if quick else None,
    )


def _prompts(
    pair: str | None, path: Path | None, kinds: tuple[str, ...], *, ignore_end: bool | None
) -> PromptSet:
    """What to ask: a file's prompts, else the demo pair's own for it and the general ones.

    Raises:
        LocalspecError: the file cannot be used, or there is no such kind.
    """
    if path is not None:
        chosen = prompts.read(path)
    else:
        is_demo = (pair or prompts.DEMO).strip().lower() == prompts.DEMO
        chosen = prompts.shipped(prompts.DEMO if is_demo else prompts.GENERAL)
    if kinds:
        chosen = chosen.only(kinds)
    return chosen if ignore_end is None else replace(chosen, ignore_end=ignore_end)
