"""Finds calls in an answer, and reads them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from localspec.chat.dialects.marks import (
    may_begin,
    skip_blanks,
)
from localspec.chat.dialects.notations.values import UnfinishedText, json_at
from localspec.chat.dialects.reading.known_tools import FoundCalls, KnownTools, NoCall
from localspec.chat.dialects.reading.notation_reader import (
    ARGUMENTS,
    NAMES,
    NotationReader,
    envelope,
)
from localspec.chat.dialects.shapes import CallShape

_FENCE = re.compile(r"```\w*\s*")
_MOST_REPAIRS = 8  # at the end of an answer, as each may take in all of the rest
_CLOSER = re.compile(r"</[^\s<>/]{1,60}>")


class CallReader:
    """Finds calls in some notations in a text that may grow.

    Args:
        shapes: the notations, the most likely first.
        tools: which calls are possible.

    Attributes:
        triggers: the marks that may begin a call, the longest first.
        closers: the marks that may follow a call.
    """

    def __init__(self, shapes: Sequence[CallShape], tools: KnownTools) -> None:
        self._tools = tools
        self._tried = 0  # repairs at the end of the answer, in vain
        self._shapes = (
            [] if tools.known == {} else [NotationReader(shape, tools) for shape in shapes]
        )
        found = {mark for one in self._shapes for mark in one.triggers}
        self.triggers = tuple(sorted(found, key=len, reverse=True))
        self.closers = tuple(
            sorted(
                {mark for one in self._shapes for mark in one.shape.after}, key=len, reverse=True
            )
        )

    def at(self, text: str, at: int, *, final: bool, cut: bool = False) -> FoundCalls:
        """The calls that begin at `at`, the position of a trigger.

        Args:
            text: the text so far.
            at: the position of the trigger.
            final: no text will follow.
            cut: because a limit was reached.

        Raises:
            UnfinishedText: more text is needed; if `final`, a call was cut off.
            NoCall: it is text.
        """
        repair = final and self._tried < _MOST_REPAIRS
        unfinished: UnfinishedText | None = None
        for shaped in self._shapes:
            if not any(text.startswith(mark, at) for mark in shaped.triggers):
                continue
            try:
                return shaped.at(text, at, final=repair, cut=cut)
            except UnfinishedText as error:
                if not final:
                    raise
                unfinished = unfinished or error
            except NoCall:
                continue
        self._tried += final
        if unfinished is not None:
            raise unfinished
        raise NoCall

    def bare(self, text: str, at: int, *, final: bool) -> FoundCalls:
        """The call of a declared tool that is JSON without marks.

        Raises:
            UnfinishedText: more text is needed.
            NoCall: it is text.
        """
        fence = _FENCE.match(text, at)
        start = fence.end() if fence else at
        if not final and (start >= len(text) or text[at:] in ("`", "``")):
            raise UnfinishedText
        if text[start : start + 1] not in ("{", "[") or not self._shapes or not self._tools.known:
            raise NoCall
        _require_call_keys(text, start, self._tools, final=final)
        try:
            found = json_at(text, start, final=final)
        except UnfinishedText:
            raise UnfinishedText(self._shapes[0].underway(text, start)) from None
        if found is None:
            raise NoCall
        calls = envelope(found[0], CallShape(), self._tools)
        if calls is None or any(self._tools.declared(one.name) is None for one in calls):
            raise NoCall
        end = found[1]
        if fence:
            place = skip_blanks(text, end)
            if not final and may_begin(text, place, "```"):
                raise UnfinishedText
            if not text.startswith("```", place):
                raise NoCall
            end = place + 3
        return FoundCalls(calls, end)


def _require_call_keys(text: str, at: int, tools: KnownTools, *, final: bool) -> None:
    """Raise `NoCall` as soon as the first key cannot be that of a call."""
    begun = re.compile(r'[\s\[{]*"?').match(text, at)
    start = begun.end() if begun else at
    if '"' not in text[at:start]:
        if start == len(text) and not final:
            raise UnfinishedText
        raise NoCall
    key, quote, _ = text[start : start + 80].partition('"')
    known = (*NAMES, *ARGUMENTS, "type", "id", *(tools.known or ()))
    if not (key in known if quote else any(one.startswith(key) for one in known)):
        raise NoCall


def stray_closers(text: str, at: int) -> Iterator[int]:
    """The ends of consecutive closing tags at `at`; white space between them is allowed."""
    while found := _CLOSER.match(text, skip_blanks(text, at)):
        at = found.end()
        yield at
