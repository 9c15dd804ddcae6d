"""`localspec show`: what is known about a pair before it is loaded."""

from __future__ import annotations

import json
import shlex
from functools import partial
from typing import Any

import click

from localspec.cli.shared_options import SCAN, WORKERS
from localspec.pairs.hub.retries import RetryPolicy
from localspec.pairs.names import catalogue
from localspec.pairs.names.draft_option import AUTO
from localspec.pairs.report import describe
from localspec.pairs.report.examine import PairReport, examine
from localspec.safe_text import unbroken


@click.command("show")
@click.argument("pair", default="starter")
@click.option(
    "--draft",
    metavar="DRAFT",
    help="With commas: files, Hub references, pairs' names, `auto`, `lookup`; or `none`.",
)
@click.option(
    "-c",
    "--ctx-size",
    type=click.IntRange(1, 1 << 24),
    help="Tokens of context to count memory for.  [default: what fits]",
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
    """Show a pair's vocabulary check, memory plan, licence, and its speed as far as measured.

    PAIR is a pair's name, a GGUF file or a Hub reference, of which only the headers are read.
    """
    from localspec.loading import planning  # noqa: PLC0415 - it needs llama.cpp

    notices = planning.greet(rpc)
    found = examine(
        pair, draft, RetryPolicy(), n_ctx=ctx_size, free=partial(planning.free_for, rpc), scan=scan
    )
    named = [] if draft in (None, AUTO) else ["--draft", str(draft)]
    tune = shlex.join(["localspec", "tune", pair, *named])
    speed, profile = _speed(found, tune)
    target = found.target
    advice = planning.advice_for(found.name, target.paths[0].name, target.header)
    for notice in (*notices, *advice.notices):
        click.echo(unbroken(notice), err=True)
    if as_json:
        more = {"sampling": advice.document(), "profile": profile}
        click.echo(json.dumps(describe.as_data(found) | more, indent=2))
        return
    if found.name:
        click.echo(f"pair        {found.name}")
    entry = catalogue.pairs().get(found.name)
    curated = [f"drafting    {entry.evidence}", f"dialect     {entry.dialect}"] if entry else []
    sampling = [f"sampling    {advice.told}"]
    for line in [*describe.lines(found), *curated, *sampling, *speed]:
        click.echo(unbroken(line))


def _speed(found: PairReport, tune: str) -> tuple[list[str], dict[str, Any] | None]:
    """The measurements of a pair on this disk, as lines and as data."""
    plan = found.outlook.plan
    if (
        plan is None
        or found.missing
        or (found.vocabulary is not None and not found.vocabulary.usable)
    ):
        return [], None
    from localspec.loading.measurements import expected_speed  # noqa: PLC0415 - it needs llama.cpp

    draft = found.draft.paths[0] if found.draft is not None else None
    known = expected_speed.expected(found.target.paths[0], draft, plan)
    exact = expected_speed.exact(found.target.paths[0], plan)
    return expected_speed.lines(known, exact, tune), expected_speed.data(known, exact)
