"""A model calls tools through `localspec serve`, asked by OpenAI's own client.

Ten questions under ``tool_choice: required``, whole and as a stream, then a loop in which the model
decides by itself: five turns of calls, each of which needs the result of the last, and an answer.
It prints the result of each and takes some minutes, depending on the model.

    uv run python -m benchmarks.tool_calls MODEL
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

from openai import OpenAI

from tests.support.endpoint import Serving

CITIES = ("Paris", "Rome", "Oslo", "Lille", "Bonn", "Kobe", "Lima", "Bergen", "Sapporo", "Riga")
TURNS = 5  # as many as there are boxes


def tool(name: str, description: str, **properties: str) -> Any:
    given = {one: {"type": kind} for one, kind in properties.items()}
    schema = {"type": "object", "properties": given, "required": list(given)}
    function = {"name": name, "description": description, "parameters": schema}
    return {"type": "function", "function": function}


TOOLS = [
    tool("get_weather", "The weather of a city now.", city="string"),
    tool("add", "The sum of two numbers.", a="number", b="number"),
]
BOX = tool("open_box", "Opens a box and says what lies in it.", label="string")
BOXES = {
    "red": "the label `blue`",
    "blue": "the label `green`",
    "green": "the label `white`",
    "white": "the label `black`",
    "black": "the number 417",
}


def required(client: OpenAI, model: str, cities: Sequence[str] = CITIES) -> tuple[int, int]:
    """How many of the calls are well-formed, and how many come alike in a stream."""
    formed = alike = 0
    for seed, city in enumerate(cities):
        asked: dict[str, Any] = {
            "model": model,
            "messages": [{"role": "user", "content": f"What is the weather in {city}?"}],
            "tools": TOOLS,
            "tool_choice": "required",
            "max_tokens": 200,
            "seed": seed,
        }
        whole = client.chat.completions.create(**asked).choices[0].message.tool_calls or []
        calls = [(one.function.name, one.function.arguments) for one in whole]
        pieces: dict[int, list[str]] = {}
        for chunk in client.chat.completions.create(stream=True, **asked):
            for one in chunk.choices[0].delta.tool_calls or () if chunk.choices else ():
                known = pieces.setdefault(one.index, ["", ""])
                known[0] += one.function.name or ""
                known[1] += one.function.arguments or ""
        formed += bool(calls) and all(isinstance(json.loads(given), dict) for _, given in calls)
        alike += [tuple(one) for _, one in sorted(pieces.items())] == calls
        print(f"{city}: {calls}")
    return formed, alike


def loop(client: OpenAI, model: str) -> tuple[int, str]:
    """How many turns called a tool, and the answer after them; empty without an end.

    Each box names the next one, so that no call can be made before the result of the last. If the
    model ends its turn with nothing, as small models do, a call is required of it; if that repeats
    an earlier one, it is asked for its answer.
    """
    question = (
        "There are boxes with labels. In each lies the label of the next box, in the last one a"
        " number. Open the box `red`, then the one that is named in it, and so on. Open one box"
        " at a time. At the end tell me the number in a sentence."
    )
    messages: list[Any] = [{"role": "user", "content": question}]
    made: set[str] = set()
    for turn in range(2 * TURNS):
        asked: dict[str, Any] = {
            "model": model,
            "messages": messages,
            "tools": [BOX],
            "parallel_tool_calls": False,
            "temperature": 0,
            "max_tokens": 300,
        }
        for choice in ("auto", "required", "none"):
            message = client.chat.completions.create(tool_choice=choice, **asked).choices[0].message
            calls = {call.function.arguments for call in message.tool_calls or ()}
            if message.content or calls - made:
                break
            print(f"(nothing new under {choice})")
        made |= calls
        messages.append(message.model_dump(exclude_none=True))
        if not message.tool_calls:
            return turn, message.content or ""
        for call in message.tool_calls:
            label = str(json.loads(call.function.arguments).get("label")).strip("`")
            found = BOXES.get(label, "there is no such box")
            print(f"{call.function.name} {label} -> {found}")
            messages.append({"role": "tool", "tool_call_id": call.id, "content": found})
    return 2 * TURNS, ""


def main() -> None:
    """Serve the model that is named, and ask."""
    with Serving("-t", "2", "-c", "4096", pair=sys.argv[1]) as one:
        client = OpenAI(base_url=f"http://127.0.0.1:{one.port}/v1", api_key="none", timeout=600)
        model = client.models.list().data[0].id
        formed, alike = required(client, model)
        print(f"required: {formed} of {len(CITIES)} well-formed, {alike} streamed alike")
        turns, answer = loop(client, model)
        print(f"loop: {turns} turns of calls (of {TURNS} that are needed), then {answer!r}")


if __name__ == "__main__":
    main()
