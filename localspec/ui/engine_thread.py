"""The one thread that owns the engine: it loads, answers and closes; the screen only asks."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeAlias

from localspec.engine.cancel import Cancel
from localspec.errors import Cancelled
from localspec.ui.messages import ChangeDone, Loaded, LoadFailed, Loading, TurnNews, TurnOver

if TYPE_CHECKING:
    from textual.message import Message

    from localspec.chat.conversation import Message as ChatMessage
    from localspec.chat.events import TurnEvent
    from localspec.ui.contract import ChatSession, Loader

Job: TypeAlias = "Callable[[ChatSession], None]"


class Outbox:
    """Turn events on their way to the screen.

    The thread announces them with one message and then keeps quiet until they are collected: a
    fast pair makes hundreds of rounds a second, and every wake-up of the screen takes Python's
    lock from the decode loop.
    """

    def __init__(self, announce: Callable[[], object]) -> None:
        self._events: deque[TurnEvent] = deque()
        self._announce = announce
        self._announced = False

    def put(self, event: TurnEvent) -> None:
        """Add `event` (engine's thread)."""
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


class EngineThread:
    """Runs one job after the other on a session that nobody else touches.

    Args:
        load: makes the session, in the thread.
        post: takes messages from any thread (a Textual app's `post_message`).
        hear: called with every turn event, in the thread; takes next to no time.
    """

    def __init__(
        self,
        load: Loader,
        post: Callable[[Message], object],
        hear: Callable[[TurnEvent], object],
    ) -> None:
        self._load = load
        self._post = post
        self._hear = hear
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._loading = Cancel()
        self._turn_cancel: Cancel | None = None
        self._closing = False
        self.outbox = Outbox(lambda: post(TurnNews()))
        # A daemon: a load that cannot be interrupted must not keep the program from ending.
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def start(self) -> None:
        """Begin loading."""
        self._thread.start()

    def reserve(self) -> None:
        """Announce a turn: from now on `stop` means this one, even before it has begun."""
        self._turn_cancel = Cancel()

    def ask(self, text: str, earlier: Sequence[ChatMessage] | None = None) -> None:
        """Answer `text`; the events come through the outbox, `TurnOver` at the end.

        Args:
            text: what is asked.
            earlier: what was said before, where that is another path than the session's.
        """

        def begin(session: ChatSession, cancel: Cancel) -> Iterator[TurnEvent]:
            if earlier is not None:
                session.open(earlier)
            return session.turn(text, cancel)

        self._start_turn(begin)

    def regenerate(self) -> None:
        """Answer the last question again, reported like `ask`."""
        self._start_turn(lambda session, cancel: session.regenerate(cancel))

    def change(self, label: str, job: Job) -> None:
        """Run `job` on the session between turns; `ChangeDone` reports it under `label`."""
        self.submit(lambda session: self._report_change(label, job, session))

    def submit(self, job: Job) -> None:
        """Run `job` on the session between turns, unreported; it must not raise."""
        self._jobs.put(job)

    def stop(self) -> None:
        """Ask the running turn to end; returns at once."""
        if self._turn_cancel is not None:
            self._turn_cancel.set()

    def shut_down(self) -> None:
        """Stop whatever runs, close the session, end the thread; returns at once."""
        self._closing = True
        self._loading.set()
        self.stop()
        self._jobs.put(None)

    def join(self, timeout: float | None = None) -> bool:
        """Wait for the thread's end; whether it has ended."""
        if self._thread.ident is not None:  # it was started
            self._thread.join(timeout)
        return not self._thread.is_alive()

    def _start_turn(self, begin: Callable[[ChatSession, Cancel], Iterator[TurnEvent]]) -> None:
        cancel = self._turn_cancel or Cancel()
        self.submit(lambda session: self._run_turn(begin, session, cancel))

    def _run(self) -> None:
        session = self._make_session()
        if session is None:
            return
        try:
            while (job := self._jobs.get()) is not None and not self._closing:
                job(session)
        finally:
            session.close()

    def _make_session(self) -> ChatSession | None:
        try:
            session = self._load(self._report_loading, self._loading)
        except Cancelled:
            return None
        except Exception as error:
            self._post(LoadFailed(error))
            return None
        self._post(Loaded(session))
        return session

    def _report_loading(self, step: str, share: float | None) -> None:
        self._post(Loading(step, share))

    def _run_turn(
        self,
        begin: Callable[[ChatSession, Cancel], Iterator[TurnEvent]],
        session: ChatSession,
        cancel: Cancel,
    ) -> None:
        error: Exception | None = None
        try:
            for event in begin(session, cancel):
                self._hear(event)
                self.outbox.put(event)
        except Cancelled:
            pass
        except Exception as raised:
            error = raised
        self._post(TurnOver(error))

    def _report_change(self, label: str, job: Job, session: ChatSession) -> None:
        error: Exception | None = None
        try:
            job(session)
        except Exception as raised:
            error = raised
        self._post(ChangeDone(label, error))
