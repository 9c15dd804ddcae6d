"""The output of `localspec bench`: reports, and the changes between two of them."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from localspec import formats
from localspec.bench import report_files
from localspec.bench.result import ALL, INTERRUPTED, BenchReport
from localspec.bench.sharing.shared_file import read_shared
from localspec.bench.sharing.shared_report import shared, to_json
from localspec.bench.tables import text
from localspec.chat.events import Noticed
from localspec.cli.standard_streams import ProgressLine, aside, warn, write
from localspec.errors import LocalspecError
from localspec.process.messages import BenchProgress, Event, Loading, TurnReported
from localspec.safe_text import one_line

if TYPE_CHECKING:
    from localspec.bench.comparison import Comparison
    from localspec.process.engine_client import JobClient


def print_bench(
    worker: JobClient, *, as_json: bool, outputs: Sequence[Path], share: Path | None = None
) -> bool:
    """Print and write the report of a `BenchJob`; return whether the user stopped it.

    Args:
        worker: runs the job.
        as_json: print one JSON document in place of the tables.
        outputs: files that the report is written to.
        share: file for what others may know of it; None for none.

    Raises:
        LocalspecError: as `JobClient.result`; files that cannot be written; nothing to share.
        Cancelled: it was stopped before it had anything to report.
    """
    line = ProgressLine()

    def hear(event: Event) -> None:
        match event:
            case Loading(step):
                line.step(step)
            case TurnReported(Noticed(notice)):
                line.clear()
                warn(notice)
            case BenchProgress() if not worker.stopped:  # else it would hide the line that says so
                line.update(_progress(event))

    try:
        report = worker.result(
            BenchReport, hear, lambda: line.step("Stopping; Ctrl+C once more gives up the report")
        )
    finally:
        line.clear()
    memory = worker.peak_memory_bytes(report.peak_memory_bytes)
    report = replace(report, peak_memory_bytes=memory)
    _hand_over(report, as_json=as_json, outputs=outputs, share=share)
    return report.ended == INTERRUPTED


def _progress(now: BenchProgress) -> str:
    left = "" if now.left_s is None else f", about {formats.duration(now.left_s)} left"
    return f"{now.done + 1} of {now.total}: {one_line(now.prompt, 80)}{left}"


def _hand_over(
    report: BenchReport, *, as_json: bool, outputs: Sequence[Path], share: Path | None
) -> None:
    """Write every file that can be written, and always print: the measurement took long.

    Raises:
        LocalspecError: a file could be written before the run, and cannot now; as `_share`.
        BrokenPipeError: all else is done, and the reader of standard output has gone.
    """
    steps = [partial(report_files.write, report, path) for path in outputs]
    steps.append(partial(_print, report, as_json=as_json))
    if share is not None:
        steps.append(partial(_share, report, share))
    failures: list[Exception] = []
    for step in steps:
        try:
            step()
        except (LocalspecError, BrokenPipeError) as error:
            failures.append(error)
    if failures:  # a reader that has gone is not a failure, and must not hide one
        raise min(failures, key=lambda error: isinstance(error, BrokenPipeError))


def _print(report: BenchReport, *, as_json: bool) -> None:
    colour = sys.stdout is not None and sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    try:
        write(report_files.to_json(report) if as_json else text(report, colour=colour) + "\n")
    except BrokenPipeError:
        if report.ended != INTERRUPTED:
            raise
        aside(text(report, colour=False))  # Ctrl+C ended the reader, such as tee, as well


def _share(report: BenchReport, path: Path) -> None:
    """Show on standard error what `path` is to hold, then write it.

    Raises:
        LocalspecError: there is nothing to share, or the file cannot be written.
    """
    content = to_json(shared(report))
    read_shared(content.encode())  # as anybody who gets the file
    aside(f"All that {one_line(path.name)} holds, for others to read:\n{content}")
    report_files.put(content.encode(), path)


def compare_files(old: Path, new: Path, *, as_json: bool) -> None:
    """Print what changed from `old` to `new`.

    Raises:
        LocalspecError: a file is not a report, or the two have nothing in common.
    """
    from localspec.bench.comparison import compare, load  # noqa: PLC0415 - it needs numpy

    found = compare(load(old), load(new))
    write((json.dumps(asdict(found), indent=1) if as_json else _comparison(found)) + "\n")


def _comparison(found: Comparison) -> str:
    rows = [("setting", "kind", "tokens/s, new/old", "speed-up, new/old")]
    rows += [
        (
            one_line(change.arm, 80),
            one_line(change.kind, 80),
            formats.known(change.speed),
            formats.known(change.speedup),
        )
        for change in found.changes
        if change.kind == ALL or not change.arm.startswith("gamma ")
    ]
    lines = formats.columns(rows)
    if found.different:
        lines += ["", "Different:"]
        lines += [
            f"  {one_line(name, 80)}: {one_line(old, 200)} -> {one_line(new, 200)}"
            for name, old, new in found.different
        ]
    return "\n".join([*lines, "", *(one_line(line, 400) for line in found.verdict)])
