"""A budget ends a thought, and nothing else changes."""

from __future__ import annotations

import numpy as np
import pytest

from localspec.engine.grammar import Anything, Budgeted, Constraint
from localspec.errors import EngineError
from tests.fakes import FakeModel

WORDS = b"a thought with words</think>said"


def budget(left: int, begin: bytes = b"") -> Budgeted:
    closing = tuple(b"!</think>")
    return Budgeted(Anything(), FakeModel(), begin, b"</think>", left, closing)


def write(state: Constraint, wish: bytes) -> bytes:
    """What is written where every byte of `wish` is wanted, and what must come comes."""
    ids = np.arange(256)
    written = b""
    for _ in range(len(wish) + 20):
        allowed = np.flatnonzero(state.allowed(ids))
        if len(allowed) == 1:
            token = int(allowed[0])
        elif not wish:
            break
        else:
            token, wish = wish[0], wish[1:]
        written += bytes([token])
        state = state.after(token)
    return written


@pytest.mark.parametrize("left", [0, 1, 9])
def test_a_thought_ends_with_its_budget(left: int) -> None:
    assert write(budget(left), b"thought thought") == (
        b"thought thought"[:left] + b"!</think>" + b"thought thought"[left:]
    )


def test_a_thought_that_ends_by_itself_is_left_alone() -> None:
    assert write(budget(40), WORDS) == WORDS


def test_only_a_thought_has_a_budget() -> None:
    assert write(budget(3, b"<think>"), b"no thought at all") == b"no thought at all"
    assert write(budget(3, b"<think>"), b"\n<think>abcdef") == b"\n<think>abc!</think>def"


def test_other_tokens_are_refused_while_it_is_closed() -> None:
    with pytest.raises(EngineError):
        budget(0).after(ord("x"))
