"""A share of the slow cases: a whole run takes a sixth of each test's, drawn anew.

`pytest -m slow` draws, and prints the seed; `--draw SEED` draws the same cases again. `--whole`
runs every case, as does a run that names files or tests. Long tests without cases have the mark
`drawn`: of all of them together a sixth is taken.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from _pytest.mark.structures import ParameterSet

_SHARE = 6
"""One in `_SHARE` slow cases is drawn, and at least one of each test."""


def in_parts(few: int, many: int) -> list[ParameterSet]:
    """How often a test repeats, for `parametrize`: `few` times by default, else `many` times.

    The many are divided among as many slow cases as one is drawn of.
    """
    part = pytest.param(many // _SHARE, marks=pytest.mark.slow)
    return [pytest.param(few), *[part] * _SHARE]


def drawn(items: Sequence[pytest.Item], seed: int) -> list[pytest.Item]:
    """`items` without the slow cases that `seed` leaves out.

    The share of one test's cases does not depend on the other tests in the run.
    """
    groups: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("slow") is not None:
            if item.get_closest_marker("drawn") is not None:
                groups.setdefault("", []).append(item)
            elif hasattr(item, "callspec"):
                groups.setdefault(item.nodeid.partition("[")[0], []).append(item)
    left_out: set[pytest.Item] = set()
    for name, group in groups.items():
        chosen = random.Random(f"{seed} {name}").sample(group, -(-len(group) // _SHARE))
        left_out |= {*group} - {*chosen}
    return [item for item in items if item not in left_out]
