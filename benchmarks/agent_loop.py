"""An agent's loop of tool calls on real files through `localspec serve`.

In five modules of Python's standard library a function is searched, read, renamed and noted down:
four turns each, in each of which the user asks for one call of a tool that the request names. To
rename a function the model quotes it twice, to note it down once. Every turn is answered twice,
with drafts and without, in changing order. For each turn the script prints how much of the turn
before came from the caches, how many of the answer's tokens are in runs of 16 and more that the
conversation holds, as it is or as JSON writes it, and both speeds of decoding; then the ratio over
the turns with many such tokens, and over the others. It takes some ten minutes.

    uv run python -m benchmarks.agent_loop MODEL.gguf [--exact]
"""

from __future__ import annotations

import argparse
import ast
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

FUNCTIONS = {
    "fnmatch.py": "filter",
    "heapq.py": "_siftdown",
    "linecache.py": "getlines",
    "shutil.py": "copyfileobj",
    "stat.py": "filemode",
}
RUN = 16  # tokens
MANY = 0.6  # of an answer's tokens in such runs
TASK = "You work on Python files with tools. Do what the user asks by one call of a tool at a time."


TOOLS = [
    tool("search", "The lines of a file that a regular expression matches.", path="string",
         pattern="string"),
    tool("read_file", "Lines of a file.", path="string", first="integer", last="integer"),
    tool("replace_text", "Replaces a text in a file by another one.", path="string", old="string",
         new="string"),
    tool("write_note", "Writes a note for later.", text="string"),
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
    for file, name in FUNCTIONS.items():
        nodes = ast.walk(ast.parse(texts[file]))
        node = next(it for it in nodes if isinstance(it, ast.FunctionDef) and it.name == name)
        old = ast.get_source_segment(texts[file], node) or ""
        new = old.replace(f"def {name}(", f"def {name}_checked(", 1)
        lines = {"first": node.lineno, "last": node.end_lineno}
        yield Step(
            f"Search {file} for the definition of `{name}`.",
            "search",
            {"path": file, "pattern": f"def {name}"},
        )
        yield Step(
            f"Read the lines {node.lineno} to {node.end_lineno} of {file}.",
            "read_file",
            {"path": file, **lines},
        )
        yield Step(
            f"Rename this function to `{name}_checked`. `old` is the whole function as you read it,"
            " down to its last line; `new` is the whole function again, with the new name.",
            "replace_text",
            {"path": file, "old": old, "new": new},
        )
        yield Step(
            "Write a note with the whole function as it is now, down to its last line.",
            "write_note",
            {"text": new},
        )


class Workspace:
    """The files, in memory, and what the tools do with them."""

    def __init__(self) -> None:
        folder = Path(sysconfig.get_path("stdlib"))
        self.texts = {name: (folder / name).read_text("utf-8") for name in FUNCTIONS}

    def done(self, name: str, given: dict[str, Any]) -> str:
        """The result of a tool."""
        if name == "write_note":
            return "noted"
        file = str(given["path"]).rpartition("/")[2]
        if file not in self.texts:
            return f"there is no such file; there are {', '.join(FUNCTIONS)}"
        text = self.texts[file]
        lines = text.splitlines()
        if name == "read_file":
            return "\n".join(lines[max(0, given["first"] - 1) : given["last"]][:40])
        if name == "replace_text":
            self.texts[file] = text.replace(given["old"], given["new"], 1)
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
            "max_tokens": 800,
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
