"""Answers of `localspec serve` in three protocols, read as the clients read them, and compared."""

from __future__ import annotations

import http.client
import json
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from tests.support.endpoint import Serving
from tests.support.talks import (
    CHAT,
    MESSAGES,
    PATHS,
    RESPONSES,
    Heard,
    Talk,
    body,
    drawn,
    events,
    heard,
)


@cache
def types_of(path: str) -> tuple[Any, Any]:
    """The clients' own types for a whole answer and for an event; importing them takes seconds."""
    from anthropic.types import Message, RawMessageStreamEvent  # noqa: PLC0415
    from openai.types.chat import ChatCompletion, ChatCompletionChunk  # noqa: PLC0415
    from openai.types.responses import Response, ResponseStreamEvent  # noqa: PLC0415
    from pydantic import TypeAdapter  # noqa: PLC0415

    of_paths: dict[str, tuple[Any, Any]] = {
        CHAT: (ChatCompletion, ChatCompletionChunk),
        MESSAGES: (Message, RawMessageStreamEvent),
        RESPONSES: (Response, ResponseStreamEvent),
    }
    whole, piece = of_paths[path]
    return TypeAdapter(whole), TypeAdapter(piece)


def told(path: str, found: Sequence[tuple[str, dict[str, Any]]]) -> Heard:
    """The answer that the events of a stream make, read as the clients read them."""
    return heard(path, {CHAT: of_chunks, MESSAGES: of_blocks, RESPONSES: of_items}[path](found))


def of_chunks(found: Sequence[tuple[str, dict[str, Any]]]) -> dict[str, Any]:
    text, thought, finish = "", "", ""
    calls: list[dict[str, Any]] = []
    for name, chunk in found:
        assert name == ""
        for choice in chunk["choices"]:
            delta = choice["delta"]
            text += delta.get("content") or ""
            thought += delta.get("reasoning_content") or ""
            finish = choice["finish_reason"] or finish
            for call in delta.get("tool_calls") or ():
                if "id" in call:
                    assert call["index"] == len(calls)
                    calls.append({"function": dict(call["function"])})
                else:
                    assert call["index"] == len(calls) - 1
                    calls[-1]["function"]["arguments"] += call["function"]["arguments"]
    message = {"content": text, "reasoning_content": thought, "tool_calls": calls}
    usage = found[-1][1]["usage"]
    return {"choices": [{"message": message, "finish_reason": finish}], "usage": usage}


def of_blocks(found: Sequence[tuple[str, dict[str, Any]]]) -> dict[str, Any]:
    """The blocks as the client accumulates them; the order of the events is checked."""
    message: dict[str, Any] = {}
    open_ = False
    texts: list[str] = []
    for name, event in found:
        assert name == event["type"]
        match name:
            case "message_start":
                assert not message
                message = json.loads(json.dumps(event["message"]))
                assert message["content"] == []
                assert message["stop_reason"] is None
                assert (
                    message["usage"]["input_tokens"] + message["usage"]["cache_read_input_tokens"]
                )
            case "content_block_start":
                assert not open_
                assert event["index"] == len(message["content"])
                message["content"].append(dict(event["content_block"]))
                open_, texts = True, []
            case "content_block_delta":
                assert open_
                assert event["index"] == len(message["content"]) - 1
                delta, block = event["delta"], message["content"][-1]
                match delta["type"]:
                    case "input_json_delta":
                        texts.append(delta["partial_json"])
                    case "signature_delta":
                        block["signature"] = delta["signature"]
                    case kind:
                        assert kind == f"{block['type']}_delta"
                        block[block["type"]] += delta[block["type"]]
            case "content_block_stop":
                open_ = False
                block = message["content"][-1]
                assert block["type"] != "thinking" or block["signature"]
                if block["type"] == "tool_use" and texts:
                    with_end = "".join(texts)
                    block["input"] = json.loads(with_end) if complete(with_end) else with_end
            case "message_delta":
                assert not open_
                message |= event["delta"]
                message["usage"] |= event["usage"]
    assert [name for name, _ in found][-2:] == ["message_delta", "message_stop"]
    return message


def complete(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def of_items(found: Sequence[tuple[str, dict[str, Any]]]) -> dict[str, Any]:
    """The last event's response; the events before must say the same."""
    names = [name for name, _ in found]
    assert names[:2] == ["response.created", "response.in_progress"]
    assert [event["type"] for _, event in found] == names
    assert [event["sequence_number"] for _, event in found] == list(range(len(found)))
    last = found[-1][1]["response"]
    texts: dict[str, str] = {}
    for name, event in found:
        if name.endswith(".delta"):
            texts[event["item_id"]] = texts.get(event["item_id"], "") + event["delta"]
        if name.endswith((".text.done", "_text.done")):
            assert texts[event["item_id"]] == event["text"]
        if name == "response.function_call_arguments.done":
            assert texts.get(event["item_id"], "") == event["arguments"]
    done = [event["item"] for name, event in found if name == "response.output_item.done"]
    assert done == last["output"]
    assert isinstance(last, dict)
    return last


def asked_all(served: Serving, talk: Talk, **more: Any) -> list[Heard]:
    """The answers of all protocols, whole and streamed; the clients' types take every event."""
    answers = []
    for path in PATHS:
        whole, piece = types_of(path)
        status, _, data = served.ask(path, body(path, talk, **more))
        assert status == 200, (path, data)
        document = json.loads(data)
        whole.validate_python(document)
        answers.append(heard(path, document))
        wanted = {"stream_options": {"include_usage": True}} if path == CHAT else {}
        status, _, data = served.ask(path, body(path, talk, stream=True, **wanted, **more))
        assert status == 200, (path, data)
        found = events(data)
        for name, event in found:
            if name != "ping":
                piece.validate_python(event)
        answers.append(told(path, found))
    return answers


def alike(one: Heard) -> Heard:
    """The answer without the arguments of a call that was cut off, where protocols may differ."""
    calls = one.calls
    if one.finish == "length" and calls:
        calls = (*calls[:-1], (calls[-1][0], None))
    return replace(one, calls=calls)


def require_alike(served: Serving, seed: int) -> None:
    """Ask a drawn conversation in all protocols, greedily and by the server's own seed.

    Of every third one a stream is given up after its first words, and the conversation asked again.
    """
    talk = drawn(seed)
    if talk.image:
        for path in PATHS:
            status, _, data = served.ask(path, body(path, talk))
            assert status == 400
            assert "reads text, not" in json.loads(data)["error"]["message"]
        return
    for temperature in (0.0, 0.9):
        answers = asked_all(served, talk, temperature=temperature)
        assert [alike(one) for one in answers[1:]] == [alike(answers[0])] * 5, (seed, temperature)
        if talk.limit > 6 and (talk.choice == "required" or talk.choice in talk.tools):
            assert answers[0].calls
        if seed % 3 == 0:
            path = PATHS[seed // 3 % 3]
            begun = given_up(served, path, talk, temperature=temperature)
            assert answers[0].text.startswith(begun), (seed, temperature)
            served.until_free(20)
            data = served.ask(path, body(path, talk, temperature=temperature))[2]
            again = heard(path, json.loads(data))
            assert alike(again) == alike(answers[0]), (seed, temperature)


def given_up(served: Serving, path: str, talk: Talk, **more: Any) -> str:
    """The text of an answer's stream up to its first words, after which the client goes away."""
    connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=60)
    data = json.dumps(body(path, talk, stream=True, **more)).encode()
    connection.request("POST", path, data, {"content-type": "application/json"})
    reply = connection.getresponse()
    text, found = "", b""
    while not text and (part := reply.read1(65536)):
        found += part
        whole = found[: found.rfind(b"\n\n") + 2]
        text = "".join(words(path, event) for _, event in events(whole))
    reply.close()
    connection.close()
    return text


def words(path: str, event: dict[str, Any]) -> str:
    """The text that an event adds to an answer."""
    if path == CHAT:
        deltas = [choice["delta"].get("content") or "" for choice in event.get("choices", ())]
        return "".join(deltas)
    if path == MESSAGES:
        found = event["delta"] if event["type"] == "content_block_delta" else {}
        return str(found.get("text", ""))
    return str(event["delta"]) if event["type"] == "response.output_text.delta" else ""
