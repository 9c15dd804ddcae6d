"""Function calling: how tools are described to the model, and how its calls are constrained."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import msgspec
from msgspec import Struct

from localspec.chat.conversation import Message, Role
from localspec.chat.dialects.enforcement.call_grammar import CallGrammar, call_grammar
from localspec.chat.dialects.enforcement.value_rules import CallableTool
from localspec.chat.dialects.shapes import AnswerMarks
from localspec.chat.prompt.call_notation import PLAIN, CallNotation
from localspec.serve.core.schemas import require_bounded
from localspec.serve.refusals import Refusal


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
        only: the names of those that it may call; None for all.
    """

    mode: Literal["none", "auto", "required"] = "auto"
    only: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class RequestTools(CallNotation):
    """The tools of one request.

    Attributes:
        tools: all in the request; empty if none may be called.
        grammar: constrains calls; empty without tools.
        after: the mark after which the grammar applies; empty if a call is required.
        calls: the grammar of calls, to be combined with that of other answers.
    """

    tools: tuple[FunctionTool, ...] = ()
    grammar: str = ""
    after: str = ""
    variables: dict[str, Any] = field(default_factory=dict)
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
        marks: AnswerMarks = PLAIN,
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
        allowed = []
        for i, function in enumerate(tool.function for tool in tools):
            given = function.parameters or {"type": "object", "properties": {}}
            where = place.format(i=i, name=function.name[:64])
            require_bounded(given, where)  # of all: the model is told them
            if choice.only is None or function.name in choice.only:
                allowed.append(CallableTool(function.name, given, where, bool(function.strict)))
        if not allowed:
            names = ", ".join(tool.function.name for tool in tools)[:300]
            raise Refusal(400, f"no such tool; there are: {names}", param="tool_choice")
        told = {"tools": msgspec.to_builtins(list(tools))} if native else {}
        box = RequestTools(native, marks, tuple(tools), variables=told)
        own, several = box.in_force, parallel and box.in_force.several
        calls = call_grammar(own, allowed, several=several, thinks=thinks)
        box = replace(box, calls=calls)
        if required:
            return replace(box, grammar=calls.required())
        if not calls.begin:
            return box
        return replace(box, grammar=calls.awaited(), after=calls.begin)

    def told(self, messages: Sequence[Message]) -> list[Message]:
        """`messages`, with a description of the tools if the template does not write one."""
        if self.native or not self.tools:
            return list(messages)
        tools = (msgspec.json.encode(tool).decode() for tool in self.tools)
        system, rest = "", list(messages)
        if rest[0].role is Role.SYSTEM:
            system = rest.pop(0).content
        return [Message(Role.SYSTEM, self.explained(system, tools)), *rest]
