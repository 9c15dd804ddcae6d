"""How a model is told of tools, of its earlier calls, and of their results."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from localspec.chat.conversation import Message, Role
from localspec.chat.dialects.notations import python_calls
from localspec.chat.dialects.notations.values import repaired
from localspec.chat.dialects.shapes import HERMES, AnswerMarks, CallShape, Numbered
from localspec.limits import MAX_NESTING, depth
from localspec.safe_text import encodable

PLAIN = AnswerMarks(several=True, writes=True)
(BEGIN,), (END,) = HERMES.before, HERMES.after
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


@dataclass(frozen=True, slots=True)
class CallNotation:
    """A model's notation of tools, calls and results.

    A model whose template does not describe tools is told of them in the system prompt, in the
    notation of Hermes and Qwen, which most models know.

    Attributes:
        native: the template describes tools.
        marks: how the model writes calls, if the template describes tools.
    """

    native: bool = False
    marks: AnswerMarks = PLAIN

    @property
    def in_force(self) -> AnswerMarks:
        """How the model writes calls."""
        return self.marks if self.native else PLAIN

    def explained(self, system_prompt: str, tools: Iterable[str]) -> str:
        """A system prompt that also describes tools, each given as JSON."""
        return "\n\n".join(filter(None, [system_prompt, _EXPLAINED.format(tools="\n".join(tools))]))

    def numbered(self, messages: Iterable[Message]) -> Iterator[Message]:
        """`messages`, with calls and results by the ids that the template needs."""
        counted = self.marks.numbered if self.native else ""
        return _numbered(messages, over=counted) if counted else iter(messages)

    def called(
        self, text: str, thoughts: str | None, calls: Sequence[tuple[str, str, Any]]
    ) -> Message:
        """An earlier answer of the model: text, thoughts, calls as (id, name, arguments)."""
        more: dict[str, Any] = {"reasoning_content": thoughts} if thoughts else {}
        if calls and not (self.native and self.marks.writes):
            shape = next(iter(self.in_force.calls), HERMES)
            named = [(name, given) for _, name, given in calls]
            text = "\n".join(filter(None, [text, _written(shape, named)]))
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
            return as_text(text)
        return Message(
            Role.USER,
            text,
            more={"role": "tool", "tool_call_id": _identity(call or ""), "name": name or ""},
        )


def _written(shape: CallShape, calls: Sequence[tuple[str, Any]]) -> str:
    """Calls as (name, arguments) in a notation that no template writes for the model."""
    before, after = "".join(shape.before), "".join(shape.after)
    if shape.style == "python":
        each = [python_calls.written(name, call_object(given)) for name, given in calls]
        return f"{before}[{', '.join(each)}]{after}"
    each = [f'{{"name": {json.dumps(name)}, "arguments": {_text(given)}}}' for name, given in calls]
    if shape.style == "json" and not after:
        return f"{before}[{', '.join(each)}]"
    return "\n".join(f"{BEGIN}\n{one}\n{END}" for one in each)


def _numbered(messages: Iterable[Message], over: Numbered) -> Iterator[Message]:
    """`messages`, with calls and results by ``functions.<name>:<n>``, as Kimi K2 writes them."""
    n = 0
    waiting: dict[str, list[str]] = {}  # ids of calls without a result, by their former ids
    for message in messages:
        more = dict(message.more)
        if calls := more.get("tool_calls"):
            n = 0 if over == "turn" else n
            waiting.clear()  # a call without a result has none later
            made = [f"functions.{one['function']['name']}:{i}" for i, one in enumerate(calls, n)]
            for one, of in zip(calls, made, strict=True):
                waiting.setdefault(one["id"], []).append(of)
            more["tool_calls"] = [{**one, "id": of} for one, of in zip(calls, made, strict=True)]
            n += len(calls)
        elif waiting.get(more.get("tool_call_id", "")):
            more["tool_call_id"] = waiting[more["tool_call_id"]].pop(0)
        yield replace(message, more=more)


def as_text(result: str) -> Message:
    """A tool's result in a user's message."""
    return Message(Role.USER, f"<tool_response>\n{result}\n</tool_response>")


def call_object(given: Any) -> dict[str, Any]:
    """A call's arguments as an object, which templates need; truncated JSON is completed.

    Escapes in JSON that mean half a letter are replaced.
    """
    if isinstance(given, str):
        given = repaired(given)
    if not isinstance(given, dict) or depth(given) > MAX_NESTING:
        return {}
    found: dict[str, Any] = json.loads(encodable(json.dumps(given, ensure_ascii=False)))
    return found


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
