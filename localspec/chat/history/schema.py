"""The tables of the store, and the migration of older files."""

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
    # The text that a running answer has released since its row was written: one row per round
    # as long as the disk keeps up.
    """CREATE TABLE pieces (
        number INTEGER PRIMARY KEY AUTOINCREMENT,
        message TEXT NOT NULL,
        content TEXT NOT NULL,
        origins TEXT NOT NULL
    )""",
    # The row's id is that of its message.
    """CREATE VIRTUAL TABLE words USING fts5 (
        conversation UNINDEXED, content,
        tokenize = 'unicode61 remove_diacritics 2', prefix = '2 3'
    )""",
)

# Unsent text by conversation; "" stands for a new one.
_DRAFTS: Migration = ("CREATE TABLE drafts (conversation TEXT PRIMARY KEY, content TEXT NOT NULL)",)

MIGRATIONS: tuple[Migration, ...] = (_FIRST, _DRAFTS)
"""Migration n makes version n + 1 of version n. Never change one that has been released."""


def require_known(db: sqlite3.Connection, newest: int = len(MIGRATIONS)) -> None:
    """Refuse a file that a newer localspec wrote.

    Raises:
        ConversationError: a newer localspec wrote it.
        sqlite3.Error: it cannot be read.
    """
    version = _version(db)
    if version > newest:
        raise ConversationError(
            f"the stored conversations have version {version}, newer than {newest}",
            "Update localspec to see them; new messages are not stored.",
        )


def migrate(db: sqlite3.Connection, migrations: Sequence[Migration] = MIGRATIONS) -> None:
    """Bring a file to the newest version, completely or not at all.

    All steps are one transaction. Otherwise another program could find a new file after some of the
    steps, and take it for an old one that must be backed up first.

    Args:
        db: in autocommit mode.
        migrations: all steps, beginning with an empty file.

    Raises:
        ConversationError: a newer localspec wrote the file.
        sqlite3.Error: the file cannot be read or written; it is unchanged.
    """
    if _version(db) < len(migrations):
        db.execute("BEGIN IMMEDIATE")
        with db:  # commits everything, or nothing
            for migration in migrations[_version(db) :]:  # none if another program was faster
                for statement in migration:
                    db.execute(statement)
            db.execute(f"PRAGMA user_version = {max(_version(db), len(migrations))}")
    require_known(db, len(migrations))


def back_up(db: sqlite3.Connection, path: Path) -> None:
    """Copy a file of an older version into the same folder, with the version in its name.

    Raises:
        OSError, sqlite3.Error: there is no room for the copy.
    """
    version = _version(db)
    if not 0 < version < len(MIGRATIONS):
        return
    copy = path.with_name(f"{path.stem}.version-{version}{path.suffix}")
    part = copy.with_name(f".{copy.name}.{os.getpid()}.part")
    try:
        private.make_file(part)
        db.execute("VACUUM INTO ?", (str(part),))
        part.replace(copy)
    finally:
        part.unlink(missing_ok=True)


def _version(db: sqlite3.Connection) -> int:
    version: int = db.execute("PRAGMA user_version").fetchone()[0]
    return version
