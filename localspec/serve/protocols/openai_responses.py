"""OpenAI's ``/v1/responses``, without storage."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from localspec.chat.dialects import ContentPiece, ThoughtPiece
from localspec.engine.record.stats import FinishReason
from localspec.serve.core.replies import (
    AnswerPiece,
    CallBegun,
    CallEnded,
    CallPart,
    timings,
)
from localspec.serve.core.requests import (
    MOST_TOOLS,
    ConversationRequest,
    Count,
    converted,
    format_rule,
    thoughts_of,
)
from localspec.serve.core.told_messages import ToldCall, ToldMessage
from localspec.serve.protocols.free_text import as_arguments, input_of
from localspec.serve.protocols.protocol_types import (
    Document,
    ProtocolRequest,
    ReplyWriter,
    StreamEvent,
    TextOrParts,
    last_question,
    only_text,
    typed,
)
from localspec.serve.protocols.response_tools import KINDS, OfferedTools
from localspec.serve.refusals import OVERFLOW, Refusal

_TEXTS = ("text", "input_text", "output_text", "refusal", "summary_text", "reasoning_text")
_PLAIN = {"type": "text"}
_CALLS = ("function_call", "custom_tool_call")
_OUTPUTS = ("function_call_output", "custom_tool_call_output")
_READ = ("message", "reasoning", *_CALLS, *_OUTPUTS)
# What only a server that stores responses can do; the values that ask for nothing.
_STORED = {"previous_response_id": (None, ""), "conversation": (None,), "background": (None, False)}


class InputItem(Struct):
    """An item of the conversation, with the fields of all types of items that are read."""

    type: str = "message"
    role: Literal["user", "assistant", "system", "developer"] = "user"
    content: Any = None
    summary: Any = None
    call_id: str | None = None
    name: str = ""
    namespace: str | None = None
    arguments: str | dict[str, Any] | None = None
    input: str = ""
    output: Any = None

    def said(self, place: str, offered: OfferedTools, *, lenient: bool) -> ToldMessage:
        """The item, which stands at `place`, as a message.

        Args:
            place: in the request.
            offered: the tools that may be called.
            lenient: name an image or another file instead of refusing it, as in a tool's result.

        Raises:
            Refusal: it has an image or another file, unless `lenient`.
        """

        def text(field: str, *, lenient: bool = lenient) -> str:
            parts = converted(getattr(self, field), TextOrParts, f"{place}.{field}")
            return only_text(parts, f"{place}.{field}", _TEXTS, lenient=lenient)

        match self.type:
            case "message":
                role = "system" if self.role == "developer" else self.role
                return ToldMessage(role, text("content"))
            case "reasoning":
                return ToldMessage("assistant", thoughts=text("summary") or text("content"))
            case "function_call" | "custom_tool_call":
                free = self.type == "custom_tool_call"
                given = as_arguments(self.input) if free else self.arguments
                name = offered.told(self.name, self.namespace)
                return ToldMessage("assistant", calls=(ToldCall(self.call_id, name, given),))
            case _:
                return ToldMessage("tool", text("output", lenient=True), call_id=self.call_id)


def _items(given: Sequence[dict[str, Any]], offered: OfferedTools) -> Iterator[ToldMessage]:
    """The items as messages; those of other types are left out, as the model need not know them.

    Raises:
        Refusal: an item has another form, or is only a reference.
    """
    last = last_question(
        "tool" if item.get("type") in _OUTPUTS else item.get("role") for item in given
    )
    for i, item in enumerate(given):
        told, place = {key: of for key, of in item.items() if of is not None}, f"input[{i}]"
        kind = told.get("type", "message")
        if kind == "item_reference":
            raise Refusal(400, "items are not stored: send them whole", param=place)
        if kind in _READ:
            yield converted(told, InputItem, place).said(place, offered, lenient=i != last)


class TextFormat(Struct, omit_defaults=True):
    """The required format of an answer."""

    type: Literal["text", "json_object", "json_schema"]
    name: str = ""
    schema: dict[str, Any] | None = None
    strict: bool | None = None


class TextConfig(Struct):
    """How the model answers."""

    format: TextFormat | None = None

    @property
    def rule(self) -> str:
        """The grammar rule of the format; empty for any text."""
        if self.format is None or self.format.type == "text":
            return ""
        if self.format.type == "json_schema" and self.format.schema is None:
            raise Refusal(400, "there is no schema", param="text.format.schema")
        return format_rule(self.format.schema or {}, "text.format.schema")


class ReasoningConfig(Struct):
    """Whether and how much the model thinks first."""

    effort: str | None = None


class ResponsesRequest(ProtocolRequest):
    """``POST /v1/responses``."""

    input: str | list[dict[str, Any]]
    instructions: str | None = None
    max_output_tokens: Count | None = None
    tools: Annotated[list[dict[str, Any]], Meta(max_length=MOST_TOOLS)] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    text: TextConfig | None = None
    reasoning: ReasoningConfig | None = None
    previous_response_id: str | None = None
    conversation: Any = None
    background: bool | None = None

    @property
    def limit(self) -> int | None:
        """Tokens to generate at most; this protocol has one name for that."""
        return self.max_output_tokens

    def core(self) -> ConversationRequest:
        """What is asked, in the form that all protocols share.

        Raises:
            Refusal: the request is invalid, or needs responses that are stored.
        """
        for name, nothing in _STORED.items():
            if getattr(self, name) not in nothing:
                said = f"{name} is not supported: responses are not stored, send the whole input"
                raise Refusal(400, said, code="unsupported_parameter", param=name)
        offered = OfferedTools.of(self.tools or ())
        reasoning, effort = thoughts_of(self.reasoning.effort if self.reasoning else None)
        return ConversationRequest(
            self,
            self._messages(offered),
            tools=offered.tools,
            choice=offered.choice(self.tool_choice),
            parallel=self.parallel_tool_calls is not False,
            format_rule=self.text.rule if self.text else "",
            reasoning=reasoning,
            effort=effort,
            schema_place="tools.{name}.parameters",
        )

    def _messages(self, offered: OfferedTools) -> list[ToldMessage]:
        given = self.input
        messages = (
            [ToldMessage("user", given)] if isinstance(given, str) else list(_items(given, offered))
        )
        if self.instructions:
            messages.insert(0, ToldMessage("system", self.instructions))
        if not messages:
            raise Refusal(400, "there is nothing to answer", param="input")
        return messages

    def writer(self, model: str) -> ResponsesWriter:
        """Make the writer of the reply."""
        return ResponsesWriter(model, self)


class ResponsesWriter(ReplyWriter):
    """Writes a response, or its items as events.

    Args:
        asked: the request, of which a response repeats some fields.
    """

    prompt_field = "input"
    told_in_stream = (OVERFLOW,)  # by that event alone Codex sees that it has to sum up

    def __init__(self, model: str, asked: ResponsesRequest) -> None:
        super().__init__(model)
        self._asked = asked
        self._offered = OfferedTools.of(asked.tools or ())
        self._id = f"resp_{secrets.token_hex(24)}"
        self._output: list[Document] = []
        self._open = ""  # the type of the item that is being written
        self._parts: list[str] = []  # of its text
        self._events = 0

    def opening(self) -> list[StreamEvent]:
        """The response before it has anything."""
        begun = self._response("in_progress")
        return [
            self._event("response.created", response=begun),
            self._event("response.in_progress", response=begun),
        ]

    def written(self, pieces: Iterable[AnswerPiece]) -> Iterator[StreamEvent]:
        """The events of these pieces."""
        for piece in pieces:
            match piece:
                case ThoughtPiece(text):
                    yield from self._thinking()
                    delta = {"summary_index": 0, "delta": text}
                    yield self._part("response.reasoning_summary_text.delta", text, **delta)
                case ContentPiece(text):
                    yield from self._speaking()
                    delta = {"content_index": 0, "delta": text, "logprobs": []}
                    yield self._part("response.output_text.delta", text, **delta)
                case CallBegun(_, identity, name):
                    yield from self._calling(identity, name)
                case CallPart(_, text) if self._open == "function_call":
                    yield self._part("response.function_call_arguments.delta", text, delta=text)
                case CallPart(_, text) if self._open == "custom_tool_call":
                    self._parts.append(text)  # JSON around the input
                case CallEnded(_, whole) if self._open in _CALLS:
                    yield from self._closed("completed" if whole else "incomplete")

    def _thinking(self) -> Iterator[StreamEvent]:
        if self._open != "reasoning":
            yield from self._begun({"type": "reasoning", "summary": []}, "rs")
            part = {"type": "summary_text", "text": ""}
            yield self._of_item("response.reasoning_summary_part.added", summary_index=0, part=part)

    def _speaking(self) -> Iterator[StreamEvent]:
        if self._open != "message":
            message = {"type": "message", "role": "assistant", "content": []}
            yield from self._begun(message, "msg")
            yield self._of_item("response.content_part.added", content_index=0, part=_spoken(""))

    def _calling(self, identity: str, told: str) -> Iterator[StreamEvent]:
        known = self._offered.by_told.get(told)
        call = {"call_id": f"call_{identity}", "name": known.name if known else told}
        if known and known.namespace:
            call["namespace"] = known.namespace
        if known and known.free:
            yield from self._begun({"type": "custom_tool_call", **call, "input": ""}, "ctc")
        else:
            yield from self._begun({"type": "function_call", **call, "arguments": ""}, "fc")

    def _begun(self, item: Document, prefix: str) -> Iterator[StreamEvent]:
        """Begin an item, after the end of the one before."""
        yield from self._closed("completed")
        self._open, self._parts = item["type"], []
        whole = {"id": f"{prefix}_{secrets.token_hex(12)}", "status": "in_progress", **item}
        self._output.append(whole)
        place = len(self._output) - 1
        yield self._event("response.output_item.added", output_index=place, item={**whole})

    def _part(self, event: str, text: str, /, **data: Any) -> StreamEvent:
        self._parts.append(text)
        return self._of_item(event, **data)

    def _closed(self, status: str) -> Iterator[StreamEvent]:
        """End the item that is open."""
        if not self._open:
            return
        kind, self._open = self._open, ""
        item, text = self._output[-1], "".join(self._parts)
        item["status"] = status
        match kind:
            case "reasoning":
                part = {"type": "summary_text", "text": text}
                item["summary"] = [part]
                at = {"summary_index": 0}
                yield self._of_item("response.reasoning_summary_text.done", **at, text=text)
                yield self._of_item("response.reasoning_summary_part.done", **at, part=part)
            case "message":
                item["content"] = [_spoken(text)]
                at = {"content_index": 0}
                done = {**at, "text": text, "logprobs": []}
                yield self._of_item("response.output_text.done", **done)
                yield self._of_item("response.content_part.done", **at, part=_spoken(text))
            case "function_call":
                item["arguments"] = text
                done = {"name": item["name"], "arguments": text}
                yield self._of_item("response.function_call_arguments.done", **done)
            case _:
                item["input"] = given = input_of(text)
                yield self._of_item("response.custom_tool_call_input.delta", delta=given)
                yield self._of_item("response.custom_tool_call_input.done", input=given)
        place = len(self._output) - 1
        yield self._event("response.output_item.done", output_index=place, item={**item})

    def alive(self) -> StreamEvent:
        """The response once more: clients do not count comments as signs of life."""
        return self._event("response.in_progress", response=self._response("in_progress"))

    def closing(self) -> list[StreamEvent]:
        """The end of the last item, and the whole response; a full context is told as an error.

        Codex asks again for what is incomplete, and sums up after that error.
        """
        end = self.answer.end
        if end is not None and end.reason is FinishReason.CONTEXT:
            said = "prompt and answer fill this model's context length"
            return self.failed(Refusal(400, said, code=OVERFLOW))
        status = self._status()
        last = list(self._closed(status))
        return [*last, self._event(f"response.{status}", response=self._response(status))]

    def failed(self, refusal: Refusal) -> list[StreamEvent]:
        """The end of the last item, and the response with the error."""
        last = list(self._closed("incomplete"))
        code = OVERFLOW if refusal.code == OVERFLOW else "server_error"
        error = {"code": code, "message": refusal.message}
        return [*last, self._event("response.failed", response=self._response("failed", error))]

    def document(self) -> Document:
        """The whole response."""
        status = self._status()
        list(self._closed(status))
        return self._response(status)

    def _status(self) -> str:
        end = self.answer.end
        stopped = end is not None and end.reason is FinishReason.STOP
        return "completed" if stopped else "incomplete"

    def _response(self, status: str, error: Document | None = None) -> Document:
        """The response as it is now."""
        asked, effort = self._asked, self._asked.reasoning.effort if self._asked.reasoning else None
        cut = {"reason": "max_output_tokens"} if status == "incomplete" else None
        return {
            "id": self._id,
            "object": "response",
            "created_at": self.created,
            "status": status,
            "error": error,
            "incomplete_details": cut,
            "instructions": asked.instructions,
            "max_output_tokens": asked.max_output_tokens,
            "metadata": {},
            "model": self.model,
            "output": [{**item} for item in self._output],
            "parallel_tool_calls": asked.parallel_tool_calls is not False,
            "previous_response_id": None,
            "reasoning": {"effort": effort, "summary": None},
            "store": False,
            "temperature": getattr(asked, "temperature", None),
            "text": {"format": asked.text.format if asked.text and asked.text.format else _PLAIN},
            "tool_choice": asked.tool_choice or "auto",
            "tools": [one for one in asked.tools or () if one.get("type") in KINDS],
            "top_p": getattr(asked, "top_p", None),
            "truncation": "disabled",
            "usage": None,
            **(self._figures() if self.answer.end is not None else {}),
        }

    def _figures(self) -> Document:
        generated = self.answer.stats.generated_tokens
        usage = {
            "input_tokens": self.answer.prompt_tokens,
            "input_tokens_details": {
                "cached_tokens": self.answer.cached_tokens,
                "cache_write_tokens": 0,
            },
            "output_tokens": generated,
            "output_tokens_details": {"reasoning_tokens": self.answer.thought_tokens},
            "total_tokens": self.answer.prompt_tokens + generated,
        }
        return {"usage": usage, "timings": timings(self.answer.stats)}

    def _of_item(self, event: str, /, **data: Any) -> StreamEvent:
        """An event of the item that is being written."""
        place, item = len(self._output) - 1, self._output[-1]
        return self._event(event, item_id=item["id"], output_index=place, **data)

    def _event(self, event: str, /, **data: Any) -> StreamEvent:
        number, self._events = self._events, self._events + 1
        return typed(event, sequence_number=number, **data)


def _spoken(text: str) -> Document:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
