"""A damaged record (pairs, the last pair, costs, settings) hides no other and ends no command."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import hostile_records


@pytest.mark.few(1)
@pytest.mark.parametrize("start", range(1_000_000, 1_000_040, 5))
def test_damaged_records_hide_nothing_else(start: int, tmp_path: Path) -> None:
    assert hostile_records.attack(range(start, start + 5), tmp_path) == []
