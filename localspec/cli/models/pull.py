"""`localspec pull`: a target, and its draft if it has one, from the Hub with one command."""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import partial

import click

from localspec import formats
from localspec.cli.interrupt import stoppable
from localspec.cli.shared_options import LISTED_DRAFTERS, SCAN
from localspec.cli.standard_streams import ProgressLine
from localspec.loading.measurements import ranking
from localspec.pairs.hub import pair_pull
from localspec.pairs.hub.pair_pull import PullProgress, PullRequest
from localspec.pairs.hub.retries import RetryPolicy
from localspec.pairs.report import describe
from localspec.pairs.report.nearby_heads import HeadOffer
from localspec.safe_text import unbroken


@click.command("pull")
@click.argument("pair")
@LISTED_DRAFTERS
@click.option("--name", metavar="NAME", help="The pair's name.  [default: from the repository's]")
@click.option(
    "--quant",
    metavar="QUANT",
    help="The target's quant, such as Q5_K_M; `best` for the one that suits this machine.",
)
@click.option("-y", "--yes", is_flag=True, help="Fetch the head next to the target as well.")
@SCAN
@click.option("--dry-run", is_flag=True, help="Check everything, fetch nothing.")
def command(
    *,
    pair: str,
    draft: str | None,
    name: str | None,
    quant: str | None,
    yes: bool,
    scan: bool,
    dry_run: bool,
) -> None:
    """Download a target, and its draft if it has one, checked before gigabytes move.

    PAIR is a name from `localspec list`, or a Hub reference: user/repo[:QUANT|:file.gguf][@rev].
    A download that was stopped continues where it was.
    """
    line, asked = ProgressLine(), PullRequest(pair, draft, name)
    retries = RetryPolicy(note=line.show)
    with stoppable(line, "stopped; what came so far is kept, and the same command continues"):
        look = partial(
            pair_pull.plan,
            retries=retries,
            scan=scan,
            quant=quant,
            free=ranking.free_as_measured,
            speed_of=ranking.drafted_speed,
        )
        found = look(asked)
        line.clear()
        offer = found.report.offer
        asks = line.is_terminal and not dry_run
        if offer is not None and (yes or (asks and _wants(offer))):
            found = look(replace(asked, draft=f"auto,{offer.kind}"))
            line.clear()
        for said in describe.lines(found.report):
            click.echo(unbroken(said))
        missing, free = formats.size(found.report.missing), formats.size(found.free)
        fetched = f"{missing} to fetch, {free} free"
        click.echo(f"disk        {fetched if found.report.missing else 'nothing is to be fetched'}")
        pair_pull.require_room(found)
        if dry_run:
            return
        # Without a terminal, one line for every phase of every file.
        record = pair_pull.execute(
            found,
            retries,
            lambda at: line.update(_describe(at), (at.file.etag, at.file.phase)),
        )
    click.echo(f"installed as {record.name}: try `localspec chat {record.name}`")


def _wants(offer: HeadOffer) -> bool:
    """Whether the user wants a head that was found next to the target; no without a terminal.

    Standard output may be a file, so the question is on standard error.
    """
    if sys.stdin is None or not sys.stdin.isatty():
        return False
    click.echo(unbroken(f"head        next to the target: {describe.offer_line(offer)}"), err=True)
    question = f"Fetch it as well, {formats.size(offer.head.missing)}?"
    return click.confirm(question, default=True, err=True)


def _describe(progress: PullProgress) -> str:
    """Put `progress` into one line, the most important first."""
    file = progress.file
    share = file.done / file.size if file.size else 1.0
    # The end of a name has the quant and the part.
    name = file.name if len(file.name) <= 30 else f"...{file.name[-27:]}"
    parts = [f"{name} {file.phase} {formats.percent(share)}"]
    if file.note:
        parts.append(file.note)
    if file.phase == "fetching" and progress.seconds_left is not None:
        parts.append(f"{formats.size(round(progress.bytes_per_second))}/s")
        parts.append(f"{formats.duration(progress.seconds_left)} left")
    parts.append(f"in all {formats.size(progress.done)} of {formats.size(progress.total)}")
    return ", ".join(parts)
