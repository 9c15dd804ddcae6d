"""`localspec show`: what is known about a pair before it is loaded."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable
from functools import partial
from typing import Any

import click

from localspec import formats
from localspec.cli.models import proposed
from localspec.cli.shared_options import LISTED_DRAFTERS, SCAN, WORKERS
from localspec.cli.standard_streams import ProgressLine
from localspec.drafter_names import AUTO
from localspec.errors import HubOffline, HubUnavailable
from localspec.loading.load_request import LoadRequest
from localspec.loading.measurements import ranking
from localspec.loading.measurements.ranking import RankedPair
from localspec.pairs.hub.retries import RetryPolicy
from localspec.pairs.names import catalogue
from localspec.pairs.names.catalogue import CuratedPair, ListedPair
from localspec.pairs.names.reserved_names import STARTER
from localspec.pairs.report import describe
from localspec.pairs.report.examine import PairReport, examine, with_next_load
from localspec.safe_text import unbroken

_WITH_WORKERS = "speed       with workers it is not known until the pair is loaded"


@click.command("show")
@click.argument("pair", default="starter")
@LISTED_DRAFTERS
@click.option(
    "-c",
    "--ctx-size",
    type=click.IntRange(0, 1 << 24),
    help="Tokens of context to count memory for; 0 for all that the target was trained for."
    "  [default: what fits]",
)
@WORKERS
@SCAN
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(
    *,
    pair: str,
    draft: str | None,
    ctx_size: int | None,
    rpc: tuple[str, ...],
    scan: bool,
    as_json: bool,
) -> None:
    """Show a pair's vocabulary check, memory plan, licence, and its speed.

    PAIR is a pair's name, a GGUF file or a Hub reference, of which only the headers are read. With
    the starter, the default, the pairs that suit this machine are shown as well.
    """
    from localspec.loading import planning  # noqa: PLC0415 - it needs llama.cpp

    notices, rows = planning.greet(rpc), catalogue.rows()
    try:
        found = _looked(pair, draft, ctx_size, rpc, scan=scan)
    except (HubOffline, HubUnavailable) as error:
        row = next((row for row in rows if row.name == pair.lower()), None)
        if row is None or as_json or draft not in (None, AUTO):
            raise
        click.echo(f"{error.message}; this much is known:", err=True)
        _print(_listed_lines(row))
        return
    named = [] if draft in (None, AUTO) else ["--draft", str(draft)]
    listed = (row for row in rows if row.name == found.name and not named)
    known = ranking.ranked([next(listed, found.listed)], ranking.recall())[0]
    speed, profile = _speed(found, known, rpc, shlex.join(["localspec", "tune", pair, *named]))
    target = found.target
    advice = planning.advice_for(found.name, target.paths[0].name, target.header)
    for notice in (*notices, *advice.notices):
        click.echo(unbroken(notice), err=True)
    if as_json:
        speeds = None if rpc else known.data
        more = {"sampling": advice.document(), "profile": profile, "tokens_per_second": speeds}
        click.echo(json.dumps(describe.as_data(found) | more, indent=2))
        return
    entry = catalogue.pairs().get(found.name)
    curated = _curated_lines(entry, known.row.evidence) if entry else []
    sampling = [f"sampling    {advice.told}"]
    _print([*([f"pair        {found.name}"] if found.name else []), *describe.lines(found)])
    _print([*curated, *sampling, *speed])
    if found.name == STARTER:
        here = ranking.recall()
        click.echo("\n".join(proposed.lines(ranking.ranked(rows, here), here)))


def _looked(
    pair: str, draft: str | None, n_ctx: int | None, rpc: tuple[str, ...], *, scan: bool
) -> PairReport:
    """Examine a pair, and how it would be loaded now; as `examine`."""
    from localspec.loading import planning  # noqa: PLC0415 - it needs llama.cpp
    from localspec.loading.measurements import draft_worth  # noqa: PLC0415 - so does this

    free, speed = partial(planning.free_memory, LoadRequest(rpc=rpc)), ranking.drafted_speed
    line = ProgressLine()
    look = partial(examine, pair, draft, RetryPolicy(note=line.show))
    try:
        found = look(n_ctx=n_ctx, free=free, scan=scan, speed_of=speed)
    finally:
        line.clear()
    if rpc:  # a load asks once it has measured
        return found
    return with_next_load(found, draft_worth.why_left_out, free(), n_ctx)


def _curated_lines(entry: CuratedPair, evidence: str) -> list[str]:
    """What the catalogue adds to a report; `evidence` is empty if other drafters were named."""
    others = [f"or          --draft {each.option} ({each.why})" for each in entry.others]
    drafting = [f"drafting    {evidence}"] if evidence else []
    return [*others, *drafting, f"dialect     {entry.dialect}", f"names       {entry.names}"]


def _print(lines: Iterable[str]) -> None:
    for line in lines:
        click.echo(unbroken(line))


def _speed(
    found: PairReport, known: RankedPair, rpc: tuple[str, ...], tune: str
) -> tuple[list[str], dict[str, Any] | None]:
    """The speed of a pair as lines, and what was measured of it as data.

    With workers (`rpc`), only what is stored of ``--exact``: all other figures hold without them.
    """
    plan = found.outlook.plan
    expected = [_WITH_WORKERS] if rpc else _expected_lines(known)
    if (
        plan is None
        or found.missing
        or (found.vocabulary is not None and not found.vocabulary.usable)
    ):
        return expected, None
    from localspec.loading.measurements import expected_speed  # noqa: PLC0415 - it needs llama.cpp

    exact, cost = expected_speed.exact(found.target.paths[0], plan, rpc)
    told = expected_speed.exact_line(exact, cost, tune)
    if rpc:
        return [*expected, told], None
    profile = expected_speed.expected(found.target.paths[0], found.draft, plan)
    unmeasured = expected if profile is None else []
    lines = [*unmeasured, *expected_speed.lines(profile, tune), told]
    return lines, expected_speed.data(profile, exact, cost)


def _expected_lines(known: RankedPair) -> list[str]:
    """What `list` and the chat expect of a pair; else what follows from published costs."""
    speed = ranking.recall()
    if speed is not None and known.baseline:
        return [f"speed       {known.speed}; {speed.basis([known])}"]
    expected = proposed.expected_here(known.row)
    return [f"expected    {expected}"] if expected is not None else []


def _listed_lines(row: ListedPair) -> list[str]:
    """What is known of a pair whose files cannot be looked at."""
    entry = catalogue.pairs().get(row.name)
    curated = _curated_lines(entry, row.evidence) if entry else []
    return [
        f"pair        {row.name}, {row.state}, {formats.size(row.n_bytes)}",
        f"target      {row.target}",
        f"draft       {row.draft}",
        f"memory      {row.fit.words}",
        f"licence     {row.licence or 'not stated'}",
        *curated,
        *_expected_lines(ranking.ranked([row], ranking.recall())[0]),
    ]
