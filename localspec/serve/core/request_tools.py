"""Function calling: how tools are described to the model, and how its calls are constrained."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import msgspec
from msgspec import Struct

from localspec.chat.conversation import Message, Role
from localspec.chat.dialects.enforcement.call_grammar import CallGrammar, call_grammar
from localspec.chat.dialects.enforcement.value_rules import CallableTool
from localspec.chat.dialects.notations.values import repaired
from localspec.chat.dialects.shapes import HERMES as HERMES_CALLS
from localspec.chat.dialects.shapes import AnswerMarks
from localspec.serve.core.schemas import DEEPEST, depth, require_bounded
from localspec.serve.refusals import Refusal

(BEGIN,), (END,) = HERMES_CALLS.before, HERMES_CALLS.after
HERMES = AnswerMarks(calls=(HERMES_CALLS,), several=True, writes=True)
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


class NamedFunction(Struct, omit_defaults=True):
    """A function with its name.

    Attributes:
        parameters: the JSON schema of its arguments.
        strict: whether the whole schema must be enforced; if not, what cannot be is only a hint to
            the model.
    """

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class FunctionTool(Struct):
    """A tool that is a function."""

    type: Literal["function"]
    function: NamedFunction


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """Which tools the model may call.

    Attributes:
        mode: whether it may, must or must not call one.
        only: the names of those that it may call; None for all.
    """

    mode: Literal["none", "auto", "required"] = "auto"
    only: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class RequestTools:
    """The tools of one request.

    Attributes:
        native: the model's template describes tools itself; else a system prompt does.
        tools: all in the request; empty if none may be called.
        grammar: constrains calls; empty without tools.
        after: the mark after which the grammar applies; empty if a call is required.
        marks: how the model writes calls.
        calls: the grammar of calls, to be combined with that of other answers.
    """

    native: bool = False
    tools: tuple[FunctionTool, ...] = ()
    grammar: str = ""
    after: str = ""
    variables: dict[str, Any] = field(default_factory=dict)
    marks: AnswerMarks = HERMES
    calls: CallGrammar | None = None

    @property
    def one_at_a_time(self) -> bool:
        """Whether the template shows calls, but refuses several in one turn."""
        return self.native and self.marks.writes and not self.marks.several

    @staticmethod
    def of(
        tools: Sequence[FunctionTool],
        choice: ToolChoice = ToolChoice(),
        *,
        native: bool,
        parallel: bool,
        marks: AnswerMarks = HERMES,
        thinks: bool = False,
        place: str = "tools[{i}].function.parameters",
    ) -> RequestTools:
        """The tools that a request allows.

        Args:
            tools: all in the request.
            choice: which of them may, or must, be called.
            native: the model's template describes tools itself.
            parallel: several may be called in one answer.
            marks: how the model writes calls, if its template describes tools.
            thinks: the model may think before calls.
            place: where requests have a tool's schema, by its index ``i`` or its ``name``.

        Raises:
            Refusal: the choice is invalid, or a schema is too large.
            SchemaError: a schema that must be enforced cannot be.
        """
        required = choice.mode == "required"
        if not tools or choice.mode == "none":
            if required:
                raise Refusal(400, "there are no tools to choose from", param="tool_choice")
            return RequestTools(native, marks=marks)
        allowed = [
            (place.format(i=i, name=tool.function.name[:64]), tool.function)
            for i, tool in enumerate(tools)
            if choice.only is None or tool.function.name in choice.only
        ]
        if not allowed:
            names = ", ".join(tool.function.name for tool in tools)[:300]
            raise Refusal(400, f"no such tool; there are: {names}", param="tool_choice")
        told = {"tools": msgspec.to_builtins(list(tools))} if native else {}
        own = marks if native else HERMES
        several = parallel and own.several
        calls = call_grammar(own, _callable(allowed), several=several, thinks=thinks)
        box = RequestTools(native, tuple(tools), variables=told, marks=marks, calls=calls)
        if required:
            return replace(box, grammar=calls.required())
        if not calls.begin:
            return box
        return replace(box, grammar=calls.awaited(), after=calls.begin)

    def told(self, messages: Sequence[Message]) -> list[Message]:
        """`messages`, with a description of the tools if the template does not write one."""
        if self.native or not self.tools:
            return list(messages)
        tools = "\n".join(msgspec.json.encode(tool).decode() for tool in self.tools)
        first, rest = Message(Role.SYSTEM, _EXPLAINED.format(tools=tools)), list(messages)
        if rest[0].role is Role.SYSTEM:
            first = Message(Role.SYSTEM, f"{rest.pop(0).content}\n\n{first.content}")
        return [first, *rest]

    def called(
        self, text: str, thoughts: str | None, calls: Sequence[tuple[str, str, Any]]
    ) -> Message:
        """An earlier answer of the model: text, thoughts, calls as (id, name, arguments)."""
        more: dict[str, Any] = {"reasoning_content": thoughts} if thoughts else {}
        if calls and not (self.native and self.marks.writes):
            written = [
                f'{{"name": {json.dumps(name)}, "arguments": {_text(given)}}}'
                for _, name, given in calls
            ]
            text = "\n".join(
                [*([text] if text else []), *(f"{BEGIN}\n{one}\n{END}" for one in written)]
            )
        elif calls:
            more["tool_calls"] = [
                {
                    "id": _identity(name_of),
                    "type": "function",
                    "function": {
                        "name": name,
                        "arguments": _text(given) if self.marks.as_text else call_object(given),
                    },
                }
                for name_of, name, given in calls
            ]
        return Message(Role.ASSISTANT, text, more=more)

    def returned(self, text: str, call: str | None, name: str | None) -> Message:
        """A tool's result; a user's message if the template does not support tools."""
        if not self.native:
            return Message(Role.USER, f"<tool_response>\n{text}\n</tool_response>")
        return Message(
            Role.USER,
            text,
            more={"role": "tool", "tool_call_id": _identity(call or ""), "name": name or ""},
        )


def call_object(given: Any) -> dict[str, Any]:
    """A call's arguments as an object, which templates need; truncated JSON is completed."""
    if isinstance(given, str):
        given = repaired(given)
    return given if isinstance(given, dict) and depth(given) <= DEEPEST else {}


def _text(given: Any) -> str:
    """A call's arguments as JSON text; valid JSON stays as it was written."""
    try:
        if isinstance(given, str) and isinstance(json.loads(given), dict):
            return given
    except (ValueError, RecursionError):
        pass
    return json.dumps(call_object(given), ensure_ascii=False)


def _identity(of: str) -> str:
    """A call's id in a form that every template accepts."""
    plain = len(of) == _ID and of.isascii() and of.isalnum()
    return of if plain else hashlib.sha256(of.encode("utf-8", "replace")).hexdigest()[:_ID]


def _callable(allowed: Sequence[tuple[str, NamedFunction]]) -> list[CallableTool]:
    """The functions that may be called, each with the place of its schema.

    Raises:
        Refusal: a schema is too large.
    """
    found = []
    for place, function in allowed:
        given = function.parameters or {"type": "object", "properties": {}}
        require_bounded(given, place)
        found.append(CallableTool(function.name, given, place, bool(function.strict)))
    return found
