"""`localspec bench`: speculation off against on, paired, with a verdict."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any, Literal

import click

from localspec.cli.options import GAMMA
from localspec.cli.placement_options import GPU_LAYERS, MAX_THREADS
from localspec.errors import Cancelled, UsageError
from localspec.limits import MAX_GAMMA
from localspec.loading.request import LoadRequest

QUICK_S = 45.0
_QUICK_REPEATS = 50  # as many as there is time for
_MOST = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What to bench, beside what is loaded.

    Attributes:
        kinds: of prompts; empty for all.
        prompts: a file of one's own, None for those that come with localspec.
        repeats, n_predict: how often, and tokens at most.
        temperature, seed: of the sampling.
        gamma: of the settings that draft.
        sweep: draft lengths besides.
        drafts: several drafts; empty for the pair's.
        ignore_end: whether answers go on past their end; None leaves it to the prompts.
        deadline: by `perf_counter`, None for none.
        as_json: print one JSON document.
        outputs: files to write.
    """

    kinds: tuple[str, ...]
    prompts: Path | None
    repeats: int
    n_predict: int
    temperature: float
    seed: int
    gamma: int | Literal["auto"]
    sweep: tuple[int, ...]
    drafts: tuple[str, ...]
    ignore_end: bool | None
    deadline: float | None
    as_json: bool
    outputs: tuple[Path, ...]


class _Sweep(click.ParamType[tuple[int, ...]]):
    """Draft lengths: ``0..12``, or ``1,2,4``."""

    name = "A..B"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        text = str(value)
        first, dots, last = text.partition("..")
        try:
            numbers = (
                list(range(_digits(first), _digits(last) + 1))
                if dots
                else [_digits(each) for each in text.split(",")]
            )
        except ValueError:
            numbers = []
        if not numbers or max(numbers) > MAX_GAMMA:
            self.fail(f"{text!r} is neither 0..12 nor 1,2,4 (up to {MAX_GAMMA}).", param, ctx)
        return tuple(sorted(set(numbers)))


def _digits(text: str) -> int:
    if not (text.isascii() and text.isdecimal()) or len(text) > 4:
        raise ValueError(text)
    return int(text)


def _listed(_ctx: click.Context, _param: click.Parameter, value: str | None) -> tuple[str, ...]:
    parts = tuple(part.strip() for part in (value or "").split(","))
    if value is not None and not all(parts):
        raise click.BadParameter("an entry of the list is empty.")
    return tuple(dict.fromkeys(part for part in parts if part))


_FILE = click.Path(dir_okay=False, path_type=Path)


@click.command(name="bench")
@click.argument("pair", required=False, metavar="[PAIR]")
@click.option("--target", metavar="MODEL", help="The same as PAIR.")
@click.option(
    "--draft", metavar="MODEL", help="Draft model: a file, a reference, or 'none' for none."
)
@click.option(
    "--drafts",
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
    "--gamma", type=GAMMA, default="auto", help="Tokens drafted per round.", show_default=True
)
@click.option(
    "--gamma-sweep", "sweep", type=_Sweep(), default=(), help="Also run these draft lengths: 0..12."
)
@click.option(
    "--ignore-eos/--no-ignore-eos",
    "ignore_end",
    default=None,
    help="Let answers go on past their end.  [default: only with the demo pair's prompts]",
)
@click.option("--quick", is_flag=True, help="Under one minute.")
@click.option(
    *("-c", "--ctx-size"), type=click.IntRange(0), metavar="N", help="Context size in tokens."
)
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
    # Late, so that `bench --help` imports neither llama.cpp nor numpy.
    if compare is not None:
        from localspec.cli.comparing import compare_files  # noqa: PLC0415

        compare_files(*compare, as_json=given["as_json"])
        return
    from localspec.cli.benching import bench  # noqa: PLC0415
    from localspec.cli.interrupt import interruptible  # noqa: PLC0415

    wanted = _wanted(given, started)
    options = LoadRequest(
        pair=target if pair is None else pair,
        draft=wanted.drafts[0] if wanted.drafts else draft,
        ctx_size=ctx_size,
        threads=threads,
        n_gpu_layers=n_gpu_layers,
        gamma=wanted.gamma,
        temp=wanted.temperature,
    )
    if interruptible(lambda cancel: bench(options, wanted, cancel)):
        raise Cancelled


def _wanted(given: dict[str, Any], started: float) -> Wanted:
    """The options, with the defaults that depend on each other."""
    quick, repeat, n_predict = given["quick"], given["repeat"], given["n_predict"]
    drafts = tuple(name for name in given["drafts"] if name.lower() != "none")
    return Wanted(
        kinds=given["kinds"],
        prompts=given["prompts"],
        repeats=repeat or (_QUICK_REPEATS if quick else 2),
        n_predict=n_predict or (64 if quick else 128),
        temperature=given["temp"],
        seed=given["seed"],
        gamma=given["gamma"],
        sweep=given["sweep"],
        drafts=drafts or given["drafts"],
        ignore_end=given["ignore_end"],
        deadline=started + QUICK_S if quick else None,
        as_json=given["as_json"],
        outputs=given["outputs"],
    )
