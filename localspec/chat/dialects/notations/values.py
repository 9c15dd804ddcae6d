"""What models write as values: JSON with small faults, Python's literals, text of a known type."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping
from typing import Any

from localspec.chat.dialects.reading.answer_parts import Underway

_STRICT = json.JSONDecoder()
_LENIENT = json.JSONDecoder(strict=False)
_WORDS = {"true": True, "false": False, "null": None}
_PAIRS = {"{": "}", "[": "]", "(": ")"}
_KINDS: dict[type, str] = {
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
    list: "array",
    dict: "object",
    type(None): "null",
}
# Texts between quotes, quotes that are not closed, brackets: by which quotes there are.
_WORDS_OF = {
    quotes: re.compile(
        "|".join(rf"{one}(?>(?:[^{one}\\]|\\.)*){one}" for one in quotes)
        + rf"|[{quotes}{{}}()\[\]]",
        re.DOTALL,
    )
    for quotes in ('"', "\"'")
}
_DEEPEST = 64
_DATA = ("<![CDATA[", "]]>")
NOTHING = object()
"""Stands where no value could be read; None is JSON's null."""


class UnfinishedText(Exception):
    """More text is needed before this can be told.

    Attributes:
        underway: the calls that have begun.
    """

    def __init__(self, underway: Underway = ()) -> None:
        super().__init__()
        self.underway = underway


def json_at(text: str, at: int, *, final: bool) -> tuple[Any, int] | None:
    """The JSON value that begins at `at`, and where it ends.

    Control characters in strings, quotes that are not escaped and Python's literals are read as
    they were meant. At the end of an answer, brackets that were not closed count as closed.

    Args:
        text: what was written so far.
        at: the place of a ``{`` or ``[``.
        final: no text will follow.

    Raises:
        UnfinishedText: the value is not complete, and more text may follow.
    """
    try:
        return _LENIENT.raw_decode(text, at)
    except (ValueError, RecursionError):
        pass
    end = balanced(text, at)
    if end < 0 and not final:
        raise UnfinishedText
    part = text[at:] if end < 0 else text[at:end]
    for attempt in (part, _closed(part), _requoted(part), _closed(_requoted(part))):
        try:
            value, _ = _LENIENT.raw_decode(attempt)
        except (ValueError, RecursionError):
            continue
        return value, len(text) if end < 0 else end
    value = literal(part)
    return None if value is NOTHING else (value, len(text) if end < 0 else end)


def repaired(text: str) -> Any:
    """The JSON value that a text is, or was going to be; None where there is none."""
    at = len(text) - len(text.lstrip())
    if text[at : at + 1] not in ("{", "["):
        return None
    whole = re.sub(r'[,\s]*(?:"(?:[^"\\]|\\.)*"\s*:?\s*)?\Z', "", text[at:])
    for attempt in (text[at:], whole):
        found = json_at(attempt, 0, final=True)
        if found is not None:
            return found[0]
    return None


def balanced(text: str, at: int, quotes: str = '"') -> int:
    """Where the brackets that open at `at` are closed, -1 if they are not."""
    expected: list[str] = []
    for found in _WORDS_OF[quotes].finditer(text, at):
        word = found[0]
        if word in quotes:  # a text that is not closed
            return -1
        if word in _PAIRS:
            expected.append(_PAIRS[word])
        elif expected and word == expected[-1]:
            expected.pop()
            if not expected:
                return found.end()
    return -1


def _closed(text: str) -> str:
    """`text` with the brackets and the quote that it leaves open closed."""
    expected: list[str] = []
    quoted = escaped = False
    for char in text:
        if quoted:
            quoted = escaped or char != '"'
            escaped = char == "\\" and not escaped
        elif char == '"':
            quoted = True
        elif char in _PAIRS:
            expected.append(_PAIRS[char])
        elif expected and char == expected[-1]:
            expected.pop()
    return text + '"' * quoted + "".join(reversed(expected))


def _requoted(text: str) -> str:
    """`text` with those quotes escaped that cannot end a string, for what follows them."""
    done: list[str] = []
    quoted = escaped = False
    for i, char in enumerate(text):
        if char == '"' and not escaped:
            if quoted and text[i + 1 :].lstrip()[:1] not in ("", ",", ":", "}", "]"):
                done.append("\\")
            else:
                quoted = not quoted
        escaped = char == "\\" and not escaped
        done.append(char)
    return "".join(done)


def literal(text: str) -> Any:
    """The value of a Python literal, JSON's words included; `NOTHING` if it is none."""
    try:
        return plain(ast.parse(text.strip(), mode="eval").body)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return NOTHING


def plain(node: ast.expr, depth: int = 0) -> Any:
    """The value of an expression of literals.

    Raises:
        ValueError: it is more than that.
    """
    if depth > _DEEPEST:
        raise ValueError("too deep")
    match node:
        case ast.Constant(value=str() | bool() | int() | float() | None as constant):
            return constant
        case ast.Name(id=name) if name in _WORDS:
            return _WORDS[name]
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as number)):
            return -number
        case ast.List(elts=parts) | ast.Tuple(elts=parts):
            return [plain(part, depth + 1) for part in parts]
        case ast.Dict(keys=keys, values=values):
            named = {}
            for key, value in zip(keys, values, strict=True):
                if not isinstance(key, ast.Constant) or not isinstance(key.value, str):
                    raise ValueError("a key that is no text")  # noqa: TRY004 - as above
                named[key.value] = plain(value, depth + 1)
            return named
    raise ValueError("no literal")


def so_far(text: str, at: int) -> str:
    """The JSON value that begins at `at`, as far as it has come."""
    try:
        return text[at : _LENIENT.raw_decode(text, at)[1]]
    except (ValueError, RecursionError):
        return text[at:]


def strict(text: str) -> str:
    """A text that is JSON, or nothing."""
    try:
        _STRICT.decode(text)
    except (ValueError, RecursionError):
        return ""
    return text


def begun(arguments: Mapping[str, Any]) -> str:
    """The JSON of arguments to which more may come: without its end."""
    return json.dumps(arguments, ensure_ascii=False)[:-1]


def arguments_of(value: Any) -> dict[str, Any] | None:
    """Arguments as they were meant: an object, or the text of one; None for anything else."""
    if value is None or value == "":
        return {}
    if isinstance(value, str):
        try:
            value = _LENIENT.decode(value)
        except (ValueError, RecursionError):
            return None
    return value if isinstance(value, dict) else None


def typed(text: str, schema: Any, whole: Any, *, is_text: bool | None = None) -> Any:
    """The value that a text between tags stands for.

    A string stays the text that it is. What should be a number, say, and is none, stays text too.

    Args:
        text: as it was written.
        schema: the JSON schema of this value, or anything else where it is not known.
        whole: the schema that local references of `schema` go into.
        is_text: what the tag says of it; None if it says nothing.
    """
    if text.startswith(_DATA[0]) and text.endswith(_DATA[1]):
        return text[len(_DATA[0]) : -len(_DATA[1])]
    if is_text:
        return text
    kinds = kinds_of(schema, whole)
    value = text if is_text is None and kinds == {"string"} else _parsed(text)
    if value is NOTHING:
        return text
    kind = _KINDS.get(type(value), "")
    if is_text is None and ("string" in kinds or (not kinds and kind == "string")):
        fits = kind in kinds or (kind == "integer" and "number" in kinds)
        return value if fits and kind != "string" else text
    return value


def _parsed(text: str) -> Any:
    try:
        return _STRICT.decode(text.strip())
    except (ValueError, RecursionError):
        return literal(text)


def kinds_of(schema: Any, whole: Any, depth: int = 0) -> set[str]:
    """The JSON types that a schema allows; empty if it does not say."""
    if not isinstance(schema, Mapping) or depth > 8:
        return set()
    found: set[str] = set()
    named = schema.get("type")
    if isinstance(named, str):
        found.add(named)
    elif isinstance(named, list):
        found.update(one for one in named if isinstance(one, str))
    for part in ("anyOf", "oneOf", "allOf"):
        for one in schema.get(part) or ():
            found |= kinds_of(one, whole, depth + 1)
    if not found and isinstance(schema.get("$ref"), str):
        found = kinds_of(referred(schema["$ref"], whole), whole, depth + 1)
    if not found:
        values = (
            schema.get("enum")
            if "enum" in schema
            else [schema["const"]]
            if "const" in schema
            else []
        )
        found = {_KINDS.get(type(value), "") for value in values or ()}
    return found


def referred(reference: str, whole: Any) -> Any:
    """The part of `whole` that a local reference names; None where there is none."""
    for name in reference.removeprefix("#").strip("/").split("/"):
        whole = (
            whole.get(name.replace("~1", "/").replace("~0", "~"))
            if isinstance(whole, Mapping)
            else None
        )
    return whole
