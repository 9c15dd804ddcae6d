"""Where two answers to one prompt part, and whether rounding explains it: plain values."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

NEAR_TIE: Final = 1.0
"""Logits. Passes of other sizes round differently, which may reverse a lead up to this; the margins
that were measured are in docs/verification.md."""


class Parting(Struct, frozen=True, tag=True):
    """The first place where two answers to one prompt have different tokens.

    Attributes:
        at: how many tokens both answers begin with.
        margin: how far the lesser of both tokens was from the best one, in logits; above
            temperature 0 with the noise of the draw. None if the draws were not the same ones.
    """

    at: int
    margin: float | None = None

    @property
    def near_tie(self) -> bool:
        """Whether rounding may have decided between both tokens."""
        return self.margin is not None and self.margin <= NEAR_TIE
