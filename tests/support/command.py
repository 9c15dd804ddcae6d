"""The command line in this process: what it prints, and the code that it leaves with."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import IO
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


def localspec(
    *words: str,
    stdout: int | IO[str] = subprocess.PIPE,
    timeout: float = 300,
    changed: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a command as a process, with nothing on its standard input.

    Args:
        stdout: where its output goes.
        timeout: in seconds.
        changed: variables of its environment.
    """
    return subprocess.run(
        [sys.executable, "-m", "localspec", *words],
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        timeout=timeout,
        env={**os.environ, **(changed or {})},
    )
