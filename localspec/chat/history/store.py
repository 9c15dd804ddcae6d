"""All conversations in one SQLite file.

One thread uses a `Store`; several programs may use the file at once.
"""

from __future__ import annotations

import glob
import json
import os
import re
import sqlite3
import sys
import time
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from os.path import samestat
from pathlib import Path
from string import ascii_letters
from typing import Any

from localspec import private
from localspec.chat.conversation import RECALL
from localspec.chat.events import Span
from localspec.chat.history.fields import (
    Moment,
    header_of,
    node_of,
    pack,
    readable,
    sound,
    text,
    unpack,
)
from localspec.chat.history.rescue import is_rescued
from localspec.chat.history.schema import back_up, migrate, require_known
from localspec.chat.history.tree import (
    AnsweredQuestion,
    ConversationHeader,
    ListedConversation,
    MessageNode,
    MessageTree,
    StoredConversation,
)
from localspec.chat.history.unsent_texts import replaced
from localspec.chat.states.past_conversations import PAST
from localspec.chat.states.state_files import STATES, forget
from localspec.errors import ConversationError
from localspec.safe_text import encodable, folded, one_line, words

_BUSY_S = 5.0
_AGAIN_S = 0.01
_FIXED = (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY)  # where a disk is read-only
# File systems of other machines, also of the host of a virtual one, which share no memory:
# write-ahead logging needs that.
_REMOTE = re.compile(
    r"nfs4?|cifs|smb\w*|afpfs|afs|webdav|lustre|ceph|beegfs|gpfs|9p|virtiofs|vboxsf|prl_fs"
    r"|fuse\.(sshfs|glusterfs|rclone|vmhgfs-fuse)"
)
_STEPS = 1000  # of SQLite between two questions whether its work is still wanted
KEEP_DELETED_S = 7 * 24 * 3600.0
_LISTED = 200
_NUMBER = "SELECT number FROM messages WHERE id = ?"
_HEADER = "c.id, c.title, c.pair, c.parameters, c.created, c.updated"
# What the user asked before an answer `a`, with tools and what was said to them in between.
_QUESTION = (
    "WITH RECURSIVE up (id, parent, role, content) AS ("
    " SELECT id, parent, role, content FROM messages WHERE id = a.parent UNION"
    " SELECT m.id, m.parent, m.role, m.content FROM messages m JOIN up ON m.id = up.parent"
    " WHERE up.role IN ('tool', 'assistant'))"
    " SELECT content FROM up WHERE role NOT IN ('tool', 'assistant') LIMIT 1"
)
_RENEW = (
    "UPDATE SET content = excluded.content, finish = excluded.finish,"
    " origins = excluded.origins, figures = excluded.figures"
)
_COUNT = "SELECT count(*) FROM messages m WHERE m.conversation = c.id"
_NEWEST = "SELECT max(number) FROM messages m WHERE m.conversation = c.id"
# The first message of each conversation that a search finds, and the text around its match. They
# are two queries, so that only the texts that are shown are made.
_FOUND = (
    "SELECT conversation, min(rowid) AS number FROM words WHERE words MATCH :sought"
    " GROUP BY conversation"
)
_SNIPPETS = (
    "SELECT rowid, snippet(words, 1, '', '', '…', 12) FROM words"
    # The plus keeps SQLite from matching the words again for every row.
    " WHERE words MATCH ? AND +rowid IN (SELECT value FROM json_each(?))"
)
# What the index takes for other words than people do: a run of letters in scripts that put no space
# between words (Thai to Burmese, Khmer, kana, and Chinese characters) is one to it, and signs other
# than accents end one, such as the vowel signs of Hindi.
_INSIDE = re.compile(
    "[\u0e00-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]|[^\\w\u0300-\u036f]"
)
# Bytes, because what SQLite passes as text must be UTF-8, which a damaged file may not hold.
_FOLDED = "fold(CAST({} AS BLOB))".format
_ALL_INSIDE = (
    f"NOT EXISTS (SELECT 1 FROM json_each(:parts) WHERE instr({_FOLDED('content')}, value) = 0)"  # noqa: S608
)
_FOUND_INSIDE = (
    "SELECT conversation, min(number) AS number FROM messages"  # noqa: S608
    f" WHERE {_ALL_INSIDE} GROUP BY conversation"
)
_EXTRACTS = (
    "SELECT number, extract(CAST(content AS BLOB), ?) FROM messages"
    " WHERE number IN (SELECT value FROM json_each(?))"
)


class Store:
    """Reads and writes conversations.

    Every method is one transaction, and raises `sqlite3.Error` if the file cannot be read or
    written.

    Args:
        path: the file; created with its folder if it is missing.

    Raises:
        ConversationError: a newer localspec wrote it.
        OSError, sqlite3.Error: it cannot be opened, or is not a database.

    Attributes:
        spoilt: one sentence per damaged value that was read, or part that cannot be; the rest is
            shown.
    """

    def __init__(self, path: Path) -> None:
        self.spoilt: list[str] = []
        private.make_folder(path.parent)
        try:
            private.make_file(path)
        except OSError:
            if not path.exists():  # an existing file may still be readable
                raise
        self._path = path
        try:
            self._open(str(path))
        except sqlite3.OperationalError as error:
            code = getattr(error, "sqlite_errorcode", 0) & 0xFF
            if code not in _FIXED or os.access(path.parent, os.W_OK):
                raise
            # Write-ahead logging wants files next to this one, also to read it.
            self._open(f"{path.absolute().as_uri()}?mode=ro&immutable=1", fixed=True)
            log = Path(f"{path}-wal")  # of a killed program: an immutable file is read without it
            if log.exists() and log.stat().st_size:
                self.spoilt.append("what was said last may be missing where nothing can be written")

    def _open(self, place: str, *, fixed: bool = False) -> None:
        """Open the file at a path, or a URI if it is `fixed`, and bring it up to date."""
        self._db = sqlite3.connect(place, timeout=_BUSY_S, isolation_level=None, uri=fixed)
        self._db.text_factory = readable
        self._db.create_function("fold", 1, _fold, deterministic=True)
        self._db.create_function("extract", 2, _extract, deterministic=True)
        self._file = self._path.stat()
        try:
            require_known(self._db)
            if not fixed:
                self._bring_up_to_date()
        except BaseException:
            self._db.close()
            raise

    def _bring_up_to_date(self) -> None:
        back_up(self._db, self._path)
        if _is_remote(self._path.parent):
            with suppress(sqlite3.OperationalError):  # an older localspec has the file open
                self._db.execute("PRAGMA journal_mode = DELETE")
        else:
            # Commits survive the end of the program at once, and a power cut after a moment.
            self._write_ahead()
            self._db.execute("PRAGMA synchronous = NORMAL")
        migrate(self._db)
        with suppress(sqlite3.OperationalError):  # a read-only file can still be listed
            self._settle()
            self._purge()

    def _write_ahead(self) -> None:
        """Switch to write-ahead logging, with retries.

        If two programs switch at once, SQLite refuses one of them without waiting.
        """
        until = time.monotonic() + _BUSY_S
        while True:
            try:
                self._db.execute("PRAGMA journal_mode = WAL")
            except sqlite3.OperationalError as error:
                code = getattr(error, "sqlite_errorcode", 0) & 0xFF
                if code != sqlite3.SQLITE_BUSY or time.monotonic() > until:
                    raise
                time.sleep(_AGAIN_S)
            else:
                return

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def is_elsewhere(self) -> bool:
        """Whether the path leads to another file, or to none.

        Another program found this one damaged, or it was deleted.
        """
        try:
            return not samestat(self._file, self._path.stat())
        except FileNotFoundError:
            return not is_rescued(self._path)
        except OSError:
            return False

    def end_if(self, unwanted: Callable[[], bool]) -> None:
        """Have what takes long raise `sqlite3.OperationalError` soon after `unwanted` is true."""
        self._db.set_progress_handler(unwanted, _STEPS)

    # Writing

    def save(
        self,
        header: ConversationHeader,
        nodes: Sequence[MessageNode],
        leaf: str | None,
        earlier: Iterable[MessageNode] = (),
    ) -> None:
        """Write new or changed nodes of a conversation, and the end of its current path.

        The title is written only once, because it may have been changed since. A conversation that
        was deleted meanwhile is restored: with the `earlier` nodes, if its file was deleted, or put
        aside while these were written.
        """
        with self._transaction():
            if self._knows(header.id) and not self._lacks_parent(nodes):
                earlier = ()
            self._db.execute(
                "INSERT INTO conversations (id, title, created, updated, pair, parameters, leaf)"
                " VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET"
                " updated = excluded.updated, pair = excluded.pair, deleted = NULL,"
                " parameters = excluded.parameters, leaf = excluded.leaf",
                (
                    *(header.id, encodable(header.title), header.created, header.updated),
                    *(_json(asdict(header.pair)), _json(header.parameters), leaf),
                ),
            )
            for node in earlier:
                self._save_node(header.id, node, "NOTHING")
            for node in nodes:
                self._save_node(header.id, node)

    def add_text(self, message: str, spans: Sequence[Span]) -> None:
        """Append released text of a running answer; `save` of the node replaces it."""
        text = encodable("".join(span.text for span in spans))
        with self._transaction():
            self._db.execute(
                "INSERT INTO pieces (message, content, origins) VALUES (?, ?, ?)",
                (message, text, pack(spans)),
            )

    def drop(self, conversation: str, nodes: Sequence[str], leaf: str | None) -> None:
        """Remove messages of a failed or empty turn, unless another program went on from them.

        Args:
            conversation: its id.
            nodes: the messages, the first one first.
            leaf: the end of the path in force.
        """
        followed = "SELECT 1 FROM messages WHERE conversation = ? AND parent = ?"
        with self._transaction():
            for node in reversed(nodes):
                if self._db.execute(followed, (conversation, node)).fetchone():
                    break
                self._db.execute(f"DELETE FROM words WHERE rowid = ({_NUMBER})", (node,))  # noqa: S608
                self._db.execute("DELETE FROM pieces WHERE message = ?", (node,))
                self._db.execute("DELETE FROM messages WHERE id = ?", (node,))
            self._db.execute("UPDATE conversations SET leaf = ? WHERE id = ?", (leaf, conversation))
            self._db.execute(
                "DELETE FROM conversations WHERE id = ? AND NOT EXISTS"
                " (SELECT 1 FROM messages WHERE conversation = ?)",
                (conversation, conversation),
            )

    def set_leaf(self, conversation: str, leaf: str | None) -> None:
        """Switch to another path."""
        self._db.execute("UPDATE conversations SET leaf = ? WHERE id = ?", (leaf, conversation))

    def rename(self, conversation: str, title: str, before: str | None = None) -> None:
        """Give a conversation another title; with `before`, only if that is still its title."""
        self._db.execute(
            "UPDATE conversations SET title = ?1 WHERE id = ?2 AND title = ifnull(?3, title)",
            (encodable(title), conversation, None if before is None else encodable(before)),
        )

    def delete(self, conversation: str) -> None:
        """Hide a conversation; it is removed for good a week later.

        Its cache states and its text for prompt lookup are deleted at once, because they can be
        made again.
        """
        self._forget(conversation)
        self._db.execute(
            # The latest of all, even if the clock was set back; not of those that a clock which
            # was far ahead has stamped, or this one would not be removed after a week either.
            "UPDATE conversations SET deleted = max(?1, (SELECT ifnull(max(deleted), 0) + 1e-3"
            " FROM conversations WHERE deleted < ?2)) WHERE id = ?3",
            (time.time(), _far(), conversation),
        )

    def undelete(self) -> str | None:
        """Restore the conversation that was deleted last; return its title, or None."""
        row = self._db.execute(
            "UPDATE conversations SET deleted = NULL WHERE id = (SELECT id FROM conversations"
            " WHERE deleted IS NOT NULL ORDER BY deleted < ? DESC, deleted DESC, rowid DESC"
            " LIMIT 1) RETURNING title",
            (_far(),),
        ).fetchone()
        return None if row is None else str(row[0])

    def save_draft(self, conversation: str, text: str, before: str = "") -> None:
        """Store unsent text in place of `before`; what other windows have stored stays."""
        with self._transaction():
            if kept := replaced(self.draft(conversation), before, text):
                self._db.execute(
                    "INSERT OR REPLACE INTO drafts (conversation, content) VALUES (?, ?)",
                    (conversation, kept),
                )
            else:
                self._db.execute("DELETE FROM drafts WHERE conversation = ?", (conversation,))

    # Reading

    def draft(self, conversation: str) -> str:
        """The unsent text."""
        row = self._db.execute(
            "SELECT content FROM drafts WHERE conversation = ?", (conversation,)
        ).fetchone()
        return str(row[0]) if row else ""

    def questions(self, count: int) -> list[str]:
        """The user's last questions in all conversations, oldest first, without duplicates."""
        rows = self._db.execute(
            "SELECT content FROM messages m JOIN conversations c ON c.id = m.conversation"
            " WHERE role = 'user' AND content != ? AND c.deleted IS NULL"
            " GROUP BY content ORDER BY max(number) DESC LIMIT ?",
            (RECALL, count),
        )
        return [text(row[0]) for row in rows][::-1]

    def listed(self, search: str = "") -> list[ListedConversation]:
        """The latest conversations: of all, or of those that contain every word of `search`.

        The last word may be a prefix; in scripts without spaces between words, and with vowel
        signs, a word may be any part of the text; without any word, its signs are sought. Titles
        are searched too, for the words in this order.
        """
        search = encodable(search)
        whole = words(search)
        terms = [*dict.fromkeys(whole or search.split())]
        parts = [*map(folded, terms)]
        title = f"*{'*'.join(map(glob.escape, parts))}*"
        most = self._db.getlimit(sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH)
        asked = {
            "sought": _query(terms or [""]),
            "parts": json.dumps(parts),
            "title": title if len(title.encode()) <= most else None,  # no title is as long
            "listed": _LISTED,
        }
        hits, texts, begin = _FOUND, _SNIPPETS, asked["sought"]
        if terms and (not whole or any(map(_INSIDE.search, terms))):
            hits, texts, begin = _FOUND_INSIDE, _EXTRACTS, parts[0]
        rows = self._db.execute(
            f"SELECT {_HEADER}, ({_COUNT}), hits.number FROM conversations c"  # noqa: S608
            f" LEFT JOIN ({hits}) hits ON hits.conversation = c.id"
            f" WHERE deleted IS NULL AND (hits.number OR {_FOLDED('title')} GLOB :title)"
            # Sort by row ids, which only grow; a clock may jump.
            f" ORDER BY ({_NEWEST}) DESC, updated DESC, c.rowid DESC LIMIT :listed",
            asked,
        ).fetchall()
        shown = json.dumps([row[7] for row in rows if row[7]])
        around = dict(self._db.execute(texts, (begin, shown)))
        wrong: set[str] = set()
        listed = [
            ListedConversation(header_of(row, wrong), row[6], text(around.get(row[7])))
            for row in rows
        ]
        self._note(wrong, "some stored conversations are")
        return listed

    def ids(self) -> list[str]:
        """The ids of all conversations, the oldest first."""
        rows = self._db.execute("SELECT id FROM conversations WHERE deleted IS NULL ORDER BY rowid")
        return [text(row[0]) for row in rows]

    def told(self, count: int) -> list[AnsweredQuestion]:
        """The latest answers of all conversations with their questions, the newest last."""
        rows = self._db.execute(
            f"SELECT {_HEADER}, a.created, ({_QUESTION}),"  # noqa: S608
            " a.id, a.parent, a.role, a.content, a.finish, a.origins, a.figures"
            " FROM messages a JOIN conversations c ON c.id = a.conversation"
            " WHERE a.role = 'assistant' AND a.content != '' AND c.deleted IS NULL"
            " ORDER BY a.number DESC LIMIT ?",
            (count,),
        )
        wrong: set[str] = set()
        found = [_told(row, wrong) for row in rows]
        self._note(wrong, "some stored conversations are")
        return found[::-1]

    def load(self, conversation: str) -> StoredConversation:
        """A whole conversation.

        Raises:
            ConversationError: no conversation has this id.
        """
        row = self._db.execute(
            f"SELECT {_HEADER}, c.leaf FROM conversations c WHERE c.id = ?",  # noqa: S608
            (conversation,),
        ).fetchone()
        if row is None:
            raise ConversationError("this conversation is no longer there", "Choose another one.")
        with suppress(sqlite3.OperationalError):
            self._settle(conversation)
        messages = self._db.execute(
            "SELECT id, parent, role, content, finish, origins, figures FROM messages"
            " WHERE conversation = ? ORDER BY number",
            (conversation,),
        )
        wrong: set[str] = set()
        header = header_of(row, wrong)
        nodes = [node_of(message, wrong) for message in messages]
        self._note(wrong, f"the conversation “{one_line(header.title, 60)}” is")
        return StoredConversation(
            header, MessageTree(nodes, row[6] if isinstance(row[6], str) else None)
        )

    def _note(self, wrong: set[str], what: str) -> None:
        if wrong:
            self.spoilt.append(f"{what} damaged ({', '.join(sorted(wrong))})")

    # Inside

    def _knows(self, conversation: str) -> bool:
        known = self._db.execute("SELECT 1 FROM conversations WHERE id = ?", (conversation,))
        return known.fetchone() is not None

    def _lacks_parent(self, nodes: Sequence[MessageNode]) -> bool:
        parents = {node.parent for node in nodes} - {None, *(node.id for node in nodes)}
        return any(self._db.execute(_NUMBER, (one,)).fetchone() is None for one in parents)

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._db.execute("BEGIN IMMEDIATE")
        with self._db:  # commits, or rolls back
            yield

    def _save_node(self, conversation: str, node: MessageNode, if_there: str = _RENEW) -> None:
        message = node.message
        content = encodable(message.content)
        changed = self._db.execute(
            "INSERT INTO messages"  # noqa: S608
            " (id, conversation, parent, role, content, finish, origins, figures, created)"
            f" VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO {if_there}",
            (
                *(node.id, conversation, node.parent, message.role.value, content),
                *(message.finish, pack(message.spans), _json(node.figures), time.time()),
            ),
        )
        if changed.rowcount:
            self._db.execute("DELETE FROM pieces WHERE message = ?", (node.id,))
            self._index(node.id, conversation, content)

    def _index(self, message: str, conversation: str, content: str) -> None:
        self._db.execute(f"DELETE FROM words WHERE rowid = ({_NUMBER})", (message,))  # noqa: S608
        if content:
            self._db.execute(
                f"INSERT INTO words (rowid, conversation, content) VALUES (({_NUMBER}), ?, ?)",  # noqa: S608
                (message, conversation, content),
            )

    def _settle(self, conversation: str | None = None) -> None:
        """Complete answers, of one or all conversations, that a killed program left unfinished.

        This does not harm an answer that another program is writing at this moment: what it adds
        later is appended, and its last `save` replaces everything.
        """
        with self._transaction():
            whole: dict[tuple[str, str], tuple[str, str]] = {}
            for message, owner, said, origins, more, its_origins in self._db.execute(
                "SELECT m.id, m.conversation, m.content, m.origins, p.content, p.origins"
                " FROM pieces p JOIN messages m ON m.id = p.message"
                " WHERE m.conversation = ifnull(?, m.conversation) ORDER BY p.number",
                (conversation,),
            ):
                before = whole.get((message, owner), (text(said), text(origins)))
                whole[message, owner] = before[0] + text(more), before[1] + text(its_origins)
            for (message, owner), (content, origins) in whole.items():
                self._db.execute(
                    "UPDATE messages SET content = ?, origins = ? WHERE id = ?",
                    # Neighbouring rounds of one origin become one span.
                    (content, pack(unpack(content, origins)), message),
                )
                self._db.execute("DELETE FROM pieces WHERE message = ?", (message,))
                self._index(message, owner, content)

    def _purge(self) -> None:
        # Only what was certainly deleted on purpose, not what has a damaged field.
        where = "typeof(deleted) = 'real' AND deleted >= created AND deleted < ?"
        old = f"SELECT id FROM conversations WHERE {where}"  # noqa: S608
        before = (time.time() - KEEP_DELETED_S,)
        with self._transaction():
            gone = self._db.execute(old, before).fetchall()
            for table in ("words", "messages", "drafts"):
                self._db.execute(f"DELETE FROM {table} WHERE conversation IN ({old})", before)  # noqa: S608
            self._db.execute(f"DELETE FROM conversations WHERE {where}", before)  # noqa: S608
        for (conversation,) in gone:  # another program may have written after the deletion
            self._forget(str(conversation))

    def _forget(self, conversation: str) -> None:
        """Delete a conversation's files outside the store."""
        for folder in (STATES, PAST):
            forget(self._path.with_name(folder), conversation)


def _far() -> float:
    """A time so far ahead that only another clock can have stamped it."""
    return time.time() + KEEP_DELETED_S


def _is_remote(folder: Path) -> bool:
    """Whether a folder lies on another machine's disk, as far as the system tells."""
    if sys.platform == "win32":
        return False  # it does not tell
    if sys.platform == "linux" and os.major(folder.stat().st_dev):
        return False  # a disk of this machine: others have no number
    import psutil  # noqa: PLC0415 - the first frame does without

    try:
        every, place = psutil.disk_partitions(all=True), folder.resolve()
    except OSError:
        return False
    # Of several at one place, such as autofs and what it mounts, the last covers the others.
    around = [one for one in reversed(every) if place.is_relative_to(one.mountpoint)]
    kind = max(around, key=lambda one: len(one.mountpoint)).fstype if around else ""
    return _REMOTE.fullmatch(kind) is not None


def _query(terms: Sequence[str]) -> str:
    """Asks the index for all `terms`; the last may be the beginning of a word.

    To it a Latin word with accents is one without, and one whose accents are separate characters is
    another, which is asked for too. Other letters are asked for as they are: to it, й is not и with
    a breve.
    """
    asked = []
    for term, end in zip(terms, [*[""] * (len(terms) - 1), "*"], strict=True):
        apart = unicodedata.normalize("NFD", term)
        latin = all(a in ascii_letters or not a.isalpha() for a in apart)
        forms = dict.fromkeys((term, apart) if latin else (term,))
        asked.append(" OR ".join(f'"{form}"{end}' for form in forms))
    return " AND ".join(f"({each})" for each in asked)


def _fold(raw: bytes | None) -> str:
    """A stored text without differences of case."""
    return folded(text(raw))


def _extract(raw: bytes | None, sought: str) -> str:
    """A part of a stored text that begins shortly before what is sought, or with the text."""
    content = unicodedata.normalize("NFC", text(raw))
    level = "".join(each.casefold()[:1] or each for each in content)  # as long as the text
    return content[max(0, level.find(sought) - 12) :][:60]


def _told(row: Sequence[Any], wrong: set[str]) -> AnsweredQuestion:
    """An answer from its conversation's header, its time, the question's text and its fields."""
    header, node = header_of(row[:6], wrong), node_of(row[8:], wrong)
    time_ = sound(row[6], Moment, header.updated, wrong, "time")
    pair = str(node.figures.get("pair") or header.pair.name)
    said = node.message
    return AnsweredQuestion(
        header.id, header.title, pair, time_, text(row[7]), said.content, said.finish, node.figures
    )


def _json(value: Mapping[str, Any]) -> str:
    return encodable(json.dumps(value, ensure_ascii=False))
