"""Conversations as requests of three protocols, and their answers read back."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

CHAT = "/v1/chat/completions"
MESSAGES = "/v1/messages"
RESPONSES = "/v1/responses"
PATHS = (CHAT, MESSAGES, RESPONSES)


@dataclass(frozen=True)
class Turn:
    """One turn: of the system, the user, the model, or the result of a tool.

    Attributes:
        calls: of the model, as (id, name, arguments).
        result_of: the id of the call that a tool answers.
    """

    role: str
    text: str = ""
    thought: str = ""
    calls: tuple[tuple[str, str, dict[str, Any]], ...] = ()
    result_of: str = ""


@dataclass(frozen=True)
class Talk:
    """A conversation that is to be answered.

    Attributes:
        tools: the schemas of functions by name.
        choice: ``auto``, ``none``, ``required``, or the name of a tool.
        extra: fields that all protocols have from `AnswerOptions`.
    """

    turns: tuple[Turn, ...]
    tools: dict[str, dict[str, Any]] = field(default_factory=dict)
    choice: str = "auto"
    parallel: bool = True
    schema: dict[str, Any] | None = None
    limit: int = 24
    image: bool = False
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Heard:
    """An answer, read back.

    Attributes:
        calls: names and arguments; the text of arguments that a limit cut off.
        finish: ``stop``, ``length`` or ``calls``.
        usage: tokens of the prompt and of the answer.
    """

    thought: str
    text: str
    calls: tuple[tuple[str, Any], ...]
    finish: str
    usage: tuple[int, int]


def body(path: str, talk: Talk, **more: Any) -> dict[str, Any]:
    """The request for a conversation, in the protocol of an address."""
    made = {CHAT: _chat, MESSAGES: _messages, RESPONSES: _responses}[path](talk)
    return {"temperature": 0, **made, **talk.extra, **more}


def _chat(talk: Talk) -> dict[str, Any]:
    messages: list[dict[str, Any]] = []
    for turn in talk.turns:
        one: dict[str, Any] = {"role": turn.role, "content": turn.text}
        if turn.role == "tool":
            one["tool_call_id"] = turn.result_of
        if turn.thought:
            one["reasoning_content"] = turn.thought
        if turn.calls:
            one["tool_calls"] = [
                {
                    "id": call,
                    "type": "function",
                    "function": {"name": name, "arguments": json.dumps(given, ensure_ascii=False)},
                }
                for call, name, given in turn.calls
            ]
        messages.append(one)
    if talk.image:
        picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
        messages.append({"role": "user", "content": [picture]})
    found: dict[str, Any] = {"messages": messages, "max_tokens": talk.limit}
    if talk.tools:
        found["tools"] = [
            {"type": "function", "function": {"name": name, "parameters": schema}}
            for name, schema in talk.tools.items()
        ]
        named = {"type": "function", "function": {"name": talk.choice}}
        found["tool_choice"] = named if talk.choice in talk.tools else talk.choice
        found["parallel_tool_calls"] = talk.parallel
    if talk.schema is not None:
        form = {"name": "x", "schema": talk.schema, "strict": True}
        found["response_format"] = {"type": "json_schema", "json_schema": form}
    return found


def _messages(talk: Talk) -> dict[str, Any]:
    messages: list[dict[str, Any]] = []
    found: dict[str, Any] = {"messages": messages, "max_tokens": talk.limit}
    for i, turn in enumerate(talk.turns):
        if turn.role == "system" and i == 0:
            found["system"] = turn.text
        else:
            role = "user" if turn.role == "tool" else turn.role
            messages.append({"role": role, "content": _blocks(turn)})
    if talk.image:
        source = {"type": "base64", "media_type": "image/png", "data": "AA=="}
        picture = {"type": "image", "source": source}
        messages.append({"role": "user", "content": [picture]})
    if talk.tools:
        found["tools"] = [
            {"name": name, "input_schema": schema} for name, schema in talk.tools.items()
        ]
        found["tool_choice"] = _claudes_choice(talk)
    if talk.schema is not None:
        found["output_config"] = {"format": {"type": "json_schema", "schema": talk.schema}}
    return found


def _blocks(turn: Turn) -> list[dict[str, Any]]:
    if turn.role == "tool":
        return [{"type": "tool_result", "tool_use_id": turn.result_of, "content": turn.text}]
    blocks: list[dict[str, Any]] = []
    if turn.thought:
        blocks.append({"type": "thinking", "thinking": turn.thought, "signature": "x"})
    if turn.text:
        blocks.append({"type": "text", "text": turn.text})
    calls = ({"id": call, "name": name, "input": given} for call, name, given in turn.calls)
    return [*blocks, *({"type": "tool_use", **call} for call in calls)]


def _claudes_choice(talk: Talk) -> dict[str, Any]:
    kinds = {"required": "any", "auto": "auto", "none": "none"}
    choice: dict[str, Any] = {"type": kinds.get(talk.choice, "tool")}
    if talk.choice in talk.tools:
        choice["name"] = talk.choice
    if talk.choice != "none":
        choice["disable_parallel_tool_use"] = not talk.parallel
    return choice


def _responses(talk: Talk) -> dict[str, Any]:
    items: list[dict[str, Any]] = []
    found: dict[str, Any] = {"input": items, "max_output_tokens": talk.limit, "store": False}
    for i, turn in enumerate(talk.turns):
        if turn.role == "system" and i == 0:
            found["instructions"] = turn.text
            continue
        if turn.role == "tool":
            items.append(
                {
                    "type": "function_call_output",
                    "call_id": turn.result_of,
                    "output": turn.text,
                }
            )
            continue
        if turn.thought:
            summary = [{"type": "summary_text", "text": turn.thought}]
            items.append({"type": "reasoning", "id": f"rs_{i}", "summary": summary})
        if turn.text:
            kind = "output_text" if turn.role == "assistant" else "input_text"
            part: dict[str, Any] = {"type": kind, "text": turn.text}
            items.append({"type": "message", "role": turn.role, "content": [part]})
        items += [
            {
                "type": "function_call",
                "call_id": call,
                "name": name,
                "arguments": json.dumps(given, ensure_ascii=False),
            }
            for call, name, given in turn.calls
        ]
    if talk.image:
        picture = {"type": "input_image", "image_url": "data:image/png;base64,AA=="}
        items.append({"role": "user", "content": [picture]})
    if talk.tools:
        found["tools"] = [
            {"type": "function", "name": name, "parameters": schema, "strict": False}
            for name, schema in talk.tools.items()
        ]
        named = {"type": "function", "name": talk.choice}
        found["tool_choice"] = named if talk.choice in talk.tools else talk.choice
        found["parallel_tool_calls"] = talk.parallel
    if talk.schema is not None:
        form = {"type": "json_schema", "name": "x", "schema": talk.schema, "strict": True}
        found["text"] = {"format": form}
    return found


def heard(path: str, document: dict[str, Any]) -> Heard:
    """The answer in a whole document."""
    return {CHAT: _of_chat, MESSAGES: _of_message, RESPONSES: _of_response}[path](document)


def _arguments(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _of_chat(document: dict[str, Any]) -> Heard:
    (choice,) = document["choices"]
    message, usage = choice["message"], document["usage"]
    calls = [call["function"] for call in message.get("tool_calls") or ()]
    return Heard(
        message.get("reasoning_content") or "",
        message["content"] or "",
        tuple((one["name"], _arguments(one["arguments"])) for one in calls),
        {"tool_calls": "calls"}.get(choice["finish_reason"], choice["finish_reason"]),
        (usage["prompt_tokens"], usage["completion_tokens"]),
    )


def _of_message(document: dict[str, Any]) -> Heard:
    blocks, usage = document["content"], document["usage"]
    kinds = {"end_turn": "stop", "max_tokens": "length", "tool_use": "calls"}
    kinds |= {"stop_sequence": "stop", "model_context_window_exceeded": "length"}
    read = usage["input_tokens"] + usage["cache_read_input_tokens"]
    return Heard(
        "".join(one["thinking"] for one in blocks if one["type"] == "thinking"),
        "".join(one["text"] for one in blocks if one["type"] == "text"),
        tuple((one["name"], one["input"]) for one in blocks if one["type"] == "tool_use"),
        kinds[document["stop_reason"]],
        (read + (usage["cache_creation_input_tokens"] or 0), usage["output_tokens"]),
    )


def _of_response(document: dict[str, Any]) -> Heard:
    items, usage = document["output"], document["usage"]
    calls = [one for one in items if one["type"] == "function_call"]
    finish = "length" if document["status"] == "incomplete" else "calls" if calls else "stop"
    return Heard(
        "".join(part["text"] for one in items for part in one.get("summary") or ()),
        "".join(
            part["text"] for one in items if one["type"] == "message" for part in one["content"]
        ),
        tuple((one["name"], _arguments(one["arguments"])) for one in calls),
        finish,
        (usage["input_tokens"], usage["output_tokens"]),
    )


def events(data: bytes) -> list[tuple[str, dict[str, Any]]]:
    """The events of a stream: names, and data; comments and OpenAI's last line are left out."""
    found = []
    for block in data.decode().split("\n\n"):
        lines = dict(line.split(": ", 1) for line in block.split("\n") if ": " in line)
        if lines.get("data", "[DONE]") != "[DONE]":
            found.append((lines.get("event", ""), json.loads(lines["data"])))
    return found


WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 6}},
    "required": ["city"],
    "additionalProperties": False,
}
CLOCK = {"type": "object", "properties": {}, "additionalProperties": False}
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 5}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
_TEXTS: Sequence[str] = (
    *("Tell me a story.", "What is 3 plus 4?", "Hi there.", "A dog:", "Füße & <b>€</b> “x”"),
    *("Go on.", "Why?", "Write a function.\n\nIt adds two numbers.", "{}", "  indented"),
)


def drawn(seed: int) -> Talk:
    """A conversation: some turns, perhaps with thoughts, calls and results; and its limits."""
    rng = random.Random(seed)
    tools = {"weather": WEATHER, "clock": CLOCK} if rng.random() < 0.6 else {}
    turns = _drawn_turns(rng, bool(tools))
    kind = rng.choice(("plain", "plain", "thought", "schema", "cut", "image"))
    if tools:
        choice = rng.choice(("auto", "none", "required", "weather"))
        return Talk(
            turns, tools, choice, parallel=rng.random() < 0.5, limit=rng.choice((6, 120, 120))
        )
    match kind:
        case "thought":
            text = rng.choice(("<think>hm, well</think>Yes.", "<think>\nSo.\n</think>\n\nNo: ü"))
            extra = {"grammar": f"root ::= {json.dumps(text, ensure_ascii=False)}"}
            return Talk(turns, limit=60, extra=extra)
        case "schema":
            return Talk(turns, schema=PERSON, limit=60)
        case "cut":
            return Talk(turns, limit=rng.randrange(1, 5))
        case "image":
            return Talk(turns, image=True)
        case _:
            return Talk(turns)


def _drawn_turns(rng: random.Random, tools: bool) -> tuple[Turn, ...]:
    turns = [Turn("system", "Be brief.")] if rng.random() < 0.5 else []
    turns.append(Turn("user", rng.choice(_TEXTS)))
    for i in range(rng.randrange(3)):
        thought = "hm" if rng.random() < 0.3 else ""
        if tools and rng.random() < 0.6:
            calls = tuple(
                (f"call_{i}{j}", "weather", {"city": rng.choice(("Oslo", "Rom", "Köln"))})
                for j in range(rng.randrange(1, 3))
            )
            text = rng.choice(("", "Let me see."))
            turns.append(Turn("assistant", text, thought, calls))
            turns += [
                Turn("tool", rng.choice(("7", "wet\nand cold")), result_of=c[0]) for c in calls
            ]
        else:
            turns.append(Turn("assistant", rng.choice(_TEXTS), thought))
        if rng.random() < 0.3:
            turns.append(Turn("system", "It is late now."))
        if turns[-1].role != "tool" or rng.random() < 0.5:
            turns.append(Turn("user", rng.choice(_TEXTS)))
    return tuple(turns)
