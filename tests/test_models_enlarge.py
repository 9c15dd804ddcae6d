"""An enlarged model says what the small one says, at about the size asked for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import gguf
import numpy as np
import pytest

from models import enlarge
from tests.support import gguf_models as made

llama_cpp = pytest.importorskip("llama_cpp")

DRAFT = made.DEMO_TARGET.with_name("draft-Q8_0.gguf")
PROMPT = b"Once upon a time there was"


def open_model(path: Path) -> object:
    return llama_cpp.Llama(str(path), n_ctx=128, n_threads=1, n_gpu_layers=0, verbose=False)


def logits_and_tokens(path: Path, count: int) -> tuple[np.ndarray, list[int]]:
    """The logits after the prompt, and `count` greedy tokens."""
    model = open_model(path)
    try:
        ids = model.tokenize(PROMPT)
        first, tokens = None, []
        for _ in range(count):
            model.eval(ids)
            pointer = llama_cpp.llama_get_logits(model.ctx)
            logits = np.array(pointer[: model.n_vocab()], dtype=np.float64)
            first = logits if first is None else first
            ids = [int(logits.argmax())]
            tokens += ids
        return first, tokens
    finally:
        model.close()


@pytest.mark.parametrize("kind", ["q8_0", "f16", "f32"])
def test_the_function_stays(kind: str, tmp_path: Path) -> None:
    out = tmp_path / "large.gguf"
    shape = enlarge.enlarge(DRAFT, out, 24_000_000, kind)
    assert shape.width > 128
    assert shape.layers > 2
    small, small_tokens = logits_and_tokens(DRAFT, 40)
    large, large_tokens = logits_and_tokens(out, 40)
    # Q8_0 weights make llama.cpp round the activations to 8 bits too; the other types do not.
    assert np.abs(small - large).max() < (1e-3 if kind == "q8_0" else 0.3)
    if kind == "q8_0":
        assert large_tokens == small_tokens


@pytest.mark.parametrize(("kind", "tolerance"), [("q8_0", 0.02), ("f16", 0.02), ("q4_0", 0.02)])
def test_the_size_is_the_one_asked_for(kind: str, tolerance: float, tmp_path: Path) -> None:
    out = tmp_path / "large.gguf"
    enlarge.enlarge(DRAFT, out, 30_000_000, kind)
    assert out.stat().st_size == pytest.approx(30_000_000, rel=tolerance)


def test_llama_cpp_writes_its_mixed_types(tmp_path: Path) -> None:
    out = tmp_path / "large.gguf"
    enlarge.enlarge(DRAFT, out, 12_000_000, "q4_k_m")
    kinds = {tensor.tensor_type.name for tensor in gguf.GGUFReader(out).tensors}
    assert "Q4_K" in kinds
    logits, _ = logits_and_tokens(out, 1)
    assert np.isfinite(logits).all()


def test_tokenizer_and_template_are_copied(tmp_path: Path) -> None:
    out = tmp_path / "large.gguf"
    enlarge.enlarge(DRAFT, out, 8_000_000, "q8_0")
    assert made.read_vocabulary(out) == made.read_vocabulary(DRAFT)


def test_a_size_below_the_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(enlarge.EnlargeError, match="smaller"):
        enlarge.enlarge(DRAFT, tmp_path / "large.gguf", 100_000, "q8_0")


def test_an_unknown_type_is_refused(tmp_path: Path) -> None:
    with pytest.raises(enlarge.EnlargeError, match="type"):
        enlarge.enlarge(DRAFT, tmp_path / "large.gguf", 12_000_000, "q9_z")


def test_other_architectures_are_refused(tmp_path: Path) -> None:
    other = made.write_random_qwen3(tmp_path / "other.gguf")
    with pytest.raises(enlarge.EnlargeError, match="llama"):
        enlarge.enlarge(other, tmp_path / "large.gguf", 12_000_000, "q8_0")


def test_the_command_makes_a_pair(tmp_path: Path) -> None:
    script = Path(enlarge.__file__)
    sizes = ["--target-size", "24M", "--draft-size", "4M", "--type", "q8_0"]
    done = subprocess.run(
        [sys.executable, str(script), "demo", *sizes, str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "MB" in done.stdout
    assert (tmp_path / "target-Q8_0.gguf").exists()
    assert (tmp_path / "draft-Q8_0.gguf").exists()


@pytest.mark.parametrize(("text", "value"), [("150M", 150_000_000), ("1.5G", 1_500_000_000)])
def test_sizes_are_read(text: str, value: int) -> None:
    assert enlarge.parse_size(text) == value
