"""Reads calls of one notation."""

from __future__ import annotations

import re
import string
from dataclasses import replace
from typing import Any

from localspec.chat.dialects.marks import (
    blanks,
    is_mark,
    may_begin,
    overlap,
    shared_ends,
    skip_blanks,
    split_marks,
)
from localspec.chat.dialects.notations import gemma, nested, python_calls
from localspec.chat.dialects.notations.values import (
    UnfinishedText,
    arguments_of,
    begun,
    json_at,
    so_far,
    strict,
    typed,
)
from localspec.chat.dialects.reading.answer_parts import Call, Underway
from localspec.chat.dialects.reading.known_tools import FoundCalls, KnownTools, NoCall
from localspec.chat.dialects.shapes import CallShape

_LONGEST_HEADER = 200
_HEADER = re.compile(r"[\w.\-:/\s`]*\Z")
NAMES = ("name", "tool_name", "function")
ARGUMENTS = ("arguments", "parameters", "args", "input")
_LISTED = re.compile(r"\[(?!\s*\{)")  # a list that is not one of JSON's objects
_FENCE = re.compile(r"```\w*\s*(?=[{\[])")


def envelope(value: Any, shape: CallShape, tools: KnownTools) -> tuple[Call, ...] | None:
    """The calls that a JSON value represents; None if it is not a call."""
    if isinstance(value, list):
        each = [envelope(one, shape, tools) for one in value]
        whole = bool(each) and None not in each
        return tuple(call for one in each for call in one or ()) if whole else None
    if not isinstance(value, dict):
        return None
    name_key, args_key = shape.keys
    name = next((value[key] for key in (name_key, *NAMES) if key and key in value), None)
    if isinstance(name, dict):
        return envelope(name, shape, tools)
    if isinstance(name, str):
        given = [key for key in (args_key, *ARGUMENTS) if key in value]
        bare = not set(value) - {name_key, *NAMES, "type", "id"}
        arguments = arguments_of(value[given[0]]) if given else {} if bare else None
    else:
        name, arguments = _keyed(value, tools, known=bool(name_key))
    return None if arguments is None else (Call(tools.declared(name) or name, arguments),)


def _keyed(value: dict[str, Any], tools: KnownTools, *, known: bool) -> tuple[str, Any]:
    """A call whose name is the key of its arguments; they are None if it is not a call."""
    name, given = next(iter(value.items()), ("", ""))
    if len(value) != 1 or (known and not tools.declared(name)):
        return name, None
    return name, arguments_of(given)


class NotationReader:
    """Reads calls of one notation."""

    def __init__(self, shape: CallShape, tools: KnownTools) -> None:
        self.shape, self._tools = shape, tools
        alone = len(shape.before) == 1  # then even a word is a mark
        self.triggers = tuple(mark for mark in shape.before if is_mark(mark) or (alone and mark))
        self._alone = shape.before[-1] if len(self.triggers) > 1 else ""
        marks = "|".join((*map(re.escape, filter(None, shape.before)), r"\s"))
        self._before = re.compile(rf"(?:{marks})*+")
        self._value_open = _value_open(shape)
        self._name_end = _flexible(shape.name_end)
        self._head = _head(shape)
        self._end = _end_of_call(shape)

    def at(self, text: str, at: int, *, final: bool, cut: bool) -> FoundCalls:
        """As in `CallReader.at`."""
        shape = self.shape
        opened = self._after_marks(text, at, final=final)
        lone = bool(self._alone) and text.startswith(self._alone, at)
        if opened >= len(text) and not final:
            raise UnfinishedText
        opened = self._after_wrapping(text, opened, final=final)
        if text[opened : opened + 1] in ("{", "[") and not (
            shape.style == "gemma" or (shape.style == "python" and _LISTED.match(text, opened))
        ):
            return self._json(text, opened, final=final, cut=cut)
        tools = self._tools
        match shape.style:
            case "python":
                found = python_calls.read(text, opened, raw=shape.raw, final=final, tools=tools)
            case "gemma":
                found = gemma.read(text, opened, final=final, cut=cut, tools=tools)
            case "nested":
                found = nested.read(text, opened, shape, final=final, tools=tools)
            case "named":
                found = self._named(text, opened, final=final, cut=cut)
            case "tags":
                found = self._tagged(text, opened, final=final, cut=cut, lone=lone)
            case _:
                raise NoCall
        return FoundCalls(*found)

    def _after_marks(self, text: str, at: int, *, final: bool) -> int:
        """Where the marks before a call end; white space between them is allowed."""
        passed = self._before.match(text, at)
        at = passed.end() if passed else at
        if not final and any(may_begin(text, at, one) for one in self.shape.before):
            raise UnfinishedText
        return at

    def _after_wrapping(self, text: str, at: int, *, final: bool) -> int:
        """Where JSON begins that a model has put into a code fence or into double braces."""
        if fence := _FENCE.match(text, at):
            at = fence.end()
        elif not final and re.fullmatch(r"`{1,2}|```\w*\s*", text[at : at + _LONGEST_HEADER]):
            raise UnfinishedText
        if not final and re.fullmatch(r"\[\s*", text[at : at + _LONGEST_HEADER]):
            raise UnfinishedText
        return at + text.startswith("{{", at)

    def _json(self, text: str, at: int, *, final: bool, cut: bool) -> FoundCalls:
        try:
            found = self._value_at(text, at, final=final, cut=cut)
        except UnfinishedText:
            raise UnfinishedText(self.underway(text, at)) from None
        calls = envelope(found[0], self.shape, self._tools) if found else None
        if found is None or calls is None:
            raise NoCall
        texts = self.underway(text[: found[1]], at)
        if len(texts) == len(calls):
            calls = tuple(
                replace(call, written=strict(written))
                for call, (_, written) in zip(calls, texts, strict=True)
            )
        return FoundCalls(calls, found[1])

    def underway(self, text: str, at: int) -> Underway:
        """The incomplete JSON calls in a text."""
        found: list[tuple[str, str]] = []
        while (head := self._head.match(text, at)) and self._tools.declared(head[1]):
            found.append((head[1], so_far(text, head.end())))
            at = head.end() + len(found[-1][1])
        return tuple(found)

    def _value_at(self, text: str, at: int, *, final: bool, cut: bool) -> tuple[Any, int] | None:
        """The JSON at `at`; brackets may be missing at the end of an answer, or before a mark."""
        try:
            return json_at(text, at, final=False)
        except UnfinishedText:
            if not final or cut:
                raise
        for mark in self.shape.after:
            end = text.find(mark, at)
            if end >= 0 and (found := json_at(text[:end], at, final=True)) is not None:
                return found
        return json_at(text, at, final=True)

    def _named(self, text: str, at: int, *, final: bool, cut: bool) -> tuple[tuple[Call, ...], int]:
        """A name, then JSON."""
        start = text.find("{", at, at + _LONGEST_HEADER)
        header = text[at : start if start >= 0 else at + _LONGEST_HEADER]
        words = self._words(header, whole=start >= 0)
        if start < 0:
            if final or len(text) - at >= _LONGEST_HEADER:
                raise NoCall
            raise UnfinishedText
        name = next((one for one in map(self._tools.declared, words) if one), None)
        try:
            found = self._value_at(text, start, final=final, cut=cut)
            end = found[1] if found else start
            if "```" in header:
                end = self._after_fence(text, end, final=final)
        except UnfinishedText:
            raise UnfinishedText(((name, so_far(text, start)),) if name else ()) from None
        arguments = arguments_of(found[0]) if found else None
        if found is None or arguments is None:
            raise NoCall
        hidden = self._tools.declared(str(arguments.get("name", "")))
        if self._tools.known and name is None and hidden:
            name = hidden
            arguments = {key: value for key, value in arguments.items() if key != "name"}
        elif self._tools.known is None or name is None:
            if not words:
                raise NoCall
            name = words[min(self.shape.name_at, len(words) - 1)]
            name = re.sub(r":\d+\Z", "", name.removeprefix("functions."))
        written = strict(text[start : found[1]])
        return (Call(name, arguments, written),), end

    def _after_fence(self, text: str, at: int, *, final: bool) -> int:
        """Where the code fence ends that closes a value at `at`; `at` if none does."""
        place = skip_blanks(text, at)
        if not final and may_begin(text, place, "```"):
            raise UnfinishedText
        return place + 3 if text.startswith("```", place) else at

    def _words(self, header: str, *, whole: bool) -> list[str]:
        """The words between the mark of a call and its JSON."""
        marks = [*split_marks(self.shape.name_end), *self.triggers]
        for mark in marks:
            header = header.replace(mark, " ")
        if not whole:
            partial = max((overlap(header, mark) for mark in marks), default=0)
            header = header[: len(header) - partial]
        header = header.replace("```json", " ").removesuffix(">")
        if not _HEADER.match(header):
            raise NoCall
        return header.split()

    def _tagged(
        self, text: str, at: int, *, final: bool, cut: bool, lone: bool
    ) -> tuple[tuple[Call, ...], int]:
        """A name and values as tags."""
        shape, ends = self.shape, [*self.shape.after, *self.shape.before]
        written = self._name(text, at)
        if at + len(written) == len(text) and not final:
            raise UnfinishedText
        name = self._tools.declared(written)
        if not written or (name is None and (lone or len(written) > _LONGEST_HEADER)):
            raise NoCall
        name = name or written
        at = self._after_name(text, at + len(written), final=final)
        if text.startswith("{", at):
            found = self._value_at(text, at, final=final, cut=cut)
            arguments = arguments_of(found[0]) if found else None
            if found is None or arguments is None:
                raise NoCall
            at = found[1]
        else:
            arguments = {}
            try:
                at = self._values(text, at, name, arguments, final=final, cut=cut)
            except UnfinishedText:
                raise UnfinishedText(() if lone else ((name, begun(arguments)),)) from None
        place = skip_blanks(text, at)
        closed = next((one for one in ends if text.startswith(one, place)), None)
        if closed is None and not final and any(may_begin(text, place, one) for one in ends):
            raise UnfinishedText(() if lone else ((name, begun(arguments)),))
        if closed is None and not (final and place >= len(text) and not lone and not cut):
            if final and cut and place >= len(text):
                raise UnfinishedText
            raise NoCall
        if lone and not (closed in shape.after and self._tools.has_required(name, arguments)):
            raise NoCall
        return (Call(name, arguments),), at

    def _name(self, text: str, at: int) -> str:
        """The name at `at`, which ends at the next mark."""
        found = nested.NAME.match(text, at)
        written = found[0] if found else ""
        parts = (*split_marks(self.shape.name_end), self.shape.key_open, *self.shape.after)
        marks = [mark for mark in parts if mark and not mark[0].isalnum()]  # words follow a quote
        ends = [end for mark in marks if (end := written.find(mark)) >= 0]
        if not ends:  # the text may end inside a mark
            ends = [len(written) - max((overlap(written, mark) for mark in marks), default=0)]
        return written[: min(ends)]

    def _after_name(self, text: str, at: int, *, final: bool) -> int:
        shape = self.shape
        place = skip_blanks(text, at)
        ended = self._name_end.match(text, at)
        if ended and shape.name_end:
            return skip_blanks(text, ended.end())
        rest = text[place:]
        known = (shape.key_open, *shape.after, "{")
        if any(rest.startswith(one) for one in known if one):
            return place
        if not final and (
            len(rest) < len(shape.name_end) or any(may_begin(rest, 0, one) for one in known)
        ):
            raise UnfinishedText
        raise NoCall

    def _values(
        self, text: str, at: int, name: str, arguments: dict[str, Any], *, final: bool, cut: bool
    ) -> int:
        """Add the arguments so far, and return where they end.

        If a name is repeated, its first value stays: a stream may have told it.
        """
        shape, schema = self.shape, self._tools.schema(name)
        properties = self._tools.properties(name)
        while True:
            place = skip_blanks(text, at)
            if not text.startswith(shape.key_open, place) or not shape.key_open:
                if not final and may_begin(text, place, shape.key_open):
                    raise UnfinishedText
                return at
            key, is_text, start = self._key(text, place + len(shape.key_open), final=final)
            value, end = self._value(text, start, final=final, cut=cut)
            missing = self._next_argument(text[start:end], {*properties} - {key, *arguments})
            if missing is not None:
                value, end = self._unclosed(text[start : start + missing]), start + missing
            at = end
            arguments.setdefault(key, typed(value, properties.get(key), schema, is_text=is_text))

    def _key(self, text: str, at: int, *, final: bool) -> tuple[str, bool | None, int]:
        """An argument's name, whether its value is declared as text, and where the value begins."""
        found = self._value_open.search(text, at, at + 2 * _LONGEST_HEADER)
        line = text.find("\n", at)
        if found and (line < 0 or found.start() <= line):
            if found.end() == len(text) and not final:
                raise UnfinishedText  # white space of the mark may follow
            kind = found.groupdict().get("kind")
            is_text = None if kind is None else kind == self._text_kind()
            return text[at : found.start()].strip(), is_text, found.end()
        if not final and len(text) - at < 2 * _LONGEST_HEADER and line < 0:
            raise UnfinishedText
        if line < 0 or not nested.NAME.fullmatch(text, at, line):
            if final and found is None:
                raise UnfinishedText
            raise NoCall
        return text[at:line], None, line

    def _text_kind(self) -> str:
        same, ends = shared_ends(self.shape.value_open, self.shape.other_open)
        return self.shape.value_open[same : len(self.shape.value_open) - ends]

    def _value(self, text: str, start: int, *, final: bool, cut: bool) -> tuple[str, int]:
        """A value as text, without layout, and where its closing mark ends.

        A closing mark only counts if the next argument or the end of the call follows it.
        """
        shape, mark = self.shape, self.shape.value_close.strip()
        nexts = [shape.key_open, *shape.after]
        at = start
        while (at := text.find(mark, at)) >= 0:
            end = at + len(mark)
            place = skip_blanks(text, end)
            if any(text.startswith(one, place) for one in nexts if one):
                return self._laid_out(text[start:at]), end
            if place >= len(text) and (final and not cut):
                return self._laid_out(text[start:at]), end
            if not final and any(may_begin(text, place, one) for one in nexts):
                raise UnfinishedText
            at = end
        if not final or cut:
            raise UnfinishedText
        ended = self._end.search(text, start)
        end = ended.start() if ended else len(text)
        return self._unclosed(text[start:end]), end

    def _next_argument(self, value: str, names: set[str]) -> int | None:
        """Where a declared argument begins inside a value whose closing mark is missing."""
        if not names or self.shape.key_open not in value:
            return None
        first = re.escape(next(iter(split_marks(self.shape.value_open)), ""))
        named = "|".join(map(re.escape, sorted(names, key=len, reverse=True)))
        found = re.search(rf"{re.escape(self.shape.key_open)}(?:{named}){first}", value)
        return found.start() if found else None

    def _unclosed(self, value: str) -> str:
        """A value without the white space of the layout, if its closing mark is missing."""
        return self._laid_out(value).rstrip()

    def _laid_out(self, value: str) -> str:
        """A value without the white space of the layout."""
        lead = blanks(self.shape.value_open, at_end=True)
        tail = blanks(self.shape.value_close, at_end=False)
        if lead and not value.startswith(lead):
            return value
        value = value[len(lead) :]
        return value.removesuffix(tail) if tail else value


def _end_of_call(shape: CallShape) -> re.Pattern[str]:
    """A pattern for a mark after a call that another mark or the end of the answer follows."""
    after, before = ("|".join(map(re.escape, filter(None, m))) for m in (shape.after, shape.before))
    ended = "|".join(filter(None, (after, before, r"\Z")))
    return re.compile(rf"(?:{after})\s*(?={ended})" if after else r"(?!)")


def _flexible(mark: str) -> re.Pattern[str]:
    """A pattern for a mark that accepts other numbers, and white space between its parts."""
    parts = split_marks(mark)
    source = r"\s*".join(re.sub(r"\d+", r"\\d+", re.escape(part)) for part in parts)
    return re.compile(r"\s*" + source)


def _head(shape: CallShape) -> re.Pattern[str]:
    """A pattern for the text before a call's JSON arguments, including the end of another call."""
    name_key, args_key = map(re.escape, shape.keys)
    text = r'"([^"\\]+)"'
    member = r'"[^"\\]*"\s*:\s*"[^"\\]*"'
    named = rf'(?:{member}\s*,\s*)?"{name_key}"\s*:\s*{text}\s*,\s*"{args_key}"'
    ended = rf"(?:\s*(?:,\s*{member}\s*)?\}}\s*,)?"
    inside = named if name_key else text
    return re.compile(rf"{ended}\s*\[?\s*\{{\s*{inside}\s*:\s*(?=\{{)")


def _value_open(shape: CallShape) -> re.Pattern[str]:
    """A pattern for the text between an argument's name and its value; it captures a named type.

    If there are several marks, all but the first may be missing; so may the type.
    """
    text, other = shape.value_open.rstrip(), shape.other_open.rstrip()
    if text != other and other:
        same, ends = shared_ends(text, other)
        close = text[len(text) - ends :]
        return re.compile(
            rf"{re.escape(text[:same])}(?P<kind>[^<>\n]{{0,40}}?){re.escape(close)}"
            + "|"
            + re.escape(close.lstrip(string.ascii_letters))
        )
    first, *rest = split_marks(text) or [""]
    return re.compile(re.escape(first) + "".join(rf"(?:\s*{re.escape(one)})?" for one in rest))
