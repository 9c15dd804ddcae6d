"""What the engine's thread tells the screen: one small message each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from textual.message import Message

if TYPE_CHECKING:
    from localspec.ui.contract import ChatSession


@dataclass
class Loading(Message):
    """A loading step; `share` of 1 when it is known."""

    step: str
    share: float | None


@dataclass
class Loaded(Message):
    """The models are in memory."""

    session: ChatSession


@dataclass
class LoadFailed(Message):
    """Loading ended in an error, or was cancelled (None)."""

    error: Exception | None


@dataclass
class SwitchFailed(Message):
    """Another pair could not be loaded.

    Attributes:
        error: why; None where it was cancelled.
        session: the one in force again; None where there is none.
        second: why the pair before could not be loaded again either.
    """

    error: Exception | None
    session: ChatSession | None
    second: Exception | None = None


class TurnNews(Message):
    """The outbox holds turn events (posted once until they are collected)."""


@dataclass
class TurnOver(Message):
    """The engine is free again: the turn ended, failed or was stopped."""

    error: Exception | None


@dataclass
class ChangeDone(Message):
    """A change of the session has been made, or refused."""

    label: str
    error: Exception | None
