"""From token pieces to text: characters may be spread over tokens, and tokens over rounds."""

from __future__ import annotations

import codecs

from localspec.chat.events import Origin, Span


class Detokeniser:
    """Incremental UTF-8 over token pieces, remembering who proposed what.

    A character is released once its last byte has come. It counts as the draft's only when the
    draft proposed every one of its bytes. Bytes that are no UTF-8 become U+FFFD.
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


def joined(spans: tuple[Span, ...]) -> tuple[Span, ...]:
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


def _joint(begun: Origin | None, origin: Origin) -> Origin:
    """The origin of a character whose first bytes came from `begun`, its last from `origin`."""
    return origin if begun in (None, origin) else Origin.TARGET
