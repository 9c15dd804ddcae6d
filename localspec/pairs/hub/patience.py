"""Trying again: which failures pass by themselves, and how long to wait for them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, TypeVar

from localspec.errors import Cancelled, HubOffline, HubUnavailable

T = TypeVar("T")

PAUSES: Final = (1.0, 2.0, 4.0, 8.0, 16.0, 30.0)
LONGEST_PAUSE: Final = 60.0

CONTINUES: Final = "Run the same command again: it continues where it stopped."
NO_HUB: Final = "Check HF_ENDPOINT, and any proxy or firewall between here and the Hub."


class Interrupted(HubUnavailable):
    """A failure that may pass: a cut connection, a timeout, a busy server.

    Attributes:
        retry_after: seconds that the server asked to wait, None when it said nothing.
    """

    def __init__(self, message: str, remedy: str = "", retry_after: float | None = None) -> None:
        super().__init__(message, remedy)
        self.retry_after = retry_after


class Unreachable(HubOffline):
    """Nobody answers at the Hub's address."""


def silent(_: str) -> None:
    """Tell nobody."""


@dataclass(frozen=True, slots=True)
class Patience:
    """Whoever waits: how often to try again, with which pauses, and whether they had enough.

    Attributes:
        pauses: seconds to wait before each new attempt; one try more than there are of them.
        cancel: set by somebody else to stop.
        note: is told what is being looked at.
    """

    pauses: tuple[float, ...] = PAUSES
    cancel: threading.Event = field(default_factory=threading.Event)
    note: Callable[[str], None] = silent

    def check(self) -> None:
        """Stop here if the user wants it.

        Raises:
            Cancelled: the user does.
        """
        if self.cancel.is_set():
            raise Cancelled

    def wait(self, seconds: float) -> None:
        """Sleep for `seconds`, or less when cancelled.

        Raises:
            Cancelled: the user wants to stop.
        """
        self.cancel.wait(seconds)
        self.check()

    def pause_after(self, error: Interrupted | Unreachable, attempt: int) -> float:
        """Give the seconds to wait after failure number `attempt`, counted from 0.

        Raises:
            Interrupted, Unreachable: `error`, where the server asks to wait for too long.
        """
        pause = self.pauses[min(attempt, len(self.pauses) - 1)]
        asked = error.retry_after if isinstance(error, Interrupted) else None
        if asked is not None and asked > LONGEST_PAUSE:
            raise error
        return pause if asked is None else max(pause, asked)


def retried(action: Callable[[], T], patience: Patience) -> T:
    """Run `action`, again and again while it is only interrupted.

    Raises:
        Interrupted: it still is after all pauses.
        Cancelled: the user wants to stop.
    """
    for attempt in range(len(patience.pauses)):
        patience.check()
        try:
            return action()
        except Interrupted as error:
            patience.wait(patience.pause_after(error, attempt))
    return action()
