"""The maintenance command that checks the catalogue against the Hub and pins it."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from huggingface_hub import constants

from localspec.pairs import curated, folders
from tests.support import ggufs
from tests.support.hub_world import World, world

SCRIPT = Path(__file__).parents[1] / "models" / "verify_catalogue.py"


@pytest.fixture
def hub_world(tmp_path: Path) -> Iterator[World]:
    with world(tmp_path) as found:
        yield found


@pytest.fixture
def catalogue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
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
    for seed, entry in enumerate(curated.pairs().values()):
        for side in (entry.target, entry.draft):
            repos.setdefault(side.repo, {})[side.file] = ggufs.model(seed=seed)
    for name, files in repos.items():
        world_.server.add(name, dict(files))


def test_every_entry_is_checked_and_pinned(
    hub_world: World, catalogue: Path, script: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    serve_everything(hub_world)
    before = curated.pairs()
    assert script.main(["--check"]) == 0
    assert curated.pairs() == before
    assert script.main([]) == 0
    after = curated.pairs()
    assert list(after) == list(before)
    for name, entry in after.items():
        assert entry.verified
        repo = hub_world.server.repos[entry.target.repo]
        assert entry.target.revision == repo.commit
        assert entry.target.sha256 == repo.sha256(entry.target.file)
        assert entry.target.n_bytes == repo.size(entry.target.file)
        assert entry.notes == before[name].notes
    text = catalogue.read_text()
    assert script.main([]) == 0  # pinning again changes nothing
    assert catalogue.read_text() == text
    assert "ok" in capsys.readouterr().out
    assert all(seen.range for seen in hub_world.server.bodies())


def test_entries_that_do_not_hold_are_named_and_left(
    hub_world: World, catalogue: Path, script: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    serve_everything(hub_world)
    entry = curated.pairs()["qwen3-8b"]
    hub_world.server.repos[entry.target.repo].files[entry.target.file] = ggufs.model(["x"] * 300)
    del hub_world.server.repos["bartowski/SmolLM2-135M-Instruct-GGUF"]
    hub_world.server.repos["unsloth/gemma-3-12b-it-qat-GGUF"].gated = "manual"
    assert script.main(["qwen3-8b", "smollm2-1.7b", "gemma-3-12b", "qwen2.5-7b"]) == 1
    out = capsys.readouterr().out
    assert "qwen3-8b: FAILED" in out
    assert "token 5 is 'word5', in the target 'x'" in out
    assert "smollm2-1.7b: FAILED: there is no repository" in out
    assert "gemma-3-12b: FAILED: unsloth/gemma-3-12b-it-qat-GGUF is gated" in out
    assert "qwen2.5-7b: ok" in out
    assert {name for name, one in curated.pairs().items() if one.verified} == {"qwen2.5-7b"}


def test_without_a_network_it_stops(
    hub_world: World,
    catalogue: Path,
    script: ModuleType,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:1")
    assert script.main([]) == 1
    assert "cannot be reached" in capsys.readouterr().err


def test_a_pinned_pair_that_was_replaced_is_refused(
    hub_world: World, catalogue: Path, script: ModuleType
) -> None:
    serve_everything(hub_world)
    assert script.main(["qwen3-8b"]) == 0
    assert hub_world.run("pull", "qwen3-8b", "--dry-run").code == 0
    entry = curated.pairs()["qwen3-8b"]
    hub_world.server.repos[entry.draft.repo].files[entry.draft.file] = ggufs.model(seed=99)
    done = hub_world.run("pull", "qwen3-8b")
    assert done.code == 1
    assert "is not the file that the catalogue was checked with" in done.err
    assert not hub_world.cache.exists()
