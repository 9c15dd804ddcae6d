"""An agent's loop of tool calls on real files through `localspec serve`.

Five modules of Python's standard library are searched, read, and written twice with a small change:
four turns each, in each of which the user asks for one call of a tool that the request names. To
write a file the model quotes it whole. Every turn is answered twice,
with drafts and without, in changing order. For each turn the script prints how much of the turn
before came from the caches, how many of the answer's tokens are in runs of 16 and more that the
conversation holds, as it is or as JSON writes it, and both speeds of decoding; then the ratio over
the turns with many such tokens, and over the others. It takes some ten minutes.

    uv run python -m benchmarks.agent_loop MODEL.gguf [--exact]
"""

from __future__ import annotations

import argparse
import json
import re
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from openai import OpenAI

from benchmarks.tool_calls import tool
from localspec.engine.llama import Model
from tests.support.endpoint import Serving
from tests.support.llama_source import VocabularyOnly

NAMES = {
    "asyncio/exceptions.py": "SendfileNotAvailableError",
    "asyncio/mixins.py": "_global_lock",
    "asyncio/threads.py": "func_call",
    "urllib/error.py": "ContentTooShortError",
    "wsgiref/types.py": "ErrorStream",
}
RUN = 16  # tokens
MANY = 0.6  # of an answer's tokens in such runs
TASK = "You work on Python files with tools. Do what the user asks by one call of a tool at a time."


TOOLS = [
    tool("search", "The lines of a file that a regular expression matches.", path="string",
         pattern="string"),
    tool("read_file", "Lines of a file.", path="string", first="integer", last="integer"),
    tool("write_file", "Writes a file anew, whole.", path="string", text="string"),
]  # fmt: skip


@dataclass(frozen=True)
class Step:
    """One turn.

    Attributes:
        asked: what the user says.
        tool: what the model has to call.
        wanted: the arguments that do what is asked for.
    """

    asked: str
    tool: str
    wanted: dict[str, Any]


def steps(texts: dict[str, str]) -> Iterator[Step]:
    """Four for each file; `texts` are those of the files."""
    for file, name in NAMES.items():
        text = texts[file]
        renamed = re.sub(rf"\b{name}\b", f"{name}_2", text)
        yield Step(
            f"Search {file} for `{name}`.",
            "search",
            {"path": file, "pattern": name},
        )
        yield Step(
            f"Read the lines 1 to {len(text.splitlines())} of {file}.",
            "read_file",
            {"path": file, "first": 1, "last": len(text.splitlines())},
        )
        yield Step(
            f"Write {file} with `{name}` renamed to `{name}_2`. `text` is the whole file from its"
            " first line to its last, as you read it, with the new name.",
            "write_file",
            {"path": file, "text": renamed},
        )
        yield Step(
            f"Write {file} once more, with the line `# checked` added at its end. `text` is again"
            " the whole file from its first line to its last.",
            "write_file",
            {"path": file, "text": f"{renamed}# checked\n"},
        )


class Workspace:
    """The files, in memory, and what the tools do with them."""

    def __init__(self) -> None:
        folder = Path(sysconfig.get_path("stdlib"))
        self.texts = {name: (folder / name).read_text("utf-8") for name in NAMES}

    def done(self, name: str, given: dict[str, Any]) -> str:
        """The result of a tool."""
        file = str(given["path"])
        if file not in self.texts:
            return f"there is no such file; there are {', '.join(NAMES)}"
        if name == "write_file":
            self.texts[file] = given["text"]
            return "written"
        lines = self.texts[file].splitlines()
        if name == "read_file":
            return "\n".join(lines[max(0, given["first"] - 1) : given["last"]])
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
        speeds: tokens a second of each arm.
        tokens: of the answer.
        same: whether all arms wrote the same.
    """

    held: int
    cached: int
    copied: float
    speeds: Sequence[float]
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


def held_ids(vocabulary: Model, said: str) -> list[int]:
    """The ids of what a conversation holds: as it is, then as a JSON string writes it."""
    forms = (said, json.dumps(said)[1:-1])
    return [token for form in forms for token in plain_ids(vocabulary, form)]


def plain_ids(vocabulary: Model, text: str) -> list[int]:
    """The ids of a text without marks."""
    return vocabulary.tokenize(text, add_special=False, parse_special=False)


def loop(
    client: OpenAI, vocabulary: Model, arms: Sequence[str] = ("auto", "none")
) -> Iterator[TurnFigures]:
    """Yield the figures of each turn; the arms are the drafters that it is answered with."""
    workspace = Workspace()
    messages: list[Any] = [{"role": "system", "content": TASK}]
    held = 0
    for i, step in enumerate(steps(dict(workspace.texts))):
        messages.append({"role": "user", "content": step.asked})
        asked: dict[str, Any] = {
            "model": "any",
            "messages": messages,
            "tools": TOOLS,
            "tool_choice": {"type": "function", "function": {"name": step.tool}},
            "parallel_tool_calls": False,
            "temperature": 0,
            "max_tokens": 1200,
        }
        order = arms if i % 2 else arms[::-1]
        found = {
            draft: client.chat.completions.create(**asked, extra_body={"draft": draft})
            for draft in order
        }
        first = found[order[0]]
        calls = [one.choices[0].message.tool_calls[0] for one in found.values()]
        written = calls[0].function.arguments
        yield TurnFigures(
            held,
            first.timings["cache_n"],
            copied(
                plain_ids(vocabulary, written),
                held_ids(vocabulary, "\n".join(map(_text, messages))),
            ),
            [found[draft].timings["predicted_per_second"] for draft in arms],
            first.usage.completion_tokens,
            len({one.function.arguments for one in calls}) == 1,
        )
        held = first.usage.total_tokens
        messages.append(first.choices[0].message.model_dump(exclude_none=True))
        try:
            result = workspace.done(step.tool, json.loads(written))
        except ValueError:
            result = "the call was cut off"
        messages.append({"role": "tool", "tool_call_id": calls[0].id, "content": result})


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
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--exact", action="store_true")
    given = parser.parse_args()
    threads = ("-tb", "2", "--exact") if given.exact else ("-t", "2")
    with Serving(*threads, "-c", "12288", pair=str(given.model)) as one:
        client = OpenAI(base_url=f"http://127.0.0.1:{one.port}/v1", api_key="none", timeout=600)
        with VocabularyOnly.of(given.model) as vocabulary:
            report(loop(client, vocabulary))


if __name__ == "__main__":
    main()
