"""The command line: parse, import late, call, and turn errors into exit codes in one place."""

from __future__ import annotations

from localspec.cli.app import main

__all__ = ["main"]
