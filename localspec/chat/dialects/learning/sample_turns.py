"""Renders answers with known values, from which a dialect is learnt."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from localspec.chat.conversation import Message, Role
from localspec.chat.dialects.shapes import told_thought
from localspec.chat.prompt.renderer import (
    RenderBudget,
    TemplateRefused,
    TemplateRenderer,
    TemplateSource,
)

TurnData = dict[str, Any]

_ON: TurnData = {"enable_thinking": True, "thinking": True}  # variables that switch thoughts on


@dataclass(frozen=True, slots=True)
class SampleTurn:
    """Known values for a turn. None of them occurs in a template, or looks like a mark.

    Attributes:
        names: of two tools.
        arguments: of a call, by name: two texts, a number, an object.
        ids: of two calls; nine letters, which some templates require.
    """

    thought: str
    content: str
    names: tuple[str, str]
    arguments: TurnData
    ids: tuple[str, str]

    @property
    def tools(self) -> list[TurnData]:
        """The tools in the form of OpenAI's requests."""
        kinds: dict[type, TurnData] = {
            str: {"type": "string"},
            int: {"type": "integer"},
            dict: {"type": "object", "properties": {}},
        }
        properties = {
            name: {**kinds[type(value)], "description": "a value"}
            for name, value in self.arguments.items()
        }
        schema = {"type": "object", "properties": properties, "required": []}
        return [
            {
                "type": "function",
                "function": {"name": name, "description": "a tool", "parameters": schema},
            }
            for name in self.names
        ]


FIRST = SampleTurn(
    thought="Zqwo thinks vurl.",
    content="Xkel answers dorn.",
    names=("zqfetch_vorb", "zqstore_wilm"),
    arguments={
        "zqkey_ann": "Qum brel one",
        "zqkey_bor": "Qum drel two",
        "zqkey_cyd": 48213,
        "zqkey_dov": {"zqin": "deep"},
    },
    ids=("zqAbcdef1", "zqGhijkl2"),
)
SECOND = SampleTurn(
    thought="A rather longer train, of 37 thoughts: pelm?\nAnd a line (more).",
    content="Now 5 words, then: frem!\n\nA paragraph.",
    names=("pq_look_up", "pq_do"),
    arguments={
        "pqname": 'he said: "no" {to} \\it, gr\u00fcn',
        "pqtext": "two words",
        "pqcount": 7,
        "pqmore": {"pqd": "x y"},
    },
    ids=("pqMnopqr3", "pqStuvwx4"),
)


def numbered(sample: SampleTurn, start: int = 0) -> SampleTurn:
    """`sample` with the ids that Kimi K2 writes, counted from `start`."""
    first, second = (f"functions.{name}:{i}" for i, name in enumerate(sample.names, start))
    return replace(sample, ids=(first, second))


@dataclass(slots=True)
class TurnWriter:
    """Renders turns, within one budget for all."""

    renderer: TemplateRenderer
    source: TemplateSource
    budget: RenderBudget
    _known: dict[str, str | None] = field(default_factory=dict)

    def prompt(self, sample: SampleTurn, *, tools: bool = False, **more: Any) -> str | None:
        """The rendered question; None if the template refuses it."""
        return self._rendered(sample, [], tools, True, more)

    def turn(
        self, sample: SampleTurn, *answers: TurnData, tools: bool = False, **more: Any
    ) -> str | None:
        """The text that answers add after a question, including the beginning of the first turn.

        Args:
            sample: the values.
            answers: the messages; those without a role are the model's.
            tools: whether the template gets tools.
            more: variables; a value of None leaves its variable undefined.

        Returns:
            None if the template refuses the answers, or changes the text before them.
        """
        before = self._rendered(sample, [], tools, False, more)
        after = self._rendered(sample, answers, tools, False, more)
        if before is None or after is None:
            return None
        if after.startswith(before):
            return after[len(before) :]
        prompt = self._rendered(sample, [], tools, True, more)
        return after[len(prompt) :] if prompt and after.startswith(prompt) else None

    def opening(self, sample: SampleTurn, *, tools: bool = False, **more: Any) -> str | None:
        """The text that the template puts before a new answer."""
        before = self._rendered(sample, [], tools, False, more)
        prompt = self._rendered(sample, [], tools, True, more)
        if before is None or prompt is None or not prompt.startswith(before):
            return None
        return prompt[len(before) :]

    def earlier(self, sample: SampleTurn, answer: TurnData) -> str | None:
        """The turn of `answer` as it is rendered once another question follows."""
        before = self._rendered(sample, [], False, False, {})
        after = self._rendered(
            sample, [answer, {"role": "user", "content": "Zq again"}], False, False, {}
        )
        return after[len(before) :] if before and after and after.startswith(before) else None

    def _rendered(
        self,
        sample: SampleTurn,
        answers: Sequence[TurnData],
        tools: bool,
        generation: bool,
        more: TurnData,
    ) -> str | None:
        messages = [Message(Role.USER, "Zq asks?")]
        messages += [
            Message(Role.ASSISTANT, "", more={"role": "assistant", **one}) for one in answers
        ]
        variables = {**_ON, **more, "add_generation_prompt": generation}
        variables = {name: value for name, value in variables.items() if value is not None}
        variables |= {"tools": sample.tools} if tools else {}
        key = json.dumps([[message.more for message in messages], variables])
        if key not in self._known:
            try:
                text = self.renderer.render(self.source, messages, self.budget, None, variables)
            except TemplateRefused:
                text = None
            self._known[key] = text
        return self._known[key]


def thinking_turn(
    sample: SampleTurn, content: str | None = None, *, parts: bool = False
) -> TurnData:
    """An answer with a thought; `parts` is as in `told_thought`."""
    said = sample.content if content is None else content
    return {"content": said, **told_thought(sample.thought, said, parts=parts)}


def calling_turn(
    sample: SampleTurn,
    n: int,
    *,
    as_text: bool,
    arguments: Mapping[str, Any] | None = None,
    content: Any = "",
) -> TurnData:
    """An answer with `n` calls."""
    given = sample.arguments if arguments is None else arguments
    return {
        "content": content,
        "tool_calls": [
            {
                "id": sample.ids[i],
                "type": "function",
                "function": {
                    "name": sample.names[i],
                    "arguments": json.dumps(given, ensure_ascii=False) if as_text else given,
                },
            }
            for i in range(n)
        ],
    }
