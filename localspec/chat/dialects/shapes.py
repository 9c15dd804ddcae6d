"""What is known of how a model writes: plain values, which travel between processes."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

Style = Literal["json", "named", "tags", "python", "gemma", "nested"]
"""How a call is written: one JSON value; a name, then JSON; a name and values as tags; as Python
writes calls; Gemma's notation; tags within tags, named after the arguments."""

Speech = Literal["marks", "harmony", "muse", "functionary"]
"""What an answer is made of: text with marks in it, or messages that have a header each."""


class CallShape(Struct, frozen=True):
    """How calls are written.

    Attributes:
        style: the notation.
        before: the marks that lead to a call, in order; the last one stands before the name, or
            before the JSON.
        after: the marks that may follow a call.
        keys: what JSON calls a call's name and its arguments; one empty name where the call's own
            name is the key of its arguments.
        name_at: which word ahead of the arguments is the name, counted from 0.
        name_end: what stands between the name and what follows it.
        key_open: what stands before an argument's name.
        value_open: what stands between an argument's name and its value, where that is text.
        other_open: the same, where the value is no text.
        value_close: what ends a value.
        raw: text between quotes is written as it is, nothing in it escaped.
        id_before: what JSON calls a call's id, where that stands before the name; else empty.
        id_after: the same, where it stands after the arguments.
        pythonic: which values between tags are written as Python writes them: flags, or all.
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


class ThinkingOptions(Struct, frozen=True):
    """What may be asked of a model about its thoughts.

    Attributes:
        switch: they can be switched off and on.
        efforts: the efforts that the template knows.
        budget: they can be ended: it is known how a thought is closed.
        switch_name: the template's variable for the switch.
        switch_values: what it is where thoughts are on, and off.
        effort_name: the template's variable for the effort.
    """

    switch: bool = False
    efforts: tuple[str, ...] = ()
    budget: bool = False
    switch_name: str = ""
    switch_values: tuple[bool | str, bool | str] = (True, False)
    effort_name: str = ""

    def variables(self, reasoning: str = "auto", effort: str = "") -> dict[str, bool | str]:
        """What the template has to see where something is asked for that it knows.

        Args:
            reasoning: ``on``, ``off``, or ``auto``, which leaves it to the template.
            effort: one of `efforts`, which asks for thoughts too, unless they are off; empty leaves
                it to the template.
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
        """What of it the model does not know, in a sentence; empty where it knows all."""
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
        speech: whether it is text with marks, or messages with headers.
        thoughts: pairs of marks around thoughts, those of the template first.
        gap: the blanks that the template writes after a thought.
        content: marks that lead to what is said to the user.
        closers: marks that end it.
        fillers: what stands between two parts and means nothing.
        ends: what stands where the answer is over.
        calls: how calls are written, the template's own notation first.
        bare: an answer that is a call has no mark at all.
        explained: the template tells the model of tools.
        several: it can write several calls in one answer.
        writes: it writes calls of earlier answers.
        as_text: it wants their arguments as the text of JSON.
    """

    speech: Speech = "marks"
    thoughts: tuple[tuple[str, str], ...] = (("<think>", "</think>"),)
    gap: str = "\n\n"
    content: tuple[str, ...] = ()
    closers: tuple[str, ...] = ()
    fillers: tuple[str, ...] = ()
    ends: tuple[str, ...] = ()
    calls: tuple[CallShape, ...] = ()
    bare: bool = False
    explained: bool = False
    several: bool = False
    writes: bool = False
    as_text: bool = False
