"""One prompt answered twice: the screen with a scripted session, the answers with the toy pair."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from textual.content import Content

from localspec.chat.conversation import Message, Role
from localspec.chat.dialects import Dialect
from localspec.chat.events import Origin, RoundText, Span, TurnEnd
from localspec.chat.session.side_by_side import answer_twice
from localspec.chat.settings import ChatSettings, Gamma
from localspec.engine.cancel import Cancel
from localspec.engine.record.parting import Parting
from localspec.engine.record.stats import FinishReason, GenerationStats
from localspec.engine.round.params import Accept
from localspec.errors import PromptTooLong
from localspec.loading.load import load_session
from localspec.loading.load_request import LoadRequest
from localspec.ui.conversation.engine_phase import EnginePhase
from localspec.ui.screens.compare import (
    AnswerSide,
    CompareScreen,
    body,
    heading,
    question,
    verdict,
)
from tests.fakes import round_of
from tests.support.chat_pilot import chatting
from tests.support.scripted_session import Gate

ASKED = "Tell me a story about a dog."


async def test_a_table_that_is_wider_than_its_side_keeps_a_line_for_each_row() -> None:
    table = "| a | b | c |\n|--|--|--|\n| long text here | other | third |\n"
    async with chatting(size=(40, 24), answers=[table, table]) as chat:
        chat.app.prompt.insert("What is the sky?")
        await chat.press("ctrl+b")
        await chat.until(lambda: "the same" in chat.screen(), "both answers")
        lines = chat.screen().split("\n")
        head = next(at for at, line in enumerate(lines) if "a  │b  │c" in line)
        assert "┼" in lines[head + 1]
        assert "─" not in lines[head + 2]


async def test_both_answers_stand_side_by_side_and_the_conversation_stays() -> None:
    answers = ["First.", "The sky is blue.", "The sky is grey."]
    async with chatting(size=(120, 30), answers=answers) as chat:
        await chat.ask("Hello?")
        before, rounds = list(chat.session.messages), chat.app.dashboard.state.rounds.copy()
        assert rounds
        chat.app.prompt.insert("What is the sky?")
        await chat.press("ctrl+b")
        await chat.until(lambda: "the texts part after" in chat.screen(), "both answers")
        await chat.until(lambda: not chat.timers(), "rest")
        for text in ("What is the sky?", "is blue.", "is grey.", "without drafting"):
            await chat.until(lambda text=text: text in chat.screen(), text)  # type: ignore[misc]
        await chat.press("escape")
        await chat.until(chat.ready)
        assert chat.session.messages == before
        assert chat.session.speculation
        assert "is blue" not in chat.transcript()
        assert chat.app.dashboard.state.rounds == rounds
        assert chat.app.dashboard.state.figures.generated == 1
        assert chat.app.prompt.text == "What is the sky?"


async def test_what_follows_the_command_is_answered() -> None:
    asked = "Why is the sky blue at noon, red in the evening and black at night, if it is the same?"
    async with chatting(size=(120, 30), answers=["First.", "One.", "Two."]) as chat:
        await chat.ask("Hello?")
        await chat.send(f"/twice {asked}")
        await chat.until(lambda: f"─ {asked} ─" in chat.screen(), "the whole question")
        await chat.until(lambda: "the texts part after" in chat.screen(), "both answers")


async def test_what_cannot_be_answered_is_said_where_it_is_seen() -> None:
    error = PromptTooLong("the prompt has 9,000 tokens", "Shorten it.")
    async with chatting(answers=[error, "Fine."]) as chat:
        chat.app.prompt.insert("Too long.")
        await chat.press("ctrl+b")
        await chat.until(lambda: "✗ the prompt has 9,000 tokens" in chat.screen())
        await chat.until(chat.ready)
        assert not isinstance(chat.app.screen, CompareScreen)
        assert chat.app.prompt.text == "Too long."


@pytest.mark.slow
async def test_files_that_are_mentioned_are_answered_too(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("inside")

    async with chatting() as chat:
        asked: list[str] = []
        turn = chat.session.turn

        def heard(text: str, cancel: Cancel) -> Any:
            asked.append(text)
            return turn(text, cancel)

        chat.session.turn = heard  # type: ignore[method-assign]
        chat.app.prompt.insert(f"What is @{tmp_path / 'a.txt'}?")
        await chat.press("ctrl+b")
        await chat.until(lambda: "the texts are the same" in chat.screen())
        assert len(asked) == 2
        assert all("inside" in text for text in asked)


async def test_an_edited_message_is_compared_in_its_place_and_stays_one() -> None:
    async with chatting(answers=["A1.", "A2.", "Same."]) as chat:
        await chat.ask("first")
        await chat.ask("second")
        before: list[list[str]] = []
        turn = chat.session.turn

        def heard(text: str, cancel: Cancel) -> Any:
            before.append([*(m.content for m in chat.session.messages), text])
            return turn(text, cancel)

        chat.session.turn = heard  # type: ignore[method-assign]
        await chat.press("f8", "!", "ctrl+b")
        await chat.until(lambda: "the texts are the same" in chat.screen(), "both answers")
        await chat.press("escape")
        await chat.until(chat.ready)
        assert before == [["first", "A1.", "second!"]] * 2
        await chat.press("enter")
        await chat.until(lambda: "‹ 2/2 ›" in chat.transcript() and chat.ready(), "the version")


async def test_escape_stops_it_and_the_input_works_again() -> None:
    async with chatting(answers=["word " * 400], gate=Gate(is_open=False)) as chat:
        chat.app.prompt.insert("Go on.")
        await chat.press("ctrl+b")
        chat.session.gate.allow(4)
        await chat.until(lambda: chat.session.rounds_made == 4, "four rounds")
        assert chat.app.turns.phase is EnginePhase.CHANGING
        await chat.press("escape")
        await chat.until(chat.ready, "the end")
        assert not isinstance(chat.app.screen, CompareScreen)
        assert chat.session.messages == []


async def test_nothing_is_compared_while_a_message_that_came_with_it_is_answered() -> None:
    async with chatting(gate=Gate(is_open=False)) as chat:
        for text in ("hi", "/twice x"):  # as a terminal sends them after it was slow
            assert chat.app._sender.enter(text, command=False)
        busy = "an answer is running: Esc stops it"
        await chat.until(lambda: busy in chat.status(), "the refusal")
        assert chat.app.turns.phase is EnginePhase.ANSWERING
        assert not isinstance(chat.app.screen, CompareScreen)


async def test_without_a_prompt_or_a_draft_it_is_said() -> None:
    async with chatting() as chat:
        await chat.press("ctrl+b")
        await chat.until(lambda: "no prompt to answer twice" in chat.transcript())
        assert not isinstance(chat.app.screen, CompareScreen)

    async with chatting(speculation_note="there is no draft") as chat:
        chat.app.prompt.insert("Hello")
        await chat.press("ctrl+b")
        await chat.until(lambda: "nothing to compare: there is no draft" in chat.transcript())


@pytest.mark.few(1)
@pytest.mark.parametrize("width", [80, 120])
async def test_texts_that_part_at_a_near_tie_say_rounding(width: int) -> None:
    answers = ["The sky is blue.", "The sky is grey."]
    async with chatting(size=(width, 24), answers=answers) as chat:
        chat.session.parting = Parting(3, 0.042)
        chat.app.prompt.insert("What is the sky?")
        await chat.press("ctrl+b")

        def said() -> str:
            return " ".join(chat.screen().replace("│", " ").split())

        await chat.until(lambda: "0.04 apart, a near tie" in said(), "the margin")
        assert "part after 11 characters by rounding" in said()


async def test_with_exact_no_rounding_explains_texts_that_part() -> None:
    async with chatting(size=(120, 24), answers=["Blue.", "Blue?"], equal_passes=16) as chat:
        chat.session.parting = Parting(3, 0.042)
        chat.app.prompt.insert("What is the sky?")
        await chat.press("ctrl+b")
        why = "which --exact should rule out, please report it"
        await chat.until(lambda: why in " ".join(chat.screen().split()), why)


@pytest.mark.parametrize("how", [{"lenience": 0.3}, {"accept": Accept.TOKEN}])
async def test_under_rules_that_change_the_text_exact_rules_nothing_out(how: Any) -> None:
    async with chatting(size=(120, 24), answers=["Blue.", "Blue?"], equal_passes=16) as chat:
        chat.session.parting = Parting(3)
        chat.app.engine.configure(replace(ChatSettings(), **how))
        await chat.until(lambda: chat.session.settings == replace(ChatSettings(), **how), "set")
        chat.app.prompt.insert("What is the sky?")
        await chat.press("ctrl+b")
        await chat.until(lambda: "part after" in " ".join(chat.screen().split()), "the parting")
        assert "rule out" not in " ".join(chat.screen().split())


async def test_other_programs_that_disturbed_it_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    busy = "other programs keep 1.5 of 2 threads busy"
    async with chatting(size=(120, 24), answers=["One word after another. " * 60]) as chat:
        figures = chat.session.figures
        monkeypatch.setattr(chat.session, "figures", lambda: replace(figures(), busy=busy))
        chat.app.prompt.insert("Go on.")
        await chat.press("ctrl+b")
        said = f"can't tell what drafting brings: {busy}"
        await chat.until(lambda: said in " ".join(chat.screen().split()), "why")
        assert "×" not in chat.screen()


def test_the_last_question_is_asked_again_where_nothing_is_typed() -> None:
    said = [Message(Role.USER, "a"), Message(Role.ASSISTANT, "b"), Message(Role.USER, "c")]
    messages = [*said, Message(Role.ASSISTANT, "d")]
    assert question(messages, " ") == ("c", said[:2])
    assert question(messages, "e") == ("e", messages)


def said(text: str, *, speculation: bool = False) -> AnswerSide:
    """A side that has written `text`."""
    side = AnswerSide(speculation)
    side.hear(RoundText((Span(text, Origin.TARGET),), round_of(0, 0)))
    return side


def test_what_only_one_side_says_stands_out_once_it_is_certain() -> None:
    off, on = said("one two three"), said("one", speculation=True)
    off.stats = GenerationStats()
    assert not body(off, on, 30, 9).spans  # the other is still being written
    assert not body(on, off, 30, 9).spans
    on.stats = GenerationStats()
    assert [span.start for span in body(off, on, 30, 9).spans] == [len("  one")]
    assert body(off, on, 30, 9).plain.split() == ["one", "two", "three"]
    assert verdict(off, on) == "nothing was drafted; the texts part after 3 characters"
    assert "waiting" in heading(AnswerSide(speculation=True)).plain
    near = Parting(1, 0.01)
    assert "by rounding" in verdict(off, on, near)
    assert "--exact should rule out" in verdict(off, on, near, exact=True)


async def test_while_it_is_written_only_what_grows_is_drawn_and_only_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with chatting(size=(80, 24)) as chat:
        screen = CompareScreen("Why?", lambda: None, Dialect())
        await chat.app.push_screen(screen)
        await chat.until(lambda: screen._views[0].size.height, "the layout")
        await chat.settle()
        seen, drawn = screen._views[0].size.height, list[tuple[bool, list[str]]]()
        for side, text in enumerate(screen._texts):

            def update(content: Content, side: int = side) -> None:
                drawn.append((bool(side), [line.strip() for line in content.plain.split("\n")]))

            monkeypatch.setattr(text, "update", update)
        lines = [f"line {n}" for n in range(300)]
        for speculation in (False, True):
            grown = RoundText((Span("\n".join(lines), Origin.TARGET),), round_of(0, 0))
            screen.hear(grown, speculation=speculation)
            screen._draw()
            screen._draw()
            assert drawn == [(speculation, lines[-seen:])]
            drawn.clear()
            screen.hear(TurnEnd("", FinishReason.STOP, GenerationStats()), speculation=speculation)
            screen._draw()
            if not speculation:
                drawn.clear()
        assert [(side, each[:-1]) for side, each in drawn] == [(False, lines), (True, lines)]
        screen.dismiss(None)


def test_thoughts_of_other_lengths_are_compared_without_their_counts() -> None:
    screen = CompareScreen("Why?", lambda: None, Dialect())
    words = "one two three four five six seven eight nine ten"
    for speculation, end in ((False, "so"), (True, "so it is")):
        text = f"<think>\n{words} {end}\n</think>\nYes."
        screen._sides[speculation].hear(
            RoundText((Span(text, Origin.TARGET),), round_of(0, 0)),
        )
        screen._sides[speculation].stats = GenerationStats()
    shown = body(*screen._sides, 40, 9)
    assert "click" not in shown.markup
    (marked,) = (span for span in shown.spans if "warning" in str(span.style))
    assert shown.plain[: marked.start].split()[-1] == "so"


def test_while_it_is_written_the_foot_names_other_programs() -> None:
    off, on = said("One."), AnswerSide(True)
    assert not verdict(off, on)
    off.busy = "other programs keep 1.5 of 2 threads busy"
    assert verdict(off, on) == off.busy


def test_while_an_answer_is_written_its_speed_is_that_of_its_rounds_so_far() -> None:
    side = AnswerSide(speculation=True)
    for done in (round_of(0, 0, seconds=1.0), *(round_of(3, 1, seconds=0.1) for _ in range(5))):
        side.hear(RoundText((Span("word ", Origin.TARGET),), done))
    assert heading(side).plain == "with drafting\nwriting … 11 tokens, 20.0 tokens/s"
    side.hear(TurnEnd("", FinishReason.STOP, side.so_far))
    assert heading(side).plain == "with drafting\n11 tokens, 20.0 tokens/s, guessed 15, kept 5"


def test_a_speed_is_written_as_everywhere() -> None:
    side = AnswerSide(speculation=False)
    for _ in range(5):
        side.hear(RoundText((Span("word ", Origin.TARGET),), round_of(0, 0, seconds=0.002)))
    assert heading(side).plain.endswith("5 tokens, 500 tokens/s")


def test_control_characters_do_not_reach_the_screen() -> None:
    assert "\x1b" not in body(said("\x1b[2Jhello"), said("x"), 30, 9).plain


async def test_code_and_thoughts_stand_as_in_the_chat() -> None:
    thought = "<think>\nBy hand.\n</think>\n"
    code = "Here it is, in **Python**:\n\n```python\ndef twice(n):\n    return 2 * n\n```\n"
    answers = [f"{thought}{code}\nDone.", f"{thought}{code}\nReady."]
    async with chatting(size=(80, 24), answers=answers) as chat:
        chat.app.prompt.insert("Write it.")
        await chat.press("ctrl+b")
        await chat.until(lambda: "texts part after" in chat.screen(), "both answers")
        await chat.until(lambda: not chat.timers(), "rest")
        screen = chat.screen()
        for text in ("By hand.", "in Python:", "def twice(n):", "    return 2 * n"):
            assert screen.count(text) == 2, text
        for mark in ("```", "**", "<think>"):
            assert mark not in screen
        await chat.press("escape")


@pytest.mark.few(1)
@pytest.mark.parametrize("gamma", [3, "auto"])
def test_the_toy_pair_says_the_same_twice_and_goes_on_as_before(gamma: Gamma) -> None:
    options = LoadRequest(pair="toy", threads=1, ctx_size=256, gamma=gamma, n_predict=24)
    session = load_session(options, progress=lambda *_: None, cancel=Cancel())
    try:
        list(session.turn("Hello!", Cancel()))
        before, settings = list(session.messages), session.settings
        figures = session.figures()
        assert figures.generated
        sides = AnswerSide(speculation=False), AnswerSide(speculation=True)
        for speculation, event in answer_twice(session, ASKED, before, Cancel()):
            sides[speculation].hear(event)
        off, on = sides
        assert off.text == on.text != ""  # temperature 0.8: they drew the same
        assert off.stats is not None
        assert on.stats is not None
        assert off.stats.drafted_tokens == 0
        assert on.stats.drafted_tokens > 0 or gamma == "auto"
        assert "the texts are the same" in verdict(off, on)
        assert session.messages == before
        assert session.settings == settings
        now = session.figures()  # what others do to the machine meanwhile does not count
        apart = {"slow": "", "busy": "", "check": None, "spare": False}
        assert replace(now, **apart) == replace(figures, **apart)
        assert session.speculation
    finally:
        session.close()


def test_a_real_answer_that_is_stopped_leaves_the_session_usable() -> None:
    options = LoadRequest(pair="toy", threads=1, ctx_size=256, gamma=3, n_predict=200)
    session = load_session(options, progress=lambda *_: None, cancel=Cancel())
    try:
        cancel = Cancel()
        sides = AnswerSide(speculation=False), AnswerSide(speculation=True)
        for speculation, event in answer_twice(session, ASKED, [], cancel):
            sides[speculation].hear(event)
            if sides[0].text:
                cancel.set()
        assert sides[0].text
        assert not sides[1].text
        assert session.messages == []
        assert list(session.turn("Hello!", Cancel()))
    finally:
        session.close()


@pytest.mark.few(1)
@pytest.mark.parametrize("width", [60, 80])
async def test_both_headings_are_of_one_height_and_esc_is_named(width: int) -> None:
    async with chatting(size=(width, 24), answers=["One.", "The sky is blue."]) as chat:
        chat.app.prompt.insert("What is the sky?")
        await chat.press("ctrl+b")
        await chat.until(lambda: "texts part" in chat.screen(), "both answers")
        await chat.until(lambda: not chat.timers(), "rest")
        assert "Esc closes" in chat.screen()
        assert "guessed 3, kept 2" in chat.screen()
        heads = list(chat.app.screen.query(".side-head"))
        assert len({head.size.height for head in heads}) == 1
