"""A draft model whose step takes too long to save time is freed after it was measured."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest

from localspec.chat.session.session import Session
from localspec.engine.cancel import Cancel
from localspec.engine.length.cost import Costs, Points
from localspec.engine.length.gamma import AutoGamma
from localspec.engine.record.stats import DRAFT
from localspec.loading.load import load_session
from localspec.loading.load_request import LoadRequest
from tests.support import costs, toy

CURVE: Points = {1: 1.0, 2: 1.8, 4: 3.0, 8: 7.0, 16: 8.1, 64: 24.0}
"""T(n) of Qwen2.5-Coder-1.5B in Q4_K_M on two cores of an AMD EPYC."""


@pytest.mark.parametrize(("step", "dear"), [(0.05, False), (0.1, False), (0.44, True), (1.0, True)])
def test_a_step_that_no_acceptance_pays_for_is_too_dear(step: float, dear: bool) -> None:
    auto = AutoGamma(Costs({0: CURVE}, {DRAFT: {0: {1: step, 16: 4 * step}}}))
    assert auto.too_dear(DRAFT, 0) is dear


@pytest.fixture
def dear() -> Iterator[None]:
    """The toy's draft as dear as its target."""
    costs.keep_draft(2e-3)
    yield
    costs.keep_toy()


def opened(**asked: Any) -> Session:
    draft = f"{toy.DRAFT},lookup"
    request = LoadRequest(pair=str(toy.TARGET), draft=draft, ctx_size=512, threads=1)
    request = replace(request, **asked)
    return load_session(request, progress=lambda *_: None, cancel=Cancel())


def test_it_is_freed_and_said(dear: None) -> None:
    with closing(opened()) as session:
        assert (session.pair.drafts, session.drafters) == ({}, ("lookup",))
        assert session.pair.memory().draft_weights == 0
        assert session.pair.loaded.draft_threads == 0
        (said,) = [each for each in session.notices if toy.DRAFT.name in each]
        assert said.startswith(f"{toy.DRAFT.name}: too big to save time here")


@pytest.mark.few(1)
@pytest.mark.parametrize("asked", [{"draft_anyway": True}, {"gamma": 4}])
def test_it_stays_where_it_was_asked_for(dear: None, asked: dict[str, Any]) -> None:
    with closing(opened(**asked)) as session:
        assert [*session.pair.drafts] == [DRAFT]


def test_nothing_drafts_without_lookup(dear: None) -> None:
    with closing(opened(draft=str(toy.DRAFT))) as session:
        assert not session.pair.drafts
        assert "too big to save time here" in session.speculation_note


def test_a_cheap_one_stays() -> None:
    with closing(opened()) as session:
        assert [*session.pair.drafts] == [DRAFT]
