"""Offers tools to a model, and interprets its calls."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeAlias

from localspec.safe_text import encodable, folded, one_line, words
from localspec.tools.tool_definitions import ToolDefinition

_LONGEST = 64
_SHOWN = 20  # tools that a search tells
_SAME_CALLS = 3  # equal ones for one question that end its turn
_MOST_CALLS = 50  # for one question

CHANGED = "Error: the tool has changed or is gone: it was not run."
"""What answers a call of a tool that is not what it was when it was offered."""


class SearchTool(StrEnum):
    """The tools by which a model finds, reads and calls the others; they run nothing themselves."""

    FIND = "find_tools"
    DESCRIBE = "describe_tool"
    CALL = "call_tool"


@dataclass(frozen=True, slots=True)
class RunnableCall:
    """A call that can run, once it is allowed.

    Attributes:
        arguments: as JSON, the object that the model gave.
    """

    tool: ToolDefinition
    arguments: str


CallMeaning: TypeAlias = RunnableCall | str
"""A call that can run, or the text that answers it without running anything."""


class ToolOffer:
    """The tools that are offered to a model, under names that every model can write.

    Attributes:
        tools: by these names.
        described: what the model is told of each, in OpenAI's form.
        search: the `SearchTool`s in the same form, for where telling a model of all tools would
            cost too much.
    """

    def __init__(self, tools: Iterable[ToolDefinition] = ()) -> None:
        given = list(tools)
        plain = [_plain_name(tool) for tool in given]
        twice = {name for name, times in Counter(plain).items() if times > 1}
        self.tools = {
            _distinct_name(tool, name) if name in twice or len(name) > _LONGEST else name: tool
            for tool, name in zip(given, plain, strict=True)
        }
        self.described = tuple(_told(name, tool) for name, tool in self.tools.items())
        self.search = _search_tools(sorted({tool.server for tool in given})) if given else ()

    @property
    def known(self) -> tuple[dict[str, Any], ...]:
        """Everything that a model may call, in OpenAI's form."""
        return (*self.described, *self.search)

    def meaning(self, name: str, arguments: Mapping[str, Any]) -> CallMeaning:
        """What a call means: a tool to run, or an answer at once."""
        match name:
            case SearchTool.FIND:
                return self._found(str(arguments.get("query", "")))
            case SearchTool.DESCRIBE:
                wanted = str(arguments.get("name", ""))
                tool = self.tools.get(wanted)
                return json.dumps(_told(wanted, tool)) if tool else self._unknown(wanted)
            case SearchTool.CALL:
                name, inner = str(arguments.get("name", "")), _object(arguments.get("arguments"))
                if inner is None:
                    return "It was not run: `arguments` must be a JSON object."
                arguments = inner
        tool = self.tools.get(name)
        if tool is None:
            return self._unknown(name)
        return RunnableCall(tool, encodable(json.dumps(arguments, ensure_ascii=False)))

    def _found(self, query: str) -> str:
        """The names of the tools that fit a query, and the first line about each."""
        sought = [*map(folded, words(query))]
        ranked = []
        for name, tool in self.tools.items():
            text = folded(f"{name} {tool.title} {tool.description}")
            if hits := sum((word in text) + (word in folded(name)) for word in sought):
                ranked.append((-hits, name, tool))
        lines = [
            f"{name}: {one_line(tool.description.partition('. ')[0], 100)}"
            for _, name, tool in sorted(ranked, key=lambda one: one[:2])[:_SHOWN]
        ]
        return "\n".join(lines) or f"No tool fits. {self._names()}"

    def _unknown(self, name: str) -> str:
        return f"There is no tool {one_line(name, 80)!r}. {self._names()}"

    def _names(self) -> str:
        names = list(self.tools)
        more = f", and {len(names) - 50} more" if len(names) > 50 else ""
        return f"The tools are: {', '.join(names[:50])}{more}."


def overdone(before: Sequence[tuple[str, str]], call: tuple[str, str]) -> str:
    """Why a turn must end before a further call; empty if it need not.

    Args:
        before: names and arguments of the calls since the question.
        call: the next one.
    """
    if len(before) >= _MOST_CALLS:
        return f"the model has called {_MOST_CALLS} tools for one question"
    if before.count(call) >= _SAME_CALLS - 1:  # a weak model goes round in a circle of calls
        return f"the model calls {one_line(call[0], 60)} again and again with the same arguments"
    return ""


def _object(given: Any) -> Mapping[str, Any] | None:
    """An object, also from its JSON text, as some models write it; None for anything else.

    Nothing given means an empty one.
    """
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except (ValueError, RecursionError):
            return None
    if given is None:
        return {}
    return given if isinstance(given, Mapping) else None


def _plain_name(tool: ToolDefinition) -> str:
    return re.sub(r"[^A-Za-z0-9_-]", "_", f"{tool.server}__{tool.name}")


def _distinct_name(tool: ToolDefinition, name: str) -> str:
    """A name that no other tool has, and that does not depend on which others there are."""
    digest = hashlib.sha256(f"{tool.server}\0{tool.name}".encode()).hexdigest()[:8]
    return f"{name[: _LONGEST - len(digest) - 1]}_{digest}"


def _told(name: str, tool: ToolDefinition) -> dict[str, Any]:
    return _function(name, tool.description or tool.title or tool.name, tool.parameters)


def _function(name: str, description: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "type": "function",
        "function": {"name": name, "description": description, "parameters": dict(parameters)},
    }


def _search_tools(servers: Iterable[str]) -> tuple[dict[str, Any], ...]:
    """The tools that search, describe and call."""
    text = {"type": "string"}
    named = {"name": text}
    return (
        _function(
            SearchTool.FIND.value,
            f"Find tools of {', '.join(servers)} by words. Tells their names.",
            {"type": "object", "properties": {"query": text}, "required": ["query"]},
        ),
        _function(
            SearchTool.DESCRIBE.value,
            "Tell what a found tool does and which arguments it takes.",
            {"type": "object", "properties": named, "required": ["name"]},
        ),
        _function(
            SearchTool.CALL.value,
            "Run a found tool.",
            {
                "type": "object",
                "properties": {**named, "arguments": {"type": "object"}},
                "required": ["name", "arguments"],
            },
        ),
    )
