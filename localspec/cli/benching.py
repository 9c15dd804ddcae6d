"""The work behind `localspec bench`: measure, with progress on standard error; print, write."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import click

from localspec import formats
from localspec.bench.benchmark import bench_pair
from localspec.bench.output import files
from localspec.bench.output.text import text
from localspec.bench.request import Request
from localspec.bench.result import INTERRUPTED, Report
from localspec.bench.runner import Step
from localspec.cli.standard_streams import write
from localspec.engine.cancel import Cancel
from localspec.errors import LocalspecError
from localspec.loading.request import LoadRequest
from localspec.safe_text import one_line

_EVERY_S = 10.0  # between two lines of progress where there is no terminal


def print_bench(
    options: LoadRequest,
    request: Request,
    cancel: Cancel,
    *,
    as_json: bool,
    outputs: Sequence[Path],
) -> bool:
    """Measure, print and write; whether the user stopped it.

    Raises:
        LocalspecError: as `load_session`; files that cannot be written.
        Cancelled: it was stopped before there was anything to report.
    """
    screen = _Screen()
    try:
        report = bench_pair(
            options,
            request,
            cancel,
            loading=screen.loading,
            progress=screen.step,
            say=screen.say,
            warn=screen.warn,
        )
    finally:
        screen.clear()
    _hand_over(report, as_json=as_json, outputs=outputs)
    return report.ended == INTERRUPTED


def _hand_over(report: Report, *, as_json: bool, outputs: Sequence[Path]) -> None:
    """Write every file that can be written, and print in any case: measuring took its time.

    Raises:
        LocalspecError: a file could be written before the run, and cannot now.
    """
    failures = []
    for path in outputs:
        try:
            files.write(report, path)
        except LocalspecError as error:
            failures.append(error)
    colour = sys.stdout is not None and sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    write(files.to_json(report) if as_json else text(report, colour=colour) + "\n")
    if failures:
        raise failures[0]


class _Screen:
    """Progress on standard error: one line redrawn on a terminal, plain lines elsewhere."""

    def __init__(self) -> None:
        self._is_terminal = sys.stderr is not None and sys.stderr.isatty()
        self._drawn = False
        self._said = ""
        self._last = -_EVERY_S

    def loading(self, step: str, _share: float | None) -> None:
        """A step of loading, said once."""
        self.say(step)

    def say(self, what: str) -> None:
        """What is being done now."""
        if what != self._said:
            self._said = what
            self._show(f"{one_line(what, 80)} ...")

    def warn(self, notice: str) -> None:
        """Something that the user should know."""
        self.clear()
        click.echo(f"warning: {one_line(notice, 400)}", err=True)

    def step(self, step: Step) -> None:
        """How far the run is, with the time that is left."""
        now = time.monotonic()
        if not self._is_terminal and now - self._last < _EVERY_S:
            return
        self._last = now
        left = "" if step.left_s is None else f", about {formats.duration(step.left_s)} left"
        self._show(f"{step.done + 1} of {step.total}: {one_line(step.prompt.name, 80)}{left}")

    def clear(self) -> None:
        """Take the drawn line away."""
        if self._drawn:
            click.echo("\r\x1b[K", nl=False, err=True)
            self._drawn = False

    def _show(self, line: str) -> None:
        if not self._is_terminal:
            click.echo(line, err=True)
            return
        click.echo(f"\r{line}\x1b[K", nl=False, err=True)
        self._drawn = True
