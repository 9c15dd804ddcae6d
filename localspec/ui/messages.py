"""What the engine tells the screen, on its way from the thread that hears it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from textual.message import Message

if TYPE_CHECKING:
    from localspec.chat.events import TurnEvent
    from localspec.process.messages import Event, Letter


@dataclass
class FromEngine(Message):
    """An event of the engine, other than those of a running turn."""

    letter: Letter[Event]


class TurnNews(Message):
    """The inbox holds turn events (posted once until they are collected)."""


class Inbox:
    """Turn events on their way to the screen.

    They are announced with one message until they are collected: a fast pair makes hundreds of
    rounds a second, and the screen draws far fewer frames.
    """

    def __init__(self, announce: Callable[[], object]) -> None:
        self._events: deque[TurnEvent] = deque()
        self._announce = announce
        self._announced = False

    def put(self, event: TurnEvent) -> None:
        """Add `event` (another thread)."""
        self._events.append(event)
        if not self._announced:
            self._announced = True
            self._announce()

    def collect(self) -> list[TurnEvent]:
        """Take everything that has arrived (screen's thread)."""
        # In this order: an event that arrives from here on is announced again, at worst in vain.
        self._announced = False
        events = []
        while self._events:
            events.append(self._events.popleft())
        return events
