"""`localspec tune`: what decodes cost on this machine, and what draft length follows from it."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from localspec.cli.interrupt import interruptible
from localspec.cli.options import (
    BUT_THREADS,
    CTX_SIZE,
    MAX_THREADS,
    PAIR,
    Grouped,
    option,
    pair_of,
    with_options,
)
from localspec.cli.standard_streams import ProgressLine
from localspec.loading.request import LoadRequest

if TYPE_CHECKING:
    from localspec.loading.results import Tuned, TunedPair
    from localspec.process.client import Worker
    from localspec.process.messages import Event


_WIDTH = 40  # characters of the longest bar
_NOISY = 0.3
_LOOKUP_ALONE = "No draft model: lookup alone drafts, and has no passes to measure."


@click.command(name="tune", cls=Grouped)
@with_options(*PAIR, CTX_SIZE)
@option(
    "-t --threads",
    click.IntRange(1, MAX_THREADS),
    "CPU threads; without it the best count is looked for.",
)
@with_options(*BUT_THREADS)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead.")
def command(pair: str | None, target: str | None, as_json: bool, **given: Any) -> None:
    """Measure what decodes cost here, and show the draft length that follows from it.

    The result is stored and used from then on by whatever runs the models in the same way. Takes
    about half a minute.
    """
    pair = pair_of(pair, target)
    from localspec.process.client import Worker  # noqa: PLC0415 - not for `tune --help`
    from localspec.process.jobs import TuneJob  # noqa: PLC0415

    # A fixed gamma: loading need not measure what is about to be measured.
    options = LoadRequest(pair=pair, gamma=0, **given)
    with closing(Worker()) as worker:
        worker.begin(TuneJob(options))
        interruptible(partial(_print_tuned, worker, as_json=as_json), worker.stop)


def _print_tuned(worker: Worker, *, as_json: bool) -> None:
    """Print what comes of a `TuneJob`.

    Args:
        worker: at work on it.
        as_json: print one JSON document, and no progress.

    Raises:
        LocalspecError, Cancelled: as `Worker.result`.
    """
    from localspec.loading.results import TunedPair  # noqa: PLC0415
    from localspec.process.messages import Loading  # noqa: PLC0415

    line = ProgressLine()

    def hear(event: Event) -> None:
        if isinstance(event, Loading) and not as_json:
            line.step(event.step)

    try:
        found = worker.result(TunedPair, hear)
    finally:
        line.clear()
    click.echo(json.dumps(_document(found), indent=2) if as_json else _text(found))


def _document(found: TunedPair) -> dict[str, Any]:
    """All that was found, for `--json`; times in seconds."""
    return {
        "pair": found.name,
        "machine": found.machine,
        "build": found.build,
        "target": _model(found.target),
        "draft": _model(found.draft) if found.draft else None,
        "draft_note": found.draft_note,
        "gamma": [asdict(one) for one in found.choices],
    }


def _model(found: Tuned) -> dict[str, Any]:
    return {
        "file": found.name,
        "threads": found.threads,
        "by_threads": {
            str(n): {"one_token_s": one, "four_tokens_s": few}
            for n, (one, few) in found.by_threads.items()
        },
        "seconds": {str(n): seconds for n, seconds in found.points.items()},
        "stored": found.stored,
        "kept": found.kept,
        "spread": found.spread,
    }


def _text(found: TunedPair) -> str:
    """The same for a person."""
    target, draft = found.target, found.draft
    lines = [found.machine, "", *_curve_lines(target)]
    if draft is None:
        why = f"No draft: {found.draft_note}." if found.draft_note else _LOOKUP_ALONE
        lines += ["", why]
    else:
        one, most = draft.points[1], max(draft.points)
        lines += [
            "",
            f"Draft {draft.name}, {draft.threads} threads",
            f"  one step {1e3 * one:.2f} ms, {one / target.points[1]:.2f} of the target's",
            f"  reading {most} tokens {1e3 * draft.points[most]:.2f} ms",
            "",
            "accepted  draft  speed-up",
            *(
                f"{choice.acceptance:>7.0%} {choice.gamma or 'none':>7} {choice.speedup:>8.2f}x"
                for choice in found.choices
            ),
        ]
    models = [target, draft] if draft else [target]
    for model in models:
        if model.by_threads:
            tried = (f"{n}: {1e3 * one:.2f} ms" for n, (one, _) in model.by_threads.items())
            lines += ["", f"Threads for {model.name}: {model.threads} ({', '.join(tried)} a token)"]
    spread = max(model.spread for model in models)
    if spread > _NOISY:
        lines += ["", f"Timings varied by {spread:.0%}: something else may be running."]
    lost = [model.name for model in models if not (model.stored or model.kept)]
    if kept := [model.name for model in models if model.kept]:
        lines += ["", f"What was measured before varied less: that is kept. ({', '.join(kept)})"]
    if lost:
        lines += [
            "",
            f"The cache folder cannot be written: nothing was stored. ({', '.join(lost)})",
        ]
    return "\n".join(lines)


def _curve_lines(target: Tuned) -> list[str]:
    """T(n) as bars; points that were not measured are interpolated and marked."""
    longest, alone = max(target.curve), target.curve[0]
    lines = [f"Target {target.name}, {target.threads} threads", "   n        ms  of T(1)"]
    for n, seconds in enumerate(target.curve, 1):
        bar = "#" if n in target.points else "."
        length = max(1, round(_WIDTH * seconds / longest))
        lines.append(f"{n:>4}{1e3 * seconds:>10.2f}{seconds / alone:>9.2f}  {bar * length}")
    return lines
