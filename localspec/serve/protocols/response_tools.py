"""The tools of OpenAI's responses: flat, in namespaces, and with free text as input."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from msgspec import Struct

from localspec.serve.core.request_tools import FunctionTool, NamedFunction, ToolChoice
from localspec.serve.core.requests import MOST_TOOLS, converted
from localspec.serve.protocols.free_text import InputGrammar, function_of
from localspec.serve.refusals import Refusal

_CALLED = ("function", "custom")
KINDS = (*_CALLED, "namespace")
"""The types of tools that are described to the model."""


class ListedTool(Struct):
    """A function in a request, or a custom tool."""

    type: str
    name: str = ""
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    format: InputGrammar | None = None

    def function(self, told: str) -> NamedFunction:
        """The tool as it is described to the model, under the name `told`."""
        if self.type == "custom":
            return function_of(told, self.description, self.format)
        return NamedFunction(told, self.description, self.parameters, self.strict or None)


class ToolNamespace(Struct):
    """Tools with a common name in a request."""

    name: str = ""
    tools: list[dict[str, Any]] = []


class AllowedTool(Struct):
    """A tool that may be called."""

    name: str = ""
    namespace: str | None = None


class ListedChoice(Struct):
    """Which tools may be called."""

    type: str
    name: str = ""
    namespace: str | None = None
    mode: Literal["auto", "required"] = "auto"
    tools: list[AllowedTool] = []


@dataclass(frozen=True, slots=True)
class OfferedTool:
    """A tool that the model may call.

    Attributes:
        told: the name under which it is described to the model.
        namespace: that it belongs to; empty for none.
        free: its input is free text.
    """

    told: str
    name: str
    namespace: str
    free: bool
    function: NamedFunction


@dataclass(frozen=True, slots=True)
class OfferedTools:
    """The tools of a request that the model may call; those of unknown types are left out."""

    by_told: dict[str, OfferedTool]

    @staticmethod
    def of(tools: Sequence[dict[str, Any]]) -> OfferedTools:
        """The tools in a request.

        Those in namespaces keep their names, unless two have the same.

        Raises:
            Refusal: one of a known type has another form, or there are too many.
        """
        flat = list(_flat(tools))
        if len(flat) > MOST_TOOLS:
            said = f"there are {len(flat)} tools; at most {MOST_TOOLS} are possible"
            raise Refusal(400, said, param="tools")
        times = Counter(tool.name for _, tool in flat)
        found = {}
        for namespace, tool in flat:
            twice = namespace and times[tool.name] > 1
            told = f"{namespace}__{tool.name}" if twice else tool.name
            free, function = tool.type == "custom", tool.function(told)
            found[told] = OfferedTool(told, tool.name, namespace, free, function)
        return OfferedTools(found)

    @property
    def tools(self) -> list[FunctionTool]:
        """The tools as they are described to the model."""
        return [FunctionTool("function", one.function) for one in self.by_told.values()]

    def told(self, name: str, namespace: str | None = None) -> str:
        """The name that the model knows for a tool of the request; `name` if there is no such tool.

        Without a namespace, the tool that is in none comes before those that are in one.
        """
        found = {one.namespace: one.told for one in self.by_told.values() if one.name == name}
        if namespace is None:
            return found.get("", next(iter(found.values()), name))
        return found.get(namespace, name)

    def choice(self, given: str | dict[str, Any] | None) -> ToolChoice:
        """Which tools may be called, by the names that the model knows.

        Raises:
            Refusal: the choice has another form, or names no tool.
        """
        if given is None or isinstance(given, str):
            mode = Literal["none", "auto", "required"]
            return ToolChoice(converted(given or "auto", mode, "tool_choice"))
        asked = converted(given, ListedChoice, "tool_choice")
        if asked.type in _CALLED and not asked.name:
            raise Refusal(400, "there is no name of a tool", param="tool_choice.name")
        if not (asked.name or asked.type == "allowed_tools"):
            return ToolChoice()  # such as a tool that OpenAI would run
        if asked.type == "allowed_tools":
            only = frozenset(self.told(one.name, one.namespace) for one in asked.tools)
            return ToolChoice(asked.mode, only)
        return ToolChoice("required", frozenset({self.told(asked.name, asked.namespace)}))


def _flat(tools: Sequence[dict[str, Any]]) -> Iterator[tuple[str, ListedTool]]:
    """The tools of known types, each with its namespace.

    Raises:
        Refusal: one has another form, or no name.
    """
    for i, tool in enumerate(tools):
        space = ToolNamespace(tools=[tool])
        if tool.get("type") == "namespace":
            space = converted(tool, ToolNamespace, f"tools[{i}]")
        for one in space.tools:
            if one.get("type") in _CALLED:
                found = converted(one, ListedTool, f"tools[{i}]")
                if not found.name:  # chat completions have it within a `function`
                    raise Refusal(400, "there is no name of a tool", param=f"tools[{i}].name")
                yield space.name, found
