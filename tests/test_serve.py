"""`localspec serve`, asked by real clients: its answers, its errors, and what it bears."""

from __future__ import annotations

import json
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from localspec.engine.round.params import CHAIN
from tests.support import ROOMY
from tests.support.command import run
from tests.support.endpoint import Serving, chunks, in_parallel, malformed, streaming
from tests.support.json_validity import valid
from tests.support.lazily import Lazily

if TYPE_CHECKING:
    import openai
else:
    openai = Lazily("openai")

STORY = "Tell me a story."
MESSAGES: Any = [{"role": "user", "content": STORY}]
LONG = {"messages": MESSAGES, "max_tokens": 900, "ignored": "<|im_end|>", "logit_bias": {"2": -100}}


@pytest.fixture(scope="module")
def served() -> Iterator[Serving]:
    with Serving("--queue", "8") as one:
        yield one


@pytest.fixture
def client(served: Serving) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as one:
        yield one


def error_of(reply: tuple[int, dict[str, str], bytes]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(reply[2])["error"]
    assert found["message"]
    assert found["type"]
    return found


# --- answers ----------------------------------------------------------------------------------


def test_openais_client_gets_what_run_says(client: openai.OpenAI, served: Serving) -> None:
    how = ("-t", "1", "-c", "1024", "--temp", "0", "-n", "32", "--json")
    text = json.loads(run("run", "toy", "-p", STORY, *how).out)["text"]
    raw = client.chat.completions.with_raw_response.create(
        model="toy", messages=MESSAGES, temperature=0, max_tokens=32, extra_body={"gamma": 3}
    )
    whole = openai.types.chat.ChatCompletion.model_validate_json(raw.text)
    assert whole.choices[0].message.content == text
    assert whole.choices[0].finish_reason == "length"
    assert whole.usage is not None
    assert whole.usage.completion_tokens == 32
    assert whole.usage.prompt_tokens_details is not None
    document = json.loads(raw.text)
    assert document["timings"]["draft_n"] >= document["timings"]["draft_n_accepted"] > 0
    assert "draft" in document["timings"]["drafters"]

    body = {"messages": MESSAGES, "temperature": 0, "max_tokens": 32, "stream": True,
            "stream_options": {"include_usage": True}}  # fmt: skip
    data = served.ask("/v1/chat/completions", body)[2]
    found = [openai.types.chat.ChatCompletionChunk.model_validate(one) for one in chunks(data)]
    assert "".join(one.choices[0].delta.content or "" for one in found if one.choices) == text
    assert found[0].choices[0].delta.role == "assistant"
    assert found[-2].choices[0].finish_reason == "length"
    assert found[-1].choices == []
    assert found[-1].usage is not None
    assert found[-1].usage.prompt_tokens == whole.usage.prompt_tokens
    assert data.endswith(b"data: [DONE]\n\n")


def test_plain_completions_go_on_from_text_and_from_ids(client: openai.OpenAI) -> None:
    raw = client.completions.with_raw_response.create(
        model="toy", prompt="Once upon a", temperature=0, max_tokens=8, logprobs=2
    )
    found = openai.types.Completion.model_validate_json(raw.text).choices[0]
    assert found.text.startswith(" time")
    assert found.logprobs is not None
    assert found.logprobs.tokens is not None
    assert "".join(found.logprobs.tokens) == found.text
    by_ids = client.completions.create(model="toy", prompt=[1, 5, 9], max_tokens=4)
    assert by_ids.usage is not None
    assert by_ids.usage.prompt_tokens == 3
    stream = client.completions.create(
        model="toy", prompt="Once upon a", temperature=0, max_tokens=8, stream=True
    )
    assert "".join(one.choices[0].text for one in stream) == found.text


@pytest.mark.parametrize("n", [0, 3])
@pytest.mark.parametrize("asked", [{"messages": MESSAGES}, {"prompt": "Once upon a"}])
def test_llama_servers_limit_holds(served: Serving, asked: dict[str, Any], n: int) -> None:
    """Editors warm up with no token, and no other limit."""
    path = "/v1/chat/completions" if "messages" in asked else "/v1/completions"
    body = {**asked, "n_predict": n, "logit_bias": {"2": -100}}
    found = json.loads(served.ask(path, body)[2])
    assert found["usage"]["completion_tokens"] == n
    assert found["choices"][0]["finish_reason"] == "length"


def test_a_prompt_is_read_from_its_beginning_on_request(served: Serving) -> None:
    def cached(**fields: Any) -> int:
        usage = served.chat("Which story did you tell me last?", **fields)["usage"]
        found: int = usage["prompt_tokens_details"]["cached_tokens"]
        return found

    cached()
    assert cached() > 4
    assert cached(cache_prompt=False) == 0
    assert cached() > 4


def test_each_token_of_a_picture_has_its_own_probability(served: Serving) -> None:
    """The toy writes an emoji as four bytes, each a token that has no text alone."""
    body = {"prompt": "A dog:", "grammar": 'root ::= "🐕漢🐕"', "temperature": 0, "logprobs": 5}
    _, _, data = served.ask("/v1/completions", {**body, "max_tokens": 30})
    choice = json.loads(data)["choices"][0]
    assert choice["text"] == "🐕漢🐕"
    scores = choice["logprobs"]
    assert sum(token.startswith("bytes:") for token in scores["tokens"]) > 8
    for token, logprob, best in zip(
        scores["tokens"], scores["token_logprobs"], scores["top_logprobs"], strict=True
    ):
        assert len(best) >= 5
        assert best.get(token, logprob) == logprob
        assert [*best.values()] == sorted(best.values(), reverse=True)


@pytest.mark.slow
def test_a_seed_gives_the_same_text_with_and_without_drafts() -> None:
    """`--exact` makes passes give equal bits: without AVX-512 those over several tokens differ."""
    told = {"temperature": 0.9, "max_tokens": 40}

    def said(served: Serving, seed: int, gamma: int | str) -> str:
        answer = served.chat(STORY, **told, seed=seed, gamma=gamma)
        text: str = answer["choices"][0]["message"]["content"]
        return text

    with Serving("--exact") as served:
        assert len({said(served, 7, gamma) for gamma in (0, 1, 5, "auto")}) == 1
        assert said(served, 8, 0) != said(served, 7, 0)


def test_options_of_a_request_take_effect(served: Serving) -> None:
    plain = served.chat(max_completion_tokens=12)
    text = plain["choices"][0]["message"]["content"]
    stopped = served.chat(stop=[text[8:12]])
    assert stopped["choices"][0]["message"]["content"] == text[:8]
    stopped = served.chat(stop=[text[8:12]], logprobs=True, gamma=5)
    told = len(stopped["choices"][0]["logprobs"]["content"])
    assert told == stopped["usage"]["completion_tokens"]
    assert stopped["choices"][0]["finish_reason"] == "stop"
    assert served.chat(gamma=0)["timings"]["draft_n"] == 0
    assert served.chat(gamma=3, draft="none")["timings"]["draft_n"] == 0
    repeats = {"text": "Say: " + "one two three four five six, " * 8, "gamma": 3, "max_tokens": 40}
    for names in ("draft", "lookup", "draft, lookup"):
        drafters = served.chat(**repeats, draft=names)["timings"]["drafters"]
        assert set(drafters) <= set(names.split(", "))
    assert "draft" in drafters
    scored = served.chat(logprobs=True, top_logprobs=3, max_tokens=6)["choices"][0]
    content = scored["logprobs"]["content"]
    assert len(content) == 6
    text = b"".join(bytes(one["bytes"]) for one in content).decode()
    assert text == scored["message"]["content"]
    for one in content:
        best = [other["logprob"] for other in one["top_logprobs"]]
        assert one["logprob"] == best[0] <= 0  # greedy
        assert best == sorted(best, reverse=True)
    first = served.chat(prompt_id=1, max_tokens=1, logprobs=True)["choices"][0]
    biased = served.chat(max_tokens=1, logit_bias={"7": 100})["choices"][0]
    assert biased["message"]["content"] != first["message"]["content"]


SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


def test_an_answer_that_only_repeats_itself_goes_on(served: Serving) -> None:
    """The chat and `run` stop one; a program that asked for it gets all of it."""
    found = served.chat(grammar='root ::= "a" root', max_tokens=330)
    assert found["choices"][0]["finish_reason"] == "length"
    assert found["usage"]["completion_tokens"] == 330


def test_answers_conform_to_their_schema(served: Serving) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": True}}
    found = served.chat(response_format=form, max_tokens=200)["choices"][0]
    assert found["finish_reason"] == "stop"
    assert valid(found["message"]["content"], SCHEMA)
    found = served.chat(response_format={"type": "json_object"}, max_tokens=4)["choices"][0]
    assert found["message"]["content"].startswith("{")


NAMED = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
TOOLS: Any = [
    {"type": "function", "function": {"name": "clock"}},
    {"type": "function", "function": {"name": "person", "description": "x", "parameters": SCHEMA}},
]


@pytest.mark.parametrize("stream", [False, True])
def test_a_required_tool_is_called_as_its_schema_says(
    client: openai.OpenAI, served: Serving, stream: bool
) -> None:
    choice: Any = {"type": "function", "function": {"name": "person"}}
    body = {"messages": MESSAGES, "tools": TOOLS, "tool_choice": choice, "temperature": 0,
            "parallel_tool_calls": False, "max_tokens": 300, "stream": stream}  # fmt: skip
    data = served.ask("/v1/chat/completions", body)[2]
    if stream:
        found = [openai.types.chat.ChatCompletionChunk.model_validate(one) for one in chunks(data)]
        pieces = [call for one in found for call in one.choices[0].delta.tool_calls or ()]
        assert [bool(one.id) for one in pieces] == [True] + [False] * (len(pieces) - 1)
        assert len(pieces) > 1  # how many there are depends on who is faster
        assert found[-1].choices[0].finish_reason == "tool_calls"
        (first, *rest) = [one.function for one in pieces if one.function]
        arguments = "".join(one.arguments or "" for one in (first, *rest))
        assert {one.name for one in rest} == {None}
        calls: Any = [
            openai.types.chat.ChatCompletionMessageFunctionToolCall.model_validate(
                {"id": pieces[0].id, "type": pieces[0].type,
                 "function": {"name": first.name, "arguments": arguments}}
            )
        ]  # fmt: skip
    else:
        whole = openai.types.chat.ChatCompletion.model_validate_json(data).choices[0]
        assert whole.finish_reason == "tool_calls"
        calls = whole.message.tool_calls
    (call,) = calls
    assert call.function.name == "person"
    assert valid(call.function.arguments, SCHEMA)
    again = [
        *MESSAGES,
        {"role": "assistant", "content": None, "tool_calls": [call.model_dump(exclude={"index"})]},
        {"role": "tool", "tool_call_id": call.id, "content": "7"},
    ]
    assert served.chat(messages=again, tools=TOOLS, tool_choice="none", max_tokens=4)["choices"]


def test_with_tools_that_may_not_be_called_nothing_is_a_call(served: Serving) -> None:
    text = '<tool_call>{"name": "clock", "arguments": {}}</tool_call>'
    given = {"tools": TOOLS, "tool_choice": "none", "grammar": f"root ::= {json.dumps(text)}"}
    found = served.chat(**given, max_tokens=100)["choices"][0]
    assert found["message"]["content"] == text
    assert found["finish_reason"] == "stop"


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
def test_an_answer_that_the_client_began_goes_on(served: Serving, path: str) -> None:
    def said(most: int, *begun: Any) -> str:
        body = {"messages": [*MESSAGES, *begun], "max_tokens": most, "temperature": 0}
        found = json.loads(served.ask(path, body)[2])
        if "content" in found:
            return str(found["content"][0]["text"])
        return str(found["choices"][0]["message"]["content"])

    whole, begun = said(16), said(6)
    assert begun + said(10, {"role": "assistant", "content": begun}) == whole


@pytest.mark.slow
def test_eight_conversations_in_turn_read_only_what_is_new(served: Serving) -> None:
    # Accepted tokens pay for the draft to read whole conversations; without any it would read
    # only the last 64 tokens.
    found = served.chat(messages=MESSAGES, max_tokens=128, gamma=4)
    assert found["timings"]["draft_n_accepted"] > 40
    said: dict[int, list[dict[str, str]]] = {}
    for i in range(8):
        text = f"Story number {i}: " + " ".join(f"word{i} and {j}" for j in range(12))
        said[i] = [{"role": "user", "content": text}]
    for turn in range(3):
        for i, messages in said.items():
            found = served.chat(messages=messages, max_tokens=12, gamma=3)
            timings = found["timings"]
            if turn:
                new = len(f"<|im_end|><|im_start|>user\nAnd then, {turn}?<|im_end|>assistant")
                assert timings["prompt_n"] < new, (turn, i)
                assert 0 < timings["draft_prompt_n"] < new, (turn, i)
                assert timings["cache_n"] > 60
            answer = found["choices"][0]["message"]["content"]
            messages.append({"role": "assistant", "content": answer})
            messages.append({"role": "user", "content": f"And then, {turn + 1}?"})


@contextmanager
def llm(served: Serving, folder: Path, *words: str) -> Iterator[subprocess.Popen[str]]:
    (folder / "extra-openai-models.yaml").write_text(
        f"- model_id: localspec\n  model_name: toy\n  api_base: {served.url}/v1\n"
    )
    paths = {"LLM_USER_PATH": str(folder), "HOME": str(folder), "PATH": "/usr/bin:/bin"}
    with subprocess.Popen(
        [sys.executable, "-m", "llm", "-m", "localspec", "-o", "temperature", "0", *words, STORY],
        env={**paths, "OPENAI_API_KEY": "x", "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        yield process


@pytest.mark.slow
@pytest.mark.parametrize("words", [pytest.param(("--no-stream",), marks=pytest.mark.slow), ()])
def test_llm_talks_to_it(served: Serving, tmp_path: Path, words: tuple[str, ...]) -> None:
    with llm(served, tmp_path, *words, "-o", "max_tokens", "8") as process:
        out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert out.startswith("Once upon a time")


@pytest.mark.slow
@pytest.mark.timed
def test_llm_gives_up(served: Serving, tmp_path: Path) -> None:
    endless = json.dumps({"2": -100})  # no end of turn
    with llm(served, tmp_path, "-o", "max_tokens", "900", "-o", "logit_bias", endless) as process:
        assert process.stdout is not None
        assert process.stdout.read(4) == "Once"
        process.send_signal(signal.SIGINT)
        assert served.until_free(5) < 0.5
        process.communicate(timeout=60)
    assert process.returncode


PACKAGES = ("openai@6", "@ai-sdk/openai-compatible@2", "ai@6")
MANIFEST = '{"private": true, "type": "module"}'


@pytest.mark.slow
@pytest.mark.timed
@pytest.mark.skipif(not (shutil.which("npm") and shutil.which("node")), reason="needs node and npm")
def test_javascript_clients_talk_to_it(served: Serving, tmp_path: Path) -> None:
    (tmp_path / "package.json").write_text(MANIFEST)
    shutil.copy(Path(__file__).parent / "support" / "clients.mjs", tmp_path)
    npm = [shutil.which("npm") or "", "install", "--no-audit", "--no-fund", "--ignore-scripts"]
    subprocess.run([*npm, *PACKAGES], cwd=tmp_path, check=True, capture_output=True, timeout=300)
    node = [shutil.which("node") or "", "clients.mjs", f"{served.url}/v1"]
    done = subprocess.run(
        node, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert served.until_free(5) < 0.5  # what both gave up has ended
    expected = served.chat(max_tokens=24)["choices"][0]["message"]["content"]
    found = json.loads(done.stdout)
    assert found["openai"].pop("usage")["completion_tokens"] == 24
    for client in found.values():
        assert (client["whole"], client["streamed"]) == (expected, expected)
        assert client["called"]["name"] == "person"
        assert valid(client["called"]["arguments"], NAMED)
        assert client["chunks"] < 24


# --- what there is, and errors ----------------------------------------------------------------


def test_what_there_is(client: openai.OpenAI, served: Serving) -> None:
    model, *_ = client.models.list().data
    assert openai.types.Model.model_validate(model.model_dump()).id == "toy"
    assert client.models.retrieve("toy").model_dump()["max_model_len"] == 1024
    assert json.loads(served.ask("/health")[2]) == {"status": "ok"}
    props = json.loads(served.ask("/props")[2])
    assert props["default_generation_settings"]["n_ctx"] == 1024
    settings = props["default_generation_settings"]
    assert settings["sampling_sources"] == dict.fromkeys(CHAIN, "default")
    assert {name: settings["params"][name] for name in CHAIN} == {
        name: each.usual for name, each in CHAIN.items()
    }
    assert props["draft"]
    metrics = served.ask("/metrics")[2].decode()
    assert "# TYPE localspec:tokens_predicted_total counter" in metrics


def with_schema(schema: Any) -> dict[str, Any]:
    form = {"type": "json_schema", "json_schema": {"schema": schema}}
    return {"messages": MESSAGES, "response_format": form}


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ({"messages": []}, 400, "messages"),
        ({"messages": MESSAGES, "temperature": -1}, 400, "temperature"),
        ({"messages": MESSAGES, "top_p": "x"}, 400, "top_p"),
        ({"messages": MESSAGES, "n": 2}, 400, "n must be 1"),
        ({"messages": [{"role": "user", "content": "a " * 2000}]}, 400, "context length is 1024"),
        ({"messages": MESSAGES, "logit_bias": {"9" * 30: 1}}, 400, "logit-bias cannot be"),
        ({"messages": MESSAGES, "chat_template_kwargs": {"a": 1 << 64}}, 400, "64 bits"),
        (with_schema({"properties": {"a": {"type": "x"}}}), 400, "schema.properties.a"),
        (with_schema({"type": "string", "pattern": "("}), 400, "pattern"),
        ({"messages": MESSAGES, "grammar": "root ::= ("}, 400, "grammar"),
        ({"messages": MESSAGES, "logit_bias": {"99999999": 1}}, 400, "logit-bias"),
        ({"messages": MESSAGES, "tool_choice": "required"}, 400, "no tools"),
        ({"messages": MESSAGES, "draft": "lookup,abc"}, 400, "auto, none, draft, lookup"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 400, "reads text"),
        (b"{", 400, "not JSON"),
        (b'{"messages": [{"role": "user", "content": "\xff"}]}', 400, ""),
        (b"[" * 100_000, 400, ""),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_errors_have_openais_form(
    served: Serving, body: Any, status: int, said: str, stream: bool
) -> None:
    if isinstance(body, dict):
        body = {**body, "stream": stream, "max_tokens": 4}
    reply = served.ask("/v1/chat/completions", body)
    assert reply[0] == status
    assert said in error_of(reply)["message"]


def test_a_model_without_marks_of_gaps_fills_none(served: Serving) -> None:
    for asked, said in (
        ({"input_prefix": "a", "input_suffix": "b"}, "Infill is not supported by this model"),
        ({"input_prefix": "a"}, "input_suffix"),
    ):
        reply = served.ask("/infill", asked)
        assert reply[0] == 400
        assert said in error_of(reply)["message"]


def test_a_prompt_that_does_not_fit_is_told_with_both_numbers(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(
            model="toy", messages=[{"role": "user", "content": "a " * 2000}]
        )
    assert caught.value.code == "context_length_exceeded"
    body: Any = caught.value.body
    assert body["n_prompt_tokens"] > body["n_ctx"] == 1024
    said = "This model's maximum context length is 1024 tokens, and the prompt has"
    assert body["message"].startswith(f"{said} {body['n_prompt_tokens']} tokens.")
    assert body["param"] == "messages"
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model="toy", prompt="a " * 2000)
    assert caught.value.param == "prompt"


@pytest.mark.slow
def test_one_conversation_that_is_too_much_spoils_no_other(served: Serving) -> None:
    """A template given up for one conversation is still used for the others."""
    before = served.chat()["choices"][0]["message"]["content"]
    huge = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}] * 60_000
    reply = served.ask("/v1/chat/completions", {"messages": [*huge, *MESSAGES], "max_tokens": 1})
    assert reply[0] == 400
    assert error_of(reply)
    assert served.chat()["choices"][0]["message"]["content"] == before


@pytest.mark.skipif(sys.platform != "linux", reason="looks into the log by /proc")
def test_a_grammar_that_is_wrong_is_in_no_log(served: Serving) -> None:
    body = {"messages": MESSAGES, "grammar": 'root ::= "a" ) my secret'}
    assert "expecting newline" in error_of(served.ask("/v1/chat/completions", body))["message"]
    assert "my secret" not in Path(f"/proc/{served.engine().pid}/fd/2").read_text()


def test_embeddings_and_unknown_addresses_are_refused_in_words(served: Serving) -> None:
    assert "embeddings" in error_of(served.ask("/v1/embeddings", {"input": "a"}))["message"]
    assert served.ask("/v1/nothing")[0] == 404
    assert error_of(served.ask("/v1/nothing"))["code"] == "not_found"
    reply = served.ask("/v1/chat/completions")  # GET
    assert (reply[0], error_of(reply)["code"]) == (405, "method_not_allowed")


# --- who may ask ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "evil.example"}, 403),
        ({"Host": "localhost.evil.example:80"}, 403),
        ({"Host": "LOCALHOST:1"}, 200),
        ({"Host": "[::1]:80"}, 200),
        ({"Host": "localhost:80/health?"}, 403),
        ({"Host": "[::1]/health?"}, 403),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
    ],
)
def test_other_names_and_web_pages_are_refused(
    served: Serving, headers: dict[str, str], status: int
) -> None:
    reply = served.ask("/v1/models", headers=headers)
    assert reply[0] == status
    assert "access-control-allow-origin" not in reply[1]


def test_nobody_is_led_elsewhere_before_the_rules(served: Serving) -> None:
    reply = served.raw(b"GET /v1/health/ HTTP/1.1\r\nHost: evil.example\r\n\r\n", 2)
    assert b" 403 " in reply[:20]


def test_another_address_needs_a_key() -> None:
    done = run("serve", "toy", "--host", "0.0.0.0", "--port", "0")
    assert done.code == 2
    assert "--api-key-file" in done.err


def test_a_refused_request_that_goes_on_wrongly_leaves_no_trace(served: Serving) -> None:
    head = b"POST /v1/completions HTTP/1.1\r\nHost: evil.example\r\n"
    with socket.create_connection(("127.0.0.1", served.port), timeout=10) as sock:
        sock.sendall(head + b"Transfer-Encoding: chunked\r\n\r\n")
        data = b""
        while b'"forbidden"' not in data:
            part = sock.recv(65536)
            assert part
            data += part
        sock.sendall(b"zz\r\n")
        with suppress(ConnectionError):
            while sock.recv(65536):
                pass
    assert served.ask("/health")[0] == 200
    assert b"Traceback" not in served.log()


@pytest.mark.slow
def test_keys_origins_and_names_that_are_allowed(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("# mine\nabcdefghijklmnopqrst\n\nbbbbbbbbbbbbbbbbbbbbb\n")
    origin = "http://localhost:3000"
    with Serving(
        *("--host", "0.0.0.0", "--api-key-file", str(keys)),
        *("--allow-origin", origin, "--allow-host", "my.machine"),
    ) as one:
        for key in ("", "abc", "abcdefghijklmnopqrsT", "# mine"):
            reply = one.ask("/v1/models", headers={"Authorization": f"Bearer {key}"})
            assert reply[0] == 401
            assert error_of(reply)["code"] == "invalid_api_key"
        assert one.ask("/health")[0] == 200
        right = {"Authorization": "Bearer bbbbbbbbbbbbbbbbbbbbb", "Host": "my.machine:1"}
        assert one.ask("/v1/models", headers=right)[0] == 200
        reply = one.ask("/v1/models", headers={**right, "Origin": origin})
        assert reply[1]["access-control-allow-origin"] == origin
        assert one.ask("/v1/models", headers={**right, "Origin": "http://localhost"})[0] == 403
        asks = (
            b"Access-Control-Request-Method: POST\r\nAccess-Control-Request-Headers: x-stainless-os"
        )
        head = b"OPTIONS /v1/models HTTP/1.1\r\nHost: my.machine\r\nConnection: close\r\n"
        reply = one.raw(head + b"Origin: " + origin.encode() + b"\r\n" + asks + b"\r\n\r\n")
        assert reply.startswith(b"HTTP/1.1 200")
        assert b"x-stainless-os" in reply
    with Serving("--allow-origin", "*") as one:
        assert one.ask("/v1/models", headers={"Origin": "http://anywhere"})[0] == 200


# --- the queue, and clients that go away ------------------------------------------------------


def begun(served: Serving, body: dict[str, Any]) -> socket.socket:
    """A connection over which an answer has begun to stream."""
    sock = socket.create_connection(("127.0.0.1", served.port), timeout=30)
    sock.sendall(streaming(body))
    data = b""
    while b'"content":"' not in data.replace(b'"content":""', b""):
        part = sock.recv(65536)
        assert part, data
        data += part
    return sock


ROOM = ("-c", str(ROOMY))
LONGER = {**LONG, "max_tokens": ROOMY}
"""With so much room it does not end by itself before a test is done with it."""


def leave(served: Serving, body: dict[str, Any]) -> None:
    """Ask for an answer, and go away while it is worked on."""
    with socket.create_connection(("127.0.0.1", served.port), timeout=30) as sock:
        sock.sendall(streaming(body))
        while not served.metric("requests_processing"):
            pass


def test_who_goes_away_ends_the_work() -> None:
    """Answers that go on would have `ROOMY` tokens, or nearly."""
    slow = {**LONGER, "gamma": 0}
    long = {**slow, "messages": [{"role": "user", "content": "long " * 700}]}
    with Serving(*ROOM) as one, openai.OpenAI(base_url=f"{one.url}/v1", api_key="none") as client:

        def iterated() -> None:
            how = {key: value for key, value in LONGER.items() if key != "ignored"}
            with client.chat.completions.create(model="toy", stream=True, **how) as stream:
                assert next(iter(stream)).object == "chat.completion.chunk"

        for go in (
            lambda: begun(one, slow).close(),
            lambda: leave(one, {**slow, "stream": False}),
            lambda: leave(one, long),
            iterated,
        ):
            said = one.metric("tokens_predicted_total")
            go()
            one.until_free(20)
            assert one.metric("tokens_predicted_total") - said < ROOMY / 2
        assert said > 0  # those that were stopped count


@pytest.mark.slow
@pytest.mark.timed
def test_who_goes_away_while_a_huge_text_is_read_ends_the_work(served: Serving) -> None:
    leave(served, {**LONG, "messages": [{"role": "user", "content": "long " * 1_500_000}]})
    assert served.until_free(5) < 0.5


@pytest.mark.slow
def test_a_full_queue_says_when_to_come_again() -> None:
    with Serving("--queue", "1", *ROOM) as one:
        running = begun(one, LONGER)
        waiting = socket.create_connection(("127.0.0.1", one.port))
        waiting.sendall(streaming(LONGER))
        while not one.metric("requests_deferred"):
            time.sleep(0.01)
        status, headers, body = one.ask("/v1/chat/completions", {"messages": MESSAGES})
        assert status == 503
        assert int(headers["retry-after"]) >= 1
        assert json.loads(body)["error"]["code"] == "unavailable"
        waiting.close()
        running.close()
        one.until_free(5)
        assert one.chat(max_tokens=2)["choices"]


# --- what it bears ----------------------------------------------------------------------------


@pytest.mark.parametrize("each", [8, pytest.param(25, marks=pytest.mark.slow)])
def test_mixed_requests_of_four_clients(served: Serving, each: int) -> None:
    """A fifth of them is abandoned; the other answers are those of a client that asks alone."""
    prompts = [f"Tell me a story about a {thing}." for thing in ("dog", "cat", "bird", "boy")]
    alone = {
        text: served.chat(text, max_tokens=24)["choices"][0]["message"]["content"]
        for text in prompts
    }
    before = served.metric("requests_total")

    def ask(seed: int) -> None:
        rng = random.Random(seed)
        for _ in range(each):
            text, kind = rng.choice(prompts), rng.random()
            if kind < 0.2:
                sock = socket.create_connection(("127.0.0.1", served.port))
                sock.sendall(streaming({"messages": [{"role": "user", "content": text}]}))
                time.sleep(rng.random() / 20)
                sock.close()
            elif kind < 0.3:
                assert served.ask("/v1/chat/completions", {"messages": text})[0] == 400
            else:
                n = rng.randrange(1, 24)
                found = served.chat(text, max_tokens=n)["choices"][0]["message"]["content"]
                assert alone[text].startswith(found), (text, found)

    in_parallel([partial(ask, seed) for seed in range(4)])
    served.until_free(5)
    assert served.metric("requests_total") - before >= 3 * each


@pytest.mark.parametrize("connection", [b"keep-alive", b"close"])
def test_that_a_body_is_too_large_is_told_to_who_still_sends_it(
    served: Serving, connection: bytes
) -> None:
    size = 40 << 20
    head = b"POST /v1/messages HTTP/1.1\r\nHost: localhost\r\nConnection: %b\r\n" % connection
    with socket.create_connection(("127.0.0.1", served.port), timeout=20) as sock:
        sock.sendall(head + b"Content-Length: %d\r\n\r\n" % size + bytes(size))
        reply = b""
        while part := sock.recv(65536):
            reply += part
    assert b"413" in reply[:20]
    assert b"the body is larger than 32 MB" in reply


@pytest.mark.parametrize("many", [60, pytest.param(250, marks=pytest.mark.slow)])
def test_malformed_requests_get_an_answer_and_do_no_harm(served: Serving, many: int) -> None:
    """None of them is a fault of the server, none makes it wait."""
    rng = random.Random(20)
    for i in range(many):
        data = malformed(rng)
        begun_at = time.monotonic()
        reply = served.raw(data)
        assert b" 500 " not in reply[:20], (i, data[:500])
        assert time.monotonic() - begun_at < 8, (i, data[:500])
    served.until_free(5)
    assert served.chat(max_tokens=2)["choices"]
    assert STORY.encode() not in served.log()
    assert b"Traceback" not in served.log()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_the_engines_death_is_told_and_the_next_request_succeeds() -> None:
    with Serving(*ROOM) as one:
        expected = one.chat()["choices"][0]["message"]["content"]
        for _ in range(2):
            sock = begun(one, LONGER)
            one.engine().kill()
            data = b""
            while part := sock.recv(65536):
                data += part
                if b"0\r\n\r\n" in data:
                    break
            sock.close()
            assert b'"code":"unavailable"' in data
            assert one.chat()["choices"][0]["message"]["content"] == expected
        assert one.metric("engine_restarts_total") == 2
