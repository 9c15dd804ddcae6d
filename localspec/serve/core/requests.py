"""What clients ask, in one form for all protocols, and as requests to the engine."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias, TypeVar

import msgspec
from msgspec import Meta, Struct

from localspec.chat.conversation import Message, Role
from localspec.chat.dialects import Dialect
from localspec.chat.dialects.shapes import ThinkingOptions
from localspec.chat.settings import AnswerRequest, ChatSettings, Infill
from localspec.drafter_names import AUTO, NONE
from localspec.engine.grammars import lark
from localspec.engine.round.params import CHAIN, MOST_WHOLE, Accept, SamplingParams
from localspec.errors import SamplingError
from localspec.limits import MAX_GAMMA
from localspec.safe_text import decoded
from localspec.serve.core.replies import IncomingAnswer
from localspec.serve.core.request_tools import FunctionTool, RequestTools, ToolChoice
from localspec.serve.core.schemas import require_bounded
from localspec.serve.core.told_messages import ToldMessage, for_template, in_turns, one_at_a_time
from localspec.serve.refusals import Refusal

Count = Annotated[int, Meta(ge=-1, le=1 << 31)]
Seed = Annotated[int, Meta(ge=-(1 << 63), le=MOST_WHOLE)]
StopText = Annotated[str, Meta(max_length=256)]
StopTexts = Annotated[list[StopText], Meta(max_length=64)]
Top = Annotated[int, Meta(ge=0, le=20)]
T = TypeVar("T")

MOST_TOOLS = 256
_TEXT_BYTES = 8 << 20  # pictures that only words stand for come on top
_VALUES = 1 << 20  # of JSON; 8 MB of messages have far fewer
_ANY_SEED = -1  # llama-server's word for a new one; OpenAI's seeds have a sign

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

_FOR_TEMPLATES = "chat_template_kwargs"

# A JSON escape of half a surrogate pair (group 2: of a whole one), after escaped backslashes.
# It begins with a plain character, which is found fast in a long text.
_HALF = re.compile(
    r"(\\(?<!\\\\)(?:\\\\)*+)(?:"
    r"(u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})|u[dD][89a-fA-F][0-9a-fA-F]{2})"
)

# The efforts that a template lacks count as those next to them.
_NEAREST = {"minimal": "low", "xhigh": "high", "max": "high"}


class StreamOptions(Struct):
    """Options of a stream."""

    include_usage: bool | None = None


class AnswerOptions(_ChainFields, kw_only=True):
    """The options that requests of all protocols share; None takes the server's setting.

    Those of the sampler chain are the fields of `SamplingParams`, and other programs' names.

    Attributes:
        model: the name of a pair.
        n_predict, max_completion_tokens: other names of `max_tokens`; in this order they go first,
            as with llama-server.
        gamma, accept: extensions of localspec: the draft length and the acceptance rule.
        draft: extension: which loaded drafters may draft: ``auto``, ``none``, or names separated by
            commas.
        cache_prompt: false: the prompt is read from its beginning, whatever the caches hold of it.
        reasoning_budget: extension: tokens after which a thought is closed; -1 for no limit.
    """

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: Count | None = None
    max_completion_tokens: Count | None = None
    n_predict: Count | None = None
    logit_bias: dict[str, float] | None = None
    seed: Seed | None = None
    stop: StopText | StopTexts | None = None
    n: int | None = None
    grammar: str | None = None
    gamma: Annotated[int, Meta(ge=0, le=MAX_GAMMA)] | Literal["auto"] | None = None
    accept: Accept | None = None
    draft: Annotated[str, Meta(max_length=256)] | None = None
    cache_prompt: bool | None = None
    reasoning_budget: Count | None = None

    @property
    def limit(self) -> int | None:
        """Tokens to generate at most; None for the server's setting."""
        names = (self.n_predict, self.max_completion_tokens, self.max_tokens)
        return next((each for each in names if each is not None), None)

    @property
    def ends_with_counts(self) -> bool:
        """Whether a stream ends with the token counts."""
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def drafters(self) -> tuple[str, ...] | None:
        """The names of those that may draft; None for all."""
        if self.draft in (None, AUTO):
            return None
        return tuple(name.strip() for name in self.draft.split(",")) if self.draft != NONE else ()

    def settings(self, own: ChatSettings, grammar: str) -> ChatSettings:
        """The settings of the answer.

        Args:
            own: the server's, for options that are not given.
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
            gamma=0 if self.draft == NONE else own.gamma if self.gamma is None else self.gamma,
            n_predict=own.n_predict if self.limit is None else self.limit,
            stop=own.stop if stop is None else tuple(stop),
            repeatable=own.repeatable if self.seed is None else self.seed != _ANY_SEED,
        )

    def _sampling(self, own: SamplingParams) -> SamplingParams:
        given: dict[str, Any] = {
            name: CHAIN[name].meant(value)
            for alias, name in _CHAIN.items()
            if (value := getattr(self, alias)) is not None
        }
        if self.seed is not None:
            given["seed"] = None if self.seed == _ANY_SEED else self.seed & MOST_WHOLE
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


@dataclass(frozen=True, slots=True)
class ConversationRequest:
    """A request for the next answer of a conversation, whichever protocol told it.

    Attributes:
        messages: as the client told them; at least one.
        tools: those that are described to the model.
        parallel: several may be called in one answer.
        format_rule: the grammar rule of the answer's format; empty for any text.
        reasoning: whether the model thinks first; None for the server's setting.
        effort: how much; empty for the server's setting.
        variables: further variables of the chat template.
        top_logprobs: how many alternatives to report per token; None for no probabilities.
        schema_place: where a request has the schema of a tool; see `RequestTools.of`.
        count_only: the prompt's tokens are counted, and no answer is written.
    """

    options: AnswerOptions
    messages: Sequence[ToldMessage]
    tools: Sequence[FunctionTool] = ()
    choice: ToolChoice = field(default_factory=ToolChoice)
    parallel: bool = True
    format_rule: str = ""
    reasoning: Literal["on", "off"] | None = None
    effort: str = ""
    variables: Mapping[str, Any] = field(default_factory=dict)
    top_logprobs: int | None = None
    schema_place: str = "tools[{i}].function.parameters"
    count_only: bool = False

    def prepared(self, own: ChatSettings, dialect: Dialect) -> tuple[AnswerRequest, IncomingAnswer]:
        """The request to the engine, and what reads its answer.

        Args:
            own: the server's settings.
            dialect: the model's.

        Raises:
            Refusal: the request is invalid.
            SchemaError: a schema that must be enforced cannot be.
        """
        toolbox = RequestTools.of(
            self.tools,
            self.choice,
            native=dialect.marks.explained,
            marks=dialect.marks,
            thinks=dialect.thinking.budget,
            parallel=self.parallel,
            place=self.schema_place,
        )
        asked = self.asked(own, toolbox, dialect.thinking)
        answer = IncomingAnswer(
            dialect,
            tools=msgspec.to_builtins(list(self.tools)) if self.choice.mode != "none" else [],
            held=bool(toolbox.calls and self.rule(toolbox)),
            scores=self.top_logprobs is not None,
            count_only=self.count_only,
            stops=asked.settings.stop,
            goes_on=asked.continues,
        )
        return asked, answer

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
        if self.options.grammar and (toolbox.calls or self.format_rule):
            message = "grammar cannot be combined with tools or response_format"
            raise Refusal(400, f"{message}; leave one out", param="grammar")
        settings = self.options.settings(own, self.rule(toolbox))
        budget = self.options.reasoning_budget
        budget = own.reasoning_budget if budget is None else budget
        settings = replace(settings, reasoning_budget=budget)
        said = in_turns(self.messages)
        if not said:
            raise Refusal(400, "there is nothing to answer", param="messages")
        if toolbox.one_at_a_time:
            said = one_at_a_time(said)
        messages = for_template(said, toolbox)
        if said[0].role != "system" and own.system_prompt:
            messages.insert(0, Message(Role.SYSTEM, own.system_prompt))
        after = toolbox.after if settings.grammar == toolbox.grammar else ""
        return AnswerRequest(
            settings=settings,
            messages=tuple(toolbox.told(messages)),
            variables={**self._thinking(own, thinking), **self.variables, **toolbox.variables},
            after=after,
            top_logprobs=self.top_logprobs,
            drafters=self.options.drafters,
            anew=self.options.cache_prompt is False,
            count_only=self.count_only,
            continues=said[-1].begins_answer and bool(after or not settings.grammar),
            goes_on=said[-1].role != "user",
        )

    def rule(self, toolbox: RequestTools) -> str:
        """The grammar of calls, or of the requested format; empty if neither applies."""
        required = bool(toolbox.grammar) and not toolbox.after
        if not self.format_rule or required:
            return toolbox.grammar
        if toolbox.calls is None:
            return lark.grammar(self.format_rule)
        return toolbox.calls.or_else(self.format_rule)  # clients send both in every turn

    def _thinking(self, own: ChatSettings, known: ThinkingOptions) -> dict[str, bool | str]:
        """The template's variables for thoughts."""
        effort = self.effort
        if effort not in known.efforts:
            effort = _NEAREST.get(effort, effort)
        return known.variables(self.reasoning or own.reasoning, effort or own.reasoning_effort)


def thoughts_of(effort: str | None) -> tuple[Literal["on", "off"] | None, str]:
    """Whether a protocol's effort asks for thoughts, and for how much; None and empty: neither."""
    word = (effort or "").lower()
    if word in ("none", "off"):
        return "off", ""
    return ("on", word) if word else (None, "")


def format_rule(schema: Mapping[str, Any], place: str) -> str:
    """The grammar rule of JSON that conforms to a schema.

    Raises:
        Refusal: the schema is too large or too deep.
    """
    require_bounded(dict(schema), place)
    return lark.json_value(schema, place)


@dataclass(frozen=True, slots=True)
class ContinuationRequest:
    """A request to continue text as it is, or to fill a gap in it.

    Attributes:
        prompt: the text, its ids, or the gap.
        top_logprobs: how many alternatives to report per token; None for no probabilities.
    """

    options: AnswerOptions
    prompt: str | tuple[int, ...] | Infill
    top_logprobs: int | None = None

    def prepared(self, own: ChatSettings, _: Dialect) -> tuple[AnswerRequest, IncomingAnswer]:
        """The request to the engine, and what reads its answer.

        Args:
            own: the server's settings.

        Raises:
            Refusal: the request is invalid.
        """
        gap = self.prompt if isinstance(self.prompt, Infill) else None
        asked = AnswerRequest(
            settings=self.options.settings(own, ""),
            prompt="" if isinstance(self.prompt, Infill) else self.prompt,
            infill=gap,
            top_logprobs=self.top_logprobs,
            drafters=self.options.drafters,
            anew=self.options.cache_prompt is False,
        )
        return asked, IncomingAnswer(None, scores=self.top_logprobs is not None)


CoreRequest: TypeAlias = ConversationRequest | ContinuationRequest
"""A request in the form that all protocols share."""


def require_sendable(asked: AnswerRequest) -> None:
    """Refuse values that cannot be sent to the engine's process.

    Raises:
        Refusal: the request has an integer of more than 64 bits, is nested too deep, or has more
            text than any context holds.
    """
    try:
        size = len(msgspec.msgpack.encode(asked))
    except OverflowError:
        raise Refusal(400, "an integer in the request has more than 64 bits") from None
    except RecursionError:
        raise Refusal(400, "the request is nested too deep") from None
    if size > _TEXT_BYTES:
        raise _too_large()


def _too_large() -> Refusal:
    said = f"the request has more than {_TEXT_BYTES >> 20} MB besides pictures"
    return Refusal(413, said, code="too_large")


def _whole(value: Any, depth: int = 2) -> Any:
    """Turn integral floats into integers: JSON has one number type, and some clients send 30.0.

    So it is in a request, and in the objects directly within it, but for what a template is given.
    """
    if not (depth and isinstance(value, dict)):
        return as_whole(value)
    return {
        name: part if name == _FOR_TEMPLATES else _whole(part, depth - 1)
        for name, part in value.items()
    }


def as_whole(value: Any) -> Any:
    """`value`, as an integer if it is an integral float."""
    whole = isinstance(value, float) and value.is_integer() and abs(value) < 1 << 63
    return int(value) if whole else value


def parsed(body: bytes, kind: type[T]) -> T:
    """Decode the body of a request.

    Raises:
        Refusal: it is invalid; the message names the place.
    """
    if sum(map(body.count, (b",", b"[", b"{"))) > _VALUES:  # each takes far more than its bytes
        raise _too_large()
    try:
        return msgspec.convert(_whole(_from_json(decoded(body))), kind)
    except msgspec.ValidationError as error:
        raise _invalid(error) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Refusal(400, f"the body is not JSON: {error}") from None


def _from_json(text: str) -> Any:
    """Decode JSON in which a client that cut a text may have left half of a surrogate pair."""
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:  # refused for a half, a conversation would be refused for good
        return msgspec.json.decode(_HALF.sub(lambda it: it[1] + (it[2] or "ufffd"), text))


def converted(value: Any, kind: Any, place: str) -> Any:
    """Decode a part of a request, which stands at `place`, as a value of the type `kind`.

    Raises:
        Refusal: it is invalid; the message names the place.
    """
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise _invalid(error, place) from None


def _invalid(error: msgspec.ValidationError, at: str = "") -> Refusal:
    """The refusal of a request, or of its part at `at`, that has another form."""
    said, _, within = str(error).partition(" - at ")
    place = (at + within.strip("`$")).strip(".")
    return Refusal(400, f"{said} - at `{place}`" if place else said, param=place or None)
