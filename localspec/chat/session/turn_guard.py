"""`TurnGuard`: one turn at a time uses the engine, and the end of the session ends it."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from localspec.chat.events import TurnEvents
from localspec.engine.cancel import Cancel
from localspec.errors import LocalspecError


class TurnGuard:
    """Gives the engine to one turn at a time. All methods may be called from any thread."""

    def __init__(self) -> None:
        self._busy = threading.Lock()
        self._closed = False
        self._running: Cancel | None = None
        self._turns: weakref.WeakSet[TurnEvents] = weakref.WeakSet()

    @property
    def running(self) -> bool:
        """Whether a turn has the engine."""
        return self._running is not None

    def turn(self, events: TurnEvents, cancel: Cancel) -> TurnEvents:
        """`events`, which have the engine as long as they are iterated; `cancel` stops them.

        If they are never iterated to their end, `closing` ends them. Raises as `exclusive`, once
        the first event is asked for.
        """
        guarded = self._guarded(events, cancel)
        self._turns.add(guarded)
        return guarded

    def _guarded(self, events: TurnEvents, cancel: Cancel) -> TurnEvents:
        with self.exclusive(cancel):
            yield from events

    @contextmanager
    def exclusive(self, cancel: Cancel) -> Iterator[None]:
        """Hold the engine for a turn that `cancel` stops.

        Raises:
            LocalspecError: another turn is running, or the session is closed.
        """
        if not self._busy.acquire(blocking=False):
            raise LocalspecError("an answer is still being written", "Wait for it, or stop it.")
        try:
            if self._closed:
                raise LocalspecError("this conversation is closed", "Start a new one.")
            self._running = cancel
            yield
        finally:
            self._running = None
            self._busy.release()

    def stop(self) -> None:
        """Have the running turn end, if there is one."""
        if (running := self._running) is not None:
            running.set()

    @contextmanager
    def if_free(self) -> Iterator[bool]:
        """Hold the engine if no turn has it; yield whether that is so."""
        held = self._busy.acquire(blocking=False)
        try:
            yield held
        finally:
            if held:
                self._busy.release()

    @contextmanager
    def closing(self) -> Iterator[None]:
        """Allow no further turn, stop a running one, and hold the engine after its end."""
        self._closed = True
        while not self._busy.acquire(timeout=0.02):
            self.stop()
            # A turn that is not being iterated never ends by itself.
            for turn in list(self._turns):
                with suppress(ValueError):  # another thread runs it, and was asked to stop
                    turn.close()
        try:
            yield
        finally:
            self._busy.release()
