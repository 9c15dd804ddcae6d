"""The protocols of `localspec serve`: one conversation is answered alike in all of them."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from msgspec import structs

from localspec.chat.dialects import ContentPiece, Dialect, ThoughtPiece
from localspec.chat.events import Origin, PromptMade, RoundText, Span, TurnEnd, TurnEvent
from localspec.chat.prompt.call_notation import BEGIN, END, PLAIN
from localspec.chat.prompt.renderer import RenderBudget, TemplateRenderer, TemplateSource
from localspec.chat.settings import ChatSettings
from localspec.engine.record.stats import FinishReason, GenerationStats
from localspec.serve.core.replies import IncomingAnswer
from localspec.serve.core.request_tools import NamedFunction
from localspec.serve.core.requests import ConversationRequest, parsed, require_sendable
from localspec.serve.core.told_messages import ToldCall, ToldMessage, in_turns
from localspec.serve.protocols.anthropic_messages import MessagesRequest, error_of
from localspec.serve.protocols.chat_completions import ChatRequest
from localspec.serve.protocols.openai_responses import ResponsesRequest
from localspec.serve.protocols.protocol_types import ProtocolRequest, ReplyWriter, encoded, unread
from localspec.serve.protocols.response_tools import OfferedTools
from localspec.serve.refusals import Refusal, unavailable
from tests.fakes import rounds_of
from tests.support.conformance import asked_all, of_blocks, of_items, require_alike, types_of
from tests.support.endpoint import Serving
from tests.support.lazily import Lazily
from tests.support.talks import (
    CHAT,
    CLOCK,
    MESSAGES,
    PATHS,
    RESPONSES,
    WEATHER,
    Talk,
    Turn,
    body,
    events,
    heard,
)

if TYPE_CHECKING:
    import anthropic
    import openai
else:
    anthropic, openai = Lazily("anthropic"), Lazily("openai")

STORY = Talk((Turn("user", "Tell me a story."),))
KEY = "abcdefghijklmnopqrst"
KINDS: dict[str, type[ProtocolRequest]] = {
    CHAT: ChatRequest,
    MESSAGES: MessagesRequest,
    RESPONSES: ResponsesRequest,
}


@pytest.fixture(scope="module")
def served() -> Iterator[Serving]:
    with Serving("--seed", "7", "--queue", "64") as one:
        yield one


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """An endpoint that wants a key, and answers only under its pair's name."""
    keys = tmp_path_factory.mktemp("keys") / "keys"
    keys.write_text(f"{KEY}\n")
    with Serving("--api-key-file", str(keys), "--strict-model") as one:
        yield one


@pytest.fixture
def claude(served: Serving) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=served.url, api_key="none", max_retries=0) as one:
        yield one


@pytest.fixture
def client(served: Serving) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as one:
        yield one


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(48))
def test_a_conversation_is_answered_alike_in_all_protocols(served: Serving, seed: int) -> None:
    """A few of the 300 conversations of `python -m tests.support.endpoint_sweep`."""
    require_alike(served, seed)


def test_with_the_servers_seed_all_protocols_draw_the_same(served: Serving) -> None:
    """Two of the protocols have no field for a seed, so the server's is used."""
    talk = replace(STORY, extra={"temperature": 0.9})
    answers = asked_all(served, talk)
    assert len({one.text for one in answers}) == 1
    other = asked_all(served, talk, seed=8)
    assert len({one.text for one in other}) == 1
    assert other[0].text != answers[0].text


@pytest.mark.parametrize("path", PATHS)
def test_a_stream_that_is_given_up_ends_the_work(served: Serving, path: str) -> None:
    endless = replace(STORY, limit=900, extra={"logit_bias": {"2": -100}})
    data = json.dumps(body(path, endless, stream=True)).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", served.port), timeout=30) as sock:
        sock.sendall(head.encode() + data)
        seen = b""
        while b"delta" not in seen:
            seen += sock.recv(65536)
    served.until_free(5)


# --- the clients ------------------------------------------------------------------------------


def test_anthropics_client_gets_what_openais_does(
    claude: anthropic.Anthropic, client: openai.OpenAI, served: Serving
) -> None:
    expected = served.chat(max_tokens=24)["choices"][0]["message"]["content"]
    asked: Any = {"model": "toy", "max_tokens": 24, "extra_body": {"temperature": 0}}
    asked["messages"] = [{"role": "user", "content": "Tell me a story."}]
    whole = claude.messages.create(**asked)
    assert [one.type for one in whole.content] == ["text"]
    with claude.messages.stream(**asked) as stream:
        assert "".join(stream.text_stream) == expected
        message = stream.get_final_message()
    assert [one.text for one in message.content if one.type == "text"] == [expected]
    assert [one.text for one in whole.content if one.type == "text"] == [expected]
    assert message.stop_reason == whole.stop_reason == "max_tokens"
    assert (whole._request_id or "").startswith("req_")
    count = claude.messages.count_tokens(model="toy", messages=asked["messages"])
    assert anthropic.types.MessageTokensCount.model_validate(count.model_dump()).input_tokens
    read = whole.usage.input_tokens + (whole.usage.cache_read_input_tokens or 0)
    assert read == count.input_tokens
    assert next(iter(claude.models.list())).id == "toy"

    given: Any = {"model": "toy", "input": "Tell me a story.", "temperature": 0}
    response = client.responses.create(**given, max_output_tokens=24)
    assert response.output_text == expected
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"
    with client.responses.stream(**given, max_output_tokens=24) as events_:
        texts = [one.delta for one in events_ if one.type == "response.output_text.delta"]
    assert "".join(texts) == expected


def test_a_call_goes_to_the_client_and_its_result_comes_back(
    claude: anthropic.Anthropic, client: openai.OpenAI, served: Serving
) -> None:
    tools: Any = [{"name": "weather", "input_schema": WEATHER, "description": "Of a city."}]
    messages: Any = [{"role": "user", "content": "How is the weather?"}]
    asked: Any = {"model": "toy", "max_tokens": 90, "extra_body": {"temperature": 0}}
    asked["tools"] = tools
    choice: Any = {"type": "tool", "name": "weather", "disable_parallel_tool_use": True}
    with claude.messages.stream(**asked, messages=messages, tool_choice=choice) as stream:
        message = stream.get_final_message()
    assert message.stop_reason == "tool_use"
    (call,) = message.content
    assert call.type == "tool_use"
    assert set(call.input) == {"city"}
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "Rain."}
    messages += [
        {"role": "assistant", "content": message.content},
        {"role": "user", "content": [result, {"type": "text", "text": "So?"}]},
    ]
    again = claude.messages.create(**asked, messages=messages, tool_choice={"type": "none"})
    assert again.stop_reason in ("end_turn", "max_tokens")

    flat: Any = [{"type": "function", "name": "weather", "parameters": WEATHER, "strict": True}]
    items: Any = [{"role": "user", "content": "How is the weather?"}]
    given: Any = {"model": "toy", "tools": flat, "temperature": 0, "max_output_tokens": 90}
    needed: Any = {"type": "function", "name": "weather"}
    with client.responses.stream(
        **given, input=items, tool_choice=needed, parallel_tool_calls=False
    ) as stream_:
        response = stream_.get_final_response()
    (item,) = response.output
    assert item.type == "function_call"
    assert json.loads(item.arguments) == call.input
    assert item.id != item.call_id
    output: Any = {"type": "function_call_output", "call_id": item.call_id, "output": "Rain."}
    items += [item, output, {"role": "user", "content": "So?"}]
    last = client.responses.create(**given, input=items, tool_choice="none")
    (text,) = (one.text for one in again.content if one.type == "text")
    assert last.output_text == text


def test_limits_of_no_token_and_of_one(served: Serving) -> None:
    talk = Talk(STORY.turns, {"weather": WEATHER, "clock": CLOCK})
    count = json.loads(served.ask(f"{MESSAGES}/count_tokens", body(MESSAGES, talk))[2])
    for limit in (0, 1):
        for one in asked_all(served, replace(talk, limit=limit)):
            assert one.finish == "length"
            assert one.usage == (count["input_tokens"], limit)


@pytest.mark.few(1)
@pytest.mark.parametrize("path", PATHS)
def test_the_turns_of_an_agent_read_only_what_is_new(served: Serving, path: str) -> None:
    """The template lays out the toy's calls differently, so the toy's own calls are read again."""
    text = f"The weather of every city, asked for through {path}. " * 4
    tools = {"weather": WEATHER}
    turns = [Turn("system", text), Turn("user", "How is it?")]
    held = 0
    for i in range(3):
        talk = Talk((*turns,), tools, "required", parallel=False, limit=120)
        document = json.loads(served.ask(path, body(path, talk))[2])
        found, timings = heard(path, document), document["timings"]
        assert found.finish == "calls"
        assert timings["cache_n"] >= 0.95 * held, (i, timings)
        held = found.usage[0]
        ((name, given),) = found.calls
        turns.append(Turn("assistant", found.text, "", ((f"call_{i}", name, given),)))
        turns.append(Turn("tool", f"It is {i} degrees, and windy.", result_of=f"call_{i}"))


# --- who may ask, and errors ------------------------------------------------------------------


@pytest.mark.parametrize("path", [*PATHS, f"{MESSAGES}/count_tokens", "/messages", "/responses"])
@pytest.mark.parametrize("headers", [{"Host": "evil.example"}, {"Origin": "http://evil.example"}])
def test_the_rules_hold_for_all_addresses(
    served: Serving, path: str, headers: dict[str, str]
) -> None:
    status, _, data = served.ask(path, {}, headers)
    assert status == 403
    error = json.loads(data)["error"]
    assert error["type"] == "permission_error"


@pytest.mark.slow
def test_a_key_may_come_under_either_name(strict: Serving) -> None:
    for headers, status in (
        ({}, 401),
        ({"x-api-key": "wrong"}, 401),
        ({"x-api-key": KEY}, 200),
        ({"Authorization": f"Bearer {KEY}"}, 200),
        ({"Authorization": "Bearer none", "x-api-key": KEY}, 200),
    ):
        for path in PATHS:
            assert strict.ask(path, body(path, STORY), headers)[0] == status
    document = json.loads(strict.ask(MESSAGES, body(MESSAGES, STORY))[2])
    assert document["error"]["type"] == "authentication_error"
    assert document["request_id"].startswith("req_")


@pytest.mark.parametrize("stream", [False, True])
def test_errors_have_the_form_of_their_protocol(
    claude: anthropic.Anthropic, client: openai.OpenAI, served: Serving, stream: bool
) -> None:
    long: Any = [{"role": "user", "content": "a " * 2000}]
    with pytest.raises(anthropic.BadRequestError) as caught:
        claude.messages.create(model="toy", messages=long, max_tokens=4, stream=stream)
    error: Any = caught.value.body
    assert error["type"] == "error"
    assert error["error"]["type"] == "invalid_request_error"
    tokens, most = error["error"]["message"].removeprefix("prompt is too long: ").split(" > ")
    assert most == "1024 maximum"
    assert int(tokens.removesuffix(" tokens")) > 1024
    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.create(model="toy", input=long)
    assert (refused.value.code, refused.value.param) == ("context_length_exceeded", "input")
    with pytest.raises(openai.BadRequestError, match="send the whole input"):
        client.responses.create(
            model="toy", input="x", previous_response_id="resp_1", stream=stream
        )
    with pytest.raises(anthropic.BadRequestError, match="max_tokens"):
        claude.post("/v1/messages", body={"messages": long}, cast_to=object)


def test_a_stream_of_responses_tells_of_a_prompt_that_does_not_fit(served: Serving) -> None:
    """Codex looks for that event to sum up; after the status alone it gives up."""
    status, _, data = served.ask(RESPONSES, {"input": "a " * 2000, "stream": True})
    assert status == 200
    found = events(data)
    names = ["response.created", "response.in_progress", "response.failed"]
    assert [name for name, _ in found] == names
    error = of_items(found)["error"]
    assert error["code"] == "context_length_exceeded"
    assert "maximum context length is 1024 tokens" in error["message"]
    served.until_free(5)


def test_a_websocket_is_refused_so_that_codex_goes_on_without(served: Serving) -> None:
    asked = b"GET /v1/responses HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\n"
    asked += b"Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    reply = served.raw(asked + b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n", 5)
    assert b" 404 " in reply[:20]


def test_codex_finds_a_list_of_models(served: Serving) -> None:
    assert json.loads(served.ask("/v1/models?client_version=0.171.0")[2])["models"] == []


def test_a_model_of_another_name_is_answered_and_said(served: Serving) -> None:
    for path in PATHS:
        status, headers, data = served.ask(path, body(path, STORY, model="claude-fable-9"))
        assert (status, headers["x-localspec-model"]) == (200, "toy")
        assert json.loads(data)["model"] == "toy"
        status, headers, _ = served.ask(path, body(path, STORY, model="toy"))
        assert "x-localspec-model" not in headers


@pytest.mark.slow
def test_with_strict_model_other_names_are_refused(strict: Serving) -> None:
    for path in PATHS:
        asked = body(path, STORY, model="gpt-4")
        status, _, data = strict.ask(path, asked, {"x-api-key": KEY})
        assert status == 404
        assert "only toy" in json.loads(data)["error"]["message"]


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (503, "overloaded_error"),
        (500, "api_error"),
        (413, "request_too_large"),
        (408, "invalid_request_error"),
    ],
)
def test_what_anthropic_calls_an_error(status: int, kind: str) -> None:
    refusal = unavailable("full", 3) if status == 503 else Refusal(status, "x")
    told_as, document = error_of(refusal)
    assert document["error"]["type"] == kind
    assert told_as == (529 if status == 503 else status)


# --- what a prompt becomes --------------------------------------------------------------------


def core(path: str, **fields: Any) -> ConversationRequest:
    found = parsed(json.dumps(fields).encode(), KINDS[path]).core()
    assert isinstance(found, ConversationRequest)
    return found


def prompt(path: str, **fields: Any) -> list[tuple[str, str]]:
    """The messages that the template gets."""
    asked, _ = core(path, **fields).prepared(ChatSettings(), Dialect(marks=PLAIN))
    return [(str(one.more.get("role", one.role)), one.content) for one in asked.messages]


def message_prompt(messages: list[Any], **fields: Any) -> list[tuple[str, str]]:
    return prompt(MESSAGES, messages=messages, max_tokens=4, **fields)


def test_a_late_system_message_keeps_the_prefix() -> None:
    """Moved to the front, it would change the prefix that the caches hold."""
    user, answer = {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}
    late = {"role": "system", "content": "It is late."}
    before = message_prompt([user], system="Be brief.")
    for path in (CHAT, MESSAGES):
        more = {"max_tokens": 4}
        begun = [{"role": "system", "content": "Be brief."}, user, answer, late, user]
        after = prompt(path, messages=begun, **more)
        assert after[: len(before)] == before
        assert after[len(before) :] == [("assistant", "b"), ("user", "It is late.\n\na")]
    items = [{"role": "developer", "content": "Be brief."}, user, answer, late, user]
    assert prompt(RESPONSES, input=items) == after


def test_the_billing_block_changes_no_prompt() -> None:
    user = [{"role": "user", "content": "a"}]

    def asked(cch: str, *, alone: bool) -> list[tuple[str, str]]:
        line = f"x-anthropic-billing-header: cc_version=2.1; cch={cch};"
        blocks = [line, "You are an agent."] if alone else [f"{line}\nYou are an agent."]
        return message_prompt(user, system=[{"type": "text", "text": one} for one in blocks])

    expected = [("system", "You are an agent."), ("user", "a")]
    for alone in (True, False):
        assert asked("0a1b2", alone=alone) == asked("ffff9", alone=alone) == expected


def test_results_of_tools_come_before_what_the_user_says() -> None:
    call = {"type": "tool_use", "id": "t1", "name": "f", "input": {"a": 1}}
    result = {"type": "tool_result", "tool_use_id": "t1"}
    for content, text in (
        (None, ""),
        ("7", "7"),
        ([{"type": "text", "text": "7"}, {"type": "text", "text": "8"}], "7\n8"),
        ([{"type": "tool_reference", "tool_name": "g"}], "g"),
        ([{"type": "search_result", "title": "T", "source": "u",
           "content": [{"type": "text", "text": "7"}]}], "T\n7"),
        ([{"type": "document", "source": {"type": "text", "data": "7"}}], "7"),
    ):  # fmt: skip
        said = {"type": "text", "text": "So?"}
        talk = [
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": [call]},
            {"role": "user", "content": [said, {**result, "content": content}]},
        ]
        *_, before, after = core(MESSAGES, messages=talk, max_tokens=4).messages
        assert (before.role, before.text, before.call_id) == ("tool", text, "t1")
        assert (after.role, after.text) == ("user", "So?")


def test_an_error_without_words_is_told() -> None:
    result = {"type": "tool_result", "tool_use_id": "t1", "is_error": True}
    talk = [{"role": "user", "content": [result]}]
    assert core(MESSAGES, messages=talk, max_tokens=4).messages[0].text == "The tool failed."


def test_blank_blocks_and_those_of_other_servers_are_left_out() -> None:
    search = {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}}
    answer = [
        {"type": "thinking", "thinking": "hm", "signature": "x"},
        {"type": "redacted_thinking", "data": "?"},
        {"type": "text", "text": ""},
        search,
        {"type": "web_search_tool_result", "tool_use_id": "s", "content": []},
        {"type": "text", "text": "b"},
    ]
    talk = [
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": " "}]},
        {"role": "assistant", "content": answer},
        {"role": "user", "content": "c"},
    ]
    found = core(MESSAGES, messages=talk, max_tokens=4).messages
    assert [(one.role, one.text, one.thoughts) for one in found] == [
        ("user", "a", ""), ("assistant", "b", "hm"), ("user", "c", ""),
    ]  # fmt: skip


def test_tools_without_a_schema_are_left_out() -> None:
    tools = [
        {"type": "web_search_20250305", "name": "web_search"},
        {"type": "bash_20250124", "name": "bash"},
        {"type": "custom", "name": "f", "input_schema": CLOCK},
        {"name": "g", "input_schema": CLOCK, "cache_control": {"type": "ephemeral"}},
    ]
    found = core(MESSAGES, messages=[{"role": "user", "content": "a"}], max_tokens=4, tools=tools)
    assert [one.function.name for one in found.tools] == ["f", "g"]
    none = core(
        MESSAGES,
        messages=[{"role": "user", "content": "a"}],
        max_tokens=4,
        tools=tools,
        tool_choice={"type": "none"},
    )
    assert none.choice.mode == "none"


def test_a_name_of_any_length_is_a_name() -> None:
    name = "mcp__server__" + "long_" * 40
    tools = [{"name": name, "input_schema": CLOCK}]
    choice = {"type": "tool", "name": name}
    asked = core(
        MESSAGES,
        messages=[{"role": "user", "content": "a"}],
        max_tokens=4,
        tools=tools,
        tool_choice=choice,
    )
    wanted, _ = asked.prepared(ChatSettings(), Dialect(marks=PLAIN))
    assert name in wanted.settings.grammar


def budget_of(asked: ConversationRequest) -> int:
    """The budget of a thought, where the server's is 64."""
    wanted, _ = asked.prepared(ChatSettings(reasoning_budget=64), Dialect(marks=PLAIN))
    return wanted.settings.reasoning_budget


@pytest.mark.parametrize(
    ("fields", "reasoning", "effort", "budget"),
    [
        ({}, None, "", None),
        ({"thinking": {"type": "adaptive"}, "output_config": {"effort": "max"}}, None, "max", None),
        ({"thinking": {"type": "enabled", "budget_tokens": 2048}}, "on", "", 2048),
        ({"thinking": {"type": "disabled"}}, "off", "", None),
    ],
)
def test_how_much_a_model_thinks(
    fields: Any, reasoning: str | None, effort: str, budget: int | None
) -> None:
    found = core(MESSAGES, messages=[{"role": "user", "content": "a"}], max_tokens=4, **fields)
    assert (found.reasoning, found.effort) == (reasoning, effort)
    assert budget_of(found) == (budget or 64)  # the server's


@pytest.mark.parametrize("path", PATHS)
def test_a_budget_for_thoughts_may_be_given_in_all_protocols(path: str) -> None:
    asked = body(path, STORY, reasoning_budget=5)
    assert budget_of(core(path, **asked)) == 5
    thinking = {"type": "enabled", "budget_tokens": 9}  # Anthropic's own
    assert budget_of(core(path, **asked, thinking=thinking)) == (9 if path == MESSAGES else 5)


def test_what_claude_code_sends_besides_is_passed_over() -> None:
    found = core(
        MESSAGES,
        messages=[{"role": "user", "content": [
            {"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}]}],
        max_tokens=1,
        metadata={"user_id": '{"device_id": "x"}'},
        context_management={"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        thinking={"type": "adaptive", "display": "omitted"},
        output_config={"effort": "high", "task_budget": {"total": 3}},
    )  # fmt: skip
    assert [one.text for one in found.messages] == ["a"]


NESTED = [
    {"type": "function", "name": "shell", "parameters": WEATHER, "strict": False},
    {"type": "namespace", "name": "mcp__a", "description": "A.", "tools": [
        {"type": "function", "name": "find", "parameters": CLOCK},
        {"type": "function", "name": "shell", "parameters": CLOCK}]},
    {"type": "custom", "name": "apply_patch", "description": "Edits files.",
     "format": {"type": "grammar", "syntax": "lark", "definition": 'start: "*** Begin"'}},
    {"type": "web_search"},
    {"type": "image_generation"},
    {"type": "tool_search", "execution": "client"},
    {"type": "something_new", "name": "x", "tools": 3},
]  # fmt: skip


def test_tools_of_responses_are_flattened_and_unknown_ones_skipped() -> None:
    found = core(RESPONSES, input="a", tools=NESTED, include=["reasoning.encrypted_content"],
                 prompt_cache_key="k", text={"verbosity": "low"}, store=False)  # fmt: skip
    names = [one.function.name for one in found.tools]
    assert names == ["shell", "find", "mcp__a__shell", "apply_patch"]
    patch = found.tools[-1].function
    assert "*** Begin" in (patch.description or "")
    assert patch.parameters is not None
    assert list(patch.parameters["properties"]) == ["input"]
    for choice, mode, only in (
        ("none", "none", None),
        ({"type": "function", "name": "find"}, "required", {"find"}),
        ({"type": "custom", "name": "apply_patch"}, "required", {"apply_patch"}),
        ({"type": "allowed_tools", "mode": "auto", "tools": [{"name": "shell",
            "namespace": "mcp__a"}]}, "auto", {"mcp__a__shell"}),
        ({"type": "web_search_preview"}, "auto", None),
    ):  # fmt: skip
        chosen = core(RESPONSES, input="a", tools=NESTED, tool_choice=choice).choice
        assert (chosen.mode, chosen.only and set(chosen.only)) == (mode, only)


@pytest.mark.parametrize(
    ("fields", "refused"),
    [
        ({"tools": [{"type": "function", "function": {"name": "clock"}}]}, True),
        ({"response_format": {"type": "json_object"}}, True),
        ({"response_format": {"type": "text"}}, False),
        (
            {"tools": [{"type": "function", "function": {"name": "clock"}}], "tool_choice": "none"},
            False,
        ),
    ],
)
def test_a_grammar_with_another_constraint_is_refused(fields: Any, refused: bool) -> None:
    asked = core(CHAT, messages=ASKED, grammar='root ::= "mine"', **fields)
    server = ChatSettings(grammar='root ::= "server"')
    with pytest.raises(Refusal, match="cannot be combined") if refused else nullcontext() as caught:
        wanted, _ = asked.prepared(server, Dialect(marks=PLAIN))
        assert wanted.settings.grammar == 'root ::= "mine"'
    assert caught is None or (caught.value.status, caught.value.param) == (400, "grammar")


def test_an_effort_that_no_template_knows_is_passed_over_in_all_protocols() -> None:
    efforts: dict[str, dict[str, Any]] = {
        CHAT: {"messages": ASKED, "reasoning_effort": "default"},
        MESSAGES: {"messages": ASKED, "max_tokens": 4, "output_config": {"effort": "default"}},
        RESPONSES: {"input": ASKED, "reasoning": {"effort": "default"}},
    }
    for path, fields in efforts.items():
        wanted, _ = core(path, **fields).prepared(ChatSettings(), Dialect(marks=PLAIN))
        assert not wanted.variables


def test_variables_of_a_template_may_be_lists_and_null_is_none_of_them() -> None:
    given = {"documents": [{"title": "T", "pages": [1, None]}], "enable_thinking": None}
    asked = core(CHAT, messages=ASKED, chat_template_kwargs=given)
    wanted, _ = asked.prepared(ChatSettings(), Dialect(marks=PLAIN))
    require_sendable(wanted)
    assert wanted.variables == {"documents": given["documents"]}
    source = TemplateSource("{{ documents[0].pages[0] }} {{ enable_thinking is defined }}", "", "")
    renderer = TemplateRenderer()
    try:
        seen = renderer.render(source, wanted.messages, RenderBudget(), None, wanted.variables)
    finally:
        renderer.close()
    assert seen == "1 False"
    deep: Any = []
    for _ in range(40):
        deep = [deep]
    with pytest.raises(Refusal, match="nested deeper") as caught:
        core(CHAT, messages=ASKED, chat_template_kwargs={"x": deep})
    assert caught.value.param == "chat_template_kwargs"


PATCH = {
    "name": "apply_patch",
    "description": "Edits files.",
    "format": {
        "type": "grammar",
        "grammar": {"syntax": "lark", "definition": 'start: "*** Begin"'},
    },
}
CHAT_TOOLS: list[Any] = [
    {"type": "function", "function": {"name": "clock", "parameters": CLOCK, "strict": False}},
    {"type": "custom", "custom": PATCH},
    {"type": "custom", "custom": {"name": "say", "format": {"type": "text"}}},
]
ASKED = [{"role": "user", "content": "a"}]


def test_a_chats_custom_tools_are_told_as_those_of_responses() -> None:
    clock, patch, say = (one.function for one in core(CHAT, messages=ASKED, tools=CHAT_TOOLS).tools)
    assert clock == NamedFunction("clock", None, CLOCK, strict=False)
    assert patch == core(RESPONSES, input="a", tools=NESTED).tools[-1].function
    assert say == structs.replace(patch, name="say", description="")
    with pytest.raises(Refusal, match="tools") as caught:
        core(CHAT, messages=ASKED, tools=[{"type": "something_new", "name": "x"}])
    assert caught.value.param == "tools[0].type"


@pytest.mark.parametrize(
    ("choice", "mode", "only"),
    [
        ("required", "required", None),
        ({"type": "function", "function": {"name": "clock"}}, "required", {"clock"}),
        ({"type": "custom", "custom": {"name": "say"}}, "required", {"say"}),
        (
            {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [
                {"type": "function", "function": {"name": "clock"}},
                {"type": "custom", "custom": {"name": "say"}}]}},
            "auto", {"clock", "say"},
        ),
        (
            {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [
                {"type": "function", "function": {"name": "clock"}}]}},
            "required", {"clock"},
        ),
    ],
)  # fmt: skip
def test_the_tools_that_a_chat_allows(choice: Any, mode: str, only: set[str] | None) -> None:
    chosen = core(CHAT, messages=ASKED, tools=CHAT_TOOLS, tool_choice=choice).choice
    assert (chosen.mode, chosen.only and set(chosen.only)) == (mode, only)


def test_calls_of_a_chats_custom_tools_are_read_back() -> None:
    calls = [{"id": "1", "type": "custom", "custom": {"name": "say", "input": "ü"}}]
    told = core(CHAT, messages=[*ASKED, {"role": "assistant", "tool_calls": calls}]).messages
    assert told[1].calls == (ToldCall("1", "say", '{"input": "ü"}'),)
    with pytest.raises(Refusal, match="custom") as caught:
        core(CHAT, messages=[*ASKED, {"role": "assistant", "tool_calls": [{"id": "1"}]}])
    assert caught.value.param == "messages[1].tool_calls[0]"


def test_items_become_turns_and_unknown_ones_are_skipped() -> None:
    items = [
        {"role": "user", "content": "a"},
        {"type": "agent_message", "content": [{"type": "strange"}]},
        {"type": "tool_search_call", "arguments": {"q": 1}, "call_id": None},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}], "content": None},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "b"}]},
        {"type": "function_call", "call_id": "1", "name": "find", "namespace": "mcp__a",
         "arguments": "{}"},
        {"type": "function_call", "call_id": "2", "name": "shell", "namespace": "mcp__a",
         "arguments": "{}"},
        {"type": "custom_tool_call", "call_id": "3", "name": "apply_patch", "input": "ü"},
        {"type": "function_call_output", "call_id": "1", "output": "7"},
        {"type": "function_call_output", "call_id": "2",
         "output": [{"type": "input_text", "text": "8"}]},
        {"type": "custom_tool_call_output", "call_id": "3", "output": "9"},
    ]  # fmt: skip
    found = in_turns(core(RESPONSES, input=items, tools=NESTED).messages)
    assert [one.role for one in found] == ["user", "assistant", "tool", "tool", "tool"]
    assert (found[1].thoughts, found[1].text) == ("hm", "b")
    assert [one.name for one in found[1].calls] == ["find", "mcp__a__shell", "apply_patch"]
    assert found[1].calls[2].arguments == '{"input": "ü"}'
    assert [one.text for one in found[2:]] == ["7", "8", "9"]


def test_of_an_earlier_answer_each_part_is_read_as_what_it_is() -> None:
    thinking = {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}], "closed": True}
    parts = [
        thinking,
        {"type": "thinking", "thinking": "and so"},
        {"type": "output_text", "text": "b", "annotations": []},
        {"type": "reference", "reference_ids": [1]},
        PICTURES[CHAT],
        {"type": "refusal", "refusal": "No."},
    ]
    talk = [*ASKED, {"role": "assistant", "content": parts}, *ASKED]
    _, told, _ = core(CHAT, messages=talk).messages
    named = "[an image, which this model cannot read]"
    assert (told.thoughts, told.text) == ("hm\nand so", f"b\n{named}\nNo.")


@pytest.mark.parametrize(
    ("item", "said"),
    [
        ({"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}, "reads text"),
        ({"role": "user", "content": [{"type": "input_file", "file_id": "x"}]}, "reads text"),
        ({"type": "item_reference", "id": "x"}, "not stored"),
        ({"role": "robot", "content": "a"}, "robot"),
    ],
)  # fmt: skip
def test_what_of_an_item_cannot_be_read_is_told(item: Any, said: str) -> None:
    with pytest.raises(Refusal, match=said) as caught:
        core(RESPONSES, input=[item])
    assert (caught.value.param or "").startswith("input[0]")


@pytest.mark.parametrize(
    "block",
    [
        {"type": "image", "source": {"type": "base64", "data": "x"}},
        {"type": "document", "source": {"type": "base64", "data": "x"}},
        {"type": "document", "source": {"type": "url", "url": "x"}},
    ],
)
def test_pictures_and_files_are_refused_with_their_place(block: Any) -> None:
    talk = [{"role": "user", "content": [{"type": "text", "text": "a"}, block]}]
    with pytest.raises(Refusal, match="reads text") as caught:
        core(MESSAGES, messages=talk, max_tokens=4)
    said = error_of(caught.value)[1]["error"]["message"]
    assert said.startswith("messages[0].content[1]")


def test_a_picture_from_a_tool_does_not_end_an_agents_session() -> None:
    """Agents send the picture again with every request."""
    picture, pdf = ({"type": kind, "source": {"type": "base64", "data": "x"}}
                    for kind in ("image", "document"))  # fmt: skip
    content = [{"type": "text", "text": "a.png"}, picture, pdf]
    result = {"type": "tool_result", "tool_use_id": "1", "content": content}
    named = "[an image, which this model cannot read]"
    talk = [{"role": "user", "content": [result]}]
    (told,) = core(MESSAGES, messages=talk, max_tokens=4).messages
    assert told.text == f"a.png\n{named}\n[a document, which this model cannot read]"
    output = [{"type": "input_text", "text": "a.png"}, {"type": "input_image", "image_url": "x"}]
    item = {"type": "function_call_output", "call_id": "1", "output": output}
    (told,) = core(RESPONSES, input=[item]).messages
    assert told.text == f"a.png\n{named}"
    said = {"role": "tool", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}
    (told,) = core(CHAT, messages=[said]).messages
    assert told.text == named


def test_a_picture_that_the_user_says_after_a_tools_result_is_the_tools() -> None:
    """Agents put it there where a result may only be text; a question after it is one again."""
    named = "[an image, which this model cannot read]"
    results = {
        CHAT: [{"role": role, "content": "a.png"} for role in ("tool", "function")],
        RESPONSES: [
            {"type": f"{kind}_output", "call_id": "1", "output": "a.png"}
            for kind in ("function_call", "custom_tool_call")
        ],
    }
    for path, ways in results.items():
        field = "input" if path == RESPONSES else "messages"
        shown = {"role": "user", "content": [PICTURES[path]]}
        for result in ways:
            found = core(path, **{field: [*ASKED, result, shown]}).messages
            assert [one.text for one in found] == ["a", "a.png", named]
            with pytest.raises(Refusal, match="reads text, not") as caught:
                core(path, **{field: [*ASKED, result, shown, shown]})
            assert caught.value.param == f"{field}[3].content[0]"


PICTURES = {
    CHAT: {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}},
    MESSAGES: {"type": "image", "source": {"type": "base64", "data": "x"}},
    RESPONSES: {"type": "input_image", "image_url": "x"},
}


@pytest.mark.parametrize("path", PATHS)
def test_a_picture_in_an_earlier_turn_does_not_end_a_conversation(path: str) -> None:
    """The turn with it was refused, and clients send it again with every request."""
    shown = {"role": "user", "content": [PICTURES[path]]}
    field, more = ("input", {}) if path == RESPONSES else ("messages", {"max_tokens": 4})

    def told(*messages: Any) -> list[str]:
        return [one.text for one in core(path, **{field: messages}, **more).messages]

    named = "[an image, which this model cannot read]"
    assert told(shown, *ASKED) == [named, "a"]
    assert told(shown, {"role": "assistant", "content": "b"}, *ASKED) == [named, "b", "a"]
    for talk in ([shown], [*ASKED, shown], [shown, *ASKED, shown]):
        with pytest.raises(Refusal, match="reads text, not") as caught:
            told(*talk)
        assert caught.value.param == f"{field}[{len(talk) - 1}].content[0]"


def test_pages_that_claude_code_read_stand_beside_the_tools_result() -> None:
    result = {"type": "tool_result", "tool_use_id": "1", "content": "PDF file read: a.pdf"}
    for kind in ("document", "image"):
        pages = {"type": kind, "source": {"type": "base64", "data": "x"}}
        talk = [{"role": "user", "content": [result, pages, {"type": "text", "text": "So?"}]}]
        _, told = core(MESSAGES, messages=talk, max_tokens=4).messages
        assert told == ToldMessage("user", f"{unread(kind)}\nSo?")


def test_continues_twenty_stop_texts_are_taken() -> None:
    stops = [f"stop {i}" for i in range(20)]
    assert core(CHAT, messages=ASKED, stop=stops).options.stop == stops
    assert core(MESSAGES, messages=ASKED, stop_sequences=stops, max_tokens=4).options.stop == stops


def test_pictures_may_be_larger_than_all_text() -> None:
    """They are in every request of an agent, and only words stand for them."""
    picture = {"type": "image", "source": {"type": "base64", "data": "x" * (9 << 20)}}
    for block, taken in (picture, True), ({"type": "text", "text": "x" * (9 << 20)}, False):
        result = {"type": "tool_result", "tool_use_id": "1", "content": [block]}
        talk = [{"role": "user", "content": [result]}]
        asked, _ = core(MESSAGES, messages=talk, max_tokens=4).prepared(ChatSettings(), Dialect())
        with nullcontext() if taken else pytest.raises(Refusal, match="8 MB besides pictures"):
            require_sendable(asked)


@pytest.mark.parametrize("values", [b"0,", b"[],", b"[" * 60 + b"]" * 60 + b","])
def test_a_body_has_no_more_values_than_fit_without_pictures(values: bytes) -> None:
    """They take up to thirty times their bytes, and no other client is answered for seconds."""
    with pytest.raises(Refusal, match="8 MB besides pictures") as caught:
        parsed(b"[" + values * ((9 << 20) // len(values)) + b"0]", ChatRequest)
    assert caught.value.status == 413


def test_fields_without_a_value_are_as_if_they_were_not_there() -> None:
    """Some libraries write every field of their types."""
    nothing = dict.fromkeys(("id", "status", "namespace", "arguments", "summary", "output"))
    items = [
        {**nothing, "type": None, "role": "user", "content": "a", "name": None, "input": None},
        {**nothing, "type": "reasoning", "role": None, "content": []},
        {**nothing, "type": "message", "role": "assistant", "content": None},
        {**nothing, "type": "custom_tool_call", "role": None, "call_id": "1", "name": "f"},
    ]
    found = in_turns(core(RESPONSES, input=items).messages)
    assert [(one.role, one.text, one.thoughts) for one in found] == [
        ("user", "a", ""), ("assistant", "", ""),
    ]  # fmt: skip
    assert found[1].calls == (ToldCall("1", "f", '{"input": ""}'),)
    more = dict.fromkeys(("tools", "tool_choice", "stop", "stream_options", "seed", "n", "model"))
    said: list[Any] = [
        {"role": "system", "content": []},
        {"role": "user", "content": [{"type": "text", "text": None}]},
        {"role": "user", "content": "a", "tool_calls": None},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]},
        {"role": "user", "content": "b", "name": None},
    ]
    told = core(CHAT, messages=said, **more).messages
    assert [one.text for one in told] == ["", "", "a", "No.", "b"]
    blank = {"type": "text", "text": None, "cache_control": None}
    talk = [{"role": "user", "content": [blank, {"type": "text", "text": "a", "title": None}]}]
    more |= dict.fromkeys(("system", "thinking", "output_config", "stop_sequences"))
    (told,) = core(MESSAGES, messages=talk, max_tokens=4, **more).messages
    assert told.text == "a"


def test_a_choice_of_a_tool_without_its_name_is_refused() -> None:
    for choice in ({"type": "function", "function": {"name": "find"}}, {"type": "custom"}):
        with pytest.raises(Refusal, match="no name of a tool"):
            core(RESPONSES, input="a", tools=NESTED, tool_choice=choice)


def test_a_tool_without_its_name_is_refused_with_its_place() -> None:
    """Chat completions have the name elsewhere."""
    tools = [*NESTED, {"type": "function", "function": {"name": "find"}}]
    with pytest.raises(Refusal, match="no name of a tool") as caught:
        core(RESPONSES, input="a", tools=tools)
    assert caught.value.param == f"tools[{len(NESTED)}].name"


def test_a_name_without_a_namespace_means_the_tool_without_one() -> None:
    alone, inside = ({"type": "function", "name": "f", "description": one} for one in "xy")
    offered = OfferedTools.of([{"type": "namespace", "name": "a", "tools": [inside]}, alone])
    assert (offered.told("f"), offered.told("f", "a")) == ("f", "a__f")
    assert OfferedTools.of([{"type": "namespace", "name": "a", "tools": [inside]}]).told("f") == "f"


def test_tools_in_namespaces_count() -> None:
    tools = [{"type": "function", "name": f"f{i}"} for i in range(257)]
    OfferedTools.of([{"type": "namespace", "name": "a", "tools": tools[1:]}])
    with pytest.raises(Refusal, match="257 tools"):
        OfferedTools.of([{"type": "namespace", "name": "a", "tools": tools}])


def test_namespaces_within_namespaces_are_passed_over() -> None:
    deep: dict[str, Any] = {"type": "function", "name": "f"}
    for _ in range(500):
        deep = {"type": "namespace", "name": "a", "tools": [deep, {"type": "custom", "name": "g"}]}
    assert [one.function.name for one in OfferedTools.of([deep]).tools] == ["g"]


def test_blocks_within_blocks_have_an_end() -> None:
    content: Any = "x"
    for _ in range(300):
        content = [{"type": "search_result", "content": content}]
    talk = [{"role": "user", "content": content}]
    with pytest.raises(Refusal, match="deeper"):
        core(MESSAGES, messages=talk, max_tokens=4)


def test_neighbours_of_one_role_become_one_turn() -> None:
    said = [ToldMessage("system", "a"), ToldMessage("system", "b"), ToldMessage("user", "c"),
            ToldMessage("assistant"), ToldMessage("system", "d"), ToldMessage("tool", "e"),
            ToldMessage("tool", "f"), ToldMessage("system", "g")]  # fmt: skip
    assert [(one.role, one.text) for one in in_turns(said)] == [
        ("system", "a\n\nb"), ("user", "c\n\nd"), ("tool", "e"), ("tool", "f"), ("user", "g"),
    ]  # fmt: skip


# --- what an answer becomes -------------------------------------------------------------------


def call(name: str, arguments: str) -> str:
    return f'{BEGIN}\n{{"name": "{name}", "arguments": {arguments}}}\n{END}'


TWO = "Well." + call("weather", '{"city": "Oslo"}') + call("clock", "{}")
OFFERED = Talk((Turn("user", "a"),), {"weather": WEATHER, "clock": CLOCK})


def answered(
    path: str,
    raw: str,
    reason: FinishReason = FinishReason.STOP,
    *,
    held: bool = True,
    step: int = 3,
    stopped_by: str = "",
    request: dict[str, Any] | None = None,
) -> tuple[list[tuple[str, dict[str, Any]]], dict[str, Any]]:
    """The events and the document of an answer that the engine wrote as `raw`."""
    both: list[Any] = []
    for streams in (True, False):
        asked = parsed(json.dumps(request or body(path, OFFERED)).encode(), KINDS[path])
        given = asked.core()
        assert isinstance(given, ConversationRequest)
        tools = [{"function": {"name": one.function.name}} for one in given.tools]
        stops = given.options.stop or ()
        answer = IncomingAnswer(Dialect(marks=PLAIN), tools=tools, held=held, stops=stops)
        writer = asked.writer("toy")
        writer.answer = answer
        both.append(played(writer, raw, reason, step, stopped_by))
        if not streams:
            both[-1] = writer.document()
    return both[0], both[1]


def played(
    writer: ReplyWriter, raw: str, reason: FinishReason, step: int, stopped_by: str
) -> list[tuple[str, dict[str, Any]]]:
    said: list[TurnEvent] = [PromptMade(30, 100, "", 20)]
    said += [text(raw[i : i + step]) for i in range(0, len(raw), step)]
    said.append(TurnEnd(raw, reason, GenerationStats(), stopped_by))
    found = list(writer.opening())
    for one in said:
        found += writer.written(writer.answer.take([one]))
    return [*found, *writer.closing()] if writer.answer.over else found


def text(piece: str) -> RoundText:
    return RoundText((Span(piece, Origin.TARGET),), rounds_of([0])[0])


def checked(path: str, found: Sequence[tuple[str, dict[str, Any]]]) -> list[str]:
    """The names of the events, which the client's types take."""
    for _, event in found:
        types_of(path)[1].validate_python(json.loads(json.dumps(event)))
    return [name for name, _ in found]


@pytest.mark.parametrize("held", [True, False])
def test_blocks_come_one_after_the_other(held: bool) -> None:
    found, document = answered(MESSAGES, f"<think>hm</think>{TWO}", held=held)
    names = checked(MESSAGES, found)
    starts = [event["content_block"] for name, event in found if name == "content_block_start"]
    assert [one["type"] for one in starts] == ["thinking", "text", "tool_use", "tool_use"]
    assert names.count("content_block_start") == names.count("content_block_stop") == 4
    of_blocks(found)  # the order
    deltas = [event["delta"]["type"] for name, event in found if name == "content_block_delta"]
    assert deltas.index("signature_delta") == deltas.index("text_delta") - 1
    assert found[-2][1]["delta"]["stop_reason"] == document["stop_reason"] == "tool_use"
    streamed = of_blocks(found)["content"]
    for one in (*streamed, *document["content"]):
        one.pop("id", None)
    assert streamed == document["content"]
    assert document["content"][2:] == [
        {"type": "tool_use", "name": "weather", "input": {"city": "Oslo"}},
        {"type": "tool_use", "name": "clock", "input": {}},
    ]


def test_thoughts_after_text_begin_a_block_of_their_own() -> None:
    found, _ = answered(MESSAGES, "<think>hm</think>Well.")
    first, second = (
        [event["index"] for _, event in found if event.get("delta", {}).get("type") == kind]
        for kind in ("thinking_delta", "text_delta")
    )
    assert set(first) == {0}
    assert set(second) == {1}


def test_a_second_thought_gets_a_block_and_an_item() -> None:
    """Models think again after they have spoken; the first block is over by then."""
    pieces = [ThoughtPiece("hm"), ContentPiece("Well."), ThoughtPiece("so"), ContentPiece("Yes.")]
    begins = {MESSAGES: "content_block_start", RESPONSES: "response.output_item.added"}
    for path, begun in begins.items():
        asked = parsed(json.dumps(body(path, STORY)).encode(), KINDS[path])
        writer = asked.writer("toy")
        found = [*writer.opening(), *writer.written(writer.answer.take([PromptMade(3, 9)]))]
        found += [*writer.written(pieces), *writer.closing()]
        assert len([name for name, _ in found if name == begun]) == 4
        checked(path, found)
        said = of_blocks(found)["content"] if path == MESSAGES else of_items(found)["output"]
        kinds = ["thinking", "text"] if path == MESSAGES else ["reasoning", "message"]
        assert [one["type"] for one in said] == kinds * 2


def test_usage_is_whole_from_the_first_event_on() -> None:
    found, document = answered(MESSAGES, "Well.")
    name, start = found[0]
    assert name == "message_start"
    usage = start["message"]["usage"]
    assert (usage["input_tokens"], usage["cache_read_input_tokens"]) == (10, 20)
    for one in (found[-2][1]["usage"], document["usage"]):
        assert set(one) >= {"input_tokens", "cache_read_input_tokens", "output_tokens"}
    for path in (CHAT, RESPONSES):
        _, whole = answered(path, "<think>hm</think>Well.")
        types_of(path)[0].validate_python(whole)
        details = [one for name, one in whole["usage"].items() if name.endswith("_details")]
        assert len(details) == 2


@pytest.mark.parametrize(
    ("reason", "stopped_by", "told_as"),
    [
        (FinishReason.STOP, "", ("end_turn", None)),
        (FinishReason.STOP, "END", ("stop_sequence", "END")),
        (FinishReason.STOP, "<|im_end|>", ("end_turn", None)),  # the template's own
        (FinishReason.LENGTH, "", ("max_tokens", None)),
        (FinishReason.CONTEXT, "", ("model_context_window_exceeded", None)),
        (FinishReason.REPETITION, "", ("end_turn", None)),
    ],
)
def test_why_a_message_ended(
    reason: FinishReason, stopped_by: str, told_as: tuple[str, str | None]
) -> None:
    request = {**body(MESSAGES, OFFERED), "stop_sequences": ["END", ""]}
    _, document = answered(MESSAGES, "Well.", reason, stopped_by=stopped_by, request=request)
    assert (document["stop_reason"], document["stop_sequence"]) == told_as


def test_a_call_is_no_reason_where_there_is_no_block() -> None:
    _, document = answered(MESSAGES, f"{BEGIN} is a mark", held=False)
    assert document["stop_reason"] == "end_turn"
    assert all(one["type"] == "text" for one in document["content"])


def test_a_call_that_a_limit_cut_off_is_told_as_far_as_it_came() -> None:
    raw = TWO[: TWO.index("Os") + 2]
    for path in PATHS:
        found, document = answered(path, raw, FinishReason.LENGTH)
        checked(path, found)
        assert heard(path, document).finish == "length"
        assert heard(path, document).calls[0][0] == "weather"
    _, document = answered(MESSAGES, raw, FinishReason.LENGTH)
    assert document["stop_reason"] == "max_tokens"
    assert (
        document["content"][-1]["input"] == {}
    )  # a client could run a call with half of its arguments
    _, document = answered(RESPONSES, raw, FinishReason.LENGTH)
    assert document["output"][-1]["status"] == "incomplete"


@pytest.mark.parametrize("held", [True, False])
def test_a_call_that_a_stop_sequence_cuts_off_is_not_run(held: bool) -> None:
    """Completed, it would have half of the argument that the model was about to write."""
    raw = TWO[: TWO.index("Os") + 2]
    for path in PATHS:
        stop = {"stop_sequences" if path == MESSAGES else "stop": ["lo"]}
        request = {**body(path, OFFERED), **stop}
        found, document = answered(path, raw, stopped_by="lo", request=request, held=held)
        checked(path, found)
        calls = heard(path, document).calls
        assert [name for name, _ in calls] == ["weather"] * held
        assert all(given in ({}, '{"city": "Os') for _, given in calls)
        if path == MESSAGES:
            why = document["stop_reason"], document["stop_sequence"]
            assert why == ("stop_sequence", "lo")
        if path == CHAT:
            assert document["choices"][0]["finish_reason"] == "stop"


def test_a_response_is_told_event_by_event() -> None:
    found, document = answered(RESPONSES, f"<think>hm</think>{TWO}")
    names = checked(RESPONSES, found)
    of_items(found)
    seen = list(dict.fromkeys(name.removeprefix("response.") for name in names))
    assert seen == [
        *("created", "in_progress", "output_item.added", "reasoning_summary_part.added"),
        *("reasoning_summary_text.delta", "reasoning_summary_text.done"),
        *("reasoning_summary_part.done", "output_item.done", "content_part.added"),
        *("output_text.delta", "output_text.done", "content_part.done"),
        *("function_call_arguments.delta", "function_call_arguments.done", "completed"),
    ]
    assert [one["type"] for one in document["output"]] == [
        "reasoning", "message", "function_call", "function_call",
    ]  # fmt: skip
    assert document["output"][1]["content"][0]["text"] == "Well."  # the thought is not in it
    assert found[-1][1]["response"]["usage"]["input_tokens_details"]["cached_tokens"] == 0


@pytest.mark.parametrize("reason", [FinishReason.CONTEXT, FinishReason.LENGTH])
def test_a_stream_of_responses_that_fills_the_context_fails(reason: FinishReason) -> None:
    """Codex asks again for what is incomplete, but sums up after that error."""
    found, document = answered(RESPONSES, "Well.", reason)
    last = of_items(found)
    names = [name for name, _ in found]
    full = reason is FinishReason.CONTEXT
    assert names[-2:] == ["response.output_item.done", f"response.{last['status']}"]
    assert last["status"] == ("failed" if full else "incomplete")
    assert (last["error"] or {}).get("code") == ("context_length_exceeded" if full else None)
    assert last["usage"]["input_tokens"] == 30
    assert last["timings"] == document["timings"]
    assert (document["status"], document["error"]) == ("incomplete", None)


def test_tools_in_namespaces_and_with_free_text_are_given_back() -> None:
    raw = call("mcp__a__shell", "{}") + call("apply_patch", '{"input": "*** Begin"}')
    request = {"input": "a", "tools": NESTED}
    found, document = answered(RESPONSES, raw, request=request)
    checked(RESPONSES, found)
    one, other = document["output"]
    assert (one["type"], one["name"], one["namespace"]) == ("function_call", "shell", "mcp__a")
    assert (other["type"], other["name"]) == ("custom_tool_call", "apply_patch")
    assert other["input"] == "*** Begin"
    assert "namespace" not in other
    assert ("response.custom_tool_call_input.done") in [name for name, _ in found]


@pytest.mark.parametrize("held", [True, False])
def test_a_chats_calls_with_free_text_are_given_back(held: bool) -> None:
    raw = call("clock", "{}") + call("say", '{"input": "*** \\"Begin\\""}') + call("clock", "{}")
    request = {"messages": ASKED, "tools": CHAT_TOOLS}
    found, document = answered(CHAT, raw, held=held, request=request)
    types_of(CHAT)[0].validate_python(document)
    (choice,) = document["choices"]
    assert choice["finish_reason"] == "tool_calls"
    calls = choice["message"]["tool_calls"]
    assert [one["type"] for one in calls] == ["function", "custom", "function"]
    assert calls[1]["custom"] == {"name": "say", "input": '*** "Begin"'}
    assert [one["function"]["arguments"] for one in calls[::2]] == ["{}", "{}"]
    deltas = [event["choices"][0]["delta"] for _, event in found]
    pieces = [one for delta in deltas for one in delta.get("tool_calls", ()) if one["index"] == 1]
    assert [one["custom"] for one in pieces] == [
        {"name": "say", "input": ""}, {"input": '*** "Begin"'},
    ]  # fmt: skip
    assert (pieces[0]["type"], "id" in pieces[1]) == ("custom", False)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("held", [True, False])
def test_half_a_letter_in_a_call_can_be_told(path: str, held: bool) -> None:
    found, document = answered(path, call("clock", '{"a": "\\ud83d"}'), held=held)
    assert encoded(found)
    assert b"clock" in msgspec.json.encode(document)
    request = {"input": "a", "tools": NESTED}
    raw = call("apply_patch", '{"input": "\\ud83d"}')
    found, document = answered(RESPONSES, raw, held=held, request=request)
    assert encoded(found)
    assert document["output"][0]["input"] == "?"


def test_signs_of_life_are_events() -> None:
    """Codex's clock counts no comments."""
    for path, expected in ((CHAT, ""), (MESSAGES, "ping"), (RESPONSES, "response.in_progress")):
        asked = parsed(json.dumps(body(path, STORY)).encode(), KINDS[path])
        writer = asked.writer("toy")
        first, second = writer.alive(), writer.alive()
        assert first[0] == second[0] == expected
        if path != MESSAGES:
            types_of(path)[1].validate_python(second[1])
        if path == RESPONSES:
            assert second[1]["sequence_number"] == first[1]["sequence_number"] + 1


def test_a_failure_in_a_stream_is_an_event_of_its_protocol() -> None:
    late = Refusal(400, "x", code="context_length_exceeded", n_prompt_tokens=9, n_ctx=3)
    for refusal, code in ((late, "context_length_exceeded"), (unavailable("x", 1), "server_error")):
        for path in PATHS:
            asked = parsed(json.dumps(body(path, STORY)).encode(), KINDS[path])
            writer = asked.writer("toy")
            list(writer.opening())
            list(writer.written(writer.answer.take([PromptMade(3, 9), text("We")])))
            name, event = writer.failed(refusal)[-1]
            if path == RESPONSES:
                assert name == "response.failed"
                assert event["response"]["error"]["code"] == code
            else:
                assert event["error"]["message"]
                assert name == ("error" if path == MESSAGES else "")


@pytest.mark.parametrize("role", ["user", "assistant"])
def test_neighbours_are_joined_in_time_that_grows_with_their_number(role: Any) -> None:
    calls = (ToldCall("c", "f", "{}"),) if role == "assistant" else ()

    def took(n: int) -> float:
        said = [ToldMessage(role, "a" * 100, calls=calls)] * n
        begun = time.process_time()
        assert len(in_turns(said)[0].text) == 102 * n - 2
        return time.process_time() - begun

    assert took(40_000) < 0.5 + 8 * took(10_000)
