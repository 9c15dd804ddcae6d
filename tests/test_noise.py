"""Draws follow their distribution; counter-based ones depend only on seed, position and id."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from localspec.engine.grammars.constraint import Anything
from localspec.engine.round import noise as noise_module
from localspec.engine.round.noise import CounterNoise, Noise, StreamNoise
from localspec.engine.round.params import SamplingParams
from localspec.engine.round.sampling import Dist, Sampler

# Upper 1e-6 quantiles of chi-square by degrees of freedom: the false-alarm rate per comparison,
# if another generator were chosen.
LIMIT = {4: 33.4, 9: 45.1, 19: 63.9, 99: 182.7}

P = Dist(np.array([7, 2, 30, 1, 100_000]), np.array([0.4, 0.3, 0.2, 0.09, 0.01]))


def chi_square(counts: np.ndarray, expected: np.ndarray) -> float:
    return float(((counts - expected) ** 2 / expected).sum())


@pytest.mark.parametrize("noise", [StreamNoise(5), CounterNoise(5)])
def test_draws_follow_the_distribution(noise: Noise) -> None:
    n = 20_000
    drawn = np.array([noise.pick(P, position) for position in range(n)])
    counts = np.array([(drawn == token).sum() for token in P.ids])
    assert counts.sum() == n
    assert chi_square(counts, n * P.probs) < LIMIT[4]
    assert chi_square(counts, n * np.roll(P.probs, 1)) > LIMIT[4]


def test_counter_noise_over_seeds() -> None:
    """At one fixed position over many seeds, as users draw it."""
    n = 10_000
    drawn = np.array([CounterNoise(seed).pick(P, 42) for seed in range(n)])
    counts = np.array([(drawn == token).sum() for token in P.ids])
    assert chi_square(counts, n * P.probs) < LIMIT[4]


@pytest.mark.slow
def test_neighbouring_positions_and_seeds_are_independent() -> None:
    dist = Dist(np.arange(10), np.full(10, 0.1))
    n = 10_000
    noise = CounterNoise(1)
    by_position = [noise.pick(dist, position) for position in range(n + 1)]
    by_seed = [CounterNoise(seed).pick(dist, 7) for seed in range(n + 1)]
    for drawn in (by_position, by_seed):
        pairs = np.zeros((10, 10))
        np.add.at(pairs, (drawn[:-1], drawn[1:]), 1)
        assert chi_square(pairs, np.full((10, 10), n / 100)) < LIMIT[99]


@pytest.mark.parametrize("drawn", [0, 2**64 - 1])
def test_exponentials_are_finite_and_above_zero(
    drawn: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This holds even where all bits of the hash are the same."""
    monkeypatch.setattr(noise_module, "_STEP", np.uint64(0))
    unmixed = _unmix(drawn)
    monkeypatch.setattr(noise_module, "_mix", lambda _z: unmixed)
    exponential = CounterNoise(1).exponentials(np.array([5]), 3)[0]
    assert 0 < exponential < 40


def _unmix(z: int) -> int:
    """SplitMix64's output function backwards."""

    def unshift(z: int, by: int) -> int:
        x = z
        for _ in range(64 // by + 1):
            x = z ^ (x >> by)
        return x

    mask = (1 << 64) - 1
    z = unshift(z, 31) * pow(0x94D049BB133111EB, -1, 1 << 64) & mask
    z = unshift(z, 27) * pow(0xBF58476D1CE4E5B9, -1, 1 << 64) & mask
    return unshift(z, 30)


def test_exponentials_are_exponential_and_uncorrelated() -> None:
    noise = CounterNoise(9)
    drawn = np.stack([noise.exponentials(np.arange(500), position) for position in range(200)])
    uniform = np.sort(np.exp(-drawn).ravel())
    n = uniform.size
    gap = np.abs(uniform - (np.arange(n) + 0.5) / n).max()
    assert gap < 2.7 / np.sqrt(n)  # Kolmogorov-Smirnov, false alarm 1e-6
    for a, b in ((drawn[1:], drawn[:-1]), (drawn[:, 1:], drawn[:, :-1])):
        assert abs(np.corrcoef(a.ravel(), b.ravel())[0, 1]) < 5 / np.sqrt(n)


def test_counter_noise_depends_on_nothing_else() -> None:
    noise = CounterNoise(3)
    first = [noise.pick(P, position) for position in range(50)]
    noise.chance(0.5)
    shuffled = Dist(P.ids[::-1].copy(), P.probs[::-1].copy())
    again = [noise.pick(shuffled, position) for position in reversed(range(50))]
    assert first == again[::-1]
    assert first != [CounterNoise(4).pick(P, position) for position in range(50)]


def test_the_same_seed_gives_the_same_stream() -> None:
    for kind in (StreamNoise, CounterNoise):
        a, b = kind(8), kind(8)
        assert [a.pick(P, i) for i in range(30)] == [b.pick(P, i) for i in range(30)]
        assert a.uniform() == b.uniform()
        assert kind().seed != kind().seed


def test_large_seeds_and_positions() -> None:
    for seed in (2**32, 2**63, 2**64 + 1, 10**30):
        for kind in (StreamNoise, CounterNoise):
            assert kind(seed).pick(P, 2**31) in P.ids


def test_chance_is_strict_at_both_ends() -> None:
    for noise in (StreamNoise(1), CounterNoise(1)):
        assert not any(noise.chance(0.0) for _ in range(1000))
        assert all(noise.chance(1.0) for _ in range(1000))


class _Edge(StreamNoise):
    def __init__(self, value: float) -> None:
        super().__init__(0)
        self._value = value

    def uniform(self) -> float:
        return self._value


def test_the_ends_of_the_unit_interval_draw_the_first_and_the_last() -> None:
    third = Dist(np.array([4, 5, 6]), np.full(3, 1 / 3))
    assert _Edge(0.0).pick(third, 0) == 4
    assert _Edge(1 - 2**-53).pick(third, 0) == 6
    assert not _Edge(0.25).chance(0.25)


def test_a_point_needs_no_draw() -> None:
    noise, other = StreamNoise(2), StreamNoise(2)
    assert noise.pick(Dist.point(9), 0) == 9
    assert noise.uniform() == other.uniform()
    assert CounterNoise(2).pick(Dist.point(9), 0) == 9


def test_ids_have_64_bits_also_where_numpy_counts_in_32(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on Windows before NumPy 2."""
    count = np.arange

    def narrow(*asked: int, dtype: type = np.int32) -> NDArray[np.integer]:
        return count(*asked, dtype=dtype)

    logits, noise = np.linspace(0, 1, 9, dtype=np.float32), CounterNoise(1)
    wide = Sampler(SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0))
    drawn = [noise.pick(wide.row(logits, (), each), 5) for each in (None, Anything())]
    monkeypatch.setattr(np, "arange", narrow)
    for constraint, token in zip((None, Anything()), drawn, strict=True):
        dist = wide.row(logits, (), constraint)
        assert dist.ids.dtype == np.int64
        assert noise.pick(dist, 5) == token
