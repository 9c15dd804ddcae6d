"""The events of a turn, in order: plain frozen values.

A turn yields `PromptMade` if the client keeps the conversation, `Noticed` for anything the user
should know, `TurnsLeftOut` if the context is full, `PromptProgress` (any number), then `RoundText`
(one per round), then one `TurnEnd`. Where one prompt is answered twice, `Disturbed` may follow each
answer, and the `Parting` follows both if they part.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from msgspec import Struct

from localspec import drafter_names
from localspec.engine.record.parting import Parting
from localspec.engine.record.stats import FinishReason, GenerationStats, Round


class Origin(StrEnum):
    """Who first proposed a piece of the answer."""

    DRAFT = "draft"
    SECOND = "second draft"
    THIRD = "third draft"
    FOURTH = "fourth draft"
    LOOKUP = drafter_names.LOOKUP
    TARGET = "target"


@dataclass(frozen=True, slots=True)
class Span:
    """A piece of text with one origin."""

    text: str
    origin: Origin


def joined(spans: Iterable[Span]) -> tuple[Span, ...]:
    """`spans` without empty ones, and with neighbours of one origin merged."""
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
"""Draft models and heads, in the order in which they were named; further ones count as the last."""


class TurnsLeftOut(Struct, frozen=True, tag=True):
    """The context is full: the prompt no longer holds the first `messages` messages."""

    messages: int


class Noticed(Struct, frozen=True, tag=True):
    """Something the user should know, such as that the model's template was given up."""

    text: str


class PromptMade(Struct, frozen=True, tag=True):
    """A client's prompt has been made.

    Attributes:
        prompt_tokens: its length; more than the context holds ends in an error.
        context_size: tokens that the context holds.
        opening: the mark of a thought that the prompt ends with; empty for none.
        cached: how many of its tokens the caches hold; `GenerationStats.prefill_cached` tells how
            many of them could be used.
    """

    prompt_tokens: int
    context_size: int
    opening: str = ""
    cached: int = 0


class TokensScored(Struct, frozen=True, tag=True):
    """The model's probabilities of the next round's tokens.

    Attributes:
        tokens: of each its bytes, the natural logarithm of its probability, and both of the most
            probable tokens.
    """

    tokens: tuple[tuple[bytes, float, tuple[tuple[bytes, float], ...]], ...]


class PromptProgress(Struct, frozen=True, tag=True):
    """The prompt is being read: `done` of `total` new tokens.

    Attributes:
        seconds_left: expected for the rest; None while too little was read to tell.
    """

    done: int
    total: int
    seconds_left: float | None = None


class RoundText(Struct, frozen=True, tag=True):
    """The text that one round released; it may be empty (half a character, half a stop string)."""

    spans: tuple[Span, ...]
    round: Round

    @property
    def text(self) -> str:
        """The released text."""
        return "".join(span.text for span in self.spans)


class TurnEnd(Struct, frozen=True, tag=True):
    """The turn is over.

    Attributes:
        text: the whole released answer.
        stopped_by: the stop string that ended it; empty for none.
    """

    text: str
    reason: FinishReason
    stats: GenerationStats
    stopped_by: str = ""

    def cut_off(self, stops: Collection[str]) -> bool:
        """Whether a limit or one of `stops` ended it wherever it was, perhaps within a call."""
        return self.reason is not FinishReason.STOP or self.stopped_by in {*stops} - {""}


class Disturbed(Struct, frozen=True, tag=True):
    """Other programs took threads that the answer needed, as the clause `why` says."""

    why: str


TurnEvent: TypeAlias = (
    PromptMade | TokensScored | Noticed | TurnsLeftOut | PromptProgress | RoundText | TurnEnd
    | Disturbed | Parting
)  # fmt: skip

TurnEvents: TypeAlias = Generator[TurnEvent, None, None]
"""The events of one turn; closing the generator ends the turn."""
