"""The sampler chain on its own: limits, bad input, laziness, order."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.engine.round import sampling
from localspec.engine.round.sampling import Dist, Sampler, SamplingParams
from localspec.errors import EngineError, SamplingError

PLAIN = SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)


def logits(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("temperature", -0.1),
        ("temperature", 1e-9),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("top_p", 0.0),
        ("top_p", -1.0),
        ("top_p", 1.01),
        ("top_p", math.nan),
        ("min_p", -0.01),
        ("min_p", 1.5),
        ("min_p", math.nan),
        ("typical_p", 0.0),
        ("typical_p", 2.0),
        ("repeat_penalty", 0.0),
        ("repeat_penalty", -1.0),
        ("repeat_penalty", math.inf),
        ("presence_penalty", math.nan),
        ("presence_penalty", math.inf),
        ("frequency_penalty", -math.inf),
        ("repeat_last_n", -1),
        ("seed", -1),
        # Beyond what 64 bits hold.
        ("seed", 2**63),
        ("top_k", 2**63),
        ("top_k", -(2**63)),
        ("repeat_last_n", 2**63),
        ("logit_bias", {2**63: 1.0}),
        ("logit_bias", {3: math.nan}),
        ("logit_bias", {3: math.inf}),
        ("logit_bias", {-1: 1.0}),
        # Beyond 32-bit floats, where they would mean something else.
        ("temperature", 1e300),
        ("min_p", 1e-300),
        ("presence_penalty", -1e300),
        ("frequency_penalty", 1e39),
        ("logit_bias", {3: 1e300}),
        ("logit_bias", {3: -1e300}),
    ],
)
def test_impossible_settings_are_refused_by_name(setting: str, value: object) -> None:
    with pytest.raises(SamplingError, match=setting.replace("_", "-")) as caught:
        SamplingParams(**{setting: value})  # type: ignore[arg-type]
    assert caught.value.remedy


def test_defaults_are_those_of_llama_cpp() -> None:
    p = SamplingParams()
    assert (p.temperature, p.top_k, p.top_p, p.min_p) == (0.8, 40, 0.95, 0.05)
    assert (p.typical_p, p.repeat_penalty, p.repeat_last_n) == (1.0, 1.0, 64)
    assert not p.penalised
    assert not p.greedy


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("where", [0, 700, 4095, 151_935])
@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(),
        SamplingParams(temperature=0.0),
        PLAIN,
        SamplingParams(top_k=0),
        SamplingParams(top_k=0, top_p=1.0),
        SamplingParams(typical_p=0.9),
    ],
)
def test_impossible_logits_are_refused(params: SamplingParams, where: int, bad: float) -> None:
    x = np.random.default_rng(1).normal(size=max(4096, where + 1)).astype(np.float32)
    x[where] = bad
    with pytest.raises(EngineError, match=r"nan|inf"):
        Sampler(params).row(x, [])


@pytest.mark.parametrize("params", [SamplingParams(), SamplingParams(temperature=0.0), PLAIN])
def test_no_token_left_is_refused(params: SamplingParams) -> None:
    with pytest.raises(SamplingError, match="no token"):
        Sampler(params).row(np.full(100, -np.inf, np.float32), [])


def test_overflow_by_a_low_temperature_is_refused() -> None:
    params = SamplingParams(temperature=1e-6)
    with np.errstate(over="ignore"), pytest.raises(SamplingError, match="temperature"):
        Sampler(params).row(logits(1e35, 0), [])


@pytest.mark.parametrize(
    "extreme",
    [
        {"temperature": 1e6},
        {"min_p": 1e-30},
        {"presence_penalty": 1e6, "frequency_penalty": -1e6},
        {"repeat_penalty": 1e-6},
        {"repeat_penalty": 1e6},
        {"logit_bias": {3: 1e6, 4: -1e6, 5: -math.inf}},
        {"top_p": 1e-300},
        {"typical_p": 1e-300},
    ],
)
@pytest.mark.parametrize("others", [{}, {"top_k": 0, "top_p": 1.0, "min_p": 0.0}])
def test_settings_at_their_limits_make_a_distribution(
    extreme: dict[str, object], others: dict[str, object]
) -> None:
    x = np.random.default_rng(5).normal(size=300).astype(np.float32)
    x[200:] = -np.inf
    dist = Sampler(SamplingParams(**{**others, **extreme})).row(x, [3, 3, 7])  # type: ignore[arg-type]
    assert dist.probs.sum() == pytest.approx(1)
    assert (dist.probs > 0).all()


def test_greedy_is_the_first_of_the_most_probable() -> None:
    dist = Sampler(SamplingParams(temperature=0.0)).row(logits(0, 2, 2, 1), [])
    assert dist.ids.tolist() == [1]
    assert dist.probs.tolist() == [1.0]


def test_plain_softmax() -> None:
    dist = Sampler(PLAIN).row(logits(0, math.log(2), math.log(5)), [])
    assert dist.ids[0] == 2
    assert dist.prob(2) == pytest.approx(5 / 8)
    assert dist.prob(0) == pytest.approx(1 / 8)
    assert dist.prob(9) == 0


def test_top_p_keeps_the_token_that_crosses() -> None:
    x = np.log(np.array([0.5, 0.3, 0.15, 0.05], np.float32))
    kept = {p: len(Sampler(SamplingParams(top_p=p, min_p=0.0)).row(x, []).ids) for p in (0.4, 0.6)}
    assert kept == {0.4: 1, 0.6: 2}


def test_min_p_is_relative_to_the_most_probable() -> None:
    x = np.log(np.array([0.6, 0.25, 0.1, 0.05], np.float32))
    dist = Sampler(SamplingParams(top_p=1.0, min_p=0.3, temperature=1.0)).row(x, [])
    assert dist.ids.tolist() == [0, 1]
    assert dist.prob(1) == pytest.approx(0.25 / 0.85)


def test_filters_see_the_logits_before_the_temperature() -> None:
    x = np.log(np.array([0.6, 0.25, 0.1, 0.05], np.float32))
    hot = SamplingParams(top_p=1.0, min_p=0.3, temperature=5.0)
    assert len(Sampler(hot).row(x, []).ids) == 2


def test_typical_p_ignores_impossible_tokens() -> None:
    x = logits(2, 1, 0, -np.inf, -np.inf)
    dist = Sampler(SamplingParams(typical_p=0.5)).row(x, [])
    assert np.isfinite(dist.probs).all()
    assert set(dist.ids.tolist()) <= {0, 1, 2}


def test_read_only_logits_stay_as_they_are() -> None:
    x = np.random.default_rng(2).normal(size=500).astype(np.float32)
    x.flags.writeable = False
    params = SamplingParams(repeat_penalty=1.3, logit_bias={1: -np.inf, 2: 3.0}, typical_p=0.9)
    copy = x.copy()
    Sampler(params).row(x, [1, 2, 3])
    assert np.array_equal(x, copy)


def test_penalties_advance_over_the_draft() -> None:
    params = SamplingParams(repeat_penalty=1.4, frequency_penalty=0.3, repeat_last_n=4, top_k=0)
    rng = np.random.default_rng(3)
    x = rng.normal(size=(4, 30)).astype(np.float32)
    history, drafted = [5, 1, 7, 7, 2], [3, 3, 9]
    rows = Sampler(params).rows(x, history, drafted)
    for i, dist in enumerate(rows):
        alone = Sampler(params).row(x[i], history + drafted[:i])
        assert dist.ids.tolist() == alone.ids.tolist()
        assert dist.probs.tolist() == alone.probs.tolist()
    stale = Sampler(params).row(x[3], history)
    assert rows[3].probs.tolist() != stale.probs.tolist()


def test_rows_are_computed_when_asked_for_and_once(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    real = Sampler.row

    def spy(self: Sampler, x: np.ndarray, *rest: object) -> Dist:
        seen.append(float(x[0]))
        return real(self, x, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(Sampler, "row", spy)
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    rows = Sampler(SamplingParams()).rows(x, [], [1, 2])
    assert len(rows) == 3
    assert not seen
    assert rows[-1] is rows[2]
    assert rows[0] is rows[0]
    assert seen == [8.0, 0.0]
    assert len(rows[:2]) == 2
    with pytest.raises(IndexError):
        rows[3]


@given(
    st.one_of(st.integers(1, 5000), st.integers(16_300, 17_000)),
    st.integers(1, 400),
    st.integers(0, 5),
    st.integers(0, 99),
)
def test_the_k_largest(n: int, k: int, levels: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=n) if levels == 0 else rng.integers(0, levels, n)
    x = x.astype(np.float32)
    found = sampling._largest(x, k)
    assert found.tolist() == np.argsort(-x, kind="stable")[:k].tolist()


@pytest.mark.few(6)
@pytest.mark.parametrize("n", [1000, 1003, 70_003])
@pytest.mark.parametrize("second", [2.99, 2.9957, 3.0, 20.0])
@pytest.mark.parametrize("ties", [1, 2])
def test_one_token_that_min_p_leaves_alone_is_found_without_the_others(
    n: int, second: float, ties: int
) -> None:
    """The shortcut decides by the same numbers as the full computation, whatever the positions."""
    random = np.random.default_rng(n)
    for _ in range(20):
        x = random.normal(-9, 3, n).astype(np.float32).clip(max=0)
        best = random.choice(n, ties, replace=False)
        other = random.choice([n - 1, n - 2, int(random.integers(n))])
        x[other], x[best] = 20 - second, 20
        found = Sampler(SamplingParams(temperature=0.7)).row(x, [])
        ids = np.argsort(-x, kind="stable")[:40]
        mass = np.exp(x[ids] - x[ids[0]])
        mass /= mass.cumsum()[-1]
        kept = x[ids] >= x[ids[0]] + np.log(np.float32(0.05))
        size = min(1 + int(mass.cumsum().searchsorted(np.float32(0.95))), int(kept.sum()))
        assert found.ids.tolist() == ids[:size].tolist()
        weights = np.exp(
            (x[ids[:size]] / np.float32(0.7) - x[ids[0]] / np.float32(0.7)).astype(float)
        )
        assert found.probs == pytest.approx(weights / weights.sum(), abs=1e-6)


def test_probabilities_on_other_ids_dense_and_sparse() -> None:
    rng = np.random.default_rng(4)
    for k in (5, 3000):
        ids = rng.permutation(10_000)[:k]
        dist = Dist(ids, rng.dirichlet(np.ones(k)))
        asked = rng.permutation(20_000)[:4000]
        assert dist.on(asked).tolist() == pytest.approx([dist.prob(int(i)) for i in asked])


def test_a_history_of_a_larger_vocabulary() -> None:
    """The draft's logits may be fewer than the target's ids."""
    x = logits(3, 2, 1)
    params = SamplingParams(temperature=0, repeat_penalty=9.0, logit_bias={7: 1.0})
    assert Sampler(params).row(x, [0, 5, 99]).ids.tolist() == [1]


@pytest.mark.parametrize("bans", [(), (3,), (3, 7, 40), (99,)])
def test_a_ban_of_another_token_copies_no_logits(
    bans: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    sampler = Sampler(SamplingParams(temperature=0, logit_bias=dict.fromkeys(bans, -math.inf)))
    for seed in range(20):
        logits = np.random.default_rng(seed).integers(0, 9, 50).astype(np.float32)
        allowed = [token for token in range(50) if token not in bans]
        best = max(allowed, key=lambda token: logits[token])
        assert sampler.row(logits, ()).ids.tolist() == [best]
    monkeypatch.setattr(Sampler, "_adjusted", None)
    logits[8] = 10
    assert sampler.row(logits, ()).ids.tolist() == [8]
