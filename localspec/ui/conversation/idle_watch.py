"""Notices when the chat has been idle long enough to unload the models."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(eq=False, repr=False)
class IdleWatch:
    """Calls `rest` after a time without a sign of the user or the engine; in the screen's thread.

    Attributes:
        after_s: that time in seconds; 0 for never.
        set_timer: calls a function after some seconds.
    """

    after_s: float
    rest: Callable[[], None]
    set_timer: Callable[[float, Callable[[], None]], Any]
    _since: float = 0.0

    def start(self) -> None:
        """Begin to watch."""
        if self.after_s:
            self.stir()
            self.set_timer(self.after_s, self._rest_if_due)

    def stir(self) -> None:
        """Note that something is done."""
        self._since = time.monotonic()

    def _rest_if_due(self) -> None:
        left = self._since + self.after_s - time.monotonic()
        if left <= 0:
            self.rest()
            left = self.after_s
        self.set_timer(left, self._rest_if_due)
