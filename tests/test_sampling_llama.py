"""The chain keeps what llama.cpp's own samplers keep, with the same probabilities to 1e-5."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from llama_cpp import llama_cpp as lib

from localspec.engine.llama import Context, ContextOptions, Model
from localspec.engine.round.sampling import Sampler, SamplingParams

CLOSE = 1e-5
HISTORY = [3, 3, 5, 7, 3, 11, 5, 2, 9, 3, 1, 4]

OFF = {"top_k": 0, "top_p": 1.0, "min_p": 0.0, "temperature": 1.0}
CHAINS: dict[str, dict[str, object]] = {
    "defaults": {},
    "temperature low": OFF | {"temperature": 0.3},
    "temperature high": OFF | {"temperature": 5.0},
    "temperature 1e-3": OFF | {"temperature": 1e-3},
    "greedy": {"temperature": 0.0},
    "greedy after typical-p": {"temperature": 0.0, "typical_p": 0.3},
    "top-k 1": OFF | {"top_k": 1},
    "top-k 7": OFF | {"top_k": 7},
    "top-k 300": OFF | {"top_k": 300},
    "top-k beyond the vocabulary": OFF | {"top_k": 1_000_000},
    "top-p": OFF | {"top_p": 0.9},
    "top-p tiny": OFF | {"top_p": 1e-6},
    "min-p": OFF | {"min_p": 0.1},
    "min-p 1": OFF | {"min_p": 1.0},
    "top-p and min-p": OFF | {"top_p": 0.9, "min_p": 0.02},
    "typical-p": OFF | {"typical_p": 0.5},
    "typical-p after top-k": {"typical_p": 0.9},
    "repeat penalty": OFF | {"repeat_penalty": 1.3},
    "repeat reward": OFF | {"repeat_penalty": 0.8},
    "presence penalty": OFF | {"presence_penalty": 0.7},
    "frequency penalty": OFF | {"frequency_penalty": 0.4},
    "penalties over a short window": {
        "repeat_penalty": 1.2,
        "presence_penalty": -0.5,
        "frequency_penalty": 0.2,
        "repeat_last_n": 5,
    },
    "penalties off by window": {"repeat_penalty": 1.5, "repeat_last_n": 0},
    "logit bias": OFF | {"logit_bias": {0: -np.inf, 3: 2.5, 7: -1.0, 10_000_000: 1.0}},
    "everything": {
        "temperature": 1.3,
        "top_k": 60,
        "typical_p": 0.95,
        "top_p": 0.9,
        "min_p": 0.01,
        "repeat_penalty": 1.1,
        "presence_penalty": 0.1,
        "frequency_penalty": 0.2,
        "repeat_last_n": 8,
        "logit_bias": {3: 1.0, 5: -2.0},
    },
}


EVERY = [7, pytest.param(1, marks=pytest.mark.slow)]
"""Each seventh of a hundred vectors of logits, or all."""


class LlamaChain:
    """The same settings as a chain of llama.cpp's samplers."""

    def __init__(self, p: SamplingParams, n_vocab: int, history: Sequence[int]) -> None:
        self._chain = lib.llama_sampler_chain_init(lib.llama_sampler_chain_default_params())
        bias = (lib.llama_logit_bias * len(p.logit_bias))(*p.logit_bias.items())
        self._add(lib.llama_sampler_init_logit_bias(n_vocab, len(bias), bias))
        penalties = lib.llama_sampler_init_penalties(
            n_vocab, p.repeat_last_n, p.repeat_penalty, p.frequency_penalty, p.presence_penalty
        )
        self._add(penalties)
        self._add(lib.llama_sampler_init_top_k(p.top_k))
        self._add(lib.llama_sampler_init_typical(p.typical_p, 0))
        self._add(lib.llama_sampler_init_top_p(p.top_p, 0))
        self._add(lib.llama_sampler_init_min_p(p.min_p, 0))
        self._add(lib.llama_sampler_init_temp(p.temperature))
        self._add(lib.llama_sampler_init_dist(1))
        for token in history:
            lib.llama_sampler_accept(penalties, token)

    def _add(self, sampler: object) -> None:
        lib.llama_sampler_chain_add(self._chain, sampler)

    def probs(self, logits: np.ndarray) -> np.ndarray:
        n = len(logits)
        data = (lib.llama_token_data * n)()
        view = np.frombuffer(data, [("id", "i4"), ("logit", "f4"), ("p", "f4")])
        view["id"], view["logit"], view["p"] = np.arange(n), logits, 0
        array = lib.llama_token_data_array(data, n, -1, False)
        lib.llama_sampler_apply(self._chain, ctypes.byref(array))
        kept = view[: array.size]
        dense = np.zeros(n)
        dense[kept["id"]] = kept["p"]
        return dense

    def close(self) -> None:
        lib.llama_sampler_free(self._chain)


def ours(p: SamplingParams, logits: np.ndarray, history: Sequence[int]) -> np.ndarray:
    dist = Sampler(p).row(logits, history)
    assert len(set(dist.ids.tolist())) == len(dist.ids)
    assert (dist.probs > 0).all()
    assert abs(dist.probs.sum() - 1) < 1e-12
    assert dist.probs[0] == dist.probs.max()
    return dist.on(np.arange(len(logits)))


def both(chain: dict[str, object], logits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    params = SamplingParams(**chain)  # type: ignore[arg-type]
    theirs = LlamaChain(params, len(logits), HISTORY)
    try:
        before = logits.copy()
        pair = ours(params, logits, HISTORY), theirs.probs(logits)
        assert np.array_equal(logits, before)
    finally:
        theirs.close()
    return pair


@pytest.fixture(scope="module")
def real_logits(target_model: Model) -> np.ndarray:
    """(100, n_vocab): the toy target's logits along a text."""
    text = (
        "Once upon a time there was a dog who had two friends, a cat and a bird. They lived in "
        "a small house near the woods. One day the cat said: what shall we play? The dog ran "
        "around the tree and barked. Then it began to rain, and they went inside to eat. "
    )
    tokens = target_model.tokenize(text * 4, add_special=True, parse_special=False)[:100]
    with Context(target_model, ContextOptions(n_ctx=128, threads=1)) as context:
        rows = [context.decode(part, len(part)).copy() for part in (tokens[:50], tokens[50:])]
    return np.concatenate(rows)


def random_logits() -> Iterator[np.ndarray]:
    """100 vectors of many sizes, widths and shapes."""
    rng = np.random.default_rng(20)
    for i in range(100):
        n = int(rng.choice([12, 50, 300, 2000, 20000], p=[0.2, 0.2, 0.2, 0.3, 0.1]))
        width = float(rng.choice([0.1, 1.0, 3.0, 10.0]))
        logits = rng.normal(rng.normal(), width, n) if i % 2 else rng.gumbel(0, width, n)
        yield logits.astype(np.float32)


@pytest.mark.parametrize("every", EVERY)
@pytest.mark.parametrize("chain", CHAINS)
def test_random_logits(chain: str, every: int) -> None:
    for logits in itertools.islice(random_logits(), 0, None, every):
        if chain == "typical-p" and np.ptp(logits) > 80:
            continue  # a probability underflows, and llama.cpp's entropy becomes NaN
        a, b = both(CHAINS[chain], logits)
        assert np.abs(a - b).max() < CLOSE


@pytest.mark.parametrize("every", EVERY)
@pytest.mark.parametrize("chain", CHAINS)
def test_real_logits(chain: str, every: int, real_logits: np.ndarray) -> None:
    for logits in real_logits[::every]:
        a, b = both(CHAINS[chain], logits)
        assert np.abs(a - b).max() < CLOSE


def extremes() -> Iterator[tuple[str, np.ndarray]]:
    rng = np.random.default_rng(5)
    yield "all equal", np.full(50, 1.5, np.float32)
    yield "all equal, many", np.full(5000, -3.0, np.float32)
    yield "ties", rng.integers(0, 4, 400).astype(np.float32)
    yield "huge", (rng.normal(size=200) * 1e4).astype(np.float32)
    yield "one far ahead", np.r_[np.float32(80), np.zeros(99, np.float32)].astype(np.float32)
    yield "zeros of both signs", np.array([0.0, -0.0] * 20, np.float32)
    minus = rng.normal(size=300).astype(np.float32)
    minus[rng.random(300) < 0.9] = -np.inf
    yield "some minus infinity", minus
    few = np.full(500, -np.inf, np.float32)
    few[[0, 4, 499]] = 1, 2, 3
    yield "three left", few


@pytest.mark.parametrize("chain", CHAINS)
def test_ties_and_extremes(chain: str) -> None:
    """Which of several equal tokens survives is undefined: sorted probabilities are compared."""
    for name, logits in extremes():
        typical = "typical" in chain or chain == "everything"
        if typical and not np.isfinite(logits).all():
            continue  # llama.cpp's entropy is NaN there
        if chain == "everything" and name in ("ties", "all equal", "zeros of both signs"):
            continue  # penalties split ties, and typical-p then cuts among others
        a, b = both(CHAINS[chain], logits)
        assert np.abs(np.sort(a) - np.sort(b)).max() < CLOSE, name


def test_the_comparison_can_fail() -> None:
    """Negative control: another order of the chain is told apart."""
    logits = np.random.default_rng(1).normal(0, 2, 100).astype(np.float32)
    early = SamplingParams(temperature=1.0, top_p=0.8, top_k=0, min_p=0.0)
    a = ours(early, (logits / np.float32(2)), HISTORY)
    _, b = both({"temperature": 2.0, "top_p": 0.8, "top_k": 0, "min_p": 0.0}, logits)
    assert np.abs(a - b).max() > 100 * CLOSE
