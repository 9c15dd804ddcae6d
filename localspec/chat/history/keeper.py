"""The thread that owns the store: neither the screen nor the engine ever waits for a disk."""

from __future__ import annotations

import queue
import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from localspec.chat.events import Span
from localspec.chat.history.store import Store
from localspec.errors import ConversationError, LocalspecError

Result = TypeVar("Result")
Job: TypeAlias = "Callable[[Store], Any]"


class Keeper:
    """Runs jobs on a `Store` one after the other.

    Writing jobs that fail are kept and tried again before the next one and at the end, so that
    nothing is lost while a disk is full or a file is locked. Trouble is told once for each reason.

    Args:
        path: the store's file.
        tell: called with what is wrong, from the thread.
    """

    def __init__(self, path: Path, tell: Callable[[LocalspecError], object]) -> None:
        self._path = path
        self._tell = tell
        self._told: set[str] = set()
        self._jobs: queue.SimpleQueue[Callable[[Store | None], None] | None] = queue.SimpleQueue()
        self._unwritten: deque[Job] = deque()
        self._pieces: deque[tuple[str, Sequence[Span]]] = deque()  # a round each
        self._announced = False
        self._running: dict[str, bool] = {}  # messages that stream, or have streamed
        self._refusal: LocalspecError | None = None
        self._locked = False  # the store could not be opened, but may be later
        self._thread = threading.Thread(target=self._run, name="history", daemon=True)

    def start(self) -> None:
        """Open the store."""
        self._thread.start()

    def write(self, job: Job, *, begins: str | None = None, ends: str | None = None) -> None:
        """Have `job` change the store soon.

        Args:
            job: may run more than once.
            begins: a message whose text follows through `stream`.
            ends: a message that `job` has written whole.
        """
        self._jobs.put(lambda store: self._write(store, job, begins, ends))

    def stream(self, message: str, spans: Sequence[Span]) -> None:
        """Have a round of a running answer appended at once (any thread; it waits for nothing).

        Rounds that come faster than the disk takes them are written several at a time.
        """
        self._pieces.append((message, spans))
        if not self._announced:
            self._announced = True
            self._jobs.put(_wake)

    def ask(self, job: Callable[[Store], Result], *, changes: bool = False) -> Future[Result]:
        """What `job` finds in the store; raises a `LocalspecError` where that is not possible.

        A future that is cancelled in time asks for nothing, unless the job `changes` the store:
        that is done, also where nobody waits to hear of it.
        """
        future: Future[Result] = Future()
        if changes:
            future.set_running_or_notify_cancel()
        self._jobs.put(lambda store: self._answer(store, job, future))
        return future

    def close(self, timeout: float | None = None) -> bool:
        """Write what is left and end; whether all of it was written in time."""
        if self._thread.ident is None:
            return True
        self._jobs.put(None)
        self._thread.join(timeout)
        return not self._thread.is_alive() and not self._unwritten

    def _run(self) -> None:
        store = self._open()
        try:
            while (job := self._jobs.get()) is not None:
                store = store or self._open_again()
                job(store)
                self._write_pieces(store)
            store = store or self._open_again()
            self._catch_up(store)
            self._write_pieces(store)
        finally:
            if store is not None:
                store.close()

    def _open(self) -> Store | None:
        try:
            return Store(self._path)
        except Exception as error:
            self._locked = _is_lock(error)
            self._refusal = in_words(error, self._path)
            self._trouble(self._refusal)
            return None

    def _open_again(self) -> Store | None:
        store = self._open() if self._locked else None
        self._catch_up(store)
        return store

    def _write(self, store: Store | None, job: Job, begins: str | None, ends: str | None) -> None:
        if store is None and not self._locked:
            return
        if begins is not None:
            self._running[begins] = True
        if ends is not None:
            self._running[ends] = False
        self._unwritten.append(job)
        self._catch_up(store)

    def _catch_up(self, store: Store | None) -> None:
        """Do what is to be written, in order, as far as the file takes it."""
        while store is not None and self._unwritten:
            try:
                self._unwritten[0](store)
            except sqlite3.Error as error:
                self._trouble(in_words(error, self._path))
                return
            except Exception as error:  # it would never work: nothing else is to wait for it
                self._trouble(_fault(error))
            self._unwritten.popleft()

    def _write_pieces(self, store: Store | None) -> None:
        # In this order: a round that comes from here on is announced again, at worst in vain.
        self._announced = False
        if store is None and self._locked:
            return
        taken: dict[str, list[Span]] = {}
        for _ in range(len(self._pieces)):
            message, spans = self._pieces.popleft()
            running = self._running.get(message)
            if running is None and store is not None:  # the job that begins it is on its way
                self._pieces.append((message, spans))
            elif running:
                taken.setdefault(message, []).extend(spans)
        if store is None:
            return
        for message, spans in taken.items():
            try:
                store.add_text(message, spans)
            except sqlite3.Error as error:
                self._pieces.appendleft((message, spans))  # the next round tries again
                self._trouble(in_words(error, self._path))
            except Exception as error:
                self._trouble(_fault(error))

    def _answer(
        self, store: Store | None, job: Callable[[Store], Result], future: Future[Result]
    ) -> None:
        # From here on nobody can cancel it: a result that is refused would end the thread, and
        # with it everything that is still to be written.
        if not future.running() and not future.set_running_or_notify_cancel():
            return
        try:
            if store is None:
                raise self._refusal or ConversationError("conversations are not kept")
            future.set_result(job(store))
        except (sqlite3.Error, ValueError) as error:
            future.set_exception(in_words(error, self._path))
        except Exception as error:  # whoever asked is told; the thread writes on
            future.set_exception(error)

    def _trouble(self, error: LocalspecError) -> None:
        if error.message not in self._told:
            self._told.add(error.message)
            self._tell(error)


def _wake(store: Store | None) -> None:
    """Nothing: after every job the thread writes the rounds that have come."""


def _fault(error: Exception) -> LocalspecError:
    """That something could not be written for a reason that lies with us."""
    return ConversationError(
        f"something that was said is not kept ({type(error).__name__}: {error})",
        "This is a fault of localspec; the chat goes on.",
    )


def _is_lock(error: Exception) -> bool:
    return isinstance(error, sqlite3.OperationalError) and "locked" in str(error)


def in_words(error: Exception, path: Path) -> LocalspecError:
    """What is wrong with the store in one line, and what to do."""
    if isinstance(error, LocalspecError):
        return error
    reason = error.strerror if isinstance(error, OSError) else str(error)
    reason = reason or type(error).__name__
    if _is_lock(error):
        return ConversationError(
            f"another program holds the conversations in {path}",
            "The chat goes on; what is unsaved is written later.",
        )
    if isinstance(error, sqlite3.OperationalError | OSError):
        return ConversationError(
            f"conversations cannot be kept in {path}: {reason}",
            "The chat goes on; check the folder's permissions and the room on the disk.",
        )
    return ConversationError(
        f"the conversations in {path} cannot be read: {reason}",
        "The chat goes on; move the file away to begin a new one.",
    )
