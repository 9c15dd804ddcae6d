"""Combinations of parameters: by default enough for every pair of values, the rest if slow."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import combinations
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from _pytest.mark.structures import ParameterSet

Pair = tuple[tuple[int, Any], tuple[int, Any]]


def pairs_of(case: Sequence[Any]) -> set[Pair]:
    """Every two values of a combination, each with its place."""
    return {*combinations(enumerate(case), 2)}


def covering(cases: Iterable[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """A few of `cases` that hold every pair of values that any of them holds, the best first."""
    left = {case: pairs_of(case) for case in cases}
    missing = set().union(*left.values())
    chosen = []
    while missing:
        best = max(left, key=lambda case: len(left[case] & missing))
        chosen.append(best)
        missing -= left.pop(best)
    return chosen


def pairwise(
    cases: Iterable[tuple[Any, ...]], large: Callable[[tuple[Any, ...]], bool] | None = None
) -> list[ParameterSet]:
    """`cases` for `parametrize`, those marked slow that no pair of values needs.

    Args:
        cases: the combinations.
        large: whether a case takes too long to be among those that run by default, whatever pairs
            it has.
    """
    cases = list(cases)
    needed = {*covering(case for case in cases if large is None or not large(case))}
    return [pytest.param(*case, marks=() if case in needed else pytest.mark.slow) for case in cases]


def usually(cases: Iterable[Any], *usual: Any) -> list[ParameterSet]:
    """`cases` for `parametrize`, those marked slow that are not among the `usual` ones.

    For cases that take the same way through the code with other numbers.

    Raises:
        LookupError: one of `usual` is not in `cases`.
    """
    cases = list(cases)
    if missing := [case for case in usual if case not in cases]:
        raise LookupError(f"not among the cases: {missing}")
    marks = [() if case in usual else pytest.mark.slow for case in cases]
    return [
        pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=each)
        for case, each in zip(cases, marks, strict=True)
    ]
