"""Thoughts of reasoning models: told apart while they stream, folded, counted, kept."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.chat.dialects import Dialect, Says, Thinks
from tests.support.chat_pilot import chatting
from tests.support.scripted_session import Gate


def split(text: str, cuts: list[int], prompt: str) -> tuple[str, str]:
    reader = Dialect().reader((), prompt=prompt, exact=True)
    places = sorted({min(cut, len(text)) for cut in cuts})
    pieces = [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)]
    found = [one for piece in pieces for one in reader.feed(piece)] + [*reader.end()]
    thought = "".join(one.text for one in found if isinstance(one, Thinks))
    return thought, "".join(one.text for one in found if isinstance(one, Says))


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
        assert "tokens" in chat.transcript()
        assert "wonder" not in chat.transcript()
        await chat.press("f11")
        await chat.until(lambda: "▾ thinking …" in chat.transcript())
        assert "┊ First" in chat.transcript()
        chat.session.gate.open()
        await chat.until(chat.ready)
        assert "It is blue." in chat.transcript()
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
        conversation = chat.app.shelf.record.header.id
    async with chatting(archive=archive, resume=conversation) as chat:
        await chat.until(lambda: "▌ why?" in chat.transcript())
        assert head in chat.transcript()
        assert "wonder" not in chat.transcript()
        # The session knows the whole text: what of it the model sees again is the template's.
        assert chat.session.messages[-1].content == ANSWER


async def test_an_answer_that_begins_inside_a_thought(tmp_path: Path) -> None:
    answer = ANSWER.removeprefix("<think>")
    async with chatting(answers=[answer], dialect=Dialect(prefill="<think>")) as chat:
        await chat.ask("why?")
        assert "▸ thought" in chat.transcript()
        assert "wonder" not in chat.transcript()
        assert "It is blue." in chat.transcript()
