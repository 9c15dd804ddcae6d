"""Modules that are imported when a test first uses them."""

from __future__ import annotations

import importlib
from typing import Any


class Lazily:
    """A module that is imported at the first access to one of its names.

    Every process that runs tests collects all files, also those whose tests another one runs.
    """

    def __init__(self, module: str) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # pytest asks for some of these while it collects
            raise AttributeError(name)
        return getattr(importlib.import_module(self._module), name)
