"""Writes reports to files; the ending chooses the format. Paths are checked before measuring."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from localspec.bench.result import FORMAT, BenchReport, BenchRun
from localspec.bench.tables import csv, markdown
from localspec.errors import LocalspecError, UsageError, installs_extra
from localspec.pairs.disk import folders

ENDINGS = ("json", "csv", "md", "png", "svg")


def check(paths: Sequence[Path], *, share: Path | None = None, read: Path | None = None) -> None:
    """Check that every file can be written, without changing existing ones.

    Args:
        paths: of the report.
        share: of what is shared, with any ending.
        read: a file that is read, of which none may take the place.

    Raises:
        UsageError: an ending is unknown, a PNG is asked for without Pillow, or two are one file.
        LocalspecError: a file cannot be written.
    """
    for path in paths:
        if path.suffix[1:].lower() not in ENDINGS:
            raise UsageError(
                f"{path.name} has no ending that chooses a format",
                f"Choose one of {', '.join('.' + ending for ending in ENDINGS)}.",
            )
        if path.suffix.lower() == ".png" and find_spec("PIL") is None:
            raise UsageError(
                f"{path.name} cannot be drawn: Pillow is not installed",
                f"Write an .svg, or install it: {installs_extra('png')}",
            )
    taken = set() if read is None else {folders.real(read)}
    for path in paths if share is None else (*paths, share):
        if folders.real(path) in taken:
            raise UsageError(
                f"{path} is named twice, and one would take the place of the other",
                "Name another file.",
            )
        taken.add(folders.real(path))
        check_place(path)


def check_place(path: Path) -> None:
    """Check that a file can be written, without changing an existing one.

    Raises:
        LocalspecError: it cannot be written.
    """
    try:
        if path.exists():
            path.open("r+b").close()
        _aside(path).write_bytes(b"")
        _aside(path).unlink()
    except OSError as error:
        raise _unwritable(path, error) from None


def write(report: BenchReport, path: Path) -> None:
    """Write `report` to `path`, in the format of its ending.

    Raises:
        LocalspecError: it cannot be written; an earlier file is unchanged.
    """
    put(_content(report, path.suffix[1:].lower()), path)


def put(content: bytes, path: Path) -> None:
    """Write `content` to `path` as a whole.

    Raises:
        LocalspecError: it cannot be written; an earlier file is unchanged.
    """
    try:
        _aside(path).write_bytes(content)
        _aside(path).replace(folders.real(path))
    except OSError as error:
        _aside(path).unlink(missing_ok=True)
        raise _unwritable(path, error) from None


def _aside(path: Path) -> Path:
    """The temporary file: a full disk must not destroy an earlier report."""
    whole = folders.real(path)
    return whole.with_name(f".{whole.name}.{os.getpid()}.part")


def _unwritable(path: Path, error: OSError) -> LocalspecError:
    return LocalspecError(f"cannot write {path}: {error.strerror}", "Choose another file.")


def _content(report: BenchReport, ending: str) -> bytes:
    """The file's bytes."""
    if ending in ("png", "svg"):
        from localspec.bench.picture import draw  # noqa: PLC0415 - text reports need none

        return draw(report).png() if ending == "png" else draw(report).svg()
    return {"json": to_json, "csv": csv, "md": markdown}[ending](report).encode()


def to_json(report: BenchReport) -> str:
    """The whole report as one JSON document."""
    return json.dumps(document(report), ensure_ascii=False, indent=1, allow_nan=False) + "\n"


def document(report: BenchReport) -> dict[str, Any]:
    """The report with every run, but without the texts of prompts and answers."""
    found = asdict(replace(report, runs=()))
    return {"format": FORMAT, **found, "runs": [_run(run) for run in report.runs]}


def _run(run: BenchRun) -> dict[str, Any]:
    """One run's sums; drafted = accepted + rejected, and the parts add up to the wall time."""
    stats = run.stats
    return {
        "prompt": run.prompt,
        "kind": run.kind,
        "arm": run.arm,
        "repeat": run.repeat,
        "prompt_tokens": stats.prompt_tokens,
        "generated_tokens": stats.generated_tokens,
        "rounds": len(stats.rounds),
        "drafted": stats.drafted_tokens,
        "accepted": stats.accepted_tokens,
        "rejected": stats.drafted_tokens - stats.accepted_tokens,
        "tokens_per_second": stats.tokens_per_second,
        "time_to_first_token_s": stats.time_to_first_token_s,
        "prompt_s": run.prompt_s,
        "draft_s": run.draft_s,
        "verify_s": run.verify_s,
        "python_s": run.python_s,
        "wall_s": run.wall_s,
    }
