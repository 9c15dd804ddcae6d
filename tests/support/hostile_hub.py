"""Hubs and caches with seeded faults, and pulls killed at random moments.

Every case is a disturbed pull of one file, and then an undisturbed one. The first must end soon,
with the right file or an error message, and read little beyond the file; the second must end with
the right file.
"""

from __future__ import annotations

import functools
import json
import os
import random
import shutil
import signal
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from localspec.pairs.disk import installed
from localspec.pairs.hub import cache as hub_cache
from localspec.pairs.hub import download
from localspec.pairs.hub import response_body as hub_body
from localspec.pairs.hub.cache import RemoteFile
from localspec.pairs.hub.retries import RetryPolicy
from tests.support import ggufs
from tests.support.command import Result
from tests.support.hub_server import Repo
from tests.support.hub_world import World, world
from tests.support.waiting import wait_for

REPO, NAME = "ann/One-GGUF", "one-Q8_0.gguf"
PULL = ("pull", REPO, "--draft", "none")
MOST_BEYOND = 32 << 20
MOST_S = 30.0  # with the pauses and deadlines of `_hurried`
_SIZE = 800_000

_STATUS = (200, 200, 204, 206, 301, 302, 304, 400, 401, 403, 404, 408, 410, 416, 429, 500, 503, 599)
_BODIES = (
    *(b"", b"[1, 2]", b"null", b"{", b"[" * 100_000, b'{"a":' * 50_000, b"\xff\xfe\x00"),
    *(b'{"id": 1e999}', b'{"error": "\\u001b[2J"}', b"<html>\x1b[2J", b" " * (40 << 20)),
)
_JUNK: tuple[Any, ...] = (
    *(None, True, -1, 0, 7, 1 << 63, 10**400, 0.5, "", "x", "\x1b[2J", "../../x", "/etc/passwd"),
    *("x" * 5000, "a\0b", "\ud800", [], {}, [[]], [None], {"": {}}, "http://127.0.0.1:1/"),
)
_HEADERS: dict[str, tuple[str, ...]] = {
    "Location": ("/", "//", "http://127.0.0.1:1/x", "file:///etc/passwd", "ftp://x/", "\x9b", "?"),
    "Retry-After": ("7200", "-1", "nan", "inf", "0", "1e3", "9" * 400, "Wed, 21 Oct 2015 07:28:00"),
    "Content-Encoding": ("gzip", "br", "deflate", "identity", "x"),
    "Content-Range": ("bytes 0-1/2", "bytes 5-1/9", "bytes */*", "x", "bytes 0-" + "9" * 400),
    "ETag": ('"x"', "", "W/", '"' + "0" * 64 + '"', '"../../x"'),
    "X-Linked-Size": ("-1", "x", "9" * 400, "1e3"),
    "X-Linked-Etag": ('"../../../x"', '""', '"' + "f" * 64 + '"'),
    "X-Repo-Commit": ("../../..", "", "0" * 40, "x" * 5000),
    "X-Error-Message": ("\x9b2Jx", "x" * 5000),
    "X-Error-Code": ("RepoNotFound", "GatedRepo", "EntryNotFound", "x"),
}


def attack_server(number: int, folder: Path) -> None:
    """Attack a pull with one to three faults of the Hub, each for one request, some or all."""
    rng = random.Random(number)
    with _place(folder, number) as place, world(place) as hub, _hurried():
        repo = hub.server.add(REPO, {NAME: ggufs.model(n_bytes=_SIZE)})
        told = _told(hub)
        for _ in range(rng.choice((1, 1, 2, 3))):
            match = rng.choice(("/api/", "/resolve/", "/cdn/", "/cdn/", "/"))
            hub.server.fault(
                match, times=rng.choice((1, 2, 5, 99)), **_fault(rng, json.loads(told))
            )
        _pull(hub, repo)
        read = sum(seen.sent + seen.told for seen in hub.server.seen)
        assert read - repo.size(NAME) < MOST_BEYOND, f"{read:,} bytes were read"
        for fault in hub.server.faults:
            fault.release.set()
        hub.server.faults.clear()
        done = _pull(hub, repo)
        if "thrown away" in done.err:  # what a fault had left of the first pull was wrong
            done = _pull(hub, repo)
        assert done.code == 0, done.err


def _told(hub: World) -> bytes:
    """What a Hub without faults says of the repository."""
    with urllib.request.urlopen(f"{hub.server.url}/api/models/{REPO}/revision/main") as answer:
        return bytes(answer.read())


def _fault(rng: random.Random, told: Any) -> dict[str, Any]:
    kind = rng.randrange(9)
    if kind < 4:
        names = rng.sample(list(_HEADERS), rng.choice((0, 1, 1, 2)))
        headers = {name: rng.choice(_HEADERS[name]) for name in names}
        return {"status": rng.choice(_STATUS), "body": rng.choice(_BODIES), "headers": headers}
    if kind == 4:
        body = json.dumps(_changed(told, rng)).encode("utf-8", "replace")
        return {"status": 200, "body": body}
    at = rng.randrange(_SIZE)
    if kind == 5:
        return {"flip_at": at}
    if kind == 6:
        return {"hold_after": at}
    if kind == 7:
        return {"ignore_range": True, "chunked": rng.random() < 0.5}
    return {"cut_after": rng.choice((0, 1, at))}


def _changed(told: Any, rng: random.Random) -> Any:
    """What a Hub says, with junk somewhere, or without a field."""
    if not isinstance(told, dict | list) or not told or rng.random() < 0.15:
        return rng.choice(_JUNK)
    key: Any = rng.randrange(len(told)) if isinstance(told, list) else rng.choice([*told])
    if rng.random() < 0.15:
        del told[key]
    else:
        told[key] = _changed(told[key], rng)
    return told


def attack_cache(number: int, folder: Path) -> None:
    """Attack a cache with planted files; files outside of it must stay as they are."""
    rng = random.Random(number)
    with _place(folder, number) as place, world(place) as hub, _hurried():
        repo = hub.server.add(REPO, {NAME: ggufs.model(n_bytes=_SIZE)})
        file = RemoteFile(repo.name, repo.commit, NAME, repo.size(NAME), repo.etag(NAME))
        outside = place / "outside.gguf"
        outside.write_bytes(b"theirs")
        hub_cache.prepare(file)
        blob = hub_cache.blob_path(file)
        refs = blob.parents[1] / "refs" / "main"
        for path in rng.sample(
            [blob, download.part_path(file), hub_cache.snapshot_path(file), refs],
            rng.choice((1, 1, 2)),
        ):
            path.parent.mkdir(parents=True, exist_ok=True)
            rng.choice(_PLANTS)(path, outside, repo.files[NAME], rng)
        done = _pull(hub, repo)
        assert outside.read_bytes() == b"theirs"
        assert done.code == 0 or "error: " in done.err, done.err
        if done.code == 0:
            sent = hub.server.sent()
            assert _pull(hub, repo).code == 0
            assert hub.server.sent() == sent, "fetched again"


Plant = Callable[[Path, Path, Any, random.Random], object]
_PLANTS: tuple[Plant, ...] = (
    lambda path, _out, data, rng: path.write_bytes(data[: rng.randrange(len(data))]),
    lambda path, _out, data, rng: path.write_bytes(data + rng.randbytes(9)),
    lambda path, _out, data, rng: path.write_bytes(rng.randbytes(len(data))),
    lambda path, _out, data, rng: path.write_bytes(data[:500] + rng.randbytes(len(data) - 500)),
    lambda path, _out, data, _rng: path.write_bytes(data),
    lambda path, _out, _data, _rng: path.write_bytes(b""),
    lambda path, outside, _data, _rng: path.symlink_to(outside),
    lambda path, _out, _data, _rng: path.symlink_to(path),
    lambda path, _out, _data, _rng: path.symlink_to("/dev/zero"),
    lambda path, _out, _data, _rng: path.symlink_to(path.with_name("nothing")),
    lambda path, _out, _data, _rng: path.mkdir(),
    lambda path, _out, _data, _rng: os.mkfifo(path),
)


def attack_pull(number: int, folder: Path) -> None:
    """Kill a pull one to three times; whatever was kept is never asked for again."""
    rng = random.Random(number)
    with _place(folder, number) as place, world(place) as hub:
        size = rng.choice((1, 2, 4)) * 1_000_000 // 32 * 32
        repo = hub.server.add(REPO, {NAME: ggufs.model(n_bytes=size)})
        kept = 0
        for _ in range(rng.choice((1, 2, 3))):
            kept = _kill(hub, repo, rng, kept)
        hub.server.seen.clear()
        done = _pull(hub, repo)
        assert done.code == 0, done.err
        bodies = [
            seen for seen in hub.server.bodies() if not seen.range or seen.range.endswith("-")
        ]
        asked = [seen.range for seen in bodies]
        missing = repo.size(NAME) - kept
        assert asked == ([f"bytes={kept}-" if kept else ""] if missing else []), (kept, asked)
        assert sum(each.sent for each in bodies) == missing


def _kill(hub: World, repo: Repo, rng: random.Random, before: int) -> int:
    """Start a pull, kill it somewhere, and return how much is on the disk: no less than before."""
    point = rng.randrange(1, repo.size(NAME))
    fault = hub.server.fault("/cdn/", hold_after=point, times=1)
    idle = threading.active_count()
    process = hub.start(*PULL)
    wait_for(lambda: fault.reached.is_set() or process.exitcode is not None)
    time.sleep(rng.choice((0.0, rng.random() * 0.05)))
    if process.exitcode is None and process.pid is not None:
        os.kill(process.pid, signal.SIGKILL)
    process.join()
    fault.times = 0
    fault.release.set()
    time.sleep(0.05)  # what it had asked for may still be waiting to be heard
    wait_for(lambda: threading.active_count() <= idle)
    found = hub.blobs(repo.name)
    kept = found.get(repo.etag(NAME), found.get(repo.etag(NAME) + download.PART_ENDING, 0))
    assert kept >= before, "what was kept was thrown away"
    return kept


def _pull(hub: World, repo: Repo) -> Result:
    """Pull; see that it ends soon, as it should, and in words that do no harm."""
    begun = time.monotonic()
    done = hub.run(*PULL)
    assert time.monotonic() - begun < MOST_S, "it took too long"
    assert done.code in (0, 1), done
    assert "localspec has a fault" not in done.err, done.err
    assert not {"\x1b", "\x9b", "\0"} & set(done.out + done.err), done
    if done.code == 0:
        path = hub.snapshot(repo.name, repo.commit, NAME)
        record = installed.find("one")
        assert record is not None, done.out
        assert record.target.path == path, record
        assert path.read_bytes() == repo.files[NAME], "another file"
    else:
        assert done.err.strip(), "no word of what is wrong"
    return done


@contextmanager
def _place(folder: Path, number: int) -> Iterator[Path]:
    place = folder / str(number)
    place.mkdir()
    yield place
    shutil.rmtree(place)


@contextmanager
def _hurried() -> Iterator[None]:
    """Pauses and deadlines as they are, but shorter."""
    with ExitStack() as stack:
        quick = functools.partial(RetryPolicy, pauses=(0.01,) * 6)
        stack.enter_context(mock.patch("localspec.cli.models.pull.RetryPolicy", quick))
        stack.enter_context(mock.patch("localspec.pairs.hub.retries.LONGEST_PAUSE", 0.2))
        for name in ("HEAD_S", "SLOW_S"):
            stack.enter_context(mock.patch.object(hub_body, name, 0.6))
        yield
