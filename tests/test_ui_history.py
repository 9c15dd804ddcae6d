"""Stored conversations and versions in the app, with a scripted session and real files."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import threading
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from textual.events import Key
from textual.pilot import Pilot
from textual.selection import SELECT_ALL
from textual.widgets import Input

from localspec.chat.conversation import Message, Role
from localspec.chat.events import Span, TurnEnd, TurnEvent
from localspec.chat.history import import_export
from localspec.chat.history.conversation_record import ConversationRecord
from localspec.chat.history.store import Store
from localspec.chat.history.tree import StoredConversation
from localspec.chat.settings import ChatSettings
from localspec.engine.cancel import Cancel
from localspec.engine.record.stats import FinishReason
from localspec.engine.round.params import SamplingParams
from localspec.errors import ConversationError, EngineError, OutOfMemory
from localspec.ui import launch
from localspec.ui.chat_app import Appearance, ChatApp
from localspec.ui.conversation import conversation_library
from localspec.ui.conversation.engine_phase import EnginePhase
from localspec.ui.screens.history import HistoryScreen
from tests.support.chat_pilot import Chat, chatting, dying, loading
from tests.support.inline import inline
from tests.support.scripted_session import Gate, ScriptedSession
from tests.support.waiting import wait_for


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    return tmp_path / "conversations.db"


def titles(archive: Path) -> list[str]:
    store = Store(archive)
    try:
        return [one.header.title for one in store.listed()]
    finally:
        store.close()


def full(*_: object) -> Path:
    raise ConversationError("cannot write", "The disk is full.")


async def history(chat: Chat) -> HistoryScreen:
    await chat.press("f7")
    await chat.until(lambda: isinstance(chat.app.screen, HistoryScreen), "the list")
    screen = chat.app.screen
    assert isinstance(screen, HistoryScreen)
    return screen


async def test_what_was_said_is_there_the_next_time(archive: Path) -> None:
    async with chatting(archive=archive, answers=["Blue, mostly."]) as chat:
        await chat.ask("Colour of the sky?")
        await chat.send("/temp 0.25")
        await chat.send("/system Be brief.")
        await chat.ask("And at night?")
        await chat.send("/clear")
        await chat.until(lambda: "Blue" not in chat.transcript() and chat.ready())
        await chat.ask("Something else")
    assert titles(archive) == ["Something else", "Colour of the sky?"]
    async with chatting(archive=archive, pair_name="another") as chat:
        screen = await history(chat)
        await chat.until(lambda: "Colour of the sky?" in chat.screen())
        await chat.press(*"mostly", "space", *"bl")
        await chat.until(lambda: "Blue, mostly." in chat.screen(), "where it was found")
        await chat.press(*"zz")
        await chat.until(lambda: "nothing found" in chat.screen())
        screen._search.value = "night"
        await chat.until(lambda: "Colour of the sky?" in chat.screen())
        assert "Something else" not in chat.screen()
        assert "nothing found" not in chat.screen()
        await chat.press("enter")
        await chat.until(lambda: "And at night?" in chat.transcript(), "the conversation")
        await chat.until(chat.ready)
        assert "Colour of the sky?" in chat.transcript()
        assert "guessed" in chat.transcript()  # how the old answers were made
        assert "so far scripted answered here, now another does" in chat.transcript()
        assert chat.session.settings.sampling.temperature == 0.25
        assert chat.session.settings.system_prompt == "Be brief."
        assert len(chat.session.messages) == 4
        await chat.ask("And now?")
    assert titles(archive) == ["Colour of the sky?", "Something else"]


async def test_the_engine_knows_which_conversation_is_open(archive: Path) -> None:
    async with chatting(archive=archive) as chat:
        await chat.ask("one")
        conversation = chat.app.library.record.header.id
        assert chat.session.entered[-1] == conversation
        await chat.send("/clear")
        await chat.until(lambda: "▌ one" not in chat.transcript() and chat.ready())
        await chat.ask("two")
        assert chat.session.entered[-1] == chat.app.library.record.header.id != conversation
    async with chatting(archive=archive, resume=conversation) as chat:
        await chat.until(lambda: "▌ one" in chat.transcript())
        assert chat.session.entered == [conversation]
    async with chatting() as chat:
        await chat.ask("three")
        assert set(chat.session.entered) == {""}


async def test_it_begins_with_the_conversation_that_is_to_be_resumed(archive: Path) -> None:
    async with chatting(archive=archive) as chat:
        await chat.ask("one")
        conversation = chat.app.library.record.header.id
    async with chatting(archive=archive, resume=conversation) as chat:
        await chat.until(lambda: "▌ one" in chat.transcript())
        assert len(chat.session.messages) == 2


async def test_two_enters_at_once_close_one_screen(archive: Path) -> None:
    async with chatting(archive=archive) as chat:
        await chat.ask("one")
        await chat.send("/clear")
        await chat.until(lambda: "▌ one" not in chat.transcript() and chat.ready())
        screen = await history(chat)
        await chat.until(lambda: "one" in chat.screen())
        search = screen.query_one("#search", Input)
        for _ in range(2):  # as a terminal sends them after it was slow
            search.post_message(Input.Submitted(search, ""))
        await chat.until(lambda: "▌ one" in chat.transcript() and chat.ready(), "the conversation")
        assert chat.app.focused is chat.app.prompt


async def test_rename_delete_undo_and_export_in_the_list(
    archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    async with chatting(archive=archive) as chat:
        await chat.ask("first question")
        await chat.send("/clear")
        await chat.until(lambda: chat.session.resets == 1 and chat.ready())
        await chat.ask("second question")
        await history(chat)
        await chat.until(lambda: "first question" in chat.screen())
        await chat.press("ctrl+d")
        await chat.until(lambda: "this conversation is open" in chat.screen())
        await chat.press("down", "ctrl+n")
        await chat.press("home", *"My", "space", "enter")
        await chat.until(lambda: "My first question" in chat.screen())
        await chat.press("ctrl+d")
        await chat.until(lambda: "deleted “My first question”" in chat.screen())
        await chat.until(lambda: chat.screen().count("My first question") == 1)
        await chat.press("escape")
    async with chatting(archive=archive) as chat:  # another run
        await history(chat)
        await chat.until(lambda: "second question" in chat.screen())
        await chat.press("ctrl+n", "ctrl+z")
        await chat.app.workers.wait_for_complete()
        await chat.until(lambda: "Enter gives the new title" in chat.screen(), "still edited")
        await chat.press("escape", "ctrl+z")
        await chat.until(lambda: "“My first question” is back" in chat.screen())
        await chat.until(lambda: "  My first question" in chat.screen())
        await chat.press("ctrl+z")
        await chat.until(lambda: "nothing was deleted" in chat.screen())
        assert "▸ second question" in chat.screen()
        await chat.press("down")
        await chat.until(lambda: "▸ My first question" in chat.screen())
        assert chat.screen().count("▸") == 1
        await chat.press("ctrl+s")
        await chat.until(lambda: "written to My-first-question.md and" in chat.screen())
        monkeypatch.setattr(import_export, "write_file", full)
        await chat.press("ctrl+s")
        await chat.until(lambda: "cannot write" in chat.screen())
        await chat.press("escape")
    document = json.loads((tmp_path / "My-first-question.json").read_text())
    assert [one["content"] for one in document["messages"]] == [
        "first question", "The sky is blue.",
    ]  # fmt: skip


async def test_every_letter_is_searched_for_and_a_title_goes_on_at_its_end(archive: Path) -> None:
    async with chatting(archive=archive) as chat:
        for question in ("a quiet river", "a quick river", "a quiet lake"):
            await chat.ask(question)
            await chat.send("/clear")
            await chat.until(lambda: not chat.app.library.record.nodes() and chat.ready())
        await history(chat)
        await chat.until(lambda: "▸ a quiet lake" in chat.screen())
        await chat.press("pagedown")
        await chat.until(lambda: "▸ a quiet river" in chat.screen(), "the last of the page")
        await chat.press("pageup")
        await chat.until(lambda: "▸ a quiet lake" in chat.screen(), "the first")
        await chat.press("q", "u", "i", "e")
        await chat.until(lambda: "quick" not in chat.screen() and "quiet lake" in chat.screen())
        await chat.press("down")
        await chat.until(lambda: "▸ a quiet river" in chat.screen())
        await chat.press("ctrl+n", "backspace", "q", "enter")
        await chat.until(lambda: "▸ a quiet riveq" in chat.screen(), "the new title, still chosen")
        assert "quick" not in chat.screen()  # the search is what it was
        await chat.press("ctrl+n", "x", "escape")
        await chat.until(lambda: "Esc leaves the old one" not in chat.screen())
        assert "▸ a quiet riveq" in chat.screen()
        await chat.press("enter")
        await chat.until(lambda: "▌ a quiet river" in chat.transcript(), "the conversation")


@pytest.mark.slow
async def test_the_title_follows_the_first_question_until_somebody_gives_another(
    archive: Path,
) -> None:
    async with chatting(archive=archive) as chat:
        await chat.ask("What is a key?")
        await chat.press("f8", *" On a piano.", "enter")
        await chat.until(lambda: len(chat.session.messages) == 2 and chat.ready())
        titled = "What is a key? On a piano."
        await chat.until(lambda: chat.app.library.record.header.title == titled, "the title")
        await chat.send("/title Music")
        await chat.press("f8", *"?", "enter")
        await chat.until(lambda: "‹ 3/3 ›" in chat.transcript() and chat.ready())
        assert chat.app.library.record.header.title == "Music"
        (listed,) = await chat.app.library.ask(lambda store: store.listed())
        assert listed.header.title == "Music"


@pytest.mark.few(1)
@pytest.mark.parametrize("form", ["json", "md"])
async def test_an_exported_conversation_comes_back_with_import(
    form: str, archive: Path, tmp_path: Path
) -> None:
    file = tmp_path / f"out.{form}"
    async with chatting(archive=archive) as chat:
        await chat.send(f"/export {form}")
        await chat.until(lambda: "nothing to export" in chat.transcript())
        await chat.ask("to be exported")
        await chat.send(f"/export {form} {file}")
        await chat.until(lambda: "written to" in chat.transcript())
        await chat.send(f"/export {form} {file}")
        await chat.until(lambda: "exists already" in chat.transcript())
        await chat.send(f"/import {tmp_path / 'none.json'}")
        await chat.until(lambda: "cannot read" in chat.transcript())
    async with chatting() as chat:  # also without a store
        await chat.send(f"/import {file}")
        await chat.until(lambda: "▌ to be exported" in chat.transcript())
        assert [m.content for m in chat.session.messages] == [
            "to be exported", "The sky is blue.",
        ]  # fmt: skip


async def test_a_message_may_be_sent_while_the_conversation_is_exported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reached, goes_on, pack = threading.Event(), threading.Event(), import_export.pack

    def waiting(spans: Iterable[Span]) -> str:
        reached.set()
        assert goes_on.wait(20)
        return pack(spans)

    monkeypatch.setattr(import_export, "pack", waiting)
    async with chatting() as chat:
        await chat.ask("one")
        await chat.send(f"/export json {tmp_path / 'c.json'}")
        await chat.until(reached.is_set, "the export")
        await chat.ask("two")
        goes_on.set()
        await chat.until(lambda: "written to" in chat.transcript(), "the file")
    written = import_export.read_file(tmp_path / "c.json")
    assert [node.message.content for node in written.tree.path()] == ["one", "The sky is blue."]


async def test_a_name_without_an_ending_is_written_and_read_as_one(
    archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    async with chatting(archive=archive) as chat:
        await chat.ask("a question of some words")
        await chat.send("/export html")
        await chat.until(lambda: "✗ a conversation is not written as html" in chat.transcript())
        await chat.send("/save mychat")
        await chat.until(lambda: "mychat.md" in chat.transcript())
        assert [path.name for path in tmp_path.glob("*chat*")] == ["mychat.md"]
        await chat.send("/new")
        await chat.until(lambda: "mychat.md" not in chat.transcript())
        await chat.send("/load mychat")
        said = "opened “a question of some words”, 2 messages"
        await chat.until(lambda: said in chat.transcript(), said)
        await chat.send("/new")
        await chat.until(lambda: said not in chat.transcript())
        await chat.send("/load some words")
        await chat.until(lambda: said in chat.transcript(), "the stored one")


async def test_a_word_that_happens_to_name_a_file_is_sought(
    archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("README.md", "LICENSE"):
        (tmp_path / name).write_text("# localspec\n")
    conversation = stored(archive, "What belongs into a README?", "What it is.")
    async with chatting(archive=archive) as chat:

        def refused(times: int) -> bool:
            return chat.transcript().count("this is not an exported conversation") == times

        await chat.until(lambda: chat.app.library.restored and chat.ready())
        # A path and an exported file's name mean the file, and the last one is found nowhere.
        for times, named in enumerate(("README.md", "./README", "LICENSE"), 1):
            await chat.send(f"/history {named}")
            await chat.until(partial(refused, times), named)
        await chat.send("/history README")
        await chat.until(lambda: "What it is." in chat.transcript() and chat.ready())
        assert chat.app.library.record.header.id == conversation


async def test_regenerating_keeps_the_older_answer_with_keys_and_with_clicks() -> None:
    async with chatting(answers=["Old answer.", "New answer.", "Third."]) as chat:
        await chat.ask("q")
        await chat.press("f9")
        assert "only one version" in chat.status()
        await chat.press("f5")
        await chat.until(lambda: "‹ 2/2 ›" in chat.transcript() and chat.ready())
        await chat.press("f9")
        await chat.until(lambda: "Old answer." in chat.transcript() and chat.ready())
        assert "‹ 1/2 ›" in chat.transcript()
        assert chat.session.messages[-1].content == "Old answer."
        await chat.press("alt+right")
        await chat.until(lambda: "New answer." in chat.transcript() and chat.ready())
        rows = chat.screen().split("\n")
        row = next(y for y, line in enumerate(rows) if "‹ 2/2 ›" in line)
        assert await chat.pilot.click(offset=(rows[row].index("‹"), row))
        await chat.until(lambda: "Old answer." in chat.transcript() and chat.ready())
        # The next question goes on from the version that is shown.
        await chat.ask("go on")
        assert [m.content for m in chat.session.messages] == [
            "q", "Old answer.", "go on", "Third.",
        ]  # fmt: skip


@pytest.mark.parametrize("keys", [["f5"], ["f8", "!", "enter"]])
async def test_who_quits_before_the_first_token_finds_the_answer_before(
    archive: Path, keys: Sequence[str]
) -> None:
    async with chatting(archive=archive) as chat:
        await chat.ask("q")
        conversation = chat.app.library.record.header.id
        chat.session.gate.close()
        chat.app.engine._transport._hear = lambda _: None  # what comes later is not heard
        await chat.press(*keys)
        await chat.until(lambda: chat.app.turns.phase is EnginePhase.ANSWERING)
    with closing(Store(archive)) as store:
        path = store.load(conversation).tree.path()
    assert [one.message.content for one in path] == ["q", "The sky is blue."]


async def test_an_edited_message_is_another_version_of_it() -> None:
    answers = ["A1.", "A2.", "B2."]
    async with chatting(answers=answers) as chat:
        await chat.press("f8")
        assert "no earlier message" in chat.status()
        await chat.ask("first")
        await chat.ask("second")
        await chat.press("f8")
        assert chat.app.prompt.text == "second"
        await chat.press("f8")
        assert chat.app.prompt.text == "first"
        await chat.until(lambda: "editing" in chat.status())
        await chat.press("escape")
        assert chat.app.prompt.text == ""
        assert "editing" not in chat.status()
        await chat.press("f8", *"!", "enter")
        await chat.until(lambda: "B2." in chat.transcript() and chat.ready())
        said = [m.content for m in chat.session.messages]
        assert said == ["first", "A1.", "second!", "B2."]
        assert "‹ 2/2 ›" in chat.transcript()
        await chat.press("f9")
        await chat.until(lambda: "A2." in chat.transcript() and chat.ready())
        assert [m.content for m in chat.session.messages][2:] == ["second", "A2."]


async def test_an_edit_ends_with_a_step_to_another_version_and_only_then() -> None:
    async with chatting(answers=["A1.", "B1."]) as chat:
        await chat.ask("first")
        chat.app.prompt.insert("half a thought")
        await chat.press("f8", "f9")
        assert "only one version" in chat.status()
        assert (chat.app.prompt.text, chat.app.turns.editing is None) == ("first", False)
        await chat.press("!", "enter")
        await chat.until(lambda: "‹ 2/2 ›" in chat.transcript() and chat.ready())
        chat.app.prompt.insert("another thought")
        await chat.press("f8", "f10")
        assert "the latest version" in chat.status()
        assert (chat.app.prompt.text, chat.app.turns.editing is None) == ("first!", False)
        await chat.press("f9")
        await chat.until(lambda: "‹ 1/2 ›" in chat.transcript() and chat.ready())
        assert (chat.app.prompt.text, chat.app.turns.editing) == ("another thought", None)


Said = list[tuple[Role, str]]
ENDING_IN_A_QUESTION: list[Said] = [
    [(Role.USER, "one")],
    [(Role.USER, "one"), (Role.ASSISTANT, "A1."), (Role.USER, "two")],
]


@pytest.mark.parametrize("said", ENDING_IN_A_QUESTION)
async def test_a_question_at_the_end_gets_its_first_answer(said: Said) -> None:
    async with chatting(answers=[EngineError("it broke"), "Fresh."]) as chat:
        chat.app.library.record.graft([Message(*one) for one in said], ChatSettings())
        chat.app.turns.reopen()
        await chat.until(chat.ready)
        before = chat.transcript()
        await chat.press("f5")
        await chat.until(lambda: "it broke" in chat.transcript() and chat.ready())
        assert chat.transcript().startswith(before.rstrip())
        await chat.press("f5")
        await chat.until(lambda: "Fresh." in chat.transcript() and chat.ready())
        texts = [text for _, text in said] + ["Fresh."]
        assert [m.content for m in chat.session.messages] == texts
        assert [node.message.content for node in chat.app.library.record.nodes()] == texts
        places = [chat.transcript().index(text) for text in texts]
        assert places == sorted(places)


async def test_a_conversation_is_opened_though_the_models_were_unloaded(archive: Path) -> None:
    async with chatting(archive=archive) as chat:
        await chat.ask("one")
        await chat.send("/clear")
        await chat.until(lambda: "▌ one" not in chat.transcript() and chat.ready())
        await chat.send("/unload")
        await chat.until(lambda: chat.app.turns.phase is EnginePhase.ASLEEP, "the unloading")
        await history(chat)
        await chat.until(lambda: "▸ one" in chat.screen())
        await chat.press("enter")
        await chat.send("two")  # before the models are there
        await chat.until(lambda: len(chat.session.messages) == 4 and chat.ready(), "the answer")
        assert [m.content for m in chat.session.messages][::2] == ["one", "two"]
        assert "▌ one" in chat.transcript()


@asynccontextmanager
async def choosing_asleep(archive: Path) -> AsyncIterator[tuple[Chat, threading.Event]]:
    """A chat whose models were unloaded, and the stored conversation "one" was chosen then.

    The models are loaded until the event is set.
    """
    session, there = ScriptedSession(), threading.Event()
    there.set()

    def load(_: object, cancel: Cancel) -> ScriptedSession:
        while not there.wait(0.01):
            cancel.check()
        return session

    app = ChatApp(inline(load), archive=archive)
    async with app.run_test(size=(100, 30)) as pilot:
        chat = Chat(app, pilot, session)
        await chat.until(lambda: app.session is not None and app.library.restored, "loading")
        await chat.ask("one")
        await chat.send("/clear")
        await chat.until(lambda: "▌ one" not in chat.transcript() and chat.ready())
        await chat.send("/unload")
        await chat.until(lambda: app.turns.phase is EnginePhase.ASLEEP, "the unloading")
        there.clear()
        await history(chat)
        await chat.until(lambda: "▸ one" in chat.screen())
        await chat.press("enter")
        await chat.until(lambda: app.turns.phase is EnginePhase.LOADING, "the loading")
        yield chat, there
    assert app.engine.join(10)
    assert app.library.shut_down()


@pytest.mark.parametrize("entered", [True, False])
async def test_what_is_typed_while_the_models_come_back_belongs_to_the_chosen_conversation(
    archive: Path, entered: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conversation_library, "_DRAFT_S", 0.1)
    async with choosing_asleep(archive) as (chat, there):
        chat.app.prompt.insert("two")
        if entered:
            await chat.press("enter")
            await asyncio.sleep(0.3)  # until what was typed before would be stored
        there.set()
        await chat.until(lambda: "▌ one" in chat.transcript() and chat.ready(), "the conversation")
        if not entered:
            await chat.until(lambda: chat.app.library.restored and not chat.app.library._unread)
            assert chat.app.prompt.text == "two"
            await chat.press("enter")
        await chat.until(lambda: len(chat.session.messages) == 4 and chat.ready(), "the answer")
        assert [one.content for one in chat.session.messages][::2] == ["one", "two"]
        assert chat.app.prompt.text == ""


async def test_a_chosen_conversation_is_opened_by_the_next_load_if_this_one_is_stopped(
    archive: Path,
) -> None:
    async with choosing_asleep(archive) as (chat, there):
        await chat.send("two")
        await chat.press("escape")
        await chat.until(lambda: chat.app.turns.phase is EnginePhase.ASLEEP, "the end of loading")
        assert chat.app.prompt.text == "two"
        there.set()
        await chat.press("enter")
        await chat.until(lambda: len(chat.session.messages) == 4 and chat.ready(), "the answer")
        assert [one.content for one in chat.session.messages][::2] == ["one", "two"]
        assert "▌ one" in chat.transcript()


@pytest.mark.parametrize("before", [True, False])
async def test_a_message_entered_as_a_change_begins_is_sent_after_it(before: bool) -> None:
    async with chatting() as chat:
        await chat.ask("one")
        # To send a message takes a turn of the loop, in which a change may begin.
        entering = partial(chat.app._sender.enter, "two", command=False)
        changing = chat.app.library.begin_new
        for step in (entering, changing) if before else (changing, entering):
            assert step() in (True, None)
        assert chat.app.turns.phase is EnginePhase.CHANGING
        await chat.until(lambda: len(chat.session.messages) == 2 and chat.ready(), "the answer")
        await chat.until(lambda: [m.content for m in chat.session.messages][::2] == ["two"])
        assert chat.app.prompt.text == ""


async def test_a_message_entered_just_before_an_unload_stays_in_the_input() -> None:
    async with chatting() as chat:
        assert chat.app._sender.enter("two", command=False)
        chat.app.prompt.clear()
        chat.app.pair_loader.unload()
        await chat.until(lambda: chat.app.turns.phase is EnginePhase.ASLEEP, "the unloading")
        await chat.until(lambda: chat.app.prompt.text == "two", "the message")
        assert not chat.app._sender.waiting


async def test_a_conversation_that_cannot_be_sent_leaves_the_engine_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: object) -> None:
        raise OverflowError("too large")

    async with chatting() as chat:
        await chat.ask("one")
        await chat.send(f"/export {tmp_path / 'x.json'}")
        await chat.until(lambda: "written to" in chat.transcript())
        with monkeypatch.context() as patched:
            patched.setattr(chat.app.engine, "change", fail)
            await chat.send(f"/import {tmp_path / 'x.json'}")
            await chat.until(lambda: "OverflowError" in chat.transcript(), "the error")
        await chat.ask("two")


class Reusing(ScriptedSession):
    """Reuses the addresses of deleted messages for its answers, as Python may do."""

    def open(self, messages: Sequence[Message]) -> None:
        self.gone = [one for one in self.messages if all(one is not other for other in messages)]
        super().open(messages)

    def _generate(self, text: str, answer: str, cancel: Cancel) -> Iterator[TurnEvent]:
        for event in super()._generate(text, answer, cancel):
            if isinstance(event, TurnEnd) and self.gone:
                places, others = {id(one) for one in self.gone}, [self.messages.pop()]
                del self.gone[:]
                while len(others) < 100 and id(others[-1]) not in places:
                    others.append(replace(others[0]))
                self.messages.append(others[-1])
            yield event


async def test_an_answer_is_new_wherever_python_puts_it(archive: Path) -> None:
    session = Reusing(answers=["A1.", "A2.", "B1."])
    session.open(())
    async with chatting(session=session, archive=archive) as chat:
        await chat.until(chat.ready)
        await chat.ask("first")
        await chat.ask("second")
        await chat.press("f8", "f8", "!", "enter")
        await chat.until(lambda: "B1." in chat.transcript() and chat.ready())
        assert "‹ 2/2 ›" in chat.transcript()
        nodes = chat.app.library.record.nodes()
        assert [one.message.content for one in nodes] == ["first!", "B1."]


async def test_what_was_typed_comes_back_after_an_edit() -> None:
    async with chatting(answers=["A1.", "A2.", "B2."]) as chat:
        await chat.ask("first")
        await chat.ask("second")
        chat.app.prompt.insert("half a thought")
        await chat.press("f8", "f8")
        assert chat.app.prompt.text == "first"
        await chat.press("escape")
        assert chat.app.prompt.text == "half a thought"
        await chat.press("f8", "!", "enter")
        await chat.until(lambda: "B2." in chat.transcript() and chat.ready())
        await chat.press("up", "up")
        assert chat.app.prompt.text == "half a thought"


@pytest.mark.parametrize("leaves", ["f8", "escape"])
async def test_a_changed_edit_that_is_left_is_found_by_up(leaves: str) -> None:
    async with chatting(answers=["A1.", "A2."]) as chat:
        await chat.ask("first")
        await chat.ask("second")
        await chat.press("f8", *" half", leaves)
        assert chat.app.prompt.text == {"f8": "first", "escape": ""}[leaves]
        await chat.press("up")
        assert chat.app.prompt.text == "second half"


async def test_an_edited_message_does_not_follow_to_another_conversation(archive: Path) -> None:
    async with chatting(archive=archive, answers=["A1.", "B1."]) as chat:
        await chat.ask("first")
        conversation = chat.app.library.record.header.id
        chat.app.prompt.insert("half a thought")
        await chat.press("f8", "!")
        chat.app.library.begin_new()
        assert (chat.app.prompt.text, chat.app.turns.editing) == ("half a thought", None)
        await chat.until(lambda: "A1." not in chat.transcript() and chat.ready())
        await chat.press("enter")
        await chat.until(lambda: "B1." in chat.transcript() and chat.ready())
        await chat.press("f8")
        assert chat.app.prompt.text == "half a thought"
        chat.app.library.open(conversation)
        await chat.until(lambda: "A1." in chat.transcript() and chat.ready())
        await chat.until(lambda: chat.app.library.restored)
        # What was typed went to the new conversation, and was sent there.
        assert (chat.app.prompt.text, chat.app.turns.editing) == ("", None)


async def test_a_draft_stays_with_its_conversation_and_is_found_in_another(archive: Path) -> None:
    async with chatting(archive=archive, answers=["A1.", "B1.", "A2."]) as chat:
        prompt, library = chat.app.prompt, chat.app.library

        async def open_again(conversation: str, shown: str) -> None:
            library.open(conversation)
            await chat.until(lambda: library.restored and chat.ready(), "the other one")
            assert shown in chat.transcript()

        await chat.ask("first")
        first = library.record.header.id
        await chat.send("/clear")
        await chat.until(lambda: "A1." not in chat.transcript() and chat.ready())
        await chat.ask("second")
        second = library.record.header.id
        prompt.insert("for the second")
        await open_again(first, "A1.")
        assert not prompt.text
        await chat.press("up")
        assert prompt.text == "for the second"
        await chat.press("down")
        prompt.insert("for the first")
        await open_again(second, "B1.")
        assert prompt.text == "for the second"
        await open_again(first, "A1.")
        assert prompt.text == "for the first"
        await chat.press("enter")
        await chat.until(lambda: "A2." in chat.transcript() and chat.ready(), "the answer")
        await open_again(second, "B1.")
        await open_again(first, "A2.")
        assert not prompt.text


async def test_what_is_typed_goes_along_to_a_new_conversation_alone(archive: Path) -> None:
    async with chatting(archive=archive, answers=["A1."]) as chat:
        await chat.ask("first")
        first = chat.app.library.record.header.id
        chat.app.prompt.insert("next")
        chat.app.library.begin_new()
        await chat.until(lambda: "A1." not in chat.transcript() and chat.ready())
        assert chat.app.prompt.text == "next"
    with closing(Store(archive)) as store:
        assert (store.draft(""), store.draft(first)) == ("next", "")


def stored(archive: Path, *texts: str, draft: str = "", **settings: Any) -> str:
    """Store a conversation of one question and one answer, and a draft of it; its id."""
    record = ConversationRecord()
    roles = (Role.USER, Role.ASSISTANT)
    said = [Message(role, text) for role, text in zip(roles, texts, strict=True)]
    record.graft(said, ChatSettings(**settings))
    with closing(Store(archive)) as store:
        store.save(record.header, record.nodes(), record.tree.leaf)
        store.save_draft(record.header.id, draft)
    return record.header.id


@asynccontextmanager
async def without_a_model(
    archive: Path, answers: Sequence[str] = (), problems: tuple[str, ...] = ()
) -> AsyncIterator[tuple[Chat, list[ScriptedSession], threading.Event]]:
    """A chat whose first pair cannot be loaded, and others once the event is set."""
    sessions: list[ScriptedSession] = []
    loads = threading.Event()

    def load(pair: str, _progress: object, _cancel: object) -> ScriptedSession:
        if pair == "first":
            raise OutOfMemory("no room")
        assert loads.wait(30)
        sessions.append(ScriptedSession(answers=answers))
        return sessions[-1]

    appearance = Appearance(problems=problems)
    app = ChatApp(inline(load, lambda _: None), archive=archive, appearance=appearance)
    async with app.run_test(size=(100, 30)) as pilot:
        chat = Chat(app, pilot, ScriptedSession())
        await chat.until(lambda: app.turns.phase is EnginePhase.UNUSABLE)
        yield chat, sessions, loads
    app.engine.shut_down()
    assert app.engine.join(10)
    assert app.library.shut_down()


async def test_what_is_told_while_no_model_can_be_loaded_is_said(archive: Path) -> None:
    async with without_a_model(archive, problems=("a wrong line",)) as (chat, _, loads):
        assert "✗ a wrong line" in chat.transcript()
        chat.app.pair_loader.trouble(ConversationError("the disk is full"))
        assert "✗ the disk is full" in chat.transcript()
        chat.app.pair_loader.switch("second")
        chat.app.pair_loader.tell("a word meanwhile")
        assert "a word meanwhile" not in chat.transcript()
        loads.set()
        await chat.until(lambda: "a word meanwhile" in chat.transcript(), "the second pair")


async def test_what_is_told_before_the_engine_is_lost_is_said_then() -> None:
    async with dying() as (chat, _, die):
        chat.app.engine._transport._hear = lambda _: None
        chat.app.pair_loader.reload()
        chat.app.pair_loader.tell("a word meanwhile")
        assert "a word meanwhile" not in chat.transcript()
        die()
        await chat.until(lambda: chat.app.turns.phase is EnginePhase.DEAD)
        assert "a word meanwhile" in chat.transcript()


@pytest.mark.parametrize("resumes", [False, True])
async def test_what_was_told_before_the_last_conversation_is_there_stays(
    archive: Path, resumes: bool
) -> None:
    last = stored(archive, "I am Ada.", "Hello.")
    said = Appearance(problems=("a wrong line",))
    engine, resume = inline(lambda *_: ScriptedSession()), last if resumes else None
    app = ChatApp(engine, archive=archive, resume=resume, appearance=said)
    async with app.run_test(size=(100, 30)) as pilot:
        chat = Chat(app, pilot, ScriptedSession())
        await chat.until(lambda: app.library.restored and chat.ready(), "the conversation")
        assert "✗ a wrong line" in chat.transcript()
        assert ("Hello." in chat.transcript()) is resumes
    assert app.engine.join(10)
    assert app.library.shut_down()


async def test_a_conversation_opened_before_any_model_is_the_models_too(archive: Path) -> None:
    texts = ("I am Ada.", "Hello.")
    conversation = stored(archive, *texts, draft="Who am I?", system_prompt="Be brief.")
    async with without_a_model(archive, ["Ada."]) as (chat, sessions, loads):
        app = chat.app
        app.library.open(conversation)
        await chat.until(lambda: app.prompt.text == "Who am I?", "its draft")
        loads.set()
        app.pair_loader.switch("second")
        await chat.until(lambda: chat.ready() and app.library.restored, "the second pair")
        await chat.press("enter")
        await chat.until(lambda: len(sessions[-1].messages) == 4 and chat.ready(), "the answer")
        assert [m.content for m in sessions[-1].messages][::2] == ["I am Ada.", "Who am I?"]
        assert sessions[-1].settings.system_prompt == "Be brief."
        assert len(app.library.record.messages()) == 4


async def test_typed_settings_come_before_those_of_the_conversation_that_goes_on(
    archive: Path,
) -> None:
    hot = SamplingParams(temperature=0.9, top_k=3)
    chosen = frozenset({"temperature", "top_k"})
    before = {"sampling": hot, "chosen": chosen, "n_predict": 50, "stop": ("END",)}
    one, other = stored(archive, "one", "A.", **before), stored(archive, "two", "B.", **before)
    typed = frozenset({"temperature", "seed", "repeatable", "n_predict"})
    cold = SamplingParams(temperature=0.0, top_k=9, seed=42)
    asked = ChatSettings(sampling=cold, chosen=frozenset({"temperature"}), repeatable=True)
    async with chatting(archive=archive, resume=one, typed=typed, settings=asked) as chat:
        await chat.until(lambda: "▌ one" in chat.transcript() and chat.ready())
        now = chat.session.settings
        assert now.sampling == SamplingParams(temperature=0.0, top_k=3, seed=42)
        assert now.chosen == chosen
        assert (now.repeatable, now.n_predict, now.stop) == (True, -1, ("END",))
        chat.app.library.open(other)
        await chat.until(lambda: "▌ two" in chat.transcript() and chat.ready())
        assert chat.session.settings.sampling == hot
        assert chat.session.settings.n_predict == 50


async def test_typed_settings_are_for_no_other_conversation(archive: Path) -> None:
    other = stored(archive, "two", "B.", n_predict=50)
    typed = frozenset({"n_predict"})
    async with chatting(archive=archive, resume="gone", typed=typed) as chat:
        await chat.until(lambda: "no longer there" in chat.transcript() and chat.ready())
        chat.app.library.open(other)
        await chat.until(lambda: "▌ two" in chat.transcript() and chat.ready())
        assert chat.session.settings.n_predict == 50


@pytest.mark.parametrize(("pair", "kept"), [("scripted", True), ("another", False)])
async def test_a_stored_logit_bias_is_for_the_pair_that_answered(
    archive: Path, pair: str, kept: bool
) -> None:
    bias = {5: -1.0}
    settings = ChatSettings(sampling=SamplingParams(logit_bias=bias))
    async with chatting(archive=archive, settings=settings) as chat:
        await chat.ask("one")
        conversation = chat.app.library.record.header.id
    async with chatting(archive=archive, resume=conversation, pair_name=pair) as chat:
        await chat.until(lambda: "▌ one" in chat.transcript() and chat.ready())
        assert chat.session.settings.sampling.logit_bias == (bias if kept else {})
        said = "its logit bias is left out: it names tokens of another model"
        assert (said in " ".join(chat.transcript().split())) is not kept


async def test_a_message_that_waits_for_another_model_is_sent_once(
    archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conversation_library, "_DRAFT_S", 0.1)
    conversation = stored(archive, "I am Ada.", "Hello.")
    async with without_a_model(archive, ["Ada."]) as (chat, sessions, loads):
        app = chat.app
        app.library.open(conversation)
        await chat.until(lambda: "Hello." in chat.transcript(), "the conversation")
        app.pair_loader.switch("second")
        await chat.until(lambda: app.turns.phase is EnginePhase.LOADING)
        await chat.send("Who am I?")
        await asyncio.sleep(0.3)  # a draft is stored sooner
        loads.set()
        await chat.until(lambda: sessions and len(sessions[0].messages) == 4, "the answer")
        await chat.until(chat.ready)
        assert [m.content for m in sessions[0].messages][::2] == ["I am Ada.", "Who am I?"]
        assert not app.prompt.text


async def test_the_engine_may_be_lost_before_a_new_conversation_begins(archive: Path) -> None:
    async with dying(archive=archive, answers=["A1.", "A2."]) as (chat, sessions, die):
        await chat.ask("first")
        first = chat.app.library.record.header.id
        chat.app.prompt.insert("half")
        chat.app.engine._transport._hear = lambda _: None
        chat.app.library.begin_new()
        await chat.until(lambda: chat.app.turns.phase is EnginePhase.CHANGING)
        die()
        await chat.until(lambda: chat.app.turns.phase is EnginePhase.DEAD)
        await chat.press("enter")
        await chat.until(lambda: len(sessions) == 2 and len(sessions[1].messages) == 4)
        await chat.until(chat.ready)
        chat.app.prompt.insert("a long thought")
        await chat.settle()
    with closing(Store(archive)) as store:
        assert (store.draft(""), store.draft(first)) == ("", "a long thought")


async def test_an_engine_lost_while_a_conversation_opens_leaves_that_on_screen(
    archive: Path,
) -> None:
    other = stored(archive, "I am Ada.", "Hello.")
    async with dying(archive=archive, answers=["A1.", "A2."]) as (chat, sessions, die):
        await chat.ask("first")
        chat.app.engine._transport._hear = lambda _: None
        chat.app.library.open(other)
        await chat.until(lambda: chat.app.turns.phase is EnginePhase.CHANGING)
        die()
        await chat.until(lambda: chat.app.turns.phase is EnginePhase.DEAD)
        assert "Hello." in chat.transcript()
        assert "the engine is gone" in chat.transcript()
        chat.app.prompt.insert("Who am I?")
        await chat.press("enter")
        await chat.until(lambda: len(sessions) == 2 and len(sessions[1].messages) == 4)
        asked = [m.content for m in chat.app.library.record.messages()][::2]
        assert asked == ["I am Ada.", "Who am I?"]


async def test_a_draft_outlives_what_another_window_sends(archive: Path) -> None:
    async with chatting(archive=archive) as one:
        one.app.prompt.insert("a long unsent text")
        with closing(Store(archive)) as store:
            await one.until(lambda: store.draft(""), "the draft")
            async with chatting(archive=archive) as other:
                await other.until(lambda: other.app.prompt.text, "the draft")
                other.app.prompt.clear()
                await other.ask("another question")
            assert store.draft("") == ""
    with closing(Store(archive)) as store:
        assert store.draft("") == "a long unsent text"
    async with chatting(archive=archive) as other:  # one that closes with nothing leaves it
        pass
    with closing(Store(archive)) as store:
        assert store.draft("") == "a long unsent text"


@pytest.mark.parametrize(("sends", "kept"), [(True, ""), (False, "\nx")])
async def test_a_draft_of_a_closed_window_outlives_what_is_typed_in_another(
    archive: Path, sends: bool, kept: str
) -> None:
    async with chatting(archive=archive) as other:
        await other.until(lambda: other.app.library.restored, "an empty input")
        async with chatting(archive=archive) as one:
            one.app.prompt.insert("a long unsent text")
            await one.settle()
        if sends:
            await other.ask("another question")
        else:
            other.app.prompt.insert("x")
            await other.settle()
    with closing(Store(archive)) as store:
        assert store.draft("") == f"a long unsent text{kept}"


async def test_what_is_typed_while_the_models_load_is_stored_once_and_at_once(
    archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conversation_library, "_DRAFT_S", 0.05)
    other = stored(archive, "I am Ada.", "Hello.", draft="earlier")
    with closing(Store(archive)) as store:
        store.save_draft("", "of a new one")
        async with loading(ScriptedSession(), archive=archive, resume=other) as (chat, loaded):
            chat.app.prompt.insert("Who")
            await chat.until(lambda: store.draft("") == "of a new one\nWho", "the draft")
            chat.app.prompt.insert(" am I?")
            await chat.until(lambda: store.draft("") == "of a new one\nWho am I?", "more of it")
            loaded.set()
            await chat.until(lambda: store.draft(other) == "Who am I?", "its place")
            assert store.draft("") == "of a new one"
            assert chat.app.prompt.text == "Who am I?"
            assert chat.app.prompt.sent.older("") == "earlier"


async def test_what_was_typed_during_a_question_that_failed_is_a_draft_of_a_new_conversation(
    archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conversation_library, "_DRAFT_S", 0.05)
    async with chatting(archive=archive, answers=["A1."], fail_after_rounds=0) as chat:
        chat.session.gate.close()
        await chat.send("Who?")
        conversation = chat.app.library.record.header.id
        with closing(Store(archive)) as store:
            chat.app.prompt.insert("abc")
            await chat.until(lambda: store.draft(conversation) == "abc", "the draft")
            chat.session.gate.allow(1)
            await chat.until(lambda: "the engine broke" in chat.transcript() and chat.ready())
            await chat.until(lambda: store.draft("") == "Who?\nabc", "its place")
            assert store.draft(conversation) == ""
            chat.session.fail_after_rounds = None
            chat.session.gate.open()
            await chat.press("enter")
            await chat.until(lambda: "A1." in chat.transcript() and chat.ready())
            assert chat.app.library.record.header.id == conversation
    with closing(Store(archive)) as store:
        assert (store.draft(conversation), store.draft("")) == ("", "")


async def test_what_is_typed_last_is_stored_before_the_engine_ends(archive: Path) -> None:
    loaded = threading.Event()

    def load(*_: object) -> ScriptedSession:
        assert loaded.wait(30)
        return ScriptedSession()

    app = ChatApp(inline(load), archive=archive)
    async with app.run_test() as pilot:
        chat = Chat(app, pilot, ScriptedSession())
        chat.app.prompt.insert("typed")
        await chat.settle()
    with closing(Store(archive)) as store:
        wait_for(lambda: store.draft("") == "typed")
    loaded.set()
    assert app.engine.join(10)
    assert app.library.shut_down()


async def test_what_is_typed_while_a_conversation_opens_is_its_draft(archive: Path) -> None:
    other = stored(archive, "I am Ada.", "Hello.", draft="earlier")
    async with chatting(archive=archive, answers=["A1."]) as chat:
        await chat.ask("first")
        assert chat.app.library.store_thread is not None
        chat.app.library.store_thread.write(lambda _: time.sleep(0.5))
        chat.app.library.open(other)
        chat.app.prompt.insert("meanwhile")
        await asyncio.sleep(0.2)
    with closing(Store(archive)) as store:
        assert store.draft(other) == "earlier\nmeanwhile"


async def test_what_is_sent_while_a_found_conversation_opens_waits_for_it(archive: Path) -> None:
    other = stored(archive, "I am Ada.", "Hello.")
    async with chatting(archive=archive, answers=["A1.", "A2."]) as chat:
        await chat.ask("first")
        library = chat.app.library
        load, sent = Store.load, threading.Event()

        def slowly(store: Store, conversation: str) -> StoredConversation:
            sent.wait(10)
            return load(store, conversation)

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(Store, "load", slowly)
            await chat.send("/history ada")
            await chat.until(lambda: not library.restored)
            await chat.send("Who am I?")
            sent.set()
            await chat.until(lambda: "A2." in chat.transcript() and chat.ready(), "the answer")
        assert library.record.header.id == other
        assert [m.content for m in library.record.messages()][::2] == ["I am Ada.", "Who am I?"]


async def test_a_draft_seen_without_a_model_is_kept_once(archive: Path) -> None:
    conversation = stored(archive, "Hi.", "Hello.", draft="half a thought")
    async with without_a_model(archive) as (chat, _, _):
        chat.app.library.open(conversation)
        await chat.until(lambda: chat.app.prompt.text == "half a thought", "its draft")
        chat.app.prompt.insert("!")
        await chat.settle()
    with closing(Store(archive)) as store:
        assert store.draft(conversation) == "half a thought!"


async def test_enter_right_after_a_search_opens_what_it_finds(archive: Path) -> None:
    async with chatting(archive=archive, answers=["A1.", "B1."]) as chat:
        await chat.ask("apples")
        first = chat.app.library.record.header.id
        await chat.send("/clear")
        await chat.until(lambda: "A1." not in chat.transcript() and chat.ready())
        await chat.ask("boats")
        await chat.press("f7")
        await chat.until(lambda: isinstance(chat.app.screen, HistoryScreen), "the list")
        await chat.until(lambda: "apples" in chat.screen() and "boats" in chat.screen())
        for key in "apples":
            chat.app.post_message(Key(key, key))
        chat.app.post_message(Key("enter", "\r"))
        await chat.until(lambda: chat.app.library.record.header.id == first and chat.ready())
        assert "A1." in chat.transcript()


@pytest.mark.parametrize("words", ["🙂", "???"])
async def test_signs_alone_find_no_conversation(archive: Path, words: str) -> None:
    async with chatting(archive=archive) as chat:
        await chat.ask("first")
        await chat.send("/clear")
        await chat.until(lambda: "first" not in chat.transcript() and chat.ready())
        await chat.send(f"/history {words}")
        await chat.until(lambda: f"is called “{words}”" in chat.transcript())


async def test_the_command_that_leaves_a_conversation_is_no_draft_of_it(archive: Path) -> None:
    async with chatting(archive=archive, answers=["A1.", "B1."]) as chat:
        await chat.ask("first")
        conversation = chat.app.library.record.header.id
        await chat.send("/clear")
        await chat.until(lambda: "A1." not in chat.transcript() and chat.ready())
        await chat.ask("second")
        chat.app.library.open(conversation)
        await chat.until(lambda: chat.app.library.restored and chat.ready())
        assert "A1." in chat.transcript()
        assert not chat.app.prompt.text


@pytest.mark.slow
async def test_an_edit_that_fails_leaves_everything_as_it_was() -> None:
    async with chatting(answers=["A1.", "A2.", EngineError("it broke")]) as chat:
        await chat.ask("first")
        await chat.ask("second")
        await chat.press("f8", "f8", *"?", "enter")
        await chat.until(lambda: "it broke" in chat.transcript() and chat.ready())
        assert chat.app.prompt.text == "first?"
        said = [m.content for m in chat.session.messages]
        assert said == ["first", "A1.", "second", "A2."]
        assert "▌ second" in chat.transcript()


async def test_an_edit_that_fails_is_still_an_edit() -> None:
    answers: list[str | Exception] = ["A1.", "A2.", EngineError("it broke"), "A3."]
    async with chatting(answers=answers) as chat:
        await chat.ask("first")
        await chat.ask("second")
        await chat.press(*"later", "f8", "f8", *"?", "enter")
        await chat.until(lambda: "it broke" in chat.transcript() and chat.ready())
        assert "editing an earlier message" in chat.status()
        await chat.press("escape")
        assert chat.app.prompt.text == "later"
        await chat.press("f8", "f8", *"?", "enter")
        await chat.until(lambda: "A3." in chat.transcript() and chat.ready())
        assert [m.content for m in chat.session.messages] == ["first?", "A3."]


async def test_an_edit_that_failed_can_be_sent_again() -> None:
    answers: list[str | Exception] = ["A1.", "A2.", EngineError("it broke"), "A3."]
    async with chatting(answers=answers) as chat:
        await chat.ask("first")
        await chat.ask("second")
        await chat.press("f8", "f8", *"?", "enter")
        await chat.until(lambda: "it broke" in chat.transcript() and chat.ready())
        await chat.press("enter")
        await chat.until(lambda: "A3." in chat.transcript() and chat.ready())
        assert [m.content for m in chat.session.messages] == ["first?", "A3."]


async def test_a_summary_takes_the_place_of_the_conversation_and_the_way_back_is_open() -> None:
    async with chatting(answers=["A1.", "In short: one.", "A2."]) as chat:
        await chat.ask("one")
        await chat.send("/compact")
        await chat.until(lambda: "what the model knows from now on" in chat.transcript())
        await chat.until(chat.ready)
        assert [m.content for m in chat.session.messages] == ["so far?", "In short: one."]
        await chat.ask("two")
        await chat.press("f9")
        await chat.until(lambda: "A1." in chat.transcript() and chat.ready())
        assert [m.content for m in chat.session.messages] == ["one", "A1."]


async def test_what_had_no_room_in_a_summary_is_said() -> None:
    async with chatting(answers=["A1.", "In short: one."]) as chat:
        await chat.ask("one")
        chat.session.left_out = 6
        await chat.send("/compact")
        await chat.until(lambda: "In short: one." in chat.transcript() and chat.ready())
        said = " ".join(chat.transcript().split())
        assert "the oldest 6 messages had no room in it" in said


async def test_a_summary_that_is_stopped_after_its_last_word_changes_nothing() -> None:
    async with chatting(answers=["A1.", "In short: one."]) as chat:
        await chat.ask("one")
        chat.session.ends_when_stopped = True
        await chat.send("/compact")
        await chat.until(lambda: chat.session.messages[-1].content == "In short: one.")
        await chat.press("escape")
        await chat.until(lambda: "there is no summary" in chat.transcript() and chat.ready())
        assert [m.content for m in chat.session.messages] == ["one", "A1."]


async def test_a_summary_that_is_stopped_changes_nothing() -> None:
    async with chatting(answers=["A1.", "word " * 99]) as chat:
        await chat.ask("one")
        chat.session.gate.close()
        await chat.send("/compact")
        chat.session.gate.allow(3)
        await chat.until(lambda: "word" in chat.transcript())
        await chat.press("escape")
        await chat.until(lambda: "there is no summary" in chat.transcript() and chat.ready())
        assert [m.content for m in chat.session.messages] == ["one", "A1."]
        assert "word" not in chat.transcript()


async def test_what_is_chosen_while_a_pair_is_loaded_says_why_it_does_not_open(
    archive: Path,
) -> None:
    long_conversation(archive, 2)

    async with loading(ScriptedSession(), archive=archive) as (chat, loaded):
        await history(chat)
        await chat.until(lambda: "2 messages" in chat.screen())
        await chat.press("enter")
        await chat.until(lambda: "still being loaded" in chat.status())
        loaded.set()
        await chat.until(chat.ready)


async def test_a_conversation_that_comes_while_the_list_is_open_is_not_deleted(
    archive: Path,
) -> None:
    resume = long_conversation(archive, 2)

    async with loading(ScriptedSession(), archive=archive, resume=resume) as (chat, loaded):
        await history(chat)
        await chat.until(lambda: "2 messages" in chat.screen())
        loaded.set()
        await chat.until(lambda: chat.app.library.record.header.id == resume and chat.ready())
        await chat.press("ctrl+d")
        assert "this conversation is open" in chat.screen()
        await chat.press("ctrl+n", *"!", "enter")
        await chat.until(lambda: chat.app.library.record.header.title.endswith("!"))
    (title,) = titles(archive)
    assert title.endswith("!")


async def test_what_is_deleted_stays_so_when_the_list_is_closed_at_once(archive: Path) -> None:
    long_conversation(archive, 2)

    async with chatting(archive=archive) as chat:
        await history(chat)
        await chat.until(lambda: "2 messages" in chat.screen())
        busy, free = threading.Event(), threading.Event()
        chat.app.library.ask(lambda _: busy.set() or free.wait(30))
        await chat.until(busy.is_set)
        await chat.press("ctrl+d")
        await chat.until(lambda: "deleted “" in chat.screen())
        await chat.press("escape")
        await chat.until(lambda: not isinstance(chat.app.screen, HistoryScreen))
        free.set()
    assert titles(archive) == []


async def test_what_nobody_foresaw_is_said_in_place(
    archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise RecursionError("too deep")

    monkeypatch.setattr(import_export, "read_file", broken)
    monkeypatch.setattr(Store, "listed", broken)

    async with chatting(archive=archive) as chat:
        await chat.send("/import x.json")
        await chat.until(lambda: "(RecursionError:" in chat.transcript())
        await history(chat)
        await chat.until(lambda: "(RecursionError:" in chat.screen())
        await chat.press("escape")
        await chat.ask("still there?")


async def test_trouble_with_the_file_is_one_line_and_the_chat_goes_on(archive: Path) -> None:
    archive.write_text("this is not a database " * 50)

    async with chatting(archive=archive) as chat:
        await chat.until(lambda: "cannot be read" in chat.transcript())
        await chat.ask("still there?")
        assert "The sky is blue." in chat.transcript()
        await history(chat)
        await chat.until(lambda: "│ the conversations in" in chat.screen())
        await chat.press("escape")


async def test_an_answer_is_stored_while_it_is_written(archive: Path) -> None:
    gate = Gate(is_open=False)
    async with chatting(archive=archive, answers=["word " * 300], gate=gate) as chat:
        await chat.send("go")
        gate.allow(6)
        await chat.until(lambda: chat.session.rounds_made == 6)
        other = Store(archive)
        try:
            await chat.until(other.listed, "the conversation in the file")
            conversation = other.listed()[0].header.id
            await chat.until(
                lambda: "word" in other.load(conversation).tree.path()[-1].message.content
            )
        finally:
            other.close()


async def test_a_conversation_chosen_during_an_answer_is_refused_and_what_waits_stays(
    archive: Path,
) -> None:
    gate, answers = Gate(), ["One.", "Two.", "Three."]
    async with chatting(archive=archive, answers=answers, gate=gate) as chat:
        await chat.ask("an older one")
        await chat.send("/clear")
        await chat.until(lambda: "older" not in chat.transcript() and chat.ready())
        gate.close()
        await chat.send("first")
        await chat.until(lambda: chat.app.turns.phase is EnginePhase.ANSWERING)
        await chat.send("second")
        await history(chat)
        await chat.until(lambda: "an older one" in chat.screen())
        await chat.press(*"older", "enter")
        await chat.until(lambda: not isinstance(chat.app.screen, HistoryScreen), "the chat")
        assert chat.app.prompt.text == ""
        gate.open()
        await chat.until(lambda: len(chat.session.messages) == 4 and chat.ready())
        assert chat.session.messages[2].content == "second"


_CODE = "```python\nx = 1\n```\n"
_MARKDOWN = f"A **paragraph** with `code`.\n\n- a list\n- of two\n\n{_CODE}" * 3


def long_conversation(archive: Path, messages: int) -> str:
    return conversation_of(archive, [f"{n} {_MARKDOWN}" for n in range(messages)])


def conversation_of(archive: Path, texts: Sequence[str]) -> str:
    store = Store(archive)
    record = ConversationRecord()
    record.graft(
        [
            Message(Role.ASSISTANT if n % 2 else Role.USER, text, FinishReason.STOP)
            for n, text in enumerate(texts)
        ],
        ChatSettings(),
    )
    store.save(record.header, record.nodes(), record.tree.leaf)
    store.close()
    return record.header.id


def test_what_could_not_be_kept_is_said_when_the_app_is_left(
    archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert titles(archive) == []
    with closing(sqlite3.connect(archive, isolation_level=None)) as other:
        other.execute("CREATE TRIGGER full BEFORE INSERT ON messages BEGIN"
                      " SELECT raise(ABORT, 'database or disk is full'); END")  # fmt: skip
    session = ScriptedSession()

    async def talk(pilot: Pilot[None]) -> None:
        assert isinstance(pilot.app, ChatApp)
        chat = Chat(pilot.app, pilot, session)
        await chat.until(chat.ready)
        await chat.ask("Is this kept?")
        pilot.app.leave()

    start = ChatApp.run
    monkeypatch.setattr(ChatApp, "run", lambda app: start(app, headless=True, auto_pilot=talk))
    with pytest.raises(ConversationError, match=r"last messages could not be written to .*\.db"):
        launch.run_app(inline(lambda *_: session), archive=archive)


@pytest.mark.timed
async def test_two_thousand_messages_open_in_less_than_a_second(archive: Path) -> None:
    conversation = long_conversation(archive, 2000)

    best = float("inf")
    for _ in range(3):
        async with chatting(archive=archive) as chat:
            started = time.perf_counter()
            chat.app.library.open(conversation)
            while "1999 A paragraph" not in chat.transcript():
                await asyncio.sleep(0.005)
            best = min(best, time.perf_counter() - started)
        if best < 1.0:
            break
    assert best < 1.0


@pytest.mark.slow
@pytest.mark.timed
async def test_two_thousand_messages_are_scrolled_without_a_jerk(archive: Path) -> None:
    conversation = long_conversation(archive, 2000)

    async with chatting(size=(120, 40), archive=archive, resume=conversation) as chat:
        await chat.until(lambda: "1999 A paragraph" in chat.transcript())
        transcript, spent = chat.app.transcript, []
        for _ in range(100):  # far beyond what opening has laid out
            began = time.thread_time()
            transcript.page(-1)
            await chat.pilot.pause(0)
            spent.append(time.thread_time() - began)

        assert "1900 A **paragraph**" in chat.transcript()
        spent.sort()
        assert spent[95] < 0.1  # a tenth of a second of this thread's own work


@pytest.mark.slow
async def test_older_messages_are_added_where_they_are_scrolled_to(archive: Path) -> None:
    conversation = long_conversation(archive, 130)

    async with chatting(archive=archive, resume=conversation) as chat:
        transcript = chat.app.transcript
        await chat.until(lambda: "90 earlier messages" in chat.transcript())
        assert "89 A paragraph" not in chat.transcript()
        transcript.scroll_to(y=3, animate=False, immediate=True)
        await chat.until(lambda: transcript.scroll_offset.y == 3)
        chat.app.screen.selections = {transcript: SELECT_ALL}
        await chat.press("pageup")
        await chat.until(lambda: "80 earlier messages" in chat.transcript())
        await chat.until(lambda: "90 earlier" not in chat.transcript())
        assert transcript.scroll_offset.y > 20  # the reader is left where they were
        assert not chat.app.screen.selections  # not where other lines stand now
        # An earlier message that is not shown yet can be edited all the same.
        for _ in range(65):
            chat.app.turns.edit_earlier()
        assert chat.app.prompt.text.startswith("0 A **paragraph**")
        assert "earlier messages" not in chat.transcript()
        await chat.press("enter")
        await chat.until(lambda: len(chat.session.messages) == 2 and chat.ready())
        assert "‹ 2/2 ›" in chat.transcript()


async def test_all_that_is_copied_has_the_messages_that_were_not_shown_yet(archive: Path) -> None:
    conversation = long_conversation(archive, 60)

    async with chatting(archive=archive, resume=conversation) as chat:
        await chat.until(lambda: "20 earlier messages" in chat.transcript())
        await chat.pilot.click(chat.app.transcript, offset=(8, 3), times=3)
        await chat.press("ctrl+c")
        copied = chat.app.clipboard
        assert all(f"{n} A " in copied for n in range(60))
        assert "earlier messages" not in copied
        assert chat.app.transcript._following


@pytest.mark.parametrize("change", ["f11", "f3", "f4", "a click", "a resize"])
async def test_a_reader_who_has_scrolled_up_keeps_the_place(archive: Path, change: str) -> None:
    def answer(n: int) -> str:
        long = "I wonder. " * 90
        end = f"{long}\n\nPlace {n}.\n\nA **word**.\n\n{_CODE}"
        return f"<think>{long}</think>\n\n{_MARKDOWN}\n{end}"

    conversation = conversation_of(
        archive, [answer(n) if n % 2 else f"question {n}" for n in range(120)]
    )
    async with chatting(archive=archive, resume=conversation) as chat:
        transcript = chat.app.transcript
        await chat.until(lambda: chat.app.library.restored and chat.ready())
        await chat.until(lambda: transcript.size.width < chat.app.size.width, "the panel")
        assert transcript.find(chat.app.library.record.nodes()[0].id)
        at = chat.transcript().split("\n").index("  Place 87.") + 1
        transcript.scroll_to(y=at, animate=False, immediate=True)
        await chat.settle()
        assert "Place 87." in chat.screen().split("\n")[1]
        height = transcript.virtual_size.height
        if change == "a click":
            await chat.until(lambda: "▸ thought" in chat.screen())
            rows = chat.screen().split("\n")
            y = next(y for y, row in enumerate(rows) if "▸ thought" in row)
            await chat.pilot.click(offset=(rows[y].index("▸"), y))
        elif change == "a resize":
            await chat.pilot.resize_terminal(70, 30)
        else:
            await chat.press(change)

        def kept() -> bool:
            anew = transcript.virtual_size.height != height and transcript._goes_on is None
            return anew and "Place 87." in "".join(chat.screen().split("\n")[1:3])

        await chat.until(kept, "the place, with all laid out anew")
        assert not transcript._following


@pytest.mark.parametrize("place", ["line 1", "line 98"])
async def test_a_reader_within_a_question_stays_there_when_its_middle_opens(
    archive: Path, place: str
) -> None:
    long = "\n".join(f"line {n}" for n in range(100))
    conversation = conversation_of(archive, [long, *(f"message {n}" for n in range(29))])
    async with chatting(archive=archive, resume=conversation) as chat:
        transcript = chat.app.transcript
        await chat.until(lambda: chat.app.library.restored and chat.ready())
        lines = chat.transcript().split("\n")
        at = next(y for y, line in enumerate(lines) if place in line) + 1
        transcript.scroll_to(y=at, animate=False, immediate=True)
        await chat.settle()
        before = chat.screen().split("\n")[1]
        height = transcript.virtual_size.height
        await chat.press("f11")
        await chat.until(lambda: transcript.virtual_size.height > height)
        await chat.until(lambda: transcript._goes_on is None)
        assert place in before
        assert before[:40] == chat.screen().split("\n")[1][:40]  # the scrollbar has moved


@pytest.mark.few(2)
@pytest.mark.parametrize("size", [(40, 10), (80, 24), (200, 60)])
async def test_the_list_is_usable_at_every_size(archive: Path, size: tuple[int, int]) -> None:
    async with chatting(archive=archive, size=size) as chat:
        await chat.ask("a question about rivers")
        await history(chat)
        await chat.until(lambda: "a question about rivers" in chat.screen())
        assert "Enter open" in chat.screen()
        assert "on screen · scripted · 2 messages" in chat.screen()
