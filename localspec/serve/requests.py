"""OpenAI's requests: checked, and translated into requests to the engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct, structs

from localspec.chat.conversation import Message, Role
from localspec.chat.dialects.shapes import ThinkingOptions
from localspec.chat.settings import AnswerRequest, ChatSettings
from localspec.engine.grammars import lark
from localspec.engine.round.params import CHAIN, Accept, SamplingParams
from localspec.errors import SamplingError
from localspec.limits import MAX_GAMMA
from localspec.safe_text import decoded
from localspec.serve.refusals import Refusal
from localspec.serve.request_tools import FunctionTool, RequestTools
from localspec.serve.schemas import require_bounded

Count = Annotated[int, Meta(ge=-1, le=1 << 31)]
Seed = Annotated[int, Meta(ge=-1, le=(1 << 63) - 1)]
StopText = Annotated[str, Meta(max_length=256)]
Top = Annotated[int, Meta(ge=0, le=20)]
T = TypeVar("T")

# A request has a field for each name of a setting of the sampler chain.
_CHAIN = {alias: name for name, each in CHAIN.items() for alias in (*each.also, name)}
if TYPE_CHECKING:
    from msgspec import Struct as _ChainFields
else:
    _ChainFields = msgspec.defstruct(
        "_ChainFields",
        [(alias, CHAIN[name].kind | None, None) for alias, name in _CHAIN.items()],
        kw_only=True,
    )


class StreamOptions(Struct):
    """Options of a stream."""

    include_usage: bool | None = None


class AnswerOptions(_ChainFields, kw_only=True):
    """The options that both kinds of requests share; None takes the server's setting.

    Those of the sampler chain are the fields of `SamplingParams`, and other programs' names.

    Attributes:
        model: a name of the loaded pair.
        gamma, accept: extensions of localspec: the draft length and the acceptance rule.
        draft: extension: which loaded drafters may draft: ``auto``, ``none``, or names separated by
            commas.
    """

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: Count | None = None
    logit_bias: dict[str, float] | None = None
    seed: Seed | None = None
    stop: StopText | Annotated[list[StopText], Meta(max_length=16)] | None = None
    n: int | None = None
    grammar: str | None = None
    gamma: Annotated[int, Meta(ge=0, le=MAX_GAMMA)] | Literal["auto"] | None = None
    accept: Accept | None = None
    draft: Annotated[str, Meta(max_length=256)] | None = None

    @property
    def drafters(self) -> tuple[str, ...] | None:
        """The names of those that may draft; None for all."""
        if self.draft in (None, "auto"):
            return None
        return tuple(name.strip() for name in self.draft.split(",")) if self.draft != "none" else ()

    @property
    def usage_wanted(self) -> bool:
        """Whether a stream ends with the token counts."""
        return bool(self.stream_options and self.stream_options.include_usage)

    def settings(self, own: ChatSettings, n_predict: int | None, grammar: str) -> ChatSettings:
        """The settings of the answer.

        Args:
            own: the server's, for options that are not given.
            n_predict: tokens to generate at most; None for the server's.
            grammar: as in `ChatSettings`; empty for none, or for the request's own.

        Raises:
            Refusal: the options are invalid.
        """
        if self.n not in (None, 1):
            raise Refusal(400, "one answer at a time: n must be 1", param="n")
        stop = (self.stop,) if isinstance(self.stop, str) else self.stop
        return ChatSettings(
            sampling=self._sampling(own.sampling),
            accept=own.accept if self.accept is None else self.accept,
            lenience=own.lenience if self.accept is None else None,
            grammar=grammar or self.grammar or own.grammar,
            gamma=own.gamma if self.gamma is None else self.gamma,
            n_predict=own.n_predict if n_predict is None else n_predict,
            stop=own.stop if stop is None else tuple(stop),
            repeatable=own.repeatable if self.seed is None else self.seed >= 0,
        )

    def _sampling(self, own: SamplingParams) -> SamplingParams:
        given: dict[str, Any] = {
            name: value
            for alias, name in _CHAIN.items()
            if (value := getattr(self, alias)) is not None
        }
        if self.seed is not None:
            given["seed"] = None if self.seed < 0 else self.seed
        if self.logit_bias is not None:
            given["logit_bias"] = _bias(self.logit_bias)
        try:
            return replace(own, **given)
        except SamplingError as error:
            raise Refusal(400, f"{error.message}. {error.remedy}") from None


def _bias(given: Mapping[str, float]) -> dict[int, float]:
    try:
        return {int(token): bias for token, bias in given.items()}
    except ValueError:
        raise Refusal(400, "the keys of logit_bias must be token ids", param="logit_bias") from None


class ContentPart(Struct):
    """A part of a message; only text is read."""

    type: str
    text: str = ""


class CalledFunction(Struct):
    """A called function; its arguments are JSON."""

    name: str
    arguments: str | dict[str, Any] | None = None


class ToolCall(Struct):
    """A call that the model made earlier."""

    function: CalledFunction
    id: str | None = None


class ChatMessage(Struct):
    """One message."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[ContentPart] | None = None
    name: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None

    def text(self, place: str) -> str:
        """The message's text.

        Raises:
            Refusal: a part of it is not text.
        """
        if self.content is None or isinstance(self.content, str):
            return self.content or ""
        for i, part in enumerate(self.content):
            if part.type not in ("text", "refusal", "input_text"):
                raise Refusal(
                    400,
                    f"this model reads text, not {part.type[:40]!r}",
                    param=f"{place}.content[{i}]",
                )
        return "\n".join(part.text for part in self.content)


class JsonSchema(Struct):
    """A named schema."""

    schema: dict[str, Any] | None = None


class ResponseFormat(Struct):
    """The required format of an answer."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None
    schema: dict[str, Any] | None = None


class ChatRequest(AnswerOptions):
    """``POST /v1/chat/completions``."""

    messages: Annotated[list[ChatMessage], Meta(min_length=1)]
    max_completion_tokens: Count | None = None
    response_format: ResponseFormat | None = None
    tools: Annotated[list[FunctionTool], Meta(max_length=128)] | None = None
    tool_choice: Literal["none", "auto", "required"] | FunctionTool | None = None
    parallel_tool_calls: bool | None = None
    logprobs: bool | None = None
    top_logprobs: Top | None = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high"] | None = None
    reasoning_budget: Count | None = None
    chat_template_kwargs: dict[str, bool | int | float | str] | None = None

    def asked(
        self,
        own: ChatSettings,
        toolbox: RequestTools,
        thinking: ThinkingOptions = ThinkingOptions(),  # noqa: B008 - frozen
    ) -> AnswerRequest:
        """The request to the engine.

        Args:
            own: the server's settings.
            toolbox: the request's tools.
            thinking: the model's options for thoughts.

        Raises:
            Refusal: the request is invalid.
        """
        limit = (
            self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens
        )
        settings = self.settings(own, limit, self.rule(toolbox))
        if self.reasoning_budget is not None:
            settings = replace(settings, reasoning_budget=self.reasoning_budget)
        named = _CallNames()
        said = list(enumerate(self.messages))
        if toolbox.one_at_a_time:
            said = _one_at_a_time(said)
        messages = [_message(one, i, toolbox, named) for i, one in said]
        if self.messages[0].role not in ("system", "developer") and own.system_prompt:
            messages.insert(0, Message(Role.SYSTEM, own.system_prompt))
        return AnswerRequest(
            settings=settings,
            messages=tuple(toolbox.told(messages)),
            variables={
                **self._thinking(own, thinking),
                **(self.chat_template_kwargs or {}),
                **toolbox.variables,
            },
            after=toolbox.after if settings.grammar == toolbox.grammar else "",
            top_logprobs=(self.top_logprobs or 0) if self.logprobs else None,
            drafters=self.drafters,
        )

    def rule(self, toolbox: RequestTools) -> str:
        """The grammar of calls, or of the requested format; empty if neither applies.

        Raises:
            Refusal: the format is invalid.
        """
        format_rule = "" if self.response_format is None else _rule_of(self.response_format)
        required = bool(toolbox.grammar) and not toolbox.after
        if not format_rule or required:
            return toolbox.grammar
        if toolbox.calls is None:
            return lark.grammar(format_rule)
        return toolbox.calls.or_else(format_rule)  # clients send both in every turn

    def _thinking(self, own: ChatSettings, known: ThinkingOptions) -> dict[str, bool | str]:
        """The template's variables for thoughts; the effort "minimal" counts as "low"."""
        asked = self.reasoning_effort
        if asked is None:
            return known.variables(own.reasoning, own.reasoning_effort)
        effort = "low" if asked == "minimal" else asked
        return known.variables("off" if asked == "none" else "on", effort)


class _CallNames:
    """The calls of a conversation so far, to match the results of tools with them."""

    def __init__(self) -> None:
        self._open: list[tuple[str, str]] = []  # ids and names of calls without a result
        self._names: dict[str, str] = {}

    def calls(self, calls: list[ToolCall], place: int) -> list[tuple[str, str, Any]]:
        """Calls as (id, name, arguments); missing ids are added."""
        made = []
        for i, one in enumerate(calls):
            of = one.id or f"{place} {i}"
            self._names[of] = one.function.name
            self._open.append((of, one.function.name))
            made.append((of, one.function.name, one.function.arguments))
        return made

    def result(self, of: str | None, name: str | None) -> tuple[str, str]:
        """The id and the name of the call that a result belongs to: by its id, else in order."""
        if of not in self._names and self._open:
            of, known = next((one for one in self._open if one[1] == name), self._open[0])
            name = name or known
        self._open = [one for one in self._open if one[0] != of]
        return of or "", name or self._names.get(of or "", "")


def _one_at_a_time(messages: Sequence[tuple[int, ChatMessage]]) -> list[tuple[int, ChatMessage]]:
    """Messages with their places, changed so that every turn has at most one call.

    A turn with several calls becomes one turn per call, each followed by its result, which is found
    by the call's id, or else by the order.
    """
    found: list[tuple[int, ChatMessage]] = []
    rest = list(messages)
    while rest:
        place, said = rest.pop(0)
        calls = said.tool_calls or []
        if len(calls) < 2:
            found.append((place, said))
            continue
        results: list[tuple[int, ChatMessage]] = []
        while rest and rest[0][1].role in ("tool", "function"):
            results.append(rest.pop(0))
        ids = {call.id for call in calls if call.id}
        others = [one for one in results if one[1].tool_call_id not in ids]
        for call in calls:
            found.append((place, structs.replace(said, tool_calls=[call])))
            said = structs.replace(said, content=None, reasoning_content=None)
            own = [one for one in results if call.id and one[1].tool_call_id == call.id]
            found += own or others[:1]
            others = others if own else others[1:]
        found += others
    return found


def _message(said: ChatMessage, i: int, toolbox: RequestTools, named: _CallNames) -> Message:
    """A message as the template needs it."""
    text = said.text(f"messages[{i}]")
    match said.role:
        case "system" | "developer":
            return Message(Role.SYSTEM, text)
        case "user":
            return Message(Role.USER, text)
        case "assistant":
            calls = named.calls(said.tool_calls or [], i)
            return toolbox.called(text, said.reasoning_content, calls)
        case _:
            return toolbox.returned(text, *named.result(said.tool_call_id, said.name))


def _rule_of(form: ResponseFormat) -> str:
    """The grammar rule of a format."""
    if form.type == "text":
        return ""
    schema = form.json_schema.schema if form.json_schema else form.schema
    place = "response_format.json_schema.schema" if form.json_schema else "response_format.schema"
    if schema is None and form.type == "json_schema":
        raise Refusal(400, "there is no schema", param=place)
    require_bounded(schema or {}, place)
    return lark.json_value(schema or {}, place)


class CompletionRequest(AnswerOptions):
    """``POST /v1/completions``."""

    prompt: str | list[Any]
    logprobs: Top | None = None
    suffix: str | None = None
    echo: bool | None = None
    best_of: int | None = None

    def asked(self, own: ChatSettings) -> AnswerRequest:
        """The request to the engine.

        Raises:
            Refusal: the request is invalid.
        """
        for name, usual in (
            ("suffix", ("", None)),
            ("echo", (False, None)),
            ("best_of", (1, None)),
        ):
            if getattr(self, name) not in usual:
                raise Refusal(400, f"{name} is not supported", param=name)
        settings = self.settings(own, self.max_tokens, "")
        return AnswerRequest(
            settings=settings,
            prompt=_prompt(self.prompt),
            top_logprobs=self.logprobs,
            drafters=self.drafters,
        )


def _prompt(given: str | list[Any]) -> str | tuple[int, ...]:
    """The prompt as text or ids; a list of one prompt is accepted."""
    if isinstance(given, list) and len(given) == 1 and isinstance(given[0], str | list):
        given = given[0]
    if isinstance(given, str):
        return given
    ids = [_as_whole(token) for token in given]
    if all(type(token) is int and 0 <= token < 1 << 31 for token in ids):
        return tuple(ids)
    raise Refusal(400, "one prompt at a time: text, or a list of token ids", param="prompt")


def require_sendable(asked: AnswerRequest) -> None:
    """Refuse values that cannot be sent to the engine's process.

    Raises:
        Refusal: an integer in the request has more than 64 bits.
    """
    try:
        msgspec.msgpack.encode(asked)
    except OverflowError:
        raise Refusal(400, "an integer in the request has more than 64 bits") from None


def _whole(document: Any) -> Any:
    """Turn integral floats into integers: JSON has one number type, and some clients send 30.0."""
    if not isinstance(document, dict):
        return document
    return {name: _as_whole(value) for name, value in document.items()}


def _as_whole(value: Any) -> Any:
    whole = isinstance(value, float) and value.is_integer() and abs(value) < 1 << 63
    return int(value) if whole else value


def parsed(body: bytes, kind: type[T]) -> T:
    """Decode the body of a request.

    Raises:
        Refusal: it is invalid; the message names the place.
    """
    try:
        return msgspec.convert(_whole(msgspec.json.decode(decoded(body))), kind)
    except msgspec.ValidationError as error:
        place = str(error).partition(" - at ")[2]
        raise Refusal(400, str(error), param=place.strip("`$.") or None) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Refusal(400, f"the body is no JSON: {error}") from None
