"""A disk that fills up and gets room again: a small file system in memory."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from localspec.pairs.hub import download, pair_pull
from tests.support import ggufs, toy
from tests.support.hub_server import digest
from tests.support.hub_world import world
from tests.support.waiting import wait_for
from tests.test_history import StoreUser, said

SIZE = 4 << 20


class Disk:
    """A file system of 4 MB."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._filler = folder / "filler"

    def fill(self) -> None:
        """Leave no room."""
        with self._filler.open("wb", buffering=0) as file:
            for size in (1 << 16, 1 << 12, 1 << 8):
                try:
                    while True:
                        file.write(bytes(size))
                except OSError:
                    continue

    def make_room(self) -> None:
        self._filler.unlink()

    def close(self) -> None:
        """Let nothing be written any more."""
        subprocess.run(["mount", "-o", "remount,ro", str(self.folder)], check=True)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(folder)]
    try:
        mounted = subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        mounted = False
    if not mounted:
        pytest.skip("no file system can be mounted here")
    try:
        yield Disk(folder)
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_a_pull_goes_on_once_there_is_room(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pair_pull, "DISK_MARGIN", 0)
    name, arguments = "big-Q4_K_M.gguf", ("pull", "ann/Big-GGUF", "--draft", "none")
    with world(disk.folder) as hub:
        repo = hub.server.add("ann/Big-GGUF", {name: ggufs.model(n_bytes=2_000_000)})
        part = repo.etag(name) + download.PART_ENDING
        fault = hub.server.fault("/cdn/", hold_after=900_000, whole=True)

        def fill() -> None:
            wait_for(lambda: hub.blobs(repo.name).get(part, 0) > 500_000)
            disk.fill()
            fault.release.set()

        filling = threading.Thread(target=fill)
        filling.start()
        done = hub.run(*arguments)
        filling.join()
        assert done.code == 1
        assert "the disk is full" in done.err
        kept = hub.blobs(repo.name)[part]
        assert kept >= 500_000
        hub.server.seen.clear()
        done = hub.run(*arguments)
        assert (done.code, hub.blobs(repo.name)) == (1, {part: kept})
        disk.make_room()
        done = hub.run(*arguments)
        assert done.code == 0, done.err
        assert {seen.range for seen in hub.server.bodies()} == {f"bytes={kept}-"}
        assert digest(hub.snapshot(repo.name, repo.commit, name)) == repo.sha256(name)


def test_what_was_said_meanwhile_is_kept_once_there_is_room(disk: Disk) -> None:
    path = disk.folder / "conversations.db"
    one = StoreUser(path)
    one.turn("before", "it was full")
    one.flush()
    disk.fill()
    long = "a long answer " * 20_000
    one.turn("while it is full", long)
    one.flush()
    assert [error.message for error in one.told] == [
        f"conversations cannot be kept in {path}: database or disk is full"
    ]
    disk.make_room()
    one.turn("after", "there is room")
    assert one.store_thread.close(10)
    again = StoreUser(path)
    found = said(again.load("before"))
    assert found == ["before", "it was full", "while it is full", long, "after", "there is room"]
    assert again.store_thread.close(10)


def test_what_was_said_can_be_read_on_a_disk_that_is_read_only(disk: Disk) -> None:
    path = disk.folder / "a home?" / "conversations.db"
    one = StoreUser(path)
    one.turn("before", "it was open")
    assert one.store_thread.close(10)
    disk.close()
    again = StoreUser(path)
    assert said(again.load("before")) == ["before", "it was open"]
    assert again.titles("open") == ["before"]
    assert not again.told
    again.turn("now", "it is not")
    again.flush()
    assert [error.message for error in again.told] == [
        f"conversations cannot be kept in {path}: attempt to write a readonly database"
    ]
    assert not again.store_thread.close(10)


def test_what_cannot_be_read_on_a_disk_that_is_read_only_is_told(disk: Disk) -> None:
    path = disk.folder / "conversations.db"
    one = StoreUser(path)
    one.turn("before", "it was open")
    assert one.store_thread.close(10)
    Path(f"{path}-wal").write_bytes(b"x")  # of a program that was killed
    disk.close()
    again = StoreUser(path)
    assert said(again.load("before")) == ["before", "it was open"]
    again.flush()
    assert [error.message for error in again.told] == [
        "what was said last may be missing where nothing can be written"
    ]
    assert again.store_thread.close(10)


def run(*arguments: str, **places: Path) -> subprocess.CompletedProcess[str]:
    given = {f"LOCALSPEC_{name}": str(path) for name, path in places.items()}
    return subprocess.run(
        [sys.executable, "-m", "localspec", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **given},
    )


@pytest.mark.slow
@pytest.mark.timed  # on a busy machine each bench waits 20 seconds first
def test_a_bench_is_printed_where_it_cannot_be_written(disk: Disk, toy_target: Path) -> None:
    report = disk.folder / "report.json"
    prompts = disk.folder.with_name("prompts.jsonl")
    prompts.write_text(json.dumps({"prompt": "Tell me a story.", "kind": "story"}) + "\n")
    bench = ("bench", "toy", "--prompts", str(prompts), "-n", "8", "--repeat", "1")
    arguments = (*bench, "-t", "1", "-o", str(report))
    toy.install(disk.folder / "data")
    done = run(*arguments, DATA=disk.folder / "data", CACHE=disk.folder / "cache")
    assert done.returncode == 0, done.stderr
    before = report.read_bytes()
    disk.fill()
    done = run(*arguments, DATA=disk.folder / "data", CACHE=disk.folder / "cache")
    assert done.returncode == 1
    assert f"cannot write {report}: No space left on device" in done.stderr
    assert "story" in done.stdout
    assert report.read_bytes() == before
    assert not list(disk.folder.glob(".report*"))
    disk.make_room()
    done = run(*arguments, DATA=disk.folder / "data", CACHE=disk.folder / "cache")
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.drawn
@pytest.mark.timed
def test_a_tune_is_printed_where_it_cannot_be_stored(disk: Disk, toy_target: Path) -> None:
    cache = disk.folder / "cache"
    disk.fill()
    done = run("tune", "toy", "-t", "1", CACHE=cache)
    assert done.returncode == 0, done.stderr
    assert "nothing was stored" in done.stdout
    assert not [path for path in cache.rglob("*") if path.is_file()]
    disk.make_room()
    done = run("tune", "toy", "-t", "1", CACHE=cache)
    assert "nothing was stored" not in done.stdout
    kept = {path: path.read_bytes() for path in cache.rglob("*.json")}
    assert kept
    disk.fill()
    done = run("tune", "toy", "-t", "1", CACHE=cache)
    # Timings that varied more than those in the cache are not even to be stored.
    told = [
        line for line in done.stdout.splitlines() if "nothing was stored" in line or "kept" in line
    ]
    assert sorted(name for line in told for name in re.findall(r"[\w-]+\.gguf", line)) == [
        *("draft-Q8_0.gguf", "target-Q8_0.gguf"),
    ]
    assert {path: path.read_bytes() for path in cache.rglob("*") if path.is_file()} == kept
