"""Counts the seconds while a prompt is read, between the reports of the engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from msgspec.structs import replace

from localspec.chat.events import PromptProgress


@dataclass(eq=False, repr=False)
class PromptReading:
    """Shows each report, and once a second that a second less is left; in the screen's thread.

    Attributes:
        set_timer: calls a function after some seconds.
    """

    show: Callable[[PromptProgress], None]
    set_timer: Callable[[float, Callable[[], None]], Any]
    _shown: PromptProgress | None = None

    @property
    def running(self) -> bool:
        """Whether a report is shown."""
        return self._shown is not None

    def report(self, now: PromptProgress) -> None:
        """Show what the engine reports."""
        self._shown = now
        self.show(now)
        if now.seconds_left is not None and now.seconds_left >= 2:
            second_later = replace(now, seconds_left=now.seconds_left - 1)
            self.set_timer(1.0, partial(self._second, now, second_later))

    def stop(self) -> None:
        """Count no more."""
        self._shown = None

    def _second(self, before: PromptProgress, now: PromptProgress) -> None:
        if self._shown is before:  # no report came meanwhile
            self.report(now)
