"""What is run, and in which order: settings take turns, so that a drifting machine favours none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from localspec.chat.session import Session
from localspec.chat.settings import Gamma

T = TypeVar("T")
OFF = "off"


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One setting that every prompt is answered under.

    Attributes:
        name: how the report calls it; `OFF` is plain decoding.
        session: the loaded models.
        gamma: draft length, 0 for plain decoding.
        swept: one of a sweep over draft lengths.
    """

    name: str
    session: Session
    gamma: Gamma
    swept: bool = False


def in_turn(arms: Sequence[T], turn: int) -> list[T]:
    """The order of the `turn`th question: forwards and backwards in turn, beginning anywhere.

    With two arms that is off-on, on-off, on-off, off-on, ...; with more of them every arm comes
    first, and every arm comes before and after every other.
    """
    start = turn // 2 % len(arms)
    order = [*arms[start:], *arms[:start]]
    return order[::-1] if turn % 2 else order
