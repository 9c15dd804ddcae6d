"""The demo pair at its first start: padded once, what it was but for rounding, never in the way."""

from __future__ import annotations

import os
import shutil
from itertools import pairwise
from pathlib import Path
from time import perf_counter
from typing import Any

import gguf
import numpy as np
import pytest

import localspec
from localspec.engine.cancel import Cancel
from localspec.loading.load import load_session
from localspec.loading.request import LoadRequest
from localspec.pairs import demo, folders, remove
from localspec.pairs.gguf.header import read_header
from localspec.pairs.hub.patience import Patience

SHIPPED = Path(__file__).parent.parent / "models" / "demo"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the padded files, smaller than in use."""
    monkeypatch.setenv("LOCALSPEC_CACHE", str(tmp_path))
    monkeypatch.delenv(demo.SWITCH, raising=False)
    monkeypatch.setattr(demo, "TARGET_BYTES", 40_000_000)
    monkeypatch.setattr(demo, "DRAFT_BYTES", 8_000_000)
    return tmp_path / "demo"


def test_it_is_padded_once(cache: Path) -> None:
    assert demo.pair().target.path.parent == SHIPPED
    assert demo.to_be_padded()
    assert demo.pad() == demo.SAID
    assert not demo.to_be_padded()
    found = demo.pair()
    assert found.target.n_bytes == pytest.approx(40_000_000, rel=0.05)
    assert found.draft is not None
    assert found.draft.n_bytes == pytest.approx(8_000_000, rel=0.05)
    assert {found.target.path, found.draft.path} == set(cache.iterdir())
    small, large = read_header(next(SHIPPED.glob("target*"))), read_header(found.target.path)
    assert list(small.tokens or ()) == list(large.tokens or ())
    assert small.text("tokenizer.chat_template") == large.text("tokenizer.chat_template")


def test_every_weight_is_the_shipped_one_in_f16_and_the_rest_is_zero(cache: Path) -> None:
    demo.pad()
    small = gguf.GGUFReader(next(SHIPPED.glob("draft*")))
    large = gguf.GGUFReader(next(cache.glob("draft*")))
    gain = np.float32(np.sqrt(small.tensors[0].shape[0] / large.tensors[0].shape[0]))
    found = {tensor.name: tensor for tensor in large.tensors}
    assert {t.tensor_type.name for t in large.tensors if len(t.shape) > 1} == {"F16"}
    assert large.fields["general.file_type"].contents() == gguf.LlamaFileType.MOSTLY_F16
    for tensor in small.tensors:
        old = gguf.dequantize(tensor.data, tensor.tensor_type)
        new = found[tensor.name].data.astype(np.float32)
        same = tuple(slice(size) for size in old.shape)
        expected = old * gain if old.ndim == 1 and old.shape != new.shape else old
        np.testing.assert_allclose(new[same], expected, rtol=2**-11, atol=1e-7)
        assert np.count_nonzero(new) <= np.count_nonzero(old)


def test_whoever_loads_it_is_told_once_and_hears_the_same_words(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer() -> tuple[str, list[str], int]:
        how: dict[str, Any] = {"threads": 1, "flash_attn": "on"}  # the buffers depend on both
        with localspec.load("demo", temp=0, gamma=0, n_predict=24, **how) as chat:
            text = "".join(piece.text for piece in chat.ask("Tell me a story."))
            return text, list(chat.notices), chat.loaded.memory_plan_bytes

    first, told, large = answer()
    again, silent, _ = answer()
    monkeypatch.setenv(demo.SWITCH, "small")
    shipped, _, small = answer()
    assert first == again == shipped
    assert demo.SAID in told
    assert demo.SAID not in silent
    assert large > small + 20_000_000


def test_other_models_are_padded_anew_and_the_old_ones_go(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    demo.pad()
    before = set(cache.iterdir())
    other = tmp_path / "shipped" / "demo"
    other.mkdir(parents=True)
    for path in SHIPPED.glob("*.gguf"):
        raw = bytearray(path.read_bytes())
        raw[-1] ^= 1
        (other / path.name).write_bytes(raw)
    monkeypatch.setattr(folders, "shipped", lambda name: tmp_path / "shipped" / name)
    assert demo.to_be_padded()
    demo.pad()
    assert len(set(cache.iterdir())) == 2
    assert not before & set(cache.iterdir())


def test_as_they_ship_where_that_is_wanted(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    demo.pad()
    monkeypatch.setenv(demo.SWITCH, "small")
    assert not demo.to_be_padded()
    assert demo.pair().target.path.parent == SHIPPED


def test_no_room_is_no_failure(cache: Path) -> None:
    cache.write_text("a file where the folder should be")
    assert "could not be padded" in demo.pad()
    assert demo.pair().target.path.parent == SHIPPED


def test_a_write_that_breaks_off_leaves_nothing(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr("localspec.pairs.gguf.padding._write", full)
    assert "No space left" in demo.pad()
    assert list(cache.iterdir()) == []


def test_removing_it_takes_the_padded_files(cache: Path) -> None:
    demo.pad()
    size = sum(model.n_bytes for model in demo.pair().models)
    assert remove.remove("demo", Patience()).freed == size
    assert list(cache.iterdir()) == []
    assert demo.to_be_padded()
    assert remove.remove("demo", Patience()).freed == 0


def test_what_another_pair_uses_of_the_demo_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "_folder", lambda: tmp_path)
    kept, gone = tmp_path / "target-a.gguf", tmp_path / "draft-a.gguf"
    for path in (kept, gone):
        path.write_bytes(b"12345")
    assert demo.unpad({kept}) == 5
    assert kept.exists()
    assert not gone.exists()


def first_start(folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[float, float]:
    """Seconds until a pair is ready of which nothing is known, and those of them that measured."""
    monkeypatch.setenv("LOCALSPEC_CACHE", str(folder))
    steps = [(perf_counter(), "")]
    session = load_session(
        LoadRequest(pair="demo"),
        progress=lambda says, _: steps.append((perf_counter(), says)),
        cancel=Cancel(),
    )
    steps.append((perf_counter(), ""))
    session.close()
    measuring = sum(
        end - start for (start, says), (end, _) in pairwise(steps) if says.startswith("Measuring")
    )
    return steps[-1][0] - steps[0][0], measuring


@pytest.mark.slow
def test_the_first_start_measures_five_seconds_and_is_ready_within_ten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At its full size: padded, compared, measured. A pass begun in time may end after it."""
    monkeypatch.delenv(demo.SWITCH, raising=False)
    starts = [first_start(tmp_path / str(turn), monkeypatch) for turn in range(2)]
    for folder in tmp_path.iterdir():
        shutil.rmtree(folder / "demo")
    ready, measuring = map(min, zip(*starts, strict=True))
    assert 0.5 < measuring < 5.5
    assert ready < 10
