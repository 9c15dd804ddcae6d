"""The helper models load in llama.cpp and decode."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest

from tests.support import gguf_models as made

if TYPE_CHECKING:
    from pathlib import Path

llama_cpp = pytest.importorskip("llama_cpp")


def load(path: Path, **options: object) -> object:
    return llama_cpp.Llama(
        str(path), n_ctx=128, n_threads=1, n_gpu_layers=0, verbose=False, **options
    )


def logits_after(path: Path, text: bytes = b"Once upon a time") -> list[float]:
    model = load(path)
    try:
        model.eval(model.tokenize(text))
        count = model.n_vocab()
        pointer = llama_cpp.llama_get_logits(model.ctx)
        return [float(pointer[i]) for i in range(count)]
    finally:
        model.close()


@pytest.mark.parametrize("kind", sorted(made.GENERATORS))
def test_a_generator_gives_finite_logits_that_are_not_flat(kind: str, tmp_path: Path) -> None:
    logits = logits_after(made.GENERATORS[kind](tmp_path / "model.gguf"))
    assert all(math.isfinite(value) for value in logits)
    assert max(logits) - min(logits) > 1


def test_the_same_seed_writes_the_same_bytes(tmp_path: Path) -> None:
    first = made.write_random_llama(tmp_path / "a.gguf", seed=3).read_bytes()
    assert made.write_random_llama(tmp_path / "b.gguf", seed=3).read_bytes() == first
    assert made.write_random_llama(tmp_path / "c.gguf", seed=4).read_bytes() != first


def test_the_random_draft_has_the_demo_vocabulary(tmp_path: Path) -> None:
    draft = made.write_random_llama(tmp_path / "draft.gguf")
    assert made.read_vocabulary(draft) == made.read_vocabulary(made.DEMO_TARGET)


def test_the_other_vocabulary_differs(tmp_path: Path) -> None:
    other = made.read_vocabulary(made.write_other_vocabulary(tmp_path / "other.gguf"))
    assert other.tokens != made.read_vocabulary(made.DEMO_TARGET).tokens
    assert len(other.tokens) == 322


def test_the_embedding_model_gives_an_embedding(tmp_path: Path) -> None:
    model = load(made.write_embedding_model(tmp_path / "embedding.gguf"), embedding=True)
    try:
        assert len(model.embed("Once upon a time")) == 64
    finally:
        model.close()
