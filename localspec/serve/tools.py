"""Function calling: what the model is told of tools, what holds its calls, and what it calls."""

from __future__ import annotations

import json
import re
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec
from msgspec import Struct

from localspec.chat.conversation import Message, Role
from localspec.chat.thinking import overlap
from localspec.engine import lark
from localspec.serve.errors import Refusal
from localspec.serve.schemas import DEEPEST, depth, require_bounded

# The marks of Hermes and Qwen, which most models know.
BEGIN, END = "<tool_call>", "</tool_call>"
_EXPLAINED = """\
You may call functions. These are the functions, as JSON schemas:
<tools>
{tools}
</tools>
To call one, write its name and arguments as JSON between marks, and nothing after them:
<tool_call>
{{"name": "...", "arguments": {{...}}}}
</tool_call>"""


# What a call begins with, up to its arguments, an object.
_HEAD = re.compile(
    r'\s*\{\s*"name"\s*:\s*("(?:[^"\\\x00-\x1f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*")'
    r'\s*,\s*"arguments"\s*:\s*(?=\{)'
)


class Function(Struct, omit_defaults=True):
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
    function: Function


ToolChoice = Literal["none", "auto", "required"] | FunctionTool | None


@dataclass(frozen=True, slots=True)
class Toolbox:
    """The tools of one request.

    Attributes:
        native: the model's template shows tools by itself; else a system prompt explains them.
        tools: as they came; none where none may be called.
        grammar: what calls conform to; empty without tools.
        after: the mark behind which it holds; empty where a call is required.
    """

    native: bool = False
    tools: tuple[FunctionTool, ...] = ()
    grammar: str = ""
    after: str = ""
    variables: dict[str, Any] = field(default_factory=dict)

    @staticmethod
    def of(
        tools: Sequence[FunctionTool], choice: ToolChoice, *, native: bool, parallel: bool
    ) -> Toolbox:
        """The tools that a request allows.

        Raises:
            Refusal: the choice makes no sense, or a schema is too large.
        """
        if not tools or choice == "none":
            if isinstance(choice, FunctionTool) or choice == "required":
                raise Refusal(400, "there are no tools to choose from", param="tool_choice")
            return Toolbox(native)
        allowed = list(enumerate(tools))
        if isinstance(choice, FunctionTool):
            allowed = [one for one in allowed if one[1].function.name == choice.function.name]
            if not allowed:
                names = ", ".join(tool.function.name for tool in tools)[:300]
                raise Refusal(400, f"no such tool; there are: {names}", param="tool_choice")
        required = choice == "required" or isinstance(choice, FunctionTool)
        told = {"tools": msgspec.to_builtins(list(tools))} if native else {}
        grammar = _calls(allowed, parallel=parallel, required=required)
        return Toolbox(native, tuple(tools), grammar, "" if required else BEGIN, told)

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
        self, text: str, thoughts: str | None, calls: Sequence[tuple[str, str, str]]
    ) -> Message:
        """What the model said before: text, thoughts, calls as (id, name, arguments)."""
        more: dict[str, Any] = {"reasoning_content": thoughts} if thoughts else {}
        if calls and not self.native:
            written = [
                f'{{"name": {json.dumps(name)}, "arguments": {given}}}' for _, name, given in calls
            ]
            text = "\n".join(
                [*([text] if text else []), *(f"{BEGIN}\n{one}\n{END}" for one in written)]
            )
        elif calls:
            more["tool_calls"] = [
                {
                    "id": name_of,
                    "type": "function",
                    "function": {"name": name, "arguments": _object(given)},
                }
                for name_of, name, given in calls
            ]
        return Message(Role.ASSISTANT, text, more=more)

    def returned(self, text: str, call: str | None, name: str | None) -> Message:
        """What a tool has returned; to templates without tools the user says it."""
        if not self.native:
            return Message(Role.USER, f"<tool_response>\n{text}\n</tool_response>")
        return Message(
            Role.USER, text, more={"role": "tool", "tool_call_id": call or "", "name": name or ""}
        )


def _object(given: str) -> Any:
    """Arguments as templates want them: an object; what is none stays text."""
    try:
        found = json.loads(given)
    except (ValueError, RecursionError):
        return given
    return found if isinstance(found, dict) and depth(found) <= DEEPEST else given


def _calls(allowed: Sequence[tuple[int, FunctionTool]], *, parallel: bool, required: bool) -> str:
    """The grammar of calls: from after the first mark on, unless a call is required."""
    rules, ways = {}, []
    for i, tool in allowed:
        function, place = tool.function, f"tools[{i}].function.parameters"
        given = function.parameters or {"type": "object", "properties": {}}
        require_bounded(given, place)
        rules[f"args{i}"] = lark.json_value(given, place, strict=bool(function.strict))
        ways.append(f"{lark.literal(json.dumps(function.name))} blank args blank args{i}")
    begin, end = lark.mark(BEGIN), lark.mark(END)
    whole = f"blank call blank {end}"
    return lark.grammar(
        f"{f'blank {begin} ' if required else ''}{whole}"
        f"{f' (blank {begin} {whole})*' if parallel else ''} blank",
        call=f'"{{" blank "\\"name\\"" blank ":" blank ({" | ".join(ways)}) blank "}}"',
        args='"," blank "\\"arguments\\"" blank ":"',
        blank="BLANK?",
        BLANK=r"/[ \n]{1,2}/",
        **rules,
    )


@dataclass(frozen=True, slots=True)
class CallPiece:
    """A part of a call: its name at first, then its arguments, JSON in pieces."""

    name: str = ""
    arguments: str = ""


class CallSplitter:
    """Tells calls from text while an answer arrives in pieces."""

    def __init__(self) -> None:
        self._held = ""
        self._inside = self._called = False  # behind the mark of a call; behind its name
        self._arguments: _Object | None = None

    def feed(self, text: str) -> Iterator[str | CallPiece]:
        """Text, and parts of calls, as soon as they are known to be that."""
        self._held += text
        going_on = True
        while going_on:
            if self._arguments is not None:
                piece, self._held = self._arguments.take(self._held)
                yield from [CallPiece(arguments=piece)] if piece else []
                going_on = self._arguments.complete
                if going_on:
                    self._arguments = None
            elif self._inside:
                going_on = yield from self._within()
            else:
                going_on = yield from self._outside()

    def _outside(self) -> Generator[str | CallPiece, None, bool]:
        """Release text; whether a call begins."""
        before, mark, rest = self._held.partition(BEGIN)
        if not mark:
            before = self._held[: len(self._held) - overlap(self._held, BEGIN)]
            rest = self._held[len(before.rstrip()) :]  # blanks ahead of a call are none
        self._inside, self._called, self._held = bool(mark), False, rest
        yield from [before.rstrip()] if before.strip() else []
        return self._inside

    def _within(self) -> Generator[str | CallPiece, None, bool]:
        """Look for a call's name, or for its end behind the arguments; whether it was there."""
        if not self._called and (found := _HEAD.match(self._held)):
            self._called, self._arguments = True, _Object()
            self._held = self._held[found.end() :]
            yield CallPiece(json.loads(found[1]))
            return True
        before, mark, rest = self._held.partition(END)
        if not mark:
            return False
        yield from [] if self._called else [f"{BEGIN}{before}{END}"]
        self._inside, self._held = False, rest
        return True

    def flush(self) -> str:
        """What was held back: a call that did not come to its name, say."""
        held, self._held = self._held, ""
        if self._inside:
            return "" if self._called else BEGIN + held
        return held if held.strip() else ""


class _Object:
    """Finds the end of a JSON object that arrives in pieces."""

    def __init__(self) -> None:
        self._depth = 0
        self._within = self._escaped = False  # a string, in which what follows is only text
        self.complete = False

    def take(self, text: str) -> tuple[str, str]:
        """What of `text` belongs to it, and what comes after it."""
        for end, char in enumerate(text, 1):
            if self._within:
                self._within = char != '"' or self._escaped
                self._escaped = char == "\\" and not self._escaped
            elif char == '"':
                self._within = True
            else:
                self._depth += (char in "{[") - (char in "}]")
                if self._depth == 0:
                    self.complete = True
                    return text[:end], text[end:]
        return text, ""
