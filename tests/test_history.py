"""Stored conversations: real SQLite files, other processes, kills and damage."""

from __future__ import annotations

import errno
import io
import json
import math
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
import unicodedata
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, TypeAlias

import numpy as np
import psutil
import pytest

from localspec.chat.conversation import RECALL, Message, Role
from localspec.chat.events import Origin, RoundText, Span, TurnEvent
from localspec.chat.history import import_export, schema, unsent_texts
from localspec.chat.history.conversation_record import ConversationRecord
from localspec.chat.history.fields import document_of, pack, settings_of, unpack
from localspec.chat.history.store import KEEP_DELETED_S, Store
from localspec.chat.history.store_thread import StoreThread
from localspec.chat.history.tree import (
    ConversationHeader,
    MessageNode,
    MessageTree,
    PairReference,
    StoredConversation,
    fresh_id,
)
from localspec.chat.settings import ChatSettings
from localspec.chat.states.past_conversations import PAST
from localspec.chat.states.state_files import STATES, StateFiles
from localspec.cli import stored_conversations
from localspec.engine.record.stats import FinishReason, Round
from localspec.engine.round.acceptance import Accept
from localspec.engine.round.sampling import SamplingParams
from localspec.errors import ConversationError, LocalspecError, UsageError
from localspec.loading.results import BrokenAnswer
from tests.support.waiting import wait_for

SETTINGS = ChatSettings(system_prompt="Be brief.")
PAIR = PairReference("demo", "demo")
ROUND = Round(tokens=(1,), gamma=0, drafted=0, accepted=0, draft_s=0.0, verify_s=0.01, total_s=0.01)

Form: TypeAlias = Literal["NFC", "NFD"]
FORMS: tuple[Form, ...] = ("NFC", "NFD")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data" / "conversations.db"


class StoreUser:
    """A store thread and the record of one running program."""

    def __init__(self, path: Path) -> None:
        self.told: list[LocalspecError] = []
        self.store_thread = StoreThread(path, self.told.append)
        self.store_thread.start()
        self.record = ConversationRecord(self.store_thread, PAIR)

    def turn(self, question: str | None, answer: str, instead_of: str | None = None) -> str:
        ids = self.record.begin(question, SETTINGS, instead_of=instead_of)
        spans = (Span(answer[:3], Origin.DRAFT), Span(answer[3:], Origin.TARGET))
        message = Message(Role.ASSISTANT, answer, FinishReason.STOP, spans)
        self.record.end(message, {"generated_tokens": 3})
        return ids[-1]

    def flush(self) -> None:
        self.store_thread.ask(lambda _: None).exception(10)

    def titles(self, search: str = "") -> list[str]:
        return [
            one.header.title for one in self.store_thread.ask(lambda s: s.listed(search)).result(10)
        ]

    def load(self, title: str) -> ConversationRecord:
        found = self.store_thread.ask(lambda s: s.listed(title)).result(10)[0].header.id
        record = ConversationRecord(self.store_thread, PAIR)
        record.open(self.store_thread.ask(lambda s: s.load(found)).result(10))
        return record


@pytest.fixture
def user(path: Path) -> Iterator[Callable[[], StoreUser]]:
    users: list[StoreUser] = []

    def make() -> StoreUser:
        for one in users:  # what they have said is written before the next one looks
            one.flush()
        users.append(StoreUser(path))
        return users[-1]

    yield make
    for one in users:
        assert one.store_thread.close(10)


def said(record: ConversationRecord) -> list[str]:
    return [message.content for message in record.messages()]


def test_a_conversation_comes_back_whole(user: Callable[[], StoreUser]) -> None:
    first = user()
    first.turn("What is\nthis?", "A test.")
    first.turn("And \x00 that?", "Another: ✓ \U0001f600")
    record = user().load("What is this?")
    assert record.messages() == first.record.messages()
    assert record.header.pair == PAIR
    assert record.nodes()[1].figures == {"generated_tokens": 3}
    back = settings_of(record.header.parameters, ChatSettings())
    assert back == SETTINGS


def test_all_parameters_survive_and_wrong_ones_are_left_out() -> None:
    sampling = SamplingParams(temperature=0.1, top_k=3, seed=7, logit_bias={4: -math.inf, 5: 1.5})
    settings = ChatSettings(
        system_prompt="x", sampling=sampling, accept=Accept.COUPLED, lenience=0.5, grammar="g",
        gamma=3, n_predict=9, stop=("a", "b"), repeatable=True, chosen=frozenset({"top_k"}),
    )  # fmt: skip
    document = json.loads(json.dumps(document_of(settings), allow_nan=False))
    assert settings_of(document, ChatSettings()) == settings
    wrong = {
        "system_prompt": 3, "gamma": 1000, "accept": "no", "stop": "x", "n_predict": None,
        "lenience": "much", "repeatable": 1, "sampling": {"top_k": "many", "temperature": 0.2},
        "unknown": 1,
    }  # fmt: skip
    assert settings_of(wrong, settings) == replace(
        settings, sampling=replace(sampling, temperature=0.2), chosen=frozenset({"temperature"})
    )
    impossible = {"sampling": {"temperature": -1}}
    assert settings_of(impossible, settings).sampling == sampling
    huge = 10**20
    impossible = {"n_predict": huge, "reasoning_budget": -huge, "sampling": {"seed": huge}}
    assert settings_of(impossible, settings) == settings
    assert settings_of(document, ChatSettings(repeat_stop=True)).repeat_stop  # the program's own


def test_the_list_is_searched_by_words_and_their_beginnings(user: Callable[[], StoreUser]) -> None:
    one = user()
    one.turn("Rivers of Europe", "The Danube, the Rhine.")
    one.record.fresh()
    one.turn("Mountains", "Über the Alps, 'quoted\" AND (odd*")
    assert one.titles() == ["Mountains", "Rivers of Europe"]
    assert one.titles("dan") == ["Rivers of Europe"]
    assert one.titles("danube the rh") == ["Rivers of Europe"]
    assert one.titles("uber AND odd") == ["Mountains"]
    assert one.titles("mount") == ["Mountains"]
    assert one.titles("rhine alps") == []
    assert one.titles(" ") == ["Mountains", "Rivers of Europe"]
    hit = one.store_thread.ask(lambda s: s.listed("danube")).result(10)[0]
    assert "Danube" in hit.found
    assert hit.messages == 2


def test_words_are_found_in_scripts_that_put_no_space_between_them(
    user: Callable[[], StoreUser],
) -> None:
    one = user()
    one.turn("天气", "你好世界，今天天气很好。")
    one.record.fresh()
    one.turn("Thai", "สวัสดีชาวโลก")
    assert one.titles("世界") == one.titles("很好 世界") == ["天气"]
    assert one.titles("ชาวโลก") == ["Thai"]
    assert one.titles("世上") == []
    hit = one.store_thread.ask(lambda s: s.listed("世界")).result(10)[0]
    assert "你好世界" in hit.found
    one.record.fresh()
    one.turn("mixed", "Python 你好, and SNAKES_1")
    assert one.titles("snakes 你好 python") == ["mixed"]
    assert one.titles("snakes_2 你好") == one.titles("nothing 你好") == []
    hit = one.store_thread.ask(lambda s: s.listed("SNAKES 你好")).result(10)[0]
    assert "你好" in hit.found


def test_words_with_vowel_signs_are_sought_whole(user: Callable[[], StoreUser]) -> None:
    one = user()
    one.turn("ไม่มีอะไร กาแฟ น", "ก")
    one.record.fresh()
    one.turn("กินข้าว", "a")
    one.record.fresh()
    one.turn("दाना नहीं", "b")
    one.record.fresh()
    one.turn("हिन्दी दिन", "c")
    assert one.titles("กิน") == ["กินข้าว"]
    assert one.titles("हिन्दी") == one.titles("दिन हिन्द") == ["हिन्दी दिन"]
    assert one.titles("दान") == ["दाना नहीं"]
    hit = one.store_thread.ask(lambda s: s.listed("दिन")).result(10)[0]
    assert hit.found == "हिन्दी दिन"


@pytest.mark.parametrize("pair", ["demo", "another"])
def test_an_answer_of_the_shell_leaves_a_conversation_its_settings(
    pair: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCALSPEC_DATA", str(tmp_path))

    def answered(pair: str, settings: ChatSettings, before: StoredConversation | None) -> str:
        said = BrokenAnswer(pair, (pair, None), settings, (Span("A.", Origin.TARGET),))
        stored_conversations.keep("What?", said, before)
        return stored_conversations.latest().id

    bias = {4: 1.5}
    own = replace(SETTINGS, n_predict=900, sampling=SamplingParams(logit_bias=bias))
    conversation = answered("demo", own, None)
    before = stored_conversations.ask(lambda store: store.load(conversation))
    own = replace(own, n_predict=700)  # in a chat, during the answer
    with closing(Store(stored_conversations.archive())) as store:
        header = replace(before.header, parameters=document_of(own))
        store.save(header, [], before.tree.leaf)
    short = ChatSettings(n_predict=50, grammar="g", system_prompt="x")
    assert answered(pair, short, before) == conversation
    after = stored_conversations.ask(lambda store: store.load(conversation))
    assert len(after.tree.path()) == 4
    kept = settings_of(after.header.parameters, ChatSettings())
    assert kept == (own if pair == "demo" else replace(own, sampling=SamplingParams()))


@pytest.mark.parametrize("word", ["tiếng", "đường", "Größe", "Ệ", "がく"])
@pytest.mark.parametrize("form", FORMS)
def test_a_word_is_found_whether_its_accents_are_characters_or_not(
    user: Callable[[], StoreUser], word: str, form: Form
) -> None:
    one = user()
    one.turn("q", f"so {unicodedata.normalize(form, word)}.")
    one.record.rename("title")
    for other in FORMS:
        assert one.titles(unicodedata.normalize(other, f"so {word}")) == ["title"]
    one.record.fresh()
    one.turn("q", "nothing")
    one.record.rename(unicodedata.normalize(form, word))
    assert one.titles(word)[0] == one.record.header.title


@pytest.mark.parametrize(
    ("word", "other"), [("мой", "мои, прямой, мойка"), ("ёлка", "елка"), ("ή", "η")]
)
def test_a_letter_with_an_accent_is_another_one(
    user: Callable[[], StoreUser], word: str, other: str
) -> None:
    one = user()
    one.turn("q", f"so {other}")
    assert one.titles(f"{word} so") == []
    one.turn("q", f"A _{word.upper()}_ so")
    assert one.titles(f"{word} so") == ["q"]
    one.record.fresh()
    one.turn("stress", "so «на́йти»: cafe")
    assert one.titles("найти café") == ["stress"]


def test_a_pasted_page_is_sought_too(user: Callable[[], StoreUser]) -> None:
    one = user()
    page = " ".join(f"word{number}" for number in range(6000))
    one.turn("other", "a")
    one.record.fresh()
    one.turn("q", page)
    assert one.titles(page) == ["q"]


def test_a_title_is_found_in_any_case(path: Path, user: Callable[[], StoreUser]) -> None:
    one = user()
    for title in ("Погода в Москве", "Über Straßen", "my plan"):
        one.record.fresh()
        one.turn("q", "a")
        one.record.rename(title)
    assert one.titles("погода") == one.titles("МОСКВЕ") == ["Погода в Москве"]
    assert one.titles("über STRASSEN") == ["Über Straßen"]
    assert one.titles("my_plan") == []
    one.record.fresh()
    one.turn("q", "今天 ÄPFEL")
    hit = one.store_thread.ask(lambda s: s.listed("äpfel 今")).result(10)[0]
    assert "ÄPFEL" in hit.found
    with closing(sqlite3.connect(path)) as other:  # damage
        other.execute("UPDATE conversations SET title = CAST(x'41ff42' AS TEXT) WHERE rowid = 1")
        other.commit()
    assert one.titles("a b") == ["A\ufffdB"]


@pytest.mark.parametrize("signs", ["???", "🎉", "_", "[*]", "*"])
def test_a_search_without_a_word_finds_its_signs(user: Callable[[], StoreUser], signs: str) -> None:
    one = user()
    one.turn("plain", "nothing else")
    assert one.titles(signs) == []
    one.record.rename(f"a{signs}b")
    one.record.fresh()
    one.turn("odd", f"see {signs} here")
    assert one.titles(f" {signs}") == ["odd", f"a{signs}b"]
    hit = one.store_thread.ask(lambda s: s.listed(signs)).result(10)[0]
    assert hit.found == f"see {signs} here"


def test_odd_letters_in_a_search_are_no_fault_and_move_no_extract(
    user: Callable[[], StoreUser],
) -> None:
    one = user()
    one.turn("first", f"{'heiß ' * 40}→ here")
    assert one.titles("\ud83d") == []
    hit = one.store_thread.ask(lambda s: s.listed("→")).result(10)[0]
    assert hit.found.endswith("heiß → here")


def test_a_search_takes_time_in_proportion_to_what_it_finds(path: Path) -> None:
    def steps(words: str) -> int:
        ticks: list[None] = []
        store._db.set_progress_handler(lambda: ticks.append(None), 100)
        assert "the" in store.listed(words)[0].found
        return len(ticks)

    def add() -> None:
        for _ in range(100):
            node = MessageNode(fresh_id(), None, Message(Role.USER, "here the words"))
            header = ConversationHeader(fresh_id(), "another", PairReference())
            store.save(header, [node], node.id)

    with closing(Store(path)) as store:
        add()
        before = steps("the wor")
        add()
        assert before < steps("the wor") < 3 * before


def test_a_message_that_came_to_nothing_is_found_by_no_search(
    user: Callable[[], StoreUser],
) -> None:
    one = user()
    one.turn("Rivers of Europe", "The Danube.")
    conversation, (asked, answered) = one.record.header.id, one.record.nodes()
    assert one.titles("danube") == ["Rivers of Europe"]
    one.store_thread.ask(lambda s: s.drop(conversation, [answered.id], asked.id)).result(10)
    assert one.titles("danube") == []
    assert one.titles("rivers") == ["Rivers of Europe"]


def test_rename_delete_and_undo(user: Callable[[], StoreUser]) -> None:
    one = user()
    one.turn("A question", "An answer")
    one.record.rename("A better title")
    one.turn("More", "Yes")
    assert one.titles() == ["A better title"]
    conversation = one.record.header.id
    one.store_thread.ask(lambda s: s.delete(conversation)).result(10)
    assert one.titles() == []
    assert one.titles("question") == []
    assert one.store_thread.ask(lambda s: s.undelete()).result(10) == "A better title"
    assert one.store_thread.ask(lambda s: s.undelete()).result(10) is None
    assert one.titles("question") == ["A better title"]


def test_only_what_the_user_asked_in_kept_conversations_is_offered_again(
    user: Callable[[], StoreUser],
) -> None:
    one = user()
    one.turn("a secret", "kept to myself")
    one.store_thread.ask(lambda s: s.delete(one.record.header.id)).result(10)
    one.record.fresh()
    one.turn("open", "answer")
    summary = Message(Role.ASSISTANT, "in short", FinishReason.STOP)
    one.record.graft([Message(Role.USER, RECALL), summary], SETTINGS)
    assert one.store_thread.ask(lambda s: s.questions(9)).result(10) == ["open"]
    one.store_thread.ask(lambda s: s.undelete()).result(10)
    assert one.store_thread.ask(lambda s: s.questions(9)).result(10) == ["a secret", "open"]


def test_a_clock_that_is_put_back_changes_no_order(
    user: Callable[[], StoreUser], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, clock = user(), [time.time()]
    monkeypatch.setattr(time, "time", lambda: clock[0])
    for question in ("first", "second", "third"):
        one.record.fresh()
        one.turn(question, "answer")
        clock[0] -= 3600
    assert one.titles() == ["third", "second", "first"]
    for each in one.store_thread.ask(lambda s: s.listed()).result(10):
        one.store_thread.ask(lambda s, name=each.header.id: s.delete(name)).result(10)
        clock[0] -= 3600
    undone = [one.store_thread.ask(lambda s: s.undelete()).result(10) for _ in range(3)]
    assert undone == ["first", "second", "third"]


def test_what_was_deleted_long_ago_is_removed_for_good(
    path: Path, user: Callable[[], StoreUser], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = user()
    one.turn("Old", "thing")
    kept = one.record.header.id
    one.record.fresh()
    one.turn("Older", "thing")
    one.store_thread.ask(lambda s: s.delete(one.record.header.id)).result(10)
    # Another program that had the conversation open leaves it, and keeps its caches' contents.
    left = StateFiles(path.with_name(STATES), "models")
    path.with_name(PAST).mkdir()
    for name in (one.record.header.id, kept):
        left.save(name, b"", [[1]], [np.ones(9, np.uint8)])
        (path.with_name(PAST) / f"{name}.x.past").touch()
    later = time.time() + KEEP_DELETED_S + 60
    monkeypatch.setattr(time, "time", lambda: later)
    store = Store(path)
    assert [listed.header.id for listed in store.listed()] == [kept]
    for folder in (STATES, PAST):
        assert [file.name.split(".")[0] for file in path.with_name(folder).iterdir()] == [kept]
    assert store.undelete() is None
    assert len(store.listed()) == 1
    assert len(store.listed("thing")) == 1
    store.close()


def test_what_is_deleted_after_the_clock_was_ahead_goes_a_week_later(
    path: Path, user: Callable[[], StoreUser], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, kept = user(), []
    for question in ("first", "second", "third"):
        one.record.fresh()
        one.turn(question, "answer")
        kept.append(one.record.header.id)
    now = time.time()

    def delete() -> None:
        for conversation, ahead in zip(kept, (1e9, 0, 0), strict=True):
            monkeypatch.setattr(time, "time", lambda it=ahead: now + it)
            one.store_thread.ask(lambda s, it=conversation: s.delete(it)).result(10)

    delete()
    with closing(Store(path)) as store:
        undone = [store.undelete() for _ in range(4)]
        assert undone == ["third", "second", "first", None]
    delete()
    monkeypatch.setattr(time, "time", lambda: now + KEEP_DELETED_S + 60)
    with closing(Store(path)) as store:
        assert [store.undelete(), store.undelete()] == ["first", None]


def test_a_clock_that_is_behind_removes_nothing(
    path: Path, user: Callable[[], StoreUser], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, now = user(), time.time()
    monkeypatch.setattr(time, "time", lambda: now - 3 * KEEP_DELETED_S)
    one.record.fresh()
    one.turn("first", "answer")
    one.flush()
    monkeypatch.setattr(time, "time", lambda: now)
    one.store_thread.ask(lambda s: s.delete(one.record.header.id)).result(10)
    for late in (2 * KEEP_DELETED_S, -60):
        monkeypatch.setattr(time, "time", lambda it=late: now - it)
        Store(path).close()
    with closing(Store(path)) as store:
        assert store.undelete() == "first"


def test_versions_of_questions_and_answers(user: Callable[[], StoreUser]) -> None:
    one = user()
    record = one.record
    first = one.turn("q1", "a1")
    one.turn("q2", "a2")
    # Regenerate the last answer, go back, continue from there.
    again = one.turn(None, "a2 again")
    assert said(record) == ["q1", "a1", "q2", "a2 again"]
    assert record.place(again).version == 2
    assert record.step(again, -1)
    assert said(record) == ["q1", "a1", "q2", "a2"]
    one.turn("q3", "a3")
    # Edit the second question.
    one.turn("q2 other", "b2", instead_of=record.nodes()[2].id)
    assert said(record) == ["q1", "a1", "q2 other", "b2"]
    edited = record.nodes()[2].id
    assert (record.place(edited).version, record.place(edited).versions) == (2, 2)
    assert record.place(first).versions == 1
    assert not record.step(edited, 1)
    assert record.step(edited, -1)
    assert said(record) == ["q1", "a1", "q2", "a2", "q3", "a3"]  # as it last went there
    back = user().load("q1")
    assert said(back) == said(record)
    assert back.step(back.nodes()[2].id, 1)
    assert said(back) == ["q1", "a1", "q2 other", "b2"]


def test_a_turn_that_came_to_nothing_leaves_no_trace(user: Callable[[], StoreUser]) -> None:
    one = user()
    one.record.begin("never answered", SETTINGS)
    one.record.end(None, {})
    assert one.titles() == []
    one.turn("q", "a")
    one.record.begin(None, SETTINGS)
    one.record.end(None, {})
    assert said(one.record) == ["q", "a"]
    assert said(user().load("q")) == ["q", "a"]


def test_an_answer_that_never_began_gives_way_to_the_version_before(
    user: Callable[[], StoreUser],
) -> None:
    one = user()
    one.turn("q", "a")
    for _ in range(2):  # both times the program ends before the first token
        one.record.begin(None, SETTINGS)
        assert said(user().load("q")) == ["q", "a"]
    one.record.begin("q other", SETTINGS, instead_of=one.record.nodes()[0].id)
    back = user().load("q")
    assert said(back) == ["q", "a"]
    assert back.step(back.nodes()[0].id, 1)
    assert said(back)[0] == "q other"


def test_a_question_that_got_no_answer_before_the_end_is_kept(
    user: Callable[[], StoreUser],
) -> None:
    one = user()
    for question in ("q", None):
        one.record.begin(question, SETTINGS)
        assert said(user().load("q")) == ["q", ""]


def test_an_answer_that_failed_leaves_the_chosen_version_chosen(
    user: Callable[[], StoreUser],
) -> None:
    one = user()
    record = one.record
    one.turn("q", "a1")
    record.step(one.turn(None, "a2"), -1)
    record.begin(None, SETTINGS)
    record.end(None, {})
    assert said(record) == ["q", "a1"]
    one.turn("another", "b", instead_of=record.nodes()[0].id)
    record.step(record.nodes()[0].id, -1)
    assert said(record) == ["q", "a1"]


def test_two_programs_continue_one_conversation_and_both_branches_stay(
    user: Callable[[], StoreUser],
) -> None:
    one, other = user(), user()
    one.turn("q", "a")
    one.flush()
    record = other.load("q")
    one.turn("from one", "1")
    one.flush()
    other.record = record
    other.turn("from the other", "2")
    assert said(one.record) == ["q", "a", "from one", "1"]
    both = user().load("q")
    assert said(both) == ["q", "a", "from the other", "2"]
    assert both.step(both.nodes()[2].id, -1)
    assert said(both) == ["q", "a", "from one", "1"]


def released(text: str) -> TurnEvent:
    return RoundText((Span(text, Origin.DRAFT),), ROUND)


WRITER = """
import sys
from pathlib import Path
from localspec.engine.cancel import Cancel
from tests.support.scripted_session import ScriptedSession
from tests.test_history import *
user = StoreUser(Path(sys.argv[1]))
user.turn("first", "whole")
user.record.begin("second", SETTINGS)
user.flush()
answer = " ".join(f"word{n}" for n in range(1000))
for event in ScriptedSession([answer], speculation=False).turn("second", Cancel()):
    if isinstance(event, RoundText):
        sys.stdin.readline()
    user.record.hear(event)
    if isinstance(event, RoundText):
        print(event.text.strip(), flush=True)
"""


def begins_with_words(text: str, count: int) -> bool:
    return text.split(" ")[:count] == [f"word{n}" for n in range(count)]


def written(path: Path) -> list[str]:
    """The rounds of unfinished answers in the files, read without their locks."""
    with tempfile.TemporaryDirectory() as folder:
        copy = f"{folder}/copy.db"
        for ending in ("", "-wal"):
            shutil.copyfile(f"{path}{ending}", f"{copy}{ending}")
        with closing(sqlite3.connect(copy)) as db:
            return [row[0] for row in db.execute("SELECT content FROM pieces ORDER BY number")]


@pytest.mark.skipif(sys.platform == "win32", reason="Windows cannot stop a process for a while")
def test_a_killed_program_loses_at_most_one_round(
    path: Path, user: Callable[[], StoreUser]
) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert child.stdin is not None
    assert child.stdout is not None

    def left() -> list[str]:
        """The contents of the file while the program is stopped, as a kill would leave it."""
        child.send_signal(signal.SIGSTOP)
        pieces = written(path)
        child.send_signal(signal.SIGCONT)
        return pieces

    try:
        for heard in range(1, 20):
            print(file=child.stdin, flush=True)  # tells the child to record a round
            assert child.stdout.readline() == f"word{heard - 1}\n"
            pieces = left()
            assert begins_with_words("".join(pieces), heard - 1)
            # Each round gets a transaction, though no other round comes.
            wait_for(lambda: len(left()) == heard)  # noqa: B023 - at once
    finally:
        child.kill()
        child.communicate()
    record = user().load("first")
    assert said(record)[:3] == ["first", "whole", "second"]
    assert begins_with_words(said(record)[3], 18)
    assert record.messages()[-1].finish is None
    assert record.messages()[-1].spans == (Span(said(record)[3], Origin.TARGET),)


@pytest.mark.parametrize("answer", ["1", ""])
def test_what_another_program_has_said_after_an_answer_is_shown_however_that_ends_later(
    user: Callable[[], StoreUser], answer: str
) -> None:
    one, other = user(), user()
    one.turn("q", "a")
    one.record.begin("from one", SETTINGS)
    one.flush()
    other.record = other.load("q")
    other.turn("from the other", "2")
    other.flush()
    one.record.end(Message(Role.ASSISTANT, answer, FinishReason.STOP) if answer else None, {})
    assert said(user().load("q")) == ["q", "a", "from one", answer, "from the other", "2"]


def test_another_program_reads_an_answer_that_is_being_written(
    user: Callable[[], StoreUser],
) -> None:
    one, other = user(), user()
    one.record.begin("q", SETTINGS)
    one.record.hear(released("half "))
    one.flush()
    assert said(other.load("q")) == ["q", "half "]
    one.record.hear(released("an answer"))
    one.flush()
    assert said(other.load("q")) == ["q", "half an answer"]


def test_hearing_waits_for_no_disk_and_rounds_that_piled_up_are_written_together(
    path: Path, user: Callable[[], StoreUser]
) -> None:
    one = user()
    one.record.begin("q", SETTINGS)
    busy, free = threading.Event(), threading.Event()
    one.store_thread.ask(lambda _: busy.set() or free.wait(30))
    assert busy.wait(10)
    for n in range(100):  # with a slow disk: nothing of this returns before its time
        one.record.hear(released(f"{n} "))
    free.set()
    one.flush()
    assert written(path) == ["".join(f"{n} " for n in range(100))]


def test_rounds_that_could_not_be_written_are_written_with_the_next(
    path: Path, user: Callable[[], StoreUser]
) -> None:
    one = user()
    one.record.begin("q", SETTINGS)
    one.flush()
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("CREATE TRIGGER full BEFORE INSERT ON pieces BEGIN"
                      " SELECT raise(ABORT, 'database or disk is full'); END")  # fmt: skip
        one.record.hear(released("lost"))
        one.flush()
        assert "full" in one.told[0].message
        other.execute("DROP TRIGGER full")
    one.record.hear(released(" and found"))
    one.flush()
    assert said(user().load("q")) == ["q", "lost and found"]


@pytest.mark.slow
def test_many_programs_write_at_once(path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from tests.test_history import *\n"
        "user = StoreUser(Path(sys.argv[1]))\n"
        "for n in range(15): user.turn(f'{sys.argv[2]} {n}', 'answer')\n"
        "assert user.store_thread.close(60) and not user.told, user.told\n"
    )
    children = [subprocess.Popen([sys.executable, "-c", program, str(path), name]) for name in "ab"]
    assert [child.wait() for child in children] == [0, 0]
    store = Store(path)
    assert sorted(one.messages for one in store.listed()) == [30, 30]
    store.close()


@pytest.mark.skipif(os.name == "nt", reason="Windows does not tell")
@pytest.mark.parametrize(
    ("home", "within", "journal"),
    [
        *(("nfs4", "", "delete"), ("smbfs", "", "delete"), ("fuse.sshfs", "", "delete")),
        *(("btrfs", "", "wal"), ("nfs", "btrfs", "wal"), ("btrfs", "nfs", "delete")),
        *(("btrfs", "autofs nfs4", "delete"), ("ceph", "", "delete"), ("virtiofs", "", "delete")),
        *(("fuse.rclone", "", "delete"), ("fuse.gocryptfs", "", "wal")),
    ],
)
def test_on_another_machines_disk_nothing_is_written_ahead(
    path: Path, monkeypatch: pytest.MonkeyPatch, home: str, within: str, journal: str
) -> None:
    Store(path).close()
    mounted = [("/", "ext4"), (str(path.parents[1]), home), (str(path.parent / "other"), "nfs")]
    mounted += [(str(path.parent), kind) for kind in within.split()]
    parts = [SimpleNamespace(mountpoint=at, fstype=kind) for at, kind in mounted]
    monkeypatch.setattr(os, "major", lambda _: 0, raising=False)
    monkeypatch.setattr(psutil, "disk_partitions", lambda *, all: parts)  # noqa: A006
    for _ in range(2):
        with closing(Store(path)) as store:
            store.save_draft("", "typed", "typed")
            assert store._db.execute("PRAGMA journal_mode").fetchone() == (journal,)
    with closing(Store(path)) as one, closing(Store(path)) as other:
        one.save_draft("", "more", "typed")
        assert other.draft("") == "more"


@pytest.mark.slow
def test_many_programs_make_the_file_at_once(tmp_path: Path) -> None:
    """SQLite used to refuse one of two programs, in one of 30 such rounds."""
    refused: list[Exception] = []

    def make(path: Path, ready: threading.Barrier) -> None:
        ready.wait(10)
        try:
            Store(path).close()
        except sqlite3.Error as error:
            refused.append(error)

    for n in range(100):
        its = tmp_path / str(n) / "conversations.db", threading.Barrier(4)
        threads = [threading.Thread(target=make, args=its) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not refused


@pytest.mark.parametrize("damage", ["text", "folder", "file in the way", "newer", "header only"])
def test_a_file_that_cannot_be_used_is_said_once_and_nothing_else_happens(
    path: Path, damage: str, user: Callable[[], StoreUser]
) -> None:
    path.parent.mkdir()
    if damage == "text":
        path.write_text("no database at all " * 100)
    elif damage == "folder":
        path.mkdir()
    elif damage == "file in the way":
        path.parent.rmdir()
        path.parent.write_text("")
    elif damage == "newer":
        db = sqlite3.connect(path)
        db.execute("PRAGMA user_version = 99")
        db.close()
    else:
        path.write_bytes(b"SQLite format 3\x00" + b"\xff" * 4096)
    before = path.read_bytes() if path.is_file() else None
    one = user()
    one.turn("q", "a")
    one.turn("q2", "a2")
    assert said(one.record) == ["q", "a", "q2", "a2"]
    with pytest.raises(ConversationError):
        one.titles()
    assert len(one.told) == 1
    assert "\n" not in one.told[0].message
    assert one.told[0].remedy
    assert before is None or path.read_bytes() == before


def test_what_could_not_be_written_is_written_later(
    path: Path, user: Callable[[], StoreUser]
) -> None:
    one = user()
    assert one.titles() == []
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("CREATE TRIGGER full BEFORE INSERT ON messages BEGIN"
                  " SELECT raise(ABORT, 'database or disk is full'); END")  # fmt: skip
    one.turn("q", "a")
    one.turn("q2", "a2")
    assert one.titles() == []
    assert len(one.told) == 1
    assert "full" in one.told[0].message
    other.execute("DROP TRIGGER full")
    other.close()
    one.turn("q3", "a3")
    assert said(user().load("q")) == ["q", "a", "q2", "a2", "q3", "a3"]


def test_a_disk_that_is_full_again_is_told_again(path: Path, user: Callable[[], StoreUser]) -> None:
    one = user()
    one.flush()
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        for times in (1, 2):
            other.execute("CREATE TRIGGER full BEFORE INSERT ON messages BEGIN"
                          " SELECT raise(ABORT, 'database or disk is full'); END")  # fmt: skip
            for question in ("q", "q2"):
                one.turn(question, "a")
                one.flush()
                assert len(one.told) == times
            other.execute("DROP TRIGGER full")
            one.turn("q3", "a3")
            one.flush()
    assert len({error.message for error in one.told}) == 1


def test_who_asks_can_go_away_or_fail_and_the_rest_is_written(
    user: Callable[[], StoreUser],
) -> None:
    one = user()
    asked, answered = threading.Event(), threading.Event()

    def slow(store: Store) -> None:
        asked.set()
        assert answered.wait(10)

    def broken(store: Store) -> None:
        raise KeyError("a fault of ours")

    running = one.store_thread.ask(slow)
    assert asked.wait(10)
    waiting = one.store_thread.ask(lambda _: pytest.fail("a withdrawn question is asked"))
    fault = one.store_thread.ask(broken)
    assert waiting.cancel()
    assert not running.cancel()  # it is being answered
    answered.set()
    assert running.result(10) is None
    assert isinstance(fault.exception(10), KeyError)
    one.turn("Still there?", "Yes.")
    assert one.titles() == ["Still there?"]
    assert not one.told


@pytest.mark.parametrize("leaves", [False, True])
def test_a_search_that_is_no_longer_awaited_holds_up_no_writing(path: Path, leaves: bool) -> None:
    one, asked = StoreUser(path), threading.Event()

    def endless(store: Store) -> None:
        asked.set()
        count = "SELECT n + 1 FROM numbers"
        store._db.execute(
            f"WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL {count}) SELECT max(n) FROM numbers"
        ).fetchall()

    search = one.store_thread.ask(endless)
    one.store_thread.write(lambda store: store.save_draft("", "not sent"))
    assert asked.wait(10)
    if not leaves:  # another one takes its place
        assert not search.cancel()
        assert one.store_thread.ask(lambda store: store.draft("")).result(10) == "not sent"
    assert one.store_thread.close(10)
    assert not one.told
    with closing(Store(path)) as store:
        assert store.draft("") == "not sent"


def test_a_change_is_made_though_nobody_waits_for_it_any_more(
    user: Callable[[], StoreUser],
) -> None:
    one = user()
    one.turn("q", "a")
    conversation, free = one.record.header.id, threading.Event()
    one.store_thread.ask(lambda _: free.wait(10))
    change = one.store_thread.ask(lambda store: store.rename(conversation, "renamed"), changes=True)
    assert not change.cancel()
    free.set()
    assert one.titles() == ["renamed"]


@pytest.mark.parametrize(
    ("stored", "before", "text", "then"),
    [
        *(("", "", "", ""), ("", "", "a", "a"), ("a", "a", "", ""), ("a", "a", "ab", "ab")),
        *(("a", "", "b", "a\nb"), ("a\nb", "b", "bc", "a\nbc"), ("a\nb", "a", "ac", "ac\nb")),
        *(("a\nb\nc", "b", "", "a\nc"), ("a\nb", "", "", "a\nb"), ("a\n\nb", "", "c", "a\n\nb\nc")),
        *(("ab", "b", "", "ab"), ("ab", "b", "bc", "ab\nbc"), ("a\nb", "", "b", "a\nb\nb")),
        *(("a\nb", "", "a", "a\nb\na"), ("a\nb\na", "a", "", "a\nb"), ("b", "a", "b", "b\nb")),
        *(("", "a", "a", "a"), ("a", "a", "a", "a"), ("a\n?", "\ud800", "", "a")),
        ("a", "\ud800", "\ud801", "a\n?"),
    ],
)
def test_a_window_replaces_what_it_stored_of_a_draft_alone(
    stored: str, before: str, text: str, then: str
) -> None:
    assert unsent_texts.replaced(stored, before, text) == then


def test_a_job_that_can_never_be_done_is_told_and_holds_up_nothing(
    user: Callable[[], StoreUser],
) -> None:
    def broken(store: Store) -> None:
        raise TypeError("a fault of ours")

    one = user()
    one.store_thread.write(broken)
    one.turn("q", "a")
    assert one.titles() == ["q"]
    assert "TypeError: a fault of ours" in one.told[0].message


def test_what_could_not_be_written_is_tried_again_at_the_end(path: Path) -> None:
    one = StoreUser(path)
    assert one.titles() == []
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("CREATE TRIGGER full BEFORE INSERT ON messages BEGIN"
                      " SELECT raise(ABORT, 'database or disk is full'); END")  # fmt: skip
        one.turn("q", "a")
        one.flush()
        assert "full" in one.told[0].message
        other.execute("DROP TRIGGER full")
    assert one.store_thread.close(30)
    with closing(Store(path)) as store:
        assert [one.messages for one in store.listed()] == [2]


def test_a_store_that_was_locked_at_the_beginning_is_written_once_it_is_free(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("localspec.chat.history.store._BUSY_S", 0.01)
    Store(path).close()
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("PRAGMA locking_mode = EXCLUSIVE")
        other.execute("BEGIN IMMEDIATE")
        one = StoreUser(path)
        one.turn("q", "a")
        one.record.begin("q2", SETTINGS)
        one.record.hear(released("half an answer"))
        with pytest.raises(ConversationError, match="another program holds"):
            one.titles()
    assert one.titles() == ["q"]
    assert len(one.told) == 1
    assert one.store_thread.close(30)
    with closing(Store(path)) as store:
        nodes = store.load(one.record.header.id).tree.path()
    assert [node.message.content for node in nodes] == ["q", "a", "q2", "half an answer"]


def test_migrations_run_once_in_order_and_whole_or_not_at_all(tmp_path: Path) -> None:
    db = sqlite3.connect(tmp_path / "x.db", isolation_level=None)
    first, second = ("CREATE TABLE a (x)",), ("INSERT INTO a VALUES (1)", "CREATE TABLE b (y)")
    schema.migrate(db, [first])
    broken = ("INSERT INTO a VALUES (2)", "no sql")
    with pytest.raises(sqlite3.Error):
        schema.migrate(db, [first, broken])
    assert db.execute("SELECT count(*) FROM a").fetchone() == (0,)
    for _ in range(2):
        schema.migrate(db, [first, second])
    assert db.execute("SELECT x FROM a").fetchall() == [(1,)]
    with pytest.raises(ConversationError, match="version 2"):
        schema.migrate(db, [first])
    db.close()


@pytest.mark.parametrize(
    ("name", "asked", "form", "written"),
    [
        ("mychat", "", "md", "mychat.md"),
        ("mychat", "json", "json", "mychat.json"),
        ("v1.2", "", "md", "v1.2.md"),
        ("a.JSON", "", "json", "a.JSON"),
        ("a.txt", "", "md", "a.txt"),
        ("a.markdown", "", "md", "a.markdown"),
        ("a.txt", "json", "json", "a.txt"),
        (".", "", "md", "."),  # a folder, which cannot be written
    ],
)
def test_a_file_has_the_ending_of_its_form(name: str, asked: str, form: str, written: str) -> None:
    assert import_export.with_ending(Path(name), asked) == (form, Path(written))


@pytest.mark.parametrize("word", ["html", "PDF", "docx"])
def test_a_form_that_is_not_written_is_refused(word: str) -> None:
    for ask in (
        partial(import_export.form_of, word),
        partial(import_export.with_ending, Path(f"chat.{word}"), ""),
    ):
        with pytest.raises(UsageError, match=f"not written as {word}"):
            ask()


def test_an_export_is_imported_as_a_conversation_of_its_own(
    user: Callable[[], StoreUser], tmp_path: Path
) -> None:
    one = user()
    one.turn("q", "a")
    one.turn(None, "again \x1b[2J")
    stored = one.store_thread.ask(lambda s: s.load(one.record.header.id)).result(10)
    file = import_export.write_file(stored, "json", tmp_path / "c.json")
    back = import_export.read_file(file)
    assert back.header.id != stored.header.id
    assert back.header.pair == PAIR
    assert not set(back.tree.nodes) & set(stored.tree.nodes)
    record = ConversationRecord(None)
    record.open(back)
    assert record.messages() == one.record.messages()
    assert record.step(record.nodes()[-1].id, -1)
    assert said(record) == ["q", "a"]
    text = import_export.write_file(stored, "md", tmp_path / "c.md").read_text(encoding="utf-8")
    assert text.startswith("# q\n\ndemo, ")
    assert "## System prompt\n\nBe brief.\n\n## You\n\nq\n\n## demo\n\nagain" in text
    assert len(text.rpartition("\n\n")[2].splitlines()) == 1  # the comment, the last line
    with pytest.raises(ConversationError, match="exists already"):
        import_export.write_file(stored, "md", tmp_path / "c.md")


def test_half_a_letter_in_an_export_is_replaced_and_one_id_twice_is_damage() -> None:
    said = [{"id": 1, "parent": None, "role": "user", "content": "a\ud800b"}]
    document = {"format": import_export.FORMAT, "version": import_export.VERSION, "messages": said}
    stored = import_export.from_text(json.dumps(document))
    assert [node.message.content for node in stored.tree.path()] == ["a?b"]
    with pytest.raises(ConversationError, match="two messages have one id"):
        import_export.from_text(
            json.dumps({**document, "messages": [*said, {**said[0], "id": "1"}]})
        )


def test_an_export_for_which_there_is_no_room_leaves_nothing(
    user: Callable[[], StoreUser], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = user()
    one.turn("q", "a")
    stored = one.store_thread.ask(lambda s: s.load(one.record.header.id)).result(10)

    def full(self: io.TextIOWrapper) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    class Full(io.TextIOWrapper):
        flush = full

    def opened(path: Path, mode: str, **_: object) -> Full:
        return Full(io.FileIO(path, mode))

    with monkeypatch.context() as patched:
        patched.setattr(Path, "open", opened)
        with pytest.raises(ConversationError, match="No space left"):
            import_export.write_file(stored, "json", tmp_path / "c.json")
    assert not (tmp_path / "c.json").exists()
    assert import_export.write_file(stored, "json", tmp_path / "c.json").exists()


@pytest.mark.parametrize(
    ("title", "name"),
    [
        ("My first question", "My-first-question.md"),
        ("Why does the light of the evening sky turn to a deep red?",
         "Why-does-the-light-of-the-evening-sky-turn-to-a.md"),
        (60 * "w", f"{50 * 'w'}.md"),
        ("हिन्दी — กินข้าว?", "हिन्दी-กินข้าว.md"),
        ("tie\u0302\u0301ng ❤\ufe0f _", "tiếng.md"),
        ("???", "conversation.md"),
    ],
)  # fmt: skip
def test_a_file_is_named_by_the_whole_words_of_its_title(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, title: str, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert import_export._free_name(title, "md") == Path(name)


NOTE = '<!-- localspec conversation {"version": 1} -->'
ODD = [
    "```md\n## You\n\nfenced\n\n## demo\n```",
    "## You",
    "\n\n## demo\n\n\\## You\n\\\\## You\n## You?\n ## You\n## You \n",
    "## You\r\n## demo\r\n\n## You\r",
    "\n\n\nblank lines before, between\n\n\n\nand after\n\n\n",
    "",
    "# A title\n\n## System prompt\n\nnone",
    f"{NOTE}\n\n{NOTE}\n",
    "tabs\tand \x00 \x1b[2J \x85 \u2028 \ufeff ✓ \U0001f600  ",
]


@pytest.mark.parametrize("pair", ["demo", "", "You", "a.b+c (x) -->", "two\nlines"])
@pytest.mark.parametrize("prompt", ["Be brief.", "", "\n## You\n\n## System prompt\n"])
@pytest.mark.parametrize("converted", [False, True])
def test_markdown_is_read_in_again_as_it_was_said(
    pair: str, prompt: str, converted: bool, tmp_path: Path
) -> None:
    record = ConversationRecord(None, PairReference(pair, "./t.gguf", "none"))
    settings = replace(SETTINGS, system_prompt=prompt, stop=("-->",), grammar="root ::= [a>]\n")
    contents = [text.replace("\r", "") for text in ODD] if converted else ODD
    record.fresh()
    for number, text in enumerate(contents):
        record.begin(text, settings)
        finish = FinishReason.CANCELLED if number % 2 else FinishReason.LENGTH
        record.end(Message(Role.ASSISTANT, contents[-1 - number], finish), {})
    record.rename("A # title of ## You")
    stored = StoredConversation(record.header, record.tree)
    file = import_export.write_file(stored, "md", tmp_path / "c.md")
    if converted:  # as an editor or git on Windows does
        file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes().replace(b"\n", b"\r\n"))
    back = import_export.read_file(file)
    assert [node.message for node in back.tree.path()] == record.messages()
    assert back.header.id != record.header.id
    for name in ("title", "pair", "parameters", "created"):
        assert getattr(back.header, name) == getattr(record.header, name)
    assert settings_of(back.header.parameters, ChatSettings()) == settings


def test_markdown_that_somebody_has_changed_is_read_as_it_is_now(
    user: Callable[[], StoreUser],
) -> None:
    one = user()
    one.turn("q", "a")
    text = import_export.to_markdown(StoredConversation(one.record.header, one.record.tree))
    text = text.replace("# q", "# Another").replace("\n\na\n\n", "\n\nb\n\n## You\n\nmore\n\n")
    stored = import_export.from_text(text + "\n")
    assert stored.header.title == "Another"
    assert [node.message.content for node in stored.tree.path()] == ["q", "b", "more"]
    assert {node.message.finish for node in stored.tree.path()} == {None}


@pytest.mark.parametrize(
    "text",
    ["# q\n\n## You\n\nq", f"# q\n\n{NOTE}\n",
     NOTE.replace("1", "2"), "\n\n" + NOTE.replace("1", "2"), "\n\n" + NOTE.replace("1}", ""),
     '\n\n<!-- localspec conversation {"version": 1, "pair": {"name": "x"}, "parameters": {},'
     ' "finish": []} -->',
     "", "{", "[]", '{"format": "x"}', "[" * 100_000,
     '{"format": "localspec conversation", "version": 2}',
     '{"format": "localspec conversation", "version": 1}',
     '{"format": "localspec conversation", "version": 1, "messages": []}',
     '{"format": "localspec conversation", "version": 1, "messages": [3]}',
     '{"format": "localspec conversation", "version": 1, "messages":'
     ' [{"id": "a", "role": "king", "content": "x"}]}',
     '{"format": "localspec conversation", "version": 1, "messages": "x"}',
     '{"format": "localspec conversation", "version": 1, "messages": {"id": "a"}}'],
)  # fmt: skip
def test_other_files_are_refused_in_one_line(text: str, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(ConversationError) as caught:
        import_export.read_file(tmp_path / "x.json")
    assert len(caught.value.message) < 300
    assert "Error" not in caught.value.message


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-1", "1" + "0" * 400, '"soon"', "[]"])
def test_figures_and_times_that_cannot_be_are_left_out(
    value: str, user: Callable[[], StoreUser]
) -> None:
    figures = '{"generated_tokens": 7, "tokens_per_second": VALUE, "pair": "x"}'
    text = (
        '{"format": "localspec conversation", "version": 1, "created": VALUE, "messages":'
        f' [{{"id": "a", "role": "assistant", "content": "x", "figures": {figures}}}]}}'
    ).replace("VALUE", value)
    stored = import_export.from_text(text)
    assert abs(stored.header.created - time.time()) < 600
    kept = stored.tree.path()[0].figures
    assert kept["generated_tokens"] == 7
    assert isinstance(kept.get("tokens_per_second", ""), str)
    # Earlier versions have stored what they were given.
    before = json.loads(figures.replace("VALUE", value))
    node = MessageNode("b", None, stored.tree.path()[0].message, before)
    store_thread = user().store_thread
    store_thread.write(lambda store: store.save(stored.header, [node], "b"))
    loaded = store_thread.ask(lambda store: store.load(stored.header.id)).result(10)
    assert loaded.tree.path()[0].figures == kept


@pytest.mark.parametrize("gamma", [3.0, True, 64, "3", None])
def test_a_draft_length_that_is_none_is_left_out(gamma: object) -> None:
    assert settings_of({"gamma": gamma}, ChatSettings(gamma=5)).gamma == 5


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes")
def test_what_is_no_file_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero"), tmp_path):
        with pytest.raises(ConversationError, match="it is not a file"):
            import_export.read_file(path)


@pytest.mark.parametrize(
    "text", ['{"format": "localspec conversation", "version": 2}', "\n\n" + NOTE.replace("1", "2")]
)
def test_exports_of_a_newer_localspec_are_named_as_such(text: str) -> None:
    with pytest.raises(ConversationError, match="of version 2, not 1"):
        import_export.from_text(text)


def test_origins_are_kept_in_a_few_characters() -> None:
    spans = (Span("ab", Origin.DRAFT), Span("é\n", Origin.TARGET), Span("", Origin.DRAFT))
    assert pack(spans) == "d2t2"
    assert unpack("abé\n", "d2t2") == spans[:2]
    assert unpack("abc", "d2t2") == ()
    both = (Span("ab", Origin.DRAFT), Span("c", Origin.LOOKUP))
    assert unpack("abc", pack(both)) == both
    every = tuple(Span("x", origin) for origin in Origin)
    assert unpack("x" * len(every), pack(every)) == every


def test_half_a_tree_is_shown_as_far_as_it_goes() -> None:
    nodes = [
        MessageNode(c, p, Message(Role.USER, c)) for c, p in [("b", "lost"), ("c", "b"), ("d", "d")]
    ]
    tree = MessageTree(nodes, "c")
    assert [node.id for node in tree.path()] == ["b", "c"]
    tree.choose("d")
    assert [node.id for node in tree.path()] == ["d"]


@pytest.mark.slow
@pytest.mark.timed
def test_two_thousand_messages_load_in_well_under_a_second(path: Path) -> None:
    user = StoreUser(path)
    for n in range(1000):
        user.turn(f"question {n}", "word " * 100)
    user.flush()
    conversation = user.record.header.id
    best = math.inf
    for _ in range(3):
        started = time.perf_counter()
        stored = user.store_thread.ask(lambda s: s.load(conversation)).result(30)
        best = min(best, time.perf_counter() - started)
    assert len(stored.tree.path()) == 2000
    assert best < 0.3
    assert user.store_thread.close(30)


def test_what_streams_waits_for_the_question_that_the_disk_did_not_take(
    user: Callable[[], StoreUser], path: Path
) -> None:
    one = user()
    one.turn("before", "fine")
    full = iter([True, True])
    began = one.record._write

    def flaky(job: Callable[[Store], Any], **how: Any) -> None:
        def tried(store: Store) -> Any:
            if next(full, False):
                raise sqlite3.OperationalError("database or disk is full")
            return job(store)

        began(tried, **how)

    one.record._write = flaky  # type: ignore[assignment]
    one.record.begin("after", SETTINGS)
    for text in ("a", "b", "c"):
        one.record.hear(released(text))
        one.flush()
    assert one.store_thread.close(10)
    with closing(Store(path)) as store:
        record = ConversationRecord()
        record.open(store.load(store.listed()[0].header.id))
    assert said(record)[-1] == "abc"


@pytest.mark.parametrize("given", ["", "mine"])
def test_a_title_that_another_window_gave_outlives_an_edit_of_the_first_question(
    user: Callable[[], StoreUser], given: str
) -> None:
    first = user()
    first.turn("first question", "a")
    second = user()
    second.record = second.load("first question")
    if given:
        first.record.rename(given)
        first.flush()
    second.turn("other question", "b", instead_of=second.record.nodes()[0].id)
    assert second.titles() == [given or "other question"]


def test_the_title_of_a_question_that_came_to_nothing_goes_with_it(
    user: Callable[[], StoreUser],
) -> None:
    one = user()
    one.record.begin("too long", SETTINGS)
    one.record.end(None, {})
    one.turn("another", "fine")
    assert one.titles() == ["another"]
