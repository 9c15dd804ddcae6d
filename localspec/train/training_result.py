"""What a training reports, while it runs and at its end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from localspec import formats
from localspec.train.head_verdict import HeadVerdict

Say: TypeAlias = Callable[[str], None]
"""Receives a sentence that stays on the screen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingResult:
    """The result of a training.

    Attributes:
        name: of the pair that records it.
    """

    head: Path
    name: str
    found: HeadVerdict

    def lines(self) -> list[str]:
        """The result for people."""
        found = self.found
        return [
            f"head        {self.head} ({formats.size(self.head.stat().st_size)})",
            *found.lines(),
            f"used by     localspec chat {self.name}",
        ]
