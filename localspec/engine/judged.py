"""How lookup's guesses did, whoever drafted: they are judged by what was emitted in their place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from localspec.engine.acceptance import Accepts
from localspec.engine.drafter import Drafted
from localspec.engine.lookup import Guess
from localspec.engine.sampling import Dist
from localspec.engine.verify import Verdict


class LookupScores(NamedTuple):
    """How sure lookup was, and the chances of it, as far as that was judged: see `Round`."""

    copy_confidences: Sequence[float]
    copy_chances: Sequence[float]
    tail_confidences: Sequence[float]
    tail_chances: Sequence[float]
    path_confidences: Sequence[float]
    path_chances: Sequence[float]


_NOTHING = LookupScores((), (), (), (), (), ())

Scores: TypeAlias = tuple[Sequence[float], Sequence[float]]
"""Confidences and chances, position by position."""


def judged(
    guess: Guess, asked: Drafted, p: Sequence[Dist], verdict: Verdict, accepts: Accepts
) -> LookupScores:
    """What lookup would have copied, whoever drafted, and what it would add where a model stopped.

    The row after a draft accepted whole judges what was not added, too.
    """
    if not (guess.tokens or asked.beyond.tokens):
        return _NOTHING
    said = (*asked.draft.tokens[: verdict.accepted], verdict.token)
    return LookupScores(
        *_scored(guess, 0, p, said, accepts),
        *_scored(asked.beyond, asked.own, p, said, accepts),
        *_followed(guess, asked),
    )


def _followed(guess: Guess, asked: Drafted) -> Scores:
    """Where a model drafted what lookup would have copied, and went on: up to the first other."""
    if not asked.confidences:
        return (), ()
    chances = ((1.0,) * asked.agreed + (0.0,))[: len(guess.tokens)]
    return tuple(guess.confidences[: len(chances)]), chances


def _scored(
    copied: Guess, start: int, p: Sequence[Dist], said: Sequence[int], accepts: Accepts
) -> Scores:
    """Judge what lookup would copy from position `start` on by what was emitted there.

    Up to and including the first token that is another one: those after it were never judged.
    """
    chances: list[float] = []
    for at, (token, other) in enumerate(zip(copied.tokens, said[start:], strict=False), start):
        chances.append(accepts(p[at], token))
        if token != other:
            break
    return tuple(copied.confidences[: len(chances)]), tuple(chances)
