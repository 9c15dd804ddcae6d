"""What it costs to tell a model of tools."""

from __future__ import annotations

from msgspec import Struct


class ToolCosts(Struct, frozen=True):
    """How many tokens of the context tools take.

    Attributes:
        total: of what is offered.
        whole: if all tools were described.
        each: of each tool, about.
        context: the size of the context.
        searched: tools that find the others are offered in their place.
    """

    total: int
    whole: int
    each: tuple[int, ...]
    context: int
    searched: bool
