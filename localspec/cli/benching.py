"""The work behind `localspec bench`: load, measure, print, write."""

from __future__ import annotations

import os
import sys
import time
from contextlib import ExitStack, closing
from dataclasses import replace

import click

from localspec.bench import prompts
from localspec.bench.benchmark import Request
from localspec.bench.benchmark import bench as measure
from localspec.bench.output import files
from localspec.bench.output.text import text
from localspec.bench.prompts import PromptSet
from localspec.bench.result import INTERRUPTED, Report
from localspec.bench.runner import Step
from localspec.chat.session import Session
from localspec.cli.answering import write
from localspec.cli.bench import Wanted
from localspec.engine.cancel import Cancel
from localspec.errors import LocalspecError
from localspec.loading.load import load_beside, load_session
from localspec.loading.measuring import DEMO
from localspec.loading.request import LoadRequest
from localspec.pairs import units

_EVERY_S = 10.0  # between two lines of progress where there is no terminal


def bench(options: LoadRequest, wanted: Wanted, cancel: Cancel) -> bool:
    """Measure, print and write; whether the user stopped it.

    Raises:
        LocalspecError: as `load_session`; prompts or files that cannot be used.
        Cancelled: it was stopped before there was anything to report.
    """
    files.check(wanted.outputs)
    chosen = _prompts(options, wanted)
    screen = _Screen()
    try:
        report = _measured(options, wanted, chosen, cancel, screen)
    finally:
        screen.clear()
    _hand_over(report, wanted)
    return report.ended == INTERRUPTED


def _hand_over(report: Report, wanted: Wanted) -> None:
    """Write every file that can be written, and print in any case: measuring took its time.

    Raises:
        LocalspecError: a file could be written before the run, and cannot now.
    """
    failures = []
    for path in wanted.outputs:
        try:
            files.write(report, path)
        except LocalspecError as error:
            failures.append(error)
    colour = sys.stdout is not None and sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    write(files.to_json(report) if wanted.as_json else text(report, colour=colour) + "\n")
    if failures:
        raise failures[0]


def _prompts(options: LoadRequest, wanted: Wanted) -> PromptSet:
    """What to ask: a file's prompts, else the demo pair's own for it and the general ones.

    Raises:
        LocalspecError: the file cannot be used, or there is no such kind.
    """
    if wanted.prompts is not None:
        chosen = prompts.read(wanted.prompts)
    else:
        is_demo = (options.pair or DEMO).strip().lower() == DEMO
        chosen = prompts.shipped(prompts.DEMO if is_demo else prompts.GENERAL)
    if wanted.kinds:
        chosen = chosen.only(wanted.kinds)
    if wanted.ignore_end is not None:
        chosen = replace(chosen, ignore_end=wanted.ignore_end)
    return chosen


def _measured(
    options: LoadRequest, wanted: Wanted, chosen: PromptSet, cancel: Cancel, screen: _Screen
) -> Report:
    """Load what is wanted and bench it."""
    with ExitStack() as stack:
        first = load_session(options, progress=screen.loading, cancel=cancel)
        stack.enter_context(closing(first))
        sessions = [first]
        for name in wanted.drafts[1:]:
            beside = load_beside(
                first, replace(options, draft=name), progress=screen.loading, cancel=cancel
            )
            stack.callback(_free_draft, beside)
            sessions.append(beside)
        for notice in dict.fromkeys(each for session in sessions for each in session.notices):
            screen.warn(notice)
        return measure(
            sessions, _request(wanted, chosen), cancel, progress=screen.step, say=screen.say
        )


def _request(wanted: Wanted, chosen: PromptSet) -> Request:
    return Request(
        prompts=chosen,
        repeats=wanted.repeats,
        n_predict=wanted.n_predict,
        temperature=wanted.temperature,
        seed=wanted.seed,
        gamma=wanted.gamma,
        sweep=wanted.sweep,
        deadline=wanted.deadline,
    )


def _free_draft(session: Session) -> None:
    """Free what `load_beside` loaded; the target belongs to the first session."""
    draft = session.pair.draft
    if draft is not None:
        draft.close()
        draft.model.close()


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
            self._show(f"{units.plain(what)} ...")

    def warn(self, notice: str) -> None:
        """Something that the user should know."""
        self.clear()
        click.echo(f"warning: {units.plain(notice, 400)}", err=True)

    def step(self, step: Step) -> None:
        """How far the run is, with the time that is left."""
        now = time.monotonic()
        if not self._is_terminal and now - self._last < _EVERY_S:
            return
        self._last = now
        left = "" if step.left_s is None else f", about {units.duration(step.left_s)} left"
        self._show(f"{step.done + 1} of {step.total}: {units.plain(step.prompt.name)}{left}")

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
