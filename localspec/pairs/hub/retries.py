"""Retries: which failures are temporary, how long to wait, and the user's wish to stop."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, TypeVar

from localspec.errors import Cancelled, HubOffline, HubUnavailable

T = TypeVar("T")

PAUSES: Final = (1.0, 2.0, 4.0, 8.0, 16.0, 30.0)
LONGEST_PAUSE: Final = 60.0  # seconds; if a server asks for more, there is no other attempt
_MUCH: Final = 16 << 20
_LITTLE: Final = 1 << 16

CONTINUES: Final = "Run the same command again: it continues where it stopped."
NO_HUB: Final = "Check HF_ENDPOINT, and any proxy or firewall between here and the Hub."


class TransferInterrupted(HubUnavailable):
    """A temporary failure; `retry_after` is the number of seconds that the server asked for."""

    def __init__(self, message: str, retry_after: float = 0.0) -> None:
        super().__init__(message, CONTINUES)
        self.retry_after = retry_after


class Unreachable(HubOffline):
    """The Hub's address does not answer."""

    retry_after = 0.0


def silent(_: str) -> None:
    """Ignore a note."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often to retry, and whether the user wants to stop.

    There is one more attempt than `pauses`, in seconds. Another thread sets `cancel` to stop.
    `note` receives the name of the model being looked at.
    """

    pauses: tuple[float, ...] = PAUSES
    cancel: threading.Event = field(default_factory=threading.Event)
    note: Callable[[str], None] = silent

    def check(self) -> None:
        """Raise `Cancelled` if the user wants to stop."""
        if self.cancel.is_set():
            raise Cancelled

    def wait(self, seconds: float) -> None:
        """Sleep for `seconds`; raise `Cancelled` as soon as the user wants to stop."""
        self.cancel.wait(seconds)
        self.check()


def retried(
    action: Callable[[], T],
    retries: RetryPolicy,
    passing: tuple[type[TransferInterrupted | Unreachable], ...] = (TransferInterrupted,),
    done: Callable[[], int] = lambda: 0,
    tell: Callable[[str], None] = silent,
) -> T:
    """Run `action`; after temporary errors run it again, once per pause, with growing pauses.

    After an attempt that gained more than `_LITTLE` of the bytes that `done` counts, all attempts
    are available again; after more than `_MUCH`, the pauses also start small again. `tell` receives
    the reason for each pause.
    """
    failures = in_vain = 0
    while True:
        retries.check()
        before = done()
        try:
            return action()
        except passing as error:
            gained = done() - before
            failures = 1 if gained > _MUCH else failures + 1
            in_vain = 0 if gained > _LITTLE else in_vain + 1
            if in_vain > len(retries.pauses) or error.retry_after > LONGEST_PAUSE:
                raise
            tell(error.message)
            pause = retries.pauses[min(failures, len(retries.pauses)) - 1]
            retries.wait(max(pause, error.retry_after))
