"""The tools that a model knows, and the result of a search for calls."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from localspec.chat.dialects.reading.answer_parts import Call


class NoCall(Exception):
    """Text that looked like the beginning of a call is not a call."""


@dataclass(frozen=True, slots=True)
class FoundCalls:
    """Calls, and where they end in the text."""

    calls: tuple[Call, ...]
    end: int


class KnownTools:
    """The tools that a model knows, in the form of OpenAI's requests.

    Attributes:
        known: None if the tools are not known.
    """

    def __init__(self, tools: Sequence[Any] | None) -> None:
        self.known: dict[str, Any] | None = None
        if tools is not None:
            functions = [tool.get("function", tool) for tool in tools if isinstance(tool, Mapping)]
            self.known = {one["name"]: one.get("parameters") for one in functions if "name" in one}

    def declared(self, name: str) -> str | None:
        """The declared name that `name` means, without an added prefix or number; None for none."""
        if self.known is None or name in self.known:
            return name if self.known else None
        plain = re.sub(r"[:#]\d+\Z", "", name.strip())
        for one in (plain, plain.removeprefix("functions."), plain.removeprefix("function.")):
            if one in self.known:
                return one
        for one in sorted(self.known, key=len, reverse=True):
            if re.fullmatch(rf"functions?[.:/]?{re.escape(one)}\d*", plain):
                return one
        return None

    def schema(self, name: str) -> Any:
        """The schema of a tool's arguments; None if it is not known."""
        return (self.known or {}).get(name)

    def has_required(self, name: str, arguments: Mapping[str, Any]) -> bool:
        """Whether all required arguments of a tool are given."""
        schema = self.schema(name)
        required = schema.get("required") if isinstance(schema, Mapping) else None
        named = required if isinstance(required, list) else []
        return all(one in arguments for one in named if isinstance(one, str))

    def properties(self, name: str) -> Mapping[str, Any]:
        """The schemas of a tool's arguments by name; empty if they are not known."""
        schema = self.schema(name)
        found = schema.get("properties") if isinstance(schema, Mapping) else None
        return found if isinstance(found, Mapping) else {}
