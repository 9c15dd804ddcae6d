"""The tables, and how files of older versions become new ones."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

from localspec import private
from localspec.errors import ConversationError

Migration: TypeAlias = tuple[str, ...]

_FIRST: Migration = (
    """CREATE TABLE conversations (
        id TEXT PRIMARY KEY,
        title TEXT NOT NULL,
        created REAL NOT NULL,
        updated REAL NOT NULL,
        deleted REAL,
        pair TEXT NOT NULL,
        parameters TEXT NOT NULL,
        leaf TEXT
    )""",
    """CREATE TABLE messages (
        number INTEGER PRIMARY KEY AUTOINCREMENT,
        id TEXT NOT NULL UNIQUE,
        conversation TEXT NOT NULL,
        parent TEXT,
        role TEXT NOT NULL,
        content TEXT NOT NULL,
        finish TEXT,
        origins TEXT NOT NULL,
        figures TEXT NOT NULL,
        created REAL NOT NULL
    )""",
    "CREATE INDEX messages_of ON messages (conversation, number)",
    # What a running answer has released since its row was written, a round a row where
    # the disk keeps up.
    """CREATE TABLE pieces (
        number INTEGER PRIMARY KEY AUTOINCREMENT,
        message TEXT NOT NULL,
        content TEXT NOT NULL,
        origins TEXT NOT NULL
    )""",
    # A row has the number of its message.
    """CREATE VIRTUAL TABLE words USING fts5 (
        conversation UNINDEXED, content,
        tokenize = 'unicode61 remove_diacritics 2', prefix = '2 3'
    )""",
)

# What was typed and not sent, by conversation; "" stands for a new one.
_DRAFTS: Migration = ("CREATE TABLE drafts (conversation TEXT PRIMARY KEY, content TEXT NOT NULL)",)

MIGRATIONS: tuple[Migration, ...] = (_FIRST, _DRAFTS)
"""Migration n makes version n + 1 of version n. Never change one that has been released."""


def require_known(db: sqlite3.Connection, newest: int = len(MIGRATIONS)) -> None:
    """Refuse a file that a newer localspec wrote.

    Raises:
        ConversationError: it is one.
        sqlite3.Error: it cannot be read.
    """
    version = _version(db)
    if version > newest:
        raise ConversationError(
            f"the stored conversations are of version {version}, this localspec knows {newest}",
            "Update localspec to see them; what is said now is not kept.",
        )


def migrate(db: sqlite3.Connection, migrations: Sequence[Migration] = MIGRATIONS) -> None:
    """Bring a file to the newest version, each step whole or not at all.

    Args:
        db: in autocommit mode.
        migrations: all steps from an empty file on.

    Raises:
        ConversationError: a newer localspec wrote the file.
        sqlite3.Error: it cannot be read or written; it is what it was.
    """
    while (version := _version(db)) < len(migrations):
        db.execute("BEGIN IMMEDIATE")
        try:
            # Another instance may have been quicker.
            if _version(db) == version:
                for statement in migrations[version]:
                    db.execute(statement)
                db.execute(f"PRAGMA user_version = {version + 1}")
            db.execute("COMMIT")
        except BaseException:
            db.execute("ROLLBACK")
            raise
    require_known(db, len(migrations))


def back_up(db: sqlite3.Connection, path: Path, newest: int = len(MIGRATIONS)) -> Path | None:
    """Copy a file of an older version, before it is changed; None where it is not to be.

    Args:
        db: the file.
        path: its path; the copy gets the version into its name.
        newest: the version that it is to have.

    Raises:
        OSError, sqlite3.Error: there is no room for it.
    """
    version = _version(db)
    if not 0 < version < newest:
        return None
    copy = path.with_name(f"{path.stem}.version-{version}{path.suffix}")
    part = copy.with_name(f".{copy.name}.{os.getpid()}.part")
    try:
        private.make_file(part)
        db.execute("VACUUM INTO ?", (str(part),))
        part.replace(copy)
    finally:
        part.unlink(missing_ok=True)
    return copy


def _version(db: sqlite3.Connection) -> int:
    version: int = db.execute("PRAGMA user_version").fetchone()[0]
    return version
