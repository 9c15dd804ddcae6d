"""The command line: parse, import late, call, and turn errors into exit codes in one place."""

from __future__ import annotations

from typing import NoReturn

from localspec.cli.interrupt import ending_at_once


def main() -> NoReturn:
    """Run the `localspec` command and leave with its exit code."""
    with ending_at_once():
        from localspec.cli import app  # noqa: PLC0415 - under the guard: Ctrl+C may come now
    app.main()
