"""OpenAI's ``/v1/chat/completions``."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Annotated, Any, ClassVar, Literal

from msgspec import Meta, Struct

from localspec.chat.dialects import ContentPiece, ThoughtPiece
from localspec.serve.core.replies import (
    AnswerPiece,
    CallBegun,
    CallEnded,
    CallPart,
)
from localspec.serve.core.request_tools import FunctionTool, NamedFunction, ToolChoice
from localspec.serve.core.requests import (
    MOST_TOOLS,
    ConversationRequest,
    Top,
    format_rule,
    thoughts_of,
)
from localspec.serve.core.schemas import require_shallow
from localspec.serve.core.told_messages import ToldCall, ToldMessage
from localspec.serve.protocols.completion_writer import CompletionWriter
from localspec.serve.protocols.free_text import (
    InputGrammar,
    as_arguments,
    function_of,
    input_of,
)
from localspec.serve.protocols.protocol_types import (
    RESULTS,
    Document,
    ProtocolRequest,
    StreamEvent,
    TextOrParts,
    last_question,
    only_text,
)
from localspec.serve.protocols.scores import chat_scores
from localspec.serve.refusals import Refusal

_TEXTS = ("text", "refusal", "input_text", "output_text")
_CUSTOM = ("custom", "input")


class CalledFunction(Struct):
    """A called function; its arguments are JSON."""

    name: str
    arguments: str | dict[str, Any] | None = None


class CalledCustom(Struct):
    """A called tool whose input is free text."""

    name: str
    input: str = ""


class ToolCall(Struct):
    """A call that the model made earlier, of a function or of a custom tool."""

    function: CalledFunction | None = None
    custom: CalledCustom | None = None
    id: str | None = None

    def told(self, place: str) -> ToldCall:
        """The call, which stands at `place`, in the form that all protocols share.

        Raises:
            Refusal: nothing is called.
        """
        if self.function is not None:
            return ToldCall(self.id, self.function.name, self.function.arguments)
        if self.custom is not None:
            return ToldCall(self.id, self.custom.name, as_arguments(self.custom.input))
        raise Refusal(400, "neither `function` nor `custom` is given", param=place)


class ChatMessage(Struct):
    """One message."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: TextOrParts = None
    name: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None

    def said(self, i: int, *, lenient: bool) -> ToldMessage:
        """The message with the index `i`, in the form that all protocols share.

        Args:
            i: the index.
            lenient: name an image or another file instead of refusing it, as in a tool's result.

        Raises:
            Refusal: a part of it is not text, unless `lenient`.
        """
        lenient = lenient or self.role in RESULTS
        content, thoughts = self.content, self.reasoning_content or ""
        if self.role == "assistant" and isinstance(content, list):
            thoughts = thoughts or "\n".join(one.thought for one in content if one.thought)
            content = [one for one in content if one.type in _TEXTS or one.is_file]
        text = only_text(content, f"messages[{i}].content", _TEXTS, lenient=lenient)
        match self.role:
            case "system" | "developer":
                return ToldMessage("system", text)
            case "user":
                return ToldMessage("user", text)
            case "assistant":
                calls = tuple(
                    call.told(f"messages[{i}].tool_calls[{n}]")
                    for n, call in enumerate(self.tool_calls or ())
                )
                return ToldMessage("assistant", text, thoughts, calls)
            case _:
                return ToldMessage("tool", text, call_id=self.tool_call_id, name=self.name)


class ListedFunction(Struct, tag_field="type", tag="function"):
    """A function in a request."""

    function: NamedFunction

    @property
    def told(self) -> NamedFunction:
        """The tool as it is described to the model."""
        return self.function


class CustomFormat(Struct):
    """The form of a custom tool's input."""

    grammar: InputGrammar | None = None


class CustomTool(Struct):
    """A tool whose input is free text."""

    name: str
    description: str | None = None
    format: CustomFormat | None = None


class ListedCustom(Struct, tag_field="type", tag="custom"):
    """A custom tool in a request."""

    custom: CustomTool

    @property
    def told(self) -> NamedFunction:
        """The tool as it is described to the model."""
        grammar = self.custom.format.grammar if self.custom.format else None
        return function_of(self.custom.name, self.custom.description, grammar)


class ToolSelection(Struct):
    """The tools that may be called, and whether one must be."""

    tools: list[ListedFunction | ListedCustom]
    mode: Literal["auto", "required"] = "auto"


class AllowedChoice(Struct, tag_field="type", tag="allowed_tools"):
    """A choice of several tools."""

    allowed_tools: ToolSelection


class JsonSchema(Struct):
    """A named schema."""

    schema: dict[str, Any] | None = None


class ResponseFormat(Struct):
    """The required format of an answer."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None
    schema: dict[str, Any] | None = None

    @property
    def rule(self) -> str:
        """The grammar rule of the format; empty for any text.

        Raises:
            Refusal: there is no schema, or it is too large.
        """
        if self.type == "text":
            return ""
        schema, place = self.schema, "response_format.schema"
        if self.json_schema:
            schema, place = self.json_schema.schema, "response_format.json_schema.schema"
        if schema is None and self.type == "json_schema":
            raise Refusal(400, "there is no schema", param=place)
        return format_rule(schema or {}, place)


class ChatRequest(ProtocolRequest):
    """``POST /v1/chat/completions``."""

    messages: Annotated[list[ChatMessage], Meta(min_length=1)]
    response_format: ResponseFormat | None = None
    tools: Annotated[list[ListedFunction | ListedCustom], Meta(max_length=MOST_TOOLS)] | None = None
    tool_choice: (
        Literal["none", "auto", "required"] | ListedFunction | ListedCustom | AllowedChoice | None
    ) = None
    parallel_tool_calls: bool | None = None
    logprobs: bool | None = None
    top_logprobs: Top | None = None
    reasoning_effort: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    def core(self) -> ConversationRequest:
        """What is asked, in the form that all protocols share.

        Raises:
            Refusal: the request is invalid.
        """
        reasoning, effort = thoughts_of(self.reasoning_effort)
        variables = self.chat_template_kwargs or {}
        last = last_question(message.role for message in self.messages)
        require_shallow(variables, "chat_template_kwargs")
        return ConversationRequest(
            self,
            [message.said(i, lenient=i != last) for i, message in enumerate(self.messages)],
            tools=[FunctionTool("function", tool.told) for tool in self.tools or ()],
            choice=self._choice(),
            parallel=self.parallel_tool_calls is not False,
            format_rule="" if self.response_format is None else self.response_format.rule,
            reasoning=reasoning,
            effort=effort,
            variables={k: value for k, value in variables.items() if value is not None},
            top_logprobs=(self.top_logprobs or 0) if self.logprobs else None,
        )

    def _choice(self) -> ToolChoice:
        """Which tools may be called."""
        match self.tool_choice:
            case AllowedChoice(ToolSelection(tools, mode)):
                return ToolChoice(mode, frozenset(one.told.name for one in tools))
            case ListedFunction() | ListedCustom() as one:
                return ToolChoice("required", frozenset({one.told.name}))
            case mode:
                return ToolChoice(mode or "auto")

    def writer(self, model: str) -> ChatWriter:
        """Make the writer of the reply."""
        free = [one.custom.name for one in self.tools or () if isinstance(one, ListedCustom)]
        return ChatWriter(model, usage=self.ends_with_counts, free=free)


class ChatWriter(CompletionWriter):
    """Writes chunks, or a document.

    Args:
        free: the names of the tools whose input is free text.
    """

    prefix = "chatcmpl"
    chunk, whole = ("chat.completion.chunk", "delta"), ("chat.completion", "message")
    nothing: ClassVar[Document] = {}

    def __init__(self, model: str, *, usage: bool = False, free: Collection[str] = ()) -> None:
        super().__init__(model, usage=usage)
        self._deltas: list[Document] = []
        self._free = free
        self._input: str | None = None  # so far, of a call with free text, in JSON

    def opening(self) -> list[StreamEvent]:
        """The chunk that says who answers."""
        return [self._chunk({"role": "assistant", "content": ""})]

    def written(self, pieces: Iterable[AnswerPiece]) -> Iterator[StreamEvent]:
        """A chunk for each piece; the first one has the probabilities."""
        deltas = [delta for piece in pieces if (delta := self._delta(piece))]
        scored = self.answer.scored()
        self._deltas += deltas
        self._scored += scored
        if scored and not deltas:  # of tokens whose text is still held back
            deltas = [{"content": ""}]
        for delta in deltas:
            yield self._chunk(delta, scored=scored)
            scored = []

    def alive(self) -> StreamEvent:
        """A chunk without text."""
        return self._chunk({"content": ""})

    def document(self) -> Document:
        """The whole answer."""
        text, thoughts = (
            "".join(delta.get(name, "") for delta in self._deltas)
            for name in ("content", "reasoning_content")
        )
        calls = _whole_calls(call for delta in self._deltas for call in delta.get("tool_calls", ()))
        message: Document = {"role": "assistant", "content": text if text or not calls else None}
        message |= {"reasoning_content": thoughts} if thoughts else {}
        message |= {"tool_calls": calls} if calls else {}
        return self._whole(message)

    def _delta(self, piece: AnswerPiece) -> Document | None:
        match piece:
            case ThoughtPiece(text):
                return {"reasoning_content": text}
            case ContentPiece(text):
                return {"content": text}
            case CallBegun(index, identity, name):
                self._input = "" if name in self._free else None
                kind, given = ("function", "arguments") if self._input is None else _CUSTOM
                call = {"index": index, "id": f"call_{identity}", "type": kind}
                return {"tool_calls": [{**call, kind: {"name": name, given: ""}}]}
            case CallPart(index, text) if self._input is None:
                return {"tool_calls": [{"index": index, "function": {"arguments": text}}]}
            case CallPart(_, text):
                self._input = (self._input or "") + text
            case CallEnded(index) if self._input is not None:
                text = input_of(self._input)
                return {"tool_calls": [{"index": index, "custom": {"input": text}}]}
        return None

    def _scores(self, scored: Sequence[Any]) -> Document:
        return chat_scores(scored)

    def _finish(self) -> str:
        reason = super()._finish()
        return "tool_calls" if reason == "stop" and self.answer.ends_with_calls else reason


def _whole_calls(pieces: Iterable[Document]) -> list[Document]:
    """Join the deltas of calls; each call's name comes first."""
    calls: list[Document] = []
    for piece in pieces:
        kind = "custom" if "custom" in piece else "function"
        if "id" in piece:
            calls.append({"id": piece["id"], "type": kind, kind: {**piece[kind]}})
        else:
            for name, text in piece[kind].items():
                calls[piece["index"]][kind][name] += text
    return calls
