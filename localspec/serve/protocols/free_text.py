"""OpenAI's custom tools, whose input is free text: to the model they are functions of one text."""

from __future__ import annotations

import json

from msgspec import Struct

from localspec.chat.prompt.call_notation import call_object
from localspec.serve.core.request_tools import NamedFunction

_SCHEMA = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
    "additionalProperties": False,
}


class InputGrammar(Struct):
    """The form of free text; without a definition, it is any text."""

    syntax: str = ""
    definition: str = ""


def function_of(name: str, description: str | None, grammar: InputGrammar | None) -> NamedFunction:
    """A tool whose input is free text, as it is described to the model."""
    parts = [description or ""]
    if grammar is not None and grammar.definition:
        parts.append(f"The input follows this grammar ({grammar.syntax}):")
        parts.append(grammar.definition)
    return NamedFunction(name, "\n\n".join(filter(None, parts)), _SCHEMA)


def as_arguments(text: str) -> str:
    """The arguments of a call with `text` as its input."""
    return json.dumps({"input": text}, ensure_ascii=False)


def input_of(arguments: str) -> str:
    """The input in a call's arguments, which may be cut off."""
    return str(call_object(arguments).get("input", ""))
