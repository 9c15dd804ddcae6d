"""The command line: parse, import late, call, and turn errors into exit codes in one place."""

from __future__ import annotations

import os
import signal

TYPE_CHECKING = False  # the real one would cost an import before Ctrl+C is looked after
if TYPE_CHECKING:
    from typing import NoReturn


def main() -> NoReturn:
    """Run the `localspec` command and leave with its exit code.

    While modules are imported there is nothing to undo: Ctrl+C ends the process at once.
    """
    before = signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    from localspec.cli import app  # noqa: PLC0415 - under the guard

    signal.signal(signal.SIGINT, before)
    app.main()
