"""Commands and the input: completion, files, copying, parameters, drafts."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path
from typing import NoReturn

import pytest

from localspec.chat.advice import SamplingAdvice, advise
from localspec.chat.conversation import Role
from localspec.chat.events import Origin, Span
from localspec.chat.settings import ChatSettings
from localspec.errors import LocalspecError, SamplingError, UsageError
from localspec.ui.commands import parameters
from localspec.ui.commands.command_table import COMMANDS
from localspec.ui.conversation.engine_phase import EnginePhase
from localspec.ui.input import clipboard, extracts
from localspec.ui.input.suggestions import candidates
from localspec.ui.screens.pairs import PairsScreen
from localspec.ui.transcript.items import Answer
from localspec.ui.transcript.markdown_blocks import code_blocks
from tests.support.chat_pilot import Chat, chatting, loading
from tests.support.pairwise import usually
from tests.support.scripted_session import Gate, ScriptedSession


def shown(text: str) -> list[str]:
    return [one.shown for one in candidates(text, COMMANDS)]


def test_commands_their_words_and_files_are_completed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "notes.txt").write_text("x")
    (tmp_path / "nested").mkdir()
    (tmp_path / ".hidden").write_text("x")
    monkeypatch.chdir(tmp_path)
    assert shown("/spec") == ["/speculation [on|off]"]
    assert len(shown("/")) == len(COMMANDS)
    assert shown("/speculation o") == ["on", "off"]
    assert shown("/quit") == []
    assert [one.partition(" ")[0] for one in shown("/draft")] == ["/draft", "/drafting"]
    assert shown("/model") == []
    assert shown("//") == []
    assert shown("hello /sp") == []
    assert shown("look at @n") == ["nested" + os.sep, "notes.txt"]
    assert shown("mail me@n") == []
    assert shown(f"/read {tmp_path}{os.sep}no") == [str(tmp_path / "notes.txt")]
    assert shown("/import .") == [".hidden"]
    assert shown("@no-such-folder/") == []
    (tmp_path / "two words.txt").write_text("x")
    assert [one.text for one in candidates("a @two", COMMANDS)] == ['a @"two words.txt"']
    assert [one.text for one in candidates('a @"two w', COMMANDS)] == ['a @"two words.txt"']
    assert shown("/draft ./no") == ["./notes.txt"]
    assert shown("/draft no") == ["none", "notes.txt"]
    assert [one.text for one in candidates("a @no", COMMANDS)] == ["a @notes.txt"]


@pytest.mark.slow
async def test_tab_goes_through_what_may_follow() -> None:
    async with chatting() as chat:
        await chat.press(*"/e")
        await chat.until(lambda: "▸" not in chat.screen() and "/export" in chat.screen())
        await chat.press("tab")
        assert chat.app.prompt.text == "/edit"
        await chat.press("tab")
        assert chat.app.prompt.text == "/earlier"
        await chat.until(lambda: "▸ /earlier" in chat.screen())
        await chat.press("tab", "tab", "tab")
        assert chat.app.prompt.text == "/edit"
        chat.app.prompt.clear()
        await chat.until(lambda: "/export" not in chat.screen())
        await chat.press("tab", "h", "i")
        assert chat.app.prompt.text == "hi"
        assert chat.app.focused is chat.app.prompt


async def test_arrows_go_through_the_list_and_enter_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.txt").write_text("a note")
    (tmp_path / "numbers.txt").write_text("1 2 3")
    async with chatting() as chat:
        await chat.ask("Hello?")
        await chat.press(*"/ti", "down", "enter")
        await chat.until(lambda: "title: Hello?" in chat.transcript())
        await chat.press(*"/t", "up")
        assert chat.app.prompt.text == "/theme "  # the last one
        await chat.press("down", "down")
        assert chat.app.prompt.text == "/tune"
        await chat.press("escape")
        assert chat.app.prompt.text == "/tune"
        await chat.until(lambda: "▸" not in chat.screen())
        chat.app.prompt.clear()
        await chat.press(*"/re", "down", "down", "enter")  # it waits for a file
        assert chat.app.prompt.text == "/read "
        await chat.press("down", "enter")
        await chat.until(lambda: "a note" in chat.app.prompt.text)
        chat.app.prompt.clear()
        await chat.press(*"Sum up @n", "down", "down", "enter")
        assert chat.app.prompt.text == "Sum up @numbers.txt"
        assert len(chat.session.messages) == 2
        await chat.press("enter")
        await chat.until(lambda: len(chat.session.messages) == 4 and chat.ready())


async def test_the_list_takes_no_arrow_from_what_was_sent_before() -> None:
    async with chatting() as chat:
        await chat.ask("first")
        await chat.send("/title one")
        await chat.until(lambda: "title: one" in chat.transcript())
        await chat.press("up")
        assert chat.app.prompt.text == "/title one"
        await chat.press("up")
        assert chat.app.prompt.text == "first"
        await chat.press("down", "down")
        assert chat.app.prompt.text == ""


def test_other_names_are_completed_and_belong_to_one_command_each() -> None:
    names = [name for command in COMMANDS for name in command.names]
    assert len(names) == len(set(names))
    assert shown("/ret") == ["/retry"]
    assert shown("/pul") == ["/pull [NAME]"]
    assert shown("/mod") == ["/models [NAME]"]
    assert shown("/save j") == ["json"]


async def test_files_join_the_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "code.py").write_text('print("```")\n')
    (tmp_path / "two words.txt").write_text("second")
    (tmp_path / "image.png").write_bytes(b"\x89PNG\0\xff")

    async with chatting() as chat:
        await chat.ask('Explain @code.py and @"two words.txt" to me@home, @nobody')
        said = chat.session.messages[0].content
        assert said.startswith('Explain @code.py and @"two words.txt" to me@home, @nobody\n\n')
        assert 'code.py:\n````py\nprint("```")\n````' in said
        assert "two words.txt:\n```txt\nsecond\n```" in said
        await chat.send("What is @image.png?")
        await chat.until(lambda: "image.png is not UTF-8 text" in chat.transcript())
        assert chat.app.prompt.text == "What is @image.png?"
        chat.app.prompt.clear()
        await chat.send("/read nothing.txt")
        await chat.until(lambda: "cannot read nothing.txt" in chat.transcript())
        await chat.send("/read code.py")
        await chat.until(lambda: "````py" in chat.app.prompt.text)
        assert len(chat.session.messages) == 2


def test_files_that_no_prompt_can_hold_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "long.txt"
    for size, kind in ((extracts.LONGEST + 1, "characters"), (5 * extracts.LONGEST, "bytes")):
        file.write_text("x" * size)
        with pytest.raises(UsageError, match=kind):
            extracts.attached(file)
    for content, way in (
        (b"a\0b", "Attach text files"),
        ("é".encode("latin1"), "Save it as UTF-8"),
    ):
        file.write_bytes(content)
        with pytest.raises(UsageError, match="not UTF-8 text") as refused:
            extracts.attached(file)
        assert way in refused.value.remedy
    with pytest.raises(UsageError, match="cannot read"):
        extracts.attached(tmp_path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes")
def test_what_may_never_end_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(UsageError, match="it is not a file"):
            extracts.attached(path)


def test_a_file_that_is_in_a_message_is_not_put_in_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text("first")
    (tmp_path / "b.txt").write_text("second")
    once = extracts.expand("What is @a.txt?")
    assert extracts.expand(once) == once
    assert extracts.expand(f"@b.txt {once}") == f"@b.txt {once}\n\nb.txt:\n```txt\nsecond\n```"


async def test_nothing_that_a_file_holds_reaches_the_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "log.txt").write_text("\x1b[31mred\x1b]0;title\x07\n")

    async with chatting() as chat:
        await chat.send("/read log.txt")
        await chat.until(lambda: "␛[31mred␛]0;title␇" in chat.screen())
        chat.app.prompt.clear()
        await chat.ask("Look at @log.txt")
        await chat.press("f8")
        await chat.until(lambda: "␛[31mred␛]0;title␇" in chat.app.prompt.text)
        assert "\x1b" not in chat.screen()


async def test_answers_and_blocks_of_code_are_copied() -> None:
    code = "Look:\n\n```python\nx = 1\n\ny = 2\n```\n\nor\n\n~~~\nz\n~~~\n"
    async with chatting(answers=["First.", code]) as chat:
        await chat.ask("a")
        await chat.ask("b")
        for command, text in [
            ("/copy code", "z"), ("/copy code 1", "x = 1\n\ny = 2"), ("/copy 2", "First."),
            ("/copy", code),
        ]:  # fmt: skip
            await chat.send(command)
            await chat.until(lambda text=text: chat.app.clipboard == text, command)
        for command, told in [
            ("/copy 3", "there are fewer"), ("/copy code 3", "has 2 blocks"),
            ("/copy all", "is not a positive number"), ("/copy " + "9" * 5000, "“999"),
        ]:  # fmt: skip
            await chat.send(command)
            await chat.until(lambda told=told: told in chat.status(), command)


@pytest.mark.skipif(os.name == "nt", reason="the program is a script of a shell")
@pytest.mark.parametrize(
    ("platform", "variables", "used"),
    [
        ("darwin", (), "pbcopy"),
        ("linux", ("WAYLAND_DISPLAY", "DISPLAY"), "wl-copy"),
        ("linux", ("DISPLAY",), "xclip"),
        ("linux", ("WAYLAND_DISPLAY", "DISPLAY"), "xclip"),  # the first display is gone
    ],
)
async def test_what_is_copied_goes_through_the_desktop_s_program_too(
    platform: str,
    variables: tuple[str, ...],
    used: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("pbcopy", "wl-copy", "xclip", "xsel"):
        pasted, program = tmp_path / f"{name}.txt", tmp_path / name
        takes = f"cat > '{pasted}.part'; mv '{pasted}.part' '{pasted}'"
        gone = name == "wl-copy" and used == "xclip"
        program.write_text(f"#!/bin/sh\n{'exit 1' if gone else takes}\n")
        program.chmod(0o755)
    async with chatting() as chat:
        monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
        with monkeypatch.context() as elsewhere:
            elsewhere.setattr(sys, "platform", "linux")
            chat.app.copy("not there", "without a desktop")
            elsewhere.setenv("DISPLAY", ":0")
            elsewhere.setenv("SSH_CONNECTION", "192.0.2.1 1 192.0.2.2 22")
            chat.app.copy("not there", "on another machine")
        with monkeypatch.context() as here:
            here.delenv("SSH_CONNECTION", raising=False)
            here.setattr(sys, "platform", platform)
            for name in variables:
                here.setenv(name, "0")
            chat.app.copy("déjà vu", "two words")
        pasted = tmp_path / f"{used}.txt"
        await chat.until(pasted.exists, "the program")
        assert pasted.read_text("utf-8") == "déjà vu"
        assert [*tmp_path.glob("*.txt")] == [pasted]


@pytest.mark.parametrize("platform", ["darwin", "linux"])
def test_no_program_copies_on_another_machine(
    platform: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.delenv("SSH_CONNECTION", raising=False)
    assert [*clipboard._commands()]
    monkeypatch.setenv("SSH_CONNECTION", "192.0.2.1 1 192.0.2.2 22")
    assert not [*clipboard._commands()]


def test_a_block_of_code_that_is_not_there() -> None:
    answer = Answer([Span("```py\nprint()\n```\n", Origin.TARGET)])
    with pytest.raises(UsageError, match="the last answer has 1 block of code"):
        extracts.to_copy([answer], "code 2")


def test_an_answer_that_is_only_a_thought_so_far_is_not_copied() -> None:
    said, thought = (
        Answer([Span(text, Origin.TARGET)]) for text in ("Said.", "<think>\nWell,\n</think>\n\n")
    )
    assert extracts.to_copy([said, thought], "") == ("Said.", "the last answer")
    with pytest.raises(UsageError, match="no answer yet"):
        extracts.to_copy([thought], "")


@pytest.mark.slow
async def test_what_lookup_knows_of_earlier_conversations_can_be_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCALSPEC_DATA", str(tmp_path))
    (tmp_path / "past").mkdir()
    (tmp_path / "past" / "c1.words.past").write_text("said")
    async with chatting() as chat:
        await chat.send("/forget")
        await chat.until(lambda: "nothing of earlier conversations" in chat.status())
    assert not [*(tmp_path / "past").iterdir()]


def test_code_blocks_of_all_kinds() -> None:
    assert code_blocks("```\na\n```\ntext\n````md\n```\nb\n```\n````\n") == ["a", "```\nb\n```"]
    assert code_blocks("```py\nnever closed") == ["never closed"]
    assert code_blocks("no `code` here") == []
    item = (
        "1. Save:\n\n    ```py\n    def f():\n        pass\n    ```\n\n   - ~~~\n     z\n     ~~~\n"
    )
    assert code_blocks(item) == ["def f():\n    pass", "z"]
    assert code_blocks("> Run:\n> ```sh\n> ls\n>\n>   -l\n> ```\n") == ["ls\n\n  -l"]
    assert code_blocks("    ```\n    a listing of the marks\n") == []


def test_parameters_are_shown_changed_and_checked() -> None:
    settings = ChatSettings()
    none = SamplingAdvice()
    settings = parameters.changed(settings, "top-k", "5", none)
    settings = parameters.changed(settings, "min_p", "0.1", none)
    settings = parameters.changed(settings, "seed", "7", none)
    settings = parameters.changed(settings, "n-predict", "50", none)
    assert (settings.sampling.top_k, settings.sampling.min_p) == (5, 0.1)
    assert (settings.sampling.seed, settings.repeatable, settings.n_predict) == (7, True, 50)
    assert not parameters.changed(settings, "seed", "none", none).repeatable
    assert "top-k 5 (yours)" in parameters.shown(settings, 0, none)
    assert {"seed 7 (yours)", "n-predict 50 (yours)"} < set(parameters.shown(settings, 0, none))
    assert "n-predict -1 (no limit)" in parameters.shown(ChatSettings(), 0, none)
    assert "seed none (another for each answer)" in parameters.shown(ChatSettings(), 0, none)
    assert "stop none (no text ends an answer)" in parameters.shown(ChatSettings(), 0, none)
    for name, value in [("nonsense", "1"), ("top-k", "many"), ("top-k", "1.5")]:
        with pytest.raises(UsageError):
            parameters.changed(settings, name, value, none)
    with pytest.raises(SamplingError):
        parameters.changed(settings, "top-p", "7", none)
    for name in ("n-predict", "seed", "top-k", "repeat-last-n"):
        with pytest.raises(LocalspecError, match=f"{name} cannot be 9"):
            parameters.changed(settings, name, "9" * 20, none)


def test_where_a_parameter_comes_from_is_said_and_it_can_be_given_back() -> None:
    advice = advise("Tiny", {"general.sampling.top_k": 20}, {"temperature": 0.2, "top_p": 0.9})
    settings = advice.settled(ChatSettings())
    told = " · ".join(parameters.shown(settings, 0, advice))
    assert "temp 0.2 (advised for Tiny) · top-k 20 (from the file) · top-p 0.9 (adv" in told
    assert "min-p 0.05 · " in told
    assert parameters.temperature(settings, advice) == "0.2 (advised for Tiny)"
    mine = parameters.changed(settings, "temp", "0.2", advice)
    assert parameters.temperature(mine, advice) == "0.2 (yours)"
    assert parameters.changed(mine, "temp", "default", advice) == settings
    usual = SamplingAdvice()
    assert parameters.temperature(ChatSettings(), usual) == "0.8 (llama.cpp's default)"
    for name, value in (("seed", "7"), ("n-predict", "50"), ("stop", "END")):
        mine = parameters.changed(settings, name, value, advice)
        assert f"{name} {value} (yours)" in parameters.shown(mine, 0, advice)
        assert parameters.changed(mine, name, "default", advice) == settings
    for own, words in ((True, "yours"), (False, "chosen by localspec")):
        assert f"ctx-size 512 ({words})" in parameters.shown(settings, 512, advice, own_size=own)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "text",
    usually(
        ["/regen", "/compact", "/clear", "/edit", "/earlier", "/twice", "/import x.md",
         "/pairs other", "/imp x.md", "/export md"],
        "/regen", "/imp x.md", "/export md",
    ),
)  # fmt: skip
async def test_a_command_that_has_to_wait_stays_in_the_input(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # where /export writes

    gate = Gate(is_open=False)
    async with chatting(gate=gate) as chat:
        await chat.send("q")
        await chat.until(lambda: chat.app.turns.phase is EnginePhase.ANSWERING)
        await chat.send(text)
        assert chat.app.prompt.text == text
        await chat.until(lambda: "Esc stops it" in chat.status())
        gate.open()
        await chat.until(chat.ready)
        await chat.press("enter")
        assert chat.app.prompt.text != text


async def test_commands_that_need_no_free_engine_run_in_the_middle_of_an_answer() -> None:
    gate = Gate(is_open=False)
    async with chatting(gate=gate) as chat:
        await chat.send("q")
        await chat.until(lambda: chat.app.turns.phase is EnginePhase.ANSWERING)
        await chat.send("/temp 0.5")
        await chat.until(lambda: chat.session.settings.sampling.temperature == 0.5)
        await chat.send("/pairs")
        await chat.until(lambda: isinstance(chat.app.screen, PairsScreen))
        assert chat.app.prompt.text == ""


async def test_keys_and_the_palette_wait_as_commands_do() -> None:
    async with chatting(gate=Gate(is_open=False)) as chat:
        await chat.send("q")
        await chat.until(lambda: chat.app.turns.phase is EnginePhase.ANSWERING)
        chat.app.action_command("export")  # as the palette does
        await chat.until(lambda: "Esc stops it" in chat.status())
        assert "nothing to export" not in chat.transcript()


async def test_a_word_that_a_command_does_not_know_changes_nothing() -> None:
    async with chatting(size=(80, 24)) as chat:
        await chat.until(lambda: chat.app.query_one("#compact").display)
        await chat.send("/panel small")
        await chat.until(lambda: "Say /panel full, compact, off or auto." in chat.transcript())
        assert chat.app.query_one("#compact").display
        await chat.send("/panle")
        await chat.until(lambda: "did you mean /panel?" in chat.transcript())


async def test_nothing_is_done_where_nothing_may_follow_the_command() -> None:
    async with chatting() as chat:
        await chat.ask("Stays.")
        for text in ("/clear all", "/qui now", "/regen x"):
            await chat.send(text)
            await chat.until(lambda: "alone." in chat.transcript().splitlines()[-1])
            assert "nothing may follow" in chat.transcript()
        assert "Stays." in chat.transcript()


async def test_meanings_stand_below_each_other() -> None:
    async with chatting(size=(120, 30)) as chat:
        await chat.press("/")
        await chat.until(lambda: "/panel [full" in chat.screen())
        lines = [line for line in chat.screen().splitlines() if line.startswith("    /")]
        columns = {
            line.index(one.meaning)
            for line in lines for one in COMMANDS if one.meaning in line
        }  # fmt: skip
        assert len(lines) == 6
        assert len(columns) == 1


async def test_a_message_waits_for_the_models_and_is_then_answered() -> None:
    session = ScriptedSession(answers=["Here I am."])
    async with loading(session) as (chat, loaded):
        await chat.send("Hello?")
        await chat.until(lambda: "1 message waiting" in chat.status(), "the queue")
        assert not chat.app.prompt.text
        loaded.set()
        await chat.until(lambda: "Here I am." in chat.transcript() and chat.ready(), "the answer")
        assert [one.content for one in session.messages][:1] == ["Hello?"]


@pytest.mark.parametrize("resumes", [True, False])
async def test_what_is_entered_while_loading_takes_nothing_from_what_the_last_run_left(
    tmp_path: Path, resumes: bool
) -> None:
    archive = tmp_path / "c.db"
    async with chatting(archive=archive) as chat:
        if resumes:
            await chat.ask("first")
        conversation = chat.app.library.record.header.id
        chat.app.prompt.insert("half a th")
        await chat.until(lambda: (chat.app.library._draft or ("", ""))[1] == "half a th")
    session = ScriptedSession(answers=["Here I am."])
    resume = conversation if resumes else None
    async with loading(session, archive=archive, resume=resume) as (chat, loaded):
        await chat.send("second")
        await chat.until(lambda: "1 message waiting" in chat.status(), "the queue")
        loaded.set()
        await chat.until(lambda: "Here I am." in chat.transcript() and chat.ready(), "the answer")
        asked = [one.content for one in session.messages if one.role is Role.USER]
        assert asked == (["first", "second"] if resumes else ["second"])
        assert (chat.app.library.record.header.id == conversation) == resumes
        assert chat.app.prompt.text == "half a th"


async def test_a_conversation_that_cannot_be_resumed_gives_the_waiting_message_back(
    tmp_path: Path,
) -> None:
    session = ScriptedSession()
    archive = tmp_path / "c.db"
    async with chatting(archive=archive) as chat:
        chat.app.prompt.insert("half a th")
        await chat.until(lambda: (chat.app.library._draft or ("", ""))[1] == "half a th")
    async with loading(session, archive=archive, resume="gone") as (chat, loaded):
        await chat.send("second")
        await chat.until(lambda: "1 message waiting" in chat.status(), "the queue")
        loaded.set()
        await chat.until(lambda: "✗" in chat.transcript() and chat.ready(), "why not")
        await chat.until(lambda: "second" in chat.app.prompt.text, "the message")
        assert "half a th" in chat.app.prompt.text
        assert not session.messages


async def test_commands_wait_in_the_input_for_the_end_of_loading() -> None:
    session = ScriptedSession()
    async with loading(session) as (chat, loaded):
        for text in ("/temp 0.5", "/clear"):
            chat.app.prompt.clear()
            await chat.send(text)
            assert chat.app.prompt.text == text
            assert "still being loaded" in chat.status()
        loaded.set()
        await chat.until(chat.ready)
        await chat.press("enter")
        await chat.until(lambda: session.resets == 1)


@pytest.mark.slow
async def test_a_parameter_alone_is_shown_with_its_source() -> None:
    async with chatting() as chat:
        await chat.send("/set num_predict 50")
        await chat.send("/set n-predict")
        await chat.until(lambda: "come: n-predict 50 (yours)" in chat.transcript(), "its value")
        await chat.send("/set nonsense")
        await chat.until(lambda: "there is no parameter nonsense" in chat.transcript(), "why not")
        await chat.send("/set ctx-size")
        await chat.until(lambda: "(chosen by localspec)" in chat.transcript(), "who chose it")


async def test_a_draft_and_what_was_sent_outlive_the_program(tmp_path: Path) -> None:
    archive = tmp_path / "c.db"

    async def typed(chat: Chat, text: str) -> None:
        chat.app.prompt.insert(text)
        await chat.until(lambda: (chat.app.library._draft or ("", ""))[1] == text)

    async with chatting(archive=archive) as chat:
        await chat.ask("first")
        await chat.send("/set top-k 5")
        await chat.until(lambda: "top-k 5" in chat.transcript())
        await chat.ask("second")
        conversation = chat.app.library.record.header.id
        await typed(chat, "half a th")
    async with chatting(archive=archive) as chat:
        await chat.until(lambda: chat.app.prompt.sent.older("") is not None, "what was sent")
        await chat.press("up")
        assert chat.app.prompt.text == "first"
        chat.app.prompt.clear()
        await typed(chat, "for a new one")
    async with chatting(archive=archive, resume=conversation) as chat:
        await chat.until(lambda: chat.app.prompt.text == "half a th", "the draft")
        assert chat.session.settings.sampling.top_k == 5
        await chat.press("enter")
        await chat.until(lambda: len(chat.session.messages) == 6 and chat.ready())
    async with chatting(archive=archive) as chat:
        await chat.until(lambda: chat.app.prompt.text == "for a new one", "the other draft")


def test_presets_that_cannot_be_read_now_stay_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def busy(*_: object) -> NoReturn:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setenv("LOCALSPEC_DATA", str(tmp_path))
    parameters.keep_preset("pirate", "Speak like a pirate.")
    with monkeypatch.context() as patched:
        patched.setattr(Path, "read_bytes", busy)
        with pytest.raises(LocalspecError, match="cannot be changed: Too many open files"):
            parameters.keep_preset("poet", "Speak in verse.")
    assert parameters.presets() == {"pirate": "Speak like a pirate."}


@pytest.mark.slow
async def test_a_preset_is_neither_lost_by_keeping_nothing_nor_forgotten_where_none_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCALSPEC_DATA", str(tmp_path))
    parameters.keep_preset("pirate", "Speak like a pirate.")
    async with chatting() as chat:
        await chat.send("/preset save pirate")
        await chat.until(lambda: "there is no system prompt to keep" in chat.transcript())
        await chat.send("/preset forget nosuch")
        await chat.until(lambda: "there is no system prompt nosuch" in chat.transcript())
        assert "nosuch is forgotten" not in chat.transcript()
        assert parameters.presets() == {"pirate": "Speak like a pirate."}
        await chat.send("/preset forget pirate")
        await chat.until(lambda: "pirate is forgotten" in chat.transcript())
        assert parameters.presets() == {}
