"""Function calling: what the model is told of tools, what holds its calls, and what it calls."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import msgspec
from msgspec import Struct

from localspec.chat.conversation import Message, Role
from localspec.chat.dialects.enforcement.call_grammar import HERMES as HERMES_CALLS
from localspec.chat.dialects.enforcement.call_grammar import CallGrammar, call_grammar
from localspec.chat.dialects.enforcement.value_rules import CallableTool
from localspec.chat.dialects.notations.values import repaired
from localspec.chat.dialects.shapes import AnswerMarks
from localspec.serve.refusals import Refusal
from localspec.serve.schemas import DEEPEST, depth, require_bounded

# The marks of Hermes and Qwen, which most models know.
(BEGIN,), (END,) = HERMES_CALLS.before, HERMES_CALLS.after
HERMES = AnswerMarks(calls=(HERMES_CALLS,), several=True, writes=True)
_ID = 9  # characters; templates of Mistral's models take no other number
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
    """A function by name.

    Attributes:
        parameters: the JSON schema of its arguments.
        strict: whether all of that has to be enforced; else what cannot be is a hint to the model.
    """

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class FunctionTool(Struct):
    """A tool that is a function."""

    type: Literal["function"]
    function: NamedFunction


ToolChoice = Literal["none", "auto", "required"] | FunctionTool | None


@dataclass(frozen=True, slots=True)
class RequestTools:
    """The tools of one request.

    Attributes:
        native: the model's template shows tools by itself; else a system prompt explains them.
        tools: as they came; none where none may be called.
        grammar: what calls conform to; empty without tools.
        after: the mark behind which it holds; empty where a call is required.
        marks: how the model writes calls.
        calls: the grammar of calls, for what else an answer may be.
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
        """Whether the template takes one call a turn: it shows calls, and refuses several."""
        return self.native and self.marks.writes and not self.marks.several

    @staticmethod
    def of(
        tools: Sequence[FunctionTool],
        choice: ToolChoice,
        *,
        native: bool,
        parallel: bool,
        marks: AnswerMarks = HERMES,
        thinks: bool = False,
    ) -> RequestTools:
        """The tools that a request allows.

        Args:
            tools: all that came.
            choice: which of them may, or must, be called.
            native: the model's template shows tools by itself.
            parallel: several may be called in one answer.
            marks: how the model writes calls, where its template shows them.
            thinks: the model may think ahead of calls.

        Raises:
            Refusal: the choice makes no sense, or a schema is too large.
            SchemaError: one that has to be enforced cannot be.
        """
        if not tools or choice == "none":
            if isinstance(choice, FunctionTool) or choice == "required":
                raise Refusal(400, "there are no tools to choose from", param="tool_choice")
            return RequestTools(native, marks=marks)
        allowed = list(enumerate(tools))
        if isinstance(choice, FunctionTool):
            allowed = [one for one in allowed if one[1].function.name == choice.function.name]
            if not allowed:
                names = ", ".join(tool.function.name for tool in tools)[:300]
                raise Refusal(400, f"no such tool; there are: {names}", param="tool_choice")
        required = choice == "required" or isinstance(choice, FunctionTool)
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
        """`messages`, with the tools explained where the template does not show them."""
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
        """What the model said before: text, thoughts, calls as (id, name, arguments)."""
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
                        "arguments": _text(given) if self.marks.as_text else _object(given),
                    },
                }
                for name_of, name, given in calls
            ]
        return Message(Role.ASSISTANT, text, more=more)

    def returned(self, text: str, call: str | None, name: str | None) -> Message:
        """What a tool has returned; to templates without tools the user says it."""
        if not self.native:
            return Message(Role.USER, f"<tool_response>\n{text}\n</tool_response>")
        return Message(
            Role.USER,
            text,
            more={"role": "tool", "tool_call_id": _identity(call or ""), "name": name or ""},
        )


def _object(given: Any) -> dict[str, Any]:
    """Arguments as templates want them, an object: of what was cut off, as much as there is."""
    if isinstance(given, str):
        given = repaired(given)
    return given if isinstance(given, dict) and depth(given) <= DEEPEST else {}


def _text(given: Any) -> str:
    """The same as the text of JSON; what is whole stays as it was written."""
    try:
        if isinstance(given, str) and isinstance(json.loads(given), dict):
            return given
    except (ValueError, RecursionError):
        pass
    return json.dumps(_object(given), ensure_ascii=False)


def _identity(of: str) -> str:
    """A call's id in the form that every template takes."""
    plain = len(of) == _ID and of.isascii() and of.isalnum()
    return of if plain else hashlib.sha256(of.encode("utf-8", "replace")).hexdigest()[:_ID]


def _callable(allowed: Sequence[tuple[int, FunctionTool]]) -> list[CallableTool]:
    """The tools that may be called.

    Raises:
        Refusal: a schema is too large.
    """
    found = []
    for i, tool in allowed:
        function, place = tool.function, f"tools[{i}].function.parameters"
        given = function.parameters or {"type": "object", "properties": {}}
        require_bounded(given, place)
        found.append(CallableTool(function.name, given, place, bool(function.strict)))
    return found
