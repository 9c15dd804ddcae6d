"""How a model is told of tools, of its earlier calls, and of their results."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from localspec.chat.conversation import Message, Role, tools_called
from localspec.chat.dialects import Dialect
from localspec.chat.dialects.enforcement.call_grammar import CallGrammar, call_grammar
from localspec.chat.dialects.enforcement.value_rules import CallableTool
from localspec.chat.dialects.shapes import HERMES, AnswerMarks
from localspec.engine.record.stats import FinishReason

_PLAIN = AnswerMarks(calls=(HERMES,), several=True, writes=True)
_ID = 9  # characters; the templates of Mistral's models require this length
_EXPLAINED = """\
You may call functions. These are the functions, as JSON schemas:
<tools>
{tools}
</tools>
To call one, write its name and arguments as JSON between marks, and nothing after them:
<tool_call>
{{"name": "...", "arguments": {{...}}}}
</tool_call>"""


@dataclass(frozen=True, slots=True)
class ToolPrompt:
    """Tools, and how one model is told of them.

    A model whose template does not describe tools is told of them in the system prompt, in the
    notation of Hermes and Qwen, which most models know.

    Attributes:
        dialect: of the model.
        tools: in the form of OpenAI's requests; empty if none may be called.
    """

    dialect: Dialect = field(default_factory=Dialect)
    tools: tuple[dict[str, Any], ...] = ()

    @property
    def native(self) -> bool:
        """Whether the model's template describes tools."""
        return self.dialect.marks.explained

    @property
    def marks(self) -> AnswerMarks:
        """How the model writes calls."""
        return self.dialect.marks if self.native else _PLAIN

    @property
    def variables(self) -> dict[str, Any]:
        """Further variables for the chat template."""
        return {"tools": list(self.tools)} if self.native and self.tools else {}

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

        An answer has its thoughts apart. If results of tools follow it, it has the calls that they
        answer, in place of its own text of these.
        """
        told: list[Message] = []
        begin = 0
        while begin < len(messages):
            end = begin + 1
            while end < len(messages) and messages[end].role is Role.TOOL:
                end += 1
            told += self._with_results(messages[begin], messages[begin + 1 : end])
            begin = end
        return told

    def explained(self, system_prompt: str) -> str:
        """The system prompt, with a description of the tools unless the template writes one."""
        if self.native or not self.tools:
            return system_prompt
        tools = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in self.tools)
        return "\n\n".join(filter(None, [system_prompt, _EXPLAINED.format(tools=tools)]))

    def _with_results(self, message: Message, results: Sequence[Message]) -> Iterator[Message]:
        """A message, and the results of tools that follow it."""
        known = [one for one in results if one.more.get("name")]
        if message.role is not Role.ASSISTANT or not known or message.more:
            yield self._without_thoughts(message)
            yield from (_as_text(one.content) for one in results)
            return
        cut = message.finish is not FinishReason.STOP
        found = self.dialect.read(message.content, tools_called(known), cut=cut)
        more = {"reasoning_content": found.thought} if found.thought else {}
        answer = Message(Role.ASSISTANT, found.content or "", more=more)
        for group in [known] if self.marks.several else [[one] for one in known]:
            yield self._calling(answer, group)
            yield from map(self._returned, group)
            answer = Message(Role.ASSISTANT, "")

    def _without_thoughts(self, message: Message) -> Message:
        """A message; an answer's thoughts are separated from its text."""
        if message.role is Role.TOOL:
            return _as_text(message.content)
        if message.role is not Role.ASSISTANT or message.more:
            return message
        cut = message.finish is not FinishReason.STOP
        found = self.dialect.said(message.content, cut=cut)
        if found.content == message.content:
            return message
        more = {"reasoning_content": found.thought} if found.thought else {}
        return Message(Role.ASSISTANT, found.content or "", more=more)

    def _calling(self, answer: Message, results: Sequence[Message]) -> Message:
        """An answer that ends with the calls of these results."""
        if self.native and self.marks.writes:
            calls = [
                {"id": _identity(one), "type": "function", "function": self._function(one)}
                for one in results
            ]
            return replace(answer, more={**answer.more, "tool_calls": calls})
        (begin,), (end,) = HERMES.before, HERMES.after
        written = [
            f'{begin}\n{{"name": {json.dumps(one.more["name"])},'
            f' "arguments": {one.more["arguments"]}}}\n{end}'
            for one in results
        ]
        return replace(answer, content="\n".join(filter(None, [answer.content, *written])))

    def _function(self, result: Message) -> dict[str, Any]:
        arguments = result.more["arguments"]
        given = arguments if self.marks.as_text else _object(arguments)
        return {"name": result.more["name"], "arguments": given}

    def _returned(self, result: Message) -> Message:
        if not self.native:
            return _as_text(result.content)
        name = result.more["name"]
        more = {"role": "tool", "tool_call_id": _identity(result), "name": name}
        return Message(Role.USER, result.content, more=more)


def _as_text(result: str) -> Message:
    return Message(Role.USER, f"<tool_response>\n{result}\n</tool_response>")


def _object(arguments: str) -> dict[str, Any]:
    """A call's arguments; an empty object if a file has spoilt them."""
    try:
        found = json.loads(arguments)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _identity(result: Message) -> str:
    """An id for the call of a result, in a form that every template accepts."""
    of = f"{result.more['name']} {result.more['arguments']}"
    return hashlib.sha256(of.encode("utf-8", "replace")).hexdigest()[:_ID]
