"""Whom a training tells what it does while it runs, and who can stop it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from localspec.engine.cancel import Cancel
from localspec.loading.model_loader import Progress

Say: TypeAlias = Callable[[str], None]
"""Receives a sentence that stays on the screen."""


@dataclass(frozen=True, slots=True)
class TrainingListener:
    """Receives reports of a training, and can stop it.

    Attributes:
        tell: receives sentences for the user.
        progress: receives each step and its share done.
        cancel: stops the training, which can be resumed later.
    """

    tell: Say
    progress: Progress
    cancel: Cancel
