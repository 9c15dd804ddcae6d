"""Kimi K3: every mark has three parts, ``<|open|>``, a word, ``<|sep|>``."""

from __future__ import annotations

from localspec.chat.dialects.shapes import AnswerMarks, CallShape

MARKS = AnswerMarks(
    thoughts=(("<|open|>think<|sep|>", "<|close|>think<|sep|>"),),
    gap="",
    content=("<|open|>response<|sep|>",),
    closers=("<|close|>response<|sep|>",),
    ends=("<|close|>message<|sep|>", "<|end_of_msg|>"),
    calls=(
        CallShape(
            style="tags",
            before=("<|open|>tools<|sep|>", '<|open|>call tool="'),
            after=("<|close|>call<|sep|>", "<|close|>tools<|sep|>"),
            name_end='" index="1"<|sep|>',
            key_open='<|open|>argument key="',
            value_open='" type="string"<|sep|>',
            other_open='" type="number"<|sep|>',
            value_close="<|close|>argument<|sep|>",
        ),
    ),
    several=True,
    writes=True,
)


def matches(template: str) -> bool:
    """Whether a template uses this notation."""
    return all(mark in template for mark in ("<|open|>", "<|sep|>", "<|close|>"))
