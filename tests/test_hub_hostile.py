"""Hostile Hubs and caches end in the right file or a refusal, soon, and nothing grows forever."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import os
import socket
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants

from localspec.errors import HubError, HubUnavailable
from localspec.pairs.hub import cache as hub_cache
from localspec.pairs.hub import client as hub
from localspec.pairs.hub import download
from localspec.pairs.hub import response_body as hub_body
from localspec.pairs.hub.client import RemoteFile
from localspec.pairs.hub.retries import RetryPolicy
from localspec.pairs.names import references
from tests.support import ggufs, hostile_hub
from tests.support.hub_world import World

ONE = references.parse("ann/One-GGUF")
NAME = "one-Q8_0.gguf"
QUICK = RetryPolicy(pauses=(0.0,))


@pytest.fixture
def one(hub_world: World) -> RemoteFile:
    repo = hub_world.server.add("ann/One-GGUF", {NAME: ggufs.model(n_bytes=800_000)})
    return RemoteFile(repo.name, repo.commit, NAME, repo.size(NAME), repo.etag(NAME))


def pull_it(hub_world: World) -> str:
    """The sha256 of the file in the cache after a pull that reports success."""
    done = hub_world.run("pull", "ann/One-GGUF", "--draft", "none")
    assert done.code == 0, done.err
    repo = hub_world.server.repos["ann/One-GGUF"]
    pulled = hub_world.snapshot(repo.name, repo.commit, NAME)
    return hashlib.sha256(pulled.read_bytes()).hexdigest()


# --- what is found in the cache ---------------------------------------------------------------


def _other(file: RemoteFile) -> bytes:
    """Another model of the same size."""
    return ggufs.model(n_bytes=800_000, seed=1)


def wrong_link(file: RemoteFile) -> None:
    other = hub_cache.blob_path(file).with_name("f" * 64)
    other.write_bytes(_other(file))
    hub_cache.snapshot_path(file).symlink_to(other)


def short_plain_file(file: RemoteFile) -> None:
    hub_cache.snapshot_path(file).write_bytes(ggufs.model()[:500])


def other_plain_file(file: RemoteFile) -> None:
    hub_cache.snapshot_path(file).write_bytes(_other(file))


def link_to_itself(file: RemoteFile) -> None:
    hub_cache.snapshot_path(file).symlink_to(hub_cache.snapshot_path(file))


def wrong_bytes(file: RemoteFile) -> None:
    hub_cache.blob_path(file).write_bytes(_other(file))


def wrong_bytes_with_a_link(file: RemoteFile) -> None:
    wrong_bytes(file)
    hub_cache.snapshot_path(file).symlink_to(hub_cache.blob_path(file))


def right_bytes_and_a_wrong_name(file: RemoteFile) -> None:
    hub_cache.blob_path(file).write_bytes(ggufs.model(n_bytes=800_000))
    short_plain_file(file)


@pytest.mark.parametrize(
    "plant",
    [
        *(wrong_link, short_plain_file, other_plain_file, wrong_bytes, wrong_bytes_with_a_link),
        *(right_bytes_and_a_wrong_name, link_to_itself),
    ],
)
def test_whatever_the_cache_holds_is_hashed_before_it_is_done(
    hub_world: World, one: RemoteFile, plant: Callable[[RemoteFile], None]
) -> None:
    hub_cache.prepare(one)
    plant(one)
    assert pull_it(hub_world) == one.sha256
    sent = hub_world.server.sent()
    pull_it(hub_world)
    assert hub_world.server.sent() == sent


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_a_pipe_in_place_of_a_part_is_refused(hub_world: World, one: RemoteFile) -> None:
    hub_cache.prepare(one)
    os.mkfifo(download.part_path(one))
    done = hub_world.run("pull", "ann/One-GGUF", "--draft", "none")
    assert done.code == 1
    assert "is not a file" in done.err


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_a_pipe_in_place_of_a_branch_is_passed_over(hub_world: World, one: RemoteFile) -> None:
    pull_it(hub_world)
    branch = hub_cache.repo_folder(one.repo) / "refs" / "main"
    branch.unlink()
    os.mkfifo(branch)
    found: list[Path] = []
    finder = threading.Thread(target=lambda: found.extend(hub_cache.find(ONE)), daemon=True)
    finder.start()
    finder.join(5)  # reading the pipe would never end
    assert found == [hub_cache.snapshot_path(one)]


def test_a_name_that_no_disk_takes_is_refused_before_the_download(hub_world: World) -> None:
    hub_world.server.add("ann/Long-GGUF", {"x" * 300 + ".gguf": ggufs.model()})
    done = hub_world.run("pull", "ann/Long-GGUF", "--draft", "none")
    assert done.code == 1
    assert "refused" in done.err
    assert hub_world.server.sent() == 0


# --- what the Hub says ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "told",
    [
        b"[1, 2]",
        b"[" * 100_000,
        b'{"id": "ann/One-GGUF", "sha": "%s", "x": %s}' % (b"0" * 40, b"[" * 100_000),
        b'{"id": "ann/One-GGUF", "sha": "%s", "siblings": [{"rfilename": "a", "size": %s}]}'
        % (b"0" * 40, b"9" * 400),
        b'{"id": "ann/One-GGUF", "sha": "%s", "siblings": {"a": 1}}' % (b"0" * 40),
        b'{"id": "ann/One-GGUF", "sha": "%s", "tags": [1]}' % (b"0" * 40),
        b'{"id": 1e999}',
        b"\xff\xfe",
    ],
)
def test_answers_of_another_shape_are_said(hub_world: World, told: bytes) -> None:
    hub_world.server.fault("/api/", status=200, body=told)
    with pytest.raises(HubUnavailable, match="does not answer like a Hub"):
        hub.look_up(ONE, QUICK)


@pytest.mark.parametrize("status", [401, 404, 500])
def test_the_text_of_an_error_is_not_needed(hub_world: World, status: int) -> None:
    for told in (b"[1, 2]", b"[" * 100_000, b"{" * 3, b'{"error": 3}'):
        hub_world.server.fault("/api/", status=status, body=told, times=2)
        with pytest.raises(HubError):
            hub.look_up(ONE, QUICK)


def test_what_an_error_says_may_be_no_text(hub_world: World, one: RemoteFile) -> None:
    hub_world.server.fault("/cdn/", status=403, headers={"X-Error-Message": "caf\xe9 \x9b2J"})
    done = hub_world.run("pull", "ann/One-GGUF", "--draft", "none")
    assert done.code == 1
    assert "has a fault" not in done.err
    assert "\x9b" not in done.err


@pytest.mark.parametrize("number", range(4))
def test_no_fault_of_a_server_ends_in_one_of_ours(number: int, tmp_path: Path) -> None:
    hostile_hub.attack_server(number, tmp_path)


@pytest.mark.parametrize("number", range(4))
def test_nothing_that_is_in_a_cache_ends_in_a_fault(number: int, tmp_path: Path) -> None:
    hostile_hub.attack_cache(number, tmp_path)


@pytest.mark.few(1)
@pytest.mark.parametrize("number", range(2))
def test_a_pull_that_is_killed_again_and_again_goes_on(number: int, tmp_path: Path) -> None:
    hostile_hub.attack_pull(number, tmp_path)


@pytest.mark.usefixtures("one")
def test_a_packed_answer_is_not_unpacked(hub_world: World) -> None:
    hub.look_up(ONE, QUICK)  # imports what it needs, 40 MB for a moment
    bomb = gzip.compress(bytes(20_000_000), 1)
    headers = {"Content-Encoding": "gzip"}
    hub_world.server.fault("/api/", status=200, body=bomb, headers=headers, times=9)
    tracemalloc.start()
    try:
        with pytest.raises(HubUnavailable, match="packs its answers"):
            hub.look_up(ONE, QUICK)
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
    finally:
        tracemalloc.stop()


def test_a_document_is_read_as_far_as_one_may_be(
    hub_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "MOST_TOLD", 1_000_000)
    hub_world.server.fault("/api/", status=200, body=b" " * 30_000_000)
    with pytest.raises(HubUnavailable, match="more than 1 MB"):
        hub.look_up(ONE, QUICK)


def test_redirects_end(hub_world: World, one: RemoteFile) -> None:
    headers = {"Location": f"{hub_world.server.url}/api/models/ann/One-GGUF/revision/main"}
    hub_world.server.fault("/api/", status=302, headers=headers, times=99)
    with pytest.raises(HubUnavailable, match="too many redirects"):
        hub.look_up(ONE, QUICK)
    assert len(hub_world.server.seen) == hub_body.MOST_REDIRECTS


def test_who_asks_to_wait_for_hours_is_not_waited_for(hub_world: World, one: RemoteFile) -> None:
    hub_world.server.fault("/cdn/", status=429, headers={"Retry-After": "7200"}, times=9)
    retries = RetryPolicy()
    patience = threading.Timer(5, retries.cancel.set)
    patience.start()
    with pytest.raises(HubUnavailable, match="429"):
        download.fetch(one, "main", retries, lambda _: None)
    patience.cancel()


def page(length: int = 3000, status: int = 200, **headers: str) -> dict[str, Any]:
    headers = {name.replace("_", "-"): value for name, value in headers.items()}
    return {"status": status, "body": b"<html>".ljust(length), "headers": headers}


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (page(), "sends 3,000 bytes in place of 8"),
        (page(2_000_000), "sends 2,000,000 bytes in place of 8"),
        (page(status=206, Content_Range="bytes 0-2999/3000"), "sends 3,000 bytes in place"),
        (
            {**page(Content_Type="text/html"), "chunked": True},
            "sends a web page in place",
        ),
    ],
)
@pytest.mark.parametrize("begun", [0, 5000])
def test_an_answer_of_another_length_is_not_taken_for_the_file(
    hub_world: World, one: RemoteFile, answer: dict[str, Any], said: str, begun: int
) -> None:
    hub_cache.prepare(one)
    content = hub_world.server.repos[one.repo].files[NAME]
    assert isinstance(content, bytes)
    download.part_path(one).write_bytes(content[:begun])
    hub_world.server.fault("/cdn/", **answer)
    with pytest.raises(HubUnavailable, match=said) as refused:
        download.fetch(one, "main", QUICK, lambda _: None)
    assert "proxy" in refused.value.remedy
    assert download.part_size(one) == begun
    download.fetch(one, "main", QUICK, lambda _: None)
    assert hub_world.server.sent() == one.size - begun


@contextlib.contextmanager
def dripping(head: bytes) -> Iterator[str]:
    """A server that sends `head`, then a byte every 50 ms; its address."""
    stopped = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.05)

        def serve() -> None:
            while not stopped.is_set():
                with contextlib.suppress(OSError), server.accept()[0] as client:
                    client.recv(65_536)
                    client.sendall(head)
                    while not stopped.wait(0.05):
                        client.sendall(b"x")

        threads = [threading.Thread(target=serve) for _ in range(4)]
        for thread in threads:
            thread.start()
        try:
            yield f"http://127.0.0.1:{server.getsockname()[1]}"
        finally:
            stopped.set()
            for thread in threads:
                thread.join()


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.1 200 OK\r\nX-Some: ",
        b"HTTP/1.1 200 OK\r\nContent-Length: SIZE\r\n\r\n",
        b"HTTP/1.1 302 Found\r\nLocation: /elsewhere\r\nContent-Length: 1000000\r\n\r\n",
        b"HTTP/1.1 500 Oh\r\nContent-Length: 1000000\r\n\r\n",
    ],
)
def test_an_answer_that_drips_has_an_end(
    hub_world: World, one: RemoteFile, monkeypatch: pytest.MonkeyPatch, head: bytes
) -> None:
    monkeypatch.setattr(hub_body, "HEAD_S", 0.15)
    monkeypatch.setattr(hub_body, "SLOW_S", 0.15)
    with dripping(head.replace(b"SIZE", b"%d" % one.size)) as url:
        monkeypatch.setattr(constants, "ENDPOINT", url)
        monkeypatch.setattr(
            constants, "HUGGINGFACE_CO_URL_TEMPLATE", url + "/{repo_id}/{revision}/{filename}"
        )
        for ask in (
            lambda: hub.look_up(ONE, QUICK),
            lambda: download.fetch(one, "main", QUICK, lambda _: None),
        ):
            began = time.monotonic()
            with pytest.raises(HubUnavailable):
                ask()
            assert time.monotonic() - began < 8
