"""Writes a report to files; the ending says how. Paths are tried before anything is measured."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

from localspec.bench.document import document
from localspec.bench.report import Report
from localspec.errors import LocalspecError, UsageError

ENDINGS = ("json", "csv", "md", "png", "svg")


def check(paths: Sequence[Path]) -> None:
    """Make sure that every file can be written, without changing any that is there.

    Raises:
        UsageError: an unknown ending.
        LocalspecError: a file that cannot be written.
    """
    for path in paths:
        if path.suffix[1:].lower() not in ENDINGS:
            raise UsageError(
                f"{path.name} has no ending that says what to write",
                f"Choose one of {', '.join('.' + ending for ending in ENDINGS)}.",
            )
        try:
            if path.exists():
                path.open("r+b").close()
            else:
                path.open("xb").close()
                path.unlink()
        except OSError as error:
            raise _unwritable(path, error) from None


def write(report: Report, path: Path) -> None:
    """Write `report` to `path` as its ending says.

    Raises:
        LocalspecError: it cannot be written.
    """
    content = _writer(path.suffix[1:].lower())(report)
    try:
        path.write_bytes(content)
    except OSError as error:
        raise _unwritable(path, error) from None


def to_json(report: Report) -> str:
    """The whole report as one JSON document."""
    return json.dumps(document(report), ensure_ascii=False, indent=1, allow_nan=False) + "\n"


def _writer(ending: str) -> Callable[[Report], bytes]:
    # Late: a text report draws nothing.
    if ending == "json":
        return lambda report: to_json(report).encode()
    if ending == "csv":
        from localspec.bench.table import csv  # noqa: PLC0415

        return lambda report: csv(report).encode()
    if ending == "md":
        from localspec.bench.markdown import markdown  # noqa: PLC0415

        return lambda report: markdown(report).encode()
    from localspec.bench.picture import png, svg  # noqa: PLC0415

    return png if ending == "png" else lambda report: svg(report).encode()


def _unwritable(path: Path, error: OSError) -> LocalspecError:
    return LocalspecError(f"cannot write {path}: {error.strerror}", "Choose another file.")
