"""Compares lookup's guesses with the emitted tokens, whichever drafter ran."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from localspec.engine.drafters.lookup import Guess
from localspec.engine.drafters.proposer import Accepts
from localspec.engine.drafters.protocol import Proposal
from localspec.engine.round.sampling import Dist
from localspec.engine.round.verify import Verdict


class LookupScores(NamedTuple):
    """Confidences and chances of lookup's guesses, as far as they were tested: see `Round`."""

    copy_confidences: tuple[float, ...] = ()
    copy_chances: tuple[float, ...] = ()
    path_confidences: tuple[float, ...] = ()
    path_chances: tuple[float, ...] = ()


# (confidences, chances), position by position
Scores: TypeAlias = tuple[tuple[float, ...], tuple[float, ...]]


def score_lookup(
    guess: Guess, asked: Proposal, p: Sequence[Dist], verdict: Verdict, accepts: Accepts
) -> LookupScores:
    """Score what lookup would have copied."""
    if not guess.tokens:
        return LookupScores()
    said = (*asked.draft.tokens[: verdict.accepted], verdict.token)
    return LookupScores(*_scored(guess, p, said, accepts), *_followed(guess, asked))


def _followed(guess: Guess, asked: Proposal) -> Scores:
    """Whether the model drafted each of lookup's tokens and went on; the first miss ends it."""
    if not asked.confidences:
        return (), ()
    chances = ((1.0,) * asked.agreed + (0.0,))[: len(guess.tokens)]
    return tuple(guess.confidences[: len(chances)]), chances


def _scored(copied: Guess, p: Sequence[Dist], said: Sequence[int], accepts: Accepts) -> Scores:
    """Compare what lookup would copy with the emitted tokens.

    The first token that differs is the last one that counts.
    """
    chances: list[float] = []
    for token, other, dist in zip(copied.tokens, said, p, strict=False):
        chances.append(accepts(dist, token))
        if token != other:
            break
    return tuple(copied.confidences[: len(chances)]), tuple(chances)
