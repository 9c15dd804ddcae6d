"""The thread that owns the store, so that neither the screen nor the engine waits for a disk."""

from __future__ import annotations

import errno
import queue
import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from localspec.chat.events import Span
from localspec.chat.history.rescue import is_damage, rescue
from localspec.chat.history.store import Store
from localspec.errors import ConversationError, LocalspecError

Result = TypeVar("Result")
Write: TypeAlias = "Callable[[Store], Any]"
# Errors that may pass while the program runs: a full disk, too many open files.
_PASSING = {errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.EIO}
_PASSING_SQLITE = {
    *(sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL),
    *(sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_NOMEM),
}


class _Asked(Future[Result]):
    """A future that knows whether something has cancelled it, even if its job runs already."""

    unwanted = False

    def cancel(self) -> bool:
        """As for every future; a job that runs is asked to end."""
        self.unwanted = True
        return super().cancel()


class StoreThread:
    """Runs jobs on a `Store`, one after the other.

    Writing jobs that fail are kept and tried again before the next one and at the end, so that
    nothing is lost while a disk is full or a file is locked. A damaged file is renamed, and what
    can be read of it is copied to a new one. Each problem is reported once, and again if it comes
    back after everything was written.

    Args:
        path: the store's file.
        tell: called with each problem, from the thread.
    """

    def __init__(self, path: Path, tell: Callable[[LocalspecError], object]) -> None:
        self._path = path
        self._tell = tell
        self._told: set[str] = set()
        self._passing: set[str] = set()  # those of `_told` that end once everything is written
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._unwritten: deque[Write] = deque()
        self._pieces: deque[tuple[str, Sequence[Span]]] = deque()  # one entry per round
        self._announced = False
        self._closing = False
        self._asked: _Asked[Any] | None = None  # runs now, and changes nothing
        self._running: dict[str, bool] = {}  # whether a message still streams
        self._store: Store | None = None
        self._refusal: LocalspecError | None = None
        self._later = False  # whether a store that could not be opened may be opened later
        self._beyond_rescue = False
        self._thread = threading.Thread(target=self._run, name="history", daemon=True)

    def start(self) -> None:
        """Open the store and start the thread."""
        self._thread.start()

    def write(self, job: Write, *, begins: str | None = None, ends: str | None = None) -> None:
        """Queue `job`, which changes the store.

        Args:
            job: may run more than once.
            begins: the id of a message whose text follows through `stream`.
            ends: the id of a message that `job` writes completely.
        """
        self._jobs.put(lambda: self._write(job, begins, ends))

    def stream(self, message: str, spans: Sequence[Span]) -> None:
        """Queue a round of a running answer; returns at once, from any thread.

        Rounds that arrive faster than the disk takes them are written several at a time.
        """
        self._pieces.append((message, spans))
        if not self._announced:
            self._announced = True
            self._jobs.put(lambda: None)  # the thread writes waiting rounds after every job

    def ask(self, job: Callable[[Store], Result], *, changes: bool = False) -> Future[Result]:
        """Queue `job`; the future holds its result, or a `LocalspecError`.

        A job whose future is cancelled does not run, or ends early, unless it `changes` the store.
        """
        future = _Asked[Result]()
        if changes:
            future.set_running_or_notify_cancel()
        self._jobs.put(lambda: self._answer(job, future))
        return future

    def close(self, timeout: float | None = None) -> bool:
        """Write what is left and end the thread; return whether everything was written in time.

        What is asked and changes nothing ends early, so that it delays no writing.
        """
        if self._thread.ident is None:
            return True
        self._closing = True
        self._jobs.put(None)
        self._thread.join(timeout)
        return not (self._thread.is_alive() or self._unwritten or self._pieces)

    def _run(self) -> None:
        self._open()
        try:
            while (job := self._jobs.get()) is not None:
                self._open_again()
                job()
                self._write_pieces()
                self._forget_what_passed()
                self._tell_of_damage()
            self._open_again()
            self._catch_up()
            self._write_pieces()
        finally:
            if self._store is not None:
                self._store.close()

    def _open(self) -> Store | None:
        try:
            self._store = self._opened()
        except Exception as error:
            self._later = _may_pass(error)
            self._refusal = store_error(error, self._path)
            self._passing.add(self._refusal.message)
            self._trouble(self._refusal)
        return self._store

    def _opened(self) -> Store:
        try:
            store = Store(self._path)
        except sqlite3.DatabaseError as error:
            if not is_damage(error):
                raise
            self._rescue()
            store = Store(self._path)
        store.end_if(self._is_unwanted)
        return store

    def _is_unwanted(self) -> bool:
        """Whether the present job may end, because its result is no longer awaited."""
        return self._asked is not None and (self._asked.unwanted or self._closing)

    def _open_again(self) -> None:
        if self._store is not None and self._store.is_elsewhere():
            self._store.close()
            self._store, self._later = None, True
        if self._store is None and self._later:
            self._open()
            self._catch_up()

    def _rescue(self) -> None:
        """Rename a damaged file, and copy what can be read of it to a new one."""
        told = rescue(self._path)
        if told is not None:
            self._trouble(told)

    def _done(self, job: Callable[[Store], Result], store: Store) -> Result:
        """Run `job`, a second time if the file had to be rescued."""
        try:
            return job(store)
        except sqlite3.DatabaseError as error:
            if self._beyond_rescue or not is_damage(error):
                raise
            self._beyond_rescue = True
            store.close()
            self._store = None
            try:
                self._rescue()
            finally:
                rescued = self._open()
            if rescued is None:
                raise
            self._beyond_rescue = False
            return job(rescued)

    def _tell_of_damage(self) -> None:
        if self._store is not None and self._store.spoilt:
            for spoilt in self._store.spoilt:
                self._trouble(ConversationError(spoilt, "The rest is shown; nothing is deleted."))
            self._store.spoilt.clear()

    def _write(self, job: Write, begins: str | None, ends: str | None) -> None:
        if self._store is None and not self._later:
            return
        if begins is not None:
            self._running[begins] = True
        if ends is not None:
            self._running[ends] = False
        self._unwritten.append(job)
        self._catch_up()

    def _catch_up(self) -> None:
        """Run the waiting jobs in order, until one fails."""
        while self._store is not None and self._unwritten:
            if not self._is_settled(self._unwritten[0], self._store):
                return
            self._unwritten.popleft()

    def _is_settled(self, job: Write, store: Store) -> bool:
        """Run `job`; return False if it should be tried again."""
        try:
            self._done(job, store)
        except (sqlite3.Error, OSError) as error:
            self._passing.add(store_error(error, self._path).message)
            self._trouble(store_error(error, self._path))
            return False
        except Exception as error:  # it would always fail, and block all others
            self._trouble(
                ConversationError(
                    f"a message could not be stored ({type(error).__name__}: {error})",
                    "This is a fault of localspec; the chat goes on.",
                )
            )
        return True

    def _write_pieces(self) -> None:
        # Reset this first: a round that arrives from here on is announced again, if needlessly.
        self._announced = False
        if self._store is None and self._later:
            return
        self._catch_up()
        if self._unwritten:  # the job that begins a message deletes its earlier text
            return
        taken: dict[str, list[Span]] = {}
        for _ in range(len(self._pieces)):
            message, spans = self._pieces.popleft()
            running = self._running.get(message)
            if running is None and self._store is not None:
                self._pieces.append((message, spans))  # the job that begins it has not arrived yet
            elif running:
                taken.setdefault(message, []).extend(spans)
        for message, spans in taken.items():
            append = partial(Store.add_text, message=message, spans=spans)
            if self._store is not None and not self._is_settled(append, self._store):
                self._pieces.appendleft((message, spans))  # tried again with the next round

    def _forget_what_passed(self) -> None:
        """Tell of a full disk again if there is another one, once everything is written."""
        if self._store is not None and not (self._unwritten or self._pieces):
            self._told -= self._passing
            self._passing.clear()

    def _answer(self, job: Callable[[Store], Result], future: _Asked[Result]) -> None:
        # From here on the future cannot be cancelled. To set the result of a cancelled future would
        # raise, end the thread and lose the waiting writes.
        if not future.running():
            if not future.set_running_or_notify_cancel():
                return
            self._asked = future
        try:
            if self._store is None:
                raise self._refusal or ConversationError("conversations are not kept")
            future.set_result(self._done(job, self._store))
        except (sqlite3.Error, ValueError) as error:
            future.set_exception(store_error(error, self._path))
        except Exception as error:  # the caller gets the error; the thread goes on
            future.set_exception(error)
        finally:
            self._asked = None

    def _trouble(self, error: LocalspecError) -> None:
        if error.message not in self._told:
            self._told.add(error.message)
            self._tell(error)


def _may_pass(error: Exception) -> bool:
    """Whether a store that cannot be opened now may be opened later."""
    if isinstance(error, OSError):
        return error.errno in _PASSING
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in _PASSING_SQLITE


def store_error(error: Exception, path: Path) -> LocalspecError:
    """Describe an error of the store, with what the user can do."""
    if isinstance(error, LocalspecError):
        return error
    reason = error.strerror if isinstance(error, OSError) else str(error)
    reason = reason or type(error).__name__
    if isinstance(error, sqlite3.OperationalError) and "locked" in reason:
        return ConversationError(
            f"another program holds the conversations in {path}",
            "What is unsaved is written later.",
        )
    if isinstance(error, sqlite3.OperationalError | OSError):
        return ConversationError(
            f"conversations cannot be kept in {path}: {reason}",
            "Check the folder's permissions and the room on the disk.",
        )
    return ConversationError(
        f"the conversations in {path} cannot be read: {reason}",
        "Move the file away to begin a new one.",
    )
