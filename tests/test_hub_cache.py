"""The Hub cache as others leave it: shared bytes, missing links, another program at work."""

from __future__ import annotations

import errno
import os
import re
import shutil
import signal
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn

import pytest
from huggingface_hub import constants, hf_hub_download
from huggingface_hub.utils import _shared_blobs

from localspec.errors import HubError, LocalspecError, NotEnoughDisk
from localspec.pairs.disk import folders, installed, other_programs, target_folder, unfinished_pulls
from localspec.pairs.hub import cache as hub_cache
from localspec.pairs.hub import client as hub
from localspec.pairs.hub import download
from localspec.pairs.hub.cache import RemoteFile
from localspec.pairs.hub.download import FileProgress
from localspec.pairs.hub.retries import RetryPolicy
from localspec.pairs.names import catalogue, references, repository_files, resolver
from tests.support import ggufs
from tests.support.hub_server import Repo
from tests.support.hub_world import World
from tests.support.waiting import wait_for

NAME = "big-Q4_K_M.gguf"
SHARED = "5e" * 32
ALONE = ("--draft", "none")


@pytest.fixture
def repo(hub_world: World) -> Repo:
    """A repository with a target of 2 MB."""
    return hub_world.server.add("ann/Big-GGUF", {NAME: ggufs.model(n_bytes=2_000_000 // 32 * 32)})


def remote(repo: Repo) -> RemoteFile:
    return RemoteFile(repo.name, repo.commit, NAME, repo.size(NAME), repo.etag(NAME))


def share(repo: Repo, world: World) -> Path:
    """Fetch a file as the library does from Xet: its bytes go where all repositories look."""
    hf_hub_download(repo.name, NAME)
    blob = hub_cache.blob_path(remote(repo))
    shared = _shared_blobs.publish_blob_to_shared_store(
        blob_path=str(blob), xet_hash=SHARED, cache_dir=world.cache, expected_size=repo.size(NAME)
    )
    assert shared
    assert blob.is_symlink()
    return _shared_blobs.shared_blob_path(world.cache, SHARED)


def test_bytes_that_repositories_share_are_pulled_offline_and_freed_with_the_last(
    hub_world: World, repo: Repo
) -> None:
    share(repo, hub_world)
    other = hub_world.server.add("bob/Same-GGUF", dict(repo.files))
    bytes_ = share(other, hub_world)
    for one, name in ((repo, "one"), (other, "two")):
        arguments = ("pull", one.name, *ALONE, "--name", name)
        offline = hub_world.run_outside(*arguments, HF_HUB_OFFLINE="1")
        assert offline.code == 0, offline.err
        assert installed.find(name).target.sha256 == (one.sha256(NAME),)  # type: ignore[union-attr]
    assert "removed one: 0 bytes freed" in hub_world.run("rm", "one").out
    assert not hub_cache.repo_folder(repo.name).exists()
    assert resolver.resolve("two").target.exists()
    done = hub_world.run("rm", "two").out
    assert "removed two: 2 MB freed" in done
    assert not bytes_.exists()


def test_a_file_whose_name_ends_in_capitals_is_found_again(hub_world: World) -> None:
    name = "Big-Q4_K_M.GGUF"
    hub_world.server.add("ann/Up-GGUF", {name: ggufs.model(n_bytes=200_000 // 32 * 32)})
    assert hub_world.run("pull", "ann/Up-GGUF", *ALONE).code == 0
    for reference in ("ann/Up-GGUF", "ann/Up-GGUF:Q4_K_M", f"ann/Up-GGUF:{name}"):
        assert [path.name for path in hub_cache.find(references.parse(reference))] == [name]
    here = hub_cache.find(references.parse("ann/Up-GGUF"))[0]
    assert target_folder.files(here) == (name, {name: here})


def test_a_reference_in_another_case_means_the_same_files_on_a_disk_that_ignores_it(
    hub_world: World, repo: Repo, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert hub_world.run("pull", repo.name, *ALONE).code == 0
    own = hub_cache.repo_folder(repo.name)
    with monkeypatch.context() as ignoring:
        ignoring.setattr(Path, "is_dir", lambda _: True)
        assert hub_cache.repo_folder(repo.name.lower()) == own
    other = own.with_name(own.name.lower())
    if not other.exists():  # case counts
        other.mkdir()
        assert hub_cache.repo_folder(repo.name.lower()) == other
    assert hub_cache.repo_folder(repo.name) == own


def test_drafters_of_a_target_are_known_by_any_name_of_its_file(
    hub_world: World, repo: Repo, tmp_path: Path
) -> None:
    assert hub_world.run("pull", repo.name, *ALONE).code == 0
    pair = installed.find("big")
    assert pair is not None
    installed.save(replace(pair, draft=pair.target))
    alike = tmp_path / NAME.upper()
    alike.hardlink_to(folders.real(pair.target.path))  # what another case is on such a disk
    assert installed.pair_with(alike) == installed.find("big")
    assert installed.pair_with(tmp_path / "gone.gguf") is None


def test_what_macos_keeps_next_to_a_file_is_neither_a_model_nor_a_head(
    hub_world: World, repo: Repo
) -> None:
    assert hub_world.run("pull", repo.name, *ALONE).code == 0
    here = resolver.resolve("big").target
    head = "mtp-Q8_0.gguf"
    for name in (NAME, head):
        here.with_name(f"._{name}").write_bytes(b"\0\5\x16\7" + bytes(4092))
    for reference in (repo.name, f"{repo.name}:Q4_K_M"):
        assert hub_cache.find(references.parse(reference)) == [here]
    name, paths = target_folder.files(here)
    sizes = {each: path.stat().st_size for each, path in paths.items()}
    assert repository_files.heads(sizes, "mtp", model=name) == []
    assert other_programs.next_to(here) == []


@pytest.fixture
def no_links(monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk without symbolic links, such as exFAT, or Windows for ordinary users."""

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(constants, "HF_HUB_DISABLE_SYMLINKS_WARNING", False)
    monkeypatch.setattr(os, "symlink", refuse)


def test_no_warning_of_a_disk_without_links_comes_into_the_progress(
    hub_world: World, repo: Repo, no_links: None
) -> None:
    done = hub_world.run("pull", repo.name, *ALONE)  # where a warning is an error
    assert done.code == 0, done.err
    assert not resolver.resolve("big").target.is_symlink()


def test_rm_while_a_file_of_the_same_commit_comes_costs_nothing(
    hub_world: World, repo: Repo
) -> None:
    file = remote(repo)

    def tidy(progress: FileProgress) -> None:
        """Take the folder away, as `rm` does with an empty one."""
        if progress.phase == "fetching":
            shutil.rmtree(hub_cache.snapshot_path(file).parent, ignore_errors=True)

    assert download.fetch(file, "main", RetryPolicy(), tidy).stat().st_size == file.size


def test_rm_frees_bytes_and_parts_whose_link_is_gone(hub_world: World, repo: Repo) -> None:
    assert hub_world.run("pull", repo.name, *ALONE).code == 0
    resolver.resolve("big").target.unlink()
    download.part_path(remote(repo)).write_bytes(bytes(10_000))
    assert "2.01 MB freed" in hub_world.run("rm", "big").out
    assert hub_world.blobs(repo.name) == {}


def test_an_interrupt_of_rm_forgets_nothing(hub_world: World, repo: Repo) -> None:
    assert hub_world.run("pull", repo.name, *ALONE).code == 0
    with hub_cache.locked(remote(repo), RetryPolicy()):
        process = hub_world.start("rm", "big")
        logs = hub_world.home.parent
        wait_for(lambda: any("waiting" in log.read_text() for log in logs.glob("log-*")))
        assert process.pid is not None
        os.kill(process.pid, signal.SIGINT)
        process.join(20)
    assert process.exitcode == 130
    (log,) = logs.glob("log-*")
    assert "waiting for another process that uses big-Q4_K_M.gguf" in log.read_text()
    assert "the same command removes what is left" in log.read_text()
    assert installed.find("big") is not None
    assert "2 MB freed" in hub_world.run("rm", "big").out


def _pull_without_draft(world: World) -> tuple[Repo, Repo]:
    """Pull a pair of the catalogue whose draft comes damaged; its repositories."""
    entry = catalogue.pairs()["qwen3-8b"]
    assert entry.draft is not None
    files = {entry.target.file: ggufs.model(n_bytes=64_000), "other-Q8_0.gguf": ggufs.model(seed=2)}
    target = world.server.add(entry.target.repo, files)
    draft = world.server.add(entry.draft.repo, {entry.draft.file: ggufs.model(seed=1)})
    hf_hub_download(target.name, "other-Q8_0.gguf")
    world.server.fault(f"/cdn/{draft.name}", flip_at=100, whole=True)
    assert "thrown away" in world.run("pull", "qwen3-8b").err
    assert len(world.blobs(target.name)) == 2
    return target, draft


@pytest.mark.parametrize("what", ["Qwen3-8B", "--all"])
def test_rm_removes_the_finished_files_of_an_unfinished_pull(hub_world: World, what: str) -> None:
    target, _ = _pull_without_draft(hub_world)
    done = hub_world.run("rm", what)
    assert done.code == 0, done.err
    assert "68.8 kB freed" in done.out
    assert list(hub_world.blobs(target.name)) == [target.etag("other-Q8_0.gguf")]
    assert "there is nothing to remove" in hub_world.run("rm", "qwen3-8b").err


def test_rm_of_an_unfinished_pull_leaves_what_another_program_fetched(hub_world: World) -> None:
    entry = catalogue.pairs()["qwen3-8b"].target
    target = hub_world.server.add(entry.repo, {entry.file: ggufs.model(n_bytes=64_000)})
    hf_hub_download(entry.repo, entry.file)
    _pull_without_draft(hub_world)
    for what in ("qwen3-8b", "--all"):
        hub_world.run("rm", what)
    assert target.etag(entry.file) in hub_world.blobs(target.name)


@pytest.mark.parametrize("what", ["qwen3-8b", "--all"])
def test_rm_of_an_unfinished_pull_leaves_what_another_program_fetched_later(
    hub_world: World, what: str
) -> None:
    target, _ = _pull_without_draft(hub_world)
    file = catalogue.pairs()["qwen3-8b"].target.file
    hf_hub_download(target.name, file, force_download=True)
    hub_world.run("rm", what)
    assert target.etag(file) in hub_world.blobs(target.name)
    assert unfinished_pulls.names() == []


def test_rm_of_an_unfinished_pull_leaves_what_another_pull_has_begun(hub_world: World) -> None:
    files = [RemoteFile("ann/Two-GGUF", "a" * 40, f"{c}.gguf", 9000, c * 64) for c in "bc"]
    for name, file in zip(("one", "two"), files, strict=True):
        unfinished_pulls.begin(name, [file])
        hub_cache.prepare(file)
        download.part_path(file).write_bytes(bytes(5000))
    assert "5 kB freed" in hub_world.run("rm", "one").out
    assert [download.part_size(file) for file in files] == [0, 5000]
    assert unfinished_pulls.names() == ["two"]
    assert "5 kB freed" in hub_world.run("rm", "--all").out
    assert unfinished_pulls.names() == []


def test_rm_of_a_pair_removes_what_an_update_fetched_that_did_not_end(
    hub_world: World, repo: Repo
) -> None:
    assert hub_world.run("pull", repo.name, *ALONE, "--name", "mine").code == 0
    newer = hub_world.server.add(repo.name, {NAME: ggufs.model(seed=3)}, commit="b" * 40)
    unfinished_pulls.begin("mine", [remote(newer)])
    note = partial(unfinished_pulls.note_fetched, "mine")
    for _ in range(2):  # the second time it is here
        download.fetch(remote(newer), "main", RetryPolicy(), lambda _: None, fetched=note)
        note = pytest.fail
    assert len(hub_world.blobs(repo.name)) == 2
    assert hub_world.run("rm", "mine").code == 0
    assert not list(hub_world.blobs(repo.name))
    assert unfinished_pulls.names() == []


def test_a_pull_that_ends_forgets_its_own_files_alone(hub_world: World) -> None:
    one, other = (RemoteFile("ann/Two-GGUF", "a" * 40, f"{c}.gguf", 9, c * 64) for c in "bc")
    unfinished_pulls.begin("mine", [one])  # another quant, of which the user thought better
    unfinished_pulls.begin("mine", [other])
    unfinished_pulls.forget("mine", [other])
    assert unfinished_pulls.find("mine").files == [one]
    (folders.data_folder() / "pulls" / "damaged.json").write_text("{")
    assert unfinished_pulls.names() == ["damaged", "mine"]
    hub_world.run("rm", "--all")
    assert unfinished_pulls.names() == []


def test_a_record_of_a_pull_that_cannot_be_read_is_not_replaced(
    hub_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def busy(*_: object) -> NoReturn:
        raise OSError(errno.EMFILE, "Too many open files")

    one, other = (RemoteFile("ann/Two-GGUF", "a" * 40, f"{c}.gguf", 9, c * 64) for c in "bc")
    unfinished_pulls.begin("mine", [one])
    with monkeypatch.context() as patched:
        patched.setattr(Path, "read_bytes", busy)
        for change in (unfinished_pulls.begin, unfinished_pulls.forget):
            with pytest.raises(LocalspecError, match="Too many open files"):
                change("mine", [other])
    assert unfinished_pulls.find("mine").files == [one]
    path = folders.data_folder() / "pulls" / "mine.json"
    path.write_text("{")
    unfinished_pulls.begin("mine", [other])
    assert unfinished_pulls.find("mine").files == [other]
    assert unfinished_pulls.names() == ["mine"]
    assert [aside.read_text() for aside in path.parent.glob("mine.json.damaged-*")] == ["{"]


def test_rm_of_an_unfinished_pull_leaves_what_a_pair_uses(hub_world: World) -> None:
    target, draft = _pull_without_draft(hub_world)
    name = f"{target.name}:{catalogue.pairs()['qwen3-8b'].target.file}"
    assert hub_world.run("pull", name, *ALONE, "--name", "mine").code == 0
    (part,) = (each for each in unfinished_pulls.find("qwen3-8b").files if each.repo == draft.name)
    download.part_path(part).write_bytes(bytes(5000))
    done = hub_world.run("rm", "qwen3-8b")
    assert "the pair mine uses it" in done.out
    assert "removed qwen3-8b: 5 kB freed" in done.out
    assert resolver.resolve("mine").target.exists()


@pytest.mark.parametrize("what", ["other", "--all"])
def test_rm_leaves_what_another_pull_counts_on_until_that_is_removed(
    hub_world: World, repo: Repo, what: str
) -> None:
    assert hub_world.run("pull", repo.name, *ALONE, "--name", "mine").code == 0
    more = RemoteFile(repo.name, repo.commit, "more.gguf", 9000, "a" * 64)
    unfinished_pulls.begin("other", [remote(repo), more])
    unfinished_pulls.begin("third", [more])
    hub_cache.prepare(more)
    download.part_path(more).write_bytes(bytes(5000))
    if what == "other":
        done = hub_world.run("rm", "mine")
        assert "0 bytes freed" in done.out
        assert "the unfinished pull of other wants it" in done.out
        assert hub_world.snapshot(repo.name, repo.commit, NAME).exists()
        assert "0 bytes freed" not in hub_world.run("rm", "other").out
        assert download.part_size(more) == 5000
        assert "5 kB freed" in hub_world.run("rm", "third").out
    else:
        assert hub_world.run("rm", "--all").code == 0
    assert not hub_cache.repo_folder(repo.name).exists()
    assert unfinished_pulls.names() == []


def test_a_pull_that_ends_is_no_longer_unfinished(hub_world: World) -> None:
    _pull_without_draft(hub_world)
    assert unfinished_pulls.names() == ["qwen3-8b"]
    assert hub_world.run("pull", "qwen3-8b").code == 0
    assert unfinished_pulls.names() == []


def test_show_without_a_network_says_what_is_known_of_a_pair_that_lost_its_file(
    hub_world: World, repo: Repo, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert hub_world.run("pull", repo.name, *ALONE, "--name", "mine").code == 0
    resolver.resolve("mine").target.unlink()
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    done = hub_world.run("show", "mine", "--no-scan")
    assert done.code == 0, done.err
    assert "offline mode is on; this much is known" in done.err
    assert re.search(r"target +ann/Big-GGUF", done.out)
    assert "dialect" not in done.out


def test_a_pull_without_a_network_leaves_the_branch_where_it_is(
    hub_world: World, repo: Repo
) -> None:
    assert hub_world.run("pull", repo.name, *ALONE).code == 0
    ref = hub_cache.repo_folder(repo.name) / "refs" / "main"
    ref.write_text("f" * 40)
    again = hub_world.run_outside("pull", repo.name, *ALONE, HF_HUB_OFFLINE="1")
    assert again.code == 0, again.err
    assert ref.read_text() == "f" * 40


@pytest.mark.skipif(os.name == "nt", reason="there are no such modes")
def test_a_branch_can_be_read_by_those_who_can_read_the_cache(hub_world: World, repo: Repo) -> None:
    assert hub_world.run("pull", repo.name, *ALONE).code == 0
    ref = hub_cache.repo_folder(repo.name) / "refs" / "main"
    assert ref.stat().st_mode & 0o777 == ref.parent.stat().st_mode & 0o666
    before = ref.stat().st_ino
    assert hub_world.run("pull", repo.name, *ALONE).code == 0
    assert ref.stat().st_ino == before


@pytest.fixture
def long_name(hub_world: World) -> RemoteFile:
    name = f"{200 * 'w'}.gguf"
    repo = hub_world.server.add("ann/Long-GGUF", {name: ggufs.model()})
    file = RemoteFile(repo.name, repo.commit, name, repo.size(name), repo.etag(name))
    pointer = hub_cache.snapshot_path(file)
    assert len(str(pointer)) > hub_cache.LONGEST_ON_WINDOWS > len(str(pointer.parent))
    return file


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (errno.ENOENT, "too long for Windows.*a short folder such as"),
        (errno.EACCES, "cannot be written.*permissions"),
    ],
)
def test_a_name_that_windows_refuses_is_told_before_a_byte_is_asked_for(
    hub_world: World, long_name: RemoteFile, monkeypatch: pytest.MonkeyPatch, number: int, said: str
) -> None:
    def limited(path: Path, _: int) -> NoReturn:
        assert len(str(path)) == len(str(hub_cache.snapshot_path(long_name)))
        raise OSError(number, os.strerror(number), str(path))

    windows = SimpleNamespace(**{**vars(os), "name": "nt", "O_TEMPORARY": 0, "open": limited})
    monkeypatch.setattr(hub_cache, "sys", SimpleNamespace(platform="win32"))
    for module in (hub_cache, download):
        monkeypatch.setattr(module, "os", windows)
    with pytest.raises(HubError) as refused:
        download.fetch(long_name, "main", RetryPolicy(), lambda _: None)
    assert re.search(said, f"{refused.value.message} {refused.value.remedy}")
    assert not hub_world.server.seen


def test_a_name_that_the_disk_refuses_is_told(
    long_name: RemoteFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    def limited(*_: object, **__: object) -> NoReturn:
        raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG))

    monkeypatch.setattr(hub_cache, "publish", limited)
    with pytest.raises(HubError, match="too long for this disk"):
        download.fetch(long_name, "main", RetryPolicy(), lambda _: None)


def test_a_name_is_tried_only_where_it_may_be_too_long(
    long_name: RemoteFile, repo: Repo, monkeypatch: pytest.MonkeyPatch
) -> None:
    def tried(*_: object) -> NoReturn:
        raise AssertionError

    monkeypatch.setattr(os, "open", tried)
    monkeypatch.setattr(Path, "touch", tried)
    hub_cache.prepare(long_name)
    monkeypatch.setattr(hub_cache, "sys", SimpleNamespace(platform="win32"))
    monkeypatch.setattr(hub_cache, "LONGEST_ON_WINDOWS", 4000)
    hub_cache.prepare(remote(repo))


def test_no_room_and_no_file_that_large_are_told_apart(
    repo: Repo, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = [(errno.ENOSPC, "posix", "the disk is full", ""),
            (errno.EFBIG, "posix", "as large on this", "ulimit -f"),
            (errno.EFBIG, "nt", "as large on this", "another format.")]  # fmt: skip
    for number, system, words, way in told:

        def fail(*_: object, number: int = number, **__: object) -> None:
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(hub, "receive_file", fail)
        monkeypatch.setattr(download, "os", SimpleNamespace(**{**vars(os), "name": system}))
        with pytest.raises(NotEnoughDisk, match=words) as refused:
            download.fetch(remote(repo), "main", RetryPolicy(), lambda _: None)
        assert way in refused.value.remedy
