"""Granite 3: its template describes the marks of thoughts, answers and calls in words."""

from __future__ import annotations

from localspec.chat.dialects.shapes import CallShape

THOUGHTS = (
    ("<think>", "</think>"),
    ("Here is my thought process:", "Here is my response:"),
)
CONTENT, CLOSERS = ("<response>",), ("</response>",)
CALLS = CallShape("json", ("<|tool_call|>",))


def matches(template: str) -> bool:
    """Whether a template uses this notation."""
    return "<response></response>" in template or "Here is my thought process:" in template
