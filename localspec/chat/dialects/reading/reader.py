"""Reads an answer that is text with marks: splits it into thoughts, content and calls."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from localspec.chat.dialects.marks import may_begin, overlap, skip_blanks
from localspec.chat.dialects.notations.values import UnfinishedText
from localspec.chat.dialects.reading.answer_parts import (
    Call,
    ContentPiece,
    ThoughtPiece,
)
from localspec.chat.dialects.reading.calls import CallReader, stray_closers
from localspec.chat.dialects.reading.code_quotes import CodeQuotes
from localspec.chat.dialects.reading.known_tools import KnownTools, NoCall
from localspec.chat.dialects.reading.piece_reader import PieceReader
from localspec.chat.dialects.shapes import AnswerMarks

_LEFT_OVER = re.compile(r"[\]})`\s]{0,8}")


class MarkReader(PieceReader):
    """Reads an answer in pieces; the result does not depend on how it is cut.

    Args:
        marks: how the model divides its answers.
        tools: those in the request; None if they are not known.
        prompt: the end of the rendered prompt.
        exact: keep the surrounding white space of an answer without marks.
    """

    def __init__(
        self,
        marks: AnswerMarks,
        tools: Sequence[Any] | None,
        prompt: str = "",
        *,
        exact: bool = False,
    ) -> None:
        super().__init__(exact=exact)
        self._marks = marks
        known = KnownTools(tools)
        self._calls = CallReader(marks.calls, known)
        self._plain = marks.raw and known.known == {}  # all is content
        self._over = False  # an end mark has come
        self._called = False  # this part follows a call
        self._inner: list[bool] = []  # thoughts that seem open in this one; named within a line?
        self._closed = False  # this thought is over, unless its mark comes once more
        self._thought = next(
            (pair for pair in marks.thoughts if pair[0] and prompt.rstrip().endswith(pair[0])), None
        )
        self._code = CodeQuotes(self._pattern(marks.ends))
        self._in_content = self._pattern(self._content_marks())

    @property
    def thinking(self) -> bool:
        """Whether the position is inside a thought."""
        return self._thought is not None and not self._closed and not self._marks.raw

    @property
    def begun(self) -> bool | None:
        """Whether the part at the present position has text; None while that may be a mark."""
        if self._thought is None or not self._closed:
            return super().begun
        return skip_blanks(self._text, len(self._thought[1])) < len(self._text)

    def _step(self, *, final: bool, cut: bool) -> bool:
        if self._plain:
            self._emit(ContentPiece, len(self._text))
            return False
        step = self._content if self._thought is None else self._think
        more = not self._over and step(final=final, cut=cut)
        if self._over:
            self._text = ""
        return more

    # Inside a thought

    def _think(self, *, final: bool, cut: bool) -> bool:
        """Continue inside a thought; return whether there is more to read."""
        begin, close = self._thought or ("", "")
        if self._fresh:
            self._drop_blanks()
            if begin and self._text.startswith(begin):  # the prompt ended with it too
                self._pass(len(begin))
                return True
            if begin and not final and may_begin(self._text, 0, begin):
                return False
        marks = [close, begin, *self._calls.triggers, *self._marks.ends]
        mark = self._next(self._pattern(marks), marks, ThoughtPiece, final=final)
        return mark is not None and self._at_mark(mark, final=final, cut=cut)

    def _at_mark(self, mark: str, *, final: bool, cut: bool) -> bool:
        """Handle a mark inside a thought; return whether there is more to read."""
        begin, close = self._thought or ("", "")
        code = self._in_code(mark, final=final)
        if code is None:
            return False
        if code or mark == begin:
            if not code:
                self._inner.append(bool(self._code.line.strip()))
            self._emit(ThoughtPiece, len(mark))
            return True
        if mark == close:
            return self._close(final=final)
        if mark in self._calls.triggers:
            return self._drafted(mark, close, final=final, cut=cut)
        self._over = True
        return False

    def _close(self, *, final: bool) -> bool:
        """Handle a closing mark: it closes an inner thought first, if one is open.

        On a new line it closes none whose mark was only named within a line.
        """
        _, close = self._thought or ("", "")
        while self._inner and self._inner[-1] and not self._code.line.strip():
            self._inner.pop()
        again = bool(self._inner) and self._text.find(close, len(close)) >= 0
        waits = bool(self._inner) and not again and not final
        # Where the line goes on, the mark is only named in it.
        self._closed = waits and self._text[len(close) :][:1] in {"", "\n"}
        if again:
            self._inner.pop()
            self._emit(ThoughtPiece, len(close))
        elif not waits:
            self._pass(len(close))
            self._begin_content()
        return not waits

    def _drafted(self, mark: str, close: str, *, final: bool, cut: bool) -> bool:
        """Handle a call in a thought: it ends the thought, unless text follows the closing mark."""
        try:
            calls, at = self._group(final=final, cut=cut)
            closed = self._text.find(close, at)
            rest = self._text[closed + len(close) :].lstrip() if closed >= 0 else ""
            ended = any(rest.startswith(end) for end in self._marks.ends)
            if not final and not ended and (closed < 0 or self._undecided(rest)):
                return False
        except UnfinishedText:
            if final:
                self._emit(ThoughtPiece, len(self._text))
            return False
        except NoCall:
            self._emit(ThoughtPiece, self._repeated(mark))
            return True
        if closed >= 0 and rest and not ended:
            self._emit(ThoughtPiece, closed)
            return True
        self._take(at)
        if closed >= 0:
            self._emit(ThoughtPiece, closed - at)
            self._pass(len(close))
        self._out += calls
        self._begin_content(called=True)
        return True

    def _undecided(self, rest: str) -> bool:
        return not rest or any(may_begin(rest, 0, end) for end in self._marks.ends)

    def _group(self, *, final: bool, cut: bool) -> tuple[list[Call], int]:
        """The consecutive calls at the beginning of the text, and where they end."""
        calls: list[Call] = []
        at = 0
        while True:
            found = self._calls.at(self._text, at, final=final, cut=cut)
            calls += found.calls
            at = found.end
            while (after := self._closer(at)) is not None:
                at = after
            begun = skip_blanks(self._text, at)
            if not any(self._text.startswith(one, begun) for one in self._calls.triggers):
                return calls, at
            at = begun

    def _closer(self, at: int) -> int | None:
        """Where a mark at `at` ends that closes a call; None if there is none."""
        left = _LEFT_OVER.match(self._text, at)
        for place in (skip_blanks(self._text, at), left.end() if left else at):
            for mark in self._calls.closers:
                if self._text.startswith(mark, place):
                    return place + len(mark)
        place = skip_blanks(self._text, at)
        close = self._thought[1] if self._thought else ""
        if close and self._text.startswith(close, place):
            return None
        return next(stray_closers(self._text, at), None)

    # Outside of thoughts

    def _content(self, *, final: bool, cut: bool) -> bool:
        """Continue outside of thoughts; return whether there is more to read."""
        if self._fresh:
            self._drop_blanks()
            if not self._text:
                return False
            done = self._first(final=final)
            if done is not None:
                return done
        marks = self._content_marks()
        mark = self._next(self._in_content, marks, ContentPiece, final=final)
        if mark is None:
            return False
        code = self._in_code(mark, final=final)
        if code is None:
            return False
        if code:
            self._emit(ContentPiece, len(mark))
        elif mark in self._calls.triggers:
            return self._call(mark, final=final, cut=cut)
        elif mark in self._marks.ends:
            self._over = True
        else:
            self._take(len(mark))
            self._begin_content()
        return True

    def _content_marks(self) -> list[str]:
        marks = self._marks
        return [*self._calls.triggers, *marks.closers, *marks.ends, *marks.fillers]

    def _first(self, *, final: bool) -> bool | None:
        """Handle a mark or a bare call at the beginning of a part; None if there is neither."""
        marks, text = self._marks, self._text
        if self._called:
            after = self._closer(0)
            if after is not None:
                self._take(after)
                return True
            if not final and self._may_close():
                return False
        for pair in marks.thoughts:
            if text.startswith(pair[0]) and pair[0]:
                self._pass(len(pair[0]))
                self._thought, self._fresh, self._inner = pair, True, []
                if not self._marks.raw:
                    self._out.append(ThoughtPiece(""))
                return True
        dropped = [*marks.content, *marks.fillers, *(close for _, close in marks.thoughts)]
        for mark in dropped:
            if mark and text.startswith(mark):
                self._pass(len(mark))
                return True
        starts = [*dropped, *(begin for begin, _ in marks.thoughts)]
        if not final and any(may_begin(text, 0, mark) for mark in starts):
            return False
        return self._bare(final=final)

    def _may_close(self) -> bool:
        """Whether the text may become a mark that closes the previous call."""
        left = _LEFT_OVER.match(self._text)
        places = (0, left.end() if left else 0)
        return any(
            may_begin(self._text, place, mark) for place in places for mark in self._calls.closers
        ) or bool(re.fullmatch(r"<(/[^\s<>]{0,60})?", self._text))

    def _bare(self, *, final: bool) -> bool | None:
        """Handle a call that is JSON without marks."""
        more = re.match(r"[;,]\s*(?=\{|\Z)", self._text) if self._called else None
        if more and more.end() == len(self._text):
            return None if final else False
        try:
            found = self._calls.bare(self._text, more.end() if more else 0, final=final)
        except UnfinishedText as error:
            self._underway = error.underway if self._marks.bare else ()
            return None if final else False
        except NoCall:
            return None
        self._out += found.calls
        self._take(found.end)
        self._begin_content(called=True)
        return True

    def _call(self, mark: str, *, final: bool, cut: bool) -> bool:
        try:
            found = self._calls.at(self._text, 0, final=final, cut=cut)
        except UnfinishedText as error:
            if not final and mark in self._marks.calls[0].before[:1]:
                self._underway = error.underway
            if final and cut:  # do not show the marks of a call that was cut off
                self._over = True
                self._out.append(ContentPiece(""))
            elif final:
                self._emit(ContentPiece, self._repeated(mark))
            return final
        except NoCall:
            if mark in self._marks.ends:
                self._over = True
            else:
                self._emit(ContentPiece, self._repeated(mark))
            return True
        self._out += found.calls
        self._take(found.end)
        self._begin_content(called=True)
        return True

    def _repeated(self, mark: str) -> int:
        """Where a mark that begins no call ends.

        If it is repeated, all but the last are passed: none of them begins one.
        """
        again = re.match(rf"(?:{re.escape(mark)}\s*)+(?={re.escape(mark)})", self._text)
        return again.end() if again else len(mark)

    # The text

    def _pattern(self, marks: Iterable[str]) -> re.Pattern[str]:
        ordered = sorted({mark for mark in marks if mark}, key=len, reverse=True)
        return re.compile("|".join(map(re.escape, ordered)) or r"(?!)")

    def _next(
        self,
        pattern: re.Pattern[str],
        marks: Sequence[str],
        kind: type[ThoughtPiece] | type[ContentPiece],
        *,
        final: bool,
    ) -> str | None:
        """Emit the text before the next mark, and return the mark; None if there is none."""
        found = pattern.search(self._text)
        if found is None:
            held = (
                0
                if final
                else max((overlap(self._text, mark) for mark in marks if mark), default=0)
            )
            self._emit(kind, len(self._text) - held)
            return None
        self._emit(kind, found.start())
        if not final and any(
            len(mark) > len(found[0]) and may_begin(self._text, 0, mark) for mark in marks
        ):
            return None
        return found[0]

    def _in_code(self, mark: str, *, final: bool) -> bool | None:
        """Whether the mark at the beginning is quoted in code; None if that is not known yet.

        A block of code quotes only the end of an answer.
        """
        after, block = self._text[len(mark) :], mark in self._marks.ends
        return self._code.quoted(after, block=block, final=final)

    def _emit(self, kind: type[ThoughtPiece] | type[ContentPiece], n: int) -> None:
        text = self._text[:n]
        if not text:
            return
        self._take(n)
        self._out.append((ContentPiece if self._marks.raw else kind)(text))
        self._code.add(text)
        if text.strip():
            self._fresh = self._called = False

    def _drop_blanks(self) -> None:
        """Pass white space at the beginning of a part to the trimmer."""
        blanks = skip_blanks(self._text, 0)
        if blanks:
            kind = ThoughtPiece if self._thought and not self._marks.raw else ContentPiece
            self._out.append(kind(self._text[:blanks]))
            self._take(blanks)

    def _pass(self, n: int) -> None:
        """Pass over a mark of a thought, which is content if marks stay there."""
        if self._marks.raw:
            self._out.append(ContentPiece(self._text[:n]))
        self._take(n)

    def _take(self, n: int) -> None:
        self._text = self._text[n:]

    def _begin_content(self, *, called: bool = False) -> None:
        self._thought, self._fresh, self._called, self._inner = None, True, called, []
        self._code.restart()
        if called or not self._marks.raw:
            self._out.append(ContentPiece(""))
