"""How much lookup copies of an agent's calls that quote files, over several cost curves.

The loop of `benchmarks/agent_loop.py` with scripted answers in place of a model's: every call does
what the user asks for, written as Qwen2.5-Coder writes calls. The real lookup and the real policy
replay the answers at temperature 0, first with the prompt alone to copy from, then also with its
messages as JSON writes them (`QuotedTexts`). For each curve the script prints tokens per baseline
round: over the turns of which at least 60 % of the tokens are in runs of 16 and more that the
context holds, as it is or as JSON writes it, and over the others, with a bound that knows where
every copy ends. Only the vocabulary and the template of the model are read; it takes half a minute:

    uv run python -m benchmarks.quoted_calls QWEN2.5-CODER.gguf
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llama_cpp.llama_chat_format import Jinja2ChatFormatter

from benchmarks.agent_loop import (
    MANY,
    TASK,
    TOOLS,
    Workspace,
    copied,
    held_ids,
    plain_ids,
    steps,
)
from benchmarks.real_curves import rounds_of
from benchmarks.real_lookup import CURVES, EndsKnown, places
from benchmarks.several import Answer, Prices
from localspec.chat.conversation import Message, Role
from localspec.chat.prompt.quoted_texts import QuotedTexts
from localspec.engine.length.cost import Points
from localspec.engine.length.gamma import AutoGamma
from tests.support.llama_source import VocabularyOnly

CLANG: Points = {1: 1, 2: 1.8, 4: 2.3, 8: 5.2, 16: 6.6, 64: 19.6}
"""Qwen2.5-Coder-1.5B in Q4_K_M on two cores of an AMD EPYC, llama.cpp built with Clang; T(64) by
its ratio to T(16) on the first of `CURVES`."""

HEAD = (
    "| curve | copying: prompt | quoted | ends known | others: prompt | quoted | ends known |"
    "\n|---|---|---|---|---|---|---|"
)


@dataclass(frozen=True)
class Turn:
    """One answer.

    Attributes:
        many: whether enough of its tokens stand in runs that the context holds in either form.
        alone: what lookup copies from the prompt.
        quoting: what it copies with the messages as JSON writes them.
    """

    many: bool
    alone: Answer
    quoting: Answer


def turns(model: VocabularyOnly) -> Iterator[Turn]:
    """Those of all files."""
    render = Jinja2ChatFormatter(model.chat_template or "", eos_token="", bos_token="")
    workspace, quoted = Workspace(), QuotedTexts(model)
    messages: list[Any] = [{"role": "system", "content": TASK}]
    context: list[str] = [TASK]
    for step in steps(dict(workspace.texts)):
        messages.append({"role": "user", "content": step.asked})
        context.append(step.asked)
        call, arguments = {"name": step.tool, "arguments": step.wanted}, json.dumps(step.wanted)
        text = f"<tool_call>\n{json.dumps(call)}\n</tool_call>"
        prompt = model.tokenize(
            render(messages=messages, tools=TOOLS).prompt, add_special=True, parse_special=True
        )
        answer = model.tokenize(text, add_special=False, parse_special=True)
        past = quoted.past(Message(Role.USER, part) for part in context)
        yield Turn(
            copied(plain_ids(model, arguments), held_ids(model, "\n".join(context))) >= MANY,
            places(prompt, answer),
            places(prompt, answer, past),
        )
        messages.append({"role": "assistant", "content": "", "tool_calls": [{"function": call}]})
        messages.append({"role": "tool", "content": workspace.done(step.tool, step.wanted)})
        context += [arguments, messages[-1]["content"]]


def row(found: Sequence[Turn], points: Points) -> str:
    """Tokens per baseline round of the copying turns, then of the others; see `HEAD`."""
    prices = Prices.of(points, {})
    alone, quoting = AutoGamma(prices.costs()), AutoGamma(prices.costs())
    spent = [
        (
            rounds_of(alone, turn.alone, prices),
            rounds_of(quoting, turn.quoting, prices),
            len(turn.quoting) / EndsKnown(turn.quoting, prices).rate,
        )
        for turn in found
    ]
    cells: list[str] = []
    for many in (True, False):
        its = [each for turn, each in zip(found, spent, strict=True) if turn.many is many]
        tokens = sum(len(turn.alone) for turn in found if turn.many is many)
        cells += [f"{tokens / sum(column):.2f}" for column in zip(*its, strict=True)]
    return " | ".join(cells)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    with VocabularyOnly.of(parser.parse_args().model) as model:
        found = list(turns(model))
    print(f"{sum(one.many for one in found)} of {len(found)} turns copy")
    curves: Mapping[str, Points] = {"EPYC, 1.5B Q4_K_M, Clang": CLANG, **CURVES}
    print(HEAD)
    for name, points in curves.items():
        print(f"| {name} | {row(found, points)} |", flush=True)


if __name__ == "__main__":
    main()
