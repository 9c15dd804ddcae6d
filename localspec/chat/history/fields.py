"""Conversion of values to and from files; damage in one value does not hide the others."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Annotated, Any, TypeVar, get_type_hints

import msgspec

from localspec.chat.advice import DEFAULTS
from localspec.chat.conversation import Message, Role, tool_result
from localspec.chat.events import MODELS, Origin, Span, joined
from localspec.chat.history.tree import ConversationHeader, MessageNode, PairReference
from localspec.chat.settings import ChatSettings
from localspec.engine.record.stats import FinishReason
from localspec.engine.round.params import CHAIN, MOST_WHOLE, SamplingParams
from localspec.errors import SamplingError
from localspec.limits import MAX_GAMMA

Value = TypeVar("Value")

LATEST = 1e11
"""Seconds since 1970 that no clock shows: thousands of years from now."""

Moment = Annotated[float, msgspec.Meta(ge=0, lt=LATEST)]
"""Seconds since 1970 that a clock could show."""

_IMPOSSIBLE = 1e12
_RUN = re.compile(r"([defglt])([0-9]{1,15})")
_LETTERS = {**dict(zip(MODELS, "defg", strict=True)), Origin.LOOKUP: "l", Origin.TARGET: "t"}
_ORIGINS = {letter: origin for origin, letter in _LETTERS.items()}


def readable(raw: bytes) -> str:
    """Decode a file's bytes, even if they are not UTF-8."""
    return raw.decode("utf-8", "replace")


def text(value: Any) -> str:
    """Convert a value to text, whatever type the file holds."""
    if isinstance(value, bytes):
        return readable(value)
    return "" if value is None else str(value)


def pack(spans: Iterable[Span]) -> str:
    """Encode the origins and lengths of spans, such as ``t5d12t4``."""
    return "".join(f"{_LETTERS[span.origin]}{len(span.text)}" for span in joined(spans))


def unpack(content: str, origins: str) -> tuple[Span, ...]:
    """The spans of `content`; empty if `origins` does not fit it."""
    spans = []
    at = 0
    for letter, count in _RUN.findall(origins):
        spans.append(Span(content[at : at + int(count)], _ORIGINS[letter]))
        at += int(count)
    return tuple(spans) if at == len(content) else ()


def sound(value: Any, kind: Any, otherwise: Value, wrong: set[str], name: str) -> Value:
    """Return `value` if it is of this `kind`; else add `name` to `wrong` and return `otherwise`."""
    try:
        found: Value = msgspec.convert(value, kind)
    except msgspec.ValidationError:
        wrong.add(name)
        return otherwise
    return found


def sound_figures(figures: Any) -> dict[str, Any]:
    """Figures from a file, without impossible ones: nan, infinity, absurd sizes."""
    return {
        name: value
        for name, value in (figures.items() if isinstance(figures, Mapping) else ())
        if isinstance(value, str) or (isinstance(value, int | float) and 0 <= value < _IMPOSSIBLE)
    }


def header_of(row: Sequence[Any], wrong: set[str]) -> ConversationHeader:
    """A conversation's header from its id, title, pair, parameters and two times.

    The names of unreadable values are added to `wrong`.
    """
    return ConversationHeader(
        text(row[0]),
        sound(row[1], str, text(row[1]), wrong, "title"),
        sound(_document(row[2]), PairReference, PairReference(), wrong, "pair"),
        sound(_document(row[3]), dict, {}, wrong, "settings"),
        *(sound(value, Moment, 0.0, wrong, "time") for value in row[4:6]),
    )


def node_of(row: Sequence[Any], wrong: set[str]) -> MessageNode:
    """A message from its id, parent, role, content, finish, origins and figures.

    The names of unreadable values are added to `wrong`.
    """
    node_id, parent, role, content, finish, origins, figures = row
    said = sound(content, str, text(content), wrong, "message")
    # If the role is damaged, the finish reason tells: only an answer has one.
    speaker = sound(role, Role, Role.USER if finish is None else Role.ASSISTANT, wrong, "speaker")
    reason = sound(finish, FinishReason | None, None, set(), "finish")
    known = sound_figures(sound(_document(figures), dict, {}, wrong, "figures"))
    return MessageNode(
        text(node_id),
        None if parent is None else text(parent),
        message_of(speaker, said, reason, text(origins), known),
        known,
    )


def message_of(
    role: Role,
    said: str,
    finish: FinishReason | None,
    origins: str,
    figures: Mapping[str, Any],
) -> Message:
    """A message from its stored fields; a tool's result has its call among the figures."""
    if role is Role.TOOL:
        return tool_result(said, text(figures.get("tool")), text(figures.get("arguments")))
    return Message(role, said, finish, unpack(said, origins))


def call_of(message: Message) -> dict[str, Any]:
    """The figures from which `message_of` has the call of a tool's result."""
    return {"tool": message.more["name"], "arguments": message.more["arguments"]}


def _document(value: Any) -> Any:
    """Parse JSON; None if it is not valid."""
    try:
        return json.loads(value)
    except (ValueError, TypeError, RecursionError):
        return None


def document_of(settings: ChatSettings) -> dict[str, Any]:
    """All settings that determine answers, as a value for `json.dumps`."""
    document = asdict(settings) | {"stop": list(settings.stop), "chosen": sorted(settings.chosen)}
    del document["repeat_stop"]  # it is a setting of the program, not of the conversation
    # JSON has neither numeric keys nor infinity.
    document["sampling"]["logit_bias"] = {
        str(token): None if math.isinf(bias) else bias
        for token, bias in settings.sampling.logit_bias.items()
    }
    return document


def settings_of(
    document: Mapping[str, Any], base: ChatSettings, but: Set[str] = frozenset()
) -> ChatSettings:
    """`base` with every valid value of `document`.

    Args:
        document: as `document_of` makes it.
        base: what holds where the document says nothing.
        but: fields of `ChatSettings` and `SamplingParams` whose values of the document do not hold.
    """
    found = _of_its_type({**_without(document, but), "sampling": None}, ChatSettings)
    sampling = document.get("sampling")
    if isinstance(sampling, Mapping):
        found["sampling"], chosen = _sampling(_without(sampling, but), base)
        found.setdefault("chosen", chosen)
    if "chosen" in found:
        found["chosen"] = (found["chosen"] - but) | (base.chosen & but)
    if "n_predict" in found:
        found["n_predict"] = max(-1, found["n_predict"])
    lenience = found.get("lenience")
    impossible = {
        "gamma": found.get("gamma", "auto") not in ("auto", *range(MAX_GAMMA + 1)),
        "stop": not all(found.get("stop", ())),
        "lenience": lenience is not None and not 0 < lenience <= 1,
        "n_predict": found.get("n_predict", 0) > MOST_WHOLE,
        "reasoning_budget": abs(found.get("reasoning_budget", 0)) > MOST_WHOLE,
    }
    return replace(base, **{n: one for n, one in found.items() if not impossible.get(n)})


def _without(document: Mapping[str, Any], names: Set[str]) -> dict[str, Any]:
    return {name: value for name, value in document.items() if name not in names}


def _sampling(
    document: Mapping[str, Any], base: ChatSettings
) -> tuple[SamplingParams, frozenset[str]]:
    """The sampler chain, and the names of the chosen settings: those that are not the default.

    Newer documents store the chosen names themselves.
    """
    bias = document.get("logit_bias")
    if isinstance(bias, Mapping):
        numbers = {token: -math.inf if one is None else one for token, one in bias.items()}
        document = {**document, "logit_bias": numbers}
    found = _of_its_type(document, SamplingParams)
    chosen = {name for name in CHAIN if found.get(name) not in (None, getattr(DEFAULTS, name))}
    try:
        return replace(base.sampling, **found), frozenset(chosen)
    except SamplingError:
        return base.sampling, base.chosen


def _of_its_type(document: Mapping[str, Any], kind: type) -> dict[str, Any]:
    """The values that have the type of a field of `kind`, by field name."""
    found = {}
    for name, its_type in get_type_hints(kind).items():
        if name in document:
            with suppress(msgspec.ValidationError):
                found[name] = msgspec.convert(document[name], its_type, str_keys=True)
    return found
