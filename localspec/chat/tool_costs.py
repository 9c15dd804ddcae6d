"""The cost of describing tools to a model."""

from __future__ import annotations

from msgspec import Struct


class ToolCosts(Struct, frozen=True):
    """Tokens that tools take in a context.

    Attributes:
        total: of the descriptions that the model gets.
        whole: of the descriptions of all tools.
        each: of each tool, approximately.
        searched: whether the model gets tools that find the others instead of all descriptions.
    """

    total: int
    whole: int
    each: tuple[int, ...]
    context: int
    searched: bool
