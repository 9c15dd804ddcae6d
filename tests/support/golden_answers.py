"""The real chat templates of llama.cpp's source, and what they write for answers that are known."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from localspec.chat.conversation import Message, Role
from localspec.chat.dialects import AnswerReading, Call, ContentPiece, Dialect, ThoughtPiece
from localspec.chat.prompt.renderer import (
    RenderBudget,
    TemplateRefused,
    TemplateRenderer,
    TemplateSource,
    TemplateUnusable,
)

HARD = 'say "hi" {to} \\ all [now], grüß <b>Öl</b> '
BOS, EOS = "<BOS>", "<EOS>"


@dataclass(frozen=True)
class Golden:
    """What a template writes for an answer, and what has to be read out of it."""

    kind: str
    prompt: str
    raw: str
    tools: list[Any] | None
    want: AnswerReading


@dataclass
class Values:
    """Random words, tools and answers of a kind."""

    rng: random.Random
    tools: list[Any] = field(default_factory=list)

    def word(self, length: int = 6) -> str:
        return "".join(self.rng.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(length))

    def answers(self) -> Iterator[tuple[str, AnswerReading]]:
        """An answer of each kind."""
        names = (f"{self.word()}_{self.word()}", self.word())
        text, number, flag, several = (self.word(n) for n in (5, 6, 7, 8))
        kinds = {text: "string", number: "integer", flag: "boolean", several: "array"}
        schema = {
            "type": "object",
            "properties": {one: {"type": kind, "description": "d"} for one, kind in kinds.items()},
            "required": [text],
        }
        schema["properties"][several]["items"] = {"type": "string"}  # type: ignore[index]
        self.tools[:] = [
            {
                "type": "function",
                "function": {"name": name, "description": "Does it.", "parameters": schema},
            }
            for name in names
        ]
        given = {text: f"{self.word()} {self.word()}", number: self.rng.randrange(1000)}
        given[flag] = self.rng.random() < 0.5
        hard = {text: HARD + self.word(), several: [self.word(), f'"{self.word()}']}
        content = f"Answer {self.word()}: it is {self.word()}.\n\nThen {self.word()}!"
        thought = f"I think {self.word()} is {self.word()}. So:\n- {self.word()}"
        call = Call(names[0], given)
        yield "content", AnswerReading(None, content)
        yield "thought", AnswerReading(thought, content)
        yield "call", AnswerReading(None, None, [call])
        yield "hard", AnswerReading(None, None, [Call(names[0], hard)])
        yield "two", AnswerReading(None, None, [call, Call(names[1], {text: self.word()})])
        yield "thought and call", AnswerReading(thought, None, [call])


def golden(renderer: TemplateRenderer, template: str, rng: random.Random) -> Iterator[Golden]:
    """What the template writes for answers of all kinds, as far as it can write them."""
    values = Values(rng)
    for kind, want in values.answers():
        for as_text, more, shown in _ways(bool(want.calls)):
            tools = list(values.tools) if shown else None
            variables = {**more, **({"tools": tools} if tools else {})}
            turn = turn_of(want, as_text=as_text)
            before = rendered(renderer, template, [], {**variables, "add_generation_prompt": True})
            after = rendered(
                renderer, template, [turn], {**variables, "add_generation_prompt": False}
            )
            if before is None or after is None or not after.startswith(before):
                continue
            raw = after[len(before) :]
            if _holds(raw, want):
                yield Golden(kind, before, raw, tools, want)
                break


def _ways(calls: bool) -> Iterator[tuple[bool, Mapping[str, Any], bool]]:
    for as_text in (False, True):
        for more in ({"enable_thinking": True}, {}):
            for shown in (True,) if calls else (False, True):
                yield as_text, more, shown


def turn_of(want: AnswerReading, *, as_text: bool) -> dict[str, Any]:
    turn: dict[str, Any] = {"role": "assistant", "content": want.content or ""}
    if want.thought:
        turn["reasoning_content"] = want.thought
    if want.calls:
        turn["tool_calls"] = [
            {
                "id": f"call{i:05}",
                "type": "function",
                "function": {
                    "name": call.name,
                    "arguments": json.dumps(call.arguments, ensure_ascii=False)
                    if as_text
                    else call.arguments,
                },
            }
            for i, call in enumerate(want.calls)
        ]
    return turn


def rendered(
    renderer: TemplateRenderer,
    template: str,
    answers: Sequence[dict[str, Any]],
    variables: dict[str, Any],
) -> str | None:
    messages = [Message(Role.USER, "Q?"), *(Message(Role.ASSISTANT, "", more=a) for a in answers)]
    source = TemplateSource(template, BOS, EOS)
    try:
        return renderer.render(source, messages, RenderBudget(20), None, variables)
    except (TemplateRefused, TemplateUnusable):
        return None


def _holds(raw: str, want: AnswerReading) -> bool:
    """Whether all of the answer was written, its arguments not as a text within JSON."""
    parts = [want.content or "", want.thought or "", *(call.name for call in want.calls)]
    return all(part in raw for part in parts) and not re.search(r'"\{\\+"', raw)


def in_pieces(
    dialect: Dialect,
    raw: str,
    tools: list[Any] | None,
    prompt: str,
    rng: random.Random,
    *,
    cut: bool = False,
) -> AnswerReading:
    """As `Dialect.read`, of an answer that comes in random pieces."""
    reader = dialect.reader(tools, prompt=prompt)
    pieces: list[Any] = []
    at = 0
    while at < len(raw):
        n = rng.choice((1, 1, 2, 3, 5, 8, 20))
        pieces += reader.feed(raw[at : at + n])
        at += n
    pieces += reader.end(cut=cut)
    return AnswerReading(
        "".join(one.text for one in pieces if isinstance(one, ThoughtPiece)) or None,
        "".join(one.text for one in pieces if isinstance(one, ContentPiece)) or None,
        [one for one in pieces if isinstance(one, Call)],
    )
