"""Imports that wait for the first frame, and do not hold up a later one."""

from __future__ import annotations

import threading
from collections.abc import Callable
from importlib import import_module


def after_import(module: str, soon: Callable[..., None], call: Callable[[], None]) -> None:
    """Have a thread import a module; then `soon` calls `call` in the screen's thread."""

    def wait() -> None:
        import_module(module)
        soon(call)

    threading.Thread(target=wait, name="imports", daemon=True).start()
