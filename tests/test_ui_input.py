"""What is typed, pasted, attached and queued, and what the palette offers."""

from __future__ import annotations

import asyncio
import re
import threading
from contextlib import closing
from pathlib import Path
from unittest.mock import Mock

import pytest
from textual import events
from textual.widgets import Input

from localspec.chat.conversation import Message, Role
from localspec.chat.history.store import Store
from localspec.chat.history.tree import title_of
from localspec.errors import LocalspecError, OutOfMemory, PromptTooLong
from localspec.pairs.hub.pair_pull import PullRequest
from localspec.process import messages as m
from localspec.ui.chat_app import ChatApp
from localspec.ui.commands import command_table
from localspec.ui.commands.command_table import COMMANDS
from localspec.ui.conversation import conversation_library
from localspec.ui.conversation.engine_phase import EnginePhase
from localspec.ui.conversation.prompt_sender import PromptSender
from localspec.ui.input.extracts import attached
from localspec.ui.input.pastes import FoldedPastes
from localspec.ui.input.prompt_area import PromptArea
from localspec.ui.screens.help import WORDS, help_lines
from localspec.ui.status_lines import KeyLine
from tests.support.chat_pilot import Chat, chatting, dying
from tests.support.inline import inline
from tests.support.pairwise import usually
from tests.support.scripted_session import Gate, ScriptedSession

PASTE = "\n".join(f"line {n} of a log" for n in range(500))


async def paste(chat: Chat, text: str) -> None:
    chat.app.prompt.post_message(events.Paste(text))
    await chat.until(lambda: text[-20:] in chat.app.prompt.text)


def palette(chat: Chat) -> set[str]:
    return {one.title for one in chat.app.get_system_commands(chat.app.screen)}


async def test_pasted_code_keeps_the_indentation_of_its_first_line() -> None:
    async with chatting(answers=["Fine."]) as chat:
        await paste(chat, "\n  \n    if x:\n        y()\n  \n")
        await chat.press("enter")
        await chat.until(lambda: len(chat.session.messages) == 2 and chat.ready(), "an answer")
        assert chat.session.messages[0].content == "    if x:\n        y()"
        await chat.send("  /title ")
        await chat.until(lambda: "title: if x:" in chat.transcript(), "the command")
        await chat.send("  \n ")
        await chat.settle()
        assert len(chat.session.messages) == 2


async def test_shift_and_backspace_delete_as_backspace_does() -> None:
    async with chatting() as chat:
        await chat.press(*"abc", "shift+backspace")
        assert chat.app.prompt.text == "ab"
        await chat.press("f7", *"abc", "shift+backspace")
        assert chat.app.screen.query_one(Input).value == "ab"


async def test_a_big_paste_is_emptied_and_brought_back() -> None:
    async with chatting() as chat:
        prompt = chat.app.prompt
        await paste(chat, PASTE)
        await chat.press("ctrl+a", "delete")
        assert prompt.text == ""
        await chat.press("ctrl+z")
        assert prompt.text == PASTE
        await chat.press("escape")
        assert "press Esc again to empty the input" in chat.status()
        assert prompt.text == PASTE
        await chat.press("escape")
        assert prompt.text == ""
        await chat.press("ctrl+z")
        assert prompt.text == PASTE


async def test_a_command_typed_behind_a_paste_is_no_part_of_it() -> None:
    async with chatting() as chat:
        await chat.ask("Hello?")
        await paste(chat, PASTE)
        await chat.press(*"/title", "enter")
        await chat.until(lambda: "title: Hello?" in chat.transcript())
        assert chat.app.prompt.text == PASTE
        await chat.press(*" a/b")
        assert chat.app.prompt.text.endswith("log a/b")
        chat.app.prompt.clear()
        await chat.ask("Where?\n/usr/bin")
        assert chat.session.messages[-2].content == "Where?\n/usr/bin"


@pytest.mark.parametrize(
    "text", usually([PASTE, f"{PASTE}\n", "/var/log: " + "one long line " * 20], f"{PASTE}\n")
)
async def test_a_command_with_words_behind_a_paste_is_one_and_another_may_follow(text: str) -> None:
    async with chatting() as chat:
        prompt = chat.app.prompt
        await paste(chat, text)
        for number in ("0", "0.5"):
            await chat.press(*f"/temp {number}", "enter")
            await chat.until(lambda n=number: f"temperature {n} for" in chat.transcript())
            assert prompt.text.strip() == text.strip()
        await chat.press("ctrl+j", *"/temp 0.7", "enter")  # a line that the user broke
        await chat.until(lambda: "temperature 0.7 for" in chat.transcript())
        assert chat.session.messages == []


@pytest.mark.slow
async def test_a_path_behind_a_paste_is_no_command() -> None:
    async with chatting() as chat:
        long = "https://example.org/" + "a" * 100  # more than a line of the screen
        for at, before in enumerate(("src", long)):
            await paste(chat, before)
            await chat.press(*"/title", "enter")
            await chat.until(lambda at=at: len(chat.session.messages) == 2 * at + 2)
            await chat.until(chat.ready)
            assert chat.session.messages[2 * at].content == f"{before}/title"
        await paste(chat, "Where is\n/temp 0")  # pasted, not typed
        await chat.press("enter")
        await chat.until(lambda: len(chat.session.messages) == 6 and chat.ready())
        assert chat.session.messages[4].content == "Where is\n/temp 0"


async def test_what_is_sent_during_an_answer_waits_for_its_end() -> None:
    gate = Gate(is_open=False)
    async with chatting(answers=["One.", "Two.", "Three."], gate=gate) as chat:
        await chat.send("first")
        await chat.until(lambda: chat.app.turns.phase is EnginePhase.ANSWERING)
        await chat.send("second")
        await chat.send("third")
        assert chat.app.prompt.text == ""
        assert "2 messages waiting" in chat.status()
        gate.open()
        await chat.until(lambda: len(chat.session.messages) == 6 and chat.ready())
        said = [one.content for one in chat.session.messages if one.role is Role.USER]
        assert said == ["first", "second", "third"]
        assert "waiting" not in chat.status()


@pytest.mark.few(1)
@pytest.mark.parametrize("end", ["escape", "ctrl+c", "fault"])
async def test_what_waits_stands_in_the_input_again_where_the_answer_is_none(end: str) -> None:
    gate = Gate(is_open=False)
    fails = 1 if end == "fault" else None
    async with chatting(answers=["One two."], gate=gate, fail_after_rounds=fails) as chat:
        await chat.send("first")
        await chat.until(lambda: chat.app.turns.phase is EnginePhase.ANSWERING)
        await chat.send("second")
        chat.app.prompt.insert("third")
        if end == "fault":
            gate.open()
        else:
            await chat.press(end)
        await chat.until(chat.ready)
        assert chat.app.prompt.text == "second\nthird"
        assert len(chat.session.messages) <= 2


async def test_a_question_that_fails_comes_back_before_what_waits() -> None:
    gate = Gate(is_open=False)
    async with chatting(gate=gate, fail_after_rounds=0) as chat:
        await chat.send("first")
        await chat.until(lambda: chat.app.turns.phase is EnginePhase.ANSWERING)
        await chat.send("second")
        chat.app.prompt.insert("third")
        gate.open()
        await chat.until(chat.ready)
        assert chat.app.prompt.text == "first\nsecond\nthird"


async def test_a_question_that_a_lost_engine_was_asked_comes_back_before_what_waits() -> None:
    async with dying() as (chat, sessions, die):
        sessions[0].gate.close()
        await chat.send("first")
        await chat.until(lambda: chat.app.turns.phase is EnginePhase.ANSWERING)
        await chat.send("second")
        die()
        await chat.until(lambda: chat.app.turns.phase is EnginePhase.DEAD)
        assert chat.app.prompt.text == "first\nsecond"


async def test_what_waits_outlives_the_program(tmp_path: Path) -> None:
    archive = tmp_path / "c.db"
    async with chatting(gate=Gate(is_open=False), archive=archive) as chat:
        await chat.send("first")
        await chat.until(lambda: chat.app.turns.phase is EnginePhase.ANSWERING)
        await chat.send("second")
        resume = chat.app.library.record.header.id
    async with chatting(archive=archive, resume=resume) as chat:
        await chat.until(lambda: chat.app.prompt.text == "second", "the draft")


async def test_a_file_that_is_missing_is_said_before_the_message_is_sent() -> None:
    async with chatting() as chat:
        await chat.send("Sum up @no/such.txt.")
        assert "there is no file no/such.txt" in chat.status()
        assert chat.app.prompt.text == "Sum up @no/such.txt."
        assert chat.session.messages == []
        await chat.press("enter")
        await chat.until(lambda: len(chat.session.messages) == 2 and chat.ready())
        for word in ("Hello @ann!", "Why?\n@functools.wraps\ndef f(): ...", "x@y.com"):
            await chat.ask(word)


async def test_attached_files_are_folded_until_they_are_wanted(tmp_path: Path) -> None:
    file = tmp_path / "notes.md"
    file.write_text("\n".join(f"note {n}" for n in range(30)))

    async with chatting(size=(140, 60)) as chat:
        await chat.ask(f"Sum up @{file}, please.")
        assert "note 17" not in chat.transcript()
        assert "30 lines" in chat.transcript()
        assert "note 17" in chat.session.messages[0].content
        await chat.press("f11")
        assert "note 17" in chat.transcript()
        await chat.press("f11")
        assert "note 17" not in chat.transcript()
        assert chat.app.library.record.header.title == f"Sum up @{file}, please."[:59] + "…"


def test_a_title_has_no_attached_file_in_it(tmp_path: Path) -> None:
    file = tmp_path / "a.py"
    file.write_text("print(1)\n")
    text = attached(file)
    assert title_of(Message(Role.USER, f"{text}\n\nWhat is this?")) == "What is this?"
    assert title_of(Message(Role.USER, f"What is this?\n\n{text}")) == "What is this?"
    assert "a.py" in title_of(Message(Role.USER, text))[-60:] or len(str(file)) > 50
    log = "\n".join(f"line {n}" for n in range(30))
    assert title_of(Message(Role.USER, f"{log}\nWhat is wrong?")) == "What is wrong?"
    assert title_of(Message(Role.USER, f"What is wrong?\n{log}")) == "What is wrong?"
    assert title_of(Message(Role.USER, log)).startswith("line 0 line 1")
    code = "Why:\n```python\nprint(2)\n```"
    assert title_of(Message(Role.USER, code)) == " ".join(code.split())


def test_a_hostile_message_is_folded_in_no_time() -> None:
    text = "a:\n```x\n" * 50_000
    assert title_of(Message(Role.USER, text)).startswith("a: ```x")


async def test_what_is_typed_is_counted() -> None:
    async with chatting(answers=["word " * 49 + "word"]) as chat:
        prompt = chat.app.prompt
        prompt.insert("x" * 200)
        await chat.until(lambda: prompt.border_subtitle == "about 50 tokens")
        assert "about 50 tokens" in chat.screen()
        prompt.clear()
        await chat.until(lambda: not prompt.border_subtitle)
        await chat.ask("Hello?")  # its answer has 5 characters a token
        prompt.insert("x" * 250)
        await chat.until(lambda: prompt.border_subtitle == "about 50 tokens", "as measured")


async def test_a_long_text_is_counted_and_one_too_long_is_told_before_it_is_sent() -> None:
    async with chatting((80, 24), context_size=1024) as chat:
        prompt = chat.app.prompt
        prompt.insert("12345 " * 100)
        await chat.until(lambda: prompt.border_subtitle == "700 tokens", "counted")
        prompt.insert("12345 " * 50)
        said = "1,050 tokens, the context holds 1,024: /set ctx-size N"
        await chat.until(lambda: prompt.border_subtitle == said, "too long")
        assert said in chat.screen()
        prompt.clear()
        await chat.until(lambda: not prompt.border_subtitle)


async def test_a_prompt_that_is_too_long_is_helped_with_what_the_chat_has() -> None:
    error = PromptTooLong("the prompt has 9,000 tokens", "Shorten it, or raise --ctx-size.")
    async with chatting(answers=[error]) as chat:
        await chat.send("long")
        await chat.until(lambda: "9,000 tokens" in chat.transcript())
        assert "/set ctx-size N" in chat.transcript()
        assert "--ctx-size" not in chat.transcript()


@pytest.mark.slow
async def test_the_palette_offers_what_can_run_and_finds_it_by_its_meaning() -> None:
    async def found(chat: Chat, typed: str) -> str:
        await chat.press("ctrl+p")
        await chat.press(*typed)
        await chat.pilot.pause(0.3)
        shown = chat.screen()
        await chat.press("escape", "escape")
        return shown

    async with chatting(gate=Gate()) as chat:
        await chat.ask("Hello?")
        assert {"Regen", "Clear", "Theme", "Pairs"} <= palette(chat)
        chat.app.prompt.insert("unsent")
        chat.app.action_command("read")  # it needs a file
        assert chat.app.prompt.text == "/read "
        await chat.press("escape", "up")  # the list of files is closed first
        assert chat.app.prompt.text == "unsent"
        chat.app.prompt.clear()
        assert "Export" in await found(chat, "write file")
        assert "Quit" in await found(chat, "exit")
        assert "Pairs" in await found(chat, "switch model")
        chat.session.gate.close()
        await chat.send("q")
        await chat.until(lambda: chat.app.turns.phase is EnginePhase.ANSWERING)
        assert not {"Regen", "Clear", "Twice", "Export"} & palette(chat)
        assert {"Pairs", "Help", "Temp"} <= palette(chat)


async def test_the_palette_offers_nothing_that_would_find_nothing_to_do() -> None:
    after_an_answer = {"Regen", "Copy", "Round", "Twice", "Edit", "Title", "Export", "Compact"}
    async with chatting() as chat:
        await chat.until(chat.ready)
        assert not (after_an_answer | {"Earlier", "Later", "Get"}) & palette(chat)
        chat.app.prompt.insert("What is it?")
        assert "Twice" in palette(chat)
        await chat.press("enter")
        await chat.until(lambda: len(chat.session.messages) == 2 and chat.ready(), "an answer")
        assert after_an_answer <= palette(chat)
        assert not {"Earlier", "Later"} & palette(chat)
        await chat.press("f5")
        await chat.until(lambda: "2/2" in chat.transcript() and chat.ready(), "another version")
        assert "Earlier" in palette(chat)
        assert "Later" not in palette(chat)
        await chat.press("f9")
        await chat.until(lambda: "Later" in palette(chat), "the version before")
        assert "Earlier" not in palette(chat)
        chat.app.pairs.offered = PullRequest("qwen3-8b")
        assert "Get" in palette(chat)


async def test_the_palette_offers_no_speculation_where_nothing_drafts() -> None:
    async with chatting(draft_name=None, speculation_note="there is no draft") as chat:
        await chat.ask("Hello?")
        assert not {"Twice", "Speculation"} & palette(chat)
        assert "Regen" in palette(chat)


def test_whatever_the_palette_offers_is_known_by_other_words_too() -> None:
    assert set(WORDS) == {one.name for one in COMMANDS}


@pytest.mark.parametrize("width", [50, 76, 100])
def test_keys_and_their_meanings_stand_apart_in_the_help(width: int) -> None:
    shown = [line.plain for line in help_lines(width)]
    for one in COMMANDS:
        left = f"/{one.name} {one.argument}".rstrip()
        assert any(line == left or line.startswith(f"{left}  ") for line in shown), left


def test_a_narrow_help_breaks_no_word_and_keys_are_told_without_arguments() -> None:
    text = " ".join(" ".join(line.plain for line in help_lines(32)).split())
    assert "Shift+Enter too" in text
    keys = text.partition("Commands")[0]
    assert not {"WORDS", "PROMPT", "NAME", "FILE"} & set(re.findall(r"[A-Z]+", keys))
    assert "WORDS" in text


async def test_what_was_said_of_the_input_goes_with_the_next_one() -> None:
    async with chatting() as chat:
        chat.app.prompt.insert("half a quest")
        await chat.press("escape", "escape")
        assert "Ctrl+Z brings it back" in chat.status()
        await chat.send("/temp hot")
        await chat.until(lambda: "temp cannot be" in chat.transcript())
        assert "Ctrl+Z" not in chat.status()


async def test_the_way_out_and_the_pairs_are_in_the_footer_of_80_columns() -> None:
    async with chatting((80, 24)) as chat:
        shown = str(chat.app.query_one(KeyLine).render())
        for key in ("F1 Help", "Ctrl+Q Quit", "F2 Drafting", "F12 Pairs", "F5 Again"):
            assert key in shown


async def test_the_footer_says_where_it_is_cut() -> None:
    async with chatting(size=(60, 24)) as chat:
        footer = chat.app.query_one(KeyLine)
        assert str(footer.render()).endswith(" …")
        assert footer.render().cell_length <= 60
        await chat.pilot.resize_terminal(160, 30)
        await chat.until(lambda: not str(footer.render()).endswith("…"))


async def test_a_draft_of_an_earlier_run_survives_what_is_typed_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conversation_library, "_DRAFT_S", 0.1)
    archive = tmp_path / "c.db"
    with closing(Store(archive)) as store:
        store.save_draft("", "an old draft")
    loads = threading.Event()

    def load(*_: object) -> ScriptedSession:
        loads.wait(10)
        return ScriptedSession()

    app = ChatApp(inline(load), archive=archive)
    async with app.run_test(size=(100, 30)) as pilot:
        chat = Chat(app, pilot, ScriptedSession())
        app.prompt.insert("new")
        await asyncio.sleep(0.3)  # drafts are kept sooner
        loads.set()
        await chat.until(lambda: app.prompt.sent.older("new") == "an old draft", "Up finds it")
        assert app.prompt.text == "new"
    app.engine.shut_down()
    assert app.engine.join(10)
    assert app.library.shut_down()


async def test_what_was_sent_is_no_draft_of_the_next_conversation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conversation_library, "_DRAFT_S", 0.1)
    archive = tmp_path / "c.db"

    def kept() -> str:
        with closing(Store(archive)) as store:
            return store.draft("")

    async with chatting(archive=archive) as chat:
        chat.app.prompt.insert("a question")
        await chat.until(lambda: kept() == "a question", "the draft")
        await chat.press("enter")
        await chat.until(lambda: len(chat.session.messages) == 2 and chat.ready())
        await chat.until(lambda: not kept(), "no draft")


async def test_what_was_emptied_just_before_new_does_not_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conversation_library, "_DRAFT_S", 0.1)
    archive = tmp_path / "c.db"
    async with chatting(archive=archive) as chat:
        await chat.ask("a question")
        conversation = chat.app.library.record.header.id

        def kept() -> str:
            with closing(Store(archive)) as store:
                return store.draft(conversation)

        chat.app.prompt.insert("half a thought")
        await chat.until(lambda: kept() == "half a thought", "the draft")
        with chat.app.prompt.prevent(PromptArea.Changed):  # told too late to count
            chat.app.prompt.clear()
        command_table.run(chat.app, "new", "")
        await chat.until(lambda: not chat.app.library.record.tree.nodes and chat.ready(), "anew")
        chat.app.library.open(conversation)
        await chat.until(lambda: chat.app.library.record.header.id == conversation)
        await chat.until(lambda: not kept(), "no draft")
        assert not chat.app.prompt.text


async def test_messages_behind_one_that_cannot_be_sent_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with chatting(gate=Gate(is_open=False)) as chat:
        await chat.send("first")
        await chat.until(lambda: chat.app.turns.phase is EnginePhase.ANSWERING)
        await chat.send("wrong")
        await chat.send("second")
        refused = LocalspecError("this file is not text")
        monkeypatch.setattr("localspec.ui.input.extracts.expand", Mock(side_effect=refused))
        chat.session.gate.open()
        await chat.until(lambda: chat.app.prompt.text == "wrong\nsecond", "both")
        assert chat.ready()


def test_what_is_typed_while_models_are_loaded_again_is_not_sent() -> None:
    app = Mock(turns=Mock(phase=EnginePhase.DEAD), prompt=Mock(entered="half a sen"))
    sending, reloaded = PromptSender(app), app.pair_loader.reload
    assert not sending.enter("", False)
    reloaded.call_args.args[0]()
    app.prompt.submit.assert_not_called()
    app.prompt.entered = "whole"
    assert not sending.enter("whole", False)
    reloaded.call_args.args[0]()
    app.prompt.submit.assert_called_once()


@pytest.mark.parametrize("half", [True, False])
async def test_f5_after_the_engine_was_lost_sends_nothing_that_is_half_typed(half: bool) -> None:
    async with dying(answers=["A1.", "A2."]) as (chat, sessions, die):
        await chat.ask("first")
        if half:
            chat.app.prompt.insert("and what")
        else:
            chat.session.gate.close()
            await chat.send("second")
            await chat.until(lambda: chat.app.turns.busy)
        die()
        await chat.until(lambda: chat.app.turns.phase is EnginePhase.DEAD)
        assert chat.app.prompt.text == ("and what" if half else "second")
        chat.session.gate.open()
        await chat.press("f5")
        await chat.until(lambda: len(sessions) == 2 and chat.ready(), "loading again")
        await chat.until(lambda: len(sessions[1].messages) == (2 if half else 4), "the answer")
        asked = [m.content for m in chat.app.library.record.messages()][::2]
        assert asked == (["first"] if half else ["first", "second"])
        assert chat.app.prompt.text == ("and what" if half else "")


async def test_enter_twice_at_the_first_message_sends_it_alone() -> None:
    async with chatting(answers=["A1."]) as chat:
        chat.app.prompt.insert("Hello?")
        for _ in range(2):
            chat.app.post_message(events.Key("enter", "\r"))
        await chat.until(lambda: "A1." in chat.transcript() and chat.ready())
        await chat.settle()
        assert not chat.app.prompt.text


async def test_another_model_counts_what_is_typed_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    async with dying() as (chat, sessions, _):
        prompt = chat.app.prompt
        prompt.insert("x" * 2000)
        await chat.until(lambda: prompt.border_subtitle == "7 tokens", "the count")
        monkeypatch.setattr(ScriptedSession, "count", lambda *_: 9)
        chat.app.pair_loader.switch("other")
        await chat.until(lambda: len(sessions) == 2 and chat.ready(), "the other pair")
        await chat.until(lambda: prompt.border_subtitle == "9 tokens", "another count")


@pytest.mark.parametrize("fails", [False, True])
async def test_what_was_not_counted_before_a_load_is_counted_after_it(
    fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with chatting() as chat:
        asked: list[str] = []
        monkeypatch.setattr(chat.app.engine, "count", asked.append)
        chat.app.prompt.insert("x" * 2000)
        await chat.until(lambda: len(asked) == 1, "a count that never comes")
        info = chat.app.engine.info
        assert info is not None
        error = m.SentError.of(OutOfMemory("no room"))
        ended = m.LoadFailed(error, info) if fails else m.Loaded(info)
        chat.app._events.take(m.Envelope(0, ended))
        await chat.until(lambda: len(asked) == 2, "another count")


async def test_escape_closes_the_list_before_it_stops_the_answer() -> None:
    async with chatting(gate=Gate(is_open=False)) as chat:
        await chat.send("a question")
        await chat.until(lambda: chat.app.turns.busy, "the answer")
        await chat.press(*"/th")
        await chat.until(lambda: "/theme" in chat.screen(), "the list")
        await chat.press("escape")
        await chat.until(lambda: "/theme" not in chat.screen(), "no list")
        assert chat.app.turns.phase is EnginePhase.ANSWERING
        await chat.press("escape")
        assert chat.app.turns.phase in (EnginePhase.STOPPING, EnginePhase.READY)


async def test_a_file_and_code_that_begin_with_a_slash_are_sent(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("words\n", "utf-8")
    async with chatting() as chat:
        await chat.send(f"/read {tmp_path / 'notes.txt'}")
        await chat.until(lambda: "words" in chat.app.prompt.text, "the file")
        await chat.ask("Sum it up")
        sent = chat.session.messages[0].content
        assert sent.endswith("notes.txt:\n```txt\nwords\n```\n\nSum it up")
        for code in ("// a\nint b;", "/* a */\nint b;"):
            await chat.ask(code)
            assert chat.session.messages[-2].content == code


async def test_a_message_that_begins_with_a_slash_comes_back_as_it_was_typed() -> None:
    async with chatting() as chat:
        await chat.ask("//clear it")
        assert chat.session.messages[0].content == "/clear it"
        await chat.press("f8")
        assert chat.app.prompt.text == "//clear it"


async def test_ctrl_c_copies_a_selection_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async with chatting() as chat:
        copied: list[str] = []
        monkeypatch.setattr(chat.app, "copy_to_clipboard", copied.append)
        chat.app.prompt.insert("some words")
        await chat.press("ctrl+a", "ctrl+c")
        assert copied == ["some words"]
        await chat.press("ctrl+c")
        assert copied == ["some words"]
        assert "press Ctrl+C again" in chat.status()


async def test_ctrl_c_copies_what_is_selected_in_the_line_of_a_dialogue() -> None:
    async with chatting(answers=["One two."], gate=Gate(is_open=False)) as chat:
        await chat.send("go")
        await chat.until(lambda: chat.app.turns.phase is EnginePhase.ANSWERING)
        chat.app.prompt.insert("hidden")
        await chat.press("ctrl+a", "f7", *"river", "shift+left", "ctrl+c")
        assert chat.app.clipboard == "r"
        assert chat.app.turns.phase is EnginePhase.ANSWERING
        await chat.press("ctrl+c")
        await chat.until(chat.ready, "the stop")


async def test_a_long_paste_is_folded_and_all_of_it_is_sent() -> None:
    async with chatting(size=(140, 50)) as chat:
        prompt = chat.app.prompt
        await chat.press(*"See ")
        await paste(chat, PASTE)
        await chat.until(lambda: "See [pasted 500 lines]" in chat.screen(), "the mark")
        await chat.until(lambda: "N, F11 opens the paste" in str(prompt.border_subtitle))
        await chat.press("home", *"/system ")
        await chat.until(lambda: prompt.border_subtitle == "F11 opens the paste", "not counted")
        await chat.press("ctrl+u")
        await chat.press("end")
        await chat.press("backspace")
        assert prompt.text == "See "
        await chat.press("ctrl+z")
        assert prompt.text == f"See {PASTE}"
        await chat.press("f11")
        await chat.until(lambda: "line 499 of a log" in chat.screen(), "the paste itself")
        await chat.press("f11")
        await chat.until(lambda: "[pasted 500 lines]" in chat.screen(), "the mark again")
        await paste(chat, "x" * 5000)
        await paste(chat, "y" * 5000)
        await chat.until(lambda: "[pasted 5,000 characters, 2]" in chat.screen())
        await chat.press("enter")
        await chat.until(lambda: len(chat.session.messages) == 2 and chat.ready())
        assert chat.session.messages[0].content == f"See {PASTE}{'x' * 5000}{'y' * 5000}"
        await chat.press("up")
        assert prompt.document.text.startswith("See [pasted 500 lines]")


@pytest.mark.few(4)
@pytest.mark.parametrize(
    ("keys", "text"),
    [
        (("ctrl+w",), "See "),
        (("left", "backspace"), "See "),
        (("left", "left", "delete"), "See "),
        (("left", *"so"), f"See {PASTE}so"),
        (("left", "left", "ctrl+j", "a"), f"See {PASTE}\na"),
        (("left", "ctrl+k"), "See "),
        (("left", "ctrl+u"), ""),
        (("shift+left", "x"), "See x"),
        (("home", "ctrl+shift+k"), ""),
    ],
)
async def test_the_mark_of_a_paste_is_never_cut(keys: tuple[str, ...], text: str) -> None:
    async with chatting(size=(140, 50)) as chat:
        prompt = chat.app.prompt
        await chat.press(*"See ")
        await paste(chat, PASTE)
        await chat.press(*keys)
        assert prompt.text == text
        prompt.undo()
        assert PASTE in prompt.text


async def test_a_paste_is_cut_as_a_whole() -> None:
    async with chatting(size=(140, 50)) as chat:
        await chat.press(*"See ")
        await paste(chat, PASTE)
        await chat.press("shift+left", "ctrl+x")
        assert chat.app.prompt.text == "See "
        assert chat.app.clipboard == PASTE
        await chat.press("ctrl+v")
        assert chat.app.prompt.text == f"See {PASTE}"
        assert chat.app.prompt.is_folded


async def test_what_the_app_puts_into_the_input_is_a_step_that_can_be_taken_back() -> None:
    async with chatting() as chat:
        prompt = chat.app.prompt
        await chat.ask("earlier")
        await chat.press(*"unsent")
        await chat.press("up")
        assert prompt.text == "earlier"
        await chat.press("ctrl+z")
        assert prompt.text == "unsent"
        await chat.press("ctrl+y")
        assert prompt.text == "earlier"
        await chat.press("ctrl+z", "f8", "ctrl+z")  # an edit is left by Esc alone
        assert prompt.text == "earlier"
        assert chat.app.turns.editing is not None
        await chat.press("escape", "ctrl+a", *"/th", "tab")
        completed = prompt.text
        assert completed.startswith("/th")
        assert completed != "/th"
        await chat.press("ctrl+z")
        assert prompt.text == "/th"


async def test_a_long_question_is_folded_on_the_screen() -> None:
    async with chatting(size=(140, 60)) as chat:
        await paste(chat, PASTE)
        await chat.press("ctrl+j", *"Why?", "enter")
        await chat.until(lambda: len(chat.session.messages) == 2 and chat.ready())
        assert chat.session.messages[0].content == f"{PASTE}\nWhy?"
        assert "line 9 of a log" in chat.transcript()
        assert "line 10 of a log" not in chat.transcript()
        assert "487 more lines: F11 opens them" in chat.transcript()
        assert "Why?" in chat.transcript()
        await chat.press("f11")
        assert "line 10 of a log" in chat.transcript()


def test_a_mark_that_somebody_typed_stands_for_itself() -> None:
    pastes = FoldedPastes()
    mark = pastes.mark(PASTE, "I type [pasted 500 lines] myself: ")
    assert mark == "[pasted 500 lines, 2]"
    assert pastes.unfolded(f"[pasted 500 lines] {mark}") == f"[pasted 500 lines] {PASTE}"
    assert pastes.folded(f"a {PASTE} b") == f"a {mark} b"
    assert pastes.mark("short", "") == "short"


@pytest.mark.few(1)
@pytest.mark.parametrize("text", ["می‌خواهم", "👩‍👩‍👧", "a\u00adb", "no\u00a0break", "漢\u3000字"])
async def test_what_has_no_glyph_of_its_own_is_typed_as_it_is_pasted(text: str) -> None:
    async with chatting() as chat:
        for character in text:
            chat.app.prompt.post_message(events.Key(character, character))
        await chat.until(lambda: chat.app.prompt.text == text)
        chat.app.prompt.clear()
        await paste(chat, text)
        assert chat.app.prompt.text == text
        chat.app.prompt.clear()
        for character in "a\u202eb\u2066":
            chat.app.prompt.post_message(events.Key(character, character))
        await chat.until(lambda: chat.app.prompt.text == "a\ufffdb\ufffd")


async def test_the_input_is_seen_where_it_has_no_frame() -> None:
    async with chatting(size=(40, 12)) as chat:
        chat.app.prompt.insert("Hello")
        await chat.until(lambda: "▌Hello" in chat.screen() or "▌ Hello" in chat.screen())


async def test_up_and_down_move_inside_a_wrapped_paragraph_first() -> None:
    async with chatting((80, 24)) as chat:
        prompt, typed = chat.app.prompt, "word " * 60

        def row() -> int:
            return prompt.wrapped_document.location_to_offset(prompt.cursor_location).y

        await chat.ask("one")
        prompt.insert(typed)
        await chat.settle()
        last = row()
        assert last >= 2
        for above in range(last - 1, -1, -1):
            await chat.press("up")
            assert (prompt.text, row()) == (typed, above)
        await chat.press("up")
        assert prompt.text == "one"
        await chat.press("down", "up")
        assert (prompt.text, row()) == (typed, last - 1)
        await chat.press("down")
        assert (prompt.text, row()) == (typed, last)
