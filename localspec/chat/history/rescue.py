"""Out of a damaged file into a new one: every row that can still be read, the old file aside."""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from localspec.chat.history.fields import readable
from localspec.chat.history.store import Store
from localspec.errors import ConversationError

_COLUMNS = {
    "conversations": ("id", "title", "created", "updated", "deleted", "pair", "parameters", "leaf"),
    "messages": (
        *("number", "id", "conversation", "parent", "role", "content"),
        *("finish", "origins", "figures", "created"),
    ),
    "pieces": ("number", "message", "content", "origins"),
    "drafts": ("conversation", "content"),
}
# Messages whose conversation's own row is lost, and the words of all.
_COMPLETE = (
    "INSERT OR IGNORE INTO conversations (id, title, created, updated, pair, parameters)"
    " SELECT conversation, substr(content, 1, 60), min(created), max(created), '{}', '{}'"
    " FROM messages GROUP BY conversation",
    "INSERT INTO words (rowid, conversation, content)"
    " SELECT number, conversation, content FROM messages WHERE content != ''",
)


def is_damage(error: Exception) -> bool:
    """Whether a file that is a database is damaged, so that some of it may still be read."""
    code = getattr(error, "sqlite_errorcode", 0)
    return isinstance(error, sqlite3.DatabaseError) and code & 0xFF == sqlite3.SQLITE_CORRUPT


def rescue(path: Path) -> ConversationError | None:
    """Put what can be read of a damaged store in its place, and the damaged file aside.

    Nothing is deleted. Returns what the user should know; None where the file is sound after all,
    since another program was quicker.

    Raises:
        OSError, sqlite3.Error: there is no room, or the file cannot be moved; it stays.
    """
    if _is_sound(path):
        return None
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".rescue.") as scratch:
        copy, new = Path(scratch) / "old.db", Path(scratch) / "new.db"
        shutil.copyfile(path, copy)
        with suppress(FileNotFoundError):
            shutil.copyfile(f"{path}-wal", f"{copy}-wal")
        saved = _copy_rows(copy, new)
        aside = _put_aside(path)
        new.replace(path)
    return ConversationError(
        f"the stored conversations were damaged: {saved:,} messages could be read and are kept",
        f"The damaged file is now {aside.name}, in the same folder.",
    )


def _is_sound(path: Path) -> bool:
    try:
        with closing(sqlite3.connect(path)) as db:
            found: list[tuple[str]] = db.execute("PRAGMA quick_check(1)").fetchall()
            return found == [("ok",)]
    except sqlite3.DatabaseError:
        return False


def _put_aside(path: Path) -> Path:
    aside = path.with_name(f"{path.stem}.damaged-{time.strftime('%Y%m%d-%H%M%S')}{path.suffix}")
    # First what stands beside it: SQLite would take an old journal for one of the new file.
    for suffix in ("-wal", "-shm", ""):
        with suppress(FileNotFoundError):
            Path(f"{path}{suffix}").replace(f"{aside}{suffix}")
    return aside


def _copy_rows(damaged: Path, new: Path) -> int:
    """Copy what can be read; how many messages that is."""
    Store(new).close()
    with (
        closing(sqlite3.connect(damaged)) as old,
        closing(sqlite3.connect(new, isolation_level=None)) as db,
    ):
        old.text_factory = readable
        old.execute("PRAGMA writable_schema = ON")  # SQLite then opens also what was cut off
        db.execute("BEGIN")
        for table, columns in _COLUMNS.items():
            marks = ", ".join("?" * len(columns))
            names = ", ".join(columns)
            for row in _rows(old, table, names):
                with suppress(sqlite3.Error):  # a value that the table does not take
                    db.execute(
                        f"INSERT OR IGNORE INTO {table} ({names}) VALUES ({marks})",  # noqa: S608
                        row,
                    )
        for statement in _COMPLETE:
            db.execute(statement)
        db.execute("COMMIT")
        count: int = db.execute("SELECT count(*) FROM messages").fetchone()[0]
        return count


def _rows(db: sqlite3.Connection, table: str, columns: str) -> Iterator[tuple[Any, ...]]:
    """Every row that can be read: a span with a damage in it is halved around the damage."""
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
    """A number that no row exceeds, as far as can be told."""
    known = 0
    for power in range(62):
        try:
            beyond = f"SELECT 1 FROM {table} NOT INDEXED WHERE rowid > ? LIMIT 1"  # noqa: S608
            if db.execute(beyond, (2**power,)).fetchone() is None:
                return int(2**power)
            known = power + 1
        except sqlite3.DatabaseError:  # there, or at the very end
            continue
    return int(2 ** (known + 1)) if known else 0
