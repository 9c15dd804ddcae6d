"""Lookup: a drafter without a model. What followed the same tokens before may follow them again.

The text so far (the prompt with all that was pasted into it, earlier turns, the answer as it grows)
is indexed by its 2-grams as it comes. A guess is copied from where the longest stretch of
the last tokens stood before (prompt lookup; compare 2411.04975 and 2411.10666). It takes
microseconds, so it is made in every round, and is scored in every round, whoever drafts.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from localspec.engine.drafters.past_texts import NO_PAST, Past
from localspec.engine.record.stats import LOOKUP
from localspec.limits import MAX_GAMMA

LONGEST = MAX_GAMMA - 1
"""Tokens of a guess at most: for 64 rows llama.cpp's attention takes another path, on a processor,
whose logits differ in their last bits."""

_GRAM = 2  # tokens of a key: a single one is found everywhere, and what follows it is chance
_MATCH = 24  # tokens of a match that are counted
_PLACES = 6  # places that are compared: those of the longest matches
_STEPS = 24  # places that are looked at for them: other keys may share a slot

# A match of m tokens alone is believed in like this many of the 1 that it is (see `_confidences`).
_HALF = 3.5
_BELIEF = [m / (m + _HALF) for m in range(_MATCH + LONGEST + 1)]
_AGREED = [[(n + belief) / (n + 1) for belief in _BELIEF] for n in range(_PLACES + 1)]


@dataclass(frozen=True, slots=True)
class Guess:
    """What may follow, and how sure that is.

    Attributes:
        tokens: ids, copied.
        confidences: of each, given those before it: 0 to 1, to be calibrated.
    """

    tokens: tuple[int, ...] = ()
    confidences: Sequence[float] = ()

    def first(self, length: int) -> Guess:
        """The first `length` tokens."""
        return Guess(self.tokens[:length], self.confidences[:length])


NO_GUESS = Guess()
"""Nothing of the kind stood there before."""


class Lookup:
    """Copies from the text so far. Some 20 bytes a token, and 4 for each that the context holds."""

    name = LOOKUP

    def __init__(self, n_ctx: int, is_end: Callable[[int], bool]) -> None:
        """Index texts of about `n_ctx` tokens; a copy goes no further than a token that `is_end`.

        Longer texts work as well, slower.
        """
        self._is_end = is_end
        self._past = NO_PAST
        self._tokens: list[int] = []
        self._back = 0  # how far back the last copy stood; 0 before any
        self._mask = (1 << max(8, (n_ctx - 1).bit_length())) - 1
        # A hash table of chains: by slot the latest 2-gram's first position, and by position the
        # one before it in the same slot; -1 for none.
        self._latest = array("i", [-1]) * (self._mask + 1)
        self._before = array("i")

    def begin(self, tokens: Sequence[int], past: Past = NO_PAST) -> None:
        """A generation starts that continues `tokens`: forget what is not there any more.

        What is new is read by the first `guess`, so that no first token waits for it. Where more of
        the last tokens stood together in `past` than in the text itself, that is copied.
        """
        self._past = past
        self._back = 0
        known = self._tokens
        n = min(len(known), len(tokens))
        if known[:n] != list(tokens[:n]):
            n = next(i for i in range(n) if known[i] != tokens[i])
        for at in reversed(range(max(0, n - _GRAM), len(self._before))):
            self._latest[self._slot(known[at : at + _GRAM])] = self._before.pop()
        del known[n:]

    def guess(
        self, tokens: Sequence[int], drafted: Sequence[int] = (), limit: int = LONGEST
    ) -> Guess:
        """What may follow `tokens` and `drafted`: at most `limit` tokens, none without a match.

        Args:
            tokens: all there is; what `begin` got, and what was emitted since.
            drafted: tokens that another drafter proposes to follow.
            limit: of the guess.
        """
        self._read(tokens)
        tail = [*self._tokens[-_MATCH:], *drafted][-_MATCH:]
        places = self._places(tail, len(tokens) + len(drafted) - self._back)
        # The first is copied; the others say how sure that is.
        match, start = places[0] if places else (0, 0)
        before, there = self._past.find(tail)
        kept = self._past.copy(there, limit) if before > match else []
        if limit < 1 or not (match or kept):
            return NO_GUESS
        if kept:
            match, places, copied = before, [], kept
        else:
            copied = self._tokens[start : start + limit]
            if len(copied) < limit:  # it runs into itself: a loop goes on as it did
                period = [*copied, *drafted]
                copied = (period * (limit // len(period) + 1))[:limit]
        end = next((i for i, token in enumerate(copied) if self._is_end(token)), limit)
        copied = copied[: end + 1]
        others = [self._tokens[at : at + len(copied)] for _, at in places if at != start]
        if not drafted:
            self._back = 0 if kept else len(tokens) - start
        return Guess(tuple(copied), _confidences(match, copied, others))

    def _read(self, tokens: Sequence[int]) -> None:
        """Index what is new: every 2-gram that something follows."""
        known, start = self._tokens, len(self._before)
        known += tokens[len(known) :]
        latest, before, mask = self._latest, self._before, self._mask
        ends = len(known) - 1
        for at, gram in enumerate(pairwise(known[start:ends]), start):
            slot = hash(gram) & mask
            before.append(latest[slot])
            latest[slot] = at

    def _slot(self, gram: Sequence[int]) -> int:
        return hash(tuple(gram)) & self._mask

    def _places(self, tail: Sequence[int], copied: int) -> list[tuple[int, int]]:
        """Where the last tokens stood before: (length of match, what follows), the longest first.

        Of equals what follows at `copied`, where the last copy would go on, and then the latest.
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
        return sorted(found, key=lambda place: -place[0])[:_PLACES]

    def _match(self, at: int, tail: Sequence[int]) -> int:
        """How many of the last tokens stand before what follows the 2-gram at `at`."""
        known, length = self._tokens, _GRAM
        longest = min(len(tail), at + _GRAM)
        if known[at + _GRAM - longest : at + _GRAM] == tail[-longest:]:
            return longest  # at once: along a copy it is so every time
        while length < longest and known[at + _GRAM - 1 - length] == tail[-1 - length]:
            length += 1
        return length


def _confidences(match: int, copied: Sequence[int], others: Sequence[Sequence[int]]) -> list[float]:
    """How sure every copied token is by what stands there: (n_k(d_k) + b(m + k - 1)) / (n_k + 1).

    n_k counts the places that agree so far, n_k(d_k) those among them that have this token next,
    and b(m) = m / (m + 3.5) is what a match of m tokens adds: the longer, the surer.
    """
    ends = [(_agreement(copied, other), len(other)) for other in others]
    found: list[float] = []
    alive = 1 + len(ends)
    for stop, _ in sorted(ends):
        found += _AGREED[alive][match + len(found) : match + stop]
        alive -= 1
    found += _AGREED[1][match + len(found) : match + len(copied)]
    broken = [stop for stop, known in ends if stop < known]  # not where nothing more is known
    for stop in set(broken):
        there = 1 + sum(agreed > stop for agreed, _ in ends)
        before = there + broken.count(stop)
        found[stop] = (there + _BELIEF[match + stop]) / (before + 1)
    return found


def _agreement(copied: Sequence[int], other: Sequence[int]) -> int:
    """How many of the first tokens are the same."""
    n = min(len(copied), len(other))
    if copied[:n] == other[:n]:
        return n
    return next(i for i in range(n) if copied[i] != other[i])
