"""Measuring how fast a file is read from its disk."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from localspec.pairs.memory import free as disk
from localspec.pairs.memory.free import CHUNK, read_speed

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="measured on Linux alone")


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """A file a little longer than three parts, certainly written to the disk."""
    path = tmp_path / "large.gguf"
    with path.open("wb") as file:
        file.write(bytes(3 * CHUNK + 100))
        file.flush()
        os.fsync(file.fileno())
    return path


def every(seconds: float) -> Iterator[float]:
    """A clock that advances by a fixed step at each reading."""
    return (i * seconds for i in count())


@linux_only
def test_bytes_over_seconds_until_the_time_is_up(
    large: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[int] = []
    monkeypatch.setattr(disk, "_in_memory", lambda _file, start: bool(looked.append(start)))
    assert read_speed(large, budget=1.0, clock=every(0.25).__next__) == 4 * CHUNK
    assert looked == [0, CHUNK, 2 * CHUNK]
    looked.clear()
    assert read_speed(large, budget=0.2, clock=every(0.25).__next__) == 4 * CHUNK
    assert looked == [0]


@linux_only
def test_what_stays_in_memory_is_not_measured(large: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "_in_memory", lambda _file, start: start != CHUNK)
    assert read_speed(large, clock=every(0.25).__next__) == 4 * CHUNK
    monkeypatch.setattr(disk, "_in_memory", lambda _file, _start: True)
    assert read_speed(large) is None


@linux_only
def test_a_part_that_was_just_read_is_in_memory(large: Path) -> None:
    with large.open("rb") as file:
        file.read()
        assert disk._in_memory(file.fileno(), CHUNK)


def test_parts_lie_all_over_the_file() -> None:
    assert disk._parts(CHUNK - 1) == []
    parts = disk._parts(1000 * CHUNK)
    assert len(parts) == disk.MOST_CHUNKS
    assert parts[-1] > 900 * CHUNK


def test_what_cannot_be_read_has_no_speed(tmp_path: Path) -> None:
    assert read_speed(tmp_path / "missing.gguf") is None
    (tmp_path / "small.gguf").write_bytes(b"GGUF")
    assert read_speed(tmp_path / "small.gguf") is None
