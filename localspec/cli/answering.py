"""One prompt, one answer: what `localspec run` does once its arguments are known."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from localspec.chat.events import Noticed, RoundText, TurnEnd
from localspec.chat.session import Session
from localspec.cli import run_report
from localspec.cli.standard_streams import write
from localspec.engine.cancel import Cancel
from localspec.engine.stats import FinishReason
from localspec.engine.trace import Recorder
from localspec.errors import LocalspecError
from localspec.loading.load import load_session
from localspec.loading.request import LoadRequest


def print_answer(
    options: LoadRequest,
    prompt: str,
    cancel: Cancel,
    *,
    stats: bool,
    as_json: bool,
    trace: Path | None,
) -> bool:
    """Load, answer, and print text, figures or a document; whether the user stopped it.

    Args:
        options: what is loaded, and how it answers.
        prompt: the question.
        cancel: stops it.
        stats: print the figures to standard error afterwards.
        as_json: print one JSON document in place of the text.
        trace: a file for what a replay needs, None for none.

    Raises:
        LocalspecError: as `load_session` and `Session.turn`.
        Cancelled: the user stopped it while it was loading.
    """
    session = load_session(options, progress=lambda _step, _share: None, cancel=cancel)
    with closing(session):
        _fix_seed(session)
        for notice in session.notices:
            click.echo(f"warning: {notice}", err=True)
        try:
            with _traced(session, trace):
                end = _stream(session, prompt, cancel, show=not as_json)
                if as_json:
                    document = run_report.document(session, end)
                    write(json.dumps(document, ensure_ascii=False, indent=2) + "\n")
                if stats:
                    click.echo(run_report.summary(session, end.stats), err=True)
        except BrokenPipeError:
            return False  # the reader (head, less) has seen enough
    return end.reason is FinishReason.CANCELLED


@contextmanager
def _traced(session: Session, path: Path | None) -> Iterator[None]:
    """Have the answer's trace written to `path`, one JSON document to a line."""
    if path is None:
        yield
        return
    try:
        with path.open("w", encoding="utf-8") as out:

            def line(document: dict[str, Any]) -> None:
                out.write(json.dumps(document, allow_nan=False) + "\n")

            session.recorder = Recorder(line, run_report.settings(session))
            yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise LocalspecError(
            f"cannot write the trace to {path}: {error.strerror}", "Choose another file."
        ) from None
    finally:
        session.recorder = None


def _fix_seed(session: Session) -> None:
    """Draw the seed here where none was given, so that it can be reported."""
    sampling = session.settings.sampling
    if sampling.seed is None:
        session.settings.sampling = replace(sampling, seed=secrets.randbits(32))


def _stream(session: Session, prompt: str, cancel: Cancel, *, show: bool) -> TurnEnd:
    """Run the turn, writing its text as it comes; end the line even where the answer breaks off."""
    last = ""
    try:
        for event in session.turn(prompt, cancel):
            if isinstance(event, TurnEnd):
                return event
            if isinstance(event, Noticed):
                click.echo(f"warning: {event.text}", err=True)
            elif show and isinstance(event, RoundText) and event.text:
                last = event.text
                write(last)
    finally:
        if last and not last.endswith("\n"):
            write("\n")
    raise AssertionError("the turn ended without an end")
