"""Describes tools, earlier calls and their results to a model."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from localspec.chat.conversation import Message, Role, tools_called
from localspec.chat.dialects import Dialect
from localspec.chat.dialects.enforcement.call_grammar import CallGrammar, call_grammar
from localspec.chat.dialects.enforcement.value_rules import CallableTool
from localspec.chat.dialects.shapes import AnswerMarks
from localspec.chat.prompt.call_notation import CallNotation, as_text
from localspec.engine.record.stats import FinishReason


@dataclass(frozen=True, slots=True)
class ToolPrompt:
    """Tools, in the form that one model reads.

    Attributes:
        tools: in the form of OpenAI's requests; empty if none may be called.
    """

    dialect: Dialect = field(default_factory=Dialect)
    tools: tuple[dict[str, Any], ...] = ()

    @property
    def notation(self) -> CallNotation:
        """The model's notation of calls."""
        return CallNotation(self.dialect.marks.explained, self.dialect.marks)

    @property
    def marks(self) -> AnswerMarks:
        """How the model writes calls."""
        return self.notation.in_force

    @property
    def variables(self) -> dict[str, Any]:
        """Further variables for the chat template."""
        return {"tools": list(self.tools)} if self.notation.native and self.tools else {}

    def grammar(self) -> tuple[str, tuple[str, ...]]:
        """A grammar of calls, and the marks after which it applies; empty if nothing marks a call.

        What it cannot enforce of a schema is only a hint to the model.
        """
        if not self.tools:
            return "", ()
        calls = self._calls()
        return (calls.awaited(), (calls.begin,)) if calls.begin else ("", ())

    def _calls(self) -> CallGrammar:
        functions = [tool["function"] for tool in self.tools]
        callable_tools = [
            CallableTool(one["name"], one["parameters"], one["name"], strict=False)
            for one in functions
        ]
        thinks = self.dialect.thinking.budget
        return call_grammar(self.marks, callable_tools, several=self.marks.several, thinks=thinks)

    def told(self, messages: Sequence[Message]) -> list[Message]:
        """`messages` as the template needs them, without the system prompt.

        Thoughts of an answer are separate from its text. If results of tools follow an answer, it
        has the calls that they belong to, in place of the text in which the model wrote them.
        """
        told: list[Message] = []
        begin = 0
        while begin < len(messages):
            end = begin + 1
            while end < len(messages) and messages[end].role is Role.TOOL:
                end += 1
            told += self._with_results(messages[begin], messages[begin + 1 : end])
            begin = end
        return [*self.notation.numbered(told)]

    def explained(self, system_prompt: str) -> str:
        """The system prompt, with a description of the tools unless the template writes one."""
        if self.notation.native or not self.tools:
            return system_prompt
        tools = (json.dumps(tool, ensure_ascii=False) for tool in self.tools)
        return self.notation.explained(system_prompt, tools)

    def _with_results(self, message: Message, results: Sequence[Message]) -> Iterator[Message]:
        """A message, and the results of tools that follow it."""
        known = [one for one in results if one.more.get("name")]
        if message.role is not Role.ASSISTANT or not known or message.more:
            yield self._without_thoughts(message)
            yield from (as_text(one.content) for one in results)
            return
        cut = message.finish is not FinishReason.STOP
        found = self.dialect.read(message.content, tools_called(known), cut=cut)
        text, thoughts = found.content or "", found.thought
        for group in [known] if self.marks.several else [[one] for one in known]:
            calls = [(_call(one), one.more["name"], one.more["arguments"]) for one in group]
            yield self.notation.called(text, thoughts, calls)
            for one in group:
                yield self.notation.returned(one.content, _call(one), one.more["name"])
            text, thoughts = "", None

    def _without_thoughts(self, message: Message) -> Message:
        """A message; an answer's thoughts are separated from its text."""
        if message.role is Role.TOOL:
            return as_text(message.content)
        if message.role is not Role.ASSISTANT or message.more:
            return message
        cut = message.finish is not FinishReason.STOP
        found = self.dialect.said(message.content, cut=cut)
        if found.content == message.content:
            return message
        more = {"reasoning_content": found.thought} if found.thought else {}
        return Message(Role.ASSISTANT, found.content or "", more=more)


def _call(result: Message) -> str:
    """A call's id: the same whenever the conversation is told."""
    return f"{result.more['name']} {result.more['arguments']}"
