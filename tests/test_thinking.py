"""Thoughts of reasoning models: told apart while they stream, folded, counted, kept."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.chat.conversation import Message, Role
from localspec.chat.dialects import AnswerReading, ContentPiece, Dialect, ThoughtPiece
from localspec.chat.dialects.shapes import AnswerMarks, ThinkingOptions
from localspec.chat.events import Origin, RoundText, Span, TurnEnd
from localspec.chat.prompt.tool_prompt import ToolPrompt
from localspec.chat.session.completions import Completions
from localspec.chat.settings import AnswerRequest
from localspec.engine.cancel import Cancel
from localspec.ui.commands.command_table import COMMANDS
from localspec.ui.conversation.stream import AnswerStream
from localspec.ui.screens.help import WORDS
from localspec.ui.transcript.items import Answer
from tests.fakes import CHATML, FakeModel, ended, fake_session, rounds_of
from tests.support.chat_pilot import chatting
from tests.support.scripted_session import Gate


def split(text: str, cuts: list[int], prompt: str) -> tuple[str, str]:
    reader = Dialect().reader((), prompt=prompt, exact=True)
    places = sorted({min(cut, len(text)) for cut in cuts})
    pieces = [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)]
    found = [one for piece in pieces for one in reader.feed(piece)] + [*reader.end()]
    thought = "".join(one.text for one in found if isinstance(one, ThoughtPiece))
    return thought, "".join(one.text for one in found if isinstance(one, ContentPiece))


@pytest.mark.parametrize(
    ("text", "prompt", "thought", "answer"),
    [
        ("<think>why</think>because", "", "why", "because"),
        ("\n<think>\nwhy\n</think>\n\nbecause", "", "why", "because"),
        ("why</think>because", "<think>\n", "why", "because"),
        ("no thoughts, <think>, none</think> ", "", "", "no thoughts, <think>, none</think> "),
        ("<think>a</think>b <think> c", "", "a", "b <think> c"),
        ("<think>a</think><think>b</think>c", "", "a\nb", "c"),
        ("<think>never ends </thin", "", "never ends </thin", ""),
        ("<thin", "", "", "<thin"),
        (" no mark\n", "", "", " no mark\n"),
        ("", "", "", ""),
    ],
)
@given(cuts=st.lists(st.integers(0, 40), max_size=6))
def test_thoughts_are_found_however_the_text_is_cut(
    cuts: list[int], text: str, prompt: str, thought: str, answer: str
) -> None:
    assert split(text, cuts, prompt) == (thought, answer)


ANSWER = "<think>First I wonder, then I know.</think>\n\nIt is **blue**."


async def test_thoughts_are_folded_while_they_stream_and_open_on_demand(tmp_path: Path) -> None:
    archive = tmp_path / "c.db"

    async with chatting(answers=[ANSWER], gate=Gate(is_open=False), archive=archive) as chat:
        await chat.send("why?")
        chat.session.gate.allow(2)
        await chat.until(lambda: "▸ thinking …" in chat.transcript())
        assert re.search(r"thinking … [1-9]\d* tokens?, ", chat.transcript())
        assert "wonder" not in chat.transcript()
        await chat.press("f11")
        await chat.until(lambda: "▾ thinking …" in chat.transcript())
        assert "┊ First" in chat.transcript()
        chat.session.gate.open()
        await chat.until(chat.ready)
        assert "It is blue." in chat.transcript()
        assert re.search(r"▾ thought for [1-9]\d* tokens?, \d", chat.transcript())
        assert "think>" not in chat.transcript()
        rows = chat.screen().split("\n")
        row = next(y for y, line in enumerate(rows) if "▾ thought" in line)
        await chat.pilot.click(offset=(rows[row].index("▾"), row))
        await chat.until(lambda: "▸ thought" in chat.transcript())
        assert "wonder" not in chat.transcript()
        await chat.press("f6")
        assert chat.app.clipboard == "It is **blue**."
        await chat.press("f3")
        assert "<think>First I wonder" in chat.transcript()
        await chat.press("f3")
        head = next(line for line in chat.transcript().split("\n") if "▸ thought" in line)
        conversation = chat.app.library.record.header.id
    async with chatting(archive=archive, resume=conversation) as chat:
        await chat.until(lambda: "▌ why?" in chat.transcript())
        assert head in chat.transcript()
        assert "wonder" not in chat.transcript()
        # The session keeps the whole text: the template decides what the model sees again.
        assert chat.session.messages[-1].content == ANSWER


def test_the_tokens_of_a_thought_are_counted_however_late_it_is_drawn() -> None:
    answer = Answer()
    answer.write([Span("<think>" + "a" * 3000, Origin.TARGET)], 700)
    answer.lines(80)
    assert answer.thought.tokens == pytest.approx(700, rel=0.01)
    answer.write([Span("b" * 2000 + "</think>\n\n", Origin.TARGET)], 500)  # more than a piece
    answer.write([Span("It is blue. " * 20, Origin.TARGET)], 100)  # before that is laid out
    told = answer.thought.figures()  # are stored before all is laid out
    assert told["thought_tokens"] == pytest.approx(1200, rel=0.01)
    for by_origin in (True, False):
        answer.show_origins(by_origin)
        answer.lines(80)
    assert f"thought for {told['thought_tokens']:,} tokens" in answer.lines(80)[0].plain


def test_the_tokens_of_a_round_without_text_count_with_the_next_text() -> None:
    transcript: Any = Mock()
    stream = AnswerStream(transcript, Mock(), Mock())
    span = Span("✨", Origin.TARGET)
    for number in range(2):
        stream.begin(answer := Mock())
        for spans in ((), (), (span,), ()):
            (done,) = rounds_of([1])
            stream.inbox.put(RoundText(spans, done))
            stream.flush()
        assert transcript.write.call_count == number + 1
        transcript.write.assert_called_with(answer, [span], 3)


OPENS = CHATML.replace("assistant\n{% endif", "assistant\n<think>\n{% endif")
SWITCHED = (
    "{% for m in messages %}[{{ m.role }}]"
    "{% if m.reasoning_content %}<t>{{ m.reasoning_content }}</t>{% endif %}{{ m.content }}"
    "{% endfor %}{% if add_generation_prompt %}[assistant]"
    "{% if enable_thinking is not defined or enable_thinking %}<t>{% else %}<t></t>{% endif %}"
    "{% endif %}"
)


@pytest.mark.parametrize("reasoning_format", ["auto", "none"])
def test_an_answer_that_begins_inside_a_thought_is_kept_with_its_mark(
    reasoning_format: Any,
) -> None:
    """So it can be read later, under another setting, without its prompt."""
    answer = [*rounds_of(b"why</think>It is blue."), ended()]
    session, _ = fake_session(answer, model=FakeModel(chat_template=OPENS))
    session.settings = replace(session.settings, reasoning_format=reasoning_format)
    events = list(session.turn("hi", Cancel()))
    text = "".join(event.text for event in events if isinstance(event, RoundText))
    assert text == events[-1].text == "<think>why</think>It is blue."  # type: ignore[union-attr]
    assert session.messages[-1].content == text
    apart = AnswerReading("why", "It is blue.")
    whole = AnswerReading(None, text)
    assert session.dialect.said(text) == (apart if reasoning_format == "auto" else whole)


@pytest.mark.parametrize("served", [False, True])
def test_a_stop_text_within_a_thought_ends_no_answer(
    served: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = [*rounds_of(b"why\n\nnot</think>\n\nIt is blue.\n\nOr red."), ended()]
    model: Any = FakeModel(chat_template=OPENS)
    model.watch, model.n_vocab = Mock(), 256
    monkeypatch.setattr(Completions, "_restored", Mock(return_value=0))
    session, _ = fake_session(answer, model=model)
    session.settings = replace(session.settings, stop=("\n\n",))
    asked = AnswerRequest(session.settings, (Message(Role.USER, "hi"),))
    events = (
        Completions(session).answer(asked, Cancel()) if served else session.turn("hi", Cancel())
    )
    *_, end = events
    assert isinstance(end, TurnEnd)
    assert end.text.removeprefix("<think>") == "why\n\nnot</think>\n\nIt is blue."


def test_earlier_answers_are_read_as_they_were_written() -> None:
    thinks, plain = [*rounds_of(b"why</t>blue"), ended()], [*rounds_of(b"green"), ended()]
    session, _ = fake_session(thinks, plain, thinks, model=FakeModel(chat_template=SWITCHED))
    assert session.template.dialect.thinking.switch
    for reasoning in ("auto", "off", "on"):
        session.settings = replace(session.settings, reasoning=reasoning)  # type: ignore[arg-type]
        list(session.turn("hi", Cancel()))
    answers = [one.content for one in session.messages if one.role is Role.ASSISTANT]
    assert answers == ["<t>why</t>blue", "green", "<t>why</t>blue"]
    assert [session.dialect.said(one).content for one in answers] == ["blue", "green", "blue"]
    assert "[assistant]green[user]" in session.template.render(
        ToolPrompt(session.dialect).told(session.messages)
    )


CAN = ThinkingOptions(True, ("low", "high"), True, "enable_thinking", "reasoning_effort")


async def test_what_a_model_thinks_can_be_asked_for() -> None:
    async with chatting((160, 60), dialect=Dialect(True, thinking=CAN)) as chat:
        await chat.send("/think")
        await chat.until(lambda: "as the model's chat template has it" in chat.transcript())
        assert "/think takes off, on, low, high, auto, budget N" in chat.transcript()
        for asked, shown in (
            ("off", "to come: off"),
            ("high", "to come: on, effort high"),
            ("budget 412", "to come: on, effort high, 412 tokens at most"),
            ("budget none", "to come: on, effort high\n"),
            ("auto", "to come: as the model's chat template has it"),
        ):
            await chat.send(f"/think {asked}")
            await chat.until(lambda shown=shown: shown in chat.transcript() + "\n")
        await chat.send("/set nothink")
        await chat.until(lambda: chat.session.settings.reasoning == "off")
        for wrong in ("medium", "budget", "budget x", "off now"):
            await chat.send(f"/think {wrong}")
            await chat.until(
                lambda wrong=wrong: (
                    f"“{wrong}”" in chat.transcript() or "budget cannot" in chat.transcript()
                )
            )
        assert chat.session.settings.reasoning == "off"
        await chat.press(*"/think ")
        await chat.until(
            lambda: "budget" in chat.screen() and "medium" not in chat.screen().split("/think ")[-1]
        )


async def test_a_model_that_knows_no_thoughts_says_so() -> None:
    async with chatting() as chat:
        for asked in ("/think", "/think off", "/show"):
            await chat.send(asked)
        await chat.until(lambda: chat.transcript().count("chat template knows no thoughts") == 3)
        assert chat.session.settings.reasoning == "auto"


async def test_one_key_shows_answers_as_they_were_written() -> None:
    thought = "<|channel|>analysis<|message|>Hm.<|end|>"
    raw = f"{thought}<|start|>assistant<|channel|>final<|message|>**Blue**."
    marks = AnswerMarks(speech="harmony")
    async with chatting(answers=[raw], dialect=Dialect(True, marks), size=(140, 30)) as chat:
        await chat.ask("why?")
        assert "thought for 1" in chat.transcript()
        assert "<|" not in chat.transcript()
        await chat.press("f3")
        assert raw in "".join(line.removeprefix("  ") for line in chat.transcript().split("\n"))
        await chat.send("/raw")
        await chat.until(lambda: "<|" not in chat.transcript())


def test_every_command_has_other_words_in_the_palette() -> None:
    assert set(WORDS) == {one.name for one in COMMANDS}


@pytest.mark.slow
async def test_the_palette_finds_how_to_ask_for_thoughts() -> None:
    async with chatting((120, 40)) as chat:
        await chat.press("ctrl+p", *"reasoning")
        await chat.until(lambda: "Think" in chat.screen())
        await chat.press("escape")
