"""Retries: which failures are temporary, how long to wait, and the user's wish to stop."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, TypeVar

from localspec import formats
from localspec.errors import Cancelled, HubOffline, HubUnavailable

T = TypeVar("T")

PAUSES: Final = (1.0, 2.0, 4.0, 8.0, 16.0, 30.0)
# Seconds; if a server asks for more, there is no other attempt. The Hub counts requests in
# five minutes, but a user waits for so long only if that is told.
LONGEST_PAUSE: Final = 300.0
_LONGEST_UNTOLD: Final = 60.0
_STEP_S: Final = 0.5  # on Windows, a wait for a lock is not interrupted by Ctrl+C
_MUCH: Final = 16 << 20
_LITTLE: Final = 1 << 16

CONTINUES: Final = "Run the same command again: it continues where it stopped."
NO_HUB: Final = "Check HF_ENDPOINT, and any proxy or firewall between here and the Hub."


class TransferInterrupted(HubUnavailable):
    """A temporary failure; `retry_after` is the number of seconds that the server asked for."""

    def __init__(self, message: str, retry_after: float = 0.0) -> None:
        wait = f"Wait for {formats.duration(retry_after)}. " if retry_after else ""
        super().__init__(message, wait + CONTINUES)
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
    `note` receives the name of the model being looked at, and why the Hub is asked again.
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
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self.cancel.wait(min(left, _STEP_S))
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
    the length of each pause and its reason.
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
            longest = _LONGEST_UNTOLD if tell is silent else LONGEST_PAUSE
            if in_vain > len(retries.pauses) or error.retry_after > longest:
                raise
            pause = max(retries.pauses[min(failures, len(retries.pauses)) - 1], error.retry_after)
            tell(f"trying again in {formats.duration(pause)}: {error.message}")
            retries.wait(pause)
