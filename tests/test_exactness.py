"""`--exact`: settings under which passes of all sizes give the same bits, as far as they do."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from localspec.cli.subcommands import cli
from localspec.engine.cancel import Cancel
from localspec.engine.length.profile import Profile, ProfileStore
from localspec.engine.llama import Context
from localspec.errors import UsageError
from localspec.loading.load import load_session
from localspec.loading.load_request import LoadRequest
from localspec.loading.measurements import exactness

from .support.gguf_models import write_random_llama

DEPTH = 300  # more than 256 cells: several threads would share a single token's attention


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LOCALSPEC_CACHE", str(tmp_path))
    monkeypatch.setenv("LOCALSPEC_ENGINE", "inline")
    return tmp_path


def loaded(target: Path, **how: Any) -> Iterator[tuple[Context, Any]]:
    request = LoadRequest(pair=str(target), draft="none", gamma=0, ctx_size=512, **how)
    session = load_session(request, progress=lambda *_: None, cancel=Cancel())
    try:
        yield session.pair.target, session
    finally:
        session.close()


def unequal(target: Context, most: int = 8) -> list[int]:
    """The sizes of passes that differ by a bit from single tokens, along a greedy text."""
    text = target.model.tokenize(60 * "Once upon a time. ", add_special=True, parse_special=False)
    target.clear()
    target.decode(text[:DEPTH], 0)
    tokens, singles = [text[DEPTH]], []
    for _ in range(most):
        singles.append(target.decode(tokens[-1:], 1)[0].copy())
        tokens.append(int(singles[-1].argmax()))
    found = []
    for n in range(2, most + 1):
        target.truncate(DEPTH)
        if not np.array_equal(target.decode(tokens[:n], n), singles[:n]):
            found.append(n)
    return found


@pytest.mark.slow
def test_passes_of_every_size_give_the_same_bits_and_else_not(toy_target: Path) -> None:
    for target, session in loaded(toy_target, exact=True):
        assert unequal(target) == []
        assert session.pair.loaded.exact == 16
        assert not session.notices
    for target, session in loaded(toy_target, flash_attn="on", threads=2):
        assert unequal(target, 4) == [2, 3, 4]
        assert session.pair.loaded.exact is None


@pytest.mark.slow
def test_where_it_cannot_be_had_one_line_says_so(tmp_path: Path) -> None:
    path = write_random_llama(tmp_path / "f16.gguf", type="f16")
    for target, session in loaded(path, exact=True):
        notices = [each for each in session.notices if "--exact" in each]
        if session.pair.loaded.exact == 1:
            assert unequal(target, 2) == [2]
            assert len(notices) == 1
            assert "is not possible" in notices[0]
        else:  # a processor whose kernels are alike
            assert not notices


def test_a_device_that_gives_other_bits_every_time_ends_nothing(
    target_context: Context, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn, decode = np.random.default_rng(0), Context.decode
    monkeypatch.setattr(Context, "decode", lambda *asked: decode(*asked) + drawn.random())
    store, announced = ProfileStore(tmp_path), []
    for _ in range(2):
        found = exactness.longest(
            target_context, {"use": "exact"}, store=store, announce=lambda: announced.append(1)
        )
        assert found == 1
    assert announced == [1]
    store.save(Profile({"use": "exact"}, {}))  # damaged
    assert exactness.stored({"use": "exact"}, store) is None


def run(*arguments: str) -> Any:
    asked = ["run", "-n", "48", "--temp", "0", "--json", "-p", "Once upon a time", *arguments]
    done = CliRunner().invoke(cli, asked, catch_exceptions=False)
    assert done.exit_code == 0
    return json.loads(done.stdout)


def test_drafts_keep_to_the_sizes_that_are_alike(cache: Path) -> None:
    plain, drafted = (run("toy", "--exact", "--gamma", gamma) for gamma in ("0", "40"))
    assert drafted["tokens"] == plain["tokens"]
    assert drafted["settings"]["exact"] == plain["settings"]["exact"] == 16
    assert max(done["drafted"] for done in drafted["rounds"]) == 15
    (trial,) = (path for path in cache.rglob("*.json") if '"exact"' in path.read_text())
    trial.write_text(trial.read_text().replace('"16"', '"3"').replace('"15"', '"2"'))
    assert "--exact     passes of up to 14" in _shown()


def _shown() -> str:
    return CliRunner().invoke(cli, ["show", "toy", "--no-scan"], catch_exceptions=False).stdout


def test_show_says_what_is_known(toy_target: Path) -> None:
    assert "--exact     not tried yet on this machine: `localspec tune toy --exact`" in _shown()


def test_without_flash_attention_it_is_wrong_usage(toy_target: Path) -> None:
    with pytest.raises(UsageError, match="needs flash attention"):
        run("--target", str(toy_target), "--exact", "--flash-attn", "off")
