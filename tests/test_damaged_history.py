"""Stored conversations that were damaged: what is undamaged is shown, nothing is deleted."""

from __future__ import annotations

import json
import os
import random
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from pathlib import Path
from typing import Any, NoReturn

import pytest

from localspec import formats
from localspec.chat.conversation import Message, Role
from localspec.chat.history import import_export, rescue, schema
from localspec.chat.history.conversation_record import ConversationRecord
from localspec.chat.history.fields import settings_of
from localspec.chat.history.markdown import to_markdown
from localspec.chat.history.store import Store
from localspec.chat.history.store_thread import StoreThread
from localspec.chat.history.tree import (
    AnsweredQuestion,
    ConversationHeader,
    ListedConversation,
    MessageTree,
    PairReference,
    StoredConversation,
)
from localspec.chat.settings import ChatSettings
from localspec.cli.answers import logs
from localspec.engine.record.stats import FinishReason
from localspec.errors import ConversationError, LocalspecError
from localspec.ui.screens.history import entry

PAGE = 4096
LEAVES = (b"\x0a", b"\x0d")
JUNK: list[Any] = [
    *(None, -1, 0, 7, 10**18, 1e999, -1e999, 1e300, "", b"", b"\xff\x00\xfe", "\x1b[2J"),
    *("{", '{"a":', '"x"', "null", "[1]", "9" * 5000, "1e999", "NaN", "[" * 5000, '{"a":' * 5000),
    *('{"name": [], "target": {}, "draft": 7}', '{"n_predict": 1e999, "gamma": {}, "stop": 3}'),
    *('{"sampling": {"top_k": "x", "seed": 1e5, "temperature": -1e999}}', "d5t" + "9" * 5000),
    *('{"accept": {}, "lenience": "x", "system_prompt": [], "sampling": []}', '{"a": 1e999}'),
]
COLUMNS = {
    "conversations": ("id", "title", "created", "updated", "deleted", "pair", "parameters", "leaf"),
    "messages": (
        *("id", "conversation", "parent", "role", "content", "finish", "origins", "figures"),
        "created",
    ),
    "pieces": ("message", "content", "origins"),
    "drafts": ("content",),
}


@dataclass(frozen=True)
class Sound:
    """An undamaged file, and what it holds by conversation."""

    path: Path
    said: dict[str, list[str]]

    def pages(self, conversation: str) -> set[int]:
        """The numbers of the pages that hold a part of the conversation."""
        raw, mark = self.path.read_bytes(), conversation.encode()
        return {n for n in range(len(raw) // PAGE) if mark in raw[n * PAGE : (n + 1) * PAGE]}

    def inner_pages(self) -> set[int]:
        """The pages that lead to others; the first page holds the tables' names."""
        raw = self.path.read_bytes()
        return {0} | {n for n in range(len(raw) // PAGE) if raw[n * PAGE :][:1] not in LEAVES}


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Sound:
    return written(tmp_path_factory.mktemp("sound"))


def written(folder: Path) -> Sound:
    """A store of twelve conversations that is as it should be."""
    path = folder / "conversations.db"
    store_thread = StoreThread(path, lambda error: pytest.fail(error.message))
    store_thread.start()
    said: dict[str, list[str]] = {}
    rng = random.Random(0)
    monkeypatch = pytest.MonkeyPatch()
    monkeypatch.setattr(
        f"{ConversationRecord.__module__}.fresh_id", lambda: f"{rng.getrandbits(128):032x}"
    )
    for number in range(12):
        record = ConversationRecord(store_thread, PairReference("demo", "demo"))
        for turn in range(4):
            record.begin(f"question {number}.{turn}", ChatSettings())
            text = " ".join(f"{rng.random()}" for _ in range(30))
            record.end(Message(Role.ASSISTANT, text, FinishReason.STOP), {"generated_tokens": 3})
        said[record.header.id] = [message.content for message in record.messages()]
    store_thread.write(lambda store: store.save_draft("", "not sent"))
    assert store_thread.close(30)
    monkeypatch.undo()
    return Sound(path, said)


def fields(path: Path, rng: random.Random) -> str | None:
    """Put something else into one field; the conversation that it belongs to."""
    table = rng.choices(list(COLUMNS), (5, 5, 1, 1))[0]
    column = rng.choice(COLUMNS[table])
    with closing(sqlite3.connect(path)) as db:
        if table == "pieces":
            answer = "SELECT id FROM messages WHERE role = 'assistant' LIMIT 1"
            db.execute(
                f"INSERT INTO pieces (message, content, origins) VALUES (({answer}), 'x', 't1')"
            )
        rowid = rng.choice([row[0] for row in db.execute(f"SELECT rowid FROM {table}")])
        owner = {"conversations": "id", "messages": "conversation"}.get(table, "rowid")
        found = db.execute(f"SELECT {owner} FROM {table} WHERE rowid = {rowid}").fetchone()
        db.execute(f"UPDATE OR IGNORE {table} SET {column} = ? WHERE rowid = ?",
                   (rng.choice(JUNK), rowid))  # fmt: skip
        if table == "pieces":
            found = db.execute("SELECT conversation FROM messages WHERE number = 2").fetchone()
        db.commit()
    return str(found[0])


def flips(path: Path, rng: random.Random) -> set[int]:
    """Change some bytes; the pages in which they stand."""
    raw = bytearray(path.read_bytes())
    low = 0 if rng.random() < 0.1 else PAGE
    places = [rng.randrange(low, len(raw)) for _ in range(rng.choice([1, 1, 3, 20]))]
    for place in places:
        raw[place] ^= rng.randrange(1, 256)
    path.write_bytes(raw)
    return {place // PAGE for place in places}


def blanks(path: Path, rng: random.Random) -> set[int]:
    """Lose one to three whole pages."""
    raw = bytearray(path.read_bytes())
    pages = {rng.randrange(1, len(raw) // PAGE) for _ in range(rng.randint(1, 3))}
    for page in pages:
        raw[page * PAGE : (page + 1) * PAGE] = rng.choice([bytes(PAGE), rng.randbytes(PAGE)])
    path.write_bytes(raw)
    return pages


def cut(path: Path, rng: random.Random) -> set[int]:
    """Lose the end of the file."""
    size = path.stat().st_size
    keep = rng.randrange(size)
    os.truncate(path, keep)
    return set(range(keep // PAGE, size // PAGE))


def attack(number: int, sound: Sound, folder: Path) -> None:
    rng = random.Random(number)
    path = folder / f"{number}" / "conversations.db"
    path.parent.mkdir()
    shutil.copyfile(sound.path, path)
    kind = rng.choice([fields, fields, flips, blanks, cut])
    if kind is fields:
        hurt = fields(path, rng)
        intact = [one for one in sound.said if one != hurt]
    else:
        pages: set[int] = kind(path, rng)  # type: ignore[assignment]
        whole = not pages & sound.inner_pages()
        intact = [one for one in sound.said if whole and not pages & sound.pages(one)]
    before = path.read_bytes()
    told, shown = seen(path)
    assert not [error.message for error in told if "fault" in error.message]
    assert {one: shown.get(one) for one in intact} == {one: sound.said[one] for one in intact}
    if kind is not fields and before:
        # Either it is still there, or it was put aside; neither has become shorter.
        kept = [path, *path.parent.glob("*.damaged-*.db")]
        assert max(one.stat().st_size for one in kept) >= len(before) // PAGE * PAGE
    shutil.rmtree(path.parent)


def seen(path: Path) -> tuple[list[LocalspecError], dict[str, list[str]]]:
    """Open every conversation, then say something new; return the errors and the texts shown."""
    told: list[LocalspecError] = []
    store_thread = StoreThread(path, told.append)
    store_thread.start()
    shown = {}
    try:
        listed = store_thread.ask(lambda store: store.listed()).result(20)
    except ConversationError as error:
        told.append(error)
        listed = []
    for one in listed:
        try:
            stored = store_thread.ask(lambda store, name=one.header.id: store.load(name)).result(20)
        except ConversationError as error:
            told.append(error)
            continue
        used(stored)
        shown[one.header.id] = [node.message.content for node in stored.tree.path()]
    ask_the_rest(store_thread, told)
    record = ConversationRecord(store_thread, PairReference("demo", "demo"))
    record.begin("something new", ChatSettings())
    record.end(Message(Role.ASSISTANT, "answered", FinishReason.STOP), {})
    assert store_thread.close(20) or told
    return told, shown


def used(stored: StoredConversation) -> None:
    """What the screen does with a conversation."""
    settings_of(stored.header.parameters, ChatSettings())
    time.localtime(stored.header.updated)
    import_export.from_text(import_export.to_json(stored)) if stored.tree.nodes else None
    to_markdown(stored)


def ask_the_rest(store_thread: StoreThread, told: list[LocalspecError]) -> None:
    jobs: list[Callable[[Store], object]] = [
        *(lambda store: store.questions(10), lambda store: store.draft("")),
        *(lambda store: store.listed("question"), lambda store: store.undelete()),
    ]
    for job in jobs:
        try:
            store_thread.ask(job).result(20)
        except ConversationError as error:
            told.append(error)


@pytest.mark.few(1)
@pytest.mark.parametrize("start", range(0, 50, 10))
def test_damaged_databases_show_what_is_undamaged(start: int, sound: Sound, tmp_path: Path) -> None:
    for number in range(start, start + 10):
        attack(number, sound, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("start", range(1000, 1400, 50))
def test_more_damaged_databases(start: int, sound: Sound, tmp_path: Path) -> None:
    for number in range(start, start + 50):
        attack(number, sound, tmp_path)


@pytest.fixture
def damaged(sound: Sound, tmp_path: Path) -> Iterator[sqlite3.Connection]:
    shutil.copyfile(sound.path, tmp_path / "conversations.db")
    with closing(sqlite3.connect(tmp_path / "conversations.db", isolation_level=None)) as db:
        yield db


def test_one_damaged_field_hides_nothing_and_is_told(
    damaged: sqlite3.Connection, sound: Sound, tmp_path: Path
) -> None:
    damaged.execute("UPDATE conversations SET pair = '{' WHERE rowid = 3")
    damaged.execute("UPDATE messages SET role = 'nobody' WHERE number = 2")
    damaged.close()
    told, shown = seen(tmp_path / "conversations.db")
    assert shown == sound.said
    assert [error.message for error in told] == [
        "some stored conversations are damaged (pair)",
        "the conversation “question 2.0” is damaged (pair)",
        "the conversation “question 0.0” is damaged (speaker)",
    ]


class OtherClock(datetime):
    """Windows: no local time for what a damaged field holds."""

    def astimezone(self, tz: tzinfo | None = None) -> NoReturn:
        raise OSError(22, "Invalid argument")


@pytest.mark.parametrize(("seconds", "shown"), [(0.0, True), (1e11 - 1, True), (1e11 - 1, False)])
def test_a_time_that_cannot_be_shown_hides_nothing(
    monkeypatch: pytest.MonkeyPatch, seconds: float, *, shown: bool
) -> None:
    if not shown:
        monkeypatch.setattr(formats, "_EPOCH", OtherClock(1970, 1, 1, tzinfo=UTC))
    header = ConversationHeader("c", "Rivers", PairReference(), created=seconds, updated=seconds)
    told = AnsweredQuestion("c", "Rivers", "demo", seconds, "Which?", "The Danube.", None, {})
    year = "5138-1" if seconds else "19"
    wanted = f"{year if shown else '?'}"
    assert f"  {wanted}" in entry(ListedConversation(header, 2), 1e12).plain
    assert f", {wanted}" in to_markdown(StoredConversation(header, MessageTree()))
    assert logs._text(told).startswith(f"── {wanted}")
    assert logs._data(told)["time"].startswith(wanted)


def test_a_damaged_file_is_put_aside_and_what_can_be_read_of_it_goes_on(
    damaged: sqlite3.Connection, sound: Sound, tmp_path: Path
) -> None:
    path = tmp_path / "conversations.db"
    damaged.close()
    raw = bytearray(path.read_bytes())
    hit = max(sound.pages(next(iter(sound.said))) - sound.inner_pages())
    raw[hit * PAGE : (hit + 1) * PAGE] = b"\xff" * PAGE
    path.write_bytes(raw)
    told, shown = seen(path)
    (aside,) = tmp_path.glob("conversations.damaged-*.db")
    assert len(aside.read_bytes()) >= len(raw)
    assert aside.name in told[0].remedy
    assert len(shown) == 12
    with closing(Store(path)) as store:  # what was said afterwards is kept as well
        assert "something new" in [one.header.title for one in store.listed()]


def test_a_journal_goes_with_the_damaged_file_and_is_heeded(
    damaged: sqlite3.Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "conversations.db"
    damaged.execute("PRAGMA journal_mode = DELETE")
    damaged.execute("PRAGMA cache_size = 1")  # so that pages are written before the end
    damaged.execute("BEGIN")
    damaged.execute("UPDATE messages SET content = 'half of this was stored'")
    found = {name: Path(f"{path}{name}").read_bytes() for name in ("", "-journal")}
    assert b"half of this" in found[""]
    damaged.close()
    for name, raw in found.items():
        Path(f"{path}{name}").write_bytes(raw)
    monkeypatch.setattr(rescue, "_is_sound", lambda _: False)  # it could not open the file
    assert rescue.rescue(path)
    (aside,) = tmp_path.glob("conversations.damaged-*.db-journal")
    assert aside.read_bytes() == found["-journal"]
    assert b"half of this" not in path.read_bytes()
    with closing(Store(path)) as store:
        assert len(store.listed("question")) == 12


@pytest.mark.parametrize(
    "damage",
    [
        *("UPDATE words_data SET block = x'ff' WHERE id = 10", "DELETE FROM words_data"),
        "UPDATE words_data SET block = zeroblob(length(block)) WHERE id > 10",
    ],
)
def test_where_the_index_of_words_is_damaged_it_is_made_again(
    damaged: sqlite3.Connection, sound: Sound, tmp_path: Path, damage: str
) -> None:
    path = tmp_path / "conversations.db"
    damaged.execute(damage)
    damaged.close()
    told, shown = seen(path)
    assert shown == sound.said
    assert ["were damaged" in error.message for error in told] == [True]
    with closing(Store(path)) as store:
        assert store.listed("answered")
        assert len(store.listed("question")) == 12


def test_who_had_a_damaged_file_open_goes_on_in_the_one_that_another_program_saved(
    damaged: sqlite3.Connection, sound: Sound, tmp_path: Path
) -> None:
    path = tmp_path / "conversations.db"
    damaged.close()
    told: list[LocalspecError] = []
    store_thread = StoreThread(path, told.append)
    store_thread.start()
    record = ConversationRecord(store_thread, PairReference("demo", "demo"))
    store_thread.ask(lambda store: store.draft("")).result(10)
    hit = max(sound.pages(next(iter(sound.said))) - sound.inner_pages())
    with path.open("r+b") as file:
        file.seek(hit * PAGE)
        file.write(b"\xff" * PAGE)
    seen(path)  # another program, which puts the file aside
    record.begin("said afterwards", ChatSettings())
    record.end(Message(Role.ASSISTANT, "and kept", FinishReason.STOP), {})
    assert store_thread.close(10)
    assert not told
    with closing(Store(path)) as store:
        assert "said afterwards" in [one.header.title for one in store.listed()]
        assert len(store.load(record.header.id).tree.path()) == 2


def test_a_conversation_whose_file_is_deleted_is_kept_whole_in_a_new_one(tmp_path: Path) -> None:
    path = tmp_path / "data" / "conversations.db"
    store_thread = StoreThread(path, lambda error: pytest.fail(str(error)))
    store_thread.start()
    record = ConversationRecord(store_thread, PairReference("demo", "demo"))
    for question in ("before", "afterwards"):
        record.begin(question, ChatSettings())
        record.end(Message(Role.ASSISTANT, "an answer", FinishReason.STOP), {})
        store_thread.ask(lambda store: store.draft("")).result(10)
        if question == "before":
            shutil.rmtree(path.parent)
    assert store_thread.close(10)
    with closing(Store(path)) as store:
        kept = store.load(record.header.id).tree.path()
        assert [node.message.content for node in kept] == [
            *("before", "an answer"),
            *("afterwards", "an answer"),
        ]


def test_what_was_said_while_another_program_rescued_the_file_is_kept(tmp_path: Path) -> None:
    path, copy = tmp_path / "conversations.db", tmp_path / "copy.db"
    store_thread = StoreThread(path, lambda error: pytest.fail(str(error)))
    store_thread.start()
    record = ConversationRecord(store_thread, PairReference("demo", "demo"))

    def turn(question: str) -> None:
        record.begin(question, ChatSettings())
        record.end(Message(Role.ASSISTANT, f"{question}!", FinishReason.STOP), {})
        store_thread.ask(lambda store: store.draft("")).result(10)

    turn("one")
    with closing(sqlite3.connect(path)) as db:
        db.execute("VACUUM INTO ?", (str(copy),))
    turn("two")  # in the file that is put aside alone
    with closing(sqlite3.connect(copy)) as db:
        db.execute("UPDATE messages SET content = 'as it was read' WHERE content = 'one!'")
        db.commit()
    rescue._put_aside(path)
    copy.replace(path)
    turn("three")
    assert store_thread.close(10)
    with closing(Store(path)) as store:
        kept = [node.message.content for node in store.load(record.header.id).tree.path()]
        assert kept == ["one", "as it was read", "two", "two!", "three", "three!"]
        assert len(store.listed("two")) == 1


def test_a_store_that_another_program_rescues_is_not_taken_for_deleted(tmp_path: Path) -> None:
    path = tmp_path / "conversations.db"
    with closing(Store(path)) as store:
        (tmp_path / ".rescue.x").mkdir()  # left by a program that was killed
        path.rename(tmp_path / "aside.db")
        with rescue._alone(path):
            assert not store.is_elsewhere()
        assert store.is_elsewhere()


def test_what_a_killed_rescue_left_goes_with_the_next(
    damaged: sqlite3.Connection, sound: Sound, tmp_path: Path
) -> None:
    path = tmp_path / "conversations.db"
    damaged.close()
    blanks(path, random.Random(1))
    left = tmp_path / ".rescue.x"
    left.mkdir()
    (left / "old.db").write_bytes(path.read_bytes())
    assert rescue.rescue(path) is not None
    assert not list(tmp_path.glob(".rescue.*"))


def test_two_programs_put_one_damaged_file_aside_once(
    damaged: sqlite3.Connection, sound: Sound, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "conversations.db"
    damaged.close()
    blanks(path, random.Random(1))
    before, copy_rows = path.read_bytes(), rescue._copy_rows

    def slowly(old: Path, new: Path) -> int:
        time.sleep(0.3)
        return copy_rows(old, new)

    monkeypatch.setattr(rescue, "_copy_rows", slowly)
    with ThreadPoolExecutor(2) as programs:
        told = list(programs.map(rescue.rescue, (path, path)))
    assert sum(one is None for one in told) == 1
    (aside,) = tmp_path.glob("*.damaged-*.db")
    assert aside.read_bytes() == before
    assert rescue._is_sound(path)


def test_a_second_file_put_aside_takes_the_place_of_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "strftime", lambda _: "20260101-000000")  # a clock that jumps
    path = tmp_path / "conversations.db"
    asides = []
    for content in (b"one", b"two"):
        path.write_bytes(content)
        asides.append(rescue._put_aside(path))
    assert [one.read_bytes() for one in asides] == [b"one", b"two"]


def test_a_conversation_begun_with_a_full_disk_is_kept_once_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = sqlite3.OperationalError("database or disk is full")
    full.sqlite_errorcode = sqlite3.SQLITE_FULL
    room = [False]

    def opened(path: Path) -> Store:
        if not room[0]:
            raise full
        return Store(path)

    monkeypatch.setattr("localspec.chat.history.store_thread.Store", opened)
    told: list[LocalspecError] = []
    path = tmp_path / "conversations.db"
    store_thread = StoreThread(path, told.append)
    store_thread.start()
    record = ConversationRecord(store_thread, PairReference("demo", "demo"))
    for question in ("first", "second"):
        record.begin(question, ChatSettings())
        record.end(Message(Role.ASSISTANT, "yes", FinishReason.STOP), {})
        store_thread.ask(lambda _: None).exception(10)
        room[0] = True
    assert store_thread.close(10)
    assert len(told) == 1
    with closing(Store(path)) as store:
        path_in_force = store.load(record.header.id).tree.path()
    assert [node.message.content for node in path_in_force] == ["first", "yes", "second", "yes"]


@pytest.mark.parametrize("version", range(1, len(schema.MIGRATIONS)))
def test_every_earlier_version_is_migrated_after_a_backup(version: int, tmp_path: Path) -> None:
    path = tmp_path / "conversations.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        schema.migrate(db, schema.MIGRATIONS[:version])
        db.execute("INSERT INTO conversations VALUES ('c', 'Old', 1, 2, NULL, '{}', '{}', 'm')")
        db.execute(
            "INSERT INTO messages VALUES (1, 'm', 'c', NULL, 'user', 'Hello?', NULL, '', '{}', 1)"
        )
    before = path.read_bytes()
    with closing(Store(path)) as store:
        (node,) = store.load("c").tree.path()
        assert node.message.content == "Hello?"
        store.save_draft("", "typed")
    copy = tmp_path / f"conversations.version-{version}.db"
    with closing(sqlite3.connect(copy)) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (version,)
        assert db.execute("SELECT content FROM messages").fetchall() == [("Hello?",)]
    assert len(copy.read_bytes()) <= len(before)
    Store(path).close()  # nothing to migrate: no further copy
    assert len(list(tmp_path.glob("*.version-*"))) == 1


@pytest.mark.skipif(os.name == "nt", reason="Windows has rights of another kind")
def test_conversations_are_private_also_those_of_older_versions(tmp_path: Path) -> None:
    path = tmp_path / "localspec" / "conversations.db"
    Store(path).close()
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    path.chmod(0o644)
    path.parent.chmod(0o755)
    store = Store(path)
    store.save_draft("", "open, with its journal")
    assert (path.parent.stat().st_mode & 0o777) == 0o700
    assert {one.stat().st_mode & 0o777 for one in path.parent.iterdir()} == {0o600}
    store.close()
    chosen = tmp_path / "home"  # a folder that the user chose keeps its permissions
    chosen.mkdir(mode=0o755)
    Store(chosen / "conversations.db").close()
    assert chosen.stat().st_mode & 0o777 == 0o755


@pytest.mark.slow
def test_an_import_of_nothing_but_brackets_is_refused_and_takes_little(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    text = '{"format": "localspec conversation", "version": 1, "messages": [' + "[]," * (15 << 20)
    path.write_text(text + "[]]}")
    program = (
        "import sys; from pathlib import Path\n"
        "from localspec import machine\n"
        "from localspec.chat.history import import_export\n"
        "from localspec.errors import ConversationError\n"
        "try:\n    import_export.read_file(Path(sys.argv[1]))\n"
        "except ConversationError as error:\n    print(error.message)\n"
        "print(machine.peak_resident() >> 20)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=True
    )
    message, peak = done.stdout.splitlines()
    assert message == "this is not a conversation: it has too many values"
    assert int(peak) < 500


@pytest.mark.parametrize("size", [10, 10**6])
def test_quotes_and_backslashes_without_end_take_no_time(size: int) -> None:
    begun = time.monotonic()
    for text in ('{"' + '\\"' * size, '{"' + "\\" * size, "{" + '"' * size):
        with pytest.raises(ConversationError):
            import_export.from_text(text)
    assert time.monotonic() - begun < 5


def test_what_a_message_says_counts_as_one_value() -> None:
    text = json.dumps(
        {
            "format": import_export.FORMAT,
            "version": 1,
            "messages": [{"id": 1, "role": "user", "content": '[{"a": "\\", ,,"}]' * 200_000}],
        }
    )
    assert len(import_export.from_text(text).tree.nodes) == 1
