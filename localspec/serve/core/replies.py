"""The answer to a request as pieces, which every protocol writes in its own form."""

from __future__ import annotations

import secrets
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from localspec.chat.dialects import AnswerReader, Call, ContentPiece, Dialect, ThoughtPiece
from localspec.chat.dialects.reading.answer_parts import ReadPiece, Underway
from localspec.chat.events import PromptMade, RoundText, TokensScored, TurnEnd, TurnEvent
from localspec.engine.record.stats import GenerationStats


@dataclass(frozen=True, slots=True)
class CallBegun:
    """A call begins; `index` counts the calls of an answer."""

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class CallPart:
    """The next part of the JSON of a call's arguments."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class CallEnded:
    """Nothing of a call follows; `whole` is False if it was cut off, or was sent wrongly."""

    index: int
    whole: bool = True


AnswerPiece: TypeAlias = ThoughtPiece | ContentPiece | CallBegun | CallPart | CallEnded
"""What an answer consists of, in order; a call ends before the next one begins."""


class IncomingAnswer:
    """Reads an answer from the engine's events.

    Args:
        dialect: how the model marks thoughts and calls; None for a plain completion.
        tools: those that may be called, in OpenAI's form.
        held: a grammar enforces the model's notation of calls, so that their beginnings can be sent
            before they are complete.
        scores: whether probabilities were requested.
        count_only: only the prompt's tokens were requested.
        stops: the texts that end an answer wherever they come, also within a call.
        goes_on: the client has begun the answer, with the mark of a thought that is open.

    Attributes:
        prompt: its length, and what of it the caches hold; None before it is known.
        end: the last event; None before it.
        calls: how many have begun.
    """

    def __init__(
        self,
        dialect: Dialect | None,
        *,
        tools: Sequence[Any] = (),
        held: bool = False,
        scores: bool = False,
        count_only: bool = False,
        stops: Sequence[str] = (),
        goes_on: bool = False,
    ) -> None:
        self.prompt: PromptMade | None = None
        self.end: TurnEnd | None = None
        self.calls = self._whole_calls = 0
        self.thought_tokens = 0
        self._dialect, self._tools = dialect, tools
        self._reader: AnswerReader | None = None
        self._held = held
        self._underway: list[tuple[int, str]] = []  # incomplete calls: index, what was sent
        self._order = _CallOrder()
        self._scores: list[Any] | None = [] if scores else None
        self._count_only = count_only
        self._goes_on = goes_on
        ends = dialect.marks.ends if dialect is not None else ()  # after which an answer is whole
        self._stops = frozenset(stops) - {*ends}

    @property
    def over(self) -> bool:
        """Whether nothing more will come."""
        return self.end is not None or (self._count_only and self.prompt is not None)

    @property
    def ends_with_calls(self) -> bool:
        """Whether the client is to run calls: there are some, and none was cut off."""
        return 0 < self.calls == self._whole_calls

    @property
    def stats(self) -> GenerationStats:
        """The figures; empty before the end."""
        return self.end.stats if self.end is not None else GenerationStats()

    @property
    def prompt_tokens(self) -> int:
        """The prompt's length; 0 before it is known."""
        return self.prompt.prompt_tokens if self.prompt is not None else 0

    @property
    def cached_tokens(self) -> int:
        """How many of the prompt's tokens needed no reading."""
        if self.end is not None:
            return self.end.stats.prefill_cached
        return self.prompt.cached if self.prompt is not None else 0

    def scored(self) -> list[Any]:
        """The probabilities since the last call of this; empty if none were requested."""
        found = self._scores or []
        if self._scores is not None:
            self._scores = []
        return found

    def take(self, events: Iterable[TurnEvent]) -> list[AnswerPiece]:
        """The pieces that these events bring."""
        return [one for piece in self._taken(events) for one in self._order.passed(piece)]

    def _taken(self, events: Iterable[TurnEvent]) -> Iterator[AnswerPiece]:
        for event in events:
            match event:
                case PromptMade():
                    yield from self._after(event)
                case RoundText():
                    yield from self._read(event)
                case TokensScored(tokens) if self._scores is not None:
                    self._scores += tokens
                case TurnEnd():
                    self.end = event
        if self._reader is None:
            return
        if self._held:
            yield from self._begun(self._reader.underway)
        if self.end is not None:
            yield from self._told(self._reader.end(cut=self.end.cut_off(self._stops)))
            yield from self._left(0)

    def _after(self, prompt: PromptMade) -> Iterator[AnswerPiece]:
        """Begin to read; the mark of a thought that is left in the answer is part of it."""
        self.prompt = prompt
        if self._dialect is None:
            return
        self._reader = self._dialect.reader(self._tools, prompt=prompt.opening, exact=True)
        if prompt.opening and self._dialect.marks.raw and not self._goes_on:
            yield ContentPiece(prompt.opening)

    def _read(self, event: RoundText) -> Iterator[AnswerPiece]:
        if self._reader is None:
            yield from [ContentPiece(event.text)] if event.text else []
            return
        pieces = list(self._reader.feed(event.text))
        if self._reader.thinking or any(isinstance(one, ThoughtPiece) for one in pieces):
            self.thought_tokens += len(event.round.tokens)
        yield from self._told(pieces)

    def _told(self, pieces: Iterable[ReadPiece]) -> Iterator[AnswerPiece]:
        for piece in pieces:
            if not isinstance(piece, Call):
                yield piece
                continue
            name, plain = piece.texts()
            if not self._underway:
                yield self._opened(name)
            index, told = self._underway.pop(0)
            text = piece.written if self._held and piece.written else plain
            yield from _more(index, told, text)
            whole = text.startswith(told)  # else what was sent is not how it was meant
            self._whole_calls += whole
            yield CallEnded(index, whole)

    def _begun(self, calls: Underway) -> Iterator[AnswerPiece]:
        """The pieces of calls that are being written."""
        yield from self._left(len(calls))  # text that looked like calls
        for i, (name, text) in enumerate(calls):
            if i == len(self._underway):
                yield self._opened(name)
            index, told = self._underway[i]
            if text.startswith(told):
                yield from _more(index, told, text)
                self._underway[i] = index, text

    def _opened(self, name: str) -> CallBegun:
        index = self.calls
        self.calls += 1
        self._underway.append((index, ""))
        return CallBegun(index, secrets.token_hex(12), name)

    def _left(self, n: int) -> Iterator[CallEnded]:
        """End all calls but the first `n` that are being written."""
        left, self._underway = self._underway[n:], self._underway[:n]
        for index, _ in left:
            yield CallEnded(index, whole=False)


class _CallOrder:
    """Holds back the pieces of a call until the call before it has ended."""

    def __init__(self) -> None:
        self._open = 0
        self._held: defaultdict[int, list[AnswerPiece]] = defaultdict(list)

    def passed(self, piece: AnswerPiece) -> Iterator[AnswerPiece]:
        """Add a piece; the pieces that follow now."""
        if isinstance(piece, ThoughtPiece | ContentPiece):
            yield piece
        elif piece.index > self._open:
            self._held[piece.index].append(piece)
        else:
            yield piece
            if isinstance(piece, CallEnded):
                self._open += 1
                for held in self._held.pop(self._open, ()):
                    yield from self.passed(held)


def _more(index: int, told: str, text: str) -> Iterator[CallPart]:
    """The part of a call's arguments that was not sent yet."""
    if text.startswith(told) and text != told:
        yield CallPart(index, text[len(told) :])


def timings(stats: GenerationStats) -> dict[str, Any]:
    """Durations and token counts under llama-server's names; times in milliseconds."""
    # As in llama-server, the prompt's last token counts as prompt, though the first round reads it.
    read, generated = stats.prompt_tokens - stats.prefill_cached, stats.generated_tokens
    read_ms = 1e3 * stats.prefill_s
    first_s = (stats.time_to_first_token_s or 0.0) - stats.prepared_s - stats.prefill_s
    written_ms = 1e3 * (stats.after_first_s + max(0.0, first_s))
    return {
        "cache_n": stats.prefill_cached,
        "prompt_n": read,
        "prompt_ms": read_ms,
        "prompt_per_second": 1e3 * read / read_ms if read_ms else 0.0,
        "predicted_n": generated,
        "predicted_ms": written_ms,
        "predicted_per_second": 1e3 * generated / written_ms if written_ms else 0.0,
        "draft_cache_n": stats.draft_cached,
        "draft_prompt_n": stats.draft_prefill,
        "draft_n": stats.drafted_tokens,
        "draft_n_accepted": stats.accepted_tokens,
        "drafters": {
            name: {"drafted": its.drafted, "accepted": its.accepted, "seconds": its.seconds}
            for name, its in stats.drafters.items()
        },
    }
