"""Anthropic's ``/v1/messages`` and ``/v1/messages/count_tokens``."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal, TypeAlias

from msgspec import Meta, Struct, structs

from localspec.chat.dialects import ContentPiece, ThoughtPiece
from localspec.chat.prompt.call_notation import call_object
from localspec.engine.record.stats import FinishReason
from localspec.limits import MAX_NESTING, depth
from localspec.serve.core.replies import (
    AnswerPiece,
    CallBegun,
    CallEnded,
    CallPart,
    timings,
)
from localspec.serve.core.request_tools import FunctionTool, NamedFunction, ToolChoice
from localspec.serve.core.requests import (
    MOST_TOOLS,
    ConversationRequest,
    Count,
    StopTexts,
    converted,
    format_rule,
)
from localspec.serve.core.told_messages import ToldCall, ToldMessage
from localspec.serve.protocols.protocol_types import (
    Document,
    ProtocolRequest,
    ReplyWriter,
    StreamEvent,
    last_question,
    typed,
    unread,
)
from localspec.serve.refusals import OVERFLOW, Refusal

# Claude Code begins its system prompt with this line, which changes with every request: with it,
# no prompt would begin as the one before, which the caches hold.
_BILLING = "x-anthropic-billing-header:"
_SIGNATURE = "localspec"  # clients want a signature of every thought, and send it back
_KINDS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    529: "overloaded_error",
}
_REASONING: dict[str, Literal["on", "off"] | None] = {
    "enabled": "on",
    "disabled": "off",
    "adaptive": None,
}
_STOPS = {
    FinishReason.LENGTH: "max_tokens",
    FinishReason.CONTEXT: "model_context_window_exceeded",
}
_UNREADABLE = ("image", "document", "file", "container_upload")  # must not be left out in silence


class BlockSource(Struct):
    """What a document consists of."""

    type: str = ""
    data: str | None = None
    content: Any = None


class MessageBlock(Struct):
    """A block of a message, with the fields that are read of any type of block."""

    type: str
    text: str | None = None
    thinking: str | None = None
    id: str | None = None
    name: str | None = None
    input: Any = None
    tool_use_id: str | None = None
    tool_name: str | None = None
    content: Any = None
    is_error: bool | None = None
    source: Any = None
    title: str | None = None

    def read(self, place: str, *, lenient: bool = False) -> str:
        """The block's text; empty if it has none and can be left out.

        Args:
            place: where the block stands in the request.
            lenient: name an image or another file instead of refusing it.

        Raises:
            Refusal: it is an image or another file, unless `lenient`.
        """
        if self.type in ("text", "mid_conv_system", "tool_reference"):
            return self.text or self.tool_name or _text(self.content, place, lenient=lenient)
        if self.type == "document":
            source = converted(self.source or {}, BlockSource, f"{place}.source")
            if source.type in ("text", "content"):
                text = source.data or _text(source.content, place, lenient=lenient)
                return _titled(self.title, text)
        if self.type == "search_result":
            return _titled(self.title, _text(self.content, place, lenient=lenient))
        if self.type in _UNREADABLE:
            if lenient:
                return unread(self.type)
            raise Refusal(400, f"this model reads text, not {self.type!r}", param=place)
        return ""


Blocks: TypeAlias = str | list[MessageBlock]


def _titled(title: str | None, text: str) -> str:
    return f"{title}\n{text}" if title else text


def _text(content: Any, place: str, *, lenient: bool = False) -> str:
    """The text of content that is none, a text, or a list of blocks."""
    if content is None or isinstance(content, str):
        return content or ""
    if depth(content) > MAX_NESTING:
        raise Refusal(400, f"blocks are nested deeper than {MAX_NESTING} levels", param=place)
    blocks = converted(content, list[MessageBlock], place)
    return _joined(block.read(f"{place}[{i}]", lenient=lenient) for i, block in enumerate(blocks))


def _joined(texts: Iterable[str | None]) -> str:
    """Texts in lines, without those that are blank: clients send empty blocks."""
    return "\n".join(text for text in texts if text and not text.isspace())


class TurnMessage(Struct):
    """A turn of the user, of the model, or of the system."""

    role: Literal["user", "assistant", "system"]
    content: Blocks

    def said(self, i: int, *, lenient: bool) -> Iterator[ToldMessage]:
        """The message with the index `i`, in the form that all protocols share.

        Results of tools come first, each as a message: templates want them right after the calls.
        Other parts of the same turn belong to them: Claude Code sends pages of a PDF that way.

        Args:
            i: the index.
            lenient: name an image or another file instead of refusing it, as in a tool's result.

        Raises:
            Refusal: it has an image or another file, unless `lenient`.
        """
        content, place = self.content, f"messages[{i}].content"
        if isinstance(content, str):
            yield ToldMessage(self.role, content)
            return
        if self.role == "assistant":
            yield _answered(content)
            return
        results = [
            _returned(block, f"{place}[{at}]")
            for at, block in enumerate(content)
            if block.type == "tool_result"
        ]
        yield from results
        lenient = lenient or bool(results)
        text = _joined(
            block.read(f"{place}[{at}]", lenient=lenient) for at, block in enumerate(content)
        )
        if text or not results:
            yield ToldMessage(self.role, text)


def _answered(blocks: Sequence[MessageBlock]) -> ToldMessage:
    """A turn of the model, without blocks of tools that its provider ran."""
    calls = (
        ToldCall(one.id, one.name or "", one.input) for one in blocks if one.type == "tool_use"
    )
    return ToldMessage(
        "assistant",
        _joined(one.text for one in blocks if one.type == "text"),
        _joined(one.thinking for one in blocks if one.type == "thinking"),
        tuple(calls),
    )


def _returned(block: MessageBlock, place: str) -> ToldMessage:
    """The result of a tool; agents send it with every request, so that no image refuses it."""
    text = _text(block.content, f"{place}.content", lenient=True)
    failed = "The tool failed." if block.is_error and not text else ""
    return ToldMessage("tool", text or failed, call_id=block.tool_use_id)


class DeclaredTool(Struct):
    """A tool; those without a schema run at Anthropic's, or are known to its models alone."""

    name: str = ""
    type: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    strict: bool | None = None

    @property
    def function(self) -> FunctionTool | None:
        """The tool as a function; None if it is none."""
        if self.type not in (None, "custom") or self.input_schema is None:
            return None
        named = NamedFunction(self.name, self.description, self.input_schema, self.strict)
        return FunctionTool("function", named)


class AskedChoice(Struct):
    """Which tools may be called."""

    type: Literal["auto", "any", "tool", "none"]
    name: str = ""
    disable_parallel_tool_use: bool | None = None

    @property
    def choice(self) -> ToolChoice:
        """The choice in the form that all protocols share."""
        if self.type == "tool":
            return ToolChoice("required", frozenset({self.name}))
        return ToolChoice("required" if self.type == "any" else self.type)


class ThinkingAsked(Struct):
    """Whether the model thinks before it answers."""

    type: Literal["enabled", "adaptive", "disabled"]
    budget_tokens: Count | None = None


class AskedFormat(Struct):
    """The required format of an answer."""

    type: Literal["json_schema"]
    schema: dict[str, Any]


class OutputConfig(Struct):
    """How the model answers."""

    effort: str | None = None
    format: AskedFormat | None = None


class MessagesRequest(ProtocolRequest):
    """``POST /v1/messages``."""

    messages: Annotated[list[TurnMessage], Meta(min_length=1)]
    system: Blocks | None = None
    stop_sequences: StopTexts | None = None
    tools: Annotated[list[DeclaredTool], Meta(max_length=MOST_TOOLS)] | None = None
    tool_choice: AskedChoice | None = None
    thinking: ThinkingAsked | None = None
    output_config: OutputConfig | None = None
    output_format: AskedFormat | None = None

    @property
    def limit(self) -> int | None:
        """Tokens to generate at most; this protocol has one name for that."""
        return self.max_tokens

    def core(self) -> ConversationRequest:
        """What is asked, in the form that all protocols share.

        Raises:
            Refusal: the request is invalid.
        """
        if self.max_tokens is None:
            raise Refusal(400, "there is no limit: give max_tokens", param="max_tokens")
        return self.conversation()

    def conversation(self) -> ConversationRequest:
        """What is asked; a limit may be missing."""
        last = last_question(message.role for message in self.messages)
        messages = [
            one for i, turn in enumerate(self.messages) for one in turn.said(i, lenient=i != last)
        ]
        if system := self._system():
            messages.insert(0, ToldMessage("system", system))
        choice, how = self.tool_choice or AskedChoice("auto"), self.output_config or OutputConfig()
        thinking, form = self.thinking or ThinkingAsked("adaptive"), how.format
        wanted, place = form or self.output_format, "output_config.format.schema"
        budget = self.reasoning_budget if thinking.budget_tokens is None else thinking.budget_tokens
        return ConversationRequest(
            structs.replace(self, stop=self.stop_sequences, reasoning_budget=budget),
            messages,
            tools=[one for tool in self.tools or () if (one := tool.function)],
            choice=choice.choice,
            parallel=not choice.disable_parallel_tool_use,
            format_rule=format_rule(wanted.schema, place) if wanted else "",
            reasoning=_REASONING[thinking.type],
            effort=how.effort or "",
            schema_place="tools.{name}.input_schema",
        )

    def _system(self) -> str:
        """The system prompt without what is not for the model."""
        texts = [self.system] if isinstance(self.system, str) else _read(self.system or [])
        kept = (text.partition("\n")[2] if text.startswith(_BILLING) else text for text in texts)
        return _joined(kept)

    def writer(self, model: str) -> MessagesWriter:
        """Make the writer of the reply."""
        return MessagesWriter(model, self.stop_sequences or ())


def _read(system: Sequence[MessageBlock]) -> list[str]:
    return [block.read(f"system[{i}]") for i, block in enumerate(system)]


class CountRequest(MessagesRequest):
    """``POST /v1/messages/count_tokens``."""

    def __post_init__(self) -> None:
        """A count comes as one document."""
        self.stream = None

    def core(self) -> ConversationRequest:
        """What is asked, in the form that all protocols share."""
        return replace(self.conversation(), count_only=True)

    def writer(self, model: str) -> CountWriter:
        """Make the writer of the reply."""
        return CountWriter(model, ())


class MessagesWriter(ReplyWriter):
    """Writes a message, or its blocks as events.

    Args:
        stops: the stop sequences that the client gave.
    """

    def __init__(self, model: str, stops: Sequence[str]) -> None:
        super().__init__(model)
        self._stops = stops
        self._head = {
            "id": f"msg_{secrets.token_hex(12)}",
            "type": "message",
            "role": "assistant",
            "model": model,
        }
        self._begun = False
        self._content: list[Document] = []
        self._open = ""  # the type of the block that is being written
        self._parts: list[str] = []  # of it

    def written(self, pieces: Iterable[AnswerPiece]) -> Iterator[StreamEvent]:
        """The events of these pieces; the first one comes when the prompt's length is known."""
        if not self._begun and self.answer.prompt is not None:
            self._begun = True
            message = {**self._head, "content": [], **_ending(), "usage": self._usage()}
            yield typed("message_start", message=message)
        for piece in pieces:
            match piece:
                case ThoughtPiece(text):
                    block = {"type": "thinking", "thinking": "", "signature": ""}
                    yield from self._within(block)
                    yield self._delta(text, type="thinking_delta", thinking=text)
                case ContentPiece(text):
                    yield from self._within({"type": "text", "text": ""})
                    yield self._delta(text, type="text_delta", text=text)
                case CallBegun(_, identity, name):
                    yield from self._closed()
                    call = {"type": "tool_use", "id": f"toolu_{identity}", "name": name}
                    yield from self._within({**call, "input": {}})
                case CallPart(_, text) if self._open == "tool_use":
                    yield self._delta(text, type="input_json_delta", partial_json=text)
                case CallEnded(_, whole) if self._open == "tool_use":
                    yield from self._closed(whole=whole)

    def _within(self, block: Document) -> Iterator[StreamEvent]:
        """Begin a block, unless one of its type is open."""
        if self._open == block["type"]:
            return
        yield from self._closed()
        self._open, self._parts = block["type"], []
        self._content.append({**block})
        yield typed("content_block_start", index=len(self._content) - 1, content_block=block)

    def _delta(self, text: str, /, **delta: str) -> StreamEvent:
        self._parts.append(text)
        return typed("content_block_delta", index=len(self._content) - 1, delta=delta)

    def _closed(self, *, whole: bool = False) -> Iterator[StreamEvent]:
        """End the block that is open; a call that is not `whole` was cut off.

        A document has no arguments of such a call: completed, they would be others than were meant.
        """
        if not self._open:
            return
        kind, self._open = self._open, ""
        block, text = self._content[-1], "".join(self._parts)
        if kind == "tool_use":
            block["input"] = call_object(text) if whole else {}
        else:
            block[kind] = text
        if kind == "thinking":
            block["signature"] = _SIGNATURE
            yield self._delta("", type="signature_delta", signature=_SIGNATURE)
        yield typed("content_block_stop", index=len(self._content) - 1)

    def alive(self) -> StreamEvent:
        """An event that clients pass over, and count as a sign of life."""
        return typed("ping")

    def closing(self) -> list[StreamEvent]:
        """The end of the last block, why the answer ended, and all token counts."""
        figures = {"usage": self._usage(), "timings": timings(self.answer.stats)}
        return [
            *self._closed(),
            typed("message_delta", delta=_ending(*self._why()), **figures),
            typed("message_stop"),
        ]

    def failed(self, refusal: Refusal) -> list[StreamEvent]:
        """The error."""
        return [("error", error_of(refusal)[1])]

    def document(self) -> Document:
        """The whole message."""
        list(self._closed())
        return {
            **self._head,
            "content": self._content,
            **_ending(*self._why()),
            "usage": self._usage(),
            "timings": timings(self.answer.stats),
        }

    def _usage(self) -> Document:
        """The token counts; the prompt's are what had to be read and what the caches held."""
        cached = self.answer.cached_tokens
        return {
            "input_tokens": self.answer.prompt_tokens - cached,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": cached,
            "output_tokens": self.answer.stats.generated_tokens,
        }

    def _why(self) -> tuple[str, str | None]:
        """Why the answer ended, and the stop sequence that ended it."""
        end = self.answer.end
        reason = end.reason if end is not None else FinishReason.STOP
        if reason in _STOPS:
            return _STOPS[reason], None
        if self.answer.ends_with_calls:
            return "tool_use", None
        if end is not None and end.stopped_by and end.stopped_by in self._stops:
            return "stop_sequence", end.stopped_by
        return "end_turn", None


class CountWriter(MessagesWriter):
    """Writes how many tokens a prompt has."""

    def document(self) -> Document:
        """The count."""
        return {"input_tokens": self.answer.prompt_tokens}


def _ending(reason: str | None = None, sequence: str | None = None) -> Document:
    return {"stop_reason": reason, "stop_sequence": sequence}


def error_of(refusal: Refusal) -> tuple[int, Document]:
    """The status and the document of an error."""
    status = 529 if refusal.status == 503 else refusal.status
    kind = _KINDS.get(status, "invalid_request_error" if status < 500 else "api_error")
    said = refusal.message
    if refusal.code == OVERFLOW:  # Claude Code looks for these words
        tokens, most = refusal.more["n_prompt_tokens"], refusal.more["n_ctx"]
        said = f"prompt is too long: {tokens} tokens > {most} maximum"
    elif refusal.param and refusal.param not in said:
        said = f"{refusal.param}: {said}"
    return status, {"type": "error", "error": {"type": kind, "message": said}}
