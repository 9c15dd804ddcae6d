"""The maintenance command that checks the catalogue against the Hub and pins it."""

from __future__ import annotations

import hashlib
import importlib.util
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
from huggingface_hub import constants

from localspec.pairs.disk import folders
from localspec.pairs.names import catalogue
from tests.support import ggufs
from tests.support.hub_world import World

SCRIPT = Path(__file__).parents[1] / "models" / "verify_catalogue.py"


@pytest.fixture
def writable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the catalogue that may be written."""
    path = Path(shutil.copy(folders.shipped("catalogue.toml"), tmp_path / "catalogue.toml"))
    monkeypatch.setattr(folders, "shipped", lambda name: tmp_path / name)
    return path


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("verify_catalogue", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "verify_catalogue", module)
    spec.loader.exec_module(module)
    return module


def serve_everything(world_: World) -> None:
    repos: dict[str, dict[str, bytes]] = {}
    for seed, entry in enumerate(catalogue.pairs().values()):
        architectures = (entry.architecture, "llama")
        for side, architecture in zip(entry.files, architectures, strict=False):
            data = ggufs.model(seed=seed, architecture=architecture)
            repos.setdefault(side.repo, {})[side.file] = data
    for name, files in repos.items():
        world_.server.add(name, dict(files))


def test_every_entry_is_checked_and_pinned(
    hub_world: World, writable: Path, script: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    serve_everything(hub_world)
    before = catalogue.pairs()
    assert script.main(["--check"]) == 0
    assert catalogue.pairs() == before
    assert script.main([]) == 0
    after = catalogue.pairs()
    assert list(after) == list(before)
    for name, entry in after.items():
        assert entry.verified
        repo = hub_world.server.repos[entry.target.repo]
        assert entry.target.revision == repo.commit
        assert entry.target.sha256 == repo.sha256(entry.target.file)
        assert entry.target.n_bytes == repo.size(entry.target.file)
        assert entry.notes == before[name].notes
    text = writable.read_text()
    assert script.main(["qwen3-8b"]) == 0  # pinning again changes nothing
    assert writable.read_text() == text
    assert "ok" in capsys.readouterr().out
    assert all(seen.range for seen in hub_world.server.bodies())


def test_entries_that_do_not_hold_are_named_and_left(
    hub_world: World, writable: Path, script: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    serve_everything(hub_world)
    entry = catalogue.pairs()["qwen3-8b"]
    hub_world.server.repos[entry.target.repo].files[entry.target.file] = ggufs.model(
        [f"x{n}" for n in range(300)]
    )
    del hub_world.server.repos["bartowski/SmolLM2-135M-Instruct-GGUF"]
    hub_world.server.repos["bartowski/Meta-Llama-3.1-8B-Instruct-GGUF"].gated = "manual"
    loud = catalogue.pairs()["ornith-1.5-9b"].target
    files = hub_world.server.repos[loud.repo].files
    files[loud.file.upper()] = files.pop(loud.file)
    hub_world.server.repos["bartowski/Llama-3.3-70B-Instruct-GGUF"].lfs = False
    wanted = [
        "qwen3-8b",
        "smollm2-1.7b",
        "llama-3.1-8b",
        "ornith-1.5-9b",
        "llama-3.3-70b",
        "qwen2.5-coder-7b",
    ]
    assert script.main(wanted) == 1
    out = capsys.readouterr().out
    assert "qwen3-8b: FAILED" in out
    assert "token 5 is 'word5', in the target 'x5'" in out
    assert "smollm2-1.7b: FAILED: there is no repository" in out
    assert "llama-3.1-8b: FAILED: bartowski/Meta-Llama-3.1-8B-Instruct-GGUF is gated" in out
    assert f"ornith-1.5-9b: FAILED: {loud.file} is named {loud.file.upper()} in {loud.repo}" in out
    assert "llama-3.3-70b: FAILED" in out
    assert "cannot be pinned" in out
    assert "qwen2.5-coder-7b: ok" in out
    assert {name for name, one in catalogue.pairs().items() if one.verified} == {"qwen2.5-coder-7b"}


def test_without_a_network_it_stops(
    hub_world: World,
    writable: Path,
    script: ModuleType,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:1")
    assert script.main([]) == 1
    assert "cannot be reached" in capsys.readouterr().err


def test_a_pinned_pair_is_pulled_at_its_revision(
    hub_world: World, writable: Path, script: ModuleType
) -> None:
    serve_everything(hub_world)
    assert script.main(["qwen3-8b"]) == 0
    pinned = catalogue.pairs()["qwen3-8b"]
    done = hub_world.run("pull", "qwen3-8b")
    assert done.code == 0, done.err
    for side in pinned.files:
        path = hub_world.snapshot(side.repo, side.revision, side.file)
        assert hashlib.sha256(path.read_bytes()).hexdigest() == side.sha256
    asked = [seen.path for seen in hub_world.server.seen if "/revision/" in seen.path]
    assert {f"/api/models/{pinned.target.repo}/revision/{pinned.target.revision}"} < set(asked)


def test_a_pinned_revision_that_is_gone_is_told_with_what_to_pull_instead(
    hub_world: World, writable: Path, script: ModuleType
) -> None:
    serve_everything(hub_world)
    assert script.main(["qwen3-8b"]) == 0
    entry = catalogue.pairs()["qwen3-8b"]
    for side in entry.files:
        hub_world.server.repos[side.repo].commit = "f" * 40
    done = hub_world.run("pull", "qwen3-8b")
    assert done.code == 1
    assert f"has no revision {entry.target.revision}" in done.err
    command = done.err.rsplit("`localspec ", 1)[1].split("`")[0]
    assert hub_world.run(*command.split()).code == 0


@pytest.mark.parametrize("lie", ["no sha256", "right sha256"])
def test_a_hub_that_serves_other_bytes_under_a_pinned_revision_is_found_out(
    hub_world: World, writable: Path, script: ModuleType, lie: str
) -> None:
    serve_everything(hub_world)
    assert script.main(["qwen3-8b"]) == 0
    entry = catalogue.pairs()["qwen3-8b"]
    repo = hub_world.server.repos[entry.target.repo]
    if lie == "no sha256":
        repo.lfs = False  # another file, named by git's hash
        repo.files[entry.target.file] = ggufs.model(seed=99)
    else:
        hub_world.server.fault(f"/cdn/{repo.name}", flip_at=8_000, whole=True)
    done = hub_world.run("pull", "qwen3-8b")
    assert done.code == 1
    refusal = "is not the file that the catalogue" if lie == "no sha256" else "thrown away"
    assert refusal in done.err
    assert hub_world.blobs(repo.name) == {}


def test_a_pair_whose_file_is_gone_gets_the_same_bytes_again(
    hub_world: World, writable: Path
) -> None:
    repo = hub_world.server.add("ann/Big-GGUF", {"big.gguf": ggufs.model()})
    assert hub_world.run("pull", "ann/Big-GGUF", "--draft", "none").code == 0
    hub_world.snapshot(repo.name, repo.commit, "big.gguf").resolve().unlink()
    good, repo.files["big.gguf"] = repo.files["big.gguf"], ggufs.model(seed=5)
    done = hub_world.run("pull", "big")
    assert done.code == 1
    assert "is not the file that was pulled before" in done.err
    repo.files["big.gguf"] = good
    assert hub_world.run("pull", "big").code == 0


def test_a_pinned_pair_that_was_replaced_is_refused(
    hub_world: World, writable: Path, script: ModuleType
) -> None:
    serve_everything(hub_world)
    assert script.main(["qwen3-8b"]) == 0
    assert hub_world.run("pull", "qwen3-8b", "--dry-run").code == 0
    entry = catalogue.pairs()["qwen3-8b"]
    hub_world.server.repos[entry.draft.repo].files[entry.draft.file] = ggufs.model(seed=99)
    done = hub_world.run("pull", "qwen3-8b")
    assert done.code == 1
    assert "is not the file that the catalogue was checked with" in done.err
    assert not hub_world.cache.exists()


def test_every_name_is_marked_as_it_was_seen(
    script: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    assert script.main(["--seen"]) == 0
    said = capsys.readouterr().out
    assert "qwen3.8-27b: as public lists have them; not checked against the Hub" in said
    assert "qwen3-8b: not checked against the Hub; one may be different there" in said


def test_a_name_that_was_not_seen_is_said(script: ModuleType) -> None:
    seen = script.seen_names(SCRIPT.with_name("seen.tsv"))
    entry = catalogue.pairs()["gpt-oss-20b"]
    other = replace(entry.target, file="gpt-oss-20b-Q4_K_M.gguf")
    (sentence,) = script.compare(replace(entry, target=other), seen)
    assert "is said to have been seen" in sentence
    (sentence,) = script.compare(replace(entry, target=replace(entry.target, gb=10)), seen)
    assert "has 12.11 GB elsewhere" in sentence
    (sentence,) = script.compare(replace(entry, target=replace(entry.target, seen="")), seen)
    assert "was seen as hash" in sentence
