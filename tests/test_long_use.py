"""The figures of two hours of use."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from benchmarks.long_use import Reading, growth, store_sizes, use


def _readings(sizes: list[int]) -> list[Reading]:
    return [Reading(minute, size, 20, 2) for minute, size in enumerate(sizes)]


def test_growth_is_that_after_the_warm_up() -> None:
    rising = [100] * 20 + [200] * 50 + [210] * 50
    assert growth(_readings(rising)) == pytest.approx(0.05)
    assert growth(_readings([100] * 20 + [200] * 100)) == 0.0


def test_a_single_large_reading_does_not_count() -> None:
    assert growth(_readings([200] * 119 + [900])) == 0.0


def test_a_store_is_as_large_as_its_files(tmp_path: Path) -> None:
    path = tmp_path / "conversations.db"
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("CREATE TABLE messages (content TEXT)")
        db.execute("INSERT INTO messages VALUES ('hello')")
    assert store_sizes(path) == (5, path.stat().st_size)


@pytest.mark.slow
@pytest.mark.drawn
def test_some_use_leaves_nothing(tmp_path: Path) -> None:
    found = use("toy", 0.25, 0, tmp_path, every_s=3.75)
    assert (found["failed"], found["children_left"], found["chat_ended"]) == (0, 0, 0)
    assert found["questions"] == found["requests"] == 4
