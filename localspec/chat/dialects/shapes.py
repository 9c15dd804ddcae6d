"""The description of how a model writes: plain values, which can be sent between processes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

from msgspec import Struct

Style = Literal["json", "named", "tags", "python", "gemma", "nested"]
"""The notation of a call: one JSON value; a name, then JSON; a name and values as tags; as Python
writes calls; Gemma's notation; tags within tags, named after the arguments."""

Speech = Literal["marks", "harmony", "muse", "functionary"]
"""The structure of an answer: text with marks, or messages that each have a header."""

AwaitedText: TypeAlias = str | tuple[str, str]
"""What a grammar waits for in an answer: a text, or the end of a thought, if one begins there with
the first of two marks."""


Numbered = Literal["", "turn", "conversation"]
"""What the calls are counted over that have numbers for ids; empty if any id will do."""


class CallLayout(Struct, frozen=True):
    """The exact text that a template writes around names and arguments in JSON.

    Attributes:
        before: from the first mark to the name of the first call.
        between: from a name to the arguments.
        after: from the last arguments to the end of the last mark.
        joint: from arguments to the name of the next call; empty if there is one call at most.
        separators: between items, and between keys and values, as `json.dumps` takes them.
        lead: the white space that precedes an answer of calls; None if something else does.
    """

    before: str
    between: str
    after: str
    joint: str = ""
    separators: tuple[str, str] = (", ", ": ")
    lead: str | None = None


class CallShape(Struct, frozen=True):
    """How calls are written.

    Attributes:
        before: the marks that precede a call, in order; the last one precedes the name or the JSON.
        after: the marks that may follow a call.
        keys: the JSON keys of a call's name and its arguments; a single empty key if the name
            itself is the key of the arguments.
        name_at: which word before the arguments is the name, counted from 0.
        name_end: the text between the name and what follows it.
        key_open: the text before an argument's name.
        value_open: the text between an argument's name and its value, if the value is text.
        other_open: the same for values that are not text.
        value_close: the text after a value.
        raw: text between quotes is not escaped.
        id_before: the JSON key of a call's id, if that precedes the name; else empty.
        id_after: the JSON key of a call's id, if that follows the arguments; else empty.
        pythonic: which values between tags are Python literals: flags, or all.
        layout: the exact text of calls, if it is known: a grammar then allows nothing else, so
            that the template writes earlier calls as the model wrote them.
    """

    style: Style = "json"
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    keys: tuple[str, str] = ("name", "arguments")
    name_at: int = 0
    name_end: str = ""
    key_open: str = ""
    value_open: str = ""
    other_open: str = ""
    value_close: str = ""
    raw: bool = False
    id_before: str = ""
    id_after: str = ""
    pythonic: Literal["", "flags", "all"] = ""
    layout: CallLayout | None = None


HERMES = CallShape(
    "json",
    ("<tool_call>",),
    ("</tool_call>",),
    layout=CallLayout(
        before='<tool_call>\n{"name": "',
        between='", "arguments": ',
        after="}\n</tool_call>",
        joint='}\n</tool_call>\n<tool_call>\n{"name": "',
        lead="",
    ),
)
"""The notation of Hermes and Qwen, which most models know."""


class ThinkingOptions(Struct, frozen=True):
    """Which options a model has for its thoughts.

    Attributes:
        switch: thoughts can be switched off and on.
        budget: thoughts can be cut short, because the closing mark is known.
        switch_name: the template's variable for the switch.
        switch_values: its values for on and off.
        effort_name: the template's variable for the effort.
    """

    switch: bool = False
    efforts: tuple[str, ...] = ()
    budget: bool = False
    switch_name: str = ""
    switch_values: tuple[bool | str, bool | str] = (True, False)
    effort_name: str = ""

    def variables(self, reasoning: str = "auto", effort: str = "") -> dict[str, bool | str]:
        """The template's variables for these options, as far as the template has them.

        Args:
            reasoning: ``on``, ``off``, or ``auto``, which leaves it to the template.
            effort: one of `efforts`; it also switches thoughts on, unless they are off. Empty
                leaves it to the template.
        """
        found: dict[str, bool | str] = {}
        on, off = self.switch_values
        asked = effort in self.efforts
        if self.switch and (reasoning != "auto" or asked):
            found[self.switch_name] = off if reasoning == "off" else on
        if asked and not (self.switch and reasoning == "off"):
            found[self.effort_name] = effort
        return found

    def missing(self, reasoning: str = "auto", effort: str = "", budget: int = -1) -> str:
        """Which of these options the model lacks, in a sentence; empty if it has all."""
        if reasoning != "auto" and not self.switch:
            return "the model's chat template cannot switch thoughts on or off"
        if effort and effort not in self.efforts:
            known = ", ".join(self.efforts) or "none"
            return f"the model's chat template has no reasoning effort {effort}: it knows {known}"
        if budget >= 0 and not self.budget:
            return "the model's chat template marks no thoughts: a budget for them does nothing"
        return ""


class AnswerMarks(Struct, frozen=True):
    """How an answer is divided.

    Attributes:
        speech: text with marks, or messages with headers.
        thoughts: pairs of marks around thoughts, the template's own first.
        gap: the white space that the template writes after a thought.
        content: marks before the text for the user.
        closers: marks after it.
        fillers: text between two parts that has no meaning.
        ends: text that ends the answer.
        calls: notations of calls, the template's own first; Hermes' if nothing was learnt, because
            tools are then explained in it.
        bare: an answer that is a call has no mark.
        explained: the template describes tools to the model.
        several: the template can write several calls in one answer.
        writes: the template can write the calls of earlier answers.
        as_text: the template needs their arguments as JSON text.
        numbered: whether the template knows calls by ``functions.<name>:<n>``, as Kimi K2's does.
        parts: the template reads the thoughts of earlier answers as parts of their content.
        raw: thoughts stay in the content, with all marks but those of calls.
    """

    speech: Speech = "marks"
    thoughts: tuple[tuple[str, str], ...] = (("<think>", "</think>"),)
    gap: str = "\n\n"
    content: tuple[str, ...] = ()
    closers: tuple[str, ...] = ()
    fillers: tuple[str, ...] = ()
    ends: tuple[str, ...] = ()
    calls: tuple[CallShape, ...] = (HERMES,)
    bare: bool = False
    explained: bool = False
    several: bool = False
    writes: bool = False
    as_text: bool = False
    numbered: Numbered = ""
    parts: bool = False
    raw: bool = False

    def closing(self, mark: str) -> str:
        """The mark that closes a thought which `mark` has opened; empty if it opens none."""
        return next((end for begin, end in self.thoughts if mark and begin == mark), "")

    def awaited(self, opening: str, after: Sequence[str]) -> tuple[AwaitedText, ...]:
        """What the grammar of an answer waits for, in order; nothing counts within a thought.

        Args:
            opening: the mark of a thought that the prompt ends with; empty for none.
            after: the texts after which the grammar applies; none if it applies from the beginning
                on, which also says whether the model may think.
        """
        if closing := self.closing(opening):
            return closing, *after
        thoughts = (pair for pair in self.thoughts if all(pair))
        return (*thoughts, *after) if after else ()


def told_thought(thought: str, content: str, *, parts: bool) -> dict[str, Any]:
    """The variables of an answer's thought: all names that templates have for it.

    Args:
        thought: the thought.
        content: the text after it.
        parts: the template reads a thought as the first part of the content.
    """
    told: dict[str, Any] = dict.fromkeys(("reasoning_content", "reasoning", "thinking"), thought)
    if parts:
        first = {"type": "thinking", "thinking": thought}
        told["content"] = [first, {"type": "text", "text": content}]
    return told
