"""From logits to the distribution that a token is drawn from: llama.cpp's sampler chain, in numpy.

The order is llama.cpp's: grammar, logit bias, penalties, top-k, typical-p, top-p, min-p and last
the temperature. Filters and temperature are computed in 32-bit floats, as llama.cpp does, so that
both keep the same tokens; only the last exponential and its sum are in 64 bits.

Nothing here sorts or exponentiates a whole vocabulary unless the settings leave no other way.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias, overload

import numpy as np

from localspec.engine.grammars.constraint import Constraint, Course
from localspec.engine.record.stats import TokenLogprob
from localspec.engine.round.params import SamplingParams
from localspec.errors import EngineError, SamplingError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ids = NDArray[np.int64]

Logits: TypeAlias = "NDArray[np.float32]"

_LEAST = np.finfo(np.float32).min
FEW_IDS = 64  # ids up to which a list is searched faster than an array
_SMALL = 65536  # below this many logits, a second pass over them costs less than it saves
_GUESSES = (256, 2048, 16384)  # how many to sort in turn while the number needed is not known


@dataclass(frozen=True, slots=True)
class Dist:
    """One position's distribution after the whole chain, sparse.

    Args:
        ids: (k,) surviving token ids. The first is the most probable; if a filter was on, all are
            in descending order of probability.
        probs: (k,) their probabilities, each above 0, summing to 1.
    """

    ids: NDArray[np.int64]
    probs: NDArray[np.float64]

    def prob(self, token: int) -> float:
        """The probability of `token`, 0 if it did not survive."""
        if len(self.ids) <= FEW_IDS:
            ids = self.ids.tolist()
            return float(self.probs[ids.index(token)]) if token in ids else 0.0
        where = np.flatnonzero(self.ids == token)
        return float(self.probs[where[0]]) if where.size else 0.0

    def on(self, ids: NDArray[np.int64]) -> NDArray[np.float64]:
        """The probabilities of `ids` (k,), 0 for those that did not survive."""
        if len(self.ids) * len(ids) <= 1 << 14:
            same: NDArray[np.float64] = (ids[:, None] == self.ids) @ self.probs
            return same
        dense = np.zeros(1 + max(int(self.ids.max()), int(ids.max())))
        dense[self.ids] = self.probs
        return dense[ids]

    @staticmethod
    def point(token: int) -> Dist:
        """All probability on one token."""
        return Dist(np.array([token], np.int64), np.ones(1))


class Sampler:
    """The chain for one generation. Logits go in, `Dist` comes out.

    Args:
        params: the settings.
        constraint: what the output must conform to, in its state before the first token; `rows`
            and `accept` follow it.
    """

    def __init__(self, params: SamplingParams, constraint: Constraint | None = None) -> None:
        self.params = params
        self._course = None if constraint is None else Course(constraint)
        # Typical-p may remove even the most probable token, so greedy then needs the chain.
        self._argmax = params.greedy and params.typical_p >= 1
        self._temperature = np.float32(params.temperature)
        self._top_p = np.float32(params.top_p)
        self._log_min_p = np.log(np.float32(params.min_p)) if params.min_p > 0 else None
        bias = sorted(params.logit_bias.items())
        self._bias_ids = np.array([token for token, _ in bias], np.int64)
        self._bias = np.array([value for _, value in bias], np.float32)
        bans = all(value == -math.inf for value in params.logit_bias.values())
        plain = bans and self._argmax and not params.penalised
        self._banned = frozenset(params.logit_bias) if plain else None

    def row(
        self, logits: Logits, history: Sequence[int], constraint: Constraint | None = None
    ) -> Dist:
        """The distribution of the token after `history`.

        Args:
            logits: (n_vocab,), a view that is neither modified nor kept.
            history: every token so far, the prompt included; penalties read its end.
            constraint: what may come next, in its state after `history`.

        Raises:
            EngineError: NaN or plus infinity among the logits.
            SamplingError: no token is left.
        """
        if constraint is None and self._banned is not None:
            best = _most_probable(logits)
            if best not in self._banned:  # then no ban changes anything, and nothing is copied
                return Dist.point(best)
        x = self._adjusted(logits, history)
        if constraint is not None:
            _most_probable(x)  # refuse bad logits even if the mask would hide them
            x = _constrained(x, constraint, self._wanted(len(x)))
        if self._argmax:
            return Dist.point(_most_probable(x))
        return self._tempered(*self._filtered(x))

    def rows(self, logits: Logits, history: Sequence[int], drafted: Sequence[int]) -> TargetRows:
        """The distributions along a draft: row i is conditioned on `history + drafted[:i]`.

        Args:
            logits: (len(drafted) + 1, n_vocab), read as the rows are asked for.
            history: every token before the draft.
            drafted: the drafted tokens.
        """
        return TargetRows(self, logits, history, drafted)

    @property
    def banned(self) -> frozenset[int] | None:
        """The tokens that are never taken, if the most probable other one always is; else None."""
        return self._banned if self._course is None else None

    def following(self, params: SamplingParams) -> Sampler:
        """Another chain that follows this one's constraint."""
        other = Sampler(params)
        other._course = self._course
        return other

    def along(self, logits: Logits, history: Sequence[int], drafted: Sequence[int]) -> Dist:
        """The distribution of the token after `history` and `drafted`, logits (n_vocab,)."""
        if drafted and self.params.penalised:
            history = [*history[-self.params.repeat_last_n :], *drafted]
        return self.row(logits, history, self.constraint(drafted))

    def constraint(self, drafted: Sequence[int]) -> Constraint | None:
        """The constraint's state after what was accepted so far and `drafted`."""
        return None if self._course is None else self._course.after(drafted)

    def accept(self, tokens: Sequence[int]) -> None:
        """Move the constraint past the emitted `tokens`."""
        if self._course is not None:
            self._course.commit(tokens)

    def _wanted(self, n_vocab: int) -> int:
        """How many of the largest logits the chain may look at."""
        if self._argmax:
            return 1
        return min(self.params.top_k, n_vocab) if self.params.top_k > 0 else n_vocab

    def _adjusted(self, logits: Logits, history: Sequence[int]) -> Logits:
        """Apply logit bias and penalties to a copy; without any, return the logits themselves."""
        p = self.params
        if not (p.logit_bias or p.penalised):
            return logits
        x = logits.copy()
        if p.logit_bias:
            known = self._bias_ids < len(x)
            x[self._bias_ids[known]] += self._bias[known]
        if p.penalised:
            counted = Counter(history[-p.repeat_last_n :])
            ids = np.fromiter(counted.keys(), np.int64, len(counted))
            count = np.fromiter(counted.values(), np.float32, len(counted))
            known = ids < len(x)  # a draft may have fewer ids than its target
            ids, count = ids[known], count[known]
            x[ids] = _penalised(x[ids], count, p)
        return x

    def _filtered(self, x: Logits) -> tuple[Ids, Logits]:
        """The ids that top-k, typical-p, top-p and min-p leave, and their logits."""
        p = self.params
        ids = self._candidates(x)
        x = x[ids]
        if p.typical_p < 1:
            kept = _typical(x, p.typical_p)
            ids, x = ids[kept], x[kept]
        size = len(x)
        if size == 1:
            return ids, x
        if p.top_p < 1 and (p.top_k > 0 or p.typical_p < 1):
            size = 1 + int(_softmax(x).cumsum().searchsorted(self._top_p))
        if self._log_min_p is not None:
            size = min(size, int(np.count_nonzero(x >= x[0] + self._log_min_p)))
        return ids[:size], x[:size]

    def _candidates(self, x: Logits) -> Ids:
        """The ids that the first filter leaves, descending; avoids sorting all if possible."""
        p = self.params
        if p.top_k > 0:
            return _largest(x, p.top_k, None if p.typical_p < 1 else self._log_min_p)
        if p.typical_p < 1:
            return _largest(x, len(x))
        best = _most_probable(x)
        if p.top_p < 1:
            return _nucleus(x, x[best], self._top_p)
        if self._log_min_p is not None:
            likely: Ids = (x >= x[best] + self._log_min_p).nonzero()[0]
            return likely[_descending(x[likely])]
        ids = np.arange(len(x), dtype=np.int64)
        ids[0], ids[best] = best, 0
        return ids

    def _tempered(self, ids: Ids, x: Logits) -> Dist:
        """Divide by the temperature and normalise."""
        if self.params.greedy:
            return Dist.point(int(ids[0]))
        if not math.isfinite(x[0] / self._temperature):
            raise SamplingError("the temperature is too low for these logits", "Use 0 (greedy).")
        if len(ids) == 1:
            return Dist.point(int(ids[0]))
        x = x / self._temperature
        weights = np.exp((x - x[0]).astype(np.float64))
        if self._log_min_p is None or weights[-1] == 0:
            alive = weights > 0
            ids, weights = ids[alive], weights[alive]
        return Dist(ids, weights / np.add.reduce(weights))


class TargetRows(Sequence[Dist]):
    """The target's distributions along a draft, each computed when first asked for."""

    def __init__(
        self, sampler: Sampler, logits: Logits, history: Sequence[int], drafted: Sequence[int]
    ) -> None:
        self._sampler = sampler
        self._logits = logits
        self._history = history
        self._drafted = drafted
        self._rows: list[Dist | None] = [None] * (len(drafted) + 1)

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, index: int) -> Dist: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Dist]: ...
    def __getitem__(self, index: int | slice) -> Dist | Sequence[Dist]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        index = range(len(self))[index]
        dist = self._rows[index]
        if dist is None:
            dist = self._rows[index] = self._compute(index)
        return dist

    def seen(self) -> dict[int, Dist]:
        """The rows that were asked for, by index."""
        return {i: row for i, row in enumerate(self._rows) if row is not None}

    def _compute(self, index: int) -> Dist:
        return self._sampler.along(self._logits[index], self._history, self._drafted[:index])


def logprobs(logits: Logits, tokens: Sequence[int], n_best: int) -> tuple[TokenLogprob, ...]:
    """The log probabilities of `tokens` by the model alone, from the first rows of `logits`."""
    found = []
    for x, token in zip(logits, tokens, strict=False):
        best = _largest(x, max(1, n_best))
        total = float(x[best[0]]) + math.log(float(np.exp(x - x[best[0]], dtype=np.float64).sum()))
        top = tuple((int(i), float(x[i]) - total) for i in best[:n_best])
        found.append(TokenLogprob(token, float(x[token]) - total, top))
    return tuple(found)


def _constrained(x: Logits, constraint: Constraint, wanted: int) -> Logits:
    """Logits (n,) with minus infinity for all but the `wanted` largest that are allowed.

    Asking a grammar about a token is slow, so the most probable ones are asked first.
    """
    n = len(x)
    for size in (1, max(256, 2 * wanted), n):
        if size < wanted:
            continue
        ids = np.arange(n, dtype=np.int64) if size >= n else _largest(x, size)
        ids = ids[constraint.allowed(ids)]
        if len(ids) >= wanted:
            break
    masked = np.full(n, -np.inf, np.float32)
    masked[ids] = x[ids]
    return masked


def _most_probable(x: Logits) -> int:
    """The index of the largest value of x (n,); argmax finds a NaN first.

    Raises:
        EngineError, SamplingError: as `check_largest`.
    """
    best = int(x.argmax())
    check_largest(float(x[best]))
    return best


def check_largest(largest: float) -> None:
    """Refuse logits whose largest is not finite, so that there is no distribution.

    Raises:
        EngineError: it is NaN or plus infinity: a damaged file, or a driver.
        SamplingError: no token is left.
    """
    if math.isfinite(largest):
        return
    if largest == -math.inf:
        raise SamplingError(
            "no token is left to choose from", "Loosen the grammar or the logit bias."
        )
    raise EngineError(f"the model's logits contain {largest}", "Check the model file.")


def _penalised(x: Logits, count: Logits, p: SamplingParams) -> Logits:
    """Logits (k,) of tokens seen `count` (k,) times (CTRL 1909.05858, in llama.cpp's form)."""
    penalty = np.float32(p.repeat_penalty)
    x = np.where(x <= 0, x * penalty, x / penalty)
    return x - (count * np.float32(p.frequency_penalty) + np.float32(p.presence_penalty))


def _descending(x: Logits) -> Ids:
    """Indices of x (k,) from the largest to the smallest, ties in their order."""
    return (-x).argsort(kind="stable")


def _largest(x: Logits, k: int, alone: np.float32 | None = None) -> Ids:
    """Indices of the k largest values of x (n,), descending; all indices if k reaches n.

    If no other value reaches the largest plus `alone` (below 0), only the largest may be returned,
    since min-p would leave no other.

    One pass over x is enough: x is laid out as a grid, and the k-th largest of the column maxima is
    the bound. At least k values reach it, few more do, and all are in columns whose maximum reaches
    it. Fewer than k may be found if some values are minus infinity.

    Raises:
        EngineError, SamplingError: as `check_largest`.
    """
    n = len(x)
    if k >= n:
        check_largest(float(x.max()))
        return _descending(x)
    rows = 64
    while rows > 1 and n < 6 * k * rows:
        rows //= 2
    columns = n // rows
    grid, rest = x[: columns * rows].reshape(rows, columns), x[columns * rows :]
    maxima = np.maximum.reduce(grid)
    largest = np.maximum.reduce(rest, initial=maxima.max())  # a NaN wins
    check_largest(float(largest))
    if alone is not None:
        near = largest + alone
        reach = (maxima >= near).nonzero()[0]
        if len(reach) == 1 and not (rest >= near).any():
            row = (grid[:, reach[0]] >= near).nonzero()[0]
            if len(row) == 1:
                only: Ids = row * columns + reach
                return only
    bound = max(np.partition(maxima, columns - k)[columns - k], _LEAST)
    ids: Ids
    if n < _SMALL:
        ids = (x >= bound).nonzero()[0]
    else:
        reach = (maxima >= bound).nonzero()[0]
        row, column = (grid[:, reach] >= bound).nonzero()
        tail = (rest >= bound).nonzero()[0]
        ids = np.concatenate([row * columns + reach[column], tail + columns * rows])
    return ids[_descending(x[ids])[:k]]


def _nucleus(x: Logits, largest: np.float32, p: np.float32) -> Ids:
    """Top-p over a whole vocabulary (1904.09751): indices into x (n,), descending."""
    mass = np.exp(x - largest)
    mass /= mass.cumsum()[-1]
    for size in (*_GUESSES, len(x)):
        ids = _largest(x, size)
        reached = mass[ids].cumsum()
        if reached[-1] >= p:
            break
    return ids[: 1 + int(reached.searchsorted(p))]


def _softmax(x: Logits) -> Logits:
    """Softmax of x (k,), descending, in 32 bits and summed in order, as llama.cpp does."""
    mass: Logits = np.exp(x - x[0])
    mass /= mass.cumsum()[-1]
    return mass


def _typical(x: Logits, p: float) -> Ids:
    """Locally typical sampling (2202.00666): which of x (k,), descending, to keep, in order."""
    probs = _softmax(x)
    alive = probs > 0
    probs = probs[alive]
    surprise = -np.log(probs)
    distance = np.abs(surprise - (probs * surprise).cumsum()[-1])
    order = np.argsort(distance, kind="stable")
    size = 1 + int(probs[order].cumsum().searchsorted(np.float32(p), side="right"))
    return np.sort(order[:size])
