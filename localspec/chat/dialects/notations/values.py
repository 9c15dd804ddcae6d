"""Parses values as models write them: slightly wrong JSON, Python literals, typed text."""

from __future__ import annotations

import ast
import json
import math
import re
import warnings
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from localspec.chat.dialects.marks import skip_blanks
from localspec.chat.dialects.reading.answer_parts import Underway
from localspec.engine.grammars import lark
from localspec.limits import depth
from localspec.safe_text import encodable

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
# By the quotes in use: matches quoted texts, unclosed quotes, and brackets.
_WORDS_OF = {
    quotes: re.compile(
        "|".join(rf"{one}[^{one}\\]*+(?:\\.[^{one}\\]*+)*+{one}" for one in quotes)
        + rf"|[{quotes}{{}}()\[\]]",
        re.DOTALL,
    )
    for quotes in ('"', "\"'")
}
_DEEPEST = 64
_ANSWER = "<answer>"
_DATA = ("<![CDATA[", "]]>")
NOTHING = object()
"""Means that no value could be read; None means JSON's null."""


def _number(text: str) -> float:
    """The number that JSON has for `text`; `ValueError` for nan and infinity, which it lacks."""
    found = float(text)
    if not math.isfinite(found):
        raise ValueError(text)
    return found


def _number_or_null(text: str) -> float | None:
    """The same, with null in place of what JSON lacks, as JavaScript writes it."""
    found = float(text)
    return found if math.isfinite(found) else None


_STRICT = json.JSONDecoder(parse_float=_number, parse_constant=_number)
_LENIENT = json.JSONDecoder(
    strict=False, parse_float=_number_or_null, parse_constant=_number_or_null
)


class UnfinishedText(Exception):
    """More text is needed for a decision."""

    def __init__(self, underway: Underway = ()) -> None:
        super().__init__()
        self.underway = underway


def json_at(text: str, at: int, *, final: bool) -> tuple[Any, int] | None:
    """The JSON value that begins at `at`, and where it ends.

    Control characters in strings, unescaped quotes and Python literals are accepted. Nan and
    infinity are null. At the end of an answer, unclosed brackets count as closed. A value of more
    than 64 levels counts as none.

    Args:
        text: the text so far.
        at: the position of a ``{`` or ``[``.
        final: no text will follow.

    Raises:
        UnfinishedText: the value is incomplete, and more text may follow.
    """
    try:
        value, end = _LENIENT.raw_decode(text, at)
    except (ValueError, RecursionError):
        end = balanced(text, at)
        if end < 0 and not final:
            raise UnfinishedText from None
        value = _lenient(text[at:] if end < 0 else text[at:end])
        end = len(text) if end < 0 else end
    return None if value is NOTHING or depth(value) > _DEEPEST else (value, end)


def _lenient(text: str) -> Any:
    """The value of a text that is almost JSON; `NOTHING` if it is not."""
    for attempt in (text, _closed(text), _requoted(text), _closed(_requoted(text))):
        with suppress(ValueError, RecursionError):
            return _LENIENT.raw_decode(attempt)[0]
    return literal(text)


def repaired(text: str) -> Any:
    """The JSON value of a text that may be incomplete; None if it is not JSON."""
    at = len(text) - len(text.lstrip())
    if text[at : at + 1] not in ("{", "["):
        return None
    found = json_at(text, at, final=True) or json_at(_without_key(text), at, final=True)
    return found and found[0]


def _without_key(text: str) -> str:
    """`text` without what no value follows at its end: a key, and the comma before it."""
    end, key = len(text.rstrip()), text.rstrip().removesuffix(":").rstrip()
    if key.endswith('"') and not _is_escaped(key, len(key) - 1):
        at = before = key.rfind('"', 0, len(key) - 1)
        while before > 0 and _is_escaped(key, before):
            before = key.rfind('"', 0, before)
            at = before if before >= 0 else at
        end = at if at >= 0 else end
    while end and (text[end - 1] == "," or text[end - 1].isspace()):
        end -= 1
    return text[:end]


def _is_escaped(text: str, at: int) -> bool:
    """Whether an odd number of backslashes stands before `at`."""
    begun = at
    while begun and text[begun - 1] == "\\":
        begun -= 1
    return (at - begun) % 2 == 1


def balanced(text: str, at: int, quotes: str = '"') -> int:
    """Where the bracket at `at` is closed; -1 if it is not."""
    expected: list[str] = []
    for found in _WORDS_OF[quotes].finditer(text, at):
        word = found[0]
        if word in quotes:  # an unclosed text
            return -1
        if word in _PAIRS:
            expected.append(_PAIRS[word])
        elif expected and word == expected[-1]:
            expected.pop()
            if not expected:
                return found.end()
    return -1


def _closed(text: str) -> str:
    """`text` with its open quote and brackets closed."""
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
    """`text` with those quotes escaped that cannot end a string, judging by what follows them."""
    done: list[str] = []
    quoted = escaped = False
    for i, char in enumerate(text):
        if char == '"' and not escaped:
            after = skip_blanks(text, i + 1)
            if quoted and text[after : after + 1] not in ("", ",", ":", "}", "]"):
                done.append("\\")
            else:
                quoted = not quoted
        escaped = char == "\\" and not escaped
        done.append(char)
    return "".join(done)


def literal(text: str) -> Any:
    """The value of a Python literal, or one of JSON's words; `NOTHING` if the text is neither."""
    try:
        return plain(expression(text))
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return NOTHING


def expression(text: str) -> ast.expr:
    """The syntax of a Python expression.

    Raises:
        ValueError, SyntaxError, RecursionError, MemoryError: it is none, or too large.
    """
    # Python warns of escapes that it does not know, which Windows' paths are full of. Restoring the
    # filters undoes this, so it is done each time; the module's name limits it to this text.
    warnings.filterwarnings("ignore", module=_ANSWER)
    return ast.parse(text.strip(), _ANSWER, mode="eval").body


def plain(node: ast.expr, depth: int = 0) -> Any:
    """The value of an expression of literals.

    Raises:
        ValueError: it is more than that.
    """
    if depth > _DEEPEST:
        raise ValueError("too deep")
    match node:
        case ast.Constant(value=str() | bool() | int() | float() | None as constant) if (
            constant != math.inf  # 1e999
        ):
            if isinstance(constant, int):
                str(constant)  # a `ValueError` too if it has more digits than can be written
            return constant
        case ast.Name(id=name) if name in _WORDS:
            return _WORDS[name]
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float()) as number):
            return -plain(number, depth)
        case ast.List(elts=parts) | ast.Tuple(elts=parts):
            return [plain(part, depth + 1) for part in parts]
        case ast.Dict(keys=keys, values=values):
            named = {}
            for key, value in zip(keys, values, strict=True):
                if not isinstance(key, ast.Constant) or not isinstance(key.value, str):
                    raise ValueError("a key that is not text")  # noqa: TRY004 - as above
                named[key.value] = plain(value, depth + 1)
            return named
    raise ValueError("no literal")


def so_far(text: str, at: int) -> str:
    """The JSON value that begins at `at`, as far as it is written."""
    try:
        return text[at : _LENIENT.raw_decode(text, at)[1]]
    except (ValueError, RecursionError):
        return text[at:]


def strict(text: str) -> str:
    """The text if it is valid JSON, also with numbers too large for a float; else an empty text."""
    try:
        json.loads(text, parse_constant=_number)
    except (ValueError, RecursionError):
        return ""
    return text


def begun(arguments: Mapping[str, Any]) -> str:
    """The JSON text of arguments, left open because members may follow."""
    return encodable(json.dumps(arguments, ensure_ascii=False)[:-1])


def arguments_of(value: Any) -> dict[str, Any] | None:
    """Arguments as an object, also from its JSON text; None for anything else.

    An empty list counts as an empty object, as some languages write that.
    """
    if value in (None, "", []):
        return {}
    if isinstance(value, str):
        try:
            value = _LENIENT.decode(value)
        except (ValueError, RecursionError):
            return None
    return value if isinstance(value, dict) else None


def typed(text: str, schema: Any, whole: Any, *, is_text: bool | None = None) -> Any:
    """The value of a text between tags, by its schema.

    A string is taken as it is. So is a text that does not fit its type, such as one that should be
    a number.

    Args:
        text: as it was written.
        schema: the JSON schema of this value; anything else if it is not known.
        whole: the schema that local references in `schema` point into.
        is_text: whether the tag says that this is text; None if it says nothing.
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


def kinds_of(schema: Any, whole: Any) -> set[str]:
    """The JSON types that a schema allows; empty if it does not restrict them.

    A schema that names no type has those of what it refers to, and of the values that it gives.
    """
    found: set[str] = set()
    followed: set[str] = set()  # references, which may lead back to themselves
    waiting = [schema]
    while waiting:
        one = waiting.pop()
        if not isinstance(one, Mapping):
            continue
        for part in ("anyOf", "oneOf", "allOf"):
            waiting += _listed(one.get(part))
        named, reference = one.get("type"), one.get("$ref")
        kinds = {kind for kind in (named, *_listed(named)) if isinstance(kind, str)}
        if not kinds:
            if isinstance(reference, str) and reference not in followed:
                followed.add(reference)
                waiting.append(lark.referred(whole, reference))
            values = _listed(one.get("enum", [one["const"]] if "const" in one else []))
            kinds = {_KINDS.get(type(value), "") for value in values}
        found |= kinds
    return found


def _listed(value: Any) -> list[Any]:
    """The items of a keyword's value; none if it is not a list, as it should be."""
    return value if isinstance(value, list) else []
