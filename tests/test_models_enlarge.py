"""An enlarged model says what the small one says, at about the size asked for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import gguf
import numpy as np
import pytest

from localspec.engine.llama import Context, ContextOptions, Model
from localspec.pairs.gguf import heads
from localspec.pairs.gguf.header import read_header, read_model
from models import enlarge
from tests.support import gguf_models as made
from tests.support import toy

DRAFT = toy.TARGET.with_name("draft-Q8_0.gguf")
PROMPT = "Once upon a time there was"


def logits_and_tokens(path: Path, count: int) -> tuple[np.ndarray, list[int]]:
    """The logits after the prompt, and `count` greedy tokens."""
    options = ContextOptions(n_ctx=128, threads=1, flash_attention=True)
    with Model.load(path, n_gpu_layers=0) as model, Context(model, options) as context:
        logits = context.decode(model.tokenize(PROMPT, add_special=True, parse_special=False), 1)
        first, tokens = logits[0].copy(), []
        for _ in range(count):
            tokens.append(int(logits[0].argmax()))
            logits = context.decode(tokens[-1:], 1)
        return first, tokens


@pytest.mark.parametrize(
    ("kind", "size"), [("q8_0", 24_000_000), ("f16", 48_000_000), ("f32", 96_000_000)]
)
def test_the_function_stays(kind: str, size: int, tmp_path: Path) -> None:
    out = tmp_path / "large.gguf"
    shape = enlarge.enlarge(DRAFT, out, size, kind)
    assert shape.width > 192
    assert shape.layers > 2
    small, small_tokens = logits_and_tokens(DRAFT, 40)
    large, large_tokens = logits_and_tokens(out, 40)
    if kind == "q8_0":  # the type of the small one: not a bit changes
        assert np.array_equal(small, large)
        assert large_tokens == small_tokens
    else:  # whose arithmetic does not round the activations to 8 bits
        assert np.abs(small - large).max() < 0.3


def test_f16_of_f16_changes_nothing_either(tmp_path: Path) -> None:
    first, second = tmp_path / "first.gguf", tmp_path / "second.gguf"
    enlarge.enlarge(DRAFT, first, 3_600_000, "f16")
    shape = enlarge.enlarge(first, second, 40_000_000, "f16")
    assert shape.width > 192
    small, small_tokens = logits_and_tokens(first, 40)
    large, large_tokens = logits_and_tokens(second, 40)
    assert np.array_equal(small, large)
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


def test_every_size_from_the_model_up_can_be_had() -> None:
    small = enlarge.read_shape(read_header(DRAFT))
    for parameters in range(small.parameters, 40 * small.parameters, small.parameters // 7):
        shape = enlarge.sized(small, parameters, 32)
        assert shape.layers >= small.layers
        assert shape.feed_forward >= small.feed_forward
        assert shape.parameters == pytest.approx(parameters, rel=0.07)


def test_an_unknown_type_is_refused(tmp_path: Path) -> None:
    with pytest.raises(enlarge.EnlargeError, match="type"):
        enlarge.enlarge(DRAFT, tmp_path / "large.gguf", 12_000_000, "q9_z")


def test_other_architectures_are_refused(tmp_path: Path) -> None:
    other = made.write_random_qwen3(tmp_path / "other.gguf")
    with pytest.raises(enlarge.EnlargeError, match="llama"):
        enlarge.enlarge(other, tmp_path / "large.gguf", 12_000_000, "q8_0")


def test_the_command_makes_a_pair(tmp_path: Path) -> None:
    script = Path(enlarge.__file__)
    sizes = ["--target-size", "24M", "--draft-size", "4M", "--type", "q8_0", "--heads"]
    done = subprocess.run(
        [sys.executable, str(script), "demo", *sizes, str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "MB" in done.stdout
    written = {
        role: tmp_path / f"{role}-Q8_0.gguf" for role in ("target", "draft", "mtp", "eagle3")
    }
    assert all(path.exists() for path in written.values())
    heads.require_head(read_model(written["eagle3"]), read_header(written["target"]))
    heads.require_mtp(read_header(written["mtp"]), "it")


@pytest.mark.parametrize(("text", "value"), [("150M", 150_000_000), ("1.5G", 1_500_000_000)])
def test_sizes_are_read(text: str, value: int) -> None:
    assert enlarge.parse_size(text) == value
