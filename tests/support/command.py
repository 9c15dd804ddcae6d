"""The command line in this process: what it prints, and the code that it leaves with."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from dataclasses import dataclass
from unittest import mock

from localspec.cli import subcommands


@dataclass
class Result:
    """A command's output and exit code."""

    code: int
    out: str
    err: str


def run(*words: str, **environment: str) -> Result:
    """Run a command with nothing on its standard input; its engine is a thread.

    Starting Python and an engine's process takes a second; this takes milliseconds.
    """
    out, err = (
        io.TextIOWrapper(io.BytesIO(), "utf-8", newline="", write_through=True) for _ in range(2)
    )
    changed = {"LOCALSPEC_ENGINE": "inline", **environment}
    with (
        mock.patch.object(sys, "argv", ["localspec", *words]),
        mock.patch.object(sys, "stdin", io.TextIOWrapper(io.BytesIO())),
        mock.patch.dict(os.environ, changed),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            subcommands.main()
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else 1
    out_bytes, err_bytes = (stream.detach().getvalue() for stream in (out, err))
    return Result(code, out_bytes.decode(), err_bytes.decode())
