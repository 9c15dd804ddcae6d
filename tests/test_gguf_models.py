"""The helper models load in llama.cpp and decode."""

from __future__ import annotations

from typing import TYPE_CHECKING

import llama_cpp
import numpy as np
import pytest

from localspec.engine.llama import Context, ContextOptions, Model
from tests.support import gguf_models as made
from tests.support import toy

if TYPE_CHECKING:
    from pathlib import Path


def logits_after(path: Path, text: str = "Once upon a time") -> np.ndarray:
    options = ContextOptions(n_ctx=128, threads=1)
    with Model.load(path, n_gpu_layers=0) as model, Context(model, options) as context:
        tokens = model.tokenize(text, add_special=True, parse_special=False)
        return context.decode(tokens, 1)[0].copy()


@pytest.mark.parametrize("kind", sorted(made.GENERATORS))
def test_a_generator_gives_finite_logits_that_are_not_flat(kind: str, tmp_path: Path) -> None:
    logits = logits_after(made.GENERATORS[kind](tmp_path / "model.gguf"))
    assert np.isfinite(logits).all()
    assert np.ptp(logits) > 1


def test_the_same_seed_writes_the_same_bytes(tmp_path: Path) -> None:
    first = made.write_random_llama(tmp_path / "a.gguf", seed=3).read_bytes()
    assert made.write_random_llama(tmp_path / "b.gguf", seed=3).read_bytes() == first
    assert made.write_random_llama(tmp_path / "c.gguf", seed=4).read_bytes() != first


def test_the_random_draft_has_the_toys_vocabulary(tmp_path: Path) -> None:
    draft = made.write_random_llama(tmp_path / "draft.gguf")
    assert made.read_vocabulary(draft) == made.read_vocabulary(toy.TARGET)


def test_the_other_vocabulary_differs(tmp_path: Path) -> None:
    other = made.read_vocabulary(made.write_other_vocabulary(tmp_path / "other.gguf"))
    assert other.tokens != made.read_vocabulary(toy.TARGET).tokens
    assert len(other.tokens) == 322


def test_the_embedding_model_gives_an_embedding(tmp_path: Path) -> None:
    path = made.write_embedding_model(tmp_path / "embedding.gguf")
    model = llama_cpp.Llama(str(path), n_ctx=128, n_gpu_layers=0, embedding=True, verbose=False)
    try:
        assert len(model.embed("Once upon a time")) == 64
    finally:
        model.close()
