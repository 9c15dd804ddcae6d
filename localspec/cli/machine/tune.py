"""`localspec tune`: what decodes cost on this machine, and what draft length follows from it."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from localspec.cli.interrupt import interruptible
from localspec.cli.shared_options import (
    BUT_THREADS,
    CTX_SIZE,
    MAX_THREADS,
    PAIR,
    GroupedCommand,
    adapters_of,
    option,
    pair_of,
    with_options,
)
from localspec.cli.standard_streams import ProgressLine, warn
from localspec.loading.load_request import LoadRequest

if TYPE_CHECKING:
    from localspec.loading.results import TunedModel, TunedPair
    from localspec.process.engine_client import JobClient
    from localspec.process.messages import Event


@click.command(name="tune", cls=GroupedCommand)
@with_options(*PAIR, CTX_SIZE)
@option(
    "-t --threads",
    click.IntRange(1, MAX_THREADS),
    "CPU threads.  [default: the fastest number, as measured]",
)
@with_options(*BUT_THREADS)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead.")
def command(pair: str | None, target: str | None, as_json: bool, **given: Any) -> None:
    """Measure what decodes cost here, and show the draft length that follows from it.

    The result is stored and used from then on by whatever runs the models in the same way. Takes
    half a minute for a small model, and some minutes for a large one or on a busy machine.
    """
    pair = pair_of(pair, target)
    from localspec.process.engine_client import JobClient  # noqa: PLC0415 - not for `tune --help`
    from localspec.process.jobs import TuneJob  # noqa: PLC0415

    # A fixed gamma, so that loading does not measure what is about to be measured.
    given["lora"] = adapters_of(given)
    options = LoadRequest(pair=pair, gamma=0, **given)
    with closing(JobClient()) as worker:
        worker.begin(TuneJob(options))
        interruptible(partial(_print_tuned, worker, as_json=as_json), worker.stop)


def _print_tuned(worker: JobClient, *, as_json: bool) -> None:
    """Print the progress and the result of a `TuneJob`.

    Args:
        worker: runs the job.
        as_json: print one JSON document, and notices alone while it runs.

    Raises:
        LocalspecError, Cancelled: as `JobClient.result`.
    """
    from localspec.chat.events import Noticed  # noqa: PLC0415
    from localspec.loading.results import TunedPair, tuned_text  # noqa: PLC0415
    from localspec.process.messages import Loading, TurnReported  # noqa: PLC0415

    line = ProgressLine()

    def hear(event: Event) -> None:
        match event:
            case Loading(step) if not as_json:
                line.step(step)
            case TurnReported(Noticed(notice)):
                line.clear()
                warn(notice)

    try:
        found = worker.result(TunedPair, hear)
    finally:
        line.clear()
    click.echo(json.dumps(_document(found), indent=2) if as_json else tuned_text(found))


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
        "exact": found.exact,
        "exact_cost": found.exact_cost and found.exact_cost.document(),
    }


def _model(found: TunedModel) -> dict[str, Any]:
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
        "busy": found.busy,
        "noisy": found.noisy,
        "spread": found.spread,
    }
