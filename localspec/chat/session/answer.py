"""One answer while it is written: tokens come in by the round, text goes out.

On its way bytes become characters, what might become a stop string is held back, and it is noted
whether code or prose is being written.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from localspec.chat.dialects.marks import overlap
from localspec.chat.events import MODELS, Origin, RoundText, Span, joined
from localspec.chat.session.repetition import Repetition
from localspec.engine.record.stats import LOOKUP, FinishReason, Round

_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
_FENCE_WITHIN = 80  # characters of a line that are looked at: a fence stands at its beginning


class AnswerText:
    """Turns rounds into released text, and ends the answer at a stop string.

    Args:
        piece: the bytes of a token.
        stops: the stop strings.
        drafters: the names of the models that draft, in the order in which they were named.
        begins: the mark of a thought that the prompt has opened. The text begins with it, so that
            whoever reads it later needs no prompt.
        repetition: ends an answer that only repeats itself; None where it may.

    Attributes:
        tokens: the ids generated, up to and including the one that completed a stop string.
        kind: whether code or prose is being written.
    """

    def __init__(
        self,
        piece: Callable[[int], bytes],
        stops: Iterable[str],
        drafters: Sequence[str] = (),
        *,
        begins: str = "",
        repetition: Repetition | None = None,
    ) -> None:
        self._piece = piece
        self._repetition = repetition
        self._begins = begins
        self._origins = {name: MODELS[min(i, len(MODELS) - 1)] for i, name in enumerate(drafters)}
        self._origins[LOOKUP] = Origin.LOOKUP
        self._text = Detokeniser()
        self._stops = StopFilter(stops)
        self.tokens: list[int] = []
        self.kind = TextKind()
        self._released: list[Span] = []

    @property
    def text(self) -> str:
        """The text released so far."""
        return "".join(span.text for span in self._released)

    @property
    def written(self) -> str:
        """The same without what the prompt has opened: the text of the tokens."""
        return self.text.removeprefix(self._begins)

    @property
    def spans(self) -> tuple[Span, ...]:
        """The text released so far by origin."""
        return joined(self._released)

    def add(self, done: Round) -> RoundText:
        """Add what a round emitted; the round in the result ends where the answer does.

        Only the tokens are cut: the round's counts stay those of the verification.
        """
        released: list[Span] = []
        for i, token in enumerate(done.tokens):
            released += self._stops.feed(self._text.feed(self._piece(token), self._origin(done, i)))
            if (ending := self._ending(token)) is not None:
                done = replace(done, tokens=done.tokens[: i + 1], finish=ending)
                break
        self.tokens += done.tokens
        if done.finish is not None:
            released += self._stops.feed(self._text.flush())
            released += self._stops.flush()
        spans = joined(released)
        if spans and not self._released and self._begins:
            spans = (Span(self._begins, Origin.TARGET), *spans)
        self._released += spans
        for span in spans:
            self.kind.feed(span.text)
        return RoundText(spans, done)

    def _ending(self, token: int) -> FinishReason | None:
        """Whether the answer ends with this token, by a stop string or as it repeats itself."""
        repeats = self._repetition is not None and self._repetition.add(token)
        if self._stops.hit is not None:
            return FinishReason.STOP
        return FinishReason.REPETITION if repeats else None

    def _origin(self, done: Round, at: int) -> Origin:
        """Who proposed the token at this place of a round first."""
        for name, _, accepted in done.shares:
            if at < accepted:
                return self._origins.get(name, Origin.DRAFT)
            at -= accepted
        return Origin.TARGET


class Detokeniser:
    """Incremental UTF-8 over token pieces, remembering who proposed what.

    A character is released once its last byte has come. It counts as a drafter's only when that
    drafter proposed every one of its bytes. Bytes that are no UTF-8 become U+FFFD.
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._begun: Origin | None = None  # origin of the bytes of an unfinished character

    def feed(self, piece: bytes, origin: Origin) -> tuple[Span, ...]:
        """Add one token's bytes; return the text that they complete."""
        begun = self._begun
        text = self._decoder.decode(piece)
        unfinished = bool(self._decoder.getstate()[0])
        if not text:
            self._begun = _joint(begun, origin) if unfinished else None
            return ()
        self._begun = origin if unfinished else None
        first = _joint(begun, origin)
        if first is origin:
            return (Span(text, origin),)
        return joined((Span(text[0], first), Span(text[1:], origin)))

    def flush(self) -> tuple[Span, ...]:
        """The end: an unfinished character becomes U+FFFD."""
        begun, self._begun = self._begun, None
        text = self._decoder.decode(b"", final=True)
        return (Span(text, begun or Origin.TARGET),) if text else ()


def _joint(begun: Origin | None, origin: Origin) -> Origin:
    """The origin of a character whose first bytes came from `begun`, its last from `origin`."""
    return origin if begun in (None, origin) else Origin.TARGET


class StopFilter:
    """Passes text through until a stop string is complete.

    What comes out does not depend on how the text was cut into pieces: the stop string that is
    complete first wins, and among those that end at the same character the longest.

    Args:
        stops: the stop strings; empty ones are ignored.
    """

    def __init__(self, stops: Iterable[str]) -> None:
        self._stops = tuple(dict.fromkeys(stop for stop in stops if stop))
        self._held: tuple[Span, ...] = ()
        self.hit: str | None = None

    def feed(self, spans: tuple[Span, ...]) -> tuple[Span, ...]:
        """Add text; return what may be shown. After a `hit` nothing comes any more."""
        if self.hit is not None:
            return ()
        if not self._stops:
            return spans
        pending = joined(self._held + spans)
        text = "".join(span.text for span in pending)
        if found := [(at + len(s), at, s) for s in self._stops if (at := text.find(s)) >= 0]:
            _, end, self.hit = min(found)
        else:
            end = len(text) - max(overlap(text, stop) for stop in self._stops)
        released, self._held = _split(pending, end)
        return released

    def flush(self) -> tuple[Span, ...]:
        """The end: return what was held back, as no stop string came of it."""
        held, self._held = self._held, ()
        return () if self.hit is not None else held


def _split(spans: tuple[Span, ...], end: int) -> tuple[tuple[Span, ...], tuple[Span, ...]]:
    """Cut `spans` after `end` characters."""
    before: list[Span] = []
    after: list[Span] = []
    for span in spans:
        cut = max(0, min(len(span.text), end))
        before.append(Span(span.text[:cut], span.origin))
        after.append(Span(span.text[cut:], span.origin))
        end -= len(span.text)
    return joined(before), joined(after)


class TextKind:
    """Follows Markdown's fences as the text comes in, in pieces of any size."""

    def __init__(self) -> None:
        self._line = ""
        self._fence = ""

    @property
    def name(self) -> str:
        """``code`` or ``prose``."""
        return "code" if self._fence else "prose"

    def feed(self, text: str) -> None:
        """Go on with `text`."""
        *lines, begun = (self._line + text).split("\n")
        self._line = begun[:_FENCE_WITHIN]
        for found in filter(None, map(_FENCE.match, lines)):
            mark, after = found[1], found.string[found.end() : _FENCE_WITHIN]
            if not self._fence:
                self._fence = mark
            elif mark.startswith(self._fence) and not after.strip():
                self._fence = ""
