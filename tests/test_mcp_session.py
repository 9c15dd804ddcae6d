"""A session with tools, which goes on after their results."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from unittest.mock import Mock

import pytest

from localspec.chat.conversation import Role, tool_result
from localspec.chat.events import TurnEnd, TurnEvent
from localspec.chat.prompt.tool_prompt import ToolPrompt
from localspec.chat.session.session import Session
from localspec.engine.cancel import Cancel
from localspec.engine.record.stats import GenerationStats
from localspec.errors import PromptTooLong
from localspec.tools.tool_definitions import ToolDefinition
from localspec.tools.tool_offer import ToolOffer
from tests.fakes import ended, fake_session, rounds_of

SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
READ = ToolDefinition("files", "read", description="Reads a file.", parameters=SCHEMA)
MANY = [ToolDefinition("files", f"read{i}", description="Reads.") for i in range(20)]
ROLES = [Role.USER, Role.ASSISTANT, Role.TOOL, Role.ASSISTANT]


def stats(turn: Iterator[TurnEvent]) -> GenerationStats:
    return next(event.stats for event in turn if isinstance(event, TurnEnd))


def test_tools_that_take_more_than_a_twentieth_of_the_context_are_searched() -> None:
    many = ToolOffer(MANY)
    small, _ = fake_session(n_ctx=20_000)
    large, _ = fake_session(n_ctx=200_000)
    costs = small.offer(many.described, many.search)
    assert costs.searched
    assert 0 < costs.total < costs.whole
    assert costs.whole > 1000
    assert len(costs.each) == 20
    costs = large.offer(many.described, many.search)
    assert not costs.searched
    assert costs.total == costs.whole < 10_000
    assert large.offer((), ()).total == 0
    few = ToolOffer([READ])
    tiny, _ = fake_session(n_ctx=1000)
    costs = tiny.offer(few.described, few.search)  # the search would cost more than the tool
    assert not costs.searched
    assert costs.total == costs.whole > 1000 // 20


def test_results_take_at_most_what_the_context_can_hold() -> None:
    hello = [*rounds_of(b"hello"), ended()]
    session, engine = fake_session(*[hello] * 40)
    list(session.turn("Hello.", Cancel()))
    long = "a line of a long file\n" * 200
    for _ in range(30):
        before = list(session.messages)
        try:
            list(session.go_on([tool_result(long, "read", "{}")], Cancel()))
        except PromptTooLong:
            assert session.messages == before
            break
        result, answer = session.messages[-2:]
        assert (result.role, answer.content) == (Role.TOOL, "hello")
        assert "characters left out" in result.content
        assert len(result.content) < 1000 // 4 + 50
        assert len(engine.prompts[-1]) <= 1000
    else:
        raise AssertionError("the context never filled")
    assert len(before) >= 6
    list(session.turn("And now?", Cancel()))  # the oldest turn is left out
    assert session.messages[-1].content == "hello"


@pytest.mark.parametrize(
    ("asked", "size", "kept", "most"),
    [
        (1000, 7000, 500, 1750),
        (1300, 7000, 250, 1750),
        (1600, 7000, 62, 2000),  # not even the least share leaves the room
        (1650, 100, 100, 2000),
    ],
)
def test_results_leave_an_answer_its_room_where_that_can_be(
    asked: int, size: int, kept: int, most: int
) -> None:
    session, engine = fake_session(*[[*rounds_of(b"hello"), ended()]] * 2, n_ctx=2000)
    list(session.turn("x" * asked, Cancel()))
    list(session.go_on([tool_result("word " * (size // 5), "read", "{}")], Cancel()))
    assert len(session.messages[-2].content) in range(kept, kept + 50)
    assert asked < len(engine.prompts[-1]) <= most


@pytest.mark.parametrize("spoilt", [TypeError("odd"), ("%llguidance {}\nstart: nothing", ())])
def test_tools_whose_grammar_is_spoilt_are_offered_without(
    monkeypatch: pytest.MonkeyPatch, spoilt: Exception | tuple[str, tuple[str, ...]]
) -> None:
    made = Mock(side_effect=[spoilt])
    monkeypatch.setattr(ToolPrompt, "grammar", made)
    session, _ = fake_session(*[[*rounds_of(b"hello"), ended()]] * 2, n_ctx=20_000)
    one = ToolOffer([READ])
    session.offer(one.described, one.search)
    for _ in range(2):
        list(session.turn("Hello.", Cancel()))
        assert session.messages[-1].content == "hello"
    assert made.call_count == 1


@pytest.mark.slow
def test_a_model_goes_on_after_the_results_and_reads_only_what_is_new(
    starter_session: Session,
) -> None:
    session, one = starter_session, ToolOffer([READ])
    settings = session.settings
    session.settings = replace(settings, n_predict=4)
    session.open(())
    session.offer(one.described, one.search)
    first = stats(session.turn("What is in a.txt?", Cancel()))
    result = tool_result("one\ntwo", "files__read", '{"path": "a.txt"}')
    later = stats(session.go_on([result], Cancel()))
    assert [message.role for message in session.messages] == ROLES
    assert later.prefill_cached >= first.prompt_tokens - 1
    session.settings = settings
    session.offer((), ())
    session.open(())
