"""How likely a drafted token is accepted, given how sure the draft was of it.

A leaf: plain numbers in, plain numbers out, no clock.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

_EDGES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.88, 0.94, 0.98)
_CENTRES = (0.05, 0.15, 0.25, 0.35, 0.45, 0.55, 0.65, 0.75, 0.84, 0.91, 0.96, 0.99)

# The prior is worth this many observations in every bin. It is what a draft of ordinary quality
# does: about as good as it says, a little better where it is unsure.
_PRIOR_WEIGHT = 1.5
_TRUST_WEIGHT = 1.0
_PRIOR = tuple(0.1 + 0.85 * centre for centre in _CENTRES)

# An observation counts half after 350 more: texts differ in how well a draft judges itself.
_KEEP = 0.998

# One counts half after 23 more where it tells how sure the draft is lately: with _KEEP a text that
# changes kind every 40 tokens got 0.75 of the oracle's speed in the simulator, instead of 0.90.
_KEEP_RECENT = 0.97
_LEVELS = 4  # of acceptance, at which a position not looked at yet may turn out

# The recent mean forgets faster: it is what tells code from prose.
_MEAN_RATE = 0.06
_MEAN_START = 0.7

# The map is worked out anew after so many observations, at first after every round. The mean,
# which is what changes fast, follows every one of them.
_YOUNG = 120
_BATCH = 8

# How much of what sets one position apart from the mean is still there at the next.
_PERSISTENCE = 0.4


class Calibration:
    """A monotone binned map from a draft's confidence to the chance of being accepted.

    It learns from the acceptance *probabilities* that the rules can tell after a verify pass
    (the target's probability of the drafted token, or the overlap of both distributions), which
    say more than whether the token was in fact accepted. Positions after the first rejection
    were never judged: whoever calls `learn` leaves them out.

    Attributes:
        mean: acceptance of the positions judged lately, whatever the confidence.
        seen: positions judged so far.
        levels: what to expect of a position: (probability, by how much its acceptance is off the
            expected one), few and far apart.
    """

    def __init__(self) -> None:
        self.mean = _MEAN_START
        self.seen = 0
        self._weight = [0.0] * len(_CENTRES)
        self._sum = [0.0] * len(_CENTRES)
        self._earned = self._promised = 0.0
        self._recent = [1.0 / len(_CENTRES)] * len(_CENTRES)
        self._pending = 0
        self._map = list(_PRIOR)
        self.levels = self._grouped()

    def acceptance(self, confidence: float) -> float:
        """The chance that a token proposed with this confidence is accepted."""
        return self._map[bisect_right(_EDGES, confidence)]

    def next_after(self, acceptance: float) -> float:
        """The chance to expect at the position that follows one with this chance."""
        return self.mean + _PERSISTENCE * (acceptance - self.mean)

    def learn(self, confidences: Sequence[float], chances: Sequence[float]) -> None:
        """Take note of judged positions.

        Args:
            confidences: of every position that the draft looked at, in order.
            chances: acceptance probabilities of the positions that were judged: as many, or
                fewer where a rejection came first.
        """
        if not chances:
            return
        for confidence, chance in zip(confidences, chances, strict=False):
            at = bisect_right(_EDGES, confidence)
            self._weight[at] += 1.0
            self._sum[at] += chance
            self._earned += chance
            self._promised += _PRIOR[at]
            self._recent[at] += 1 - _KEEP_RECENT
            # The first few count more, so that a prior which is wrong does not linger.
            self.seen += 1
            self.mean += max(_MEAN_RATE, 1 / (self.seen + 2)) * (chance - self.mean)
        self._pending += len(chances)
        if self.seen < _YOUNG or self._pending >= _BATCH:
            self._fade(_KEEP**self._pending, _KEEP_RECENT**self._pending)
            self._pending = 0
            self._map = self._monotone()
            self.levels = self._grouped()

    def _fade(self, keep: float, recent: float) -> None:
        """Let what was seen so far count less."""
        self._recent = [recent * w for w in self._recent]
        self._weight = [keep * w for w in self._weight]
        self._sum = [keep * s for s in self._sum]
        self._earned *= keep
        self._promised *= keep

    def _grouped(self) -> list[tuple[float, float]]:
        """The recent confidences as acceptances in groups, by how far these are off their mean."""
        whole = sum(self._recent)
        groups: list[tuple[float, float]] = []
        share = total = 0.0
        for weight, acceptance in zip(self._recent, self._map, strict=True):
            share += weight / whole
            total += weight / whole * acceptance
            if share > 0.8 / _LEVELS:
                groups.append((share, total / share))
                share = total = 0.0
        if share:
            groups.append((share, total / share))
        mean = sum(weight * level for weight, level in groups)
        return [(weight, level - mean) for weight, level in groups]

    def _monotone(self) -> list[float]:
        """Weighted isotonic regression of the bins, by pooling neighbours that fall."""
        # A draft that earns less than the prior promised where it was tried will do so elsewhere.
        trust = min(1.0, (self._earned + _TRUST_WEIGHT) / (self._promised + _TRUST_WEIGHT))
        pools: list[tuple[float, float, int]] = []  # weight, sum, bins
        for w, s, prior in zip(self._weight, self._sum, _PRIOR, strict=True):
            pool = (w + _PRIOR_WEIGHT, s + _PRIOR_WEIGHT * trust * prior, 1)
            while pools and pools[-1][1] * pool[0] >= pool[1] * pools[-1][0]:
                last = pools.pop()
                pool = (last[0] + pool[0], last[1] + pool[1], last[2] + pool[2])
            pools.append(pool)
        return [total / weight for weight, total, bins in pools for _ in range(bins)]
