"""What a turn of the conversation reports while it runs: plain frozen values, in order.

A turn yields `PromptMade` where the asker keeps the conversation, `Noticed` for what came up,
`TurnsLeftOut` where the context is full, `PromptProgress` (any number), then `RoundText` (one a
round), then one `TurnEnd`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from msgspec import Struct

from localspec.engine.record.stats import FinishReason, GenerationStats, Round


class Origin(StrEnum):
    """Who proposed a piece of the answer first."""

    DRAFT = "draft"
    SECOND = "second draft"
    THIRD = "third draft"
    FOURTH = "fourth draft"
    LOOKUP = "lookup"
    TARGET = "target"


@dataclass(frozen=True, slots=True)
class Span:
    """A piece of text of one origin."""

    text: str
    origin: Origin


def joined(spans: Iterable[Span]) -> tuple[Span, ...]:
    """`spans` without empty ones, neighbours of one origin made one."""
    merged: list[Span] = []
    for span in spans:
        if not span.text:
            continue
        if merged and merged[-1].origin is span.origin:
            merged[-1] = Span(merged[-1].text + span.text, span.origin)
        else:
            merged.append(span)
    return tuple(merged)


MODELS = (Origin.DRAFT, Origin.SECOND, Origin.THIRD, Origin.FOURTH)
"""Draft models and heads, in the order in which they were named; more of them count as the last."""


class TurnsLeftOut(Struct, frozen=True, tag=True):
    """The context is full: from now on the model is not told the first `messages` messages."""

    messages: int


class Noticed(Struct, frozen=True, tag=True):
    """Something that the user should know came up: the model's template was given up, say."""

    text: str


class PromptMade(Struct, frozen=True, tag=True):
    """An asker's prompt has been made.

    Attributes:
        prompt_tokens: how long it is; more than the context holds ends in an error.
        context_size: tokens that the context holds.
        prefill: the mark of a thought with which it ends; empty for none.
    """

    prompt_tokens: int
    context_size: int
    prefill: str = ""


class TokensScored(Struct, frozen=True, tag=True):
    """How probable the model found the next round's tokens.

    Attributes:
        tokens: of each its text, the logarithm of its probability, and the same of the most
            probable ones.
    """

    tokens: tuple[tuple[bytes, float, tuple[tuple[bytes, float], ...]], ...]


class PromptProgress(Struct, frozen=True, tag=True):
    """The prompt is being read: `done` of `total` new tokens, `cached` were known already."""

    done: int
    total: int
    cached: int


class RoundText(Struct, frozen=True, tag=True):
    """The text that one round released (it may be empty: half a character, half a stop string)."""

    spans: tuple[Span, ...]
    round: Round

    @property
    def text(self) -> str:
        """The released text."""
        return "".join(span.text for span in self.spans)


class TurnEnd(Struct, frozen=True, tag=True):
    """The turn is over; `text` is the whole answer as it was released."""

    text: str
    reason: FinishReason
    stats: GenerationStats


TurnEvent: TypeAlias = (
    PromptMade | TokensScored | Noticed | TurnsLeftOut | PromptProgress | RoundText | TurnEnd
)
