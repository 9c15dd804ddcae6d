"""The share of the slow cases that a whole run takes."""

from __future__ import annotations

from typing import Any

from tests.support.draws import drawn, in_parts


class Item:
    """What a draw asks of an item."""

    def __init__(self, nodeid: str, *marks: str) -> None:
        self.nodeid, self._marks = nodeid, marks

    def get_closest_marker(self, name: str) -> object:
        return name if name in self._marks else None


class Case(Item):
    """One of a test with parameters."""

    callspec = None


def cases(test: str, many: int, *, slow: bool = True) -> list[Any]:
    return [Case(f"{test}[{number}]", *["slow"] * slow) for number in range(many)]


def test_a_sixth_of_each_tests_slow_cases_is_drawn_and_nothing_else_is_left_out() -> None:
    many, few = cases("a", 26), cases("b", 2)
    usual, whole = cases("c", 9, slow=False), [Item(name, "slow") for name in "de"]
    long = [Item(name, "slow", "drawn") for name in "fghijkl"]
    found = drawn([*many, *few, *usual, *whole, *long], 1)
    assert len([one for one in found if one in many]) == 5
    assert len([one for one in found if one in few]) == 1
    assert len([one for one in found if one in long]) == 2
    assert [one for one in found if one in usual or one in whole] == [*usual, *whole]


def test_a_seed_draws_the_same_whatever_else_is_there_and_seeds_reach_every_case() -> None:
    many = cases("a", 21)
    for seed in range(5):
        alone = drawn(many, seed)
        assert [one for one in drawn([*cases("b", 7), *many], seed) if one in many] == alone
    assert {one for seed in range(40) for one in drawn(many, seed)} == {*many}


def test_of_repetitions_a_sixth_is_drawn_as_well() -> None:
    few, *parts = in_parts(3, 60)
    assert (few.values, *(each.values for each in parts)) == ((3,), *[(10,)] * 6)
    assert [bool(each.marks) for each in (few, *parts)] == [False, *[True] * 6]
    assert len(drawn(cases("a", len(parts)), 1)) == 1
