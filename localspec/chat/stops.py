"""Stop strings: text that might become one is held back, text that cannot is released."""

from __future__ import annotations

from collections.abc import Iterable

from localspec.chat.detokenise import joined
from localspec.chat.events import Span


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
        end = self._first_stop(text)
        if self.hit is None:
            end = len(text) - self._possible_beginning(text)
        released, self._held = _split(pending, end)
        return released

    def flush(self) -> tuple[Span, ...]:
        """The end: return what was held back, as no stop string came of it."""
        held, self._held = self._held, ()
        return () if self.hit is not None else held

    def _first_stop(self, text: str) -> int:
        """Note the stop string that is complete first; return where it starts."""
        found = [(at + len(stop), at, stop) for stop in self._stops if (at := text.find(stop)) >= 0]
        if not found:
            return 0
        _, start, self.hit = min(found)
        return start

    def _possible_beginning(self, text: str) -> int:
        """Length of the longest end of `text` with which some stop string begins."""
        return max(_overlap(text, stop) for stop in self._stops)


def _overlap(text: str, stop: str) -> int:
    """Length of the longest proper beginning of `stop` that `text` ends with."""
    longest = min(len(text), len(stop) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(stop[:n])), 0)


def _split(spans: tuple[Span, ...], end: int) -> tuple[tuple[Span, ...], tuple[Span, ...]]:
    """Cut `spans` after `end` characters."""
    before: list[Span] = []
    after: list[Span] = []
    for span in spans:
        cut = max(0, min(len(span.text), end))
        before.append(Span(span.text[:cut], span.origin))
        after.append(Span(span.text[cut:], span.origin))
        end -= len(span.text)
    return joined(tuple(before)), joined(tuple(after))
