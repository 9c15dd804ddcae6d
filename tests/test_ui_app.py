"""The chat app with a scripted session: every wait is for a condition."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from subprocess import TimeoutExpired
from typing import Any

import pytest
from textual import events

from localspec.chat.events import Origin, PromptProgress, Span, TurnEvent
from localspec.chat.figures.benefit import benefit
from localspec.engine.cancel import Cancel
from localspec.engine.record.stats import DeviceMemory, FinishReason, GammaNote, GammaReason
from localspec.errors import Cancelled, EngineError, ModelFileError, PromptTooLong
from localspec.ui.chat_app import ChatApp
from localspec.ui.commands.command import always
from localspec.ui.commands.command_table import COMMANDS
from localspec.ui.conversation.engine_phase import EnginePhase
from localspec.ui.input.prompt_area import LONGEST_PASTE
from localspec.ui.pairs.pair_events import PairWorkChanged
from localspec.ui.panel import layout as panel_layout
from localspec.ui.panel.dashboard import Dashboard, PanelForm, natural_form, next_form
from localspec.ui.screens import help as help_screen
from localspec.ui.screens.help import HelpScreen, help_lines
from localspec.ui.transcript.items import PROMPTS
from localspec.ui.transcript.transcript import Transcript
from tests.support.chat_pilot import Chat, chatting
from tests.support.inline import inline
from tests.support.scripted_session import Gate, ScriptedSession

LONG = "\n\n".join(f"Paragraph {n} with **some** words in it." for n in range(60))


async def test_a_conversation_of_three_turns() -> None:
    async with chatting(answers=["First **answer**.", "Second.", "Third."]) as chat:
        assert "scripted" in chat.screen()
        assert "target-27M-Q8_0" in chat.transcript()
        for text in ("One?", "Two?", "Three?"):
            await chat.ask(text)
        shown = chat.transcript()
        for text in ("▌ One?", "First answer.", "▌ Two?", "Second.", "▌ Three?", "Third."):
            assert text in shown
        assert "guessed" in shown
        assert "ready" in chat.status()
        assert "target-27M" not in shown


async def test_text_appears_while_it_is_written_and_escape_stops_within_one_round() -> None:
    async with chatting(answers=[LONG], gate=Gate(is_open=False)) as chat:
        await chat.send("Go on.")
        chat.session.gate.allow(8)
        await chat.until(lambda: "Paragraph 0" in chat.transcript(), "the first words")
        await chat.until(lambda: chat.session.rounds_made == 8, "eight rounds")
        assert chat.app.turns.phase is EnginePhase.ANSWERING
        chat.app.action_stop()
        assert "stopping" in chat.status()  # at once, before the engine has noticed
        await chat.until(chat.ready, "the end")
        assert chat.session.rounds_made == 8
        assert "stopped" in chat.transcript()
        assert chat.session.messages[-1].finish is FinishReason.CANCELLED


@pytest.mark.slow
async def test_figures_are_drawn_with_the_text_and_alone_only_where_none_comes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    within, taken = [False], [0, 0]
    go_along, refresh = Dashboard.go_along, Dashboard.refresh

    def watched(self: Dashboard) -> None:
        within[0] = True
        go_along(self)
        within[0] = False

    def counted(self: Dashboard) -> None:
        taken[within[0]] += 1
        refresh(self)

    monkeypatch.setattr(Dashboard, "go_along", watched)
    monkeypatch.setattr(Dashboard, "refresh", counted)
    monkeypatch.setattr("localspec.process.server._FIGURES_S", 0.25)
    monkeypatch.setattr("localspec.ui.panel.dashboard._FIGURES_S", 0.25)

    async with chatting(answers=[LONG], gate=Gate(is_open=False)) as chat:
        await chat.send("Go on.")
        await chat.until(lambda: chat.app.turns.phase is EnginePhase.ANSWERING, "the answer")
        taken[:] = [0, 0]
        for _ in range(100):
            chat.session.gate.allow(1)
            await chat.pilot.pause(0.05)
            if taken[True] == 3:
                break
        assert taken[True] == 3
        assert taken[False] <= 1  # before the first word, if the machine was slow
        taken[:] = [0, 0]
        await chat.until(lambda: taken[False] >= 2, "figures while no text comes")
        assert taken[True] <= 1  # what was still on its way
        chat.session.gate.open()
        await chat.until(chat.ready, "the end")


@pytest.mark.slow
async def test_a_growing_answer_scrolls_by_several_lines_and_draws_what_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    drawn: list[int] = []
    draw_from = Transcript._draw_from

    def watched(self: Transcript, line: int) -> None:
        drawn.append(line)
        draw_from(self, line)

    monkeypatch.setattr(Transcript, "_draw_from", watched)

    async with chatting(size=(100, 40)) as chat:
        transcript = chat.app.transcript
        answer = transcript.ask("Go on.")
        tops, ends, firsts = [], [], []
        for number in range(60):
            before = len(drawn)
            transcript.write(answer, [Span(f"Line {number}.\n\n", Origin.TARGET)])
            firsts.append(drawn[before])
            await chat.pilot.pause()
            assert f"Line {number}." in chat.screen()
            tops.append(transcript.scroll_offset.y)
            ends.append(transcript._starts[-1] + len(answer._lines))
        step = transcript.size.height // 8
        assert {b - a for a, b in pairwise(tops)} == {0, step}
        assert all(end - line <= 5 for end, line in zip(ends, firsts, strict=True))
        transcript.ask("And now?")
        assert transcript.virtual_size.height == transcript._starts[-1] + 1


async def test_what_was_sent_before_the_app_heard_of_it_waits_for_its_turn() -> None:
    async with chatting(answers=[LONG], gate=Gate(is_open=False)) as chat:
        prompt = chat.app.prompt
        for text in ("first", "second"):  # both before the app hears of either
            prompt.insert(text)
            prompt.submit()
        prompt.insert("third")
        await chat.until(lambda: chat.app.turns.busy)
        await chat.until(lambda: "1 message waiting" in chat.status())
        assert prompt.text == "third"
        assert chat.transcript().count("▌") == 1


async def test_a_frame_between_a_new_size_and_its_news_shows_what_was_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with chatting(size=(100, 40)) as chat:
        answer = chat.app.transcript.ask("Go on.")
        chat.app.transcript.write(answer, [Span("Some words.", Origin.TARGET)])
        await chat.press("f4")
        assert "Some words." in chat.screen()
        monkeypatch.setattr(Transcript, "on_resize", lambda _self, _event: None)
        await chat.pilot.resize_terminal(60, 24)
        await chat.until(lambda: chat.app.transcript.size.width == 60, "the new size")
        assert "Some words." in chat.screen()


async def test_a_message_is_told_to_its_end_beside_the_full_panel(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("localspec.ui.status_lines._FLASH_S", 2.0)

    async with chatting(size=(80, 24)) as chat:
        line = chat.app.query_one("#status")
        await chat.send("/panel full")
        await chat.until(lambda: line.size.width < 40)
        assert line.size.height == 1
        await chat.send("look at @no/such-file.txt")
        await chat.until(lambda: line.size.height > 1, "more lines")
        left, top, width, height = line.region
        shown = chat.screen().splitlines()[top : top + height]
        words = " ".join(" ".join(each[left : left + width] for each in shown).split())
        assert words.endswith("Enter sends the word as it is"), words
        await chat.until(lambda: line.size.height == 1, "one line again")


async def test_speculation_is_switched_in_the_middle_of_an_answer() -> None:
    async with chatting(size=(140, 45), answers=[LONG], gate=Gate(is_open=False)) as chat:
        await chat.send("Go on.")
        chat.session.gate.allow(5)
        await chat.until(lambda: chat.session.rounds_made == 5, "five rounds")
        await chat.press("f2")
        assert chat.session.speculation is False
        assert "drafting off" in chat.status()
        drafted = chat.session.figures().drafted
        chat.session.gate.allow(5)
        await chat.until(lambda: chat.session.rounds_made == 10, "ten rounds")
        # The round that was waiting at the gate had been drafted before the switch.
        assert chat.session.figures().drafted <= drafted + 3
        await chat.until(lambda: "○ off" in chat.screen(), "the panel to say so")
        await chat.press("ctrl+t")
        assert chat.session.speculation is True
        chat.session.gate.open()
        await chat.until(chat.ready)


async def test_speculation_that_is_not_available_says_why() -> None:
    note = "the pair has no draft"
    async with chatting(speculation=False, draft_name=None, speculation_note=note) as chat:
        await chat.press("f2")
        await chat.until(lambda: note in chat.transcript())
        assert not chat.session.speculation
        assert "Nothing drafts: every token is the model's own work." in chat.transcript()


async def test_a_model_that_copies_alone_is_not_called_a_target_at_the_start() -> None:
    async with chatting(draft_name=None) as chat:
        await chat.until(lambda: "copied as a guess, the model checks" in chat.transcript())


async def test_what_is_sent_waits_while_an_answer_runs_and_the_answer_is_not_begun_again() -> None:
    async with chatting(answers=[LONG], gate=Gate(is_open=False)) as chat:
        await chat.send("first")
        await chat.send("second")
        assert chat.app.prompt.text == ""
        assert "1 message waiting" in chat.status()
        await chat.send("")
        await chat.press("f5", "f5")
        assert "Esc stops it" in chat.status()
        assert len(chat.session.messages) == 1
        chat.session.gate.open()
        await chat.until(lambda: len(chat.session.messages) == 4 and chat.ready())
        assert chat.app.prompt.text == ""


async def test_keys_typed_right_after_enter_survive() -> None:
    async with chatting() as chat:
        await chat.press("h", "i", "enter", "m", "o", "r", "e")
        await chat.until(lambda: len(chat.session.messages) == 2 and chat.ready())
        assert chat.app.prompt.text == "more"


async def test_keys_that_arrive_together_keep_their_order() -> None:
    async with chatting() as chat:
        chat.app.prompt.insert("-")
        for key in ("a", "ctrl+j", "b", "x", "backspace", "c", "left", "d", "end", "e"):
            chat.app.post_message(events.Key(key, key if len(key) == 1 else None))
        await chat.until(lambda: len(chat.app.prompt.text) >= 7)
        assert chat.app.prompt.text == "-a\nbdce"


async def test_lines_break_without_sending_and_the_input_grows() -> None:
    async with chatting() as chat:
        height = chat.app.prompt.size.height
        for key in ("a", "ctrl+j", "b", "shift+enter", "c", "alt+enter", "d"):
            await chat.press(key)
        assert chat.app.prompt.text == "a\nb\nc\nd"
        await chat.until(lambda: chat.app.prompt.size.height == height + 3)
        await chat.press("enter")
        await chat.until(lambda: len(chat.session.messages) == 2)
        assert chat.session.messages[0].content == "a\nb\nc\nd"
        await chat.until(lambda: chat.app.prompt.size.height == height)


async def test_a_paste_of_many_lines_stays_whole_and_a_huge_one_is_refused() -> None:
    async with chatting() as chat:
        text = "\r\n".join(f"line {n}" for n in range(200)) + "\x1b[2J"
        chat.app.prompt.post_message(events.Paste(text))
        await chat.until(lambda: "line 199" in chat.app.prompt.text)
        assert chat.app.prompt.text.count("\n") == 199
        assert "\x1b" not in chat.app.prompt.text
        assert not chat.session.messages
        before = chat.app.prompt.text
        chat.app.prompt.post_message(events.Paste("x" * (LONGEST_PASTE + 1)))
        await chat.until(lambda: "too long" in chat.transcript())
        assert chat.app.prompt.text == before


async def test_what_was_sent_comes_back_with_up_and_down() -> None:
    async with chatting() as chat:
        await chat.ask("one")
        await chat.ask("two\nlines")
        chat.app.prompt.insert("unsent")
        await chat.press("up")
        assert chat.app.prompt.text == "two\nlines"
        await chat.press("up")  # to its first line
        await chat.press("up")
        assert chat.app.prompt.text == "one"
        await chat.press("down", "down", "down", "down")
        assert chat.app.prompt.text == "unsent"


async def test_a_failed_prompt_is_explained_and_goes_back_into_the_input() -> None:
    error = PromptTooLong("the prompt has 9,000 tokens", "Shorten it.")
    async with chatting(answers=["Fine.", error, "Fine again."]) as chat:
        await chat.ask("good")
        await chat.send("bad")
        await chat.until(lambda: "✗ the prompt has 9,000 tokens" in chat.transcript())
        assert "Shorten it" in chat.transcript()
        assert chat.app.prompt.text == "bad"
        assert "▌ bad" not in chat.transcript()
        assert "▌ good" in chat.transcript()
        await chat.press("enter")
        await chat.until(lambda: "Fine again." in chat.transcript())


async def test_an_answer_that_breaks_off_keeps_its_text() -> None:
    async with chatting(answers=["word " * 50], fail_after_rounds=3) as chat:
        await chat.send("go")
        await chat.until(lambda: "the engine broke" in chat.transcript())
        assert "broken off" in chat.transcript()
        assert "▌ go" in chat.transcript()
        assert chat.app.prompt.text == ""
        assert chat.ready()


@pytest.mark.parametrize("error", [OSError(12, "Cannot allocate memory"), TimeoutExpired("x", 2)])
async def test_an_engine_that_cannot_be_started_is_told_and_asked_for_again(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with chatting(answers=["Fine."]) as chat:

        def fail(*_: object, **__: object) -> None:
            raise error

        with monkeypatch.context() as patched:
            patched.setattr(chat.app.engine, "reload", fail)
            chat.app.pair_loader.reload()
        await chat.until(lambda: "no engine can be started" in chat.transcript())
        assert chat.app.turns.phase is EnginePhase.DEAD


async def test_an_error_that_nobody_foresaw_is_shown_too() -> None:
    async with chatting(answers=[ValueError("oops [bold]\x1b"), "Fine."]) as chat:
        await chat.send("go")
        await chat.until(lambda: "ValueError: oops" in chat.transcript())
        assert "[bold]␛" in chat.transcript()
        chat.app.prompt.clear()
        await chat.ask("again")


async def test_a_failed_load_is_shown_in_place_and_kept_for_the_exit() -> None:
    def load(progress: Any, cancel: Any) -> Any:
        progress("reading", 0.5)
        raise ModelFileError("no file called x.gguf", "Check the path.")

    app = ChatApp(inline(load))
    async with app.run_test(size=(80, 24)) as pilot:
        chat = Chat(app, pilot, ScriptedSession())
        await chat.until(lambda: "no file called x.gguf" in chat.transcript())
        await chat.send("hello?")
        assert "no model is loaded" in chat.status()
        assert app.prompt.text == "hello?"
        await chat.press("f2", "f5", "f6", "f3")
    assert isinstance(app.pair_loader.load_error, ModelFileError)


@pytest.mark.parametrize("size", [(80, 24), (200, 50)])
async def test_the_welcome_says_what_model_this_is_and_what_to_try(size: tuple[int, int]) -> None:
    async with chatting(size) as chat:
        await chat.until(lambda: "F1" in chat.transcript(), "all of it")
        seen = " ".join(chat.transcript().split())
        assert "Scripted, 27 million parameters. It makes mistakes: check what matters." in seen
        assert all(prompt in seen for prompt in PROMPTS)
        assert "F1" in seen
        written = chat.app.prompt
        for prompt in (*PROMPTS, PROMPTS[0]):
            await chat.press("enter")
            await chat.until(lambda: written.text, "a prompt")
            assert written.text == prompt
            written.clear()
        await chat.press("enter")
        await chat.until(lambda: written.text, "a prompt")
        await chat.press("enter")
        await chat.until(lambda: f"▌ {PROMPTS[1]}" in chat.transcript() and chat.ready())
        await chat.press("enter")
        assert not written.text  # only where nothing was asked yet


@pytest.mark.parametrize("width", [40, 80, 200])
async def test_progress_stays_on_one_line(width: int) -> None:
    async with chatting((width, 24)) as chat:
        for share in (0.05, 1.0):
            text = "Loading qwen2.5-coder-1.5b-instruct-q4_k_m.gguf"
            chat.app.status.lasting(text, share, hint="Esc cancels")
            await chat.until(lambda share=share: f"{100 * share:.0f} %" in chat.screen(), "it")
            assert chat.app.status.size.height == 1
            assert "Esc cancels" in chat.screen()
            assert "Loading" in chat.screen()


async def test_a_model_that_names_its_pair_is_named_once() -> None:
    async with chatting((80, 24), pair_name="a-model", target_name="a-model") as chat:
        await chat.until(lambda: "a-model" in chat.transcript(), "the welcome")
        assert "target  a-model" not in chat.transcript()
        assert chat.screen().splitlines()[0].split() == [
            "localspec",
            "a-model",
            "+",
            "draft-1M-Q8_0",
        ]


class Reading(ScriptedSession):
    """Stops where little of the prompt is read."""

    def turn(self, text: str, cancel: Cancel) -> Iterator[TurnEvent]:
        yield PromptProgress(0, 40)
        self.gate.pass_through(cancel)
        yield PromptProgress(16, 400, 18.4)
        self.gate.pass_through(cancel)
        yield from super().turn(text, cancel)


def _seconds_left(chat: Chat) -> int:
    found = re.search(r"about (\d+) s left, Esc stops", chat.status())
    assert found is not None, chat.status()
    return int(found[1])


async def test_while_a_prompt_is_read_the_time_left_is_said() -> None:
    async with chatting((80, 24), session=Reading(gate=Gate(is_open=False))) as chat:
        await chat.send("a long question")
        await chat.until(lambda: "reading 40 tokens" in chat.status(), "the first pass")
        assert "0 %  Esc stops" in chat.status()
        chat.session.gate.allow(1)
        await chat.until(lambda: "reading 400 tokens" in chat.status(), "the reading")
        assert "4 %" in chat.status()
        told = _seconds_left(chat)
        assert 1 <= told <= 18
        await chat.until(lambda: _seconds_left(chat) < told, "a second, without another pass")
        assert "4 %" in chat.status()
        chat.session.gate.open()
        await chat.until(chat.ready, "the answer")
        assert "left" not in chat.status()


async def test_a_fetch_covers_neither_a_short_answer_nor_another_progress() -> None:
    async with chatting((80, 24), session=Reading(gate=Gate(is_open=False))) as chat:
        chat.app.status.flash("a short answer")
        chat.app.post_message(PairWorkChanged())
        await chat.settle()
        assert "a short answer" in chat.status()
        await chat.send("a long question")
        await chat.until(lambda: "reading 40 tokens" in chat.status(), "the first pass")
        chat.app.post_message(PairWorkChanged())
        await chat.settle()
        assert "reading 40 tokens" in chat.status()


async def test_what_is_said_before_the_first_frame_is_seen() -> None:
    def load(progress: Any, cancel: Any) -> Any:
        raise ModelFileError("no file called x.gguf", "Check the path.")

    app = ChatApp(inline(load))
    async with app.run_test(size=(100, 30)) as pilot:
        chat = Chat(app, pilot, ScriptedSession())
        await chat.until(lambda: "✗ no file called x.gguf" in chat.screen())
    assert app.engine.join(10)


async def test_too_little_memory_is_no_fault_of_ours() -> None:
    def load(progress: Any, cancel: Any) -> Any:
        raise MemoryError

    app = ChatApp(inline(load))
    async with app.run_test(size=(80, 24)) as pilot:
        chat = Chat(app, pilot, ScriptedSession())
        await chat.until(lambda: "✗ there is not enough memory" in chat.transcript())
        assert "fault" not in chat.transcript()
    assert app.engine.join(10)


async def test_quitting_while_loading_cancels_the_load() -> None:
    seen = []

    def load(progress: Any, cancel: Any) -> Any:
        progress("loading", None)
        while not cancel.is_set():
            time.sleep(0.005)
        seen.append(True)
        raise Cancelled

    app = ChatApp(inline(load))
    async with app.run_test() as pilot:
        await pilot.press("ctrl+q")
    assert app.engine.join(10)
    assert seen


@pytest.mark.few(2)
@pytest.mark.parametrize(("key", "kept"), [("ctrl+q", False), ("enter", True), ("escape", False)])
async def test_a_theme_is_kept_with_enter_only(key: str, kept: bool) -> None:
    async with chatting() as chat:
        before = chat.app.theme
        await chat.send("/theme")
        await chat.until(lambda: "Enter keeps" in chat.screen())
        await chat.press("down")
        await chat.until(lambda: chat.app.theme != before, "the next theme")
        await chat.press(key)
    assert (chat.app.theme != before) is kept


@pytest.mark.few(1)
@pytest.mark.parametrize("keys", [("ctrl+q",), ("ctrl+c", "ctrl+c")])
async def test_quitting_while_generating_ends_the_thread(keys: tuple[str, ...]) -> None:
    async with chatting(answers=[LONG], gate=Gate(is_open=False)) as chat:
        await chat.send("go")
        chat.session.gate.allow(3)
        await chat.until(lambda: chat.session.rounds_made == 3)
        await chat.press(*keys)
        assert await asyncio.to_thread(chat.app.engine.join, 10)
        assert chat.session.closed
        assert chat.app.return_code == 0


async def test_one_ctrl_c_stops_and_says_how_to_quit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("localspec.ui.chat_app._AGAIN_WITHIN_S", 60.0)
    async with chatting(answers=[LONG], gate=Gate(is_open=False)) as chat:
        await chat.send("go")
        await chat.until(lambda: chat.app.turns.busy)
        await chat.press("ctrl+c")
        await chat.until(chat.ready)
        assert chat.app.is_running
        assert "press Ctrl+C again to quit" in chat.status()


async def test_regenerate_replaces_the_last_answer() -> None:
    async with chatting(answers=["Old answer.", "New answer."]) as chat:
        await chat.press("f5")
        assert "no question yet" in chat.status()
        await chat.ask("q")
        await chat.press("f5")
        await chat.until(lambda: "New answer." in chat.transcript() and chat.ready())
        assert "Old answer." not in chat.transcript()
        assert len(chat.session.messages) == 2


async def test_turns_that_are_left_out_are_told() -> None:
    async with chatting() as chat:
        await chat.ask("one")
        chat.session.left_out = 2
        await chat.ask("two")
        shown = chat.transcript()
        assert "the oldest 2 messages are no longer told to the model" in " ".join(shown.split())
        assert shown.index("context is full") < shown.index("▌ two")
        assert "/compact" in shown


@pytest.mark.slow
async def test_an_answer_that_is_given_again_grows_where_it_is_seen() -> None:
    async with chatting(answers=["Old answer.", "New answer."]) as chat:
        await chat.ask("the question")
        for _ in range(20):
            await chat.send("/set")
        await chat.press("f5")
        await chat.until(lambda: "New answer." in chat.transcript() and chat.ready())
        await chat.until(lambda: "New answer." in chat.screen(), "seen")
        assert "the question" in chat.screen()
        assert "Old answer." not in chat.transcript()


async def test_an_answer_that_never_began_replaces_nothing() -> None:
    async with chatting(answers=["Old answer.", EngineError("it broke")]) as chat:
        await chat.ask("q")
        await chat.press("f5")
        await chat.until(lambda: "it broke" in chat.transcript() and chat.ready())
        assert "Old answer." in chat.transcript()
        assert "q" in chat.transcript()


async def test_an_empty_answer_replaces_the_one_before_as_another_version() -> None:
    async with chatting(answers=["Old answer.", ""]) as chat:
        await chat.ask("q")
        await chat.press("f5")
        await chat.until(lambda: "an empty answer" in chat.transcript() and chat.ready())
        assert "Old answer." not in chat.transcript()
        assert "‹ 2/2 ›" in chat.transcript()
        assert [m.content for m in chat.session.messages] == ["q", ""]
        await chat.press("f9")
        await chat.until(lambda: "Old answer." in chat.transcript() and chat.ready())


async def test_origins_are_shown_on_demand_also_in_the_middle() -> None:
    async with chatting(answers=["A **bold** " * 30], gate=Gate(is_open=False)) as chat:
        await chat.send("go")
        chat.session.gate.allow(3)
        await chat.until(lambda: "A bold" in chat.transcript())
        await chat.press("f3")
        await chat.until(lambda: "A **bold**" in chat.transcript())
        assert "from the draft" in chat.status()
        chat.session.gate.allow(3)
        await chat.until(lambda: chat.transcript().count("**bold**") > 4)
        await chat.press("f3")
        assert "**" not in chat.transcript()
        chat.session.gate.open()
        await chat.until(chat.ready)
        assert chat.transcript().count("bold") == 30


async def test_each_of_several_drafts_is_explained() -> None:
    async with chatting(draft_name="small + smaller") as chat:
        await chat.press("f3")
        await chat.until(lambda: "draft 1  ·  draft 2  ·  copied" in chat.status())


async def test_copy_reaches_the_clipboard() -> None:
    async with chatting(answers=["Copy *me*."]) as chat:
        await chat.press("f6")
        assert "no answer yet" in chat.status()
        await chat.ask("q")
        await chat.press("f6")
        assert chat.app.clipboard == "Copy *me*."
        assert "copied the last answer" in chat.status()


async def test_slash_commands() -> None:
    async with chatting() as chat:
        for text, shown in [
            ("/temp 0.25", "temperature 0.25"),
            ("/temp", "temperature: 0.25"),
            ("/temp hot", "cannot be “hot”"),
            ("/temp -1", "✗"),
            ("/gamma", "many as pay here"),
            ("/gamma 5", "gamma 5"),
            ("/gamma auto", "gamma auto"),
            ("/gamma 99", "At most 63"),
            ("/gamma " + "9" * 5000, "0 to 63"),
            ("/system Be brief.", "system prompt set"),
            ("/system", "Be brief."),
            ("/speculation maybe", "cannot be “maybe”"),
            ("/nonsense", "no command /nonsense"),
        ]:
            await chat.send(text)
            await chat.until(lambda shown=shown: shown in chat.transcript(), shown)
        assert chat.session.settings.sampling.temperature == 0.25
        assert chat.session.settings.gamma == "auto"
        assert chat.session.settings.system_prompt == "Be brief."
        await chat.send("/speculation off")
        await chat.until(lambda: not chat.session.speculation)
        assert not chat.session.messages
        await chat.ask("//literally")
        assert chat.session.messages[0].content == "/literally"
        await chat.send("/clear")
        await chat.until(lambda: chat.session.resets == 1 and chat.ready())
        assert "literally" not in chat.transcript()
        await chat.send("/help")
        await chat.until(lambda: isinstance(chat.app.screen, HelpScreen))
        await chat.press("escape")
        await chat.send("/quit")
        await chat.until(lambda: not chat.app.is_running)


async def test_help_lists_every_key_and_command_and_the_palette_offers_them() -> None:
    text = "\n".join(line.plain for line in help_lines(70))
    for command in COMMANDS:
        assert f"/{command.name}" in text
        assert not command.shown or command.shown in text
    keys = [int(n) for n in re.findall(r"(?m)^F(\d+)", text)]
    assert keys == sorted(keys)
    assert len(keys) == 12
    async with chatting() as chat:
        offered = {entry.title for entry in chat.app.get_system_commands(chat.app.screen)}
        unconditional = {one.name.capitalize() for one in COMMANDS if one.able is always}
        assert unconditional <= offered
        assert len(unconditional) > len(COMMANDS) / 2
        told = {entry.help for entry in chat.app.get_system_commands(chat.app.screen)}
        assert "size of the figures panel (F4, Ctrl+G)" in told
        assert "Theme" in offered
        await chat.press("f1")
        assert isinstance(chat.app.screen, HelpScreen)
        await chat.press("f1")
        assert not isinstance(chat.app.screen, HelpScreen)
        await chat.press("ctrl+p")
        await chat.press(*"panel")
        await chat.until(lambda: "size of the figures panel" in chat.screen())
        await chat.press("escape", "escape")


async def test_the_help_is_laid_out_once_for_the_width_that_it_keeps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    widths = set[int]()

    def seen(width: int, *others: Any) -> Any:
        widths.add(width)
        return help_lines(width, *others)

    monkeypatch.setattr(help_screen, "help_lines", seen)
    async with chatting(size=(80, 24)) as chat:
        await chat.press("f1")
        await chat.until(lambda: "Esc closes" in chat.screen(), "the help")
        await chat.until(lambda: not chat.timers(), "rest")
        await chat.press("escape")
    assert len(widths) == 1  # the frame before the other would break lines in two places


@pytest.mark.few(2)
@pytest.mark.parametrize("size", [(20, 5), (40, 10), (80, 24), (120, 40), (200, 50)])
async def test_every_size_is_usable(size: tuple[int, int]) -> None:
    async with chatting(size=size, answers=["Short answer."]) as chat:
        await chat.ask("Hi?")
        if size[1] < 8:
            await chat.press("pageup")  # the figures below the answer fill the screen
        await chat.until(lambda: "answer." in chat.screen())
        chat.app.prompt.insert("typed")
        await chat.until(lambda: "typed" in chat.screen())
        form = natural_form(*size)
        assert chat.app.query_one("#full").display == (form is PanelForm.FULL)
        if form is not PanelForm.OFF:
            words = "accepted" if form is PanelForm.FULL else "kept"
            await chat.until(lambda: words in chat.screen())
        assert ("F1 Help" in chat.screen()) == (size[1] >= 8)


async def test_the_panel_shows_the_figures_with_their_units() -> None:
    gpu = DeviceMemory("NVIDIA H200", free=100 << 30, total=140 << 30)
    async with chatting(size=(140, 50), answers=[LONG], devices=(gpu,)) as chat:
        await chat.ask("go")
        texts = (
            *("tokens/s", "average", "wait", "Drafting", "kept", "gamma", "per round", "drafted"),
            *("accepted", "recovered", "bonus", "Last rounds", "Context", "of 4,096", "Time"),
            *("Memory", "target weights", "28.3 MB", "caches", "buffers", "machine"),
            *("7.52 GB of 17.2 GB", "NVIDIA H200", "42.9 GB of 150 GB"),
            "drafting 3: scripted, 75 %",
        )
        for text in texts:
            await chat.until(lambda text=text: text in chat.screen(), text)


async def test_the_panel_says_why_nothing_is_drafted_by_another_pair() -> None:
    async with chatting((140, 50), draft_name=None, speculation_note="one reason") as chat:
        await chat.until(lambda: "one reason" in chat.screen())
        chat.session.speculation_note = "another reason"
        chat.app.pair_loader.reload()
        await chat.until(lambda: "another reason" in chat.screen() and chat.ready())


@pytest.mark.slow
async def test_the_panel_takes_more_of_a_wide_screen() -> None:
    async with chatting(size=(120, 40)) as chat:
        full = chat.app.query_one("#full")
        await chat.until(lambda: full.size.width)
        usual = full.size.width
        await chat.pilot.resize_terminal(200, 60)
        await chat.until(lambda: full.size.width == usual + 20)
        await chat.pilot.resize_terminal(120, 40)
        await chat.until(lambda: full.size.width == usual)


async def test_the_panel_cycles_and_follows_resizes() -> None:
    async with chatting(size=(120, 40)) as chat:
        full, compact = chat.app.query_one("#full"), chat.app.query_one("#compact")
        await chat.until(lambda: full.display)
        await chat.pilot.resize_terminal(80, 24)
        await chat.until(lambda: compact.display and not full.display)
        await chat.pilot.resize_terminal(40, 10)
        await chat.until(lambda: not compact.display and not full.display)
        await chat.pilot.resize_terminal(120, 40)
        await chat.until(lambda: full.display)
        await chat.press("f4")
        await chat.until(lambda: compact.display and not full.display)
        await chat.press("f4")
        await chat.until(lambda: not compact.display and not full.display)
        await chat.press("f4")
        await chat.until(lambda: full.display)


async def test_a_chosen_panel_leaves_the_conversation_room() -> None:
    async with chatting(size=(120, 40)) as chat:
        full, compact = chat.app.query_one("#full"), chat.app.query_one("#compact")
        await chat.send("/panel full")
        await chat.pilot.resize_terminal(60, 24)
        await chat.until(lambda: compact.display and not full.display, "two lines")
        await chat.pilot.resize_terminal(40, 10)
        await chat.until(lambda: not compact.display and not full.display, "none")
        await chat.send("/panel compact")
        await chat.until(lambda: "too small" in chat.status(), "why not")
        assert not compact.display
        await chat.pilot.resize_terminal(120, 40)
        await chat.until(lambda: compact.display and not full.display, "the choice")
        assert chat.app.chosen() == {"panel": "compact"}
        await chat.send("/panel auto")
        await chat.until(lambda: full.display, "what suits the size")
        assert chat.app.chosen() == {}


async def test_what_drafting_brought_stays_on_the_screen_whatever_the_panel_shows() -> None:
    async with chatting(size=(120, 40)) as chat:
        await chat.ask("One?")
        sentence = benefit(chat.app.dashboard.state.figures)
        assert sentence
        for _ in PanelForm:
            await chat.press("f4")
            await chat.until(lambda: sentence in " ".join(chat.screen().split()), "the sentence")
        await chat.send("/stats")
        await chat.until(lambda: f"the last answer: {sentence}" in chat.transcript(), "/stats")


def test_panel_layout_fits_any_size() -> None:
    state = panel_layout.PanelState()
    state.memory = ScriptedSession().memory()
    for height in (0, 1, 5, 12, 20, 30, 60):
        assert len(panel_layout.full_lines(state, 35, height)) <= height
    for width in (10, 40, 76, 100):
        assert len(panel_layout.compact_lines(state, width)) == 2
    assert next_form(PanelForm.OFF, 60, 24) is PanelForm.COMPACT


async def test_no_timer_runs_while_nothing_happens(tmp_path: Path) -> None:
    async with chatting(size=(120, 30), archive=tmp_path / "c.db") as chat:
        assert chat.app.prompt.has_focus
        await chat.until(lambda: not chat.timers(), "rest at the beginning")
        chat.session.gate.close()
        await chat.send("q")
        await chat.until(chat.timers, "figures that move")
        chat.session.gate.open()
        await chat.until(lambda: chat.ready() and not chat.timers(), "rest after an answer")
        for key in ("f7", "f1"):
            await chat.press(key)
            await chat.until(lambda: len(chat.app.screen_stack) == 2)
            await chat.until(lambda: not chat.timers(), f"rest after {key}")
            await chat.press("escape")
            await chat.until(lambda: len(chat.app.screen_stack) == 1)


async def test_hostile_output_is_shown_harmlessly() -> None:
    hostile = (
        "\x1b]0;title\x07 \x1b[2J [bold red]markup[/] [@click=app.quit]x[/] <script>\n\n"
        "```\x1b[31m\n\x1b[H\n```\n\n" + "\u202eevil " + "x" * 5000
    )
    async with chatting(answers=[hostile]) as chat:
        await chat.ask("\x1b[2J[bold]me[/]")
        screen = chat.screen()
        assert "\x1b" not in screen
        shown = chat.transcript()
        for text in ("␛]0;title␇", "[bold red]markup[/]", "[@click=app.quit]x[/]", "<script>"):
            assert text in shown, text
        await chat.press("f3")
        assert "\x1b" not in chat.screen()


@pytest.mark.slow
async def test_keys_mashed_and_sizes_changed_while_generating() -> None:
    async with chatting(answers=[LONG * 3], round_s=0.001) as chat:
        await chat.send("go")
        for n in range(6):
            await chat.press("f3", "f4", "f2", "a", "ctrl+j", "up", "down", "pageup")
            await chat.pilot.resize_terminal(30 + 17 * (n % 7), 8 + 6 * (n % 6))
        await chat.press("escape")
        await chat.until(chat.ready)
        chat.app.prompt.clear()
        await chat.ask("still there?")


async def test_a_user_who_scrolled_up_is_left_there() -> None:
    async with chatting(answers=[LONG, LONG], gate=Gate(is_open=True)) as chat:
        await chat.ask("one")
        transcript = chat.app.transcript
        await chat.until(lambda: transcript.scroll_offset.y == transcript.max_scroll_y > 0)
        chat.session.gate.close()
        await chat.send("two")
        chat.session.gate.allow(4)
        await chat.until(lambda: chat.session.rounds_made > 0)
        await chat.press("pageup")
        await chat.until(lambda: transcript.scroll_offset.y < transcript.max_scroll_y)
        at = transcript.scroll_offset.y
        chat.session.gate.open()
        await chat.until(chat.ready)
        assert transcript.scroll_offset.y == at
        chat.app.pairs._ended("it is installed")
        transcript.say("the server cannot be used", unasked=True)
        transcript.go_on(())
        await chat.settle()
        assert transcript.scroll_offset.y == at
        await chat.send("/temp")
        await chat.until(lambda: transcript.scroll_offset.y == transcript.max_scroll_y)
        await chat.press("pageup")
        await chat.ask("three")
        await chat.until(lambda: transcript.scroll_offset.y == transcript.max_scroll_y)


def percentile_99(values: list[float]) -> float:
    return sorted(values)[int(0.99 * len(values))]


def share_of_a_core() -> float:
    """How much of a core this process gets while it computes: 1 on a quiet machine."""
    wall, cpu = time.perf_counter(), time.thread_time()
    while time.thread_time() - cpu < 0.2:
        pass
    return 0.2 / (time.perf_counter() - wall)


async def pauses_of_the_app() -> tuple[float, float]:
    """99th percentiles during a fast answer: of pauses, and of computing without a pause."""
    pauses, computing = [], []
    async with chatting(size=(140, 45), answers=[LONG * 6], round_s=0.002) as chat:
        await chat.send("go")
        while not (len(chat.session.messages) == 2 and chat.ready()):
            before, cpu = time.perf_counter(), time.thread_time()
            await asyncio.sleep(0.005)
            pauses.append(time.perf_counter() - before - 0.005)
            computing.append(time.thread_time() - cpu)
    return percentile_99(pauses), percentile_99(computing)


@pytest.mark.slow
@pytest.mark.timed
def test_the_event_loop_hardly_pauses_during_a_generation() -> None:
    for _ in range(3):
        pauses, computing = asyncio.run(pauses_of_the_app())
        # Where others take the core away in the middle of a frame, only the frame's own
        # computing can be judged.
        if (pauses if share_of_a_core() > 0.9 else computing) < 0.05:
            return
    raise AssertionError(f"pauses {pauses:.3f} s, of which computing {computing:.3f} s")


async def test_what_is_proposed_unasked_leaves_the_beginning_in_sight() -> None:
    async with chatting((80, 24)) as chat:
        chat.app.transcript.say("proposed\n" * 15, unasked=True)
        await chat.press("f3", "f3")
        assert "target" in chat.screen()
        assert "break the line" in chat.screen()
        await chat.send("/temp")
        await chat.until(lambda: "temperature: " in chat.screen(), "what was asked for")


@pytest.mark.slow
async def test_why_drafting_does_not_help_is_said_where_no_column_says_it() -> None:
    session = ScriptedSession(answers=["An answer of some words."])
    note, slow = GammaNote(GammaReason.TOO_DEAR), "other programs keep 1.4 of 2 threads busy"
    figures = session.figures
    without = partial(replace, answer_note=note, slow=slow, drafted=0, accepted=0)
    session.figures = lambda: without(figures())  # type: ignore[method-assign]
    async with chatting((80, 24), session=session) as chat:
        assert "not drafting" not in chat.screen()
        await chat.ask("q")
        await chat.until(lambda: "this draft costs more than it saves" in chat.status(), "why")
        await chat.until(lambda: slow in " ".join(chat.screen().split()), "all, on a second line")
        await chat.pilot.resize_terminal(80, 15)
        await chat.ask("q")
        await chat.until(lambda: chat.status().endswith(" …"), "a single line")
        assert len(chat.status()) <= 78
        await chat.pilot.resize_terminal(120, 40)
        await chat.ask("q")
        await chat.until(lambda: chat.status().strip() == "ready", "the column says it")
