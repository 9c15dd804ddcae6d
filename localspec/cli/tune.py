"""`localspec tune`: what decodes cost on this machine, and what draft length follows from it."""

from __future__ import annotations

from contextlib import closing
from functools import partial
from typing import Any

import click

from localspec.cli.options import BUT_THREADS, MAX_THREADS, PAIR, with_options
from localspec.errors import UsageError
from localspec.loading.request import LoadRequest


@click.command(name="tune")
@with_options(*PAIR)
@click.option(
    *("-c", "--ctx-size"), type=click.IntRange(0), metavar="N", help="Context size in tokens."
)
@click.option(
    *("-t", "--threads"),
    type=click.IntRange(1, MAX_THREADS),
    metavar="N",
    help="CPU threads; without it the best count is looked for.",
)
@with_options(*BUT_THREADS)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead.")
def command(pair: str | None, target: str | None, as_json: bool, **given: Any) -> None:
    """Measure what decodes cost here, and show the draft length that follows from it.

    The result is stored and used from then on by whatever runs the models in the same way. Takes
    about half a minute.
    """
    if pair is not None and target is not None:
        raise UsageError("PAIR and --target say the same", "Give one of them.")
    from localspec.cli.interrupt import interruptible  # noqa: PLC0415 - not for `tune --help`
    from localspec.cli.tuning import print_tuned  # noqa: PLC0415
    from localspec.process.client import Worker  # noqa: PLC0415
    from localspec.process.jobs import Tune  # noqa: PLC0415

    # A fixed gamma: loading need not measure what is about to be measured.
    options = LoadRequest(pair=target if pair is None else pair, gamma=0, **given)
    with closing(Worker()) as worker:
        worker.begin(Tune(options))
        interruptible(partial(print_tuned, worker, as_json=as_json), worker.stop)
