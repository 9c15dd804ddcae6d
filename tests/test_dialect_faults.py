"""Faults of dialects that users met (F2 to F8), each with the real template if it has one."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Collection
from functools import cache
from typing import Any

import pytest
from msgspec import structs

from localspec.chat.conversation import Message, Role
from localspec.chat.dialects import AnswerReading, Call, Dialect
from localspec.chat.dialects.learning.learner import learnt
from localspec.chat.prompt.call_notation import CallNotation
from localspec.chat.prompt.renderer import TemplateSource
from localspec.chat.prompt.template import ChatTemplate
from localspec.chat.session.completions import _next_messages
from localspec.chat.settings import ChatSettings
from localspec.engine.cancel import Cancel
from localspec.engine.grammars.grammar_reader import require_grammar
from localspec.errors import LocalspecError
from localspec.serve.core.request_tools import RequestTools
from localspec.serve.core.requests import ConversationRequest, parsed
from localspec.serve.protocols.chat_completions import ChatRequest
from tests.fakes import FakeModel, ended, fake_session, renderer, rounds_of
from tests.support.golden_answers import BOS, EOS
from tests.support.llama_source import LEARNT, USUAL, templates, usual_templates
from tests.support.pairwise import usually

TEMPLATES = templates()
needs_templates = pytest.mark.skipif(not TEMPLATES, reason="llama.cpp's templates are not here")
SYSTEM = Message(Role.SYSTEM, "Speak like a pirate.")
USER = Message(Role.USER, "What is a jib?")
ANSWER = Message(Role.ASSISTANT, "A sail, matey.")
# SmolVLM's, shortened by its images.
PARTS_ONLY = (
    "<|im_start|>{% for message in messages %}{{ message['role'] | capitalize }}:"
    "{% for line in message['content'] %}{% if line['type'] == 'text' %} {{ line['text'] }}"
    "{% endif %}{% endfor %}<end_of_utterance>\n{% endfor %}"
    "{% if add_generation_prompt %}Assistant:{% endif %}"
)
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}


def chat_template(text: str, **model: Any) -> ChatTemplate:
    return ChatTemplate(FakeModel(chat_template=text, **model), renderer())  # type: ignore[arg-type]


@cache
def dialect_of(name: str) -> Dialect:
    return learnt(renderer(), TemplateSource(TEMPLATES[name], BOS, EOS), seconds=30, folder=LEARNT)


@needs_templates
def test_f2_gpt_oss_shows_no_channels_and_its_second_turn_is_taken() -> None:
    raw = (
        "<|channel|>analysis<|message|>A jib?<|end|>"
        "<|start|>assistant<|channel|>final<|message|>A sail."
    )
    answer = [*rounds_of(raw.encode()), ended()]
    model = FakeModel(chat_template=TEMPLATES["openai-gpt-oss-120b"])
    session, _ = fake_session(answer, answer, model=model)
    list(session.turn("What is a jib?", Cancel()))
    assert session.dialect.said(session.messages[-1].content) == AnswerReading("A jib?", "A sail.")
    list(session.turn("And a boom?", Cancel()))  # its template refused this
    assert len(session.messages) == 4


class Mistral(FakeModel):
    """`[THINK]` and `[/THINK]` are control tokens, without any text."""

    MARKS = {400: "[THINK]", 401: "[/THINK]"}  # noqa: RUF012

    def piece(self, token: int, *, special: bool = False) -> bytes:
        if token in self.MARKS:
            return self.MARKS[token].encode() if special else b""
        return super().piece(token, special=special)

    def is_mark(self, token: int) -> bool:
        return token in self.MARKS or super().is_mark(token)


@needs_templates
def test_f3_marks_that_are_control_tokens_do_not_vanish() -> None:
    name = "mistralai-Ministral-3-14B-Reasoning-2512"
    ids = [400, *b"A jib?", 401, *b"A sail."]
    session, _ = fake_session(
        [*rounds_of(ids), ended()], model=Mistral(chat_template=TEMPLATES[name])
    )
    list(session.turn("What is a jib?", Cancel()))
    content = session.messages[-1].content
    assert content == "[THINK]A jib?[/THINK]A sail."
    assert session.dialect.said(content) == AnswerReading("A jib?", "A sail.")


@needs_templates
def test_f4_not_every_template_with_tool_call_is_hermes() -> None:
    calls = {
        "Qwen3-Coder": (
            "<tool_call>\n<function=get_weather>\n<parameter=city>\nOslo\n</parameter>\n"
            "</function>\n</tool_call>"
        ),
        "GLM-4.6": (
            "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Oslo</arg_value>\n"
            "</tool_call>"
        ),
        "MiniMax-M2": (
            '<minimax:tool_call>\n<invoke name="get_weather">\n<parameter name="city">Oslo'
            "</parameter>\n</invoke>\n</minimax:tool_call>"
        ),
    }
    for name, raw in calls.items():
        read = dialect_of(name).read(raw, [WEATHER])
        assert read == AnswerReading(None, None, [Call("get_weather", {"city": "Oslo"})]), name
        hermes = '<tool_call>\n{"name": '
        assert dialect_of(name).marks.calls[0].style == "tags"
        assert hermes not in box(name, tool_choice="required").grammar


@needs_templates
@pytest.mark.parametrize(
    ("name", "raw"),
    [
        ("LFM2-8B-A1B", '<|tool_call_start|>[get_weather(city="Oslo")]<|tool_call_end|>'),
        ("LFM2.5-Instruct", '<|tool_call_start|>[get_weather(city="Oslo")]<|tool_call_end|>'),
        (
            "ibm-granite-granite-3.3-2B-Instruct",
            '<|tool_call|>[{"name": "get_weather", "arguments": {"city": "Oslo"}}]',
        ),
        (
            "fireworks-ai-llama-3-firefunction-v2",
            ' functools[{"name": "get_weather", "arguments": {"city": "Oslo"}}]',
        ),
    ],
)
def test_f4_a_notation_that_the_prompt_asks_for_is_the_one_that_is_enforced(
    name: str, raw: str
) -> None:
    """These templates describe it, or only their models know it."""
    read = dialect_of(name).read(raw, [WEATHER])
    assert read == AnswerReading(None, None, [Call("get_weather", {"city": "Oslo"})])
    required = box(name, tool_choice="required")
    assert required.native
    assert "<tool_call>" not in required.grammar
    assert box(name).after != "functools"  # a word of any text on Python


LFM_CALL = '<|tool_call_start|>[get_weather(city="Oslo", days=3)]<|tool_call_end|>'


@needs_templates
@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("LFM2-8B-A1B", LFM_CALL),
        ("LFM2.5-Instruct", LFM_CALL),
        (
            "ibm-granite-granite-3.3-2B-Instruct",
            '<|tool_call|>[{"name": "get_weather", "arguments": {"city": "Oslo", "days": 3}}]',
        ),
    ],
)
def test_an_earlier_call_that_the_template_does_not_write_is_told_as_the_model_wrote_it(
    name: str, written: str
) -> None:
    """These were told in Hermes' notation, which the model does not use."""
    call = {"function": {"name": "get_weather", "arguments": '{"city": "Oslo", "days": 3}'}}
    talk: list[Any] = [
        USER,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "Sunny"},
    ]
    found = request(talk, tools=[WEATHER]).asked(
        ChatSettings(), box(name), dialect_of(name).thinking
    )
    text = chat_template(TEMPLATES[name]).render(
        found.messages, variables=found.variables, give_up=False
    )
    assert written in text
    assert "<tool_call>" not in text
    want = Call("get_weather", {"city": "Oslo", "days": 3})
    assert dialect_of(name).read(written, [WEATHER]) == AnswerReading(None, None, [want])


KIMI = "moonshotai-Kimi-K2"
# As Moonshot publishes it; llama.cpp's counts the calls of each turn.
BY_ID = ("'functions.' + func_name + ':' + loop.index0|string", "tool_call['id']")


@needs_templates
@pytest.mark.parametrize(
    ("own", "numbers"), [(True, ["0", "1", "0"]), (False, ["0", "1", "2"])], ids=["own", "by id"]
)
def test_kimi_reads_results_by_the_ids_of_its_calls(own: bool, numbers: list[str]) -> None:
    """They had ids that it never wrote."""
    source = TEMPLATES[KIMI] if own else TEMPLATES[KIMI].replace(*BY_ID)
    assert own or source != TEMPLATES[KIMI]
    dialect = learnt(renderer(), TemplateSource(source, BOS, EOS), seconds=30, folder=LEARNT)
    marks = dialect.marks
    assert (marks.writes, marks.several, marks.numbered) == (
        True,
        True,
        "turn" if own else "conversation",
    )
    assert marks.calls[0] == dialect_of(KIMI).marks.calls[0]
    cities = ("Oslo", "Lima", "Bonn")
    calls: list[Any] = [
        {"id": city, "function": {"name": "get_weather", "arguments": {"city": city}}}
        for city in cities
    ]
    first, second, third = (
        {"role": "tool", "content": f"{city} is sunny", "tool_call_id": city} for city in cities
    )
    asks, again = ({"role": "assistant", "tool_calls": some} for some in (calls[:2], calls[2:]))
    asked = request([USER, asks, second, first, again, third], tools=[WEATHER])
    tools = RequestTools.of(asked.tools, asked.choice, native=True, parallel=True, marks=marks)
    found = asked.asked(ChatSettings(), tools, dialect.thinking)
    text = chat_template(source).render(found.messages, variables=found.variables, give_up=False)
    ids = [f"functions.get_weather:{n}" for n in numbers]
    assert re.findall(r"<\|tool_call_begin\|>([^<]+)<", text) == ids
    results = re.findall(r"## Return of ([\w.:]+)\\n(\w+)", text)
    assert sorted(results, key=lambda one: cities.index(one[1])) == [*zip(ids, cities, strict=True)]
    # The prompt that is expected next goes on counting where this one ends.
    begins = text.rindex(marks.calls[0].before[0])
    said = text[begins : text.index("<|im_end|>", begins)]
    *_, asks_more, result = _next_messages(found, said, dialect)
    number = "0" if own else "3"
    assert asks_more.more["tool_calls"][0]["id"] == f"functions.get_weather:{number}"
    assert result.more["tool_call_id"].startswith("functions.get_weather:")


def test_a_call_without_a_result_takes_none_of_a_later_call() -> None:
    """Some clients count their ids anew in each turn, and calls may be interrupted."""
    marks = structs.replace(dialect_of(KIMI).marks, numbered="conversation")
    call = {"id": "call_0", "function": {"name": "get_weather", "arguments": {}}}
    asks = Message(Role.ASSISTANT, "", more={"tool_calls": [call]})
    result = Message(Role.TOOL, "sunny", more={"tool_call_id": "call_0"})
    told = [*CallNotation(native=True, marks=marks).numbered([asks, asks, result])]
    assert told[-1].more["tool_call_id"] == "functions.get_weather:1"


@needs_templates
def test_firefunction_is_told_the_date_and_the_tools() -> None:
    """Its template refused every conversation: it requires both, under its own names."""
    template = chat_template(TEMPLATES["fireworks-ai-llama-3-firefunction-v2"])
    assert "Today is " in template.render([USER], give_up=False)
    assert "get_weather" in template.render([USER], variables={"tools": [WEATHER]}, give_up=False)


def box(name: str, **more: Any) -> RequestTools:
    """The tools of a request with one tool, as prepared for the model of a template."""
    asked = request([USER], tools=[WEATHER], **more)
    marks = dialect_of(name).marks
    return RequestTools.of(
        asked.tools,
        asked.choice,
        native=marks.explained,
        parallel=True,
        marks=marks,
    )


def request(messages: list[Any], **more: Any) -> ConversationRequest:
    plain = [
        {"role": one.role.value, "content": one.content} if isinstance(one, Message) else one
        for one in messages
    ]
    return parsed(json.dumps({"messages": plain, **more}).encode(), ChatRequest).core()


@pytest.mark.slow
@needs_templates
@pytest.mark.parametrize("name", TEMPLATES)
def test_f5_no_template_refuses_what_an_earlier_call_holds(name: str) -> None:
    """Nor does it refuse tools without a description, which OpenAI's protocol makes optional."""
    talk: list[Any] = [USER]
    for i, given in enumerate(['{"city": "Oslo"}', "", '{"city": "Os', None, {"city": "Oslo"}]):
        call = {"function": {"name": "get_weather", "arguments": given}}
        talk += [
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "content": f"Sunny and warm: {i}", "tool_call_id": "unknown"},
        ]
    found = request(talk, tools=[WEATHER]).asked(
        ChatSettings(), box(name), dialect_of(name).thinking
    )
    text = chat_template(TEMPLATES[name]).render(
        found.messages, variables=found.variables, give_up=False
    )
    assert all(f"Sunny and warm: {i}" in text for i in range(5))
    assert text.count("get_weather") >= 5


@needs_templates
@pytest.mark.parametrize(
    ("names", "named"), usually(itertools.product([USUAL, TEMPLATES], [True, False]), (USUAL, True))
)
def test_f5_no_template_refuses_several_calls_in_a_turn(
    names: Collection[str], named: bool
) -> None:
    """Llama's templates take one call a turn: each call becomes a turn, followed by its result."""
    cities = ("Oslo", "Lima", "Bonn")
    calls: list[Any] = [
        {"function": {"name": "get_weather", "arguments": json.dumps({"city": city})}}
        for city in cities
    ]
    results = [{"role": "tool", "content": f"{city} is sunny"} for city in cities]
    if named:
        for i, (call, result) in enumerate(zip(calls, results, strict=True)):
            call["id"] = result["tool_call_id"] = f"call_{i}"
        results.reverse()  # they may come in any order
    turn = {"role": "assistant", "content": "I look.", "tool_calls": calls}
    alone = 0
    for name in names:
        tools = box(name)
        found = request([USER, turn, *results], tools=[WEATHER]).asked(
            ChatSettings(), tools, dialect_of(name).thinking
        )
        text = chat_template(TEMPLATES[name]).render(
            found.messages, variables=found.variables, give_up=False
        )
        assert all(text.count(f"{city} is sunny") == 1 for city in cities), name
        if tools.one_at_a_time:
            alone += 1
            places = [text.index(part) for city in cities for part in (f'"{city}"', f"{city} is")]
            assert places == sorted(places), name
    assert alone >= (3 if names is TEMPLATES else 1)


def test_f6_a_template_that_takes_only_parts_gets_them() -> None:
    parts = chat_template(PARTS_ONLY)
    assert parts.render([SYSTEM, USER, ANSWER, USER]) == (
        "<|im_start|>System: Speak like a pirate.<end_of_utterance>\n"
        "User: What is a jib?<end_of_utterance>\nAssistant: A sail, matey.<end_of_utterance>\n"
        "User: What is a jib?<end_of_utterance>\nAssistant:"
    )
    assert parts.notices == []


@needs_templates
@pytest.mark.parametrize("name", usual_templates())
def test_f6_and_f7_every_message_arrives_in_every_real_template(name: str) -> None:
    """Even a lone system message: where the role is refused or dropped, it becomes the user's."""
    template = chat_template(TEMPLATES[name])
    for talk in ([USER], [SYSTEM, USER], [SYSTEM, USER, ANSWER, USER], [SYSTEM]):
        text = template.render(talk, give_up=False)
        assert all(one.content in text for one in talk), talk


def test_f6_a_message_that_is_left_out_is_an_error() -> None:
    drops = "{% for m in messages %}{% if loop.first %}[{{ m.content }}]{% endif %}{% endfor %}"
    template = chat_template(drops)
    assert template.render([USER]) == "[What is a jib?]"
    with pytest.raises(LocalspecError, match="leaves out a message") as caught:
        template.render([USER, ANSWER, Message(Role.USER, "And a boom?")])
    assert "--chat-template" in caught.value.remedy


@needs_templates
def test_f7_a_system_prompt_alone_is_answered() -> None:
    for name in ("google-gemma-2-2b-it", "mistralai-Mistral-Nemo-Instruct-2407"):
        template = chat_template(TEMPLATES[name])
        assert SYSTEM.content in template.render([SYSTEM], give_up=False)
        assert "no system prompt" in template.notices[0]


@pytest.mark.parametrize(
    "schema", [{"$ref": "https://example.org/x.json"}, {"$ref": "#/$defs/missing"}]
)
def test_f8_a_tools_schema_that_cannot_be_enforced_does_not_end_the_request(schema: Any) -> None:
    tools = [{"type": "function", "function": {"name": "odd", "parameters": schema}}, WEATHER]
    form = {"type": "json_schema", "json_schema": {"schema": {"type": "object"}}}
    asked = request([USER], tools=tools, response_format=form)
    toolbox = RequestTools.of(asked.tools, native=True, parallel=True)
    found = asked.asked(ChatSettings(), toolbox)
    require_grammar(found.settings.grammar)
    assert found.variables["tools"][0]["function"]["parameters"] == schema
