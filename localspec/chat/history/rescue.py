"""The rescue of a damaged store: what can be read of it is copied to a new file."""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from localspec import private
from localspec.chat.history.fields import readable
from localspec.chat.history.schema import migrate
from localspec.errors import ConversationError

_PATIENCE_S = 60.0
_SCRATCH = ".rescue."
_TABLES = ("conversations", "messages", "pieces", "drafts")  # the words are made from these
# Restore conversations whose own row is lost, and index the words of all messages.
_COMPLETE = (
    "INSERT OR IGNORE INTO conversations (id, title, created, updated, pair, parameters)"
    " SELECT conversation, substr(content, 1, 60), min(created), max(created), '{}', '{}'"
    " FROM messages GROUP BY conversation",
    "INSERT INTO words (rowid, conversation, content)"
    " SELECT number, conversation, content FROM messages WHERE content != ''",
)


def is_damage(error: Exception) -> bool:
    """Whether the error means a damaged database, some of which may still be readable."""
    code = getattr(error, "sqlite_errorcode", 0)
    # Where the index of words is damaged, a row of it may be there already; for other tables, more
    # of the code tells what does not fit.
    return isinstance(error, sqlite3.DatabaseError) and (
        code & 0xFF == sqlite3.SQLITE_CORRUPT or code == sqlite3.SQLITE_CONSTRAINT
    )


def is_rescued(path: Path) -> bool:
    """Whether a program rescues this store now: for a moment there is no file."""
    lock = _lock_of(path)
    if not lock.exists():
        return False
    try:
        with closing(sqlite3.connect(lock, timeout=0, isolation_level=None)) as db:
            db.execute("BEGIN EXCLUSIVE")
    except sqlite3.OperationalError as error:
        return error.sqlite_errorcode in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
    return False


def rescue(path: Path) -> ConversationError | None:
    """Rename a damaged store, and copy what can be read of it to a new file in its place.

    Nothing is deleted. Returns what the user should know; None if another program has already
    rescued the file.

    Raises:
        OSError, sqlite3.Error: there is no room, or the file cannot be renamed; it stays.
    """
    with _alone(path), ExitStack() as held:
        for left in path.parent.glob(f"{_SCRATCH}*"):  # by a program that was killed meanwhile
            shutil.rmtree(left, ignore_errors=True)
        if _is_sound(path):
            return None
        scratch = held.enter_context(tempfile.TemporaryDirectory(dir=path.parent, prefix=_SCRATCH))
        copy, new = Path(scratch) / "old.db", Path(scratch) / "new.db"
        shutil.copyfile(path, copy)
        for suffix in ("-wal", "-journal"):
            with suppress(FileNotFoundError):
                shutil.copyfile(f"{path}{suffix}", f"{copy}{suffix}")
        saved = _copy_rows(copy, new)
        aside = _put_aside(path)
        new.replace(path)
    return ConversationError(
        f"the stored conversations were damaged: {saved:,} messages could be read and are kept",
        f"The damaged file is now {aside.name}, in the same folder.",
    )


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Let one program at a time inside: the second then finds a sound file."""
    lock = _lock_of(path)
    private.make_file(lock)
    with closing(sqlite3.connect(lock, timeout=_PATIENCE_S, isolation_level=None)) as db:
        db.execute("BEGIN EXCLUSIVE")
        yield


def _lock_of(path: Path) -> Path:
    return path.with_name(f".{path.name}.lock")


def _is_sound(path: Path) -> bool:
    try:
        with closing(sqlite3.connect(path, isolation_level=None)) as db:
            if db.execute("PRAGMA quick_check(1)").fetchall() != [("ok",)]:
                return False
            # Before 3.44, SQLite does not look into the index of words, without which nothing can
            # be stored.
            with suppress(sqlite3.OperationalError):  # the file cannot be written now
                db.execute("INSERT INTO words (words) VALUES ('integrity-check')")
            return True
    except sqlite3.DatabaseError:
        return False


def _put_aside(path: Path) -> Path:
    now = time.strftime("%Y%m%d-%H%M%S")
    names = (f"{path.stem}.damaged-{now}{more}{path.suffix}" for more in ("", *range(-1, -99, -1)))
    aside = next(one for one in map(path.with_name, names) if not one.exists())
    # First its journal files: SQLite would take an old journal for one of the new file.
    for suffix in ("-wal", "-shm", "-journal", ""):
        with suppress(FileNotFoundError):
            Path(f"{path}{suffix}").replace(f"{aside}{suffix}")
    return aside


def _copy_rows(damaged: Path, new: Path) -> int:
    """Copy all readable rows; return the number of messages."""
    private.make_file(new)
    with (
        closing(sqlite3.connect(damaged)) as old,
        closing(sqlite3.connect(new, isolation_level=None)) as db,
    ):
        migrate(db)
        old.text_factory = readable
        old.execute("PRAGMA writable_schema = ON")  # so that SQLite opens truncated files too
        db.execute("BEGIN")
        for table in _TABLES:
            columns = [column[1] for column in db.execute(f"PRAGMA table_info({table})")]
            insert = f"INSERT OR IGNORE INTO {table} VALUES ({', '.join('?' * len(columns))})"  # noqa: S608
            for row in _rows(old, table, ", ".join(columns)):
                with suppress(sqlite3.Error):  # a value that the table refuses
                    db.execute(insert, row)
        for statement in _COMPLETE:
            db.execute(statement)
        db.execute("COMMIT")
        count: int = db.execute("SELECT count(*) FROM messages").fetchone()[0]
        return count


def _rows(db: sqlite3.Connection, table: str, columns: str) -> Iterator[tuple[Any, ...]]:
    """Yield every readable row; a range of rows with damage in it is bisected."""
    query = (
        f"SELECT rowid, {columns} FROM {table} NOT INDEXED"  # noqa: S608
        " WHERE rowid > ? AND rowid <= ? ORDER BY rowid"
    )
    spans = [(0, _last(db, table))]
    while spans:
        at, end = spans.pop()
        try:
            for number, *row in db.execute(query, (at, end)):
                if number <= at:
                    raise sqlite3.DatabaseError("the rows are out of order")
                at = number
                yield tuple(row)
        except sqlite3.DatabaseError:
            if end - at > 1:
                middle = (at + end) // 2
                spans += [(middle, end), (at, middle)]


def _last(db: sqlite3.Connection, table: str) -> int:
    """An upper bound for the row ids, as far as it can be determined."""
    known = 0
    for power in range(62):
        try:
            beyond = f"SELECT 1 FROM {table} NOT INDEXED WHERE rowid > ? LIMIT 1"  # noqa: S608
            if db.execute(beyond, (2**power,)).fetchone() is None:
                return int(2**power)
            known = power + 1
        except sqlite3.DatabaseError:  # the damage is there, or at the very end
            continue
    return int(2 ** (known + 1)) if known else 0
