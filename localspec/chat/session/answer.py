"""One answer while it is written: rounds of tokens go in, released text comes out.

Bytes become characters, text that may become a stop string is held back, and the kind of the text
(code or prose) is tracked.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby

from localspec.chat.dialects import AnswerReader, ThoughtPiece
from localspec.chat.dialects.marks import overlap
from localspec.chat.events import MODELS, Origin, RoundText, Span, joined
from localspec.chat.session.repetition import Repetition
from localspec.drafter_names import LOOKUP
from localspec.engine.record.stats import FinishReason, Round

_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
_FENCE_WITHIN = 80  # characters of a line to search: a fence is at its beginning


class AnswerText:
    """Turns rounds into released text, and ends the answer at a stop string.

    Args:
        piece: returns the bytes of a token.
        stops: the stop strings of the model, which end the answer anywhere.
        drafters: the names of draft models and heads, in the order in which they were named.
        begins: the mark of a thought that the prompt has opened; the text begins with it, so that
            it can be parsed without the prompt.
        repetition: ends an answer that only repeats itself; None lets it go on.
        own_stops: further stop strings, which count in the answer but not in its thoughts.
        reader: finds the thoughts; None if nothing is one.

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
        own_stops: Sequence[str] = (),
        reader: AnswerReader | None = None,
    ) -> None:
        self._piece = piece
        self._repetition = repetition
        self._begins = begins
        self._origins = {name: MODELS[min(i, len(MODELS) - 1)] for i, name in enumerate(drafters)}
        self._origins[LOOKUP] = Origin.LOOKUP
        self._text = Detokeniser()
        self._stops = StopFilter(stops, own_stops)
        self._thoughts = Thoughts(reader) if reader is not None and own_stops else None
        self.tokens: list[int] = []
        self.kind = TextKind()
        self._released: list[Span] = []

    @property
    def text(self) -> str:
        """The text released so far."""
        return "".join(span.text for span in self._released)

    @property
    def written(self) -> str:
        """The released text without the mark that the prompt opened."""
        return self.text.removeprefix(self._begins)

    @property
    def stopped_by(self) -> str:
        """The stop string that ended the answer; empty for none."""
        return self._stops.hit or ""

    @property
    def spans(self) -> tuple[Span, ...]:
        """The released text, split by origin."""
        return joined(self._released)

    def add(self, done: Round) -> RoundText:
        """Add the tokens of a round; the returned round is cut where the answer ends.

        Only the tokens are cut: the round's counts stay those of the verification.
        """
        released: list[Span] = []
        for i, token in enumerate(done.tokens):
            for spans, thought in self._divided(self._piece(token), self._origin(done, i)):
                released += self._stops.feed(spans, thought=thought)
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

    def _divided(
        self, piece: bytes, origin: Origin
    ) -> Iterator[tuple[tuple[Span, ...], bool | None]]:
        """The text that a token completes, in parts; each with what `Thoughts.include` says."""
        spans = self._text.feed(piece, origin)
        if self._thoughts is None:
            yield spans, False
            return
        for span in spans:
            for thought, part in groupby(span.text, self._thoughts.include):
                yield (Span("".join(part), span.origin),), thought

    def _ending(self, token: int) -> FinishReason | None:
        """Why the answer ends with this token (a stop string, a repetition); None if it goes on."""
        repeats = self._repetition is not None and self._repetition.add(token)
        if self._stops.hit is not None:
            return FinishReason.STOP
        return FinishReason.REPETITION if repeats else None

    def _origin(self, done: Round, at: int) -> Origin:
        """Which drafter first proposed the token at this position of the round."""
        for name, _, accepted in done.shares:
            if at < accepted:
                return self._origins.get(name, Origin.DRAFT)
            at -= accepted
        return Origin.TARGET


class Detokeniser:
    """Decodes UTF-8 incrementally from token pieces, and tracks the origin of each character.

    A character is released with its last byte. It counts as a drafter's only if that drafter
    proposed every one of its bytes. Bytes that are not UTF-8 become U+FFFD.
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
        """End the text: an unfinished character becomes U+FFFD."""
        begun, self._begun = self._begun, None
        text = self._decoder.decode(b"", final=True)
        return (Span(text, begun or Origin.TARGET),) if text else ()


def _joint(begun: Origin | None, origin: Origin) -> Origin:
    """The origin of a character whose first bytes came from `begun`, its last from `origin`."""
    return origin if begun in (None, origin) else Origin.TARGET


class Thoughts:
    """Tells which characters of an answer belong to a thought.

    The marks before and after it belong to it, and the white space that follows it, which is only
    layout. It is over once its closing mark has come.

    Args:
        reader: of the answer.
    """

    def __init__(self, reader: AnswerReader) -> None:
        self._reader = reader
        self._within: bool | None = False  # what was said of the last character

    def include(self, char: str) -> bool | None:
        """Whether a thought has the next character; None if it is that of the next one that tells.

        Only a complete mark shows that it is not content.
        """
        reader, ended = self._reader, self._reader.thinking
        for piece in reader.feed(char):
            ended = ended or isinstance(piece, ThoughtPiece)
        if reader.thinking or reader.begun:
            self._within = reader.thinking
        elif ended or (self._within and char.isspace()):
            self._within = True
        else:
            self._within = None if reader.begun is None else self._within is not False
        return self._within


class StopFilter:
    """Passes text through until a stop string is complete.

    The result does not depend on how the text is split into pieces: the stop string that is
    complete first wins, and the longest of those that end at the same character.

    Args:
        stops: the stop strings; empty ones are ignored.
        own: further ones, which do not count in thoughts.
    """

    def __init__(self, stops: Iterable[str], own: Iterable[str] = ()) -> None:
        self._in_thoughts = tuple(dict.fromkeys(stop for stop in stops if stop))
        self._stops = tuple(dict.fromkeys((*self._in_thoughts, *filter(None, own))))
        self._held: tuple[Span, ...] = ()
        self.hit: str | None = None

    def feed(self, spans: tuple[Span, ...], *, thought: bool | None = False) -> tuple[Span, ...]:
        """Add text; return what may be shown. After a `hit`, nothing is returned.

        Args:
            spans: the text.
            thought: it belongs to a thought; None if that shows only with the next text.
        """
        if self.hit is not None or not spans:
            return ()
        stops = self._stops if thought is False else self._in_thoughts
        if not self._stops:
            return spans
        pending = joined(self._held + spans)
        text = "".join(span.text for span in pending)
        if found := [(at + len(s), at, s) for s in stops if (at := text.find(s)) >= 0]:
            _, end, self.hit = min(found)
        elif thought is None:
            end = 0
        else:
            end = len(text) - max((overlap(text, stop) for stop in stops), default=0)
        released, self._held = _split(pending, end)
        return released

    def flush(self) -> tuple[Span, ...]:
        """End the text: return what was held back."""
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
    """Tracks Markdown's code fences in text that arrives in pieces of any size."""

    def __init__(self) -> None:
        self._line = ""
        self._fence = ""

    @property
    def name(self) -> str:
        """``code`` or ``prose``."""
        return "code" if self._fence else "prose"

    def feed(self, text: str) -> None:
        """Process the next piece of text."""
        *lines, begun = (self._line + text).split("\n")
        self._line = begun[:_FENCE_WITHIN]
        for found in filter(None, map(_FENCE.match, lines)):
            mark, after = found[1], found.string[found.end() : _FENCE_WITHIN]
            if not self._fence:
                self._fence = mark
            elif mark.startswith(self._fence) and not after.strip():
                self._fence = ""
