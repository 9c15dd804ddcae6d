"""`localspec pull`: a target and its draft from the Hub with one command."""

from __future__ import annotations

import shutil
import sys
import time

import click

from localspec import formats
from localspec.cli.interrupt import raising
from localspec.errors import Cancelled, Ended
from localspec.pairs import describe
from localspec.pairs.hub.patience import Patience
from localspec.pairs.pull import PullPlan, PullProgress, execute, plan, require_room
from localspec.safe_text import unbroken


@click.command("pull")
@click.argument("pair")
@click.option("--draft", metavar="DRAFT", help="A file, a Hub reference, a pair's name or `none`.")
@click.option("--name", metavar="NAME", help="What to call the pair; derived when left out.")
@click.option("--dry-run", is_flag=True, help="Check everything, fetch nothing.")
def command(pair: str, draft: str | None, name: str | None, dry_run: bool) -> None:
    """Download a target and its draft, checked before gigabytes move.

    PAIR is a name from `localspec list`, or a Hub reference: user/repo[:QUANT|:file.gguf][@rev].
    A download that was stopped continues where it was.
    """
    patience = Patience()
    screen = _Screen()
    try:
        with raising():
            found = plan(pair, draft, name, patience, screen.note)
            screen.clear()
            for line in describe.lines(found.report):
                click.echo(unbroken(line))
            click.echo(f"disk        {_disk_line(found)}")
            require_room(found)
            if dry_run:
                return
            record = execute(found, patience, screen.show)
    except KeyboardInterrupt as error:
        screen.clear()
        click.echo("stopped; what came so far is kept, and the same command continues", err=True)
        raise error if isinstance(error, Ended) else Cancelled from None
    finally:
        screen.clear()
    click.echo(f"installed as {record.name}: try `localspec chat {record.name}`")


def _disk_line(found: PullPlan) -> str:
    if not found.report.missing:
        return "nothing is to be fetched"
    return f"{formats.size(found.report.missing)} to fetch, {formats.size(found.free)} free"


class _Screen:
    """One line of progress on standard error: redrawn on a terminal, now and then elsewhere."""

    def __init__(self) -> None:
        self._is_terminal = sys.stderr.isatty()
        self._drawn = False
        self._last = ("", "")
        self._next = 0.0

    def note(self, text: str) -> None:
        """Say what is going on."""
        self._draw(text)

    def show(self, progress: PullProgress) -> None:
        """Draw `progress`."""
        state = (progress.file.etag, progress.file.phase)
        now = time.monotonic()
        if not self._is_terminal and state == self._last and now < self._next:
            return
        self._last, self._next = state, now + 10
        self._draw(_describe(progress))

    def clear(self) -> None:
        """Take the line away."""
        if self._drawn:
            click.echo("\r\x1b[K", nl=False, err=True)
            self._drawn = False

    def _draw(self, text: str) -> None:
        text = unbroken(text)
        if self._is_terminal:
            columns = shutil.get_terminal_size().columns
            click.echo(f"\r\x1b[K{text[: columns - 1]}", nl=False, err=True)
            self._drawn = True
        else:
            click.echo(text, err=True)


def _describe(progress: PullProgress) -> str:
    """Put `progress` into one line, what matters most first."""
    file = progress.file
    share = file.done / file.size if file.size else 1.0
    parts = [f"{_short_name(file.name)} {file.phase} {formats.percent(share)}"]
    if file.phase == "pausing":
        parts.append(f"trying again soon: {file.note}")
    if file.phase == "fetching" and progress.seconds_left is not None:
        parts.append(f"{formats.size(round(progress.bytes_per_second))}/s")
        parts.append(f"{formats.duration(progress.seconds_left)} left")
    parts.append(f"in all {formats.size(progress.done)} of {formats.size(progress.total)}")
    return ", ".join(parts)


def _short_name(name: str) -> str:
    """Give the end of a file's name, where its quant and its part are."""
    return name if len(name) <= 30 else f"...{name[-27:]}"
