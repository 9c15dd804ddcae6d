"""What a training reports at its end."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from localspec import formats
from localspec.train.verdict.head_verdict import HeadVerdict


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
