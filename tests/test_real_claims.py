"""Claims on recorded answers of real models hold, where baseline rounds and copies alternate."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import pytest

from benchmarks.real_claims import SITUATIONS, claims, recorded
from benchmarks.real_lookup import CURVES
from benchmarks.several import Answer
from localspec.engine.length import neighbours


@cache
def texts() -> Sequence[Answer]:
    return recorded()


@pytest.mark.slow
@pytest.mark.parametrize("curve", CURVES)
@pytest.mark.parametrize("how", SITUATIONS)
def test_claims_are_true_and_their_intervals_hold_the_truth(how: str, curve: str) -> None:
    """For every answer of 80 tokens that drafted in eight rounds, whatever disturbs the clock."""
    found = claims(texts(), CURVES[curve], how, seeds=1)
    assert len(found.offs) >= 30
    assert 0.95 <= found.mean <= 1.05
    assert found.coverage >= 0.82
    assert found.width <= 0.15


@pytest.mark.slow
def test_narrower_intervals_would_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbours, "_WIDE", 0.1)
    found = claims(texts(), CURVES["EPYC, 1.5B Q4_K_M"], "calm", seeds=1)
    assert found.coverage < 0.82
