"""The randomness of one generation, all of it from one seed that never changes inside.

The target draws from one stream and the drafts from another, so that the target's draws do not
depend on how many tokens were drafted before. The coupled rule needs the opposite: the same random
numbers for both, determined by position and not by order.
"""

from __future__ import annotations

import secrets
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from localspec.engine.round.sampling import Dist

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_STEP = np.uint64(_GOLDEN)
_FACTOR_1, _FACTOR_2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_S30, _S27, _S31, _S12 = np.uint64(30), np.uint64(27), np.uint64(31), np.uint64(12)


class Noise(Protocol):
    """The source of randomness for acceptance rules."""

    def chance(self, probability: float) -> bool:
        """True with this probability: a uniform number below it (strictly)."""

    def pick(self, dist: Dist, position: int) -> int:
        """A token drawn from `dist`; `position` is its absolute index in the sequence."""


class StreamNoise:
    """Independent draws from one PCG64 stream: for the match, token and block rules.

    Args:
        seed: fixes the stream; None draws a fresh one. `seed` holds the one in force.
        of_drafts: the other stream of that seed, independent of the first.
    """

    def __init__(self, seed: int | None = None, *, of_drafts: bool = False) -> None:
        self.seed = secrets.randbits(63) if seed is None else seed
        self.drawn = 0
        self._of_drafts = of_drafts
        sequence = np.random.SeedSequence(self.seed, spawn_key=(0,) if of_drafts else ())
        self._bits = np.random.PCG64(sequence)
        self._random = np.random.Generator(self._bits)

    def for_drafts(self) -> StreamNoise:
        """The stream of the same seed that drafts draw from."""
        return StreamNoise(self.seed, of_drafts=True)

    def after(self, n: int) -> StreamNoise:
        """A new stream with this seed, after its first `n` numbers."""
        again = StreamNoise(self.seed, of_drafts=self._of_drafts)
        again._bits.advance(n)
        again.drawn = n
        return again

    def since(self, n: int) -> list[float]:
        """The numbers that were drawn after the first `n`."""
        return [again.uniform() for again in [self.after(n)] for _ in range(self.drawn - n)]

    def uniform(self) -> float:
        """A number in [0, 1)."""
        self.drawn += 1
        return self._random.random()

    def chance(self, probability: float) -> bool:
        """True with this probability."""
        return self.uniform() < probability

    def pick(self, dist: Dist, position: int) -> int:  # noqa: ARG002 - a stream has its own place
        """Draw a token by inverting the cumulative distribution."""
        if len(dist.ids) == 1:
            return int(dist.ids[0])
        reached = dist.probs.cumsum()
        index = int(reached.searchsorted(self.uniform() * reached[-1], side="right"))
        return int(dist.ids[min(index, len(reached) - 1)])


class CounterNoise(StreamNoise):
    """One Gumbel variable for every (seed, position, token id): for the coupled rule.

    The draw is a function of the distribution, the position and the seed, not of what was drawn
    before (drafter-invariant speculative decoding, 2408.07978). Only the ids that survived the
    filters are hashed. `uniform` and `chance`, which this rule never asks for, are a stream's.

    Args:
        seed: fixes every variable; None draws a fresh one. `seed` holds the one in force.
    """

    def __init__(self, seed: int | None = None) -> None:
        super().__init__(seed)
        self._key = _mix(self.seed + _GOLDEN)

    def for_drafts(self) -> CounterNoise:
        """The same object: with shared variables, draft and target tend to draw the same token."""
        return self

    def after(self, n: int) -> CounterNoise:  # noqa: ARG002 - nothing is drawn in turn
        """This very noise."""
        return self

    def pick(self, dist: Dist, position: int) -> int:
        """The id with the largest ``log p + G``, G a Gumbel variable.

        With G = -log(E), E exponential, that is the largest p / E.
        """
        if len(dist.ids) == 1:
            return int(dist.ids[0])
        return int(dist.ids[(dist.probs / self.exponentials(dist.ids, position)).argmax()])

    def exponentials(self, ids: NDArray[np.int64], position: int) -> NDArray[np.float64]:
        """Standard exponential variables (k,) for `ids` (k,) at `position`."""
        key = np.uint64(_mix(self._key ^ (position * _GOLDEN & _MASK)))
        # SplitMix64's output function (Steele, Lea, Flood 2014) on a counter of our own.
        z = ids.view(np.uint64) * _STEP
        z += key
        z ^= z >> _S30
        z *= _FACTOR_1
        z ^= z >> _S27
        z *= _FACTOR_2
        z ^= z >> _S31
        uniform = (z >> _S12).astype(np.float64)
        uniform += 0.5  # exact, so that neither 0 nor 1 comes out
        uniform *= 2.0**-52
        drawn: NDArray[np.float64] = np.log(uniform, out=uniform)
        return np.negative(drawn, out=drawn)


def _mix(z: int) -> int:
    """SplitMix64's output function on one number."""
    z &= _MASK
    z = (z ^ (z >> 30)) * int(_FACTOR_1) & _MASK
    z = (z ^ (z >> 27)) * int(_FACTOR_2) & _MASK
    return z ^ (z >> 31)
