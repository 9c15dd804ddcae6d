"""The one thread that owns the engine: it loads, answers, switches and closes; the screen asks."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeAlias

from localspec.engine.cancel import Cancel
from localspec.errors import Cancelled
from localspec.ui import garbage
from localspec.ui.messages import (
    ChangeDone,
    Loaded,
    LoadFailed,
    Loading,
    SwitchFailed,
    TurnNews,
    TurnOver,
)

if TYPE_CHECKING:
    from textual.message import Message

    from localspec.chat.conversation import Message as ChatMessage
    from localspec.chat.events import TurnEvent
    from localspec.ui.contract import ChatSession, Loader, Opener

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
        self._session: ChatSession | None = None
        self._latest: ChatSession | None = None  # also once it is freed: it has the conversation
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
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

    def compact(self) -> None:
        """Sum the conversation up, reported like `ask`."""
        self._start_turn(lambda session, cancel: session.compact(cancel))

    def change(self, label: str, job: Job) -> None:
        """Run `job` on the session between turns; `ChangeDone` reports it under `label`."""
        self.submit(lambda session: self._report_change(label, job, session))

    def change_long(self, label: str, job: Callable[[ChatSession, Cancel], None]) -> None:
        """The same for a job that takes long: `stop` sets its flag."""
        cancel = self._turn_cancel = Cancel()
        self.change(label, lambda session: job(session, cancel))

    def submit(self, job: Job) -> None:
        """Run `job` on the session between turns, unreported; it must not raise.

        Without a session nothing is run.
        """
        self._jobs.put(lambda: job(self._session) if self._session is not None else None)

    def switch(self, opener: Opener, name: str) -> None:
        """Load the pair `name` in place of the present one, and keep the conversation.

        The present pair is freed first. If the new one fails, it is loaded again. `Loaded` or
        `SwitchFailed` reports it.
        """
        cancel = self._loading = Cancel()
        self._jobs.put(lambda: self._switch(opener, name, cancel))

    def stop_loading(self) -> None:
        """Ask a load to end; returns at once."""
        self._loading.set()

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
        try:
            self._load_first()
            while not self._closing and (job := self._jobs.get()) is not None:
                if not self._closing:
                    job()
        finally:
            self._free()
            garbage.unsettle()

    def _load_first(self) -> None:
        try:
            session = self._load(self._report_loading, self._loading)
        except Cancelled:
            self._post(LoadFailed(None))
        except Exception as error:
            self._post(LoadFailed(error))
        else:
            self._take(session)
            self._post(Loaded(session))

    def _switch(self, opener: Opener, name: str, cancel: Cancel) -> None:
        try:
            load = opener(name)  # checks what it can while nothing is freed yet
            self._free()
            session = load(self._report_loading, cancel)
        except Exception as error:
            self._post(self._go_back(None if isinstance(error, Cancelled) else error))
            return
        self._load = load
        self._take(session)
        self._post(Loaded(session))

    def _go_back(self, error: Exception | None) -> SwitchFailed:
        """After a failed switch: have the old pair again, if there was one."""
        if self._latest is None or self._session is not None:
            return SwitchFailed(error, self._session)
        cancel = self._loading = Cancel()
        if self._closing:  # asked after the flag was put up: nobody sets the new one
            cancel.set()
        try:
            session = self._load(self._report_loading, cancel)
        except Cancelled:
            return SwitchFailed(error, None)
        except Exception as second:
            return SwitchFailed(error, None, second)
        self._take(session)
        return SwitchFailed(error, session)

    def _take(self, session: ChatSession) -> None:
        self._session = session  # first: whatever happens, it is freed
        if self._latest is not None:
            session.continue_from(self._latest)
        self._latest = session
        garbage.settle()

    def _free(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.close()

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
