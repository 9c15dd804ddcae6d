"""What a training tells while it runs, and in the end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from localspec import formats
from localspec.train.head_verdict import HeadVerdict

Say: TypeAlias = Callable[[str], None]
"""Takes a sentence that stays."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingResult:
    """What came of it.

    Attributes:
        head: its file.
        name: of the pair that it is recorded in.
        found: how good it is.
    """

    head: Path
    name: str
    found: HeadVerdict

    def lines(self) -> list[str]:
        """All of it, for a person."""
        found = self.found
        return [
            f"head        {self.head} ({formats.size(self.head.stat().st_size)})",
            *found.lines(),
            f"used by     localspec chat {self.name}",
        ]
