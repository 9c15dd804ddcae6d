"""Lookup drafts without a model: what followed the same tokens before may follow them again.

The text so far (the prompt with everything pasted into it, earlier turns, the growing answer) is
indexed by its 2-grams. A guess is copied from the place where most of the last tokens occurred
before (prompt lookup; compare 2411.04975 and 2411.10666). This takes microseconds, so every round
makes a guess and scores it, whichever drafter runs.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from operator import itemgetter

from localspec.engine.common_prefix import common_prefix
from localspec.engine.drafters.past_texts import NO_PAST, Past
from localspec.limits import MAX_GAMMA

_GRAM = 2  # tokens of a key; a single token occurs everywhere and predicts nothing
_MATCH = 24  # the longest match that is counted, in tokens
_PLACES = 6  # places that are compared, those of the longest matches
_STEPS = 24  # places that are visited to find these; other keys may share a slot

# b(m) = m / (m + 3.5), the confidence in a single match of m tokens (see `_confidences`).
_HALF = 3.5
_BELIEF = [m / (m + _HALF) for m in range(_MATCH + MAX_GAMMA + 1)]
_AGREED = [[(n + belief) / (n + 1) for belief in _BELIEF] for n in range(_PLACES + 1)]


@dataclass(frozen=True, slots=True)
class Guess:
    """Copied tokens that may follow, with confidences.

    Attributes:
        confidences: of each token, given those before it: 0 to 1, not yet calibrated.
        search_s: seconds that the engine spent on the search; 0 where it was not timed.
    """

    tokens: tuple[int, ...] = ()
    confidences: Sequence[float] = ()
    search_s: float = field(default=0.0, compare=False)

    def first(self, length: int) -> Guess:
        """The first `length` tokens."""
        return Guess(self.tokens[:length], self.confidences[:length])


NO_GUESS = Guess()
"""The last tokens did not occur before."""


class Lookup:
    """Copies from the text so far; takes 20 bytes per token, and 4 more per token of context."""

    def __init__(self, n_ctx: int, is_end: Callable[[int], bool]) -> None:
        """Prepare for texts of about `n_ctx` tokens; longer ones are slower.

        A copy ends with a token for which `is_end` is true.
        """
        self._is_end = is_end
        self._ends: set[int] = set()  # those in the texts so far: few rounds can copy one
        self._others: Sequence[Past] = ()
        self._tokens: list[int] = []
        self._back = 0  # distance back to the last copy's source; 0 before the first copy
        self._mask = (1 << max(8, (n_ctx - 1).bit_length())) - 1
        # A hash table of chains: for each slot the position of its latest 2-gram, and for each
        # position the one before it in the same slot; -1 for none.
        self._latest = array("i", [-1]) * (self._mask + 1)
        self._before = array("i")

    def begin(self, tokens: Sequence[int], *others: Past) -> None:
        """Start a generation that continues `tokens`; drop the index of any other text.

        The first `guess` indexes new tokens, so that the first token need not wait for it. If more
        of the last tokens match in one of `others` than in the text itself, the copy comes from
        there.
        """
        self._others = others
        self._back = 0
        known = self._tokens
        n = common_prefix(known, tokens)
        for at in reversed(range(max(0, n - _GRAM), len(self._before))):
            self._latest[self._slot(known[at : at + _GRAM])] = self._before.pop()
        del known[n:]

    def guess(
        self, tokens: Sequence[int], drafted: Sequence[int] = (), limit: int = MAX_GAMMA
    ) -> Guess:
        """Guess at most `limit` tokens after `tokens` and `drafted`; none without a match.

        Args:
            tokens: the whole sequence: what `begin` received, and what was emitted since.
            drafted: tokens that another drafter proposes next.
            limit: the most tokens of the guess.
        """
        self._read(tokens)
        tail = [*self._tokens[-_MATCH:], *drafted][-_MATCH:]
        places = self._places(tail, len(tokens) + len(drafted) - self._back)
        # The first place is copied; the others only affect the confidence.
        match, start = places[0] if places else (0, 0)
        found = [(*other.find(tail), other) for other in self._others]
        before, there, other = max(found, key=itemgetter(0), default=(0, 0, NO_PAST))
        kept = other.copy(there, limit) if before > match else []
        if limit < 1 or not (match or kept):
            return NO_GUESS
        if kept:
            match, places, copied = before, [], kept
            self._ends.update(filter(self._is_end, kept))
        else:
            copied = self._tokens[start : start + limit]
            if len(copied) < limit:  # the copy reaches the end of the text: repeat the loop
                period = [*copied, *drafted]
                copied = (period * (limit // len(period) + 1))[:limit]
        if not self._ends.isdisjoint(copied):
            end = next(i for i, token in enumerate(copied) if token in self._ends)
            copied = copied[: end + 1]
        others = [self._tokens[at : at + len(copied)] for _, at in places if at != start]
        if not drafted:
            self._back = 0 if kept else len(tokens) - start
        return Guess(tuple(copied), _confidences(match, copied, others))

    def _read(self, tokens: Sequence[int]) -> None:
        """Index the new 2-grams that have a following token."""
        known, start = self._tokens, len(self._before)
        new = tokens[len(known) :]
        known += new
        self._ends.update(filter(self._is_end, set(new)))
        latest, before, mask = self._latest, self._before, self._mask
        ends = len(known) - 1
        for at, gram in enumerate(pairwise(known[start:ends]), start):
            slot = hash(gram) & mask
            before.append(latest[slot])
            latest[slot] = at

    def _slot(self, gram: Sequence[int]) -> int:
        return hash(tuple(gram)) & self._mask

    def _places(self, tail: Sequence[int], copied: int) -> list[tuple[int, int]]:
        """Earlier places of the last tokens: (length of match, next position), longest first.

        Among equal matches, the place `copied`, where the last copy would continue, comes first,
        then the latest one.
        """
        gram = list(tail[-_GRAM:])
        if len(gram) < _GRAM:
            return []
        known, near = self._tokens, copied - _GRAM
        at = self._latest[self._slot(gram)]
        steps = [near] if self._back and known[near:copied] == gram else []
        for _ in range(_STEPS):
            if at < 0:
                break
            if at != near and known[at : at + _GRAM] == gram:
                steps.append(at)
            at = self._before[at]
        found = [(self._match(step, tail), step + _GRAM) for step in steps]
        return sorted(found, key=itemgetter(0), reverse=True)[:_PLACES]

    def _match(self, at: int, tail: Sequence[int]) -> int:
        """The length of the match that ends with the 2-gram at `at`."""
        known, length = self._tokens, _GRAM
        longest = min(len(tail), at + _GRAM)
        first = at + _GRAM - longest
        if known[first] == tail[-longest] and known[first : at + _GRAM] == tail[-longest:]:
            return longest  # the usual case while a copy goes on
        while length < longest and known[at + _GRAM - 1 - length] == tail[-1 - length]:
            length += 1
        return length


def _confidences(match: int, copied: Sequence[int], others: Sequence[Sequence[int]]) -> list[float]:
    """The confidence in each copied token: (n_k(d_k) + b(m + k - 1)) / (n_k + 1).

    n_k is the number of places that agree up to the k-th token, n_k(d_k) the number of these that
    continue with it, and b(m) = m / (m + 3.5) grows with the length m of the match.
    """
    ends = [(common_prefix(copied, other), len(other)) for other in others]
    found: list[float] = []
    alive = 1 + len(ends)
    for stop, _ in sorted(ends):
        found += _AGREED[alive][match + len(found) : match + stop]
        alive -= 1
    found += _AGREED[1][match + len(found) : match + len(copied)]
    broken = [stop for stop, known in ends if stop < known]  # the end of the text does not disagree
    for stop in set(broken):
        there = 1 + sum(agreed > stop for agreed, _ in ends)
        before = there + broken.count(stop)
        found[stop] = (there + _BELIEF[match + stop]) / (before + 1)
    return found
