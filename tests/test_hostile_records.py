"""A damaged record (pairs, the last pair, costs, settings) hides no other and ends no command."""

from __future__ import annotations

from pathlib import Path

from tests.support import hostile_records


def test_damaged_records_hide_nothing_else(tmp_path: Path) -> None:
    assert hostile_records.attack(1, 40, tmp_path) == []
