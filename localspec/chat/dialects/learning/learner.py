"""Learns from a chat template how its model writes, by rendering answers with known values."""

from __future__ import annotations

import re
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from msgspec import structs

from localspec.chat.dialects.dialect import Dialect
from localspec.chat.dialects.learning import dialect_store
from localspec.chat.dialects.learning.call_learner import learnt_calls, usual_calls
from localspec.chat.dialects.learning.sample_turns import (
    FIRST,
    SECOND,
    SampleTurn,
    TurnWriter,
    calling_turn,
    numbered,
    thinking_turn,
)
from localspec.chat.dialects.marks import (
    blanks,
    common_end,
    is_mark,
    split_marks,
    trimmed_end,
)
from localspec.chat.dialects.notations import functionary, granite, harmony, kimi, muse
from localspec.chat.dialects.reading.answer_parts import Call
from localspec.chat.dialects.shapes import AnswerMarks, Speech, ThinkingOptions
from localspec.chat.prompt.renderer import (
    RenderBudget,
    TemplateRenderer,
    TemplateSource,
    TemplateStarved,
    TemplateUnusable,
)
from localspec.engine.common_prefix import common_prefix

_SECONDS = 2.0
_LONGEST_MARK = 120
_USUAL = ("<think>", "</think>")
# Pairs that a template may mention without writing them: the model writes them in its content.
_SPOKEN_OF = (
    _USUAL,
    ("<thinking>", "</thinking>"),
    ("[THINK]", "[/THINK]"),
)
# Variables that switch thoughts, with their values for on and off.
_SWITCHES: tuple[tuple[str, bool | str, bool | str], ...] = (
    ("enable_thinking", True, False),
    ("thinking", True, False),
    ("reasoning", True, False),
    ("thinking_mode", "enabled", "disabled"),
    ("reasoning_effort", "high", "no_think"),
)
_EFFORT_NAMES = ("reasoning_effort", "reasoning_strength", "thinking_effort")
_EFFORTS = ("low", "medium", "high")


def learnt(
    renderer: TemplateRenderer,
    source: TemplateSource,
    seconds: float = _SECONDS,
    folder: Path | None = None,
) -> Dialect:
    """Learn from a template how its model writes; a dialect that is not `known` if nothing can be.

    What one rendering teaches must read another one correctly, or it is dropped. Each template is
    learnt once; one that could not be rendered is tried again the next time, and one that the
    machine was too busy to render is tried twice.

    Args:
        renderer: renders the template.
        source: the template.
        seconds: limit for all renderings together.
        folder: stores what was learnt; None keeps it in this process only.

    Raises:
        Cancelled: the flag of `renderer` was set meanwhile.
    """
    known = _known()
    found = known.get(source)
    if found is None and folder is not None:
        found = dialect_store.recall(folder, source)
    if found is None:
        try:
            with suppress(TemplateStarved):
                found = _by_rendering(renderer, source, seconds)
            found = found or _by_rendering(renderer, source, seconds)
        except TemplateUnusable:
            return Dialect()
        if folder is not None:
            dialect_store.keep(folder, source, found)
    known[source] = found
    return found


def _by_rendering(renderer: TemplateRenderer, source: TemplateSource, seconds: float) -> Dialect:
    writer = TurnWriter(renderer, source, RenderBudget(seconds))
    return _Learner(writer, source.template).dialect()


@cache
def _known() -> dict[TemplateSource, Dialect]:
    """What was learnt in this process, by template."""
    return {}


class _Learner:
    """Learns from one template."""

    def __init__(self, writer: TurnWriter, template: str) -> None:
        self._write, self._template = writer, template

    def dialect(self) -> Dialect:
        """The dialect, as far as it can be learnt.

        Raises:
            TemplateUnusable: the template cannot be rendered.
        """
        write = self._write
        said = write.turn(FIRST, {"content": FIRST.content})
        calls_only = said is None  # some templates refuse conversations without tools
        if calls_only:
            said = write.turn(FIRST, {"content": FIRST.content}, tools=True)
        if said is None or FIRST.content not in said:
            return Dialect()
        speech = self._speech()
        openings = [
            write.opening(FIRST, tools=calls_only),
            write.opening(FIRST, tools=calls_only, enable_thinking=False, thinking=False),
        ]
        thought, parts = self._thought_turn()
        earlier = write.earlier(FIRST, {"content": FIRST.content})
        head = _head(
            [said, earlier, thought, said[: said.index(FIRST.content)], *openings], thought
        )
        if kimi.matches(self._template):
            marks = structs.replace(kimi.MARKS, explained=self._explains())
        else:
            rest = thought[len(head) :] if thought else None
            divided = self._divided(said[len(head) :], rest, head, openings)
            if divided is None:
                return Dialect()
            marks = self._with_calls(divided, head, speech)
            marks = structs.replace(marks, speech=speech, parts=parts)
        dialect = self._checked(Dialect(True, marks, self._options(marks)), head)
        return self._opening(dialect)

    def _speech(self) -> Speech:
        for name, kind in (("harmony", harmony), ("muse", muse), ("functionary", functionary)):
            if kind.matches(self._template):
                return name  # type: ignore[return-value]
        return "marks"

    def _thought_turn(self) -> tuple[str | None, bool]:
        """A turn with a thought in it, if the template writes thoughts; whether that is a part."""
        for parts in (False, True):
            turn = self._write.turn(FIRST, thinking_turn(FIRST, parts=parts))
            if turn and FIRST.thought in turn and FIRST.content in turn and "'type'" not in turn:
                return turn, parts
        calling = {**thinking_turn(FIRST, ""), **calling_turn(FIRST, 1, as_text=False)}
        turn = self._write.turn(FIRST, calling, tools=True)
        if turn and FIRST.names[0] in turn.partition(FIRST.thought)[2]:
            return turn, False
        return None, False

    def _divided(
        self, said: str, thought: str | None, head: str, openings: list[str | None]
    ) -> AnswerMarks | None:
        """The marks around thoughts and content; None if nothing separates the two."""
        before, _, tail = said.partition(FIRST.content)
        opened = [one[len(head) :].strip() for one in openings if one and one.startswith(head)]
        filler = head.strip()
        content = ""
        fillers: tuple[str, ...] = ()
        pair: tuple[str, str] | None = None
        if thought is not None and FIRST.thought in thought:
            begin, close = self._around_thought(thought, head)
            plain = before.strip()
            if begin and plain.startswith(begin):
                plain = plain[len(begin) :].strip()
            if plain and close.endswith(plain) and close != plain:
                close, content = close[: -len(plain)].strip(), plain
            if not content:
                plain = plain.removeprefix(close).strip()
                content = plain if is_mark(plain) and plain != begin else ""
            if filler and close.endswith(filler) and close != filler:
                close, fillers = close[: -len(filler)].strip(), (filler,)
            pair = (begin or self._opened_with(opened, close, head), close)
        elif (found := self._from_opening(before.strip(), opened, head)) is not None:
            pair = found
        elif before.strip() not in opened:
            content = before.strip()
        rest = (thought or "").partition(FIRST.thought)[2].partition((pair and pair[1]) or "\0")[2]
        closers, ends = _tails(tail, pair, head)
        pairs = (pair,) if pair and _fit(*pair) else ()
        if (thought is not None and not pairs) or FIRST.content in tail:
            return None
        return AnswerMarks(
            thoughts=pairs or self._spoken_of(opened),
            gap=blanks(rest, at_end=False) if rest else AnswerMarks().gap,
            content=(content,) if is_mark(content) else (),
            fillers=tuple(filter(is_mark, fillers)),
            closers=closers,
            ends=ends,
            calls=(),
        )

    def _around_thought(self, turn: str, head: str) -> tuple[str, str]:
        """The text before a thought, and the text between it and what follows."""
        begin, _, rest = turn.partition(FIRST.thought)
        close, content, _ = rest.partition(FIRST.content)
        if not content:  # a call follows the thought
            close = rest.partition(FIRST.names[0])[0]
            alone = self._write.turn(FIRST, calling_turn(FIRST, 1, as_text=False), tools=True) or ""
            ahead = alone.removeprefix(head).partition(FIRST.names[0])[0]
            first = split_marks(close)[:1]
            close = close[: len(close) - common_end(close, ahead)].strip() or "".join(first)
        return begin.strip(), close.strip()

    def _opened_with(self, opened: list[str], close: str, head: str) -> str:
        """The opening mark of a thought that begins every answer, or that only prompts contain."""
        last = split_marks(head)[-1:]
        always = any(one.startswith(close) for one in opened)
        begin = "" if always else next((one for one in opened if is_mark(one)), "")
        return begin or (last[0] if last and is_mark(last[0]) else "")

    def _from_opening(self, before: str, opened: list[str], head: str) -> tuple[str, str] | None:
        """Marks of thoughts that the template only writes if there is no thought."""
        last = split_marks(head)[-1:]
        if set(opened) == {"", before} and is_mark(before) and last and is_mark(last[0]):
            return last[0], before  # only prompts without thoughts end with it
        for begin in opened:
            if not is_mark(begin) or len(split_marks(begin)) > 1:
                continue
            if before and before != begin:
                close = before.removeprefix(begin).strip()
                if is_mark(close):
                    return begin, close
            for close in self._split_at():
                return begin, close
        return None

    def _split_at(self) -> list[str]:
        """The marks at which the template splits an answer, dropping the text before them."""
        literals = re.findall(r"(?:split\(\s*|[=\s(])(['\"])([^'\"\n]{3,60})\1", self._template)
        found = []
        for mark in dict.fromkeys(mark for _, mark in literals if is_mark(mark.strip())):
            if (
                f"split('{mark}')" not in self._template
                and f'split("{mark}")' not in self._template
            ):
                continue
            turn = self._write.turn(FIRST, {"content": f"{FIRST.thought}{mark}{FIRST.content}"})
            if turn and FIRST.content in turn and FIRST.thought not in turn:
                found.append(mark.strip())
            if len(found) > 2:
                break
        return found

    def _spoken_of(self, opened: list[str]) -> tuple[tuple[str, str], ...]:
        """Marks that the template mentions but does not write; without any, the usual ones."""
        pairs = [
            pair for pair in _SPOKEN_OF if pair[0] in self._template and pair[1] in self._template
        ]
        for close in self._split_at():
            begin = next((one for one in opened if is_mark(one)), close.replace("/", "", 1))
            if begin != close and begin in self._template:
                pairs.insert(0, (begin, close))
        return tuple(dict.fromkeys(pairs)) or (_USUAL,)

    def _with_calls(self, marks: AnswerMarks, head: str, speech: Speech) -> AnswerMarks:
        """`marks` with what can be learnt of calls."""
        if speech == "marks":
            marks = learnt_calls(self._write, head, marks) or marks
        else:
            calls = (muse.CALLS,) if speech == "muse" else ()
            as_text = speech == "functionary"
            marks = structs.replace(marks, calls=calls, several=True, writes=True, as_text=as_text)
        shapes = usual_calls(self._template, next(iter(marks.calls), None))
        if granite.matches(self._template):
            marks = structs.replace(
                marks, thoughts=granite.THOUGHTS, content=granite.CONTENT, closers=granite.CLOSERS
            )
            shapes = (granite.CALLS, *shapes)
        return structs.replace(marks, calls=shapes, explained=self._explains())

    def _explains(self) -> bool:
        """Whether the template describes the tools to the model."""
        prompt = self._write.prompt(FIRST, tools=True)
        return prompt is not None and FIRST.names[0] in prompt

    def _options(self, marks: AnswerMarks) -> ThinkingOptions:
        """The options for thoughts, found by what changes the prompt."""
        found = self._switch()
        on: dict[str, Any] = {found.switch_name: found.switch_values[0]} if found.switch else {}
        for name in _EFFORT_NAMES:
            if name not in self._template:
                continue
            written = {
                one: self._write.prompt(FIRST, **_only(**{**on, name: one})) for one in _EFFORTS
            }
            differ = {text for text in written.values() if text}
            if len(differ) > 1:
                efforts = tuple(one for one in _EFFORTS if written[one])
                found = structs.replace(found, efforts=efforts, effort_name=name)
                break
        budget = bool(marks.thoughts) and (marks.speech == "harmony" or self._thinks(marks))
        return structs.replace(found, budget=budget)

    def _switch(self) -> ThinkingOptions:
        """The variable that switches thoughts off and on, if there is one."""
        for name, *values in _SWITCHES:
            if not all(isinstance(one, bool) or one in self._template for one in (name, *values)):
                continue
            on, off = (self._write.prompt(FIRST, **_only(**{name: one})) for one in values)
            if on and off and on != off:
                return ThinkingOptions(
                    switch=True, switch_name=name, switch_values=(values[0], values[1])
                )
        return ThinkingOptions()

    def _opening(self, dialect: Dialect) -> Dialect:
        """`dialect` with the marks of thoughts that prompts end with, for all options."""
        thinking = dialect.thinking
        found = []
        for reasoning in ("auto", "on", "off") if thinking.switch else ("auto",):
            for effort in ("", *thinking.efforts):
                asked = _only(**thinking.variables(reasoning, effort))
                if mark := dialect.opened(self._write.prompt(FIRST, **asked) or ""):
                    found.append((reasoning, effort, mark))
        budget = thinking.budget or bool(found)
        return structs.replace(
            dialect, openings=tuple(found), thinking=structs.replace(thinking, budget=budget)
        )

    def _thinks(self, marks: AnswerMarks) -> bool:
        """Whether the template shows that the model has thoughts."""
        return any(close in self._template for _, close in marks.thoughts)

    def _checked(self, dialect: Dialect, head: str) -> Dialect:
        """`dialect` without the parts that do not read other values back correctly."""
        marks = dialect.marks
        if marks.speech != "marks":
            return dialect
        sample = SECOND
        turn = self._write.turn(sample, thinking_turn(sample, parts=marks.parts))
        if turn and sample.thought in turn and turn.startswith(head):
            got = dialect.read(turn[len(head) :], [], prompt=self._prompt_of(marks, turn, head))
            if (got.thought, got.content) != (sample.thought, sample.content):
                marks = structs.replace(marks, thoughts=(_USUAL,), content=(), fillers=())
        plain = self._write.turn(sample, {"content": sample.content})
        if plain and plain.startswith(head):
            said = plain[len(head) :].lstrip()
            for begin, _ in marks.thoughts:  # one template puts the whole answer in a thought
                said = said.removeprefix(begin)
            got = Dialect(True, marks).read(said, [], prompt="")
            if got.content != sample.content or got.thought:
                return Dialect()
        if marks.calls and not self._reads_calls(Dialect(True, marks), sample, head):
            marks = structs.replace(
                marks, calls=usual_calls(self._template), bare=False, writes=False
            )
        return Dialect(True, marks, dialect.thinking)

    def _prompt_of(self, marks: AnswerMarks, turn: str, head: str) -> str:
        """The mark of a thought that the prompt must have ended with; empty if the turn has it."""
        begin = next((begin for begin, _ in marks.thoughts), "")
        return "" if begin in turn[len(head) :] else begin

    def _reads_calls(self, dialect: Dialect, sample: SampleTurn, head: str) -> bool:
        if dialect.marks.numbered:
            sample = numbered(sample)
        for as_text in (False, True):
            turn = self._write.turn(sample, calling_turn(sample, 1, as_text=as_text), tools=True)
            if turn is None or sample.names[0] not in turn:
                continue
            got = dialect.read(turn.removeprefix(head), sample.tools)
            if got.calls == [Call(sample.names[0], dict(sample.arguments))] and not got.content:
                return True
        return False


def _head(turns: list[str | None], thought: str | None) -> str:
    """The common beginning of all turns, up to a complete mark."""
    there = [turn for turn in turns if turn is not None]
    same = there[0]
    for turn in there[1:]:
        same = same[: common_prefix(same, turn)]
    same = trimmed_end(same)
    begin = (thought or "")[len(same) :].partition(FIRST.thought)[0]
    if begin[:1].isalnum() and same[-1:] and not same[-1].isalnum() and not same[-1].isspace():
        same = same.removesuffix(split_marks(same)[-1])  # two marks with a common first part
    return same


def _fit(begin: str, close: str) -> bool:
    return is_mark(close) and len(close) <= _LONGEST_MARK and (not begin or is_mark(begin))


def _tails(
    tail: str, pair: tuple[str, str] | None, head: str
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The marks that end a part, and the texts that end an answer.

    The latter are everything that the template writes after the answer, and its first mark. A mark
    that also ends thoughts only ends a part.
    """
    rest = tail.strip()
    if head.strip() and rest.endswith(head.strip()):  # some templates begin the next turn at once
        rest = rest[: -len(head.strip())].strip()
    close = pair[1] if pair else ""
    if close and rest == close:
        return (rest,), ()
    first = next(iter(split_marks(rest)), "")
    ends = [rest] if is_mark(rest) else []
    if is_mark(first) and not close.startswith(first):
        ends.append(first)
    return (), tuple(dict.fromkeys(ends))


def _only(**variables: bool | str) -> dict[str, Any]:
    """Only these variables: the usual ones for thoughts become undefined."""
    return {"enable_thinking": None, "thinking": None, **variables}
