"""`localspec pull` against a Hub on loopback: resumed, verified, shared, and refused in time."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import random
import shutil
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn

import pytest
from huggingface_hub import constants, hf_hub_download

from localspec import private
from localspec.errors import (
    Cancelled,
    DownloadCorrupt,
    HubUnavailable,
    LocalspecError,
    NotEnoughDisk,
    NotFetched,
    NotOnHub,
)
from localspec.pairs.disk import installed
from localspec.pairs.hub import cache as hub_cache
from localspec.pairs.hub import client as hub
from localspec.pairs.hub import download, pair_pull
from localspec.pairs.hub import response_body as hub_body
from localspec.pairs.hub.client import RemoteFile
from localspec.pairs.hub.download import FileProgress
from localspec.pairs.hub.pair_pull import PullRequest
from localspec.pairs.hub.retries import RetryPolicy
from localspec.pairs.names import catalogue, references, resolver
from localspec.pairs.names.references import Reference
from tests.support import ggufs, toy
from tests.support.hub_server import CERTIFICATE, Repo
from tests.support.hub_world import World
from tests.support.proxy import proxy
from tests.support.waiting import wait_for

QUICK = RetryPolicy(pauses=(0.0, 0.0, 0.0))
BIG = 2_000_000 // 32 * 32


@pytest.fixture
def pair(hub_world: World) -> tuple[Repo, Repo]:
    """A target of 2 MB and a draft that fits it."""
    target = hub_world.server.add("ann/Big-GGUF", {"big-Q4_K_M.gguf": ggufs.model(n_bytes=BIG)})
    draft = hub_world.server.add("ann/Small-GGUF", {"small-Q8_0.gguf": ggufs.model(seed=1)})
    return target, draft


def remote(repo: Repo, name: str) -> RemoteFile:
    return RemoteFile(repo.name, repo.commit, name, repo.size(name), repo.etag(name))


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def ignore(progress: FileProgress) -> None:
    """Ignore the progress."""


# --- a pull that works ------------------------------------------------------------------------


def test_a_pair_is_pulled_recorded_and_found(hub_world: World, pair: tuple[Repo, Repo]) -> None:
    target, draft = pair
    done = hub_world.run("pull", "ann/Big-GGUF", "--draft", "ann/Small-GGUF", "--name", "mine")
    assert done.code == 0, done.err
    assert "installed as mine" in done.out
    found = resolver.resolve("mine")
    assert sha256(found.target) == target.sha256("big-Q4_K_M.gguf")
    assert found.draft is not None
    assert sha256(found.draft) == draft.sha256("small-Q8_0.gguf")
    assert not [name for name in hub_world.blobs(target.name) if "incomplete" in name]


def test_the_demo_pair_makes_the_journey(
    hub_world: World, toy_target: Path, toy_draft: Path
) -> None:
    target = hub_world.server.add("ann/Demo-GGUF", {toy_target.name: toy_target})
    draft = hub_world.server.add("ann/Demo-Draft-GGUF", {toy_draft.name: toy_draft})
    done = hub_world.run("pull", "ann/Demo-GGUF", "--draft", "ann/Demo-Draft-GGUF")
    assert done.code == 0, done.err
    assert "installed as pair-demo:" in done.out
    found = resolver.resolve("pair-demo")
    assert found.draft is not None
    assert sha256(found.target) == target.sha256(toy_target.name)
    assert sha256(found.draft) == draft.sha256(toy_draft.name)


def test_files_end_where_the_library_and_llama_cpp_look(
    hub_world: World, pair: tuple[Repo, Repo]
) -> None:
    target, _ = pair
    hub_world.run("pull", "ann/Big-GGUF", "--draft", "none")
    sent = hub_world.server.sent()
    path = Path(hf_hub_download("ann/Big-GGUF", "big-Q4_K_M.gguf"))
    assert path == hub_world.snapshot("ann/Big-GGUF", target.commit, "big-Q4_K_M.gguf")
    assert path.is_symlink()
    assert path.resolve().name == target.sha256("big-Q4_K_M.gguf")
    folder = hub_world.cache / "models--ann--Big-GGUF"
    assert (folder / "refs" / "main").read_text() == target.commit
    assert hub_world.server.sent() == sent


def test_backups_may_skip_the_cache(hub_world: World, pair: tuple[Repo, Repo]) -> None:
    hub_cache.prepare(remote(pair[0], "big-Q4_K_M.gguf"))
    tag = hub_world.cache / "CACHEDIR.TAG"
    assert tag.read_text().startswith("Signature: 8a477f597d28d172789f06886806bc55")


def test_what_the_library_has_fetched_is_not_fetched_again(
    hub_world: World, pair: tuple[Repo, Repo]
) -> None:
    hf_hub_download("ann/Big-GGUF", "big-Q4_K_M.gguf")
    sent = hub_world.server.sent("Big-GGUF")
    done = hub_world.run("pull", "ann/Big-GGUF", "--draft", "none")
    assert done.code == 0, done.err
    assert hub_world.server.sent("Big-GGUF") == sent


def test_a_second_pull_fetches_nothing(hub_world: World, pair: tuple[Repo, Repo]) -> None:
    arguments = ("pull", "ann/Big-GGUF", "--draft", "ann/Small-GGUF")
    assert hub_world.run(*arguments).code == 0
    sent = hub_world.server.sent()
    again = hub_world.run(*arguments)
    assert again.code == 0
    assert "installed as big:" in again.out
    assert hub_world.server.sent() == sent
    assert [one.name for one in installed.all_pairs()] == ["big"]


def test_dry_run_reports_and_fetches_no_weights(hub_world: World, pair: tuple[Repo, Repo]) -> None:
    done = hub_world.run("pull", "ann/Big-GGUF", "--draft", "ann/Small-GGUF", "--dry-run")
    assert done.code == 0, done.err
    for word in ("target", "draft", "vocabulary  matches", "memory", "licence     apache-2.0"):
        assert word in done.out
    assert "2 MB to fetch" in done.out
    assert hub_world.blobs("ann/Big-GGUF") == {}
    assert hub_world.server.sent("Big-GGUF") <= 256 * 1024
    assert installed.all_pairs() == []


def test_a_split_model_is_fetched_whole(hub_world: World) -> None:
    files = ggufs.split_model("q8/deep-Q8_0", 3)
    repo = hub_world.server.add("ann/Deep-GGUF", dict(files))
    done = hub_world.run("pull", "ann/Deep-GGUF:Q8_0", "--draft", "none")
    assert done.code == 0, done.err
    found = resolver.resolve("deep")
    assert found.target.name == "deep-Q8_0-00001-of-00003.gguf"
    for name in files:
        assert sha256(hub_world.snapshot(repo.name, repo.commit, name)) == repo.sha256(name)


def test_a_local_target_takes_a_draft_from_the_hub(
    hub_world: World, pair: tuple[Repo, Repo], tmp_path: Path
) -> None:
    path = tmp_path / "own.gguf"
    path.write_bytes(ggufs.model(seed=7))
    done = hub_world.run("pull", str(path), "--draft", "ann/Small-GGUF", "--name", "half")
    assert done.code == 0, done.err
    assert resolver.resolve("half").target == path
    removed = hub_world.run("rm", "half")
    assert removed.code == 0
    assert path.exists()
    assert "your own file" in removed.out


def test_a_revision_is_pinned_and_recorded(hub_world: World, pair: tuple[Repo, Repo]) -> None:
    target, _ = pair
    target.branches = ("main", "v1", "refs/pr/3")
    for revision in ("v1", "refs/pr/3", target.commit):
        done = hub_world.run("pull", f"ann/Big-GGUF@{revision}", "--draft", "none")
        assert done.code == 0, done.err
        assert resolver.resolve(f"ann/Big-GGUF@{revision}").target.exists()
    record = installed.find("big")
    assert record is not None
    assert record.target.reference == f"ann/Big-GGUF:big-Q4_K_M.gguf@{target.commit}"


def test_a_file_kept_in_git_itself_is_verified_by_gits_hash(hub_world: World) -> None:
    repo = hub_world.server.add("ann/Tiny", {"tiny.gguf": ggufs.model()}, lfs=False)
    assert hub_world.run("pull", "ann/Tiny", "--draft", "none").code == 0
    assert list(hub_world.blobs("ann/Tiny")) == [repo.etag("tiny.gguf")]
    hub_world.run("rm", "tiny")
    hub_world.server.fault("/cdn/ann/Tiny", flip_at=5000)
    fetched = remote(repo, "tiny.gguf")
    with pytest.raises(DownloadCorrupt):
        download.fetch(fetched, "main", QUICK, ignore)


def test_an_installed_pair_is_pulled_again_whatever_its_files_are(hub_world: World) -> None:
    hub_world.server.add("ann/Tiny", {"tiny.gguf": ggufs.model()}, lfs=False)
    assert hub_world.run("pull", "ann/Tiny", "--draft", "none").code == 0
    sent = hub_world.server.sent()
    for arguments in (("tiny",), ("tiny", "--draft", "ann/Tiny", "--name", "twice")):
        done = hub_world.run("pull", *arguments)
        assert done.code == 0, done.err
    assert hub_world.server.sent() == sent
    assert "in all 8.93 kB of 8.93 kB" in done.err  # one file, though pulled under two revisions


@pytest.mark.usefixtures("pair")
def test_a_pull_whose_record_cannot_be_read_at_its_end_has_succeeded(
    hub_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    save = installed.save

    def saved(record: installed.InstalledPair) -> None:
        save(record)
        monkeypatch.setattr(private, "read_to_change", busy)

    def busy(*_: object) -> NoReturn:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(installed, "save", saved)
    done = hub_world.run("pull", "ann/Big-GGUF", "--draft", "none")
    assert done.code == 0, done.err
    assert installed.find("big") is not None


def test_files_in_the_cache_of_another_home_are_not_fetched_again(
    hub_world: World, pair: tuple[Repo, Repo], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert hub_world.run("pull", "ann/Big-GGUF", "--draft", "none").code == 0
    sent = hub_world.server.sent("Big-GGUF")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "other"))
    done = hub_world.run("pull", "big", "--draft", "ann/Small-GGUF", "--name", "mixed")
    assert done.code == 0, done.err
    assert hub_world.server.sent("Big-GGUF") == sent
    found = resolver.resolve("mixed")
    assert hub_world.cache in found.target.parents
    assert found.draft is not None
    assert tmp_path / "other" in found.draft.parents


def test_the_command_line_obeys_the_environment(hub_world: World, pair: tuple[Repo, Repo]) -> None:
    pair[0].private = True
    token = hub_world.server.token
    arguments = ("pull", "ann/Big-GGUF", "--draft", "ann/Small-GGUF")
    done = hub_world.run_outside(*arguments, HF_TOKEN=token, DO_NOT_TRACK="", CLAUDECODE="1")
    assert done.code == 0, done.err
    # Nothing is asked but models and their files, such as for a list of agents to tell who asks.
    assert {seen.path.split("/")[1] for seen in hub_world.server.seen} == {"api", "ann", "cdn"}
    assert all("/models/" in s.path for s in hub_world.server.seen if s.path.startswith("/api/"))
    assert hub_world.blobs("ann/Big-GGUF") == {
        pair[0].etag("big-Q4_K_M.gguf"): pair[0].size("big-Q4_K_M.gguf")
    }
    # The storage host gets no token.
    assert {seen.authorization for seen in hub_world.server.bodies()} == {""}
    assert any(seen.authorization == f"Bearer {token}" for seen in hub_world.server.seen)
    rows = json.loads(hub_world.run("list", "--json").out)
    assert {row["name"]: row["state"] for row in rows["pairs"]}["big"] == "installed"


@pytest.mark.slow
@pytest.mark.usefixtures("pair")
def test_what_is_here_is_pulled_offline(hub_world: World) -> None:
    arguments = ("pull", "ann/Big-GGUF", "--draft", "ann/Small-GGUF")
    assert hub_world.run(*arguments).code == 0
    hub_world.server.seen.clear()
    offline = hub_world.run_outside(*arguments, HF_HUB_OFFLINE="1")
    assert offline.code == 0, offline.err
    assert hub_world.server.seen == []


# --- stopped and continued --------------------------------------------------------------------


def kill_at(world_: World, repo: Repo, name: str, point: int, *arguments: str) -> int:
    """Start a pull, kill it once about `point` bytes are on disk, and return their exact number."""
    fault = world_.server.fault(f"/cdn/{repo.name}", hold_after=point, whole=True)
    process = world_.start(*arguments)
    part = f"{repo.etag(name)}{download.PART_ENDING}"
    least = point - 2 * (1 << 18)  # one block may be in memory, and one on its way
    wait_for(lambda: world_.blobs(repo.name).get(part, -1) >= least and fault.reached.is_set())
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    fault.release.set()
    return world_.blobs(repo.name)[part]


@pytest.mark.few(1)
@pytest.mark.parametrize("seed", range(10))
def test_a_killed_pull_continues_where_it_was(
    hub_world: World, pair: tuple[Repo, Repo], seed: int
) -> None:
    target, _ = pair
    name = "big-Q4_K_M.gguf"
    point = random.Random(seed).randrange(600_000, target.size(name))
    arguments = ("pull", "ann/Big-GGUF", "--draft", "none")
    kept = kill_at(hub_world, target, name, point, *arguments)
    assert catalogue_error("ann/Big-GGUF")
    hub_world.server.seen.clear()
    done = hub_world.run(*arguments)
    assert done.code == 0, done.err
    asked = [seen.range for seen in hub_world.server.bodies("Big-GGUF")]
    assert asked == [f"bytes={kept}-"]
    assert hub_world.server.sent("Big-GGUF") == target.size(name) - kept
    found = resolver.resolve("big")
    assert sha256(found.target) == target.sha256(name)


def catalogue_error(text: str) -> bool:
    """Whether `text` is not taken for something on this disk."""
    try:
        resolver.resolve(text)
    except NotOnHub:
        return True
    return False


def test_two_pulls_at_once_fetch_once(hub_world: World, pair: tuple[Repo, Repo]) -> None:
    target, _ = pair
    name = "big-Q4_K_M.gguf"
    fault = hub_world.server.fault("/cdn/ann/Big-GGUF", hold_after=600_000, whole=True)
    arguments = ("pull", "ann/Big-GGUF", "--draft", "none")
    first = hub_world.start(*arguments)
    wait_for(fault.reached.is_set)
    second = hub_world.start(*arguments)
    wait_for(lambda: len([seen for seen in hub_world.server.seen if "/api/" in seen.path]) == 2)
    fault.release.set()
    for process in (first, second):
        process.join(30)
        assert process.exitcode == 0
    whole = [seen for seen in hub_world.server.bodies("Big-GGUF") if not seen.range]
    assert len(whole) == 1
    assert sha256(resolver.resolve("big").target) == target.sha256(name)


def test_two_pulls_of_one_name_at_once_record_both(
    hub_world: World, pair: tuple[Repo, Repo]
) -> None:
    other = hub_world.server.add("bob/Big-GGUF", {"big-Q4_K_M.gguf": ggufs.model(seed=5)})
    fault = hub_world.server.fault("/cdn/ann/Big-GGUF", hold_after=600_000, whole=True)
    slow = hub_world.start("pull", "ann/Big-GGUF", "--draft", "none")
    wait_for(fault.reached.is_set)
    assert hub_world.run("pull", "bob/Big-GGUF", "--draft", "none").code == 0
    fault.release.set()
    slow.join(30)
    assert slow.exitcode == 0
    named = {one.name: one.target.repo for one in installed.all_pairs()}
    assert named == {"big": other.name, "big-2": "ann/Big-GGUF"}


def test_a_cut_connection_is_tried_again_with_growing_pauses(
    hub_world: World, pair: tuple[Repo, Repo]
) -> None:
    target, _ = pair
    file = remote(target, "big-Q4_K_M.gguf")
    for _ in range(3):
        hub_world.server.fault("/cdn/ann/Big-GGUF", cut_after=500_000)
    retries = Recorded(pauses=(0.01, 0.02, 0.04, 0.08))
    phases: list[str] = []
    path = download.fetch(file, "main", retries, lambda one: phases.append(one.phase))
    assert sha256(path) == file.etag
    assert retries.waited == [0.01, 0.02, 0.04]
    assert phases.count("pausing") == 3
    assert hub_world.server.sent() == file.size
    starts = [seen.range for seen in hub_world.server.bodies()]
    assert starts == ["", "bytes=500000-", "bytes=1000000-", "bytes=1500000-"]


class Recorded(RetryPolicy):
    """Patience that writes down its pauses instead of making them."""

    def __init__(self, pauses: tuple[float, ...]) -> None:
        super().__init__(pauses)
        object.__setattr__(self, "waited", [])

    waited: list[float]

    def wait(self, seconds: float) -> None:
        self.waited.append(seconds)


def test_it_gives_up_when_nothing_comes_at_all(hub_world: World, pair: tuple[Repo, Repo]) -> None:
    file = remote(pair[0], "big-Q4_K_M.gguf")
    hub_world.server.fault("/cdn/ann/Big-GGUF", cut_after=0, times=99)
    with pytest.raises(HubUnavailable) as caught:
        download.fetch(file, "main", QUICK, ignore)
    assert "continues" in caught.value.remedy
    assert len(hub_world.server.bodies()) == 1 + len(QUICK.pauses)


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_busy_server_is_asked_again(
    hub_world: World, pair: tuple[Repo, Repo], status: int
) -> None:
    file = remote(pair[0], "big-Q4_K_M.gguf")
    hub_world.server.fault("/cdn/", status=status, headers={"Retry-After": "7"}, times=2)
    retries = Recorded(pauses=(0.5, 1.0, 2.0))
    assert sha256(download.fetch(file, "main", retries, ignore)) == file.etag
    assert retries.waited == [7.0, 7.0]


@pytest.mark.parametrize(
    ("status", "seconds", "waited"),
    [
        (429, "7", [7]),
        (429, "299", [299]),
        (429, "0", [3]),
        (429, "9" * 5000, [3]),
        (503, "299", [3]),
    ],
)
def test_the_hubs_own_limit_of_requests_says_how_long_to_wait(
    hub_world: World, pair: tuple[Repo, Repo], status: int, seconds: str, waited: list[float]
) -> None:
    file = remote(pair[0], "big-Q4_K_M.gguf")
    limit = {"RateLimit": f'"resolvers";r=0;t={seconds}', "Retry-After": "3"}
    hub_world.server.fault("/resolve/", status=status, headers=limit)
    retries = Recorded(pauses=(0.5, 1.0, 2.0))
    notes: list[str] = []
    download.fetch(file, "main", retries, lambda one: notes.append(one.note))
    assert retries.waited == waited
    told = "trying again in 4 min 59 s: " if waited == [299] else f"trying again in {waited[0]} s: "
    assert any(note.startswith(told) for note in notes)


@pytest.mark.parametrize(("seconds", "when"), [("180", "3 min 00 s"), ("9" * 200, "2")])
def test_a_pause_that_cannot_be_told_is_left_to_the_user(
    hub_world: World, pair: tuple[Repo, Repo], seconds: str, when: str
) -> None:
    limit = {"RateLimit": f'"api";r=0;t={seconds}'}
    hub_world.server.fault("/api/", status=429, headers=limit)
    retries = Recorded(pauses=(0.5,))
    with pytest.raises(HubUnavailable, match="fewer requests") as caught:
        hub.look_up(Reference(pair[0].name), retries)
    assert not retries.waited
    assert caught.value.remedy.startswith(f"Wait for {when}")
    assert "continues" in caught.value.remedy


def test_a_pause_is_told_while_a_repository_is_looked_at_and_ends_with_a_stop(
    hub_world: World, pair: tuple[Repo, Repo]
) -> None:
    limit = {"RateLimit": '"api";r=0;t=180'}
    hub_world.server.fault("/api/models/", status=429, headers=limit)
    notes: list[str] = []

    def note(text: str) -> None:
        notes.append(text)
        retries.cancel.set()

    retries = RetryPolicy(note=note)
    with pytest.raises(Cancelled):
        hub.look_up(Reference(pair[0].name), retries)
    (told,) = notes
    assert told.startswith("trying again in 3 min 00 s: ")


def test_a_server_without_ranges_starts_from_the_beginning(
    hub_world: World, pair: tuple[Repo, Repo]
) -> None:
    file = remote(pair[0], "big-Q4_K_M.gguf")
    hub_world.server.fault("/cdn/", cut_after=700_000)
    hub_world.server.fault("/cdn/", ignore_range=True)
    assert sha256(download.fetch(file, "main", QUICK, ignore)) == file.etag


def test_a_huge_file_is_asked_for_in_ranges_as_storage_refuses_it_whole(
    hub_world: World, pair: tuple[Repo, Repo], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = remote(pair[0], "big-Q4_K_M.gguf")
    monkeypatch.setattr(download, "MOST_AT_ONCE", 800_000)
    hub_world.server.fault("/cdn/", status=400, whole=True, times=9)
    hub_world.server.fault("/cdn/", cut_after=300_000)
    assert sha256(download.fetch(file, "main", QUICK, ignore)) == file.etag
    asked = [seen.range for seen in hub_world.server.bodies()]
    cut, *whole = ["bytes=0-799999", "bytes=300000-1099999", "bytes=1100000-1899999"]
    assert asked == [cut, *whole, "bytes=1900000-"]
    assert hub_world.server.sent() == file.size


def test_a_body_of_unsaid_length_is_read_and_continued(
    hub_world: World, pair: tuple[Repo, Repo]
) -> None:
    file = remote(pair[0], "big-Q4_K_M.gguf")
    hub_world.server.fault("/cdn/", chunked=True, cut_after=700_000)
    hub_world.server.fault("/cdn/", chunked=True)
    assert sha256(download.fetch(file, "main", QUICK, ignore)) == file.etag
    assert [seen.range for seen in hub_world.server.bodies()] == ["", "bytes=700000-"]


def test_what_was_pushed_out_keeps_every_byte(
    hub_world: World, pair: tuple[Repo, Repo], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = remote(pair[0], "big-Q4_K_M.gguf")
    monkeypatch.setattr(download, "_PUSH_EVERY", 120_000)
    hub_world.server.fault("/cdn/", cut_after=700_001)
    hub_world.server.fault("/cdn/", ignore_range=True, cut_after=1_500_001)
    path = download.fetch(file, "main", QUICK, ignore)
    assert sha256(path) == file.etag
    assert [seen.range for seen in hub_world.server.bodies()][2] == "bytes=1500001-"


def test_a_slow_server_is_a_cut_connection(
    hub_world: World, pair: tuple[Repo, Repo], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_DOWNLOAD_TIMEOUT", 0.2)
    file = remote(pair[0], "big-Q4_K_M.gguf")
    fault = hub_world.server.fault("/cdn/", hold_after=300_000, whole=True)
    phases: list[str] = []
    path = download.fetch(file, "main", QUICK, lambda one: phases.append(one.note))
    fault.release.set()
    assert sha256(path) == file.etag
    assert any("did not answer in time" in note for note in phases)


def test_cancelling_keeps_what_came(hub_world: World, pair: tuple[Repo, Repo]) -> None:
    file = remote(pair[0], "big-Q4_K_M.gguf")
    retries = RetryPolicy(pauses=(0.0,))
    fault = hub_world.server.fault("/cdn/", hold_after=900_000)

    def stop() -> None:
        wait_for(lambda: download.part_size(file) > 400_000)
        retries.cancel.set()

    stopper = threading.Thread(target=stop)
    stopper.start()
    with pytest.raises(Cancelled):  # while nothing comes any more
        download.fetch(file, "main", retries, ignore)
    stopper.join()
    fault.release.set()
    assert not hub_cache.has_blob(file)
    kept = download.part_size(file)
    assert 0 < kept < file.size
    assert sha256(download.fetch(file, "main", QUICK, ignore)) == file.etag
    assert hub_world.server.bodies()[-1].range == f"bytes={kept}-"


def test_an_interrupt_keeps_what_came_and_says_so(
    hub_world: World, pair: tuple[Repo, Repo]
) -> None:
    target, _ = pair
    fault = hub_world.server.fault("/cdn/ann/Big-GGUF", hold_after=1_000_000, whole=True)
    process = hub_world.start("pull", "ann/Big-GGUF", "--draft", "none")
    wait_for(fault.reached.is_set)
    part = f"{target.etag('big-Q4_K_M.gguf')}{download.PART_ENDING}"
    wait_for(lambda: hub_world.blobs(target.name).get(part, 0) > 400_000)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGINT)
    process.join(20)
    fault.release.set()
    assert process.exitcode == 130
    log = next(hub_world.home.parent.glob("log-*")).read_text()
    assert "the same command continues" in log
    assert "Traceback" not in log


@pytest.mark.slow
def test_a_cache_without_links_works(
    hub_world: World, pair: tuple[Repo, Repo], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_SYMLINKS", True)
    arguments = ("pull", "ann/Big-GGUF", "--draft", "none")
    assert hub_world.run(*arguments).code == 0
    path = resolver.resolve("big").target
    assert not path.is_symlink()
    assert sha256(path) == pair[0].sha256("big-Q4_K_M.gguf")
    sent = hub_world.server.sent()
    again = hub_world.run(*arguments)
    assert "nothing is to be fetched" in again.out
    assert hub_world.server.sent() == sent
    offline = hub_world.run_outside(*arguments, "--name", "other", HF_HUB_OFFLINE="1")
    assert offline.code == 0, offline.err
    assert resolver.resolve("other").target == path
    assert hub_world.run("rm", "other").code == 0
    assert "2 MB freed" in hub_world.run("rm", "big").out
    assert not path.exists()


def test_progress_adds_up(hub_world: World, pair: tuple[Repo, Repo]) -> None:
    plan = pair_pull.plan(PullRequest("ann/Big-GGUF", "ann/Small-GGUF"), QUICK)
    seen: list[pair_pull.PullProgress] = []
    pair_pull.execute(plan, QUICK, seen.append)
    assert seen[0].done == 0
    assert seen[-1].done == seen[-1].total == plan.report.n_bytes
    assert [one.done for one in seen] == sorted(one.done for one in seen)
    assert {one.file.name for one in seen} == {"big-Q4_K_M.gguf", "small-Q8_0.gguf"}


def test_the_time_left_is_that_of_the_missing_bytes(
    hub_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = iter(range(10))
    clock = SimpleNamespace(monotonic=lambda: float(next(seconds)))
    monkeypatch.setattr(pair_pull, "time", clock)
    file = RemoteFile("ann/One-GGUF", "0" * 40, "one.gguf", 100, "1" * 64)
    seen: list[pair_pull.PullProgress] = []
    meter = pair_pull._PullMeter([file], seen.append)
    for done in (10, 30):
        meter.tell(FileProgress(file.name, file.etag, "fetching", done, file.size, fetched=done))
    assert [(one.bytes_per_second, one.seconds_left) for one in seen] == [(0.0, None), (20.0, 3.5)]


@pytest.mark.slow
def test_over_tls_it_is_read_in_pauses_and_certificates_count(
    hub_world: World, pair: tuple[Repo, Repo]
) -> None:
    target, _ = pair
    hub_world.server.use_tls()
    fault = hub_world.server.fault("/cdn/ann/Big-GGUF", hold_after=900_000, whole=True)
    # Longer than one of the short waits, so that a record is read in several.
    releaser = threading.Timer(3 * hub_body.STEP_S, fault.release.set)
    threading.Thread(target=lambda: fault.reached.wait(30) and releaser.start()).start()
    arguments = ("pull", "ann/Big-GGUF", "--draft", "none")
    done = hub_world.run_outside(*arguments, SSL_CERT_FILE=str(CERTIFICATE))
    assert done.code == 0, done.err
    assert sha256(resolver.resolve("big").target) == target.sha256("big-Q4_K_M.gguf")
    assert [seen.range for seen in hub_world.server.bodies() if seen.sent > 500_000] == [""]
    refused = hub_world.run_outside("pull", "ann/Small-GGUF", "--draft", "none")
    assert refused.code == 1
    assert "CERTIFICATE_VERIFY_FAILED" in refused.err
    assert "SSL_CERT_FILE" in refused.err
    assert "Traceback" not in refused.err


@pytest.mark.slow
@pytest.mark.parametrize("tls", [pytest.param(False, marks=pytest.mark.slow), True])
def test_through_a_proxy_certificates_count_and_the_token_goes_to_the_hub_alone(
    hub_world: World, pair: tuple[Repo, Repo], tls: bool
) -> None:
    target, _ = pair
    server = hub_world.server
    server.use_tls()
    server.fault("/cdn/ann/Big-GGUF", cut_after=900_000, whole=True)
    arguments = ("pull", "ann/Big-GGUF", "--draft", "none")
    settings = {"NO_PROXY": "", "no_proxy": "", "HF_TOKEN": server.token}
    with proxy(tls) as between:
        settings |= {"HTTPS_PROXY": between.url, "https_proxy": between.url}
        refused = hub_world.run_outside(*arguments, **settings)
        assert "CERTIFICATE_VERIFY_FAILED" in refused.err
        assert not server.seen
        done = hub_world.run_outside(*arguments, **settings, SSL_CERT_FILE=str(CERTIFICATE))
    assert done.code == 0, done.err
    assert sha256(resolver.resolve("big").target) == target.sha256("big-Q4_K_M.gguf")
    places = {url.removeprefix("https://") for url in (server.url, server.storage_url)}
    assert set(between.asked) == places
    assert server.token not in "".join(between.heads)
    assert {seen.authorization for seen in server.bodies()} == {""}
    # On a busy machine the header or the rest may take a second request, but no byte that has
    # arrived is requested again.
    ranges = [seen.range for seen in server.bodies()]
    assert [*dict.fromkeys(ranges)] == ["bytes=0-262143", "", "bytes=900000-"]


# --- wrong bytes, full disks, hostile names ---------------------------------------------------


def test_wrong_bytes_are_thrown_away_and_said(hub_world: World, pair: tuple[Repo, Repo]) -> None:
    hub_world.server.fault("/cdn/ann/Big-GGUF", flip_at=1_500_000, times=2)
    done = hub_world.run("pull", "ann/Big-GGUF", "--draft", "none")
    assert done.code == 1
    assert "thrown away" in done.err
    assert "Traceback" not in done.err
    assert hub_world.blobs("ann/Big-GGUF") == {}
    assert installed.all_pairs() == []
    assert hub_world.run("pull", "ann/Big-GGUF", "--draft", "none").code == 0


def test_a_spoilt_part_is_found_out(hub_world: World, pair: tuple[Repo, Repo]) -> None:
    file = remote(pair[0], "big-Q4_K_M.gguf")
    hub_cache.prepare(file)
    download.part_path(file).write_bytes(b"\1" * 1_000_000)
    with pytest.raises(DownloadCorrupt):
        download.fetch(file, "main", QUICK, ignore)
    assert sha256(download.fetch(file, "main", QUICK, ignore)) == file.etag


@pytest.mark.parametrize(("kept", "zeros"), [(700_000, 1), (700_000, 1_200_000), (0, 5)])
def test_zeros_that_a_power_cut_left_at_the_end_of_a_part_are_fetched_again(
    hub_world: World, pair: tuple[Repo, Repo], kept: int, zeros: int
) -> None:
    file = remote(pair[0], "big-Q4_K_M.gguf")
    content = pair[0].files[file.name]
    assert isinstance(content, bytes)
    hub_cache.prepare(file)
    download.part_path(file).write_bytes(content[:kept] + bytes(zeros))
    assert sha256(download.fetch(file, "main", QUICK, ignore)) == file.etag
    assert hub_world.server.sent("Big-GGUF") == file.size - kept


def test_a_look_for_zeros_can_be_stopped(hub_world: World, pair: tuple[Repo, Repo]) -> None:
    file = remote(pair[0], "big-Q4_K_M.gguf")
    hub_cache.prepare(file)
    part = download.part_path(file)
    part.write_bytes(bytes(1_200_000))
    stopped = RetryPolicy()
    stopped.cancel.set()
    with pytest.raises(Cancelled):
        download._Fetching(file, stopped, ignore).run()
    assert part.stat().st_size == 1_200_000


def test_a_part_that_is_too_long_is_begun_anew(hub_world: World, pair: tuple[Repo, Repo]) -> None:
    file = remote(pair[0], "big-Q4_K_M.gguf")
    hub_cache.prepare(file)
    download.part_path(file).write_bytes(bytes(file.size + 1))
    assert sha256(download.fetch(file, "main", QUICK, ignore)) == file.etag


def test_a_blob_of_the_wrong_size_is_replaced(hub_world: World, pair: tuple[Repo, Repo]) -> None:
    file = remote(pair[0], "big-Q4_K_M.gguf")
    hub_cache.prepare(file)
    hub_cache.blob_path(file).write_bytes(b"cut off")
    assert sha256(download.fetch(file, "main", QUICK, ignore)) == file.etag


def test_a_disk_that_takes_no_larger_file_keeps_the_part(
    hub_world: World, pair: tuple[Repo, Repo]
) -> None:
    target, draft = pair
    assert hub_world.run("pull", "ann/Small-GGUF", "--draft", "none", "--name", "other").code == 0
    arguments = ("pull", "ann/Big-GGUF", "--draft", "none")
    process = hub_world.start(*arguments, limit=1_000_000)
    process.join(30)
    assert process.exitcode == 1
    log = next(hub_world.home.parent.glob("log-*")).read_text()
    assert "no file may be as large on this disk: 1 MB of big-Q4_K_M.gguf" in log
    assert "Traceback" not in log
    part = f"{target.etag('big-Q4_K_M.gguf')}{download.PART_ENDING}"
    assert hub_world.blobs(target.name) == {part: 1_000_000}
    assert sha256(resolver.resolve("other").target) == draft.sha256("small-Q8_0.gguf")
    hub_world.server.seen.clear()
    assert hub_world.run(*arguments).code == 0
    assert [seen.range for seen in hub_world.server.bodies()] == ["bytes=1000000-"]
    assert sha256(resolver.resolve("big").target) == target.sha256("big-Q4_K_M.gguf")


def test_too_little_room_is_said_before_anything_moves(
    hub_world: World, pair: tuple[Repo, Repo], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_cache, "free_bytes", lambda folder: 1_000_000)
    done = hub_world.run("pull", "ann/Big-GGUF", "--draft", "none")
    assert done.code == 1
    assert "2 MB are to be fetched and 1 MB are free" in done.err
    assert hub_world.blobs("ann/Big-GGUF") == {}
    plan = pair_pull.plan(PullRequest("ann/Big-GGUF", "none"), QUICK)
    with pytest.raises(NotEnoughDisk):
        pair_pull.execute(plan, QUICK, lambda one: None)


@pytest.mark.parametrize(
    "name", ["../../../escape.gguf", "/tmp/escape.gguf", "a/../../b.gguf", "a\\b.gguf", "c:b.gguf"]
)
def test_file_names_that_leave_the_cache_are_refused(hub_world: World, name: str) -> None:
    hub_world.server.add("eve/Bad-GGUF", {name: ggufs.model()})
    done = hub_world.run("pull", "eve/Bad-GGUF", "--draft", "none")
    assert done.code == 1
    assert "refused" in done.err
    assert hub_world.server.bodies() == []
    assert not list(hub_world.home.parent.rglob("*.gguf"))


def test_a_link_in_the_cache_that_leads_out_of_it_is_refused(
    hub_world: World, pair: tuple[Repo, Repo], tmp_path: Path
) -> None:
    target, _ = pair
    outside = tmp_path / "outside"
    outside.mkdir()
    folder = hub_world.cache / "models--ann--Big-GGUF" / "snapshots"
    folder.mkdir(parents=True)
    (folder / target.commit).symlink_to(outside)
    done = hub_world.run("pull", "ann/Big-GGUF", "--draft", "none")
    assert done.code == 1
    assert "leads out of the cache" in done.err
    assert list(outside.iterdir()) == []


def test_a_part_that_is_a_link_is_not_written_through(
    hub_world: World, pair: tuple[Repo, Repo], tmp_path: Path
) -> None:
    file = remote(pair[0], "big-Q4_K_M.gguf")
    hub_cache.prepare(file)
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    download.part_path(file).symlink_to(victim)
    done = hub_world.run("pull", "ann/Big-GGUF", "--draft", "none")
    assert done.code == 1
    assert victim.read_bytes() == b"precious"


def test_a_part_whose_header_is_damaged_is_no_dead_end(
    hub_world: World, pair: tuple[Repo, Repo]
) -> None:
    file = remote(pair[0], "big-Q4_K_M.gguf")
    part = download.part_path(file)
    part.parent.mkdir(parents=True)
    part.write_bytes(bytes(999_999) + b"\1")  # zeros, but not at its end, which are fetched again
    arguments = ("pull", "ann/Big-GGUF", "--draft", "ann/Small-GGUF")
    done = hub_world.run(*arguments)
    assert done.code == 1
    assert "thrown away" in done.err
    assert not part.exists()
    assert hub_world.run(*arguments).code == 0


def test_a_damaged_file_in_the_cache_is_named(hub_world: World, pair: tuple[Repo, Repo]) -> None:
    file = remote(pair[0], "big-Q4_K_M.gguf")
    blob = hub_cache.blob_path(file)
    blob.parent.mkdir(parents=True)
    blob.write_bytes(bytes(file.size))
    done = hub_world.run("pull", "ann/Big-GGUF", "--draft", "none")
    assert done.code == 1
    assert f"delete {blob}" in done.err


@pytest.mark.parametrize("sha", ["../../x", "main", ""])
def test_a_commit_that_is_none_is_refused(
    hub_world: World, pair: tuple[Repo, Repo], sha: str
) -> None:
    pair[0].commit = sha
    done = hub_world.run("pull", "ann/Big-GGUF", "--draft", "none")
    assert done.code == 1
    assert "gives no commit" in done.err


# --- names ------------------------------------------------------------------------------------


def test_names_are_derived_told_and_kept_apart(hub_world: World, pair: tuple[Repo, Repo]) -> None:
    first = hub_world.run("pull", "ann/Big-GGUF", "--draft", "ann/Small-GGUF")
    second = hub_world.run("pull", "ann/Big-GGUF", "--draft", "none")
    assert "installed as big:" in first.out
    assert "installed as big-2:" in second.out
    taken = hub_world.run("pull", "ann/Big-GGUF", "--draft", "none", "--name", "big")
    assert taken.code == 2
    assert "another pair named big" in taken.err
    assert "`localspec rm big`" in taken.err
    curated_one = hub_world.run("pull", "ann/Big-GGUF", "--draft", "none", "--name", "QWEN3-8b")
    assert "another pair named qwen3-8b in the catalogue" in curated_one.err
    assert "localspec rm" not in curated_one.err
    words = ("demo", "none", "auto", "lookup", "mtp", "dspark", "dflash", "eagle3")
    for bad in (*words, "a/b", "", "UP PER", "x" * 99):
        assert hub_world.run("pull", "ann/Big-GGUF", "--name", bad).code == 2, bad
    hub_world.server.add("ann/MTP-GGUF", pair[0].files)
    derived = hub_world.run("pull", "ann/MTP-GGUF", "--draft", "none")
    assert "installed as pair-mtp:" in derived.out


def test_a_repository_is_the_same_in_any_case(
    hub_world: World, pair: tuple[Repo, Repo], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("ann/big-gguf", "Ann/BIG-gguf"):
        hub_world.server.repos[name] = pair[0]  # as the Hub answers
    assert hub_world.run("pull", "ann/big-gguf", "--draft", "none").code == 0
    assert installed.all_pairs()[0].target.repo == pair[0].name
    sent = hub_world.server.sent()
    for _ in range(2):  # with and without the Hub
        again = hub_world.run("pull", "Ann/BIG-gguf", "--draft", "none")
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert again.code == 0, again.err
    assert hub_world.server.sent() == sent
    assert [one.name for one in installed.all_pairs()] == ["big"]
    assert [path.name for path in hub_cache.repo_folders()] == ["models--ann--Big-GGUF"]
    assert resolver.resolve("ann/BIG-gguf").target == installed.all_pairs()[0].target.path


def test_a_curated_pair_is_pulled_by_name(hub_world: World) -> None:
    entry = catalogue.pairs()["qwen3-8b"]
    hub_world.server.add(entry.target.repo, {entry.target.file: ggufs.model(n_bytes=64_000)})
    hub_world.server.add(entry.draft.repo, {entry.draft.file: ggufs.model(seed=1)})
    done = hub_world.run("pull", "QWEN3-8b")
    assert done.code == 0, done.err
    assert "installed as qwen3-8b:" in done.out
    assert resolver.resolve("qwen3-8b").draft is not None
    # A target that a curated pair has gets that pair's draft.
    assert hub_world.run("rm", "qwen3-8b").code == 0
    again = hub_world.run("pull", str(references.parse(f"{entry.target.repo}:Q4_K_M")))
    assert "as in the pair qwen3-8b" in again.out
    assert "installed as qwen3-8b:" in again.out


def test_a_curated_target_pulled_without_its_draft_is_that_pair_and_may_get_it_later(
    hub_world: World,
) -> None:
    entry = catalogue.pairs()["qwen3-8b"]
    hub_world.server.add(entry.target.repo, {entry.target.file: ggufs.model(n_bytes=64_000)})
    hub_world.server.add(entry.draft.repo, {entry.draft.file: ggufs.model(seed=1)})
    assert hub_world.run("pull", "qwen3-8b", "--draft", "lookup", "--name", "other").code == 0
    assert resolver.resolve("qwen3-8b", "none").target.name == entry.target.file
    with pytest.raises(NotFetched):
        resolver.resolve("qwen3-8b")
    alone = hub_world.run("pull", "qwen3-8b", "--draft", "lookup")
    assert "installed as qwen3-8b:" in alone.out, alone.err
    assert resolver.resolve("qwen3-8b").drafts == ()
    whole = hub_world.run("pull", "qwen3-8b")
    assert "installed as qwen3-8b:" in whole.out, whole.err
    assert resolver.resolve("qwen3-8b").draft is not None


def test_a_target_without_a_draft_is_told_which_would_fit(
    hub_world: World, pair: tuple[Repo, Repo]
) -> None:
    other = ggufs.model(ggufs.words(300, [f"odd{n}" for n in range(7)]))
    hub_world.server.add("ann/Odd-GGUF", {"odd.gguf": other})
    assert hub_world.run("pull", "ann/Odd-GGUF", "--draft", "none").code == 0
    assert hub_world.run("pull", "ann/Small-GGUF", "--draft", "none").code == 0
    entry = catalogue.pairs()["qwen3-8b"].draft
    hub_world.server.add(entry.repo, {entry.file: ggufs.model(seed=3)})
    big = ggufs.model(n_bytes=4_000_000_000 // 1000 // 32 * 32)
    hub_world.server.add("ann/Lone-GGUF", {"lone-Q4_K_M.gguf": big})
    done = hub_world.run("pull", "ann/Lone-GGUF", "--dry-run")
    assert done.code == 0, done.err
    lines = {
        line.split("--draft ")[1].split(" ")[0]: line
        for line in done.out.splitlines()
        if "--draft " in line
    }
    assert lines["ann/Small-GGUF:small-Q8_0.gguf@" + pair[1].commit].startswith("  fits")
    odd = next(line for name, line in lines.items() if name.startswith("ann/Odd"))
    assert "token 5 is 'odd5', in the target 'word5'" in odd


@pytest.mark.parametrize("status", [429, 503])
def test_a_hub_that_fails_is_asked_once_about_drafts_that_nobody_named(
    hub_world: World,
    toy_target: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    status: int,
) -> None:
    """Those that are on this disk are looked at all the same."""
    *_, last = (entry.draft for entry in catalogue.pairs().values() if entry.draft)
    hub_world.server.add(last.repo, {last.file: toy.DRAFT.read_bytes()})
    hf_hub_download(last.repo, last.file)
    hub_world.server.seen.clear()
    large = shutil.copy(toy_target, tmp_path / "large.gguf")
    os.truncate(large, 4_000_000_000)  # drafts of the catalogue are small next to it
    hub_world.server.fault("/api/", status=status, times=1000)
    waits: list[float] = []
    monkeypatch.setattr(RetryPolicy, "wait", lambda _, seconds: waits.append(seconds))
    done = hub_world.run("show", str(large), "--no-scan")
    assert done.code == 0, done.err
    assert (len(hub_world.server.seen), waits) == (1, [])
    assert "looking at" in done.err
    assert f"fits  --draft {last.reference} " in done.out
    assert " known models would fit; the Hub did not answer about others" in done.out


def test_a_model_that_is_its_own_draft_is_fetched_and_counted_once(
    hub_world: World, pair: tuple[Repo, Repo]
) -> None:
    plan = pair_pull.plan(PullRequest("ann/Big-GGUF", "ann/Big-GGUF", "twice"), QUICK)
    seen: list[pair_pull.PullProgress] = []
    pair_pull.execute(plan, QUICK, seen.append)
    size = pair[0].size("big-Q4_K_M.gguf")
    assert (seen[-1].done, seen[-1].total) == (size, size)
    assert hub_world.run("rm", "twice").code == 0
    assert hub_world.blobs("ann/Big-GGUF") == {}


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("HF_HUB_DOWNLOAD_TIMEOUT", "soon", "HF_HUB_DOWNLOAD_TIMEOUT cannot be used"),
        ("HF_TOKEN", "hf_\xe4", "characters that no token has"),
        ("HF_TOKEN", "\x1b[200~hf_a", "Check the token in HF_TOKEN"),
        ("HF_HOME", "/dev/null/home", "the access token cannot be read"),
        ("HF_ENDPOINT", "not an address", "cannot be used"),
        ("HF_ENDPOINT", "ftp://127.0.0.1", "cannot be used"),
    ],
)
def test_variables_that_make_no_sense_are_explained(
    hub_world: World, pair: tuple[Repo, Repo], variable: str, value: str, said: str
) -> None:
    done = hub_world.run_outside("pull", "ann/Big-GGUF", "--draft", "none", **{variable: value})
    assert done.code in (1, 2)
    assert said in done.err
    assert "fault" not in done.err
    assert len(done.err.splitlines()) <= 3


def test_records_that_may_not_be_read_are_explained(
    hub_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def closed(self: Path, pattern: str) -> Iterator[Path]:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "glob", closed)
    with pytest.raises(LocalspecError, match="cannot be read: Permission denied"):
        installed.all_pairs()


def test_a_pair_that_could_not_be_recorded_is_not_fetched(
    hub_world: World, pair: tuple[Repo, Repo]
) -> None:
    hub_world.data.write_text("in the way of the folder")
    done = hub_world.run("pull", "ann/Big-GGUF", "--draft", "none")
    assert done.code == 1
    assert "the pair big cannot be recorded in" in done.err
    assert hub_world.blobs("ann/Big-GGUF") == {}


def test_free_space_is_known_where_nothing_is_yet(tmp_path: Path) -> None:
    known = shutil.disk_usage(tmp_path).total
    assert 0 < hub_cache.free_bytes(tmp_path / "a" / "b") <= known
    (tmp_path / "file").touch()
    assert 0 < hub_cache.free_bytes(tmp_path / "file" / "x") <= known
