"""A damaged record (pairs, the last pair, costs, settings) hides no other and ends no command."""

from __future__ import annotations

from pathlib import Path

from tests.support import hostile_records


def test_damaged_records_hide_nothing_else(tmp_path: Path) -> None:
    assert hostile_records.attack(range(1_000_000, 1_000_040), tmp_path) == []
