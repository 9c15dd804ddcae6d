"""`localspec logs`: questions and answers of the chat and of `run`."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from localspec import formats
from localspec.cli import stored_conversations
from localspec.cli.standard_streams import takes_all, write_said
from localspec.safe_text import one_line

if TYPE_CHECKING:
    from localspec.chat.history.tree import AnsweredQuestion


@click.command("logs")
@click.option(
    "-n", "--number", type=click.IntRange(1, 2**31 - 1), default=3, show_default=True, metavar="N",
    help="How many answers, the newest last.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(number: int, as_json: bool) -> None:
    """Show what was asked and answered, the newest last: in the chat, and by `localspec run`.

    What was deleted in the chat is not shown. `localspec run --no-log` keeps nothing.
    """
    found = (
        stored_conversations.ask(lambda store: store.told(number))
        if stored_conversations.archive().exists()
        else []
    )
    if as_json:
        document = [_data(one) for one in found]
        write_said(json.dumps(document, ensure_ascii=not takes_all(), indent=2) + "\n")
    elif found:
        write_said("\n\n".join(map(_text, found)) + "\n")
    else:
        click.echo("nothing was asked yet", err=True)


def _text(told: AnsweredQuestion) -> str:
    """A question and its answer, under a line with the time and the pair."""
    tokens = told.figures.get("generated_tokens")
    parts = [
        formats.moment(told.time, lambda when: f"{when:%Y-%m-%d %H:%M}"),
        one_line(told.pair, 40),
        one_line(told.title, 60),
        f"{formats.count(tokens)} tokens" if isinstance(tokens, int) else "",
    ]
    asked = "\n".join(f"> {line}" for line in told.question.splitlines())
    return f"── {' · '.join(filter(None, parts))}\n{asked}\n\n{told.answer.strip()}"


def _data(told: AnsweredQuestion) -> dict[str, Any]:
    when = formats.moment(told.time, lambda when: when.isoformat(timespec="seconds"))
    return asdict(told) | {"time": when}
