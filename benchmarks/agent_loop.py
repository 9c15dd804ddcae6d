"""An agent's loop of tool calls on real files through `localspec serve`.

Files of this package are searched, read and edited: four calls a file, each of a tool that the
request names. Every turn is answered twice, with drafts and without, in changing order. For each
turn the script prints how much of the turn before came from the caches, how many of the answer's
tokens are in runs of 16 and more that the conversation holds, and both speeds of decoding; then
the ratio over the turns with many such tokens, and over the others. It takes some ten minutes.

    uv run python -m benchmarks.agent_loop MODEL.gguf
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from openai import OpenAI

from benchmarks.tool_calls import tool
from localspec.engine.llama import Model
from tests.support.endpoint import Serving
from tests.support.llama_source import VocabularyOnly

FILES = ("formats.py", "limits.py", "private.py", "scratch.py", "safe_text.py")
RUN = 16  # tokens
MANY = 0.6  # of an answer's tokens in such runs
TASK = (
    "You work on these Python files: {files}. For each file in turn: search it for its functions,"
    " read its first 40 lines, replace the docstring of its first function by one sentence, and"
    " write the whole of that function down in a note. Call one tool at a time."
)


TOOLS = [
    tool("search", "The lines of a file that a regular expression matches.", path="string",
         pattern="string"),
    tool("read_file", "Lines of a file.", path="string", first="integer", last="integer"),
    tool("replace_text", "Replaces a text in a file by another one.", path="string", old="string",
         new="string"),
    tool("write_note", "Writes a note for later.", text="string"),
]  # fmt: skip
ORDER = [one["function"]["name"] for one in TOOLS]


class Workspace:
    """The files, in memory, and what the tools do with them."""

    def __init__(self) -> None:
        folder = Path(__file__).parents[1] / "localspec"
        self.texts = {name: (folder / name).read_text("utf-8") for name in FILES}

    def done(self, name: str, given: dict[str, Any]) -> str:
        """The result of a tool."""
        if name == "write_note":
            return "noted"
        text = self.texts.get(str(given["path"]).rpartition("/")[2])
        if text is None:
            return f"there is no such file; there are {', '.join(FILES)}"
        lines = text.splitlines()
        if name == "read_file":
            return "\n".join(lines[max(0, given["first"] - 1) : min(given["last"], 40)])
        if name == "replace_text":
            return "replaced" if given["old"] in text else "the text does not occur in the file"
        try:
            found = [line for line in lines if re.search(given["pattern"], line)]
        except re.error as error:
            return f"no regular expression: {error}"
        return "\n".join(found[:20]) or "no line matches"


@dataclass(frozen=True)
class TurnFigures:
    """One turn.

    Attributes:
        held: tokens of the prompt and the answer of the turn before.
        cached: tokens of this turn's prompt that came from the caches.
        copied: share of the answer's tokens in runs of `RUN` and more that the conversation holds.
        speeds: tokens a second with drafts and without.
        tokens: of the answer.
    """

    held: int
    cached: int
    copied: float
    speeds: tuple[float, float]
    tokens: int
    same: bool


def copied(answer: Sequence[int], context: Sequence[int]) -> float:
    """The share of tokens in runs of `RUN` and more that occur in the context."""
    known = {tuple(context[i : i + RUN]) for i in range(len(context) - RUN + 1)}
    inside = [False] * len(answer)
    for i in range(len(answer) - RUN + 1):
        if tuple(answer[i : i + RUN]) in known:
            inside[i : i + RUN] = [True] * RUN
    return sum(inside) / max(1, len(inside))


def loop(
    client: OpenAI, vocabulary: Model, turns: int, alone: AbstractContextManager[object]
) -> Iterator[TurnFigures]:
    """Yield the figures of each turn; `alone` is entered while answers are timed."""
    workspace = Workspace()
    messages: list[Any] = [{"role": "user", "content": TASK.format(files=", ".join(FILES))}]
    held = 0
    for i in range(turns):
        name = ORDER[i % len(ORDER)]
        asked: dict[str, Any] = {
            "model": "any",
            "messages": messages,
            "tools": TOOLS,
            "tool_choice": {"type": "function", "function": {"name": name}},
            "parallel_tool_calls": False,
            "temperature": 0,
            "max_tokens": 400,
        }
        found: dict[str, Any] = {}
        order = ("auto", "none") if i % 2 else ("none", "auto")
        with alone:
            for draft in order:
                found[draft] = client.chat.completions.create(**asked, extra_body={"draft": draft})
        first = found[order[0]]
        calls = [found[draft].choices[0].message.tool_calls[0].function for draft in found]
        call = calls[0]
        speeds = [found[draft].timings["predicted_per_second"] for draft in ("auto", "none")]
        ids = [
            vocabulary.tokenize(text, add_special=False, parse_special=False)
            for text in (call.arguments, "\n".join(map(_text, messages)))
        ]
        yield TurnFigures(
            held,
            first.timings["cache_n"],
            copied(ids[0], ids[1]),
            (speeds[0], speeds[1]),
            first.usage.completion_tokens,
            calls[0].arguments == calls[1].arguments,
        )
        held = first.usage.total_tokens
        messages.append(first.choices[0].message.model_dump(exclude_none=True))
        try:
            given = json.loads(call.arguments)
        except ValueError:
            given = {}
        result = workspace.done(name, given) if given else "the call was cut off"
        identity = first.choices[0].message.tool_calls[0].id
        messages.append({"role": "tool", "tool_call_id": identity, "content": result})


def _text(message: dict[str, Any]) -> str:
    calls = message.get("tool_calls") or ()
    return "\n".join(
        [message.get("content") or "", *(one["function"]["arguments"] for one in calls)]
    )


def ratio(turns: Sequence[TurnFigures]) -> str:
    """The speed of these turns with drafts over that without, all turns together."""
    if not turns:
        return "no turn"
    seconds = [sum(turn.tokens / turn.speeds[arm] for turn in turns) for arm in (0, 1)]
    return f"{seconds[1] / seconds[0]:.2f} over {len(turns)} turns"


def report(figures: Iterator[TurnFigures]) -> None:
    """Print every turn, and what follows."""
    turns = []
    for i, turn in enumerate(figures, 1):
        turns.append(turn)
        share = f"{turn.cached / turn.held:.3f} of {turn.held:,}" if turn.held else "-"
        print(
            f"{i:2}: cached {share:15} copied {turn.copied:.2f} of {turn.tokens:3} tokens,"
            f" {turn.speeds[0]:5.1f} against {turn.speeds[1]:5.1f} a second"
            f"{'' if turn.same else ', other text'}",
            flush=True,
        )
    shares = sorted(turn.cached / turn.held for turn in turns if turn.held)
    print(f"cached: {shares[0]:.3f} at least, {shares[len(shares) // 2]:.3f} in the median")
    print(f"copying turns: {ratio([one for one in turns if one.copied >= MANY])}")
    print(f"other turns: {ratio([one for one in turns if one.copied < MANY])}")


def main() -> None:
    """Serve the model that is named, and run the loop."""
    model = sys.argv[1]
    with Serving("-t", "2", "-c", "12288", "--exact", pair=model) as one:
        client = OpenAI(base_url=f"http://127.0.0.1:{one.port}/v1", api_key="none", timeout=600)
        with VocabularyOnly.of(Path(model)) as vocabulary:
            report(loop(client, vocabulary, 20, nullcontext()))


if __name__ == "__main__":
    main()
